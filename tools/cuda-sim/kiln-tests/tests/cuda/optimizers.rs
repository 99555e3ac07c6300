//! Optimizers on CUDA compared with the CPU device: parameters, codes and scales have the same bits.

use burn::optim::momentum::MomentumConfig;
use burn::optim::{AdamWConfig, Optimizer, SgdConfig};
use burn::tensor::{Bytes, DType, Device, Tensor, TensorData};
use kiln_optimizers::{
    AdamW4bit, AdamW8bit, FusedAdam, FusedAdamW, FusedSgd, QuantizedAdamWState, QuantizedMoment, SecondMoment, Sgd8bit,
    Sgd8bitState, update_together,
};

use crate::sim::{Card, STRICT, dtypes, gpu, on_wgpu, with_card, with_cards};

const STEPS: u64 = 4;

/// Kinds of gradients.
#[derive(Clone, Copy, Debug)]
enum Gradients {
    /// Of both signs, and of all sizes from 1 down to 2^-20.
    Mixed,
    /// All zero, but at the second step.
    Zeros,
    /// One value is a million times as large as the others.
    Outlier,
}

/// Pseudorandom numbers, equal on each call.
fn numbers(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let next = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        ((state >> 40) as f32 / (1 << 23) as f32 - 1.0) * 2f32.powi(-((state >> 8) as i32 % 20).abs())
    };
    (0..count).map(next).collect()
}

impl Gradients {
    fn numbers(self, count: usize, step: u64) -> Vec<f32> {
        let mut numbers = numbers(count, 100 + step);
        match self {
            Self::Mixed => {}
            Self::Zeros if step == 1 => {}
            Self::Zeros => numbers.fill(0.0),
            Self::Outlier => numbers[count / 2] = 1e6,
        }
        numbers
    }
}

fn tensor<const D: usize>(shape: [usize; D], numbers: Vec<f32>, dtype: DType, device: &Device) -> Tensor<D> {
    Tensor::<D>::from_data(TensorData::new(numbers, shape), (device, DType::F32)).cast(dtype)
}

/// Moments of a state.
trait Moments {
    fn moments(&self) -> Vec<&QuantizedMoment>;
}

impl<const D: usize> Moments for QuantizedAdamWState<D> {
    fn moments(&self) -> Vec<&QuantizedMoment> {
        match self {
            Self::Quantized { moments, .. } => moments.iter().collect(),
            Self::Full(_) => panic!("the state is not quantised"),
        }
    }
}

impl<const D: usize> Moments for Sgd8bitState<D> {
    fn moments(&self) -> Vec<&QuantizedMoment> {
        match self {
            Self::Quantized { velocity, .. } => vec![velocity],
            Self::Full(_) => panic!("the state is not quantised"),
        }
    }
}

/// Parameter, codes and scales after each step, as bytes with their names.
fn run<O: Optimizer, const D: usize>(
    optimizer: &O,
    shape: [usize; D],
    dtype: DType,
    gradients: Gradients,
    device: &Device,
) -> Vec<(String, TensorData)>
where
    O::State<D>: Moments,
{
    let count = shape.iter().product();
    let mut parameter = tensor(shape, numbers(count, 7), dtype, device);
    let (mut state, mut seen) = (None, vec![]);
    // Bytes are read from the GPU on demand, which must be before the next step.
    let read = |data: TensorData| {
        TensorData::from_bytes(Bytes::from_bytes_vec(data.as_bytes().to_vec()), data.shape().clone(), data.dtype())
    };
    for step in 0..STEPS {
        let gradient = tensor(shape, gradients.numbers(count, step), dtype, device);
        let next = |parameter, state| optimizer.step(3e-3, parameter, gradient.clone(), state);
        (parameter, state) = match step {
            // Together with others, of which there are none, and with gradients that are scaled.
            2 => {
                let updated = update_together(0.3, || next(parameter.clone(), state.clone()));
                assert!(updated.written.is_none(), "the parameter itself must be read");
                updated.result
            }
            _ => next(parameter, state),
        };
        seen.push((format!("parameter at step {step}"), read(parameter.to_data())));
        for (place, moment) in state.as_ref().unwrap().moments().into_iter().enumerate() {
            seen.push((format!("codes {place} at step {step}"), read(moment.codes().to_data())));
            seen.push((format!("scales {place} at step {step}"), read(moment.scales().to_data())));
        }
    }
    seen
}

fn assert_same<O: Optimizer, const D: usize>(
    what: &str,
    optimizer: &O,
    shape: [usize; D],
    dtype: DType,
    gradients: Gradients,
) where
    O::State<D>: Moments,
{
    let got = run(optimizer, shape, dtype, gradients, &gpu());
    let expected = run(optimizer, shape, dtype, gradients, &Device::flex());
    for ((name, got), (_, expected)) in got.iter().zip(&expected) {
        let (left, right) = (got.as_bytes(), expected.as_bytes());
        let apart = left.iter().zip(right).filter(|(left, right)| left != right).count();
        let first = left.iter().zip(right).position(|(left, right)| left != right);
        let about = format!("{what} {shape:?} {dtype:?} {gradients:?}: {name}");
        assert_eq!((left.len(), got.dtype()), (right.len(), expected.dtype()), "{about}");
        let shown = |data: &TensorData| data.iter::<f32>().take(8).collect::<Vec<_>>();
        let of = left.len();
        assert_eq!(
            apart,
            0,
            "{about}: {apart} of {of} bytes differ, the first at {first:?}: {:?}, expected {:?}",
            shown(got),
            shown(expected)
        );
    }
}

/// All sizes and gradients, other dtypes, and a matrix whose rows are not contiguous on the GPU.
fn assert_all<O: Optimizer>(what: &str, optimizer: &O)
where
    O::State<1>: Moments,
    O::State<2>: Moments,
{
    for gradients in [Gradients::Mixed, Gradients::Zeros, Gradients::Outlier] {
        for size in [4096, 5000, 4096 * 3 + 17] {
            assert_same(what, optimizer, [size], DType::F32, gradients);
        }
    }
    assert_same(what, optimizer, [37, 131], DType::F32, Gradients::Mixed);
    for dtype in dtypes().filter(|dtype| *dtype != DType::F32) {
        assert_same(what, optimizer, [4097], dtype, Gradients::Mixed);
    }
}

fn config() -> AdamWConfig {
    AdamWConfig::new().with_weight_decay(0.1)
}

fn momentum(nesterov: bool) -> SgdConfig {
    let momentum = MomentumConfig::new().with_momentum(0.9).with_dampening(0.1).with_nesterov(nesterov);
    SgdConfig::new().with_momentum(Some(momentum))
}

/// Runs `test` on GPUs from old to new, with NVIDIA's assembler.
fn on_cards(test: impl Fn(&Card)) {
    with_cards(&[("PTXAS", "find"), STRICT[0], STRICT[1], STRICT[2]], &["SM=75", "SM=90", "SM=100"], |card, name| {
        test(card);
        if on_wgpu() {
            return;
        }
        assert_eq!(card.count("modules_refused"), 0);
        let largest = card.assembled().into_iter().max();
        println!("{name}: registers of the largest kernel and bytes that it spills: {largest:?}");
    });
}

#[test]
fn adamw_of_8_bits() {
    on_cards(|_| assert_all("AdamW8bit", &AdamW8bit::new(&config()).unwrap()));
}

#[test]
fn adamw_of_8_bits_with_the_map_of_bitsandbytes() {
    with_card(&STRICT, |_| {
        let optimizer = AdamW8bit::new(&config()).unwrap().with_second_moment(SecondMoment::Dynamic);
        assert_same("AdamW8bit, Dynamic", &optimizer, [5000], DType::F32, Gradients::Mixed);
    });
}

#[test]
fn adamw_of_4_bits() {
    on_cards(|_| assert_all("AdamW4bit", &AdamW4bit::new(&config()).unwrap()));
}

#[test]
fn sgd_of_8_bits() {
    on_cards(|_| {
        assert_all("Sgd8bit", &Sgd8bit::new(&momentum(false)).unwrap());
        let decay = burn::optim::decay::WeightDecayConfig::new(1e-2);
        let optimizer = Sgd8bit::new(&momentum(true).with_weight_decay(Some(decay))).unwrap();
        assert_same("Sgd8bit, Nesterov", &optimizer, [5000], DType::F32, Gradients::Mixed);
    });
}

#[test]
fn stochastic_rounding() {
    with_card(&STRICT, |_| {
        let eight = AdamW8bit::new(&config()).unwrap().with_stochastic_rounding(5);
        assert_same("AdamW8bit at random", &eight, [5000], DType::F32, Gradients::Mixed);
        let four = AdamW4bit::new(&config()).unwrap().with_stochastic_rounding(5);
        assert_same("AdamW4bit at random", &four, [4097], DType::F32, Gradients::Mixed);
        let sgd = Sgd8bit::new(&momentum(false)).unwrap().with_stochastic_rounding(5);
        assert_same("Sgd8bit at random", &sgd, [4097], DType::F32, Gradients::Outlier);
    });
}

/// Shapes of parameters: more than one launch takes, and some of numbers of values that are no multiples of four.
fn shapes() -> Vec<[usize; 4]> {
    let small = (0..18).map(|index| [1, 1, 1 + index % 3, 4 + index]);
    small.chain([[300, 20, 3, 3], [1, 1, 50, 7], [1, 1, 1, 300_001], [64, 8, 1, 1]]).collect()
}

/// All parameters after each step in which they were updated together, as bits. Each other gradient has its columns apart from each other.
fn together<O: Optimizer>(optimizer: &O, factor: f64, device: &Device) -> Vec<Vec<u32>> {
    let shapes = shapes();
    let of = |shape: &[usize; 4]| numbers(shape.iter().product(), 7);
    let mut parameters: Vec<Tensor<4>> =
        shapes.iter().map(|shape| tensor(*shape, of(shape), DType::F32, device)).collect();
    let mut states: Vec<Option<O::State<4>>> = vec![None; shapes.len()];
    let mut seen = vec![];
    for step in 0..STEPS {
        let gradient = |(index, [a, b, c, d]): (usize, &[usize; 4])| {
            let count = a * b * c * d;
            let numbers = Gradients::Mixed.numbers(count, step);
            match index % 2 {
                0 => tensor([*a, *b, *c, *d], numbers, DType::F32, device),
                _ => tensor([*a, *d, *c, *b], numbers, DType::F32, device).swap_dims(1, 3),
            }
        };
        let gradients: Vec<Tensor<4>> = shapes.iter().enumerate().map(gradient).collect();
        let updated = update_together(factor, || -> Vec<_> {
            let all = parameters.iter().zip(&gradients).zip(&states).enumerate();
            // Rates differ between groups of parameters.
            all.map(|(index, ((parameter, gradient), state))| {
                let rate = if index % 7 == 0 { 1e-2 } else { 3e-3 };
                optimizer.step(rate, parameter.clone(), gradient.clone(), state.clone())
            })
            .collect()
        });
        // Only a GPU joins them.
        assert_eq!(updated.written.is_some(), *device != Device::flex());
        (parameters, states) = updated.result.into_iter().unzip();
        let bits = |parameter: &Tensor<4>| parameter.to_data().iter::<f32>().map(f32::to_bits).collect::<Vec<_>>();
        seen.extend(parameters.iter().map(bits));
    }
    seen
}

#[test]
fn many_parameters_at_once() {
    fn assert_same<O: Optimizer>(what: &str, optimizer: &O) {
        for factor in [1.0, 0.37] {
            let got = together(optimizer, factor, &gpu());
            let expected = together(optimizer, factor, &Device::flex());
            for (index, (got, expected)) in got.iter().zip(&expected).enumerate() {
                let (step, parameter) = (index / shapes().len(), index % shapes().len());
                let apart = got.iter().zip(expected).filter(|(got, expected)| got != expected).count();
                let of = expected.len();
                assert_eq!((apart, got.len()), (0, of), "{what}, {factor}, step {step}, parameter {parameter}");
            }
        }
    }
    on_cards(|_| {
        let decay = Some(burn::optim::decay::WeightDecayConfig::new(1e-2));
        assert_same("AdamW", &FusedAdamW::from(config()));
        let adam = burn::optim::AdamConfig::new();
        assert_same("Adam", &FusedAdam::from(adam.clone()));
        assert_same("Adam with a penalty", &FusedAdam::from(adam.with_weight_decay(decay.clone())));
        assert_same("SGD", &FusedSgd::from(SgdConfig::new()));
        assert_same("SGD with momentum", &FusedSgd::from(momentum(false).with_weight_decay(decay.clone())));
        assert_same("SGD with Nesterov's momentum", &FusedSgd::from(momentum(true).with_weight_decay(decay)));
        // Settings that are not equal to themselves.
        let ones = Tensor::<1>::ones([5], &gpu());
        let adamw = FusedAdamW::from(config());
        let updated = update_together(1.0, || adamw.step(f64::NAN, ones.clone(), ones.clone(), None));
        assert!(updated.result.0.to_data().iter::<f32>().all(f32::is_nan));
    });
}

/// A gradient that is not finite must be visible in the scales, and a parameter with another holder must keep its values.
#[test]
fn what_is_not_finite_is_in_the_scales_and_other_holders_keep_their_values() {
    with_card(&STRICT, |_| {
        let device = gpu();
        let optimizer = AdamW8bit::new(&config()).unwrap();
        let parameter = tensor([5000], numbers(5000, 7), DType::F32, &device);
        let (held, before) = (parameter.clone(), parameter.to_data());
        let mut gradient = numbers(5000, 8);
        (gradient[300], gradient[4999]) = (f32::NAN, f32::INFINITY);
        let gradient = tensor([5000], gradient, DType::F32, &device);
        let (_, state) = optimizer.step(1e-3, parameter, gradient, None);
        for moment in state.unwrap().moments() {
            let scales: Vec<f32> = moment.scales().to_data().iter::<f32>().collect();
            let blocks: Vec<usize> = (0..scales.len()).filter(|block| !scales[*block].is_finite()).collect();
            assert_eq!(blocks, [1, 19], "{scales:?}");
        }
        assert_eq!(held.to_data(), before);
    });
}

/// One kernel for each parameter, and no memory for values in f32. Without other holders of parameter and state it allocates only the
/// tables. With other holders it also allocates the next parameter and state.
#[test]
fn a_step_is_one_kernel_and_takes_no_memory_for_values() {
    with_card(&STRICT, |card| {
        const COUNT: u64 = 1 << 20;
        let device = gpu();
        let optimizer = AdamW8bit::new(&config()).unwrap();
        let (mut parameter, mut state) = (Tensor::<1>::zeros([COUNT as usize], (&device, DType::F32)), None);
        // CubeCL asks the driver for each tensor.
        let client = burn::cubecl::Device::cuda(0).unwrap().client();
        let steps = || {
            for (step, is_held) in [false, false, true, false].into_iter().enumerate() {
                let gradient = Tensor::<1>::ones([COUNT as usize], (&device, DType::F32));
                let held = is_held.then(|| (parameter.clone(), state.clone()));
                device.sync().unwrap();
                device.memory_cleanup();
                card.watch();
                let (launches, before) = (card.count("launches"), card.live());
                (parameter, state) = optimizer.step(1e-3, parameter, gradient, state.take());
                device.sync().unwrap();
                let (launches, more) = (card.count("launches") - launches, card.peak() - before);
                println!("step {step}, held: {is_held}: {launches} launches, {more} bytes more at the peak");
                drop(held);
                if step > 0 {
                    assert_eq!(launches, 1, "step {step}");
                    let next = if is_held { COUNT * 6 + 8 * COUNT / 256 } else { 0 };
                    assert!((next..next + 64 * 1024).contains(&more), "step {step}: {more} bytes");
                }
            }
        };
        card.without_kernels(|| client.memory_dedicated_allocation((), |()| steps()));
    });
}
