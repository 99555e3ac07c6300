//! Models that become smaller during training: attachments to their parameters, and edits between steps, are part of a run.
#![allow(
    clippy::ptr_arg,
    clippy::print_stdout,
    reason = "a loss gets the batch of its task; what was measured is printed"
)]

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::ModuleOptimizer;
use burn::tensor::{Device, Int, Tensor, TensorData};
use burn_pack::Reader;
use kiln_checkpointing::Plan;
use kiln_compression::{
    Error as CompressionError, FakeQuantizer, Gradual, LowRank, Masks, Nest, Pruning, Quantization, input_ranges,
    mask_moments, masks_of, prune, quantize, sparsity, unsimulated,
};
use kiln_memory::{BackendProfile, Category};
use kiln_models::{Gpt, GptBlock, GptConfig, ResNet, ResNetBlock, ResNetConfig, Stem};
use kiln_precision::{Policy, Precision, uncast};
use kiln_recovery::{Injector, Ladder};
use kiln_training::{
    Checkpoints, Error, LossFn, OptimizerConfig, Pass, Recompute, StepReport, Task, Trainer, TrainerBuilder,
};

use crate::HEAP;
use crate::support::{
    self, CLASSES, Settings, Snapshot, Watched, batch, builder, classes, device, entropy, inject, inputs, numbers,
    planned, reclaim, recovery, turn,
};

type Attached = Nest<Nest<Masks, LowRank>, FakeQuantizer>;
type Loss<M> = fn(&Pass<'_, M>, &Vec<usize>) -> Tensor<1>;

/// How a model is made smaller.
#[derive(Clone, Debug, Default)]
struct Smaller {
    prune: Option<Gradual>,
    targets: Vec<&'static str>,
    dora: bool,
    bits: Option<u8>,
    /// How far a batch moves the range of an input.
    momentum: Option<f64>,
}

/// Prunes before the steps 2, 3 and 5.
const GRADUAL: Gradual = Gradual { from_step: 1, to_step: 4, every: 1, initial: 0.2, final_sparsity: 0.6 };

fn qat() -> Smaller {
    Smaller { bits: Some(4), momentum: Some(0.1), ..Smaller::default() }
}

fn pruning() -> Smaller {
    Smaller { prune: Some(GRADUAL), ..Smaller::default() }
}

fn lora() -> Smaller {
    Smaller { targets: vec!["c_attn", "c_proj", "c_fc"], ..Smaller::default() }
}

fn nested(targets: &[&'static str]) -> Smaller {
    Smaller { targets: targets.to_vec(), ..qat() }.pruned()
}

impl Smaller {
    fn pruned(self) -> Self {
        Self { prune: Some(GRADUAL), ..self }
    }

    fn quantization(&self) -> Quantization {
        Quantization::bits(self.bits.unwrap_or(8))
    }

    fn attached(&self, model: &impl Module) -> Result<Attached, CompressionError> {
        let masks = self.prune.map(|_| Masks::of(model));
        let adapters = (!self.targets.is_empty()).then(|| -> Result<_, CompressionError> {
            let adapters = LowRank::new(2, 4.0, self.targets.iter().copied())?.with_dora(self.dora);
            adapters.check(model)?;
            Ok(adapters)
        });
        let fake = self.bits.map(|_| {
            let fake = FakeQuantizer::of(model, &self.quantization())?;
            self.momentum.map_or(Ok(fake.clone()), |momentum| fake.with_inputs(momentum))
        });
        if self.momentum.is_some() {
            assert!(kiln_models::on_layer_input(kiln_compression::input_map));
        }
        Ok(Nest::optional(Some(Nest::optional(masks, adapters.transpose()?)), fake.transpose()?))
    }

    /// Adds the attachments and the edits to `builder`.
    fn on<'a, T: Task>(&self, builder: TrainerBuilder<'a, T>) -> TrainerBuilder<'a, T> {
        let (own, gradual) = (self.clone(), self.prune);
        let builder = builder.with_reparameterization(move |model: &T::Model| own.attached(model));
        match gradual {
            Some(gradual) => {
                builder.with_model_edit(move |step, model, optimizer| edited(&gradual, step, model, optimizer))
            }
            None => builder,
        }
    }
}

type Edited<M> = Result<Option<(M, ModuleOptimizer)>, CompressionError>;

fn edited<M: Module>(gradual: &Gradual, step: u64, model: &M, optimizer: &ModuleOptimizer) -> Edited<M> {
    let step = step as usize;
    if !gradual.is_update(step) {
        return Ok(None);
    }
    let model = prune(model.clone(), &Pruning::magnitude(gradual.sparsity_at(step)))?;
    let optimizer = mask_moments(optimizer.clone(), &model)?;
    Ok(Some((model, optimizer)))
}

fn resnet_config(lean: bool) -> ResNetConfig {
    ResNetConfig::resnet18(CLASSES).with_width(4).with_stem(Stem::Cifar).with_lean(lean)
}

fn resnet(lean: bool) -> ResNet {
    ready(resnet_config(lean).init(&device()).unwrap())
}

/// Draws all parameters of `net`. Those of adapters are drawn after them.
fn ready<M: Module>(net: M) -> M {
    let _ = net.valid();
    net
}

/// Images of different brightness: every micro-batch has a range of its own.
fn images(ids: &[usize], size: usize, device: &Device) -> Tensor<4> {
    let light: Vec<f32> = ids.iter().map(|id| 1.0 + (id % 5) as f32 / 4.0).collect();
    let light = Tensor::<4>::from_data(TensorData::new(light, [ids.len(), 1, 1, 1]), device);
    inputs(ids, [ids.len(), 3, size, size], device) * light
}

fn resnet_loss(pass: &Pass<'_, ResNet>, ids: &Vec<usize>) -> Tensor<1> {
    let x = pass.chain(&pass.model().blocks(), images(ids, 8, pass.device()), ResNetBlock::forward);
    entropy(pass.model().head(x), classes(ids, pass.device()))
}

const VOCAB: usize = 20;
const TOKENS: usize = 8;

fn gpt_config(lean: bool, dropout: f64) -> GptConfig {
    GptConfig::tiny(VOCAB, TOKENS).with_layers(2).with_width(32).with_dropout(dropout).with_lean(lean)
}

fn gpt(lean: bool, dropout: f64) -> Gpt {
    ready(gpt_config(lean, dropout).init(&device()).unwrap())
}

fn gpt_loss(pass: &Pass<'_, Gpt>, ids: &Vec<usize>) -> Tensor<1> {
    let token = |id: usize, i: usize| ((id * 3 + i * (id % 5 + 1)) % VOCAB) as i64;
    let text: Vec<i64> = ids.iter().flat_map(|id| (0..=TOKENS).map(move |i| token(*id, i))).collect();
    let text = Tensor::<2, Int>::from_data(TensorData::new(text, [ids.len(), TOKENS + 1]), pass.device());
    let model = pass.model();
    let x = model.embed(text.clone().slice([0..ids.len(), 0..TOKENS]));
    let x = pass.chain(&model.blocks(), x, GptBlock::forward);
    model.loss(x, text.slice([0..ids.len(), 1..TOKENS + 1]))
}

fn settings(optimizer: OptimizerConfig, precision: Precision) -> Settings {
    Settings { policy: Policy::new(precision).keep_norms(), schedule: 0.01.into(), ..support::settings(optimizer) }
}

fn optimizers() -> [(&'static str, OptimizerConfig); 2] {
    [("AdamW", OptimizerConfig::adamw()), ("SGD", OptimizerConfig::sgd())]
}

/// A trainer of the numbers of `net`, in tensors of its own.
fn trainer<M: Module + 'static>(
    net: &M,
    loss: Loss<M>,
    smaller: &Smaller,
    settings: &Settings,
) -> Watched<impl Task<Model = M, Batch = Vec<usize>> + use<M>> {
    let plain = |_: &Device| net.valid().train();
    Watched::build(smaller.on(builder(LossFn::new(loss), plain, settings)), &batch(0, 4))
}

/// The stored values by path, those of what is attached included.
fn stored(model: &impl Module) -> BTreeMap<String, Vec<u32>> {
    support::stored(&model.valid()).into_iter().map(|(path, stored)| (path, stored.bits)).collect()
}

/// The paths of the parameters that an optimizer has state of.
fn with_state(trainer: &Trainer<impl Task>) -> BTreeSet<String> {
    #[derive(Default)]
    struct Paths(Vec<String>, BTreeMap<String, String>);
    impl ModuleVisitor for Paths {
        fn enter_module(&mut self, name: &str, _: &str) {
            self.0.push(name.to_owned());
        }
        fn exit_module(&mut self, _: &str, _: &str) {
            self.0.pop();
        }
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.1.insert(param.id.val().to_string(), self.0.join("."));
        }
    }
    let mut paths = Paths::default();
    trainer.model().visit(&mut paths);
    let folder = tempfile::tempdir().unwrap();
    let saved = trainer.save_to(&Checkpoints::new(folder.path(), 1).unwrap()).unwrap();
    let tensors = Reader::from_file(saved.join("optimizer.bpk")).unwrap().into_tensors().unwrap();
    let id = |tensor: burn_pack::Tensor| tensor.into_parts().unwrap().3.unwrap().to_string();
    tensors.into_iter().map(|tensor| paths.1[&id(tensor)].clone()).collect()
}

fn is_adapter(path: &str) -> bool {
    [".low_rank.a", ".low_rank.b", ".low_rank.magnitude"].iter().any(|end| path.ends_with(end))
}

/// Trains for some steps on one batch, and checks what is attached.
fn learns<M: Module + 'static>(context: &str, net: &M, loss: Loss<M>, smaller: &Smaller, settings: &Settings) {
    let mut trainer = trainer(net, loss, smaller, settings);
    let before = stored(trainer.model());
    let batch = batch(0, 4);
    let reports: Vec<StepReport> = (0..8).map(|_| trainer.step(&batch).unwrap()).collect();
    let (first, last) = (reports[0].loss, reports[7].loss);
    assert!(last < 0.99 * first, "{context}: {first} to {last}");
    let after = stored(trainer.model());
    assert_eq!(before.keys().collect::<Vec<_>>(), after.keys().collect::<Vec<_>>());

    let state = with_state(&trainer);
    if smaller.targets.is_empty() {
        assert!(!state.iter().any(|path| path.contains("running_")), "{context}: {state:?}");
    } else {
        let adapters: BTreeSet<String> = before.keys().filter(|path| is_adapter(path)).cloned().collect();
        assert!(!adapters.is_empty());
        assert_eq!(state, adapters, "{context}");
        for (path, bits) in &before {
            let moves = adapters.contains(path) || path.contains(".running_");
            assert_eq!(*bits != after[path], moves, "{context}: {path}");
        }
    }
    if let Some(gradual) = smaller.prune {
        let got = sparsity(trainer.model()).total();
        assert!((got - gradual.final_sparsity).abs() < 0.01, "{context}: {got}");
    }
    if smaller.momentum.is_some() {
        assert!(!input_ranges(trainer.model()).is_empty(), "{context}: no range was set");
    }
    if smaller.bits.is_some() {
        let trained = trainer.model().valid();
        let simulated = stored(&uncast(|| trained.clone().materialize()));
        let merged = uncast(|| unsimulated(|| trained.materialize()));
        let integers = quantize(&merged, &smaller.quantization()).unwrap();
        assert!(!integers.weights().is_empty());
        for (path, weight) in integers.weights() {
            let values: Vec<u32> = weight.dequantize().into_iter().map(f32::to_bits).collect();
            // Zero has two signs.
            let same = |(got, expected): (&u32, &u32)| f32::from_bits(*got) == f32::from_bits(*expected);
            assert!(values.iter().zip(&simulated[path]).all(same), "{context}: {path}");
            let distinct: BTreeSet<u32> = stored(&merged)[path].iter().copied().collect();
            assert!(distinct.len() > 15, "{context}: {path} is not unsimulated");
        }
    }
}

#[test]
fn what_is_attached_to_a_conv_net_trains() {
    let _turn = turn();
    for precision in [Precision::F32, Precision::BF16] {
        for (name, optimizer) in optimizers() {
            let settings = settings(optimizer, precision);
            for lean in [false, true] {
                let net = resnet(lean);
                let qat = Smaller { momentum: (!lean).then_some(0.1), ..qat() };
                for smaller in [qat.clone(), pruning(), qat.pruned()] {
                    let context = format!("ResNet, {name} in {precision}, lean {lean}, {smaller:?}");
                    learns(&context, &net, resnet_loss, &smaller, &settings);
                }
            }
        }
    }
}

#[test]
fn what_is_attached_to_a_decoder_trains_and_beside_adapters_nothing_else() {
    let _turn = turn();
    for precision in [Precision::F32, Precision::BF16] {
        for (name, optimizer) in optimizers() {
            // Adapters start at no change at all, so that they take larger steps.
            let rate = if name == "SGD" { 0.5 } else { 0.05 };
            let settings = Settings { schedule: rate.into(), ..settings(optimizer, precision) };
            for lean in [false, true] {
                let net = gpt(lean, 0.0);
                let all = nested(&["c_attn", "c_proj", "c_fc"]);
                let all = Smaller { momentum: (!lean).then_some(0.1), ..all };
                for smaller in [lora(), Smaller { dora: true, ..lora() }, all] {
                    let context = format!("GPT, {name} in {precision}, lean {lean}, {smaller:?}");
                    learns(&context, &net, gpt_loss, &smaller, &settings);
                }
            }
        }
    }
}

const STEPS: u64 = 6;

/// The bits of a run of some steps under a checkpoint plan.
fn under_plan<M: Module + 'static>(
    init: &dyn Fn(&Device) -> M,
    loss: Loss<M>,
    smaller: &Smaller,
    precision: Precision,
    plan: &Plan,
) -> (Vec<String>, Snapshot) {
    let settings = Settings { micro_batch: Some(3), ..settings(OptimizerConfig::sgd(), precision) };
    let builder = smaller.on(planned(LossFn::new(loss), init, &settings));
    let builder = builder.with_recompute(Recompute::Plan(plan.clone()));
    let mut trainer = builder.build(&device(), &batch(0, 5)).unwrap();
    assert_eq!(&trainer.plan().unwrap().checkpoints, plan);
    let reports = (0..STEPS).map(|at| numbers(&trainer.step(&batch(at, 5)).unwrap())).collect();
    (reports, Snapshot::of(&trainer))
}

fn same_under_plans<M: Module + 'static>(
    name: &str,
    init: &dyn Fn(&Device) -> M,
    loss: Loss<M>,
    smaller: &Smaller,
    blocks: usize,
) {
    for precision in [Precision::F32, Precision::BF16] {
        let (reports, expected) = under_plan(init, loss, smaller, precision, &Plan::none(blocks));
        for plan in [Plan::every(blocks, 1).unwrap(), Plan::offload(blocks, 2).unwrap()] {
            let context = format!("{name} in {precision} under {plan}, {smaller:?}");
            let (got, trained) = under_plan(init, loss, smaller, precision, &plan);
            assert_eq!(got, reports, "{context}");
            trained.assert_same(&expected, &context);
        }
    }
}

#[test]
fn recomputed_blocks_have_the_bits_of_plain_ones_input_ranges_included() {
    let _turn = turn();
    let blocks = resnet(false).blocks().len();
    let init = |device: &Device| resnet_config(false).init(device).unwrap();
    same_under_plans("ResNet", &init, resnet_loss, &qat().pruned(), blocks);
    let blocks = gpt(false, 0.2).blocks().len();
    for smaller in [Smaller { dora: true, ..lora() }, nested(&["c_attn", "c_proj", "c_fc"])] {
        let init = |device: &Device| gpt_config(false, 0.2).init(device).unwrap();
        same_under_plans("GPT", &init, gpt_loss, &smaller, blocks);
    }
}

/// A run that is resumed from its checkpoint after every step.
fn interrupted<M: Module + 'static>(name: &str, net: &M, loss: Loss<M>, smaller: &Smaller, settings: &Settings) {
    let mut whole = trainer(net, loss, smaller, settings);
    let folder = tempfile::tempdir().unwrap();
    let checkpoints = Checkpoints::new(folder.path(), 1).unwrap();
    for at in 0..STEPS {
        let expected = whole.step(&batch(at, 4)).unwrap();
        let mut part = trainer(net, loss, smaller, settings);
        part.set_checkpoints(checkpoints.clone());
        assert_eq!(part.resume().unwrap().is_some(), at > 0);
        let got = part.step(&batch(at, 4)).unwrap();
        let context = format!("{name}, step {at}, {smaller:?}");
        assert_eq!(numbers(&got), numbers(&expected), "{context}");
        assert_eq!(masks_of(part.model()), masks_of(whole.model()), "{context}");
        Snapshot::of(&part).assert_same(&Snapshot::of(&whole), &context);
        part.save().unwrap();
    }
    if smaller.prune.is_some() {
        let learned = trainer(net, loss, smaller, settings);
        assert_ne!(masks_of(whole.model()), masks_of(learned.model()));
    }
}

#[test]
fn a_run_that_is_interrupted_after_every_step_has_the_bits_of_the_whole_run() {
    let _turn = turn();
    for ((name, optimizer), precision) in optimizers().into_iter().zip([Precision::F32, Precision::BF16]) {
        let settings = Settings { micro_batch: Some(3), ..settings(optimizer, precision) };
        interrupted(name, &resnet(false), resnet_loss, &qat().pruned(), &settings);
        for smaller in [Smaller { dora: true, ..lora() }, nested(&["c_attn", "c_proj", "c_fc"])] {
            interrupted(name, &gpt(false, 0.2), gpt_loss, &smaller, &settings);
        }
    }
}

/// Fails at every boundary of a run with edits, and tries again as it was.
fn disturbed<M: Module + 'static>(name: &str, net: &M, loss: Loss<M>, smaller: &Smaller, settings: &Settings) {
    const STEPS: u64 = 3;
    let gradual = Gradual { to_step: 2, ..GRADUAL };
    let run = |faults: Injector| {
        let plain = |_: &Device| net.valid().train();
        let asked = Rc::new(RefCell::new(vec![]));
        let noted = asked.clone();
        let builder = smaller.on(builder(LossFn::new(loss), plain, settings));
        let has_masks = smaller.prune.is_some();
        let builder = builder.with_model_edit(move |step, model: &M, optimizer| {
            noted.borrow_mut().push(step);
            if has_masks { edited(&gradual, step, model, optimizer) } else { Ok(None) }
        });
        let mut trainer = Watched::build(builder, &batch(0, 4));
        trainer.set_recovery(Some(recovery(4, 2, reclaim())));
        let faults = inject(&mut trainer, faults);
        let reports: Vec<StepReport> = (0..STEPS).map(|at| trainer.step(&batch(at, 4)).unwrap()).collect();
        (Snapshot::of(&trainer), reports, faults, asked.take())
    };
    let (expected, reports, seen, _) = run(Injector::calls([]));
    assert!(seen.seen() >= STEPS * 10, "{name}");
    for call in 1..=seen.seen() {
        let context = format!("{name} with a failure at call {call}, {smaller:?}");
        let (got, redone, faults, asked) = run(Injector::calls([call]));
        assert_eq!(faults.injected(), 1, "{context}");
        assert_eq!(asked, (0..STEPS).collect::<Vec<_>>(), "{context}: one edit a step");
        got.assert_same(&expected, &context);
        assert!(redone.iter().map(numbers).eq(reports.iter().map(numbers)), "{context}");
    }
}

#[test]
fn a_failure_at_any_boundary_changes_neither_masks_nor_ranges_nor_adapters() {
    let _turn = turn();
    for (name, optimizer) in optimizers() {
        let settings = settings(optimizer, Precision::F32);
        if name == "AdamW" {
            disturbed(name, &resnet(false), resnet_loss, &qat().pruned(), &settings);
            continue;
        }
        let settings = self::settings(optimizer, Precision::BF16);
        disturbed(name, &gpt(false, 0.2), gpt_loss, &nested(&["c_attn", "c_proj", "c_fc"]), &settings);
    }
}

#[test]
fn an_edit_waits_for_memory_and_is_not_made_again_after_an_error_or_from_a_checkpoint() {
    let _turn = turn();
    let net = resnet(false);
    let settings = settings(OptimizerConfig::sgd(), Precision::F32);
    let (asked, fails) = (Rc::new(RefCell::new(vec![])), Rc::new(Cell::new(0)));
    let new = || {
        let (asked, fails) = (asked.clone(), fails.clone());
        let plain = |_: &Device| net.valid().train();
        let builder = pruning().on(builder(LossFn::new(resnet_loss as Loss<ResNet>), plain, &settings));
        let builder = builder.with_model_edit(move |step, model: &ResNet, optimizer| {
            asked.borrow_mut().push(step);
            if fails.get() > 0 {
                fails.set(fails.get() - 1);
                panic!("Can't allocate 8388608 bytes: every page size the memory tracks still holds live allocations");
            }
            // Not the same when it is made twice.
            let sparsity = sparsity(model).total() + 0.1;
            let model = prune(model.clone(), &Pruning::magnitude(sparsity))?;
            let optimizer = mask_moments(optimizer.clone(), &model)?;
            Ok::<_, CompressionError>(Some((model, optimizer)))
        });
        Watched::build(builder, &batch(0, 4))
    };
    let mut trainer = new();
    fails.set(1);
    let before = Snapshot::of(&trainer);
    assert!(matches!(trainer.step(&batch(0, 4)), Err(Error::Memory(_))));
    Snapshot::of(&trainer).assert_same(&before, "an edit without memory");
    let paused = recovery(4, 4, Ladder::standard()).with_patience(Default::default());
    trainer.set_recovery(Some(paused.with_pause(|_| std::ops::ControlFlow::Continue(()))));
    fails.set(2);
    let _ = trainer.step(&batch(0, 4)).unwrap();
    assert_eq!(asked.take(), [0, 0, 0, 0]);
    trainer.set_recovery(None);

    // The second step is edited and does not end.
    inject(&mut trainer, Injector::calls([1]));
    assert!(matches!(trainer.step(&batch(1, 4)), Err(Error::Memory(_))));
    let folder = tempfile::tempdir().unwrap();
    let checkpoints = Checkpoints::new(folder.path(), 1).unwrap();
    trainer.save_to(&checkpoints).unwrap();
    let mut resumed = new();
    resumed.set_checkpoints(checkpoints);
    resumed.resume().unwrap();
    assert_eq!(asked.take(), [1]);
    for trainer in [&mut trainer, &mut resumed] {
        let _ = trainer.step(&batch(1, 4)).unwrap();
        assert_eq!(asked.take(), Vec::<u64>::new(), "the edit of this step is made");
        let _ = trainer.step(&batch(2, 4)).unwrap();
        assert_eq!(asked.take(), [2]);
        assert!((sparsity(trainer.model()).total() - 0.3).abs() < 0.001);
    }
    Snapshot::of(&resumed).assert_same(&Snapshot::of(&trainer), "resumed after the edit");
}

/// Every micro-batch starts from the ranges before the step and moves them as it would alone: to its own range the first time, by the
/// momentum towards it later. The step moves them to the mean of the results, weighted as the loss is.
#[test]
fn input_ranges_move_once_a_step_by_the_mean_of_the_micro_batches() {
    let _turn = turn();
    let (net, momentum) = (resnet(false), 0.1);
    let first_layer = |model: &ResNet| -> [f32; 2] {
        let ranges = input_ranges(model);
        let found: Vec<_> = ranges.iter().filter(|(path, _)| path.as_str() == "conv1.weight").collect();
        assert_eq!(found.len(), 1, "{:?}", ranges.keys());
        [found[0].1.low, found[0].1.high]
    };
    let own = |ids: &[usize]| -> [f32; 2] {
        let values: Vec<f32> = images(ids, 8, &Device::flex()).into_data().iter().collect();
        [values.iter().copied().fold(f32::MAX, f32::min), values.iter().copied().fold(f32::MIN, f32::max)]
    };
    for micro_batch in [6, 4, 1] {
        let settings = Settings { micro_batch: Some(micro_batch), ..settings(OptimizerConfig::sgd(), Precision::F32) };
        let plain = |_: &Device| net.valid().train();
        let smaller = Smaller { momentum: Some(momentum), ..qat() };
        let builder = smaller.on(builder(LossFn::new(resnet_loss as Loss<ResNet>), plain, &settings));
        let mut trainer = builder.build(&device(), &batch(0, 6)).unwrap();
        let mut expected: Option<[f32; 2]> = None;
        let mut differ = BTreeSet::new();
        for at in 0..4 {
            let ids = batch(at, 6);
            let parts: Vec<_> = ids.chunks(micro_batch).map(|part| (part.len() as f32 / 6.0, own(part))).collect();
            differ.extend(parts.iter().map(|(_, [_, high])| high.to_bits()));
            expected = Some([0, 1].map(|end| {
                let moved = |range: [f32; 2]| match expected {
                    None => range[end],
                    Some(before) => before[end] + momentum as f32 * (range[end] - before[end]),
                };
                parts.iter().map(|(weight, range)| weight * moved(*range)).sum()
            }));
            let _ = trainer.step(&ids).unwrap();
            let (got, expected) = (first_layer(trainer.model()), expected.unwrap());
            for end in [0, 1] {
                let far = (got[end] - expected[end]).abs() / expected[end].abs();
                assert!(far < 1e-5, "micro-batches of {micro_batch}, step {at}: {got:?}, expected {expected:?}");
            }
        }
        assert!(micro_batch == 6 || differ.len() > 1, "the micro-batches have different ranges");
    }
}

/// The prediction of a step beside what the heap says, in MiB.
fn measured<M: Module + 'static>(
    init: impl Fn(&Device) -> M,
    loss: Loss<M>,
    smaller: &Smaller,
    precision: Precision,
    samples: usize,
) -> [f64; 2] {
    let settings = settings(OptimizerConfig::adamw(), precision);
    let builder = smaller.on(planned(LossFn::new(loss), init, &settings)).with_allocator(&HEAP);
    let mut trainer = builder.build(&device(), &batch(0, samples)).unwrap();
    let peaks: Vec<u64> = (0..4).map(|at| trainer.step(&batch(at, samples)).unwrap().peak_bytes.unwrap()).collect();
    // The first step makes the optimizer's state, and edits are made between steps.
    let peak = peaks.into_iter().skip(1).max().unwrap();
    [trainer.plan().unwrap().peak_bytes, peak].map(|bytes| bytes as f64 / (1 << 20) as f64)
}

fn larger_resnet_loss(pass: &Pass<'_, ResNet>, ids: &Vec<usize>) -> Tensor<1> {
    let x = pass.chain(&pass.model().blocks(), images(ids, 16, pass.device()), ResNetBlock::forward);
    entropy(pass.model().head(x), classes(ids, pass.device()))
}

#[test]
fn predicted_peaks_are_near_what_is_measured() {
    let _turn = turn();
    let mut wrong = vec![];
    let mut check = |name: &str, plain: [f64; 2], [predicted, measured]: [f64; 2]| {
        let off = predicted - measured;
        let line = format!("{name}: predicted {predicted:.2} MiB, measured {measured:.2} ({off:+.2} MiB)");
        println!("{line}");
        // As much as kiln-memory is off at the most, beside what it is for the plain model: 3 %, and scratch memory of threads.
        if (off - (plain[0] - plain[1])).abs() > 0.03 * measured + 1.2 {
            wrong.push(line);
        }
    };
    for (lean, precision) in [(false, Precision::F32), (true, Precision::F32), (true, Precision::BF16)] {
        let config = ResNetConfig::resnet18(CLASSES).with_width(16).with_stem(Stem::Cifar).with_lean(lean);
        let init = |device: &Device| config.init(device).unwrap();
        let peaks = |smaller: &Smaller| measured(init, larger_resnet_loss, smaller, precision, 24);
        let plain = peaks(&Smaller::default());
        let qat = Smaller { momentum: (!lean).then_some(0.1), ..qat() };
        for (what, smaller) in [("nothing", Smaller::default()), ("QAT", qat), ("pruning", pruning())] {
            check(&format!("ResNet with {what}, lean {lean} in {precision}"), plain, peaks(&smaller));
        }
        let config = GptConfig::tiny(VOCAB, TOKENS).with_layers(2).with_width(256).with_lean(lean);
        let init = |device: &Device| config.init(device).unwrap();
        let peaks = |smaller: &Smaller| measured(init, gpt_loss, smaller, precision, 64);
        let plain = peaks(&Smaller::default());
        let all = Smaller { momentum: (!lean).then_some(0.1), ..nested(&["c_attn", "c_fc"]) };
        for (what, smaller) in [("nothing", Smaller::default()), ("LoRA", lora()), ("all", all)] {
            check(&format!("GPT with {what}, lean {lean} in {precision}"), plain, peaks(&smaller));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn adapters_of_gpt2_take_a_hundredth_of_the_gradients_and_of_the_optimizer_state() {
    let _turn = turn();
    let settings = settings(OptimizerConfig::adamw(), Precision::F32);
    let init = |device: &Device| GptConfig::gpt2(50257, TOKENS).init(device).unwrap();
    let predict = |adapters: bool| {
        let mut builder = planned(LossFn::new(gpt_loss as Loss<Gpt>), init, &settings);
        if adapters {
            builder = builder.with_reparameterization(|model: &Gpt| {
                let adapters = LowRank::new(8, 16.0, ["c_attn", "c_proj", "c_fc"])?;
                adapters.check(model).map(|()| adapters)
            });
        }
        let before = HEAP.live_bytes();
        let planner = builder.planner(&BackendProfile::flex(), &batch(0, 4), 4).unwrap();
        let plan = planner.evaluate(Precision::F32, &Plan::none(planner.blocks()), 4, u64::MAX).unwrap();
        let prediction = planner.predict(&plan).unwrap();
        assert!(HEAP.live_bytes().saturating_sub(before) < 64 << 20, "the model exists");
        let of = |category| prediction.buffers.iter().filter(move |buffer| buffer.category == category);
        let bytes = |category| of(category).map(|buffer| buffer.bytes).sum::<u64>();
        let learned: BTreeSet<String> = of(Category::Gradient).filter_map(|buffer| buffer.path.clone()).collect();
        ([Category::Gradient, Category::OptimizerState, Category::Parameter].map(bytes), learned)
    };
    let (full, _) = predict(false);
    let (adapters, learned) = predict(true);
    assert!(full.iter().all(|bytes| *bytes > 4 * 123_000_000), "{full:?}");
    println!("gradients, state and parameters: {adapters:?} of {full:?}");
    for index in [0, 1] {
        assert!(100 * adapters[index] <= full[index], "{adapters:?} of {full:?}");
    }
    assert_eq!(learned.len(), 12 * 4 * 2, "{learned:?}");
    assert!(learned.iter().all(|path| is_adapter(path)), "{learned:?}");
}

/// An error with its causes.
fn message<T>(result: Result<T, Error>) -> String {
    let error = result.map(|_| ()).unwrap_err();
    let causes = std::iter::successors(Some(&error as &dyn std::error::Error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

#[test]
fn what_does_not_fit_is_refused() {
    let _turn = turn();
    let settings = settings(OptimizerConfig::adamw(), Precision::F32);
    let net = gpt(false, 0.0);
    let init = |device: &Device| gpt_config(false, 0.0).init(device).unwrap();
    let new = || planned(LossFn::new(gpt_loss as Loss<Gpt>), init, &settings);
    let build = |builder: TrainerBuilder<'_, _>| builder.build(&device(), &batch(0, 4));

    // It is an error where it is made, with and without a recording.
    let wrong = Smaller { targets: vec!["conv1"], ..Smaller::default() };
    for builder in [new(), new().with_prediction(false)] {
        let built = build(wrong.on(builder));
        assert!(matches!(built, Err(Error::Model(_))));
        let text = message(built);
        assert!(text.contains("no parameter 'conv1'"), "{text}");
    }
    // It fits no parameter, and freezes all.
    let frozen = || new().with_reparameterization(|_: &Gpt| LowRank::new(2, 4.0, ["conv1"]));
    let mut trainer = build(frozen()).unwrap();
    assert!(matches!(trainer.step(&batch(0, 4)), Err(Error::NoGradients { step: 1 })));
    // The model has something attached already.
    let attached = || {
        let plain = net.valid().train();
        let masks = Masks::of(&plain);
        plain.apply_reparameterization(masks)
    };
    let twice = planned(LossFn::new(gpt_loss as Loss<Gpt>), |_: &Device| attached(), &settings).with_prediction(false);
    let built = build(qat().on(twice));
    assert!(matches!(built, Err(Error::Model(_) | Error::Precision(_))), "{}", message(built));

    // An edit that fails leaves the run as it was, and is made by the next step.
    let (masked, fails) = (pruning(), Rc::new(Cell::new(true)));
    let shared = fails.clone();
    let mut trainer = build(masked.on(new()).with_model_edit(move |_, model: &Gpt, optimizer| {
        let sparsity = if shared.get() { 1.5 } else { 0.5 };
        let model = prune(model.clone(), &Pruning::magnitude(sparsity))?;
        Ok::<_, CompressionError>(Some((model, optimizer.clone())))
    }))
    .unwrap();
    let before = Snapshot::of(&trainer);
    let failed = trainer.step(&batch(0, 4));
    assert!(matches!(failed, Err(Error::Edit { step: 1, .. })));
    assert!(message(failed).contains("sparsity is 1.5"));
    Snapshot::of(&trainer).assert_same(&before, "after an edit that failed");
    fails.set(false);
    let _ = trainer.step(&batch(0, 4)).unwrap();
    assert!((sparsity(trainer.model()).total() - 0.5).abs() < 0.001);
    // Masks are not there to be chosen.
    let mut plain =
        build(new().with_model_edit(|step, model: &Gpt, optimizer| edited(&GRADUAL, step + 1, model, optimizer)))
            .unwrap();
    assert!(message(plain.step(&batch(0, 4))).contains("no masks"));
}

#[test]
fn a_checkpoint_of_a_run_with_another_attachment_is_refused() {
    let _turn = turn();
    let settings = settings(OptimizerConfig::adamw(), Precision::F32);
    let init = |device: &Device| gpt_config(false, 0.0).init(device).unwrap();
    let plain = || planned(LossFn::new(gpt_loss as Loss<Gpt>), init, &settings);
    let other_bits = Smaller { bits: Some(8), momentum: None, ..qat() };
    let weights_only = Smaller { momentum: None, ..qat() };
    let other_rank = || plain().with_reparameterization(|_: &Gpt| LowRank::new(4, 4.0, ["c_attn", "c_proj", "c_fc"]));
    let runs = || {
        let only = |smaller: Smaller| smaller.on(plain());
        [
            ("nothing", plain()),
            ("masks", only(pruning())),
            ("4 bits", only(weights_only.clone())),
            ("8 bits", only(other_bits.clone())),
            ("4 bits and inputs", only(qat())),
            ("adapters", only(lora())),
            ("adapters with magnitudes", only(Smaller { dora: true, ..lora() })),
            ("larger adapters", other_rank()),
        ]
    };
    let folder = tempfile::tempdir().unwrap();
    let checkpoints = |name: &str| Checkpoints::new(folder.path().join(name), 1).unwrap();
    for (name, builder) in runs() {
        let mut trainer = builder.build(&device(), &batch(0, 4)).unwrap();
        let _ = trainer.step(&batch(0, 4)).unwrap();
        trainer.save_to(&checkpoints(name)).unwrap();
    }
    for (name, builder) in runs() {
        let mut trainer = builder.build(&device(), &batch(0, 4)).unwrap();
        let before = Snapshot::of(&trainer);
        for (saved, _) in runs().into_iter().filter(|(saved, _)| *saved != name) {
            trainer.set_checkpoints(checkpoints(saved));
            let resumed = trainer.resume();
            assert!(matches!(resumed, Err(Error::Load { .. })), "{name} from {saved}");
            let text = message(resumed);
            assert!(text.contains("attached") && text.contains("the settings have changed"), "{name}: {text}");
        }
        Snapshot::of(&trainer).assert_same(&before, name);
        trainer.set_checkpoints(checkpoints(name));
        assert!(trainer.resume().unwrap().is_some());
    }
}
