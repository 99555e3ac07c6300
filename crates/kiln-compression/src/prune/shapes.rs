//! The shapes of a model that was shrunk, for a model that is built anew.

use std::collections::BTreeMap;

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{Device, Int, Tensor};
use serde::{Deserialize, Serialize};

use super::layers::leaf;
use crate::Error;
use crate::parameters::{Place, Site, sites};

/// The shapes of a model's parameters and running statistics by path. Saved beside a record of a shrunk model, they make a model that is
/// built anew fit it ([`reshape_like`]).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Shapes(pub BTreeMap<String, Vec<usize>>);

impl Shapes {
    /// The shapes of a model.
    pub fn of(model: &impl Module) -> Self {
        Self(sites(model).into_iter().map(|site| (site.path, site.shape)).collect())
    }
}

/// The first values of each axis, as a tensor of its own: a slice could keep the memory of the whole.
fn first<const D: usize>(tensor: Tensor<D>, shape: &[usize]) -> Tensor<D> {
    let device = tensor.device();
    // On the device for recordings the whole would be counted beside its part, and values do not matter.
    if device.clone().inner() == Device::capture() {
        let mut sizes = [0; D];
        sizes.copy_from_slice(shape);
        return Tensor::zeros(sizes, (&device, tensor.dtype())).set_require_grad(tensor.is_require_grad());
    }
    leaf(tensor, |tensor| {
        shape.iter().enumerate().fold(tensor, |tensor, (axis, size)| match tensor.dims()[axis] == *size {
            true => tensor,
            false => tensor.select(axis, Tensor::<1, Int>::arange(0..*size as i64, &device.clone().inner())),
        })
    })
}

/// Cuts the parameters of a model that was built anew to these shapes, so that a record of the model with these shapes loads into it. Of
/// each axis the first values stay. Attach masks after this.
///
/// ```
/// use burn::module::Module;
/// use burn::nn::LinearConfig;
/// use burn::tensor::Device;
/// use kiln_compression::{Shapes, reshape_like};
///
/// let device = Device::flex();
/// let shapes = Shapes::of(&LinearConfig::new(3, 2).init(&device));
/// let linear = reshape_like(LinearConfig::new(8, 8).init(&device), &shapes)?;
/// assert_eq!(linear.weight.dims(), [3, 2]);
/// # Ok::<(), kiln_compression::Error>(())
/// ```
///
/// # Errors
/// [`Error::UnknownParameter`] for a path that the model does not have, [`Error::InvalidSetting`] for a shape that is larger than that of
/// the model or has another number of dimensions, [`Error::Reparameterized`] for a parameter to be cut that something is attached to.
pub fn reshape_like<M: Module>(model: M, shapes: &Shapes) -> Result<M, Error> {
    struct Reshape<'a>(Place, &'a Shapes);
    impl ModuleMapper for Reshape<'_> {
        fn enter_module(&mut self, name: &str, container: &str) {
            self.0.enter(name, container);
        }
        fn exit_module(&mut self, _: &str, _: &str) {
            self.0.leave();
        }
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            match self.1.0.get(&self.0.parameter()) {
                Some(shape) if !self.0.is_inner() && param.lazy_shape()[..] != shape[..] => {
                    param.map(|tensor| first(tensor, shape))
                }
                _ => param,
            }
        }
    }
    let known: BTreeMap<String, Site> = sites(&model).into_iter().map(|site| (site.path.clone(), site)).collect();
    for (path, shape) in &shapes.0 {
        let Some(site) = known.get(path) else {
            let known = known.into_keys().collect::<Vec<_>>().join(", ");
            return Err(Error::UnknownParameter { path: path.clone(), known });
        };
        let own = &site.shape;
        if own.len() != shape.len() || own.iter().zip(shape).any(|(own, size)| size > own || *size == 0) {
            let value = format!("{shape:?} for '{path}' of {own:?}");
            return Err(Error::InvalidSetting {
                what: "a shape",
                value,
                expected: "as many dimensions, none larger, none empty",
            });
        }
        if own != shape {
            site.expect_plain()?;
        }
    }
    Ok(model.map(&mut Reshape(Place::default(), shapes)))
}
