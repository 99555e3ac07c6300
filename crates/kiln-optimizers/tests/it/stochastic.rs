//! Parameters in bf16 without a master copy.

use burn::module::{Module, ModuleMapper, Param};
use burn::nn::{Linear, LinearConfig};
use burn::optim::momentum::MomentumConfig;
use burn::optim::{
    AdamW, AdamWConfig, AdamWState, GradientsParams, LearningRate, ModuleOptimizer, Optimizer, RecordState, SgdConfig,
    StateSink, StateSource,
};
use burn::tensor::{DType, Device, Tensor, TensorData};
use kiln_optimizers::{Error, FusedAdamW, Offloaded, StochasticBf16, StochasticState};

use crate::compare::{tensor, values};

fn adamw() -> AdamW {
    AdamWConfig::new().with_weight_decay(0.1).build()
}

fn start<const D: usize>(shape: [usize; D]) -> Tensor<D> {
    tensor(shape, 1, 2.0, DType::BF16, &Device::flex())
}

fn gradient<const D: usize>(shape: [usize; D], step: u64) -> Tensor<D> {
    tensor(shape, step + 2, 1.0, DType::BF16, &Device::flex())
}

/// The parameter after each of four steps.
fn run<const D: usize>(optimizer: &impl Optimizer, shape: [usize; D]) -> Vec<TensorData> {
    let (mut parameter, mut state) = (start(shape), None);
    let step = |index| {
        (parameter, state) = optimizer.step(1e-2, parameter.clone(), gradient(shape, index), state.take());
        assert_eq!(parameter.dtype(), DType::BF16);
        parameter.to_data()
    };
    (0..4).map(step).collect()
}

#[test]
fn chunks_and_offload_do_not_change_the_bits() {
    fn all<const D: usize>(shape: [usize; D], sizes: impl IntoIterator<Item = usize>) {
        let expected = run(&StochasticBf16::new(adamw(), 5), shape);
        assert_eq!(run(&StochasticBf16::new(Offloaded::new(adamw()), 5), shape), expected);
        assert_eq!(
            run(&StochasticBf16::new(FusedAdamW::from(AdamWConfig::new().with_weight_decay(0.1)), 5), shape),
            expected
        );
        for elements in sizes {
            assert_eq!(run(&StochasticBf16::by_chunks(adamw(), 5, elements).unwrap(), shape), expected, "{elements}");
            let offloaded = Offloaded::by_chunks(adamw(), elements).unwrap();
            assert_eq!(run(&StochasticBf16::new(offloaded.clone(), 5), shape), expected, "{elements}");
            assert_eq!(run(&StochasticBf16::by_chunks(offloaded, 5, 6).unwrap(), shape), expected, "{elements}");
        }
    }
    all([1], [1, 2]);
    all([0, 2], [1]);
    all([13], 1..=14);
    all([3, 5], 1..=16);
    all([2, 3, 4], [1, 5, 7, 23]);
    all([2, 2, 3, 3], [1, 8, 35, 36]);
    all([201, 173], [1000, 16_384]);
}

#[test]
fn bits_depend_on_seed_and_parameter() {
    let shape = [64, 64];
    let expected = run(&StochasticBf16::new(adamw(), 5), shape);
    assert_ne!(run(&StochasticBf16::new(adamw(), 6), shape), expected);
    // The two parameters differ in their first value alone. Their other values get different noise.
    let step = |first: f32| {
        let parameter =
            start(shape).slice_assign([0..1, 0..1], Tensor::from_data([[first]], (&Device::flex(), DType::BF16)));
        values(&StochasticBf16::new(adamw(), 5).step(1e-2, parameter, gradient(shape, 0), None).0)
    };
    let differ = step(0.5).iter().zip(step(0.25)).skip(1).filter(|(a, b)| *a != b).count();
    assert!(differ > 1000, "{differ}");
}

#[test]
fn parameters_in_f32_are_updated_by_the_inner_optimizer() {
    let shape = [3, 7];
    let (mut got, mut expected) = (start(shape).cast(DType::F32), start(shape).cast(DType::F32));
    let (mut state, mut expected_state) = (None, None);
    let optimizer = StochasticBf16::by_chunks(adamw(), 1, 2).unwrap();
    for index in 0..3 {
        let gradient = gradient(shape, index).cast(DType::F32);
        (got, state) = optimizer.step(1e-2, got, gradient.clone(), state);
        (expected, expected_state) = adamw().step(1e-2, expected, gradient, expected_state);
        assert_eq!(got.to_data(), expected.to_data());
    }
}

#[test]
fn a_run_resumes_with_the_same_bits_after_every_step() {
    fn reloaded(state: &StochasticState<AdamWState<2>>) -> StochasticState<AdamWState<2>> {
        let mut sink = StateSink::default();
        state.state_flatten("p", &mut sink);
        let mut source = StateSource::new(sink.scalars.into_iter().collect());
        sink.tensors.into_iter().for_each(|(name, data)| source.insert_tensor(name, data));
        StochasticState::state_unflatten("p", &mut source, &Device::flex()).unwrap()
    }
    let shape = [6, 11];
    let whole = StochasticBf16::new(adamw(), 9);
    for stop in 0..6 {
        let (mut got, mut expected) = (start(shape), start(shape));
        let (mut state, mut expected_state) = (None, None);
        for index in 0..6 {
            let chunked = StochasticBf16::by_chunks(adamw(), 9, 1 + stop * 5).unwrap();
            (got, state) = chunked.step(1e-2, got, gradient(shape, index), state);
            (expected, expected_state) = whole.step(1e-2, expected, gradient(shape, index), expected_state);
            assert_eq!(got.to_data(), expected.to_data(), "stopped after {stop}, step {index}");
            if index == stop as u64 {
                state = state.as_ref().map(reloaded);
            }
        }
    }
}

#[test]
fn the_mean_of_a_step_is_that_of_f32() {
    // One value many times: only noise makes its copies differ.
    let count = 1 << 16;
    let value = |value: f32, dtype| Tensor::<1>::full([count], value, (&Device::flex(), dtype));
    let sgd = SgdConfig::new().build();
    for (weight, update) in [(1.0, 1e-4), (-3.0, 1e-3), (1.0, -1e-5), (1e-3, 1e-7), (100.0, 0.3)] {
        let step =
            |dtype| StochasticBf16::new(sgd.clone(), 3).step(1.0, value(weight, dtype), value(update, dtype), None).0;
        let exact = values(&step(DType::BF16).cast(DType::F32)).iter().sum::<f64>() / count as f64;
        let in_f32 = values(&value(weight, DType::BF16))[0] - values(&value(update, DType::BF16))[0];
        // Half the spacing of bf16 is the largest standard deviation of a value.
        let deviation = f64::from(weight.abs()) / 256.0 / (count as f64).sqrt();
        assert!((exact - in_f32).abs() < 4.0 * deviation, "{weight} - {update}: {exact}, expected {in_f32}");
    }
}

#[test]
fn values_that_are_not_finite_stay_so() {
    let parameter =
        Tensor::<1>::from_data([1.0, 2.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN], (&Device::flex(), DType::BF16));
    let gradient = Tensor::<1>::from_data([f32::NAN, f32::INFINITY, 1.0, 1.0, 1.0], (&Device::flex(), DType::BF16));
    let got = values(&StochasticBf16::new(SgdConfig::new().build(), 1).step(0.1, parameter, gradient, None).0);
    assert!(got[0].is_nan() && got[4].is_nan(), "{got:?}");
    assert_eq!(got[1..4], [f64::NEG_INFINITY, f64::INFINITY, f64::NEG_INFINITY]);
}

#[test]
fn chunks_of_no_elements_are_refused() {
    assert!(matches!(StochasticBf16::by_chunks(adamw(), 1, 0), Err(Error::InvalidSetting { name: "elements", .. })));
}

/// bf16 parameters that are rounded to the nearest number.
#[derive(Clone)]
struct Nearest<O>(O);

impl<O: Optimizer> Optimizer for Nearest<O> {
    type State<const D: usize> = O::State<D>;

    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<D>,
        grad: Tensor<D>,
        state: Option<Self::State<D>>,
    ) -> (Tensor<D>, Option<Self::State<D>>) {
        let (updated, state) = self.0.step(lr, tensor.cast(DType::F32), grad.cast(DType::F32), state);
        (updated.cast(DType::BF16), state)
    }

    fn to_device<const D: usize>(state: Self::State<D>, device: &Device) -> Self::State<D> {
        O::to_device(state, device)
    }
}

struct To(DType);

impl ModuleMapper for To {
    fn map_float<const D: usize>(&mut self, parameter: Param<Tensor<D>>) -> Param<Tensor<D>> {
        parameter.map(|values| values.cast(self.0).detach().require_grad())
    }
}

/// The loss of a linear model that learns another one, before and after training. Both compute in f32 with the stored weights.
fn trained(dtype: DType, mut optimizer: ModuleOptimizer, rate: f64) -> [f64; 2] {
    let device = Device::flex().autodiff();
    let weights = |seed, scale| tensor([16, 8], seed, scale, DType::F32, &device);
    let (target, x) = (weights(50, 0.5), tensor([64, 16], 51, 1.0, DType::F32, &device));
    let y = x.clone().matmul(target.clone());
    let mut model: Linear = LinearConfig::new(16, 8).with_bias(false).init(&device);
    model.weight = Param::from_tensor(target.clone() * 0.8 + weights(52, 0.05));
    let mut model = model.map(&mut To(dtype));
    let loss = |model: &Linear| (x.clone().matmul(model.weight.val().cast(DType::F32)) - y.clone()).square().mean();
    let before = loss(&model).into_scalar::<f32>();
    for _ in 0..2000 {
        let gradients = GradientsParams::from_grads(loss(&model).backward(), &model);
        model = optimizer.step(rate, model, gradients);
    }
    [before, loss(&model).into_scalar()].map(f64::from)
}

#[test]
#[allow(clippy::print_stdout, reason = "the guide's figures")]
fn small_updates_train_where_rounding_to_the_nearest_number_stalls() {
    let sgd = || SgdConfig::new().with_momentum(Some(MomentumConfig::new().with_dampening(0.0))).build();
    for (name, rate, in_f32, nearest, stochastic) in [
        (
            "SGD",
            1e-3,
            trained(DType::F32, sgd().into(), 1e-3),
            trained(DType::BF16, Nearest(sgd()).into(), 1e-3),
            trained(DType::BF16, StochasticBf16::new(sgd(), 1).into(), 1e-3),
        ),
        (
            "AdamW",
            1e-4,
            trained(DType::F32, AdamWConfig::new().build().into(), 1e-4),
            trained(DType::BF16, Nearest(AdamWConfig::new().build()).into(), 1e-4),
            trained(DType::BF16, StochasticBf16::new(AdamWConfig::new().build(), 1).into(), 1e-4),
        ),
    ] {
        println!("{name} at {rate}: f32 {in_f32:?}, to the nearest {nearest:?}, stochastic {stochastic:?}");
        assert!(in_f32[1] < 0.1 * in_f32[0], "{name}: {in_f32:?}");
        assert!(nearest[1] > 0.5 * nearest[0], "{name}: {nearest:?}");
        assert!(stochastic[1] < 0.1 * stochastic[0], "{name}: {stochastic:?}");
    }
}
