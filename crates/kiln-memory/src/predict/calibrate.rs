//! Short measured runs that correct a profile for the machine.

use std::time::Instant;

use burn::module::Module;
use burn::nn::{LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::optim::SgdConfig;
use burn::tensor::activation::gelu;
use burn::tensor::{DType, Device, Distribution, Tensor};

use crate::error::Error;
use crate::measure::Meter;
use crate::trace::{StepOptions, record_step};

use super::profile::{BackendProfile, Kernels};

/// Many small operations, so that the bytes of burn's graph are visible beside those of the tensors.
#[derive(Module, Debug)]
struct Probe {
    norms: Vec<LayerNorm>,
    layers: Vec<Linear>,
}

const LAYERS: usize = 64;
const WIDTH: usize = 16;
const BATCH: usize = 4;

impl Probe {
    fn init(device: &Device) -> Self {
        Self {
            norms: (0..LAYERS).map(|_| LayerNormConfig::new(WIDTH).init(device)).collect(),
            layers: (0..LAYERS).map(|_| LinearConfig::new(WIDTH, WIDTH).init(device)).collect(),
        }
    }

    fn loss(&self, x: Tensor<2>) -> Tensor<1> {
        let blocks = self.norms.iter().zip(&self.layers);
        blocks.fold(x, |x, (norm, layer)| gelu(layer.forward(norm.forward(x.clone()))) + x).square().mean()
    }
}

/// Corrects a profile by short measured runs on `device`, which `meter` must measure. It corrects the bytes that burn's graph keeps for
/// each operation, and the speeds of products, elementwise operations and launches. It takes one to two seconds, and about 200 MiB on a GPU;
/// on the CPU device, whose memory is that of the process, 10 MiB.
///
/// The rules of the profile's [`kernels`](BackendProfile::kernels) are not changed, and the calibration does not depend on the
/// models that are predicted later.
///
/// # Errors
/// [`Error::Record`] when the probe cannot be recorded.
pub fn calibrate(profile: BackendProfile, device: &Device, meter: &Meter) -> Result<BackendProfile, Error> {
    let plain = device.clone().inner();
    let tracked = plain.clone().autodiff();
    let profile = with_speeds(profile, &plain);
    let tensors_only =
        BackendProfile { operation_bytes: 0, leaf_bytes: 0, parameter_bytes: 0, trained_bytes: 0, ..profile.clone() };

    let trace = record_step(
        Probe::init,
        |probe: &Probe, step| probe.loss(Tensor::zeros([step.batch(), WIDTH], step.device())),
        &SgdConfig::new().build(),
        StepOptions::default(),
    )?;
    let prediction = trace.predict(BATCH, &tensors_only)?;
    let backward = prediction.phases[1].first;
    let parameters = (LAYERS * (WIDTH + 3) * WIDTH * 4) as u64;
    let tensors = prediction.breakdown_at(backward).total().saturating_sub(parameters);

    let probe = Probe::init(&tracked);
    let run = || {
        let x = Tensor::random([BATCH, WIDTH], Distribution::Default, &tracked);
        let _ = device.sync();
        let before = meter.live_bytes();
        let loss = probe.loss(x);
        let _ = device.sync();
        let kept = meter.live_bytes().saturating_sub(before);
        drop(loss.backward());
        kept
    };
    run(); // the first pass initialises parameters
    let kept = run().min(run());
    let measured = kept.saturating_sub(tensors) / backward.max(1) as u64;
    // Other operations keep more in the graph, so the known figure is not lowered. A pool does not hold the graph.
    let operation_bytes = if meter.is_exact() { measured.max(profile.operation_bytes) } else { 0 };
    Ok(BackendProfile { operation_bytes, ..profile })
}

/// Measures operations, bytes and launches per second.
fn with_speeds(profile: BackendProfile, device: &Device) -> BackendProfile {
    const SIDE: usize = 512;
    let product = |dtype: DType| {
        let a = Tensor::<2>::random([SIDE, SIDE], Distribution::Default, device).cast(dtype);
        2.0 * (SIDE * SIDE * SIDE) as f64 / fastest(device, 4, || a.clone().matmul(a.clone()))
    };
    let flops = product(DType::F32);
    // Flex computes burn's products of 16-bit tensors in f32, and on most processors those of kiln-layers take as long.
    let half = [DType::BF16, DType::F16].into_iter().find(|dtype| device.supports_dtype(*dtype));
    let half_flops = match (profile.kernels, half) {
        (Kernels::Cube, Some(half)) => product(half),
        _ => flops,
    };
    let elements: usize = match profile.kernels {
        Kernels::Flex => 1 << 20,
        Kernels::Cube => 1 << 24,
    };
    let big = Tensor::<1>::random([elements], Distribution::Default, device);
    let moving = fastest(device, 4, || big.clone() + big.clone());
    let small = Tensor::<1>::random([16], Distribution::Default, device);
    const TIMES: usize = 256;
    let launches = fastest(device, 4, || (0..TIMES).map(|_| small.clone() + small.clone()).collect::<Vec<Tensor<1>>>());
    let bandwidth = (3 * 4 * elements) as f64 / moving;
    BackendProfile { flops, half_flops, bandwidth, launch: launches / TIMES as f64, ..profile }
}

/// Seconds of the fastest of some runs after a first one, since disturbances only make a run slower. The result of `f` is kept until the
/// device is done: a backend that fuses operations leaves out those whose results are dropped.
fn fastest<T>(device: &Device, runs: usize, f: impl Fn() -> T) -> f64 {
    drop(f());
    let timed = (0..runs).map(|_| {
        let _ = device.sync();
        let started = Instant::now();
        let results = f();
        let _ = device.sync();
        let seconds = started.elapsed().as_secs_f64();
        drop(results);
        seconds
    });
    timed.fold(f64::INFINITY, f64::min).max(1e-9)
}
