//! Plans of steps that are divided among devices: they balance times, stay within budgets, and predict measured memory.

use std::thread;

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::activation::tanh;
use burn::tensor::{Device, Tensor};
use bytesize::ByteSize;
use kiln_checkpointing::Plan;
use kiln_memory::BackendProfile;
use kiln_parallel::{Local, Schedule};
use kiln_precision::Precision;
use kiln_recovery::{Failure, Kind};
use kiln_training::{
    Boundary, DeviceLayout, Error, MemoryBudget, OptimizerConfig, Pass, PlannedOptimizer, Planner, StagePlan,
    StagesConfig, Task, Trainer, TrainerBuilder,
};

use crate::HEAP;
use crate::support::{Watched, batch, beside, classes, device, entropy, inputs, reclaim, recovery, temporary, turn};

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
        .with_recovery(false)
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
    let _turn = beside();
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
fn no_tensor_is_above_the_largest_buffer_of_the_device() {
    let _turn = beside();
    let planner = |largest_buffer| {
        let profile = BackendProfile { largest_buffer, ..BackendProfile::wgpu() };
        builder(&[2, 2]).planner(&profile, &batch(0, 8), BATCH).unwrap()
    };
    let free = planner(None).choose(u64::MAX).unwrap();
    assert_eq!(free.micro_batch, BATCH);
    // The activations of a quarter of the batch are as large as that.
    let quarter = (BATCH / 4 * WIDTH * 4) as u64;
    let cut = planner(Some(quarter)).choose(u64::MAX).unwrap();
    assert!(cut.fits && cut.micro_batch == BATCH / 4, "{cut}");
    let none = Plan::none(planner(None).blocks());
    let whole = planner(Some(quarter)).evaluate(Precision::F32, &none, BATCH, u64::MAX).unwrap();
    assert!(!whole.fits && whole.peak_bytes == free.peak_bytes);
    // A weight takes more than this.
    let error = planner(Some((WIDTH * WIDTH) as u64)).choose(u64::MAX).unwrap_err();
    let weight = (WIDTH * WIDTH * 4) as u64;
    let expected = "expected a smaller model, as no micro-batch helps";
    assert!(matches!(error, Error::BufferTooLarge { bytes, micro_batch: None, .. } if bytes == weight), "{error}");
    assert!(error.to_string().ends_with(expected), "{error}");
}

#[test]
fn no_tensor_of_a_stage_is_above_the_largest_buffer_of_the_device() {
    let _turn = beside();
    let planner = |largest_buffer| {
        let profile = BackendProfile { largest_buffer, ..BackendProfile::wgpu() };
        builder(&[2, 2, 2, 2]).planner(&profile, &batch(0, 8), BATCH).unwrap()
    };
    let layout = DeviceLayout::new(2);
    let free = planner(None).stage_plan(&layout, u64::MAX).unwrap();
    assert_eq!(free.micro_batch, BATCH / 4);
    let largest = free.loads.iter().map(|load| load.estimate.largest_buffer_bytes).max();
    assert_eq!(largest, Some((free.micro_batch * WIDTH * 4) as u64), "activations of a micro-batch");
    // With a budget, a batch whose tensors are too large is cut. Without, the error names the cut.
    let half = largest.map(|bytes| bytes / 2);
    let cut = planner(half).stage_plan(&layout, u64::MAX - 1).unwrap();
    assert!(cut.fits && cut.micro_batch == free.micro_batch / 2, "{cut}");
    let error = planner(half).stage_plan(&layout, u64::MAX).unwrap_err();
    let named = free.micro_batch / 2;
    assert!(matches!(error, Error::BufferTooLarge { micro_batch: Some(size), .. } if size == named), "{error}");
    let error = planner(Some((WIDTH * WIDTH) as u64)).stage_plan(&layout, u64::MAX).unwrap_err();
    assert!(matches!(error, Error::BufferTooLarge { micro_batch: None, .. }), "{error}");
}

#[test]
fn a_budget_holds_on_each_device() {
    let _turn = beside();
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
    let _turn = beside();
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

/// Stacks with AdamW, which may keep its moments in 8 bits where nothing fits otherwise.
fn with_8_bits(sizes: &'static [usize]) -> TrainerBuilder<'static, Stacked> {
    let small = OptimizerConfig::adamw().in_8bit().unwrap();
    builder(sizes).with_allowed_optimizer(small.name(), move |model: &Stack| small.groups(model))
}

/// The least that a step takes with its own optimizer, and in 8 bits.
fn least(sizes: &'static [usize], layout: &DeviceLayout) -> [u64; 2] {
    let planner = with_8_bits(sizes).planner(&BackendProfile::flex(), &batch(0, 8), BATCH).unwrap();
    let of = |planner: &Planner| match planner.stage_plan(layout, 1).unwrap_err() {
        Error::NothingFits { least, .. } => least.0,
        error => panic!("{error}"),
    };
    [of(&self::planner(sizes)), of(planner.alternatives().next().unwrap())]
}

#[test]
fn stages_and_replicas_take_an_allowed_optimizer_only_where_nothing_fits_otherwise() {
    let _turn = beside();
    // So many layers that the state counts for more than the chunk in which it is updated.
    let sizes = &[12, 12, 12, 12];
    let planner = with_8_bits(sizes).planner(&BackendProfile::flex(), &batch(0, 8), BATCH).unwrap();
    let adamw8bit = PlannedOptimizer::Other { name: "adamw8bit".into(), on_host: false };
    let layouts = [
        DeviceLayout::new(2),
        DeviceLayout::new(1).with_replicas(2, false),
        DeviceLayout::new(1).with_replicas(2, true),
        DeviceLayout::new(2).with_replicas(2, true),
    ];
    for layout in layouts {
        let [own, small] = least(sizes, &layout);
        assert!(small < own, "{small} of {own}");
        for (limit, expected) in [(u64::MAX, &PlannedOptimizer::Own), (2 * own, &PlannedOptimizer::Own)] {
            assert_eq!(planner.stage_plan(&layout, limit).unwrap().optimizer, *expected);
        }
        let between = small + small * 3 / 100;
        let plan = planner.stage_plan(&layout, between).unwrap();
        assert_eq!((&plan.optimizer, &plan.step.optimizer), (&adamw8bit, &adamw8bit));
        assert!(plan.fits && plan.peak_bytes <= between && plan.to_string().contains("adamw8bit"), "{plan}");
        // Another optimizer is not used unless it is allowed.
        let error = self::planner(sizes).stage_plan(&layout, between).unwrap_err();
        assert!(matches!(error, Error::NothingFits { .. }), "{error}");
        let error = planner.stage_plan(&layout, small / 2).unwrap_err();
        assert!(matches!(error, Error::NothingFits { least: (bytes, _), .. } if bytes < own), "{error}");
    }
}

#[test]
fn a_run_in_stages_trains_with_the_optimizer_that_was_allowed() {
    let _turn = beside();
    let sizes = &[2, 2, 2, 2];
    let shared = DeviceLayout::new(2).on_one_device();
    let [own, small] = least(sizes, &shared);
    let trainer = with_8_bits(sizes)
        .with_stages(StagesConfig::on(&device(), 2))
        .with_memory(MemoryBudget::Bytes((small + own) / 2))
        .build(&device(), &batch(0, 8))
        .unwrap();
    assert_eq!(trainer.plan().unwrap().optimizer.name("adamw"), "adamw8bit");
    let folder = temporary();
    let path = trainer.save_to(&kiln_training::Checkpoints::new(folder.path(), 1).unwrap()).unwrap();
    let state = std::fs::read_to_string(path.join("state.json")).unwrap();
    assert!(state.contains("AdamW8bit"), "{state}");
}

/// The report of a batch that does not fit names the memory of the optimizer that the run was planned with.
#[test]
fn a_batch_that_does_not_fit_is_explained_with_the_optimizer_of_the_plan() {
    let _turn = beside();
    let sizes = &[2, 2];
    let least = |planner: &Planner| {
        let plans = planner.candidates(Precision::F32, 1).unwrap();
        plans.into_iter().map(|plan| plan.peak_bytes).min().unwrap()
    };
    let planner = with_8_bits(sizes).planner(&BackendProfile::flex(), &batch(0, 8), BATCH).unwrap();
    let [own, small] = [least(&planner), least(planner.alternatives().next().unwrap())];
    let planned = |limit: u64| {
        let mut trainer = Watched::build(with_8_bits(sizes).with_memory(MemoryBudget::Bytes(limit)), &batch(0, 8));
        let micro_batch = trainer.plan().unwrap().micro_batch;
        trainer.set_recovery(Some(recovery(BATCH, micro_batch, reclaim().with_attempts(2))));
        trainer.watch(|boundary| match boundary {
            Boundary::Forward => Err(Failure::new(Kind::OutOfMemory, "none left")),
            _ => Ok(()),
        });
        let error = trainer.step(&batch(0, BATCH)).unwrap_err();
        let Error::Exhausted { report, .. } = error else { panic!("{error}") };
        let peak = ByteSize(trainer.predict(BATCH).unwrap().peak_bytes);
        let last = report.help.last().unwrap();
        assert!(last.ends_with(&format!("predicted to take {peak}")), "{last}, and not {peak}");
        trainer.plan().unwrap().optimizer.clone()
    };
    assert_eq!(planned(8 * own), PlannedOptimizer::Own);
    let other = PlannedOptimizer::Other { name: "adamw8bit".into(), on_host: false };
    assert_eq!(planned((small + own) / 2), other);
}

#[test]
fn a_plan_takes_an_allowed_optimizer_or_state_on_the_host_only_as_it_is_promised() {
    let _turn = beside();
    let adamw = OptimizerConfig::adamw();
    let small = adamw.in_8bit().unwrap();
    let sizes = &[2, 2];
    let made = |profile: &BackendProfile, others: u8| {
        let mut builder = builder(sizes);
        if others & 1 > 0 {
            builder = builder.with_allowed_optimizer(small.name(), move |model: &Stack| small.groups(model));
        }
        if others & 2 > 0 {
            builder = builder.with_allowed_optimizer(PlannedOptimizer::OwnOnHost, move |model: &Stack| {
                adamw.offloaded_groups(model)
            });
        }
        if others & 4 > 0 {
            builder = builder.with_allowed_optimizer(PlannedOptimizer::on_host(small.name()), move |model: &Stack| {
                small.offloaded_groups(model)
            });
        }
        builder.planner(profile, &batch(0, 8), 64).unwrap()
    };
    let (cpu, mut gpu) = (BackendProfile::flex(), BackendProfile::cuda());
    (gpu.fixed_bytes, gpu.launch) = (0, 0.0);
    let other = |on_host| PlannedOptimizer::Other { name: "adamw8bit".into(), on_host };
    // The least bytes with one of the planner's optimizers, recomputed or not.
    let least = |planner: &Planner| {
        let plans = planner.candidates(Precision::F32, 1).unwrap();
        plans.into_iter().map(|plan| plan.peak_bytes).min().unwrap()
    };
    // The optimizer of each plan, and its least bytes.
    let ways = |planner: &Planner| -> Vec<(PlannedOptimizer, u64)> {
        let all = [planner].into_iter().chain(planner.alternatives());
        all.map(|planner| (planner.optimizer().clone(), least(planner))).collect()
    };

    // On the CPU device, state on the host is not at another place.
    let all = ways(&made(&cpu, 7));
    assert_eq!(
        all.iter().map(|(of, _)| of.clone()).collect::<Vec<_>>(),
        [PlannedOptimizer::Own, other(false), other(true)]
    );
    for profile in [&cpu, &gpu] {
        // Another optimizer is taken where nothing fits otherwise, and not before.
        let planner = made(profile, 1);
        let [own, small] = [ways(&planner)[0].1, ways(&planner)[1].1];
        assert!(small < own);
        for limit in [u64::MAX, 2 * own, own + own / 20] {
            assert_eq!(planner.choose(limit).unwrap().optimizer, PlannedOptimizer::Own);
        }
        assert_eq!(planner.choose((small + own) / 2).unwrap().optimizer, other(false));
        assert!(matches!(planner.choose(small / 2).unwrap_err(), Error::NothingFits { .. }));
        assert!(made(profile, 0).choose(own - 1).is_err(), "not without leave");
    }
    // On a GPU, state on the host has the same numbers: it is taken before another optimizer, if it is faster or nothing else fits.
    let planner = made(&gpu, 7);
    let all = ways(&planner);
    let [own, on_host] = [PlannedOptimizer::Own, PlannedOptimizer::OwnOnHost]
        .map(|which| all.iter().find(|(of, _)| *of == which).unwrap().1);
    assert!(on_host < own, "{all:?}");
    assert_eq!(planner.choose((on_host + own) / 2).unwrap().optimizer, PlannedOptimizer::OwnOnHost);
    let seconds = |planner: &Planner| {
        let none = Plan::none(planner.blocks());
        planner.evaluate(Precision::F32, &none, 64, u64::MAX).unwrap().seconds
    };
    let roomy = planner.choose(u64::MAX).unwrap();
    assert!(roomy.optimizer.has_same_numbers() && roomy.seconds <= 1.02 * seconds(&planner), "{roomy}");

    // The seconds have the copies of the state, there and back: of 8 bytes a parameter, or of about 2.
    let of = |which: &PlannedOptimizer| planner.alternatives().find(|planner| planner.optimizer() == which).unwrap();
    let copied = |bytes: usize| (2 * bytes * 5 * WIDTH * WIDTH) as f64 / 16e9;
    let of_own = seconds(of(&PlannedOptimizer::OwnOnHost)) - seconds(&planner);
    let of_8_bits = seconds(of(&other(true))) - seconds(of(&other(false)));
    let near = |seconds: f64, copied: f64| seconds >= copied && seconds < 1.5 * copied;
    assert!(near(of_own, copied(8)) && near(of_8_bits, copied(2)), "{of_own:e} {of_8_bits:e}");
}

#[test]
fn settings_that_cannot_be_are_errors() {
    let _turn = beside();
    let planner = planner(&[1, 1]);
    assert!(matches!(planner.stage_plan(&DeviceLayout::new(3), u64::MAX), Err(Error::Parallel(_))));
    let cuts = DeviceLayout::new(2).with_cuts([]);
    assert!(matches!(planner.stage_plan(&cuts, u64::MAX), Err(Error::InvalidSetting { name: "stages", .. })));
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
    let _turn = beside();
    let stages = StagesConfig::on(&device(), 2);
    let mut trainer = builder(&[1, 1, 1]).with_stages(stages).build(&device(), &batch(0, BATCH)).unwrap();
    let report = trainer.step(&batch(0, BATCH)).unwrap();
    assert_eq!(report.micro_batches, 4);
    assert_eq!(trainer.stage_plan().unwrap().micro_batch, BATCH / 4);
    assert!(!builder(&[1, 1]).build(&device(), &batch(0, BATCH)).unwrap().measure_stages().unwrap());
}

#[test]
fn replicas_of_a_process_share_its_budget() {
    let _turn = beside();
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
