//! Plans of steps that are divided among devices: they balance times, stay within budgets, and hold what is measured.

use std::thread;

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::activation::tanh;
use burn::tensor::{Device, Tensor};
use kiln_checkpointing::Plan;
use kiln_memory::BackendProfile;
use kiln_parallel::{Local, Schedule};
use kiln_precision::Precision;
use kiln_training::{
    DeviceLayout, Error, MemoryBudget, OptimizerConfig, Pass, Planner, StagePlan, StagesConfig, Task, Trainer,
    TrainerBuilder,
};

use crate::HEAP;
use crate::support::{batch, classes, device, entropy, inputs, turn};

const WIDTH: usize = 96;
const BATCH: usize = 4096;

/// Blocks of as many linear layers as their number says, between a layer before and a layer behind.
#[derive(Module, Debug)]
struct Stack {
    before: Linear,
    blocks: Vec<Vec<Linear>>,
    behind: Linear,
}

fn stack(sizes: &[usize], device: &Device) -> Stack {
    let layer = || LinearConfig::new(WIDTH, WIDTH).init(device);
    Stack {
        before: layer(),
        blocks: sizes.iter().map(|size| (0..*size).map(|_| layer()).collect()).collect(),
        behind: LinearConfig::new(WIDTH, crate::support::CLASSES).init(device),
    }
}

struct Stacked;

impl Task for Stacked {
    type Model = Stack;
    type Batch = Vec<usize>;

    fn loss(&self, pass: &Pass<'_, Stack>, ids: &Vec<usize>) -> Tensor<1> {
        let x = pass.model().before.forward(inputs(ids, [ids.len(), WIDTH], pass.device()));
        let x = pass.chain(&pass.model().blocks, x, |block: &Vec<Linear>, x: Tensor<2>| {
            block.iter().fold(x, |x, layer| tanh(layer.forward(x)))
        });
        entropy(pass.model().behind.forward(x), classes(ids, pass.device()))
    }
}

fn builder(sizes: &'static [usize]) -> TrainerBuilder<'static, Stacked> {
    Trainer::builder(Stacked, move |device| stack(sizes, device))
        .with_optimizer(|model: &Stack| OptimizerConfig::adamw().groups(model))
        .with_seed(3)
        .with_steps(4)
        .with_batch_size(BATCH)
        .with_allocator(&HEAP)
        .without_recovery()
}

fn planner(sizes: &'static [usize]) -> Planner {
    builder(sizes).planner(&BackendProfile::flex(), &batch(0, 8), BATCH).unwrap()
}

fn plain(planner: &Planner, layout: &DeviceLayout, micro_batch: usize) -> StagePlan {
    let none = Plan::none(planner.blocks());
    planner.evaluate_stages(Precision::F32, &none, micro_batch, layout, u64::MAX).unwrap()
}

#[test]
fn the_division_is_the_fastest_of_all() {
    let _turn = turn();
    let planner = planner(&[1, 4, 1, 1, 3, 2]);
    for schedule in [Schedule::OneForwardOneBackward, Schedule::GPipe] {
        let layout = DeviceLayout::new(2).with_schedule(schedule);
        let found = planner.stage_plan(&layout, u64::MAX).unwrap();
        let slowest = |plan: &StagePlan| {
            let seconds = |load: &kiln_training::StageLoad| load.cost().forward + load.cost().backward;
            plan.loads.iter().map(seconds).fold(0.0, f64::max)
        };
        let all = (1..6).map(|cut| plain(&planner, &layout.clone().with_cuts([cut]), found.micro_batch));
        let best = all.map(|plan| slowest(&plan)).fold(f64::INFINITY, f64::min);
        assert!(slowest(&found) <= 1.001 * best, "{found}");
        assert_eq!(found.micro_batches(), 4, "two for each stage");
        assert!(found.bubble > 0.0 && found.bubble < 0.5 && found.fits);
        let (blocks, ranges) = (found.loads.iter().map(|load| load.blocks.clone()), found.stages.ranges());
        assert_eq!(blocks.collect::<Vec<_>>(), ranges);
    }
}

#[test]
fn a_budget_holds_on_each_device() {
    let _turn = turn();
    let planner = planner(&[2, 2, 2, 2]);
    let layout = DeviceLayout::new(2);
    let free = planner.stage_plan(&layout, u64::MAX).unwrap();
    let least = plain(&planner, &layout, 1).peak_bytes;
    assert!(2 * least < free.peak_bytes, "{least} {free}");
    let limit = (least + free.peak_bytes) / 2;
    let plan = planner.stage_plan(&layout, limit).unwrap();
    assert!(plan.fits && plan.peak_bytes <= limit, "{plan}");
    assert!(plan.micro_batch < free.micro_batch || plan.checkpoints.recomputed() > 0, "{plan}");
    assert!(plan.loads.iter().all(|load| load.peak_bytes <= limit));
    let error = planner.stage_plan(&layout, least / 4).unwrap_err();
    assert!(matches!(error, Error::NothingFits { least: (bytes, _), .. } if bytes > least / 4), "{error}");
    // Two devices have more memory than one that both stages share.
    let shared = layout.on_one_device();
    let one = plain(&planner, &shared, free.micro_batch);
    assert_eq!(one.peak_bytes, free.loads.iter().map(|load| load.peak_bytes).sum::<u64>());
    assert!(planner.stage_plan(&shared, free.peak_bytes).is_err() || one.peak_bytes > free.peak_bytes);
}

#[test]
fn replicas_share_the_optimizer_state() {
    let _turn = turn();
    let planner = planner(&[2, 2, 2, 2]);
    let whole = plain(&planner, &DeviceLayout::new(1).with_replicas(4, false), BATCH);
    let shared = plain(&planner, &DeviceLayout::new(1).with_replicas(4, true), BATCH);
    let state = |plan: &StagePlan| plan.loads[0].estimate.optimizer_bytes as f64;
    let share = state(&shared) / state(&whole);
    assert!((0.25..0.35).contains(&share), "{share}");
    assert!(shared.peak_bytes < whole.peak_bytes);
    // Without replicas nothing is exchanged.
    let alone = plain(&planner, &DeviceLayout::new(1), BATCH);
    assert!(alone.peak_bytes <= whole.peak_bytes);
    let fits = planner.stage_plan(&shared.layout, (shared.peak_bytes + whole.peak_bytes) / 2).unwrap();
    assert!(fits.fits);
}

#[test]
fn settings_that_cannot_be_are_errors() {
    let _turn = turn();
    let planner = planner(&[1, 1]);
    assert!(matches!(planner.stage_plan(&DeviceLayout::new(3), u64::MAX), Err(Error::Parallel(_))));
    let cuts = DeviceLayout::new(2).with_cuts([]);
    assert!(matches!(planner.stage_plan(&cuts, u64::MAX), Err(Error::InvalidSetting { field: "stages", .. })));
    let error = planner.evaluate_stages(Precision::BF16, &Plan::none(2), 1, &DeviceLayout::new(2), u64::MAX);
    assert!(matches!(error, Err(Error::NoPrecision)));
}

/// The heap's growth in each action is that of its stage. The test's layers are small, so that the bytes of graphs show.
#[test]
fn stages_hold_what_is_predicted() {
    let _turn = turn();
    for (schedule, micro_batch) in
        [(Schedule::OneForwardOneBackward, 512), (Schedule::GPipe, 512), (Schedule::OneForwardOneBackward, 1024)]
    {
        let stages = StagesConfig::on(&device(), 2).with_schedule(schedule);
        let mut trainer = builder(&[2, 2, 2, 2])
            .with_stages(stages)
            .with_micro_batch(micro_batch)
            .build(&device(), &batch(0, BATCH))
            .unwrap();
        assert!(trainer.stage_memory().is_none());
        assert!(trainer.measure_stages().unwrap());
        for step in 0..3 {
            let _ = trainer.step(&batch(step, BATCH)).unwrap();
        }
        let (plan, memory) = (trainer.stage_plan().unwrap(), trainer.stage_memory().unwrap());
        for (stage, (load, memory)) in plan.loads.iter().zip(&memory).enumerate() {
            let near = |predicted: u64, measured: u64| (predicted as f64 / measured as f64 - 1.0).abs();
            let peak = near(load.estimate.passes_peak_bytes, memory.peak_bytes);
            let kept = near(load.activations_in_flight(), memory.activation_bytes);
            assert!(peak < 0.12 && kept < 0.25, "{schedule}, stage {stage}: peak {peak}, kept {kept}");
        }
        let timeline = trainer.timeline().unwrap();
        assert_eq!(timeline.work.len(), 2 * 2 * plan.micro_batches());
    }
}

#[test]
fn a_run_without_a_micro_batch_has_two_for_each_stage() {
    let _turn = turn();
    let stages = StagesConfig::on(&device(), 2);
    let mut trainer = builder(&[1, 1, 1]).with_stages(stages).build(&device(), &batch(0, BATCH)).unwrap();
    let report = trainer.step(&batch(0, BATCH)).unwrap();
    assert_eq!(report.micro_batches, 4);
    assert_eq!(trainer.stage_plan().unwrap().micro_batch, BATCH / 4);
    assert!(!builder(&[1, 1]).build(&device(), &batch(0, BATCH)).unwrap().measure_stages().unwrap());
}

#[test]
fn replicas_of_a_process_share_its_budget() {
    let _turn = turn();
    let planner = planner(&[2, 2, 2, 2]);
    let peak = plain(&planner, &DeviceLayout::new(1).with_replicas(2, false), BATCH / 4).peak_bytes;
    let limit = 2 * (peak + peak / 20);
    let build = |communicator: Local| {
        let trainer = builder(&[2, 2, 2, 2])
            .with_memory(MemoryBudget::Bytes(limit))
            .with_replicas(std::sync::Arc::new(communicator))
            .build(&device(), &batch(0, BATCH / 2))
            .unwrap();
        (trainer.stage_plan().unwrap().clone(), trainer.limit_bytes(), trainer.replicas_on_heap())
    };
    let plans: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = Local::group(2).into_iter().map(|replica| scope.spawn(|| build(replica))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    for (plan, whole, sharing) in plans {
        assert_eq!((whole, sharing, plan.batch), (Some(limit), 2, BATCH / 2));
        assert!(2 * plan.peak_bytes <= limit && plan.fits, "{plan}");
    }
}
