//! Devices and backend of a segment's tensors.

use burn::backend::{DispatchTensorKind, GradientCheckpointingStrategy as Strategy};
use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Device, Tensor};

use super::tensors::{TensorMap, Tensors};

/// The devices of a segment's float tensors.
pub(crate) fn devices_of(module: &impl Module, inputs: impl Tensors) -> Vec<Device> {
    Find::over(module, inputs).devices
}

/// The backends that have a custom backward pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    #[cfg(feature = "flex")]
    Flex,
    #[cfg(feature = "cube")]
    Cube,
    Other,
}

/// The devices of a segment's tensors, and whether any of the tensors needs a gradient.
#[derive(Default)]
pub(crate) struct Find {
    path: Vec<String>,
    pub(crate) devices: Vec<Device>,
    pub(crate) tracked: Option<(Kind, Strategy)>,
    pub(crate) not_a_leaf: Option<String>,
}

impl Find {
    pub(crate) fn over(module: &impl Module, inputs: impl Tensors) -> Self {
        let mut find = Self::default();
        let _ = inputs.map(&mut find);
        module.visit(&mut find);
        find
    }

    fn see<const D: usize>(&mut self, tensor: &Tensor<D>) {
        let device = tensor.device();
        if !self.devices.contains(&device) {
            self.devices.push(device);
        }
        if self.tracked.is_none()
            && tensor.is_tracked()
            && let Some(strategy) = tensor.gradient_checkpointing_strategy()
        {
            self.tracked = Some((kind(tensor), strategy));
        }
    }
}

fn kind<const D: usize>(tensor: &Tensor<D>) -> Kind {
    let DispatchTensorKind::Autodiff(inner) = tensor.clone().into_dispatch().kind else { return Kind::Other };
    match *inner {
        #[cfg(feature = "flex")]
        DispatchTensorKind::Flex(_) => Kind::Flex,
        #[cfg(feature = "cube")]
        DispatchTensorKind::Cube(_) => Kind::Cube,
        _ => Kind::Other,
    }
}

impl TensorMap for Find {
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        self.see(&tensor);
        tensor
    }
}

impl ModuleVisitor for Find {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        // Reading a lazy parameter initialises it, which must happen before the segment is seeded.
        let tensor = param.val();
        self.see(&tensor);
        if tensor.is_tracked() && !tensor.is_require_grad() && self.not_a_leaf.is_none() {
            self.not_a_leaf = Some(self.path.join("."));
        }
    }
}
