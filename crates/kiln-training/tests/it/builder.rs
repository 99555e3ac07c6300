//! The builder plans a step into a memory budget: by checkpoints, micro-batches or both, and the numbers stay the same.

use burn::module::Module;
use burn::nn::{Dropout, DropoutConfig, Linear, LinearConfig};
use burn::tensor::activation::{gelu, tanh};
use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use bytesize::ByteSize;
use kiln_checkpointing::{Mode, Plan};
use kiln_memory::BackendProfile;
use kiln_precision::Precision;
use kiln_training::{
    Error, LossFn, MemoryBudget, OptimizerConfig, Pass, Planner, Recompute, StepReport, Task, Trainer, TrainerBuilder,
};

use crate::HEAP;
use crate::support::{CLASSES, Settings, Snapshot, beside, entropy, planned, settings, turn};

const SAMPLES: usize = 256;
const WIDTH: usize = 64;

type Batch = (TensorData, TensorData);

/// Blocks that follow each other, with dropout.
#[derive(Module, Debug)]
struct Block {
    linear: Linear,
    drop: Dropout,
}

impl Block {
    fn new(device: &Device) -> Self {
        Self { linear: LinearConfig::new(WIDTH, WIDTH).init(device), drop: DropoutConfig::new(0.1).init() }
    }

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        x.clone() + self.drop.forward(gelu(self.linear.forward(x)))
    }
}

/// Two chains with a layer between them.
#[derive(Module, Debug)]
struct Deep {
    first: Vec<Block>,
    between: Linear,
    second: Vec<Block>,
    last: Linear,
}

impl Deep {
    fn new(first: usize, second: usize, device: &Device) -> Self {
        let blocks = |count| (0..count).map(|_| Block::new(device)).collect();
        Self {
            first: blocks(first),
            between: LinearConfig::new(WIDTH, WIDTH).init(device),
            second: blocks(second),
            last: LinearConfig::new(WIDTH, CLASSES).init(device),
        }
    }
}

fn batch(samples: usize) -> Batch {
    let x = (0..samples * WIDTH).map(|i| ((i * 7 + i / WIDTH * 13) % 17) as f32 / 8.0 - 1.0).collect::<Vec<_>>();
    let y = (0..samples).map(|i| (i * i % CLASSES) as i64).collect::<Vec<_>>();
    (TensorData::new(x, [samples, WIDTH]), TensorData::new(y, [samples]))
}

/// Runs one chain.
fn one_chain(pass: &Pass<'_, Deep>, (x, y): &Batch) -> Tensor<1> {
    let (x, y): (Tensor<2>, Tensor<1, Int>) = (pass.input(x), pass.input(y));
    let x = pass.chain(&pass.model().first, x, Block::forward);
    entropy(pass.model().last.forward(x), y)
}

fn two_chains(pass: &Pass<'_, Deep>, (x, y): &Batch) -> Tensor<1> {
    let (x, y): (Tensor<2>, Tensor<1, Int>) = (pass.input(x), pass.input(y));
    let model = pass.model();
    let x = pass.chain(&model.first, x, Block::forward);
    let x = tanh(model.between.forward(x));
    let x = pass.chain(&model.second, x, Block::forward);
    entropy(model.last.forward(x), y)
}

/// One chain in the dtype of its weights.
fn in_dtype_of_weights(pass: &Pass<'_, Deep>, (x, y): &Batch) -> Tensor<1> {
    let (x, y): (Tensor<2>, Tensor<1, Int>) = (pass.input(x), pass.input(y));
    let model = pass.model();
    let x = pass.chain(&model.first, x.cast(model.last.weight.val().dtype()), Block::forward);
    entropy(model.last.forward(x).cast(DType::F32), y)
}

fn no_chain(pass: &Pass<'_, Deep>, (x, y): &Batch) -> Tensor<1> {
    let (x, y): (Tensor<2>, Tensor<1, Int>) = (pass.input(x), pass.input(y));
    let x = pass.model().first.iter().fold(x, |x, block| gelu(block.linear.forward(x)));
    entropy(pass.model().last.forward(x), y)
}

type Loss = fn(&Pass<'_, Deep>, &Batch) -> Tensor<1>;

fn deep(loss: Loss, first: usize, second: usize) -> TrainerBuilder<'static, LossFn<Loss, Deep, Batch>> {
    let settings = settings(OptimizerConfig::adamw());
    planned(LossFn::new(loss), move |device| Deep::new(first, second, device), &settings)
}

fn build<T: Task<Batch = Batch>>(builder: TrainerBuilder<'_, T>) -> Trainer<T> {
    builder.build(&Device::flex(), &batch(SAMPLES)).unwrap()
}

/// Five steps: the bits of losses and norms, and all that the run has become.
fn train<T: Task<Batch = Batch>>(trainer: &mut Trainer<T>) -> (Vec<StepReport>, Snapshot) {
    let reports = (0..5).map(|_| trainer.step(&batch(SAMPLES)).unwrap()).collect();
    (reports, Snapshot::of(trainer))
}

fn bits(reports: &[StepReport]) -> Vec<(u64, Option<u64>, usize)> {
    let bits =
        |report: &StepReport| (report.loss.to_bits(), report.gradient_norm.map(f64::to_bits), report.micro_batches);
    reports.iter().map(bits).collect()
}

fn peak<T: Task>(trainer: &Trainer<T>) -> u64 {
    trainer.plan().unwrap().peak_bytes
}

#[test]
fn a_budget_chooses_checkpoints_and_the_run_has_the_same_bits() {
    let _turn = turn();
    for whole_batches in [true, false] {
        let given = || {
            let builder = deep(one_chain, 8, 0);
            if whole_batches { builder.with_micro_batch(SAMPLES) } else { builder }
        };
        let mut free = build(given());
        assert_eq!((free.plan().unwrap().checkpoints.recomputed(), free.plan().unwrap().micro_batch), (0, SAMPLES));
        assert_eq!(free.limit_bytes(), None);
        let limit = peak(&free) * 7 / 10;
        let mut tight = build(given().with_memory(MemoryBudget::Bytes(limit)));
        let plan = tight.plan().unwrap().clone();
        assert!(plan.fits && plan.peak_bytes <= limit, "{plan}, {limit} bytes");
        assert!(plan.checkpoints.recomputed() > 0 || !whole_batches && plan.micro_batch < SAMPLES, "{plan}");
        assert_eq!(tight.limit_bytes(), Some(limit));
        // A run without a budget with these micro-batches, and without recomputation.
        if plan.micro_batch < SAMPLES {
            free = build(given().with_micro_batch(plan.micro_batch));
        }
        let ((expected, all), (got, trained)) = (train(&mut free), train(&mut tight));
        assert_eq!(bits(&got), bits(&expected), "{plan}");
        assert_eq!(got[0].micro_batches, SAMPLES.div_ceil(plan.micro_batch));
        trained.assert_same(&all, &plan.to_string());
        assert!(got[4].loss < got[0].loss, "it learns");
    }
}

#[test]
fn a_step_takes_no_more_heap_than_its_budget() {
    let _turn = turn();
    // Tensors of half a MiB, as predictions count tensors and not the nodes of the graph.
    let data = batch(8 * SAMPLES);
    let build = |builder: TrainerBuilder<'_, _>| builder.build(&Device::flex(), &data).unwrap();
    let free = peak(&build(deep(one_chain, 8, 0)));
    for percent in [80, 60, 45] {
        let limit = free * percent / 100;
        let builder = deep(one_chain, 8, 0).with_memory(MemoryBudget::Bytes(limit)).with_allocator(&HEAP);
        let mut trainer = build(builder);
        for _ in 0..3 {
            let report = trainer.step(&data).unwrap();
            let peak = report.peak_bytes.unwrap();
            let plan = trainer.plan().unwrap();
            assert!(report.failures == 0 && peak <= limit, "{percent} %: {peak} of {limit} bytes under {plan}");
        }
    }
}

#[test]
fn a_budget_that_nothing_fits_into_names_the_largest_part() {
    let _turn = beside();
    for (loss, layers) in [(one_chain as Loss, 2), (no_chain, 60)] {
        let limit = 20_000;
        let builder = deep(loss, layers, 0);
        let planner = builder.planner(&BackendProfile::flex(), &batch(SAMPLES), SAMPLES).unwrap();
        let plans = planner.candidates(Precision::F32, limit).unwrap();
        let least = plans.iter().min_by_key(|plan| plan.peak_bytes).unwrap();
        let breakdown = planner.predict(least).unwrap().breakdown.0;
        let (category, bytes) = breakdown.into_iter().max_by_key(|(_, bytes)| *bytes).unwrap();
        let built = builder.with_memory(MemoryBudget::Bytes(limit)).build(&Device::flex(), &batch(SAMPLES));
        let error = built.map(|_| ()).unwrap_err();
        let text = error.to_string();
        let Error::NothingFits { limit_bytes, least: found, largest, largest_bytes } = error else { panic!("{text}") };
        assert_eq!((limit_bytes, found), (limit, (least.peak_bytes, least.micro_batch)));
        assert_eq!((largest, largest_bytes), (category.to_string(), bytes));
        assert!(text.contains(&format!("its largest part is {category} with {}", ByteSize(bytes))), "{text}");
        assert!(text.contains(&ByteSize(limit).to_string()), "{text}");
    }
    // With one sample of a large model, AdamW's state is the largest part.
    let built = deep(no_chain, 60, 0).with_memory(MemoryBudget::Bytes(20_000)).build(&Device::flex(), &batch(SAMPLES));
    let text = built.map(|_| ()).unwrap_err().to_string();
    assert!(text.contains("largest part is optimizer state"), "{text}");
}

#[test]
fn two_chains_of_one_pass_are_planned_together_and_have_the_same_bits() {
    let _turn = turn();
    let (first, second) = (5, 4);
    let new = || deep(two_chains, first, second);
    let mut plain = build(new());
    let limit = peak(&plain) * 7 / 10;
    let (expected, all) = train(&mut plain);
    let blocks = first + 1 + second;
    let every = |length| new().with_recompute(Recompute::Every(length));
    let given = Plan::parse("0..3 recompute, 3..6 plain, 6..8 recompute, 8..10 plain", blocks).unwrap();
    let budget = || new().with_micro_batch(SAMPLES).with_memory(MemoryBudget::Bytes(limit));
    let offload = || new().with_recompute(Recompute::Offload);
    let plan = || new().with_recompute(Recompute::Plan(given.clone()));
    for (name, builder) in
        [("every:1", every(1)), ("every:4", every(4)), ("plan", plan()), ("offload", offload()), ("budget", budget())]
    {
        let mut trainer = build(builder);
        let plan = trainer.plan().unwrap().clone();
        assert_eq!(plan.checkpoints.blocks(), blocks, "{name}");
        assert!(plan.checkpoints.recomputed() > 0, "{name}");
        assert!(plan.peak_bytes < peak(&plain), "{name}: {plan}");
        // The layer between the chains is in no segment.
        let between = plan.checkpoints.segments().iter().find(|segment| segment.blocks.contains(&first)).unwrap();
        assert_eq!(between.mode, Mode::Plain, "{name}: {}", plan.checkpoints);
        let (got, trained) = train(&mut trainer);
        assert_eq!(bits(&got), bits(&expected), "{name}");
        trained.assert_same(&all, name);
    }
    // A plan for another number of blocks is refused.
    let short = new().with_recompute(Recompute::Plan(Plan::none(blocks - 1)));
    let built = short.build(&Device::flex(), &batch(SAMPLES));
    assert!(matches!(built.map(|_| ()), Err(Error::Checkpointing(_))));
}

#[test]
fn a_model_without_a_chain_gets_micro_batches() {
    let _turn = turn();
    // SGD: the first step of AdamW is the sign of the gradient, also where the gradient is a rounding error.
    let settings = settings(OptimizerConfig::sgd());
    let new = || planned(LossFn::new(no_chain as Loss), |device| Deep::new(6, 0, device), &settings);
    let mut whole = build(new());
    let limit = peak(&whole) / 2;
    let mut parts = build(new().with_memory(MemoryBudget::Bytes(limit)));
    let plan = parts.plan().unwrap().clone();
    assert_eq!((plan.checkpoints.recomputed(), plan.fits), (0, true));
    assert!(plan.micro_batch < SAMPLES && plan.peak_bytes <= limit, "{plan}");
    let ((expected, all), (got, trained)) = (train(&mut whole), train(&mut parts));
    assert_eq!(got[0].micro_batches, SAMPLES.div_ceil(plan.micro_batch));
    for (got, expected) in got.iter().zip(&expected) {
        assert!((got.loss / expected.loss - 1.0).abs() < 1e-5, "{} {}", got.loss, expected.loss);
    }
    let far = trained.distance(&all);
    assert!(far < 1e-5, "{far}");
}

/// The lowest peak that a plan for whole batches can have.
fn least(planner: &Planner, precision: Precision) -> u64 {
    planner.candidates(precision, 1).unwrap().iter().map(|plan| plan.peak_bytes).min().unwrap()
}

#[test]
fn segments_are_offloaded_when_recomputation_alone_is_not_enough() {
    let _turn = beside();
    let (blocks, samples) = (8, 8 * SAMPLES);
    let builder = deep(one_chain, blocks, 0).with_micro_batch(samples);
    let gpu = BackendProfile { fixed_bytes: 0, ..BackendProfile::cuda() };
    let planner = builder.planner(&gpu, &batch(samples), samples).unwrap();
    let every = (1..=blocks).map(|length| Plan::every(blocks, length).unwrap());
    let recomputed = every.map(|plan| planner.evaluate(Precision::F32, &plan, samples, 1).unwrap().peak_bytes);
    let (recomputed, offloaded) = (recomputed.min().unwrap(), least(&planner, Precision::F32));
    assert!(offloaded < recomputed, "{offloaded} {recomputed}");
    let offloads = |limit| {
        let plan = planner.choose(limit).unwrap();
        assert!(plan.fits, "{plan}");
        plan.checkpoints.segments().iter().any(|segment| segment.mode == Mode::Offload)
    };
    assert!(!offloads(2 * recomputed));
    assert!(offloads(offloaded + offloaded / 40));
}

#[test]
fn another_precision_is_taken_only_where_it_is_allowed_and_needed() {
    let _turn = beside();
    let samples = 8 * SAMPLES;
    let data = batch(samples);
    let strict = || deep(in_dtype_of_weights, 8, 0).with_micro_batch(samples);
    let lenient = || strict().with_allowed_precision(Precision::BF16);
    let planner = lenient().planner(&BackendProfile::flex(), &data, samples).unwrap();
    assert_eq!(planner.precisions().collect::<Vec<_>>(), [Precision::F32, Precision::BF16]);
    let (single, half) = (least(&planner, Precision::F32), least(&planner, Precision::BF16));
    assert!(half < single, "{half} {single}");
    let limit = half + half / 40;
    let built = |builder: TrainerBuilder<'static, _>, limit| {
        builder.with_memory(MemoryBudget::Bytes(limit)).build(&Device::flex(), &data)
    };
    assert!(matches!(built(strict(), limit).map(|_| ()), Err(Error::NothingFits { .. })));
    assert_eq!(built(lenient(), 2 * single).unwrap().plan().unwrap().precision, Precision::F32);
    let mut trainer = built(lenient(), limit).unwrap();
    assert_eq!(trainer.plan().unwrap().precision, Precision::BF16);
    let losses: Vec<f64> = (0..5).map(|_| trainer.step(&data).unwrap().loss).collect();
    assert!(losses[4] < losses[0], "{losses:?}");
}

#[test]
fn batches_that_cannot_be_planned_are_refused() {
    let _turn = beside();
    let device = Device::flex();
    let message = |builder: TrainerBuilder<'_, _>, samples| {
        let built: Result<Trainer<LossFn<Loss, Deep, Batch>>, _> = builder.build(&device, &batch(samples));
        built.map(|_| ()).unwrap_err().to_string()
    };
    let new = || deep(one_chain, 2, 0);
    let roomy = || new().with_memory(MemoryBudget::Bytes(1 << 30));
    for builder in [new(), roomy(), new().with_prediction(false)] {
        assert_eq!(message(builder, 0), "batch size is 0, expected at least 1");
    }
    assert_eq!(message(new().with_batch_size(0), 4), "batch size is 0, expected at least 1");
    for builder in [new(), roomy(), new().with_prediction(false)] {
        assert_eq!(message(builder.with_micro_batch(0), 4), "micro-batch is 0, expected at least 1");
    }
    assert_eq!(
        message(new().with_memory(MemoryBudget::Bytes(0)), 4),
        "memory budget is 0 bytes, expected at least 1 byte"
    );

    // One sample does not show how a step grows.
    let budget = roomy().build(&device, &batch(1)).map(|_| ());
    assert!(matches!(budget, Err(Error::Sample { samples: 1 })), "{budget:?}");
    let checkpointing = new().with_recompute(Recompute::Every(1)).build(&device, &batch(1)).map(|_| ());
    assert!(matches!(checkpointing, Err(Error::Sample { samples: 1 })), "{checkpointing:?}");
    let unpredicted = roomy().with_prediction(false).build(&device, &batch(4)).map(|_| ());
    assert!(matches!(unpredicted, Err(Error::NoPrediction)), "{unpredicted:?}");
    let pair = roomy().build(&device, &batch(2)).map(|_| ());
    assert!(matches!(pair, Err(Error::Sample { samples: 2 })), "{pair:?}");
    // Without a budget a run of single samples needs no plan.
    let mut single = new().build(&device, &batch(1)).unwrap();
    assert!(single.plan().is_none());
    let _ = single.step(&batch(1)).unwrap();
    // The sample may be smaller than the batches.
    let planned = roomy().with_batch_size(SAMPLES).build(&device, &batch(3)).unwrap();
    assert_eq!(planned.plan().unwrap().peak_bytes, peak(&build(roomy())));
}

#[test]
fn the_settings_of_a_plan_can_be_kept_beyond_its_budget() {
    let _turn = beside();
    let settings = Settings { micro_batch: Some(64), ..settings(OptimizerConfig::adamw()) };
    let new = || planned(LossFn::new(one_chain as Loss), |device| Deep::new(4, 0, device), &settings);
    let kept = build(new().with_memory(MemoryBudget::Bytes(1000)).with(|settings| settings.memory.fixed_plan = true));
    assert_eq!(kept.plan().unwrap(), build(new()).plan().unwrap());
    assert_eq!(kept.limit_bytes(), Some(1000));
}
