//! Predictions against what the heap says.
#![allow(missing_docs, clippy::unwrap_used, clippy::print_stdout, reason = "a test ends at what goes wrong")]

use burn::module::Module;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{Gelu, LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::optim::momentum::MomentumConfig;
use burn::optim::{AdamWConfig, GradientsParams, ModuleOptimizer, Optimizer, SgdConfig};
use burn::tensor::{DType, Device, Int, Tensor};
use kiln_checkpointing::{Chain, Mode, Plan};
use kiln_memory::{BackendProfile, CountingAllocator, Recomputed, Recorder, StepOptions, record_step};
use kiln_models::{GptConfig, ResNetConfig, ResNetPart, Stem};
use kiln_precision::{Policy, Precision};

#[global_allocator]
static HEAP: CountingAllocator = CountingAllocator::new();

fn measure<M: Module>(
    build: impl Fn(&Device) -> M,
    forward: impl Fn(&M, &Device, usize) -> Tensor<1>,
    mut optimizer: ModuleOptimizer,
    batch: usize,
) -> [usize; 4] {
    let device = Device::flex().autodiff();
    let before = HEAP.live_bytes();
    let mut model = build(&device);
    let mut peaks = [0; 4];
    for _ in 0..3 {
        HEAP.reset_peak();
        let loss = forward(&model, &device, batch);
        peaks[0] = HEAP.peak_bytes() - before;
        peaks[3] = HEAP.live_bytes() - before;
        HEAP.reset_peak();
        let gradients = loss.backward();
        let gradients = GradientsParams::from_grads(gradients, &model);
        peaks[1] = HEAP.peak_bytes() - before;
        HEAP.reset_peak();
        model = optimizer.step(1e-3, model, gradients);
        peaks[2] = HEAP.peak_bytes() - before;
    }
    peaks
}

fn case<M: Module + 'static, O: Optimizer>(
    name: &str,
    build: impl Fn(&Device) -> M + Copy,
    forward: impl Fn(&M, &Device, usize) -> Tensor<1> + Copy,
    optimizer: O,
    batches: &[usize],
) {
    let started = std::time::Instant::now();
    let trace =
        record_step(build, |m: &M, r: &Recorder| forward(m, r.device(), r.batch()), &optimizer, StepOptions::default())
            .unwrap();
    let recorded = started.elapsed().as_secs_f64() * 1e3;
    println!("{name}: {} operations in {recorded:.0} ms", trace.len());
    for batch in batches {
        let predicted = trace.predict(*batch, &BackendProfile::flex()).unwrap();
        let measured = measure(build, forward, ModuleOptimizer::from(optimizer.clone()), *batch);
        let mib = |bytes: usize| bytes as f64 / f64::from(1 << 20);
        print!("  {batch:3}:");
        for (phase, measured) in predicted.phases.iter().zip(measured) {
            let error = phase.peak_bytes as f64 / measured as f64 - 1.0;
            print!(
                " {} {:8.2} / {:8.2} ({:+5.1} %)",
                phase.phase,
                mib(phase.peak_bytes as usize),
                mib(measured),
                100.0 * error
            );
        }
        let live = predicted.operations[predicted.phases[1].first].live_bytes;
        println!("  saved {:.2} / {:.2}", mib(live as usize), mib(measured[3]));
        println!(
            "      at {} {} {:?}",
            predicted.peak_at,
            predicted.operations[predicted.peak_at].name,
            predicted.breakdown.0.iter().map(|(c, b)| format!("{c} {:.2}", mib(*b as usize))).collect::<Vec<_>>()
        );
        if std::env::var("HOLDERS").is_ok() {
            for buffer in predicted.alive_at(predicted.peak_at).iter().take(30) {
                println!(
                    "        {:9.3} {} {:?} {:?} {} {}..{}",
                    mib(buffer.bytes as usize),
                    buffer.category,
                    buffer.path,
                    buffer.shape,
                    buffer.operation,
                    buffer.born,
                    buffer.dies
                );
            }
        }
    }
}

#[derive(Module, Debug)]
struct Mlp {
    layers: Vec<Linear>,
    norms: Vec<LayerNorm>,
    out: Linear,
}

impl Mlp {
    fn new(width: usize, depth: usize, device: &Device) -> Self {
        Self {
            layers: (0..depth).map(|_| LinearConfig::new(width, width).init(device)).collect(),
            norms: (0..depth).map(|_| LayerNormConfig::new(width).init(device)).collect(),
            out: LinearConfig::new(width, 10).init(device),
        }
    }

    fn loss(&self, device: &Device, batch: usize) -> Tensor<1> {
        let x = Tensor::<2>::zeros([batch, self.layers[0].weight.dims()[0]], device);
        let gelu = Gelu::new();
        let x = self
            .layers
            .iter()
            .zip(&self.norms)
            .fold(x, |x, (layer, norm)| gelu.forward(norm.forward(layer.forward(x.clone()))) + x);
        CrossEntropyLossConfig::new()
            .init(device)
            .forward(self.out.forward(x), Tensor::<1, Int>::zeros([batch], device))
    }
}

fn sgd() -> burn::optim::Sgd {
    SgdConfig::new().with_momentum(Some(MomentumConfig::new().with_dampening(0.0))).build()
}

fn planned(name: &str, every: usize, batch: usize, precision: Precision) {
    let policy = Policy::new(precision);
    let build =
        |d: &Device| policy.autocast(ResNetConfig::resnet18(10).with_stem(Stem::Cifar).init(d).unwrap()).unwrap();
    let blocks = 9;
    let plan = if every == 0 { Plan::none(blocks) } else { Plan::every(blocks, every).unwrap() };
    let segments: Vec<Recomputed> = plan
        .segments()
        .iter()
        .filter(|segment| segment.mode != Mode::Plain)
        .map(|segment| Recomputed { blocks: segment.blocks.clone(), offloaded: segment.mode == Mode::Offload })
        .collect();
    let head = |m: &kiln_models::ResNet, x: Tensor<4>, d: &Device| {
        let logits = m.head(x).cast(DType::F32);
        let targets = Tensor::<1, Int>::zeros([logits.dims()[0]], d);
        CrossEntropyLossConfig::new().init(d).forward(logits, targets)
    };
    let recorded = record_step(
        build,
        |m, r| {
            let x = Tensor::zeros([r.batch(), 3, 32, 32], r.device());
            r.cut();
            let x = m.parts().iter().fold(x, |x, part| {
                let x = part.forward(x);
                r.cut();
                x
            });
            head(m, x, r.device())
        },
        &sgd(),
        StepOptions::default(),
    )
    .unwrap();
    let trace = recorded.with_plan(&segments).unwrap();
    let predicted = trace.predict(batch, &BackendProfile::flex()).unwrap();
    let forward = |m: &kiln_models::ResNet, d: &Device, b: usize| {
        let x = Tensor::zeros([b, 3, 32, 32], d);
        head(m, Chain::new(&m.parts()).deterministic().run(&plan, x, ResNetPart::forward).unwrap(), d)
    };
    let measured = measure(build, forward, ModuleOptimizer::from(sgd()), batch);
    let mib = |bytes: usize| bytes as f64 / f64::from(1 << 20);
    print!("{name} every {every} {precision} {batch:3}:");
    for (phase, measured) in predicted.phases.iter().zip(measured) {
        let error = phase.peak_bytes as f64 / measured as f64 - 1.0;
        print!(
            " {} {:8.2} / {:8.2} ({:+5.1} %)",
            phase.phase,
            mib(phase.peak_bytes as usize),
            mib(measured),
            100.0 * error
        );
    }
    let live = predicted.operations[predicted.phases[1].first].live_bytes;
    println!("  saved {:.2} / {:.2}", mib(live as usize), mib(measured[3]));
    println!(
        "      at {} {} {:?}",
        predicted.peak_at,
        predicted.operations[predicted.peak_at].name,
        predicted.breakdown.0.iter().map(|(c, b)| format!("{c} {:.2}", mib(*b as usize))).collect::<Vec<_>>()
    );
}

#[test]
fn explore() {
    // Scratch memory of the threads.
    let device = Device::flex();
    for _ in 0..4 {
        let _ = Tensor::<2>::ones([600, 600], &device).matmul(Tensor::ones([600, 600], &device));
    }
    let only = std::env::var("ONLY").unwrap_or_default();
    let run = |name: &str| only.is_empty() || only.split(',').any(|only| only == name);
    if run("mlp") {
        case("mlp adamw", |d| Mlp::new(256, 8, d), |m, d, b| m.loss(d, b), AdamWConfig::new().build(), &[2, 32, 512]);
        case("mlp sgd", |d| Mlp::new(256, 8, d), |m, d, b| m.loss(d, b), sgd(), &[2, 32, 512]);
    }
    if run("resnet18") {
        let loss = |m: &kiln_models::ResNet, d: &Device, b: usize| {
            let logits = m.forward(Tensor::zeros([b, 3, 32, 32], d));
            CrossEntropyLossConfig::new().init(d).forward(logits, Tensor::<1, Int>::zeros([b], d))
        };
        let build = |d: &Device| ResNetConfig::resnet18(10).with_stem(Stem::Cifar).init(d).unwrap();
        case("resnet18 cifar sgd", build, loss, sgd(), &[2, 16, 64]);
    }
    if run("resnet50") {
        let loss = |m: &kiln_models::ResNet, d: &Device, b: usize| {
            let logits = m.forward(Tensor::zeros([b, 3, 224, 224], d));
            CrossEntropyLossConfig::new().init(d).forward(logits, Tensor::<1, Int>::zeros([b], d))
        };
        let build = |d: &Device| ResNetConfig::resnet50(1000).init(d).unwrap();
        case("resnet50 sgd", build, loss, sgd(), &[2, 4]);
    }
    if run("plans") {
        for every in [0, 1, 2, 4] {
            planned("resnet18", every, 16, Precision::F32);
        }
        for precision in [Precision::BF16, Precision::F16] {
            planned("resnet18", 0, 16, precision);
            planned("resnet18", 2, 16, precision);
        }
    }
    if run("gpt16") {
        for precision in [Precision::BF16, Precision::F16] {
            let policy = Policy::new(precision);
            let loss = |m: &kiln_models::Gpt, d: &Device, b: usize| {
                let t = m.context();
                let logits = m.forward(Tensor::<2, Int>::zeros([b, t], d)).cast(DType::F32);
                let [b, t, v] = logits.dims();
                CrossEntropyLossConfig::new()
                    .init(d)
                    .forward(logits.reshape([b * t, v]), Tensor::<1, Int>::zeros([b * t], d))
            };
            let build = |d: &Device| policy.autocast(GptConfig::tiny(256, 64).init(d).unwrap()).unwrap();
            case(&format!("gpt {precision}"), build, loss, AdamWConfig::new().build(), &[2, 8, 32]);
        }
    }
    if run("gpt") {
        let loss = |m: &kiln_models::Gpt, d: &Device, b: usize| {
            let t = m.context();
            let logits = m.forward(Tensor::<2, Int>::zeros([b, t], d));
            let [b, t, v] = logits.dims();
            CrossEntropyLossConfig::new()
                .init(d)
                .forward(logits.reshape([b * t, v]), Tensor::<1, Int>::zeros([b * t], d))
        };
        case("gpt tiny", |d| GptConfig::tiny(256, 64).init(d).unwrap(), loss, AdamWConfig::new().build(), &[2, 8, 32]);
        case("gpt mini", |d| GptConfig::mini(512, 128).init(d).unwrap(), loss, AdamWConfig::new().build(), &[2, 8]);
    }
}
