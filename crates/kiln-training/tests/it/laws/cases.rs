//! The cases: models, optimizers, precisions, attachments, and the divisions that must not show in their numbers.

use burn::module::ParamGroup;
use burn::optim::lr_scheduler::cosine::CosineAnnealingLrSchedulerConfig;
use burn::optim::lr_scheduler::exponential::ExponentialLrSchedulerConfig;
use burn::optim::lr_scheduler::linear::LinearLrSchedulerConfig;
use burn::optim::lr_scheduler::noam::NoamLrSchedulerConfig;
use burn::optim::lr_scheduler::step::StepLrSchedulerConfig;
use burn::optim::momentum::MomentumConfig;
use burn::optim::{AdamConfig, SgdConfig};
use kiln_checkpointing::{Mode, Plan, PlanSegment};
use kiln_parallel::Schedule;
use kiln_precision::{Policy, Precision, ScalerConfig, Scaling};
use kiln_training::{Exact, OptimizerConfig, OptimizerGroups, Schedule as Rates, StepReport};

use crate::case::{
    Case, Classify, Make, Parts, SCHEDULES, Shortcut, Smaller, Way, four_bits, gpt, large_vocabulary, lora, nested,
    qat, resnet, stages, vit,
};
use crate::support::Settings;

pub(super) fn cases() -> Vec<Case> {
    let in_any_order = [
        reference_models(),
        large_vocabularies(),
        smaller_models(),
        optimizers(),
        stored_in_bf16(),
        schedules(),
        stages_of_chains(),
        replicas(),
    ]
    .concat()
    .into_iter()
    .map(|case| case.with(|settings| Settings { exact: Exact::Never, ..settings }));
    in_any_order.chain(in_order()).collect()
}

/// Models whose rows are added to gradients in their order, in memory, in a store and in stages by default, and on replicas that ask for it.
fn in_order() -> Vec<Case> {
    let in_order = |settings| Settings { exact: Exact::Always, ..settings };
    let mut cases = vec![];
    for (optimizer, precision, dropout) in [
        (OptimizerConfig::adamw(), Precision::F32, 0.2),
        (OptimizerConfig::sgd(), Precision::F16, 0.0),
        (OptimizerConfig::adamw(), Precision::BF16, 0.0),
    ] {
        let make = Make::Gpt(gpt(dropout, true));
        let case =
            Case::new(make.clone(), optimizer, 6, 3).with(|settings| in_precision(in_order(settings), precision));
        let case = case.named(format!("GPT whose rows are added in order, {optimizer:?} in {precision}"));
        let shows = if precision == Precision::F16 { is_skipped_once } else { |_: &[StepReport]| true };
        let ways = vec![Way::default(), Way::streamed(make.blocks_in_store()), Way::replicas(2, false)];
        let in_stages = Way::stages(stages(2, Schedule::OneForwardOneBackward));
        let more = [plans(&make), vec![in_stages, Way::replicas(2, true)]].concat();
        cases.push(Case { ways, more, disturbed: precision == Precision::F32, chunks: 2, shows, ..case });
    }
    cases
}

/// Norms are in f32. In f16 the scale overflows in the first step, and grows after the third.
fn in_precision(settings: Settings, precision: Precision) -> Settings {
    let scaler =
        ScalerConfig { initial: 2f64.powi(28), backoff: 2f64.powi(-16), interval: 2, ..ScalerConfig::default() };
    let scaling = (precision == Precision::F16).then_some(Scaling::Dynamic(scaler));
    Settings { policy: Policy::new(precision).keep_norms(), scaling, ..settings }
}

fn is_skipped_once(reports: &[StepReport]) -> bool {
    reports[0].skipped && reports.iter().any(|report| !report.skipped)
}

fn plans(make: &Make) -> Vec<Way> {
    let blocks = make.blocks();
    let plans = [Plan::every(blocks, 1), Plan::every(blocks, 2), Plan::offload(blocks, 1)];
    plans.into_iter().map(|plan| Way::plan(plan.unwrap())).chain([Way::streamed(make.blocks_in_store())]).collect()
}

/// Reference models in all precisions, under checkpoint plans.
fn reference_models() -> Vec<Case> {
    let (adamw, sgd) = (OptimizerConfig::adamw(), OptimizerConfig::sgd());
    let mut cases = vec![];
    for (name, make, chunks) in [("ResNet", resnet(4, false), 1), ("GPT with dropout", Make::Gpt(gpt(0.2, false)), 2)] {
        for (optimizer, precision) in
            [(adamw, Precision::F32), (sgd, Precision::F32), (sgd, Precision::F16), (sgd, Precision::BF16)]
        {
            let case = Case::new(make.clone(), optimizer, 4, 2).with(|settings| in_precision(settings, precision));
            let case = case.named(format!("{name}, {optimizer:?} in {precision}"));
            let shows = if precision == Precision::F16 { is_skipped_once } else { |_: &[StepReport]| true };
            let streamed = Way::streamed(make.blocks_in_store());
            let (ways, disturbed) = (vec![Way::default(), streamed], precision != Precision::BF16);
            cases.push(Case { ways, more: plans(&make), disturbed, chunks, shows, ..case });
        }
    }
    for lean in [true, false] {
        for precision in [Precision::F32, Precision::BF16] {
            let make = vit(0.5, lean);
            let case = Case::new(make.clone(), sgd, 4, 2).with(|settings| in_precision(settings, precision));
            let case = case.named(format!("ViT that leaves out branches, lean {lean} in {precision}"));
            cases.push(Case { more: plans(&make), ..case });
        }
    }
    let make = resnet(4, true);
    let frozen = &["ResNet.conv1", "ResNet.bn1", "ResNet.layer1", "ResNet.layer2"];
    let case = Case::new(make.clone(), adamw, 4, 4).named("ResNet, of which the first layers are frozen");
    cases.push(Case { frozen, ways: vec![Way::default(), plans(&make).remove(1), plans(&make).remove(3)], ..case });
    cases
}

/// Models with a parameter that is in memory some rows at a time if the others are in a store: it is embedding and output layer at once, so
/// that the gradient of a micro-batch has two parts.
fn large_vocabularies() -> Vec<Case> {
    let (adamw, sgd) = (OptimizerConfig::adamw(), OptimizerConfig::sgd());
    let case = |(optimizer, precision, micro_batch)| {
        let make = Make::Gpt(large_vocabulary());
        let case =
            Case::new(make.clone(), optimizer, 4, micro_batch).steps(if precision == Precision::F16 { 3 } else { 2 });
        let case = case.with(|settings| in_precision(settings, precision));
        let case = case.named(format!("GPT with a large vocabulary, {optimizer:?} in {precision}"));
        let shows = if precision == Precision::F16 { is_skipped_once } else { |_: &[StepReport]| true };
        let ways = vec![Way::default(), Way::streamed(make.blocks_in_store())];
        // One of them: the steps are those of the others.
        Case { ways, disturbed: precision == Precision::F32, chunks: 2, shows, ..case }
    };
    [(adamw, Precision::F32, 2), (sgd, Precision::F16, 3), (sgd, Precision::BF16, 4)].map(case).into()
}

/// What is attached to parameters, and edits between steps.
fn smaller_models() -> Vec<Case> {
    let (adamw, sgd) = (OptimizerConfig::adamw(), OptimizerConfig::sgd());
    let (resnet, gpt) = (resnet(4, false), Make::Gpt(gpt(0.2, false).with_width(32)));
    let all = nested(&["c_attn", "c_proj", "c_fc"]);
    let mut cases = vec![];
    for (name, make, smaller) in [
        ("QAT and pruning of a ResNet", &resnet, qat().pruned()),
        ("DoRA of a GPT", &gpt, Smaller { dora: true, ..lora() }),
        ("DoRA of a GPT beside four bits", &gpt, Smaller { dora: true, ..four_bits() }),
        ("QAT, pruning and LoRA of a GPT", &gpt, all),
    ] {
        for (optimizer, precision) in [(adamw, Precision::F32), (sgd, Precision::BF16)] {
            let case = Case::new(make.clone(), optimizer, 5, 3).steps(5).named(format!("{name} in {precision}"));
            let case = case.with(|settings| in_precision(Settings { schedule: 0.01.into(), ..settings }, precision));
            let blocks = make.blocks();
            let more = [Plan::every(blocks, 1), Plan::offload(blocks, 2)].map(|plan| Way::plan(plan.unwrap()));
            // One of each model.
            let disturbed = (name, precision) == ("QAT and pruning of a ResNet", Precision::F32)
                || (name, precision) == ("QAT, pruning and LoRA of a GPT", Precision::BF16);
            let (smaller, ways) = (Some(smaller.clone()), vec![Way::default()]);
            cases.push(Case { smaller, ways, more: more.into(), disturbed, ..case });
        }
    }
    cases
}

/// One block with more than 4,096 elements: optimizers with state in few bits leave smaller ones in f32.
fn wide() -> Make {
    Make::Chain(Parts { width: 72, dropout: 0.1, ..Parts::new(1) })
}

/// Momentum for the last layer, Adam for the others.
fn two_optimizers<M>(_: &M) -> OptimizerGroups {
    let momentum = MomentumConfig::new().with_momentum(0.9).with_dampening(0.0);
    let sgd = SgdConfig::new().with_momentum(Some(momentum)).build();
    OptimizerGroups::from(AdamConfig::new().build()).with_group(ParamGroup::from_predicate("last"), sgd)
}

/// Every optimizer that settings can name, with state on the device and on the host, and groups of burn's optimizers.
fn optimizers() -> Vec<Case> {
    let mut cases: Vec<Case> = OptimizerConfig::NAMES
        .into_iter()
        .map(|name| {
            let case = Case::new(wide(), OptimizerConfig::named(name).unwrap(), 8, 8).steps(4).named(name);
            Case { ways: vec![Way::default(), Way { on_host: true, ..Way::default() }, Way::streamed(1)], ..case }
        })
        .collect();
    let case = Case::new(wide(), OptimizerConfig::sgd(), 8, 8).with_parts(|parts| Parts { tied: false, ..parts });
    let case = case.steps(6).named("two optimizers of burn");
    let ways = vec![Way::default(), Way::streamed(1)];
    cases.push(Case { groups: Some(two_optimizers), ways, ..case });
    cases
}

/// Parameters that are stored in bf16, with optimizers that settings name and those of burn.
fn stored_in_bf16() -> Vec<Case> {
    let stored = |case: Case| {
        case.with(|settings| Settings { policy: Policy::new(Precision::BF16).keep_norms().storing(), ..settings })
    };
    let mut cases = vec![];
    for (name, make, optimizer, disturbed) in [
        ("ResNet", resnet(4, false), OptimizerConfig::sgd(), false),
        ("GPT with dropout", Make::Gpt(gpt(0.2, false)), OptimizerConfig::adamw(), true),
        (
            "GPT with a large vocabulary",
            Make::Gpt(large_vocabulary()),
            OptimizerConfig::named("adamw8bit").unwrap(),
            false,
        ),
    ] {
        let case = Case::new(make.clone(), optimizer, 4, 2).named(format!("{name}, {optimizer:?}, stored in bf16"));
        let ways = vec![Way::default(), Way::streamed(make.blocks_in_store())];
        let on_host = Way { on_host: true, ..Way::default() };
        let more = if disturbed { [plans(&make), vec![on_host]].concat() } else { vec![on_host] };
        cases.push(Case { ways, more, disturbed, ..stored(case) });
    }
    let case = Case::new(wide(), OptimizerConfig::sgd(), 8, 8).steps(4).named("two optimizers of burn, stored in bf16");
    cases.push(Case { groups: Some(two_optimizers), ways: vec![Way::default(), Way::streamed(1)], ..stored(case) });
    cases
}

/// Schedulers of burn.
fn schedules() -> Vec<Case> {
    let rates_differ =
        |reports: &[StepReport]| reports.windows(2).any(|pair| pair[0].learning_rate != pair[1].learning_rate);
    [
        ("linear", Rates::burn(LinearLrSchedulerConfig::new(0.1, 0.001, 10).init().unwrap())),
        ("cosine", Rates::burn(CosineAnnealingLrSchedulerConfig::new(0.1, 5).init().unwrap())),
        ("exponential", Rates::burn(ExponentialLrSchedulerConfig::new(0.1, 0.8).init().unwrap())),
        ("step", Rates::burn(StepLrSchedulerConfig::new(0.1, 4).init().unwrap())),
        ("noam", Rates::burn(NoamLrSchedulerConfig::new(0.1).with_warmup_steps(4).init().unwrap())),
    ]
    .map(|(name, schedule)| {
        let case = Case::chain(1, 6, 6).named(format!("rates of burn: {name}"));
        let case = case.with(|settings| Settings { schedule, steps: 12, ..settings });
        Case { ways: vec![Way::default()], disturbed: false, shows: rates_differ, ..case }
    })
    .into()
}

/// All schedules with these numbers of stages.
fn staged(counts: impl IntoIterator<Item = usize>) -> Vec<Way> {
    let each = |count| SCHEDULES.map(|schedule| Way::stages(stages(count, schedule)));
    counts.into_iter().flat_map(each).collect()
}

/// All schedules with stages that end at these blocks.
fn cut(cuts: &[usize]) -> Vec<Way> {
    let each = |schedule| Way::stages(stages(cuts.len() + 1, schedule).with_cuts(cuts.to_vec()));
    SCHEDULES.map(each).into()
}

/// The divisions that an interrupted run has in turns.
fn divisions() -> Vec<Way> {
    vec![
        Way::default(),
        Way::stages(stages(2, Schedule::OneForwardOneBackward)),
        Way::stages(stages(4, Schedule::GPipe)),
        Way::stages(stages(1, Schedule::Sequential)),
        Way::stages(stages(3, Schedule::OneForwardOneBackward).with_cuts(vec![1, 4])),
    ]
}

fn stages_of_chains() -> Vec<Case> {
    let mut cases = vec![];
    // The last micro-batch is smaller, but for the first case.
    for (size, micro_batch) in [(3, 3), (5, 3), (5, 2), (7, 2), (9, 2), (11, 2)] {
        let case = Case::chain(5, size, micro_batch).named(format!("stages, {size} samples in {micro_batch}"));
        let case = case.with(|settings| Settings { max_norm: Some(0.5), ..settings });
        let is_clipped = |reports: &[StepReport]| reports.iter().any(|report| report.gradient_norm > Some(0.5));
        cases.push(Case { more: staged(1..=4), shows: is_clipped, ..case });
    }
    let case = Case::chain(4, 6, 2).named("stages, at every boundary").steps(2);
    cases.push(Case { ways: staged([3]), ..case });
    let recompute = |blocks| PlanSegment { blocks, mode: Mode::Recompute };
    // The second segment crosses the end of a stage, wherever two stages meet.
    let crossing = Plan::try_from(vec![recompute(0..1), recompute(1..4), recompute(4..5)]).unwrap();
    for plan in [Plan::every(5, 1).unwrap(), crossing, Plan::every(5, 5).unwrap()] {
        let in_a_segment = stages(2, Schedule::GPipe).with_cuts(vec![2]);
        let ways = staged([2, 3]).into_iter().chain([Way::default(), Way::stages(in_a_segment)]);
        let more = ways.map(|way| Way { plan: Some(plan.clone()), ..way }).collect();
        cases.push(Case { more, ..Case::chain(5, 7, 2).named(format!("stages under {plan}")) });
    }
    let bf16 = Case::chain(4, 7, 2).with(|settings| in_precision(settings, Precision::BF16));
    cases.push(Case { more: staged([2, 3]), ..bf16.named("stages in bf16") });
    let f16 = |settings| in_precision(Settings { optimizer: OptimizerConfig::sgd(), ..settings }, Precision::F16);
    let f16 = Case { shows: is_skipped_once, ..Case::chain(5, 7, 2).with(f16).steps(5) };
    let recomputed = staged([2, 3]).into_iter().map(|way| Way { plan: Plan::every(5, 1).ok(), ..way });
    let more = staged([2, 3]).into_iter().chain(recomputed).collect();
    cases.push(Case { ways: divisions(), more, disturbed: false, ..f16.named("stages in f16") });
    let case = Case::chain(5, 7, 2).steps(5).named("stages that change");
    let recomputed = Way { plan: Plan::every(5, 2).ok(), ..divisions().remove(1) };
    cases.push(Case { ways: divisions().into_iter().chain([recomputed]).collect(), disturbed: false, ..case });
    // Of 9 samples in micro-batches of 2: one micro-batch without a loss, one with half of it.
    let left_out = |reports: &[StepReport]| reports[0].micro_batches == 4;
    let tokens = |id: usize| usize::from(!matches!(id % 9, 2 | 3 | 5));
    let case = Case::chain(4, 9, 2).named("stages, micro-batches without a loss");
    cases.push(Case { tokens, shows: left_out, more: staged([2, 3]), ..case });
    for (frozen_first, frozen) in [(false, 2..4), (true, 0..2), (true, 0..4), (false, 4..6), (true, 0..6)] {
        let case = Case::chain(6, 7, 2).named(format!("frozen stages: {frozen_first}, {frozen:?}"));
        let case = case.with_parts(|parts| Parts { tied: false, frozen_first, frozen, ..parts });
        cases.push(Case { more: staged([2, 3]).into_iter().chain(cut(&[2, 4])).collect(), ..case });
    }
    let chains = |case: Case, chains: &[&[usize]]| {
        let chains: Vec<Vec<usize>> = chains.iter().map(|blocks| blocks.to_vec()).collect();
        let case = case.named(format!("stages of the chains {chains:?}"));
        Case { task: Classify { chains, ..case.task.clone() }, ..case }
    };
    // What is between two chains counts as a block: the first pass has 7, the second 9, the third 3.
    for (of, blocks) in [
        (&[&[0, 1, 2][..], &[3, 4, 5]][..], 7),
        (&[&[0], &[1], &[2, 3], &[4, 5]], 9),
        (&[&[2], &[4]], 3),
        (&[&[0, 1, 2, 3, 4]], 5),
    ] {
        let every: Vec<usize> = (1..blocks).collect();
        let one_cut = |cut: &usize| Way::stages(stages(2, Schedule::OneForwardOneBackward).with_cuts(vec![*cut]));
        let mut more: Vec<Way> = every.iter().map(one_cut).chain(staged([2, 3])).collect();
        more.push(Way::stages(stages(blocks, Schedule::GPipe).with_cuts(every)));
        cases.push(Case { more, ..chains(Case::chain(6, 7, 2), of) });
    }
    let one = Way::stages(stages(1, Schedule::OneForwardOneBackward));
    cases.push(Case { more: vec![one], ..chains(Case::chain(6, 7, 2), &[&[3]]) });
    cases.push(Case { more: staged([2, 3]), ..chains(Case::chain(6, 7, 2), &[&[0, 1], &[], &[2, 3]]) });
    // A block that several stages run.
    let shared = Case::chain(3, 7, 2).with_parts(|parts| Parts { norms: false, ..parts });
    let more = [cut(&[2, 4]), cut(&[1, 2, 3, 4])].concat();
    cases.push(Case { more, ..chains(shared, &[&[0, 1, 0, 2, 0]]) });
    let zeros = Case::chain(4, 7, 2).with_parts(|parts| Parts { zeros: true, ..parts }).steps(4);
    cases.push(Case { more: staged([2, 3]), ..zeros.named("stages, statistics of zeros") });
    // A tensor reaches a later stage as a part of the chain's value, or without a gradient.
    for shortcut in [Shortcut::Carried, Shortcut::Detached] {
        let case = Case::chain(4, 7, 2).named(format!("stages, {shortcut:?}"));
        cases.push(Case { task: Classify { shortcut, ..case.task.clone() }, more: staged([2, 3]), ..case });
    }
    // Masks are drawn for each stage: they are equal in every schedule, and not without stages.
    for plan in [None, Plan::every(4, 1).ok()] {
        for count in [1, 2, 3] {
            let case = Case::chain(4, 7, 2).with_parts(|parts| Parts { dropout: 0.3, ..parts });
            let case = case.named(format!("{count} stages with dropout, recomputed: {}", plan.is_some()));
            let ways: Vec<Way> = staged([count]).into_iter().map(|way| Way { plan: plan.clone(), ..way }).collect();
            let interrupted = if count == 2 && plan.is_none() { ways.clone() } else { vec![] };
            let plain = if count == 1 { Way::default() } else { ways[0].clone() };
            cases.push(Case { plain, ways: interrupted, more: ways, disturbed: false, ..case });
        }
    }
    cases
}

/// Batches for replicas with a micro-batch of 2 samples each. In the last batch, the last replica has nothing.
fn sizes(replicas: usize) -> Vec<usize> {
    let size = 2 * replicas;
    vec![size, size, size - 1, size, size, size - 2]
}

fn divided(case: Case, replicas: usize) -> Case {
    let name = format!("{} on {replicas} replicas", case.name);
    Case { sizes: sizes(replicas), ..case.steps(6).named(name) }
}

fn replicas() -> Vec<Case> {
    let (adamw, sgd) = (OptimizerConfig::adamw(), OptimizerConfig::sgd());
    let net = |optimizer: OptimizerConfig| {
        let make = Make::Chain(Parts { dropout: 0.2, ..Parts::new(1) });
        Case::new(make, optimizer, 2, 2).named(format!("{optimizer:?}"))
    };
    let mut cases = vec![];
    for replicas in 2..=4 {
        let ways = || [false, true].map(|sharded| Way::replicas(replicas, sharded)).to_vec();
        for optimizer in [adamw, sgd] {
            // Divided runs go on whole, and whole ones divided.
            let undivided = [false, true].map(|sharded| Way { sharded, ..Way::default() });
            let own = if replicas < 4 { [&ways()[..], &undivided].concat() } else { vec![] };
            let disturbed = replicas == 2;
            cases.push(Case { ways: own, more: ways(), disturbed, ..divided(net(optimizer), replicas) });
            // Samples with 0 to 3 tokens that carry a loss; in the third batch, the first replica has none.
            let weighed = net(optimizer).with_parts(|parts| Parts { dropout: 0.0, ..parts });
            let case = divided(weighed.named(format!("tokens, {optimizer:?}")), replicas);
            let case = Case {
                tokens: |id| if matches!(id, 8 | 9 | 12 | 13 | 16 | 17) { 0 } else { id % 4 },
                more: ways(),
                ..case
            };
            assert_eq!(case.own_micro_batches(2, 0, &case.more[0]), 0);
            cases.push(case);
        }
        let gpt = Case::new(Make::Gpt(gpt(0.2, false)), adamw, 2, 2).named("GPT with dropout");
        cases.push(Case { more: ways(), ..divided(gpt, replicas) });
        let clipped = net(sgd).with(|settings| Settings { max_norm: Some(0.05), ..settings }).named("clipping");
        let all_clipped = |reports: &[StepReport]| reports.iter().all(|report| report.gradient_norm > Some(0.05));
        cases.push(Case { more: ways(), shows: all_clipped, ..divided(clipped, replicas) });
        // An overflow on one replica skips the step on all.
        let f16 = Case::new(resnet(4, false), sgd, 2, 2).named("ResNet in f16");
        let f16 = f16.with(|settings| in_precision(settings, Precision::F16));
        cases.push(Case { more: ways(), shows: is_skipped_once, ..divided(f16, replicas) });
    }
    // Replicas with stages: against replicas with as many micro-batches, and with one each against none.
    for sharded in [false, true] {
        let way = |count, schedule| Way { stages: Some(stages(count, schedule)), ..Way::replicas(2, sharded) };
        let more = vec![way(2, Schedule::OneForwardOneBackward), way(3, Schedule::GPipe)];
        let case = Case::chain(4, 12, 2).named(format!("replicas in stages, sharded: {sharded}"));
        cases.push(Case { plain: Way::replicas(2, sharded), more, ..case });
    }
    let in_stages = Way { stages: Some(stages(2, Schedule::GPipe)), ..Way::replicas(2, false) };
    cases.push(Case { more: vec![in_stages], ..Case::chain(4, 6, 3).named("two replicas in two stages") });
    cases
}
