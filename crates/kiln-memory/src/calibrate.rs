use std::time::Instant;

use burn::module::Module;
use burn::nn::{LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::optim::SgdConfig;
use burn::tensor::activation::gelu;
use burn::tensor::{Device, Distribution, Tensor};

use crate::{BackendProfile, Error, Meter, StepOptions, record_step};

/// Many small operations, so that what burn keeps for each of them shows beside their tensors.
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

/// Corrects a profile by short measured runs on `device`, which `meter` must measure: bytes that are kept for every operation,
/// and how fast products, simple operations and launches are. Takes a second or two, and about 200 MiB.
///
/// Rules and formulas of the profile's [`kernels`](BackendProfile::kernels) stay as they are; no model that is predicted later is
/// part of the calibration.
///
/// # Errors
/// [`Error::Record`] when the probe cannot be recorded.
pub fn calibrate(profile: BackendProfile, device: &Device, meter: &Meter) -> Result<BackendProfile, Error> {
    let plain = device.clone().inner();
    let tracked = plain.clone().autodiff();
    let known = profile.operation_bytes;
    let (flops, bandwidth, launch) = speeds(&plain);
    let profile = BackendProfile { flops, bandwidth, launch, operation_bytes: 0, ..profile };

    let trace = record_step(
        Probe::init,
        |probe: &Probe, step| probe.loss(Tensor::zeros([step.batch(), WIDTH], step.device())),
        &SgdConfig::new().build(),
        StepOptions::default(),
    )?;
    let prediction = trace.predict(BATCH, &profile)?;
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
    // Graphs of other operations keep more: what is known of them is not corrected downwards. A pool holds no graph.
    let operation_bytes = if meter.is_exact() { measured.max(known) } else { 0 };
    Ok(BackendProfile { operation_bytes, ..profile })
}

/// Multiplications and additions, bytes and launches per second.
fn speeds(device: &Device) -> (f64, f64, f64) {
    const SIDE: usize = 512;
    let a = Tensor::<2>::random([SIDE, SIDE], Distribution::Default, device);
    let product = fastest(device, 4, || drop(a.clone().matmul(a.clone())));
    let big = Tensor::<1>::random([1 << 24], Distribution::Default, device);
    let moving = fastest(device, 4, || drop(big.clone() + big.clone()));
    let small = Tensor::<1>::random([16], Distribution::Default, device);
    const TIMES: usize = 256;
    let launches = fastest(device, 4, || (0..TIMES).for_each(|_| drop(small.clone() + small.clone())));
    let flops = 2.0 * (SIDE * SIDE * SIDE) as f64 / product;
    (flops, 3.0 * f64::from(1 << 26) / moving, launches / TIMES as f64)
}

/// Seconds of the fastest of some runs after a first one: what disturbs a run only ever makes it slower.
fn fastest(device: &Device, runs: usize, f: impl Fn()) -> f64 {
    f();
    let timed = (0..runs).map(|_| {
        let _ = device.sync();
        let started = Instant::now();
        f();
        let _ = device.sync();
        started.elapsed().as_secs_f64()
    });
    timed.fold(f64::INFINITY, f64::min).max(1e-9)
}
