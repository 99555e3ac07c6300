//! The norm of a large gradient has the same bits in every run and with any number of threads.

use burn::module::{Module, Param};
use burn::optim::{GradientsParams, SgdConfig};
use burn::tensor::{DType, Device, Tensor, TensorData};
use kiln_precision::{LossScaler, ScaledGradients, ScalerOutcome, Scaling, sum_of_squares};

#[derive(Module, Debug)]
struct Embedding {
    weight: Param<Tensor<2>>,
}

impl Embedding {
    fn zeros(shape: [usize; 2], device: &Device) -> Self {
        Self { weight: Param::from_tensor(Tensor::zeros(shape, device)) }
    }

    fn gradients(&self, gradient: Tensor<2>) -> GradientsParams {
        let mut gradients = GradientsParams::new();
        gradients.register(self.weight.id, gradient);
        gradients
    }
}

/// Numbers of several magnitudes: the order of their sum shows in its last bits.
fn numbers(shape: [usize; 2]) -> Vec<f32> {
    let mut state = 1u32;
    let next = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << (12 + state % 8)) as f32
    };
    (0..shape[0] * shape[1]).map(next).collect()
}

/// Returns the result of `run`, which must be the same each time with one to four threads.
fn same_each_time<T: PartialEq + Send>(times: usize, run: impl Fn() -> T + Sync) -> T {
    let expected = run();
    for threads in 1..=4 {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        for time in 0..times {
            assert!(pool.install(&run) == expected, "{threads} threads, time {time}");
        }
    }
    expected
}

#[test]
fn sums_of_squares_have_the_same_bits() {
    let device = Device::flex();
    // A gradient as large as GPT-2's embedding, as it is and with the axes swapped.
    let (shape, values) = ([40_000, 1_000], numbers([40_000, 1_000]));
    let exact: f64 = values.iter().map(|value| f64::from(*value).powi(2)).sum();
    let gradient = Tensor::<2>::from_data(TensorData::new(values, shape), &device);
    let model = Embedding::zeros([1, 1], &device);
    let sum = |gradient: &Tensor<2>| {
        let sum = sum_of_squares(&model, &model.gradients(gradient.clone()));
        sum.unwrap().into_scalar::<f32>()
    };
    let got = same_each_time(10, || sum(&gradient));
    assert!((f64::from(got) / exact - 1.0).abs() < 1e-6, "{got}, expected {exact}");
    // The squares are those of values in f32, whatever the dtype, shape and layout of the gradient.
    let part = gradient.narrow(0, 0, 5_000);
    let wide = |gradient: Tensor<2>| gradient.cast(DType::F64).square().sum().into_scalar::<f64>();
    for gradient in [
        part.clone().cast(DType::BF16),
        part.clone().cast(DType::F64),
        part.clone().transpose(),
        part.clone().reshape([1, 5_000_000]),
        part.clone().reshape([5_000_000, 1]),
        part.reshape([625, 8_000]),
    ] {
        let (got, expected) = (same_each_time(2, || sum(&gradient)), wide(gradient.clone()));
        let what = (gradient.dims(), gradient.dtype());
        assert!((f64::from(got) / expected - 1.0).abs() < 1e-6, "{what:?}: {got}, expected {expected}");
    }
}

#[test]
fn clipped_weights_have_the_same_bits() {
    let device = Device::flex().autodiff();
    let shape = [10_000, 1_000];
    let model = Embedding::zeros(shape, &device);
    let gradient = Tensor::<2>::from_data(TensorData::new(numbers(shape), shape), &device.clone().inner());
    let step = || {
        let gradients = ScaledGradients::new(model.gradients(gradient.clone()), 1.0).unwrap();
        let mut scaler = LossScaler::new(Scaling::None).unwrap();
        match scaler.update(&model, gradients.probe(&model).unwrap(), Some(1.0)).unwrap() {
            ScalerOutcome::Apply { gradients, norm } => {
                let model = SgdConfig::new().init().step(1.0, model.clone(), gradients);
                let weights = model.weight.val().into_data().try_into_vec::<f32>().unwrap();
                (norm.to_bits(), weights.into_iter().map(f32::to_bits).collect::<Vec<_>>())
            }
            ScalerOutcome::Skip => panic!("the gradients are finite"),
        }
    };
    same_each_time(2, step);
}
