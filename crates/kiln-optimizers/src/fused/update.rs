//! A parameter's update on the devices that have one operation for it.

use crate::error::Error;
#[cfg(feature = "cube")]
use burn::backend::Cube;
#[cfg(feature = "flex")]
use burn::backend::Flex;
use burn::backend::{Capture, DispatchDevice};
use burn::config::Config;
use burn::tensor::{DType, Tensor};
use serde_json::Value;

use super::rule::Rule;
use super::together::{factor, joins_now};
#[cfg(feature = "cube")]
use super::{cube::Joined, together::join};
use crate::place::float;
use kiln_operations::{like, operations};

/// Whether [`update`] accepts the tensors: in f32, of one shape, without a graph, on the CPU device, a recording device, or a CubeCL device
/// if updates are joined.
pub(super) fn is_fused<const D: usize>(parameter: &Tensor<D>, others: &[&Tensor<D>]) -> bool {
    let device = parameter.device();
    let known = match device.as_dispatch() {
        #[cfg(feature = "flex")]
        DispatchDevice::Flex(_) => true,
        DispatchDevice::Capture(_) => true,
        _ => joins_now(&device) && parameter.shape().num_elements() > 0,
    };
    let alike = |other: &&Tensor<D>| {
        other.dtype() == DType::F32 && other.dims() == parameter.dims() && other.device() == device
    };
    known && parameter.dtype() == DType::F32 && others.iter().all(alike)
}

/// The parameter, which comes first, and its state after a step on the gradient, which is multiplied by the factor of
/// [`update_together`](super::update_together).
#[cfg_attr(not(feature = "flex"), allow(unused_variables, reason = "only kernels of the CPU device are called"))]
pub(super) fn update<R: Rule<N>, const D: usize, const N: usize>(
    rule: R,
    values: [Tensor<D>; N],
    gradient: Tensor<D>,
) -> [Tensor<D>; N] {
    match gradient.device().as_dispatch() {
        #[cfg(feature = "flex")]
        DispatchDevice::Flex(_) => {
            let gradient = float::<Flex, D>(gradient);
            let values = values.map(float::<Flex, D>);
            super::flex::update(rule, values, &gradient, factor().unwrap_or(1.0) as f32)
                .map(Tensor::from_primitive::<Flex>)
        }
        #[cfg(feature = "cube")]
        DispatchDevice::Cube(_) => {
            let gradient = float::<Cube, D>(gradient);
            let values = values.map(float::<Cube, D>).into();
            let next = join(|scale| Joined::new(rule.any(), scale, gradient, values));
            let mut next = next.into_iter().map(Tensor::from_primitive::<Cube>);
            std::array::from_fn(|_| next.next().unwrap_or_else(|| unreachable!("as many values as the rule has")))
        }
        _ => {
            let gradient = float::<Capture, D>(gradient);
            let values = values.map(float::<Capture, D>);
            let outputs = values.iter().map(like).collect();
            let inputs = values.into_iter().chain([gradient]).collect();
            let mut made = operations(R::COST, inputs, &[], outputs).into_iter().map(Tensor::from_primitive::<Capture>);
            std::array::from_fn(|_| made.next().unwrap_or_else(|| unreachable!("as many outputs as were asked for")))
        }
    }
}

/// The fields of a configuration.
pub(crate) struct Settings(Value);

impl Settings {
    pub(crate) fn of(config: &impl Config) -> Self {
        Self(serde_json::to_value(config).unwrap_or_default())
    }

    /// A group of settings that may be absent.
    pub(crate) fn group(&self, name: &str) -> Option<Self> {
        let group = &self.0[name];
        (!group.is_null()).then(|| Self(group.clone()))
    }

    /// A number. A number that is not finite has no form in a file and becomes NaN.
    pub(crate) fn number(&self, name: &str) -> f64 {
        self.0[name].as_f64().unwrap_or(f64::NAN)
    }

    pub(crate) fn flag(&self, name: &str) -> bool {
        self.0[name].as_bool().unwrap_or(false)
    }

    /// Refuses a number that `accepts` does not take.
    pub(crate) fn check(
        &self,
        name: &'static str,
        expected: &'static str,
        accepts: impl FnOnce(f64) -> bool,
    ) -> Result<(), Error> {
        let value = self.number(name);
        match accepts(value) {
            true => Ok(()),
            false => Err(Error::InvalidSetting { name, value: value.to_string(), expected }),
        }
    }
}
