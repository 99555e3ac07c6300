//! The memory that gradient checkpointing saves, and its cost: the table of `docs/checkpointing.md`.
//!
//! `cargo bench --package benches --features criterion --bench checkpointing`; with names of cases behind `--` only those.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a bench prints, and ends at what goes wrong"
)]

use std::cell::RefCell;
use std::time::Instant;

use burn::module::{Module, ModuleVisitor, Param};
use burn::nn::{LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::optim::{GradientsParams, ModuleOptimizer};
use burn::tensor::activation::gelu;
use burn::tensor::{Device, Distribution, Gradients, Tensor};
use kiln_checkpointing::{Chain, ChainCost, Cost, Mode, Plan, PlanSegment, Tensors, measure_blocks, solve};
use kiln_cli::HEAP;
use kiln_cli::heap::heap_use;
use kiln_cli::units::MIB;
use kiln_models::{GptBlock, GptConfig, ResNetBlock, ResNetConfig};
use kiln_training::OptimizerConfig;

/// The figures of one step, its gradients and statistics. Memory is that of forward and backward pass; time includes the update.
struct Step {
    /// Bytes at the end of the forward pass, and at the most, above those before the step.
    saved: usize,
    peak: usize,
    forward: f64,
    seconds: f64,
    gradients: Vec<u32>,
    statistics: Vec<u32>,
}

/// A chain, its input, and how a block runs.
struct Case<B, X> {
    model: Vec<B>,
    x: X,
    forward: fn(&B, X) -> X,
    loss: fn(X) -> Tensor<1>,
    optimizer: RefCell<ModuleOptimizer>,
}

impl<B: Module + 'static, X: Tensors> Case<B, X> {
    fn new(model: Vec<B>, x: X, forward: fn(&B, X) -> X, loss: fn(X) -> Tensor<1>) -> Self {
        let optimizer = RefCell::new(OptimizerConfig::adamw().groups(&model).init());
        Self { model, x, forward, loss, optimizer }
    }

    fn blocks(&self) -> usize {
        self.model.len()
    }

    fn plain(&self) -> Plan {
        Plan::none(self.blocks())
    }

    fn costs(&self) -> ChainCost {
        let copy: Vec<B> = self.model.valid().train();
        ChainCost::new(measure_blocks(&Chain::new(&copy).deterministic(), self.x.clone(), self.forward, &heap_use))
    }

    /// Takes one step under `plan`, starting from the running statistics of the model.
    fn step(&self, plan: &Plan, look: bool) -> Step {
        let model: Vec<B> = self.model.valid().train();
        let chain = Chain::new(&model).deterministic();
        let before = HEAP.live_bytes();
        HEAP.reset_peak();
        let started = Instant::now();
        let loss = (self.loss)(chain.run(plan, self.x.clone(), self.forward).unwrap());
        let (saved, forward) = (HEAP.live_bytes() - before, started.elapsed().as_secs_f64());
        let found = loss.backward();
        let peak = HEAP.peak_bytes() - before;
        let [gradients, statistics] = if look { bits(&model, &found) } else { [vec![], vec![]] };
        let found = GradientsParams::from_grads(found, &model);
        let _ = self.optimizer.borrow_mut().step(1e-4, model, found);
        Step { saved, peak, forward, seconds: started.elapsed().as_secs_f64(), gradients, statistics }
    }

    /// Median seconds of plans, whose steps alternate.
    fn seconds(&self, plans: &[&Plan], rounds: usize) -> Vec<f64> {
        let mut times = vec![vec![]; plans.len()];
        for _ in 0..rounds {
            for (plan, times) in plans.iter().zip(&mut times) {
                times.push(self.step(plan, false).seconds);
            }
        }
        times
            .iter_mut()
            .map(|times| {
                times.sort_by(f64::total_cmp);
                times[times.len() / 2]
            })
            .collect()
    }
}

fn bits(model: &impl Module, gradients: &Gradients) -> [Vec<u32>; 2] {
    struct Collect<'a>(&'a Gradients, [Vec<u32>; 2]);
    impl ModuleVisitor for Collect<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let tensor = param.val();
            let (at, values) = match tensor.is_require_grad() {
                true => (0, tensor.grad(self.0).map(|gradient| gradient.into_data())),
                false => (1, Some(tensor.into_data())),
            };
            self.1[at].extend(values.iter().flat_map(|data| data.iter::<f32>()).map(f32::to_bits));
        }
    }
    let _ = model.valid();
    let mut collect = Collect(gradients, [vec![], vec![]]);
    model.visit(&mut collect);
    collect.1
}

fn differing(a: &[u32], b: &[u32]) -> String {
    assert_eq!(a.len(), b.len());
    format!("{} of {}", a.iter().zip(b).filter(|(a, b)| a != b).count(), a.len())
}

fn mean(costs: &ChainCost, pick: fn(&Cost) -> u64) -> u64 {
    costs.blocks.iter().map(pick).sum::<u64>() / costs.blocks.len() as u64
}

fn transformer(device: &Device) -> Case<GptBlock, Tensor<3>> {
    let mut config = GptConfig::tiny(64, 64);
    config.layers = 24;
    let model = config.init(device).unwrap();
    let x = Tensor::<3>::random([8, 64, 128], Distribution::Normal(0.0, 1.0), device);
    Case::new(model.blocks(), x, GptBlock::forward, |x| x.square().mean())
}

fn resnet50(device: &Device) -> Case<ResNetBlock, Tensor<4>> {
    let model = ResNetConfig::resnet50(1000).init(device).unwrap();
    let x = Tensor::<4>::random([8, 3, 224, 224], Distribution::Normal(0.0, 1.0), device);
    Case::new(model.blocks(), x, ResNetBlock::forward, |x| x.square().mean())
}

/// Peaks, saved bytes, exactness and time of the plain run against one plan.
fn compare<B: Module + 'static, X: Tensors>(name: &str, case: &Case<B, X>, plans: &[(&str, Plan)], rounds: usize) {
    let plain = case.plain();
    let _ = case.step(&plain, false);
    let reference = case.step(&plain, true);
    let all: Vec<&Plan> = std::iter::once(&plain).chain(plans.iter().map(|(_, plan)| plan)).collect();
    let seconds = case.seconds(&all, rounds);
    let once = case.step(&plain, false);
    println!(
        "| {name} | plain | {:.1} | {:.1} | | | forward: {:.0} % |",
        reference.saved as f64 / MIB,
        reference.peak as f64 / MIB,
        100.0 * once.forward / once.seconds
    );
    for ((label, plan), time) in plans.iter().zip(&seconds[1..]) {
        let _ = case.step(plan, false);
        let step = case.step(plan, true);
        println!(
            "| | {label} | {:.1} ({:.0} %) | {:.1} ({:.0} %) | {} | {} | {:+.0} % |",
            step.saved as f64 / MIB,
            100.0 * step.saved as f64 / reference.saved as f64,
            step.peak as f64 / MIB,
            100.0 * step.peak as f64 / reference.peak as f64,
            differing(&step.gradients, &reference.gradients),
            differing(&step.statistics, &reference.statistics),
            100.0 * (time / seconds[0] - 1.0)
        );
    }
}

const HEAD: &str = "| Case | Plan | Live after forward, MiB | Peak, MiB | Differing gradients | Differing statistics | Time |\n\
                    |---|---|---|---|---|---|---|";

fn transformers(device: &Device) {
    let case = transformer(device);
    let costs = case.costs();
    let sqrt = Plan::sqrt(case.blocks(), mean(&costs, |cost| cost.input), mean(&costs, |cost| cost.saved));
    let plans = [("every:1", Plan::every(24, 1).unwrap()), ("every:4", Plan::every(24, 4).unwrap()), ("sqrt", sqrt)];
    println!("{HEAD}");
    compare("24 transformer blocks", &case, &plans, 9);
}

fn resnets(device: &Device) {
    let case = resnet50(device);
    println!("{HEAD}");
    let blocks = case.blocks();
    compare("ResNet-50, 8 x 224 x 224", &case, &[("every:1", Plan::every(blocks, 1).unwrap())], 3);
}

/// Compares `solve` at 60 % of the plain peak with twenty other plans that fit.
fn budgets(device: &Device) {
    let case = transformer(device);
    let costs = case.costs();
    let plain = case.plain();
    let _ = case.step(&plain, false);
    let plain_peak = case.step(&plain, false).peak as u64;
    let budget = plain_peak * 6 / 10;
    let solved = solve(&costs, budget).unwrap();
    let predicted = costs.simulate(&solved).unwrap().peak;
    // Every plan with x blocks recomputed in segments of k, at the front or at the back, ordered by the blocks that it recomputes.
    let mut others: Vec<Plan> = vec![];
    for length in 1..=6 {
        for recomputed in 1..=24 {
            for front in [true, false] {
                others.push(partly(24, recomputed, length, front));
            }
        }
    }
    others.sort_by_key(Plan::recomputed);
    let fits = |plan: &Plan| {
        let _ = case.step(plan, false);
        case.step(plan, false).peak as u64 <= budget
    };
    let fitting: Vec<Plan> = others.into_iter().filter(fits).take(20).collect();
    let all: Vec<&Plan> = std::iter::once(&solved).chain(&fitting).collect();
    let seconds = case.seconds(&all, 5);
    let best = (1..all.len()).min_by(|a, b| seconds[*a].total_cmp(&seconds[*b])).unwrap();
    // The least of twenty noisy figures is biased: the two that matter are measured again.
    let [seconds, best] = case.seconds(&[&solved, all[best]], 15)[..] else { unreachable!("two plans") };
    let measured = case.step(&solved, false).peak;
    println!(
        "plain peak {:.1} MiB, budget {:.1}: {solved}; predicted {:.1}, measured {:.1} MiB; {:.1} ms a step, the best of {} \
         plans that fit {:.1} ms ({:+.1} %)",
        plain_peak as f64 / MIB,
        budget as f64 / MIB,
        predicted as f64 / MIB,
        measured as f64 / MIB,
        seconds * 1e3,
        fitting.len(),
        best * 1e3,
        100.0 * (seconds / best - 1.0)
    );
}

fn partly(blocks: usize, recomputed: usize, length: usize, front: bool) -> Plan {
    let range = if front { 0..recomputed } else { blocks - recomputed..blocks };
    let segment = |blocks, mode| PlanSegment { blocks, mode };
    let mut segments = vec![];
    if range.start > 0 {
        segments.push(segment(0..range.start, Mode::Plain));
    }
    for from in range.clone().step_by(length) {
        let to = (from + length).min(range.end);
        segments.push(segment(from..to, Mode::Recompute));
    }
    if range.end < blocks {
        segments.push(segment(range.end..blocks, Mode::Plain));
    }
    Plan::try_from(segments).unwrap()
}

#[derive(Module, Debug)]
struct Mlp {
    norm: LayerNorm,
    inner: Linear,
    outer: Linear,
}

/// Bytes of activations of a residual MLP chain under the best uniform plan, by its length. All layers share their
/// parameters, so that the gradients of these are negligible against the activations.
fn growth(device: &Device) {
    const WIDTH: usize = 16;
    let shared = Mlp {
        norm: LayerNormConfig::new(WIDTH).init(device),
        inner: LinearConfig::new(WIDTH, 4 * WIDTH).init(device),
        outer: LinearConfig::new(4 * WIDTH, WIDTH).init(device),
    };
    let x = Tensor::<2>::random([2048, WIDTH], Distribution::Normal(0.0, 1.0), device);
    let forward = |m: &Mlp, x: Tensor<2>| m.outer.forward(gelu(m.inner.forward(m.norm.forward(x.clone())))) * 0.1 + x;
    let mut points = vec![];
    println!("| Layers | Segment | Peak, MiB | plain, MiB |\n|---|---|---|---|");
    for blocks in [64, 128, 256, 512, 1024] {
        let case = Case::new(vec![shared.clone(); blocks], x.clone(), forward, |x| x.square().mean());
        let costs = case.costs();
        let plan = Plan::sqrt(blocks, mean(&costs, |cost| cost.input), mean(&costs, |cost| cost.saved));
        let peak = |plan: &Plan| {
            let _ = case.step(plan, false);
            case.step(plan, false).peak as f64
        };
        let (kept, plain) = (peak(&plan), peak(&case.plain()));
        let length = plan.segments()[0].blocks.len();
        println!("| {blocks} | {length} | {:.1} | {:.1} |", kept / MIB, plain / MIB);
        points.push(((blocks as f64).ln(), kept.ln()));
    }
    let n = points.len() as f64;
    let mean = |pick: fn(&(f64, f64)) -> f64| points.iter().map(pick).sum::<f64>() / n;
    let (mx, my) = (mean(|p| p.0), mean(|p| p.1));
    let covariance: f64 = points.iter().map(|p| (p.0 - mx) * (p.1 - my)).sum();
    println!("fitted exponent: {:.2}", covariance / points.iter().map(|p| (p.0 - mx).powi(2)).sum::<f64>());
}

/// The solver on chains of 50 blocks, which it solves exactly, and of 1000: alike, and all different; with and without offloading.
fn solver(_: &Device) {
    let alike = |_| Cost {
        input: 1 << 20,
        saved: 24 << 20,
        workspace: 1 << 20,
        gradients: 1 << 18,
        forward: 1e-3,
        ..Cost::default()
    };
    let different = |i: u64| Cost {
        input: (1 + i * 7919 % 13) << 18,
        saved: (8 + i * 104_729 % 37) << 19,
        workspace: (i * 31 % 5) << 18,
        gradients: (i * 17 % 9) << 16,
        forward: 1e-3 * (1 + i * 1_299_709 % 11) as f64,
        ..Cost::default()
    };
    type Block = fn(u64) -> Cost;
    let kinds: [(&str, Block); 2] = [("alike", alike), ("different", different)];
    for count in [50, 1000] {
        for (name, block) in kinds {
            let costs = ChainCost::new((0..count).map(block).collect());
            let plain = costs.simulate(&Plan::none(count as usize)).unwrap().peak;
            for (costs, offload) in [(costs.clone(), ""), (costs.with_transfer(1e-10), ", offloading")] {
                for percent in [20, 60] {
                    let started = Instant::now();
                    let plan = solve(&costs, plain * percent / 100).unwrap();
                    let seconds = started.elapsed().as_secs_f64();
                    println!(
                        "{count} blocks, {name}{offload}, {percent} % of the plain peak: {:.1} ms, {} blocks run twice, \
                         peak {:.1} %",
                        seconds * 1e3,
                        plan.recomputed(),
                        100.0 * costs.simulate(&plan).unwrap().peak as f64 / plain as f64
                    );
                }
            }
        }
    }
}

fn main() {
    let device = Device::flex().autodiff();
    device.seed(1);
    type Run = fn(&Device);
    let cases: [(&str, Run); 5] = [
        ("solver", solver),
        ("transformers", transformers),
        ("budgets", budgets),
        ("growth", growth),
        ("resnets", resnets),
    ];
    let wanted: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    for (name, run) in cases {
        if wanted.is_empty() || wanted.iter().any(|wanted| wanted == name) {
            println!("\n## {name}");
            run(&device);
        }
    }
}
