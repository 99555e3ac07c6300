//! Fake quantisation: a model that computes in floats with exactly the values that its integers will have.

use std::cell::Cell;

use burn::module::{Module, Reparameterization};
use burn::tensor::{DType, Tensor};

use super::blocks::Blocks;
use super::input_range::{InputRange, answer};

thread_local! {
    /// How many calls of [`unsimulated`] this thread is in.
    static UNSIMULATED: Cell<usize> = const { Cell::new(0) };
}

/// Runs `f`, in which weights under [`FakeQuant`] are read as they are, without the simulation: a model that is merged in it
/// (`model.materialize()`) keeps its masks and adapters, and is ready for [`quantize`](super::quantize).
pub fn unsimulated<R>(f: impl FnOnce() -> R) -> R {
    /// Counts the call down when it ends, also by a panic.
    struct Call;
    impl Drop for Call {
        fn drop(&mut self) {
            UNSIMULATED.set(UNSIMULATED.get() - 1);
        }
    }
    UNSIMULATED.set(UNSIMULATED.get() + 1);
    let _call = Call;
    f()
}

/// What [`FakeQuantizer`](super::FakeQuantizer) attaches to a weight: a layer reads the weight as its integers would give it, and the
/// gradient passes to the stored weight unchanged (the straight-through estimator, Bengio et al. 2013).
///
/// The range of each block is its largest magnitude, at every reading anew, so that no weight is clipped.
#[derive(Module, Debug)]
pub struct FakeQuant {
    /// None where only the layer's input is simulated.
    #[module(skip)]
    weight: Option<WeightCodes>,
    /// None where only the weight is simulated.
    input: Option<InputRange>,
}

/// The codes that a weight has.
#[derive(Clone, Copy, Debug)]
pub(super) struct WeightCodes {
    pub(super) blocks: Blocks,
    /// The largest code: 127 for 8 bits.
    pub(super) largest: f32,
    pub(super) half_scales: bool,
}

impl FakeQuant {
    pub(super) fn new(weight: Option<WeightCodes>, input: Option<InputRange>) -> Self {
        Self { weight, input }
    }
}

impl Reparameterization for FakeQuant {
    const NAME: &'static str = "fake_quant";

    fn apply<const D: usize>(&self, base: Tensor<D>) -> Tensor<D> {
        let passes = answer(self.input.as_ref()) || UNSIMULATED.get() > 0;
        let Some(codes) = self.weight.filter(|_| !passes) else { return base };
        let dtype = base.dtype();
        let base = base.cast(DType::F32);
        // A parameter that is detached is still a leaf that asks for a gradient, and the simulation would be kept for it.
        let stored = base.clone().detach().set_require_grad(false);
        let simulated = codes.simulate(stored.clone());
        // The first part is exactly zero, and brings the gradient.
        ((base - stored) + simulated).cast(dtype)
    }
}

impl WeightCodes {
    /// The same numbers as those of a [`QuantizedWeight`](super::QuantizedWeight).
    fn simulate<const D: usize>(self, weight: Tensor<D>) -> Tensor<D> {
        let Blocks { groups, length, columns } = self.blocks;
        let shape = weight.shape();
        let weight = weight.reshape([groups, length, columns]);
        let largest = f64::from(self.largest);
        let scales = weight.clone().abs().max_dim(1) / largest;
        let scales = match self.half_scales {
            true => round_up_to_f16(scales),
            false => scales,
        };
        let zeros = scales.clone().equal_elem(0.0);
        let scales = scales.mask_fill(zeros, 1.0);
        let codes = (weight / scales.clone()).round().clamp(-largest, largest);
        (codes * scales).reshape(shape)
    }
}

/// Each positive number as the smallest f16 that is not below it, and 65504 above their range; 0 stays.
fn round_up_to_f16(scales: Tensor<3>) -> Tensor<3> {
    /// The smallest normal number of f16, and the step below it.
    const NORMAL: f64 = 6.103515625e-5;
    const STEP: f64 = 5.960464477539063e-8;
    let scales = scales.clamp_max(65504.0);
    let nearest = scales.clone().cast(DType::F16).cast(DType::F32);
    // Three quarters of a step of the smallest mantissa and up to one and a half steps of the largest: the nearest is the next one.
    let next = (nearest.clone() * (1.0 + 0.75 / 1024.0)).cast(DType::F16).cast(DType::F32);
    let next = next.mask_where(nearest.clone().lower_elem(NORMAL), nearest.clone() + STEP);
    nearest.clone().mask_where(nearest.lower(scales), next)
}
