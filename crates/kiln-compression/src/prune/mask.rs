//! A mask on a parameter, and where masks are attached.

use std::collections::BTreeSet;

use burn::module::{Module, Param, ParamId, Reparameterization, Reparameterizer};
use burn::tensor::{Bool, Tensor};

use super::layers::{MASK_NAME, weights_of};
use crate::Error;

/// A parameter of which some elements are pruned: its value has exact zeros there, and so has its gradient.
///
/// The stored value keeps what it had. [`Masks`] attaches masks to a model, [`prune`](super::prune) changes them.
#[derive(Module, Debug)]
pub struct Mask {
    /// `[n]` for a parameter of `n` elements, in row-major order; true where the element is kept.
    pub kept: Param<Tensor<1, Bool>>,
}

impl Reparameterization for Mask {
    const NAME: &'static str = MASK_NAME;

    fn apply<const D: usize>(&self, base: Tensor<D>) -> Tensor<D> {
        let pruned = self.kept.val().bool_not().reshape(base.shape());
        base.mask_fill(pruned, 0.0)
    }
}

/// Attaches a [`Mask`] that keeps everything to each weight that can be pruned.
///
/// A record of a model with masks contains them. It loads into a model to which masks are attached.
///
/// ```
/// use burn::module::Module;
/// use burn::nn::LinearConfig;
/// use burn::tensor::Device;
/// use kiln_compression::{Masks, Pruning, prune, sparsity};
///
/// let model = LinearConfig::new(8, 8).init(&Device::flex());
/// let masks = Masks::of(&model);
/// let model = model.apply_reparameterization(masks);
/// let model = prune(model, &Pruning::magnitude(0.75))?;
/// assert_eq!(sparsity(&model).total(), 0.75);
/// let plain = model.materialize(); // without masks, with zeros
/// # Ok::<(), kiln_compression::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Masks {
    paths: BTreeSet<String>,
}

impl Masks {
    /// Masks for the weights of all linear layers and convolutions of a model: parameters of two or more dimensions, no biases, no norms,
    /// no embeddings. Parameters that are shared are named once, where they are found first.
    pub fn of(model: &impl Module) -> Self {
        Self { paths: weights_of(model).into_iter().collect() }
    }

    /// Masks for parameters by path, of any number of dimensions.
    pub(super) fn at(paths: impl IntoIterator<Item = String>) -> Self {
        Self { paths: paths.into_iter().collect() }
    }

    /// Only the weights below `path`: `layer1`, or `layer1.0.conv1.weight`.
    ///
    /// # Errors
    /// [`Error::UnknownParameter`] for a path that names none of them.
    pub fn only(self, path: &str) -> Result<Self, Error> {
        self.split(path).map(|(inside, _)| inside)
    }

    /// All but the weights below `path`, as the last layer, which is often left dense.
    ///
    /// # Errors
    /// [`Error::UnknownParameter`] for a path that names none of them.
    pub fn skip(self, path: &str) -> Result<Self, Error> {
        self.split(path).map(|(_, outside)| outside)
    }

    /// Where masks are attached.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.paths.iter().map(String::as_str)
    }

    fn split(self, path: &str) -> Result<(Self, Self), Error> {
        let is_below =
            |own: &String| own.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
        let (inside, outside): (BTreeSet<_>, BTreeSet<_>) = self.paths.into_iter().partition(is_below);
        if inside.is_empty() {
            let known = outside.into_iter().collect::<Vec<_>>().join(", ");
            return Err(Error::UnknownParameter { path: path.to_owned(), known });
        }
        Ok((Self { paths: inside }, Self { paths: outside }))
    }
}

impl Reparameterizer for Masks {
    type Reparam = Mask;

    fn reparameterize<const D: usize>(
        &mut self,
        path: &str,
        param: Param<Tensor<D>>,
    ) -> (Param<Tensor<D>>, Option<Mask>) {
        if !self.paths.contains(path) {
            return (param, None);
        }
        let count = param.lazy_shape().num_elements();
        let kept = Tensor::<1>::zeros([count], &param.lazy_device()).equal_elem(0.0);
        (param, Some(Mask { kept: Param::initialized(ParamId::new(), kept) }))
    }
}
