//! Dropout of a layer, by sample where a batch may be cut into micro-batches.

#[cfg(feature = "flex")]
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::nn::Dropout;
use burn::tensor::{Distribution, Int, Tensor};
use kiln_operations::{Computed, Cost, Kernel, KernelBackend, Operation, adds_in_order, all, first_sample, run};

use super::settings::{CHUNK, Rate};
use crate::check::main_input;
use crate::error::Error;

/// [`Dropout::forward`](burn::nn::Dropout::forward), which drops values on devices with autodiff.
///
/// While [running sums](kiln_operations::RunningSums) are open, the mask depends on a seed from the device's generator, the number of the
/// sample in the batch and the position in the sample, so that it is the same however the batch is cut into micro-batches. Samples are along
/// the first dimension. Then this keeps the seed alone. Otherwise it is burn's operation.
///
/// ```
/// use burn::nn::DropoutConfig;
/// use burn::tensor::{Device, Tensor};
///
/// let layer = DropoutConfig::new(0.1).init();
/// let x = Tensor::<2>::ones([4, 8], &Device::flex());
/// assert_eq!(kiln_layers::dropout_layer(&layer, x)?.dims(), [4, 8]);
/// # Ok::<(), kiln_layers::Error>(())
/// ```
///
/// # Errors
/// [`Error::UnsupportedDevice`], [`Error::UnsupportedDType`].
pub fn dropout_layer<const D: usize>(layer: &Dropout, x: Tensor<D>) -> Result<Tensor<D>, Error> {
    main_input("the input", &x)?;
    let device = x.device();
    let drops = layer.prob > 0.0 && layer.training.is_enabled() && device.is_autodiff();
    if !drops || !adds_in_order() {
        return Ok(layer.forward(x));
    }
    let seed = Tensor::<1, Int>::random([1], Distribution::Uniform(0.0, f64::from(i32::MAX)), &device);
    let dropout = OfSamples { rate: Rate(layer.prob), first: first_sample() };
    Ok(Tensor::from_dispatch(run(dropout, vec![x.into_dispatch(), seed.into_dispatch()]).remove(0)))
}

/// Dropout of samples. The inputs are the samples and a seed of one integer.
#[derive(Clone, Copy, Debug, PartialEq)]
struct OfSamples {
    rate: Rate,
    /// The number of the first sample in the batch.
    first: usize,
}

/// The cost in both directions.
static COST: Cost = Cost {
    in_place: &[(0, 0)],
    cpu_scratch: |call, cpu| call.chunks(CHUNK, 1, cpu),
    by_sample: true,
    ..Cost::new("kiln::dropout_of_samples")
};

impl Kernel for OfSamples {
    fn cost(&self) -> &'static Cost {
        &COST
    }

    fn composed<B: KernelBackend>(&self, inputs: Vec<FloatTensor<B>>) -> Vec<FloatTensor<B>> {
        let [x, seed] = all(inputs);
        vec![super::composed::dropped_of_samples::<B>(x, B::int(seed), self.rate, self.first)]
    }

    #[cfg(feature = "flex")]
    fn flex(&self, inputs: Vec<FlexTensor>) -> Vec<FlexTensor> {
        let [x, seed] = all(inputs);
        vec![super::flex::dropped_of_samples(x, &seed, self.rate, self.first)]
    }
}

impl Operation for OfSamples {
    const NAME: &'static str = "dropout of samples";

    /// The seed.
    type Saved<B: KernelBackend> = FloatTensor<B>;

    fn forward<B: KernelBackend>(&self, inputs: Vec<FloatTensor<B>>, _: &[bool]) -> Computed<B, FloatTensor<B>> {
        let seed = inputs[1].clone();
        Computed { outputs: B::run(self, inputs), saved: Some(seed) }
    }

    fn gradient<B: KernelBackend>(
        &self,
        seed: FloatTensor<B>,
        gradient: FloatTensor<B>,
        _: &[bool],
    ) -> Vec<Option<FloatTensor<B>>> {
        B::run(self, vec![gradient, seed]).into_iter().map(Some).collect()
    }
}

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests {
    use burn::backend::Flex;
    use burn::tensor::{DType, Shape};
    use kiln_operations::cpu::stored::{from_f32, tensor, to_f32};
    use kiln_operations::{Kernel, Operation};

    use super::{OfSamples, Rate};
    use crate::composed::tests::assert_independent;

    #[test]
    fn a_sample_has_the_mask_of_its_number_in_both_forms() {
        let dropped_in = |dtype: DType, first: usize, samples: usize, seed: i64, composed: bool| {
            let x = from_f32(vec![1.0; samples * 300], [samples, 3, 100].into(), dtype);
            let seed = tensor(vec![seed], Shape::new([1]));
            let operation = OfSamples { rate: Rate(0.25), first };
            let given = vec![x.clone(), seed.clone()];
            let made = if composed { operation.composed::<Flex>(given) } else { operation.flex(given) };
            if !composed {
                // The gradient of the input has the mask of the output.
                let gradient = operation.gradient::<Flex>(seed, x, &[true]).remove(0);
                assert_eq!(to_f32(&gradient.unwrap()), to_f32(&made[0]));
            }
            to_f32(&made[0])
        };
        let dropped = |first, samples, seed, composed| dropped_in(DType::F32, first, samples, seed, composed);
        for dtype in [DType::BF16, DType::F16] {
            let mask = |values: Vec<f32>| values.iter().map(|value| *value > 0.0).collect::<Vec<_>>();
            assert_eq!(mask(dropped_in(dtype, 3, 5, 7, false)), mask(dropped(3, 5, 7, false)));
        }
        for composed in [false, true] {
            let whole = dropped(0, 40, 7, composed);
            let kept: Vec<f32> = whole.iter().map(|value| value * 0.75).collect();
            assert_independent(&kept, 300, 0.75, &[1, 300]);
            for (first, samples) in [(0, 1), (1, 3), (17, 23)] {
                assert_eq!(dropped(first, samples, 7, composed), whole[first * 300..(first + samples) * 300]);
            }
            assert_ne!(whole, dropped(0, 40, 8, composed));
            assert_ne!(whole, dropped(0, 40, 7 + (1 << 32), composed));
        }
    }
}
