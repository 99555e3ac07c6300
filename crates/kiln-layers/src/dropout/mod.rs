//! Dropout whose mask is computed again in the backward pass.

#[cfg(feature = "flex")]
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::tensor::Tensor;
#[cfg(feature = "cube")]
use burn::tensor::{DType, Shape};
#[cfg(feature = "cube")]
use burn_cubecl::CubeDevice;
#[cfg(feature = "cube")]
use kiln_operations::CubeKernel;
use kiln_operations::{Computed, Cost, Kernel, KernelBackend, Operation, all, run};

use crate::check::main_input;
use crate::error::Error;

mod composed;
#[cfg(feature = "cube")]
#[allow(missing_docs, reason = "the macro writes a module for the kernel")]
mod cube;
#[cfg(feature = "flex")]
pub(crate) mod flex;
mod samples;
mod settings;

pub use samples::dropout_layer;
use settings::{CHUNK, Dropout, Rate};

/// Sets values to 0 with the given probability and divides the others by 1 minus that probability (Srivastava et al. 2014). Keeps
/// nothing.
///
/// The mask depends only on `seed` and the position of each value, so that the backward pass computes it again. The CPU device computes
/// it by Philox 4x32 with 7 rounds (Salmon et al. 2011), other devices by a simpler function. Give each call of a step a seed of its own.
/// `x` has any shape and is f32, f16 or bf16. Unlike [`Dropout`](burn::nn::Dropout) it also drops values on a device without autodiff: do
/// not call it when a model is evaluated.
///
/// # Errors
/// [`Error::InvalidSetting`] for a probability out of range, and [`Error::UnsupportedDevice`], [`Error::UnsupportedDType`].
pub fn dropout<const D: usize>(x: Tensor<D>, probability: f64, seed: u64) -> Result<Tensor<D>, Error> {
    main_input("the input", &x)?;
    if !(0.0..=1.0).contains(&probability) {
        let (value, expected) = (probability.to_string(), "a number from 0 to 1");
        return Err(Error::InvalidSetting { name: "the probability of dropout", value, expected });
    }
    Ok(Tensor::from_dispatch(run(Dropout { rate: Rate(probability), seed }, vec![x.into_dispatch()]).remove(0)))
}

impl Kernel for Dropout {
    fn cost(&self) -> &'static Cost {
        &DROPOUT
    }

    fn composed<B: KernelBackend>(&self, inputs: Vec<FloatTensor<B>>) -> Vec<FloatTensor<B>> {
        let [x] = all(inputs);
        vec![composed::dropped::<B>(x, *self)]
    }

    #[cfg(feature = "cube")]
    fn cube(&self, _: &CubeDevice, inputs: &[(Shape, DType)]) -> Option<CubeKernel<Self>> {
        (inputs[0].0.num_elements() > 0).then_some(|settings, inputs| {
            let [x] = all(inputs);
            vec![cube::dropped(x, *settings)]
        })
    }

    #[cfg(feature = "flex")]
    fn flex(&self, inputs: Vec<FlexTensor>) -> Vec<FlexTensor> {
        let [x] = all(inputs);
        vec![flex::dropped(x, *self)]
    }
}

impl Operation for Dropout {
    const NAME: &'static str = "dropout";

    type Saved<B: KernelBackend> = ();

    fn forward<B: KernelBackend>(&self, inputs: Vec<FloatTensor<B>>, _: &[bool]) -> Computed<B, ()> {
        Computed { outputs: B::run(self, inputs), saved: Some(()) }
    }

    fn gradient<B: KernelBackend>(&self, (): (), gradient: FloatTensor<B>, _: &[bool]) -> Vec<Option<FloatTensor<B>>> {
        B::run(self, vec![gradient]).into_iter().map(Some).collect()
    }
}

/// The cost in both directions.
static DROPOUT: Cost =
    Cost { in_place: &[(0, 0)], cpu_scratch: |call, cpu| call.chunks(CHUNK, 1, cpu), ..Cost::new("kiln::dropout") };

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests {
    use burn::backend::Flex;
    use burn::tensor::DType;

    use super::composed::dropped;
    use super::settings::{Dropout, Rate};
    use crate::composed::tests::assert_independent;
    use kiln_operations::cpu::stored::{from_f32, to_f32};

    #[test]
    fn the_rate_is_dropped_and_the_same_each_time() {
        let drop = |probability, seed| {
            let x = from_f32(vec![1.0; 64 * 256], [64, 256].into(), DType::F32);
            to_f32(&dropped::<Flex>(x, Dropout { rate: Rate(probability), seed }))
        };
        for seed in [0, 1, u64::MAX] {
            let values = drop(0.25, seed);
            let kept: Vec<f32> = values.iter().map(|value| value * 0.75).collect();
            // The neighbour in the next column and the neighbour in the next row.
            assert_independent(&kept, 256, 0.75, &[1, 256]);
            assert_eq!(values, drop(0.25, seed));
            assert_ne!(values, drop(0.25, seed ^ 2));
        }
        assert!(drop(1.0, 3).iter().all(|value| *value == 0.0));
        assert!(drop(0.0, 3).iter().all(|value| *value == 1.0));
    }
}
