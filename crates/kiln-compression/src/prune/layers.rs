//! Reads and replaces the masks of a model.

use std::collections::BTreeMap;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::{Bool, DType, Tensor, TensorData};

use crate::nest::NESTED;
use crate::parameters::Place;

/// The field of [`Mask`](super::Mask) that holds the mask, and the type around it, as visitors see them.
pub(super) const MASK: (&str, &str) = ("kept", "Mask");

/// The name of a [`Mask`](super::Mask) as a reparameterization.
pub(super) const MASK_NAME: &str = "mask";

/// A parameter that has a mask.
#[derive(Debug, Clone)]
pub(super) struct MaskedLayer {
    pub(super) path: String,
    pub(super) id: ParamId,
    pub(super) shape: Vec<usize>,
    /// The dimension of the layer's input, if the parameter is the weight of a linear layer or a convolution.
    pub(super) input_axis: Option<usize>,
    /// The stored value, row-major; empty unless it was asked for.
    pub(super) base: Vec<f32>,
    /// Whether the stored values are codes, which were asked for and are no weights.
    pub(super) is_packed: bool,
    /// Whether the mask changes the stored value, and not the result of another reparameterization.
    pub(super) is_first: bool,
    pub(super) kept: Vec<bool>,
}

/// The input dimension of a layer's weight: burn's linear weight is `[in, out]`, a convolution's `[out, in / groups, ..]`, a transposed
/// convolution's `[in, out / groups, ..]`.
fn input_axis(kind: &str, field: &str) -> Option<usize> {
    match (kind, field) {
        ("Linear" | "ConvTranspose1d" | "ConvTranspose2d" | "ConvTranspose3d", "weight") => Some(0),
        ("Conv1d" | "Conv2d" | "Conv3d" | "DeformConv2d", "weight") => Some(1),
        _ => None,
    }
}

/// The paths of the weights of linear layers and convolutions.
pub(super) fn weights_of(model: &impl Module) -> Vec<String> {
    #[derive(Default)]
    struct Weights(Place, Vec<String>);
    impl ModuleVisitor for Weights {
        fn enter_module(&mut self, name: &str, container: &str) {
            self.0.enter(name, container);
        }
        fn exit_module(&mut self, _: &str, _: &str) {
            self.0.leave();
        }
        fn visit_float<const D: usize>(&mut self, _: &Param<Tensor<D>>) {
            if D >= 2 && !self.0.is_inner() && input_axis(self.0.kind(), self.0.field()).is_some() {
                self.1.push(self.0.parameter());
            }
        }
    }
    let mut weights = Weights::default();
    model.visit(&mut weights);
    weights.1
}

/// The parameters that have masks, in the order of the model's fields. `values` asks for their stored values.
pub(super) fn masked_layers(model: &impl Module, values: bool) -> Vec<MaskedLayer> {
    struct Read {
        place: Place,
        values: bool,
        last: Option<MaskedLayer>,
        found: Vec<MaskedLayer>,
        /// The stored value of the parameter that was seen last, none if it is codes; read only if a mask follows.
        read: Box<dyn FnOnce() -> Option<Vec<f32>>>,
    }
    impl ModuleVisitor for Read {
        fn enter_module(&mut self, name: &str, container: &str) {
            self.place.enter(name, container);
            if container == "Reparameterization"
                && ![MASK_NAME, NESTED].contains(&name)
                && let Some(layer) = &mut self.last
            {
                layer.is_first = false;
            }
        }
        fn exit_module(&mut self, _: &str, _: &str) {
            self.place.leave();
        }
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if self.place.is_inner() {
                return;
            }
            self.last = Some(MaskedLayer {
                path: self.place.parameter(),
                id: param.id,
                shape: param.lazy_shape().to_vec(),
                input_axis: input_axis(self.place.kind(), self.place.field()).filter(|_| D >= 2),
                base: vec![],
                is_packed: false,
                is_first: true,
                kept: vec![],
            });
            let param = param.clone();
            self.read = Box::new(move || match param.base().dtype() {
                DType::QFloat(_) => None,
                _ => Some(param.base().into_data().iter::<f32>().collect()),
            });
        }
        fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
            if self.place.is_inner()
                && (self.place.field(), self.place.kind()) == MASK
                && let Some(mut layer) = self.last.take()
            {
                layer.kept = param.val().into_data().iter::<bool>().collect();
                if self.values {
                    let base = std::mem::replace(&mut self.read, Box::new(|| None))();
                    layer.is_packed = base.is_none();
                    layer.base = base.unwrap_or_default();
                }
                self.found.push(layer);
            }
        }
    }
    let mut read = Read { place: Place::default(), values, last: None, found: vec![], read: Box::new(|| None) };
    model.visit(&mut read);
    read.found
}

/// Replaces the masks at these paths. Lengths must be those of the parameters.
pub(super) struct Replace {
    pub(super) place: Place,
    pub(super) kept: BTreeMap<String, Vec<bool>>,
}

impl ModuleMapper for Replace {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.place.enter(name, container);
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.place.leave();
    }

    fn map_bool<const D: usize>(&mut self, param: Param<Tensor<D, Bool>>) -> Param<Tensor<D, Bool>> {
        let is_mask = self.place.is_inner() && (self.place.field(), self.place.kind()) == MASK;
        match self.kept.get(&self.place.parameter()) {
            Some(kept) if is_mask => param.map(|old| {
                let shape = old.shape();
                Tensor::from_data(TensorData::new(kept.clone(), shape), &old.device())
            }),
            _ => param,
        }
    }
}

/// Sets the stored values to zero where these masks prune.
pub(super) struct Zero {
    pub(super) place: Place,
    pub(super) kept: BTreeMap<String, Vec<bool>>,
}

impl ModuleMapper for Zero {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.place.enter(name, container);
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.place.leave();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        match self.kept.get(&self.place.parameter()) {
            Some(kept) if !self.place.is_inner() => param.map(|tensor| {
                leaf(tensor, |tensor| {
                    let kept = TensorData::new(kept.clone(), tensor.shape());
                    let pruned = Tensor::<D, Bool>::from_data(kept, &tensor.device()).bool_not();
                    tensor.mask_fill(pruned, 0.0)
                })
            }),
            _ => param,
        }
    }
}

/// Changes a stored value without a graph: the result is a leaf, as the value was.
pub(super) fn leaf<const D: usize>(tensor: Tensor<D>, change: impl FnOnce(Tensor<D>) -> Tensor<D>) -> Tensor<D> {
    match tensor.is_autodiff() {
        // A way that the device for recordings has as well, which has no inner tensors.
        true => {
            let learned = tensor.is_require_grad();
            change(tensor.detach()).detach().set_require_grad(learned)
        }
        false => change(tensor),
    }
}
