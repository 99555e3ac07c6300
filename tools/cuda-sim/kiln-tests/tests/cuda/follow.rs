//! Twenty steps on CUDA compared with equal steps on the CPU device.

use burn::module::Module;
use burn::tensor::Device;
use kiln_models::{GptConfig, ResNetConfig, Stem};
use kiln_precision::{Policy, Precision};
use kiln_training::{Batch, OptimizerConfig, ScheduleConfig, Task};

use crate::sim::{STRICT, gpu, on_wgpu, with_card};
use crate::support::{Ids, Net, Settings, Watched, batch, builder, settings};
use crate::tasks::{Case, Residual, Text};

const STEPS: u64 = 20;
const SEED: u64 = 7;

/// The loss of each step.
fn losses<T: Task>(
    (task, net, device): (T, &T::Model, &Device),
    batches: impl Fn(u64) -> T::Batch,
    settings: &Settings,
) -> Vec<f64> {
    let sample = batches(0);
    assert!(sample.len() > 0);
    let builder = builder(task, |device| net.valid().to_device(&device.clone().inner()).train(), settings);
    let mut trainer = Watched::build_on(builder, &device.clone().autodiff(), &sample);
    (0..STEPS).map(|step| trainer.step(&batches(step)).unwrap().loss).collect()
}

fn settings_of(optimizer: OptimizerConfig, precision: Precision) -> Settings {
    let schedule = ScheduleConfig::cosine(0.01).with_floor(0.1).into();
    Settings { schedule, policy: Policy::new(precision), ..settings(optimizer) }
}

/// Each loss within `tolerance` of the CPU's, and the last far below the first.
pub(crate) fn assert_follows(cuda: &[f64], flex: &[f64], tolerance: f64) {
    let far = cuda.iter().zip(flex).map(|(a, b)| (a - b).abs() / b.abs()).fold(0.0, f64::max);
    println!("cuda {cuda:.6?}\nflex {flex:.6?}\nat most {far:.2e} apart");
    assert!(far < tolerance, "{far}");
    // Four batches are repeated.
    assert!(flex[STEPS as usize - 1] < 0.95 * flex[3], "nothing was learned");
}

fn case_follows<C: Case>(case: C, optimizer: OptimizerConfig, precision: Precision, tolerance: f64) {
    with_card(&STRICT, move |_| {
        let device = Device::flex().autodiff();
        device.seed(SEED);
        let net = case.model(&device);
        let settings = settings_of(optimizer, precision);
        let [cuda, flex] = [gpu(), Device::flex()]
            .map(|device| losses((case.clone(), &net, &device), |step| case.batch(step % 4), &settings));
        // wgpu has no TF32.
        let tolerance = if on_wgpu() && precision == Precision::F32 { 1e-3 } else { tolerance };
        assert_follows(&cuda, &flex, tolerance);
    });
}

fn gpt() -> Text {
    Text {
        samples: 4,
        config: GptConfig { vocab: 16, context: 8, layers: 2, heads: 2, width: 32, dropout: 0.0, lean: true },
    }
}

fn resnet() -> Residual {
    let config = ResNetConfig::resnet18(4).with_stem(Stem::Cifar).with_width(4);
    Residual { samples: 8, side: 8, config }
}

/// The losses of a perceptron on each device.
pub(crate) fn perceptron(devices: [Device; 2]) -> [Vec<f64>; 2] {
    Device::flex().seed(SEED);
    let net = Net::new(&[12, 16, 16], true, 0.0);
    let settings = settings_of(OptimizerConfig::adamw(), Precision::F32);
    devices.map(|device| losses((Ids::net(), &net, &device), |step| batch(step % 4, 16), &settings))
}

#[test]
fn a_perceptron_with_batch_norm() {
    with_card(&STRICT, |_| {
        let [cuda, flex] = perceptron([gpu(), Device::flex()]);
        assert_follows(&cuda, &flex, 1e-3);
    });
}

/// The gradients of a key's bias are 0 up to rounding, from which AdamW makes updates as large as all others.
#[test]
fn a_gpt() {
    case_follows(gpt(), OptimizerConfig::adamw(), Precision::F32, 3e-2);
}

#[test]
fn a_gpt_in_bf16() {
    case_follows(gpt(), OptimizerConfig::adamw(), Precision::BF16, 5e-2);
}

#[test]
fn a_resnet() {
    case_follows(resnet(), OptimizerConfig::sgd(), Precision::F32, 1e-2);
}

#[test]
fn a_resnet_in_f16() {
    case_follows(resnet(), OptimizerConfig::sgd(), Precision::F16, 5e-2);
}
