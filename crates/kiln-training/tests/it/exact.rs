//! An exact run has the same bits under every budget, and whenever memory runs out.

use std::time::Duration;

use burn::module::Module;
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig};
use burn::tensor::{Device, Distribution, Int, Tensor, TensorData};
use kiln_layers::LinearCrossEntropy;
use kiln_memory::BackendProfile;
use kiln_precision::{Policy, Scaling};
use kiln_recovery::{Injector, Patience};
use kiln_training::{
    Error, Exact, LossFn, MemoryBudget, OptimizerConfig, Pass, Precision, Recompute, StoreConfig, TrainerBuilder,
};
use rand::SeedableRng;
use rand::rngs::StdRng;

use crate::case::{Case, Classify, Make, Smaller, four_bits, gpt, large_vocabulary, lora, qat, resnet};
use crate::support::{Settings, Snapshot, Watched, beside, device, inject, planned, settings, temporary, turn};

/// Models whose numbers depend on the micro-batch by more than rounding: with batch norm, and with burn's dropout.
pub(crate) fn cases() -> [Case; 2] {
    [resnet(4, true), Make::Gpt(gpt(0.2, false))].map(|make| {
        Case::new(make, OptimizerConfig::adamw(), 8, 8).with(|settings| Settings { micro_batch: None, ..settings })
    })
}

pub(crate) fn exact(case: &Case) -> TrainerBuilder<'_, Classify> {
    let builder = planned(case.task.clone(), |device| case.task.make.init(device), &case.settings);
    let builder = match &case.smaller {
        Some(smaller) => smaller.on(builder),
        None => builder,
    };
    builder
        .with_recovery(true)
        .with_patience(Patience::new(Duration::ZERO))
        .with(|settings| settings.memory.exact = Exact::Always)
}

#[test]
fn a_budget_changes_no_bit() {
    let _turn = turn();
    for case in cases() {
        let mut free = Watched::build_on(exact(&case), &device(), &case.batch(0));
        let peak = free.plan().unwrap().peak_bytes;
        let batches = [0, 1, 2].map(|step| case.batch(step));
        for batch in &batches {
            let _ = free.step(batch).unwrap();
        }
        let expected = Snapshot::of(&free);
        let mut ways = vec![];
        for percent in [80, 60, 40, 25] {
            let folder = temporary();
            let store = StoreConfig::Directory(folder.path().join("store"));
            let builder = exact(&case)
                .with_memory(MemoryBudget::Bytes(peak * percent / 100))
                .with(|settings| settings.memory.store = Some(store));
            let mut trainer = match builder.build(&device(), &case.batch(0)) {
                Ok(trainer) => trainer,
                Err(Error::NothingFits { least, .. }) => {
                    assert_eq!(least.1, 8, "the least that is named is that of whole batches");
                    continue;
                }
                Err(error) => panic!("{error}"),
            };
            let plan = trainer.plan().unwrap();
            assert_eq!(plan.micro_batch, 8, "{plan}");
            ways.push(plan.checkpoints.to_string());
            for batch in &batches {
                assert_eq!(trainer.step(batch).unwrap().micro_batches, 1);
            }
            Snapshot::of(&trainer).assert_same(&expected, &format!("{:?} in {percent} %", case.task));
        }
        eprintln!("{:?}: {ways:?}", case.task);
        assert!(ways.len() > 1, "{ways:?}");
    }
}

#[test]
fn a_lack_of_memory_changes_no_bit() {
    let _turn = turn();
    for case in cases() {
        let run = |failures: u64| {
            let mut trainer = Watched::build_on(exact(&case), &device(), &case.batch(0));
            inject(&mut trainer, Injector::calls(1..=failures));
            let report = trainer.step(&case.batch(0)).unwrap();
            assert_eq!((report.failures as u64, report.micro_batches), (failures, 1));
            Snapshot::of(&trainer)
        };
        let expected = run(0);
        for failures in [1, 2] {
            run(failures).assert_same(&expected, &format!("{:?} after {failures} failures", case.task));
        }
    }
}

/// A decoder whose rows are added to gradients in their order, on batches of so many samples.
pub(crate) fn decoder(optimizer: OptimizerConfig, samples: usize, dropout: f64) -> Case {
    let make = Make::Gpt(gpt(dropout, true));
    Case::new(make, optimizer, samples, samples).with(|settings| Settings { micro_batch: None, ..settings })
}

#[test]
fn cuts_and_plans_change_no_bit_of_a_decoder() {
    let _turn = turn();
    let scaled = |settings| Settings { scaling: Some(Scaling::Static(1024.0)), ..settings };
    let in_bf16 = |settings| Settings { policy: Policy::new(Precision::BF16), ..settings };
    let cases = [
        decoder(OptimizerConfig::adamw(), 8, 0.2),
        decoder(OptimizerConfig::sgd(), 8, 0.0).with(scaled),
        decoder(OptimizerConfig::adamw(), 8, 0.1).with(in_bf16),
    ];
    for case in cases {
        let run = |micro_batch: Option<usize>, plan: Recompute| {
            let builder = exact(&case).with_micro_batch(micro_batch).with_recompute(plan);
            let builder = builder.with(|settings| settings.memory.store = Some(StoreConfig::Host));
            let mut trainer = Watched::build_on(builder, &device(), &case.batch(0));
            for step in 0..3 {
                let report = trainer.step(&case.batch(step)).unwrap();
                assert_eq!(report.micro_batches, 8_usize.div_ceil(micro_batch.unwrap_or(8)));
            }
            Snapshot::of(&trainer)
        };
        let expected = run(None, Recompute::None);
        for micro_batch in [1, 2, 3, 7] {
            for plan in [Recompute::None, Recompute::Every(1), Recompute::Every(2), Recompute::Stream] {
                let context = format!("{case:?}: micro-batches of {micro_batch}, {plan:?}");
                run(Some(micro_batch), plan).assert_same(&expected, &context);
            }
        }
        for plan in [Recompute::Every(1), Recompute::Offload, Recompute::Stream] {
            run(None, plan.clone()).assert_same(&expected, &format!("{case:?}: {plan:?}"));
        }
    }
}

#[test]
fn a_run_keeps_its_bits_where_possible_without_being_asked() {
    let _turn = turn();
    let [resnet, of_stock_layers] = cases();
    let run = |case: &Case, exact: Exact, micro_batch: Option<usize>| {
        let builder = planned(case.task.clone(), |device| case.task.make.init(device), &case.settings)
            .with_micro_batch(micro_batch)
            .with(|settings| settings.memory.exact = exact);
        let mut trainer = Watched::build_on(builder, &device(), &case.batch(0));
        for step in 0..2 {
            let _ = trainer.step(&case.batch(step)).unwrap();
        }
        (Snapshot::of(&trainer), trainer.plan().unwrap().same_bits)
    };
    let possible = decoder(OptimizerConfig::adamw(), 8, 0.1);
    let (expected, _) = run(&possible, Exact::Always, None);
    for micro_batch in [None, Some(3)] {
        let (snapshot, same_bits) = run(&possible, Exact::default(), micro_batch);
        snapshot.assert_same(&expected, &format!("micro-batches of {micro_batch:?}"));
        assert!(same_bits);
        let (snapshot, same_bits) = run(&possible, Exact::Never, micro_batch);
        assert!(snapshot.distance(&expected) > 0.0 && !same_bits);
    }
    for case in [resnet, of_stock_layers] {
        for micro_batch in [None, Some(3)] {
            let (expected, _) = run(&case, Exact::Never, micro_batch);
            let (snapshot, same_bits) = run(&case, Exact::default(), micro_batch);
            snapshot.assert_same(&expected, &format!("{case:?}: micro-batches of {micro_batch:?}"));
            assert!(!same_bits);
        }
    }
}

#[test]
fn cuts_and_plans_change_no_bit_of_adapters_and_ranges_of_inputs_are_not_cut() {
    let _turn = turn();
    let in_bf16 = |settings| Settings { policy: Policy::new(Precision::BF16), ..settings };
    let dora = |smaller| Smaller { dora: true, ..smaller };
    let adapters = |smaller| Case { smaller: Some(smaller), ..decoder(OptimizerConfig::adamw(), 8, 0.1) };
    let run = |case: &Case, micro_batch: Option<usize>, plan: Recompute| {
        let builder = exact(case).with_micro_batch(micro_batch).with_recompute(plan);
        assert!(
            builder.planner(&BackendProfile::flex(), &case.batch(0), 8).unwrap().keeps_bits(),
            "{:?}",
            case.smaller
        );
        let mut trainer = Watched::build_on(builder, &device(), &case.batch(0));
        let mut parts = 0;
        for step in 0..3 {
            parts = trainer.step(&case.batch(step)).unwrap().micro_batches;
        }
        (Snapshot::of(&trainer), parts)
    };
    for case in [
        adapters(lora()),
        adapters(dora(lora())).with(in_bf16),
        adapters(four_bits()).with(in_bf16),
        adapters(dora(four_bits())),
    ] {
        let (expected, _) = run(&case, None, Recompute::None);
        for (micro_batch, plan) in [(1, Recompute::None), (3, Recompute::Every(1)), (7, Recompute::Offload)] {
            let context = format!("{:?}: micro-batches of {micro_batch}, {plan:?}", case.smaller);
            let (snapshot, parts) = run(&case, Some(micro_batch), plan);
            assert_eq!(parts, 8_usize.div_ceil(micro_batch), "{context}");
            snapshot.assert_same(&expected, &context);
        }
    }
    let whole = adapters(Smaller { momentum: None, ..qat() });
    let planner = exact(&whole).planner(&BackendProfile::flex(), &whole.batch(0), 8).unwrap();
    assert!(!planner.keeps_bits());
}

#[test]
fn words_in_a_store_are_added_up_by_rows_in_any_cut() {
    let _turn = turn();
    let make = Make::Gpt(large_vocabulary().with_dropout(0.1));
    let case =
        Case::new(make, OptimizerConfig::adamw(), 4, 4).with(|settings| Settings { micro_batch: None, ..settings });
    let run = |micro_batch: Option<usize>, plan: Recompute| {
        let builder = exact(&case).with_micro_batch(micro_batch).with_recompute(plan);
        let builder = builder.with(|settings| settings.memory.store = Some(StoreConfig::Host));
        let mut trainer = Watched::build_on(builder, &device(), &case.batch(0));
        for step in 0..2 {
            let _ = trainer.step(&case.batch(step)).unwrap();
        }
        Snapshot::of(&trainer)
    };
    let expected = run(None, Recompute::None);
    for micro_batch in [None, Some(1), Some(3)] {
        run(micro_batch, Recompute::Stream).assert_same(&expected, &format!("micro-batches of {micro_batch:?}"));
    }
}

/// One layer that two blocks use, and an output layer.
#[derive(Module, Debug)]
struct Twice {
    layer: Linear,
    output: Embedding,
}

#[test]
fn a_layer_that_two_blocks_use_has_the_same_bits_in_a_store_where_batches_stay_whole() {
    let _turn = turn();
    let task = || {
        LossFn::new(|pass: &Pass<'_, Twice>, x: &TensorData| {
            let model = pass.model();
            let blocks = vec![model.layer.clone(), model.layer.clone()];
            let x: Tensor<3> = pass.input(x);
            let [samples, time, width] = x.dims();
            let y = pass.chain(&blocks, x, |layer, x| kiln_layers::linear(layer, x).unwrap());
            let targets = Tensor::<1, Int>::zeros([samples * time], pass.device());
            let rows = y.reshape([samples * time, width]);
            LinearCrossEntropy::new().forward_by_class(rows, model.output.weight.val(), targets).unwrap()
        })
    };
    let init = |device: &Device| Twice {
        layer: LinearConfig::new(16, 16).init(device),
        output: EmbeddingConfig::new(9, 16).init(device),
    };
    let batch = TensorData::random::<f32, _, _>([6, 5, 16], Distribution::Default, &mut StdRng::seed_from_u64(1));
    let in_order = |exact: Exact, micro_batch: Option<usize>, plan: Recompute| {
        let builder = planned(task(), init, &Settings { micro_batch, exact, ..settings(OptimizerConfig::adamw()) });
        let builder = builder.with_recompute(plan).with(|settings| {
            settings.memory.store = Some(StoreConfig::Host);
        });
        let mut trainer = Watched::build_on(builder, &device(), &batch);
        let report = trainer.step(&batch).unwrap();
        let _ = trainer.step(&batch).unwrap();
        (report.micro_batches, Snapshot::of(&trainer))
    };
    let run = |micro_batch, plan| in_order(Exact::Always, micro_batch, plan);
    let (_, expected) = run(None, Recompute::None);
    for (micro_batch, plan, micro_batches) in [
        (Some(2), Recompute::None, 3),
        (None, Recompute::Every(1), 1),
        (None, Recompute::Stream, 1),
        (Some(2), Recompute::Stream, 1), // a store has one sum of the layer's gradients
    ] {
        let context = format!("{micro_batch:?} {plan:?}");
        let (found, snapshot) = run(micro_batch, plan);
        assert_eq!(found, micro_batches, "{context}");
        snapshot.assert_same(&expected, &context);
    }
    // Unless it is asked to, such a run is cut in any order, in memory too.
    for plan in [Recompute::None, Recompute::Stream] {
        let (_, expected) = in_order(Exact::Never, Some(2), plan.clone());
        let (found, snapshot) = in_order(Exact::WherePossible, Some(2), plan);
        assert_eq!(found, 3);
        snapshot.assert_same(&expected, "cut in any order");
    }
}

#[test]
fn a_budget_cuts_a_decoder_and_changes_no_bit() {
    const SAMPLES: usize = 256;
    let _turn = turn();
    let case = decoder(OptimizerConfig::adamw(), SAMPLES, 0.0);
    let mut free = Watched::build_on(exact(&case), &device(), &case.batch(0));
    let peak = free.plan().unwrap().peak_bytes;
    let mut ways = std::collections::BTreeSet::new();
    for step in 0..3 {
        let _ = free.step(&case.batch(step)).unwrap();
    }
    let expected = Snapshot::of(&free);
    for percent in [90, 70, 50, 30, 20, 15, 10] {
        let folder = temporary();
        let store = StoreConfig::Directory(folder.path().join("store"));
        let builder = exact(&case).with_memory(MemoryBudget::Bytes(peak * percent / 100));
        let builder = builder.with(|settings| settings.memory.store = Some(store));
        let mut trainer = match builder.build(&device(), &case.batch(0)) {
            Ok(trainer) => trainer,
            Err(Error::NothingFits { .. }) => continue,
            Err(error) => panic!("{error}"),
        };
        let plan = trainer.plan().unwrap();
        ways.insert((plan.micro_batch, plan.checkpoints.streams()));
        for step in 0..3 {
            let _ = trainer.step(&case.batch(step)).unwrap();
        }
        Snapshot::of(&trainer).assert_same(&expected, &format!("{percent} %"));
    }
    eprintln!("{ways:?}");
    for streams in [false, true] {
        assert!(ways.iter().any(|(size, streamed)| *size < SAMPLES && *streamed == streams), "{ways:?}");
    }
}

#[test]
fn a_decoder_that_is_cut_for_lack_of_memory_has_the_same_bits() {
    let _turn = turn();
    let case = decoder(OptimizerConfig::adamw(), 8, 0.2);
    let run = |failures: u64| {
        let mut trainer = Watched::build_on(exact(&case), &device(), &case.batch(0));
        inject(&mut trainer, Injector::calls(1..=failures));
        let report = trainer.step(&case.batch(0)).unwrap();
        assert_eq!(report.failures as u64, failures);
        (Snapshot::of(&trainer), report.micro_batches)
    };
    let (expected, whole) = run(0);
    assert_eq!(whole, 1);
    let mut cuts = vec![];
    for failures in [1, 2, 3] {
        let (snapshot, micro_batches) = run(failures);
        snapshot.assert_same(&expected, &format!("after {failures} failures"));
        cuts.push(micro_batches);
    }
    assert!(cuts.iter().any(|count| *count > 1), "{cuts:?}");
}

#[test]
fn what_would_change_bits_is_refused_beside_it() {
    let _turn = beside();
    let [case, _] = cases();
    let refused = |builder: TrainerBuilder<'_, Classify>| match builder
        .with_memory(MemoryBudget::Bytes(1 << 30))
        .build(&device(), &case.batch(0))
    {
        Err(error @ Error::InvalidSetting { name: "exact", .. }) => error.to_string(),
        other => panic!("{:?}", other.map(|_| ())),
    };
    let small = OptimizerConfig::adamw().in_8bit().unwrap();
    for builder in [
        exact(&case).with_allowed_precision(Precision::BF16),
        exact(&case).with_allowed_optimizer("adamw8bit", move |model| small.groups(model)),
    ] {
        let text = refused(builder);
        assert!(text.contains("may replace the run's own"), "{text}");
    }
}
