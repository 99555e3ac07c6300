//! Parameters that are frozen stay as they are, and take no memory for gradients and states.

use std::collections::{BTreeMap, BTreeSet};

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use burn_pack::Reader;
use kiln_checkpointing::Plan;
use kiln_models::{ResNet, ResNetBlock, ResNetConfig, Stem};
use kiln_training::{
    Checkpoints, Error, LossFn, OptimizerConfig, Pass, Recompute, StepPlan, Task, Trainer, TrainerBuilder,
};

use crate::HEAP;
use crate::case::{Case, Make, Way, gpt};
use crate::support::{
    CLASSES, Settings, Stored, batch, beside, classes, entropy, inputs, planned, settings, stored, temporary, turn,
};

/// The stored tensors by path, all drawn.
fn values(model: &impl Module) -> BTreeMap<String, Stored> {
    let _ = model.valid();
    stored(model)
}

/// The ids of the parameters that an optimizer's record has state of.
fn with_state(trainer: &Trainer<impl Task>) -> BTreeSet<u64> {
    let folder = temporary();
    let saved = trainer.save_to(&Checkpoints::new(folder.path(), 1).unwrap()).unwrap();
    let tensors = Reader::from_file(saved.join("optimizer.bpk")).unwrap().into_tensors().unwrap();
    tensors.into_iter().map(|tensor| tensor.into_parts().unwrap().3.unwrap()).collect()
}

#[allow(clippy::ptr_arg, reason = "a batch is a vector")]
fn loss(pass: &Pass<'_, ResNet>, ids: &Vec<usize>) -> Tensor<1> {
    let x = inputs(ids, [ids.len(), 3, 16, 16], pass.device());
    let x = pass.chain(&pass.model().blocks(), x, ResNetBlock::forward);
    entropy(pass.model().head(x), classes(ids, pass.device()))
}

const FROZEN: [&str; 4] = ["conv1", "bn1", "layer1", "layer2"];

fn builder(
    lean: bool,
    frozen: &[&str],
    width: usize,
) -> TrainerBuilder<'static, impl Task<Model = ResNet, Batch = Vec<usize>> + use<>> {
    let config = ResNetConfig::resnet18(CLASSES).with_width(width).with_stem(Stem::Cifar).with_lean(lean);
    let settings = Settings { schedule: 0.01.into(), ..settings(OptimizerConfig::adamw()) };
    let init = move |device: &Device| config.init(device).unwrap();
    planned(LossFn::new(loss), init, &settings)
        .with(|settings| settings.run.frozen = frozen.iter().map(ToString::to_string).collect())
        .with_allocator(&HEAP)
}

#[test]
fn frozen_parameters_stay_and_running_statistics_move() {
    let _turn = beside();
    let ids = batch(0, 8);
    for (lean, plan) in [(true, None), (false, None), (true, Some(Plan::every(9, 2).unwrap()))] {
        let mut builder = builder(lean, &FROZEN, 8);
        if let Some(plan) = plan {
            builder = builder.with_recompute(Recompute::Plan(plan));
        }
        let mut trainer = builder.build(&Device::flex(), &ids).unwrap();
        let before = values(trainer.model());
        for _ in 0..3 {
            let _ = trainer.step(&ids).unwrap();
        }
        let after = values(trainer.model());
        let frozen = |path: &str| FROZEN.iter().any(|frozen| path.starts_with(&format!("{frozen}.")));
        let (mut still, mut moved) = (0, 0);
        for (path, Stored { bits, learns, .. }) in &after {
            // As in PyTorch, whose running statistics follow the batches in training mode.
            let moves = path.contains("running_") || !frozen(path);
            assert_eq!(before[path].bits != *bits, moves, "{path}, lean {lean}");
            assert_eq!(*learns, moves && !path.contains("running_"), "{path}");
            if moves { moved += 1 } else { still += 1 }
        }
        assert!(still > 20 && moved > 20, "{still} and {moved}");
        let learned: BTreeSet<u64> = after.values().filter(|stored| stored.learns).map(|stored| stored.id).collect();
        assert_eq!(with_state(&trainer), learned);
    }
}

#[test]
fn the_prediction_knows_what_is_frozen() {
    let _turn = turn();
    let ids = batch(0, 16);
    let peaks = |frozen: &[&str]| {
        let mut trainer = builder(true, frozen, 24).build(&Device::flex(), &ids).unwrap();
        let predicted = trainer.plan().map(|plan: &StepPlan| plan.peak_bytes).unwrap();
        let measured = (0..3).filter_map(|_| trainer.step(&ids).unwrap().peak_bytes).last().unwrap();
        (predicted as f64, measured as f64)
    };
    let body = ["conv1", "bn1", "layer1", "layer2", "layer3", "layer4"];
    let ((all, all_measured), (part, part_measured)) = (peaks(&[]), peaks(&body));
    for (predicted, measured) in [(all, all_measured), (part, part_measured)] {
        let error = predicted / measured - 1.0;
        assert!(error.abs() < 0.1, "predicted {predicted}, measured {measured}");
    }
    // Neither gradients nor states, which are most of it.
    assert!(part < 0.6 * all, "{part} with frozen layers, {all} without");
}

#[test]
fn paths_that_no_parameter_has_are_refused() {
    let _turn = beside();
    let refused =
        |frozen: &[&str]| builder(true, frozen, 8).build(&Device::flex(), &batch(0, 8)).map(|_| ()).unwrap_err();
    let error = refused(&["layer1", "backbone"]);
    assert!(matches!(&error, Error::UnknownPath { path, .. } if path == "backbone"), "{error}");
    assert!(error.to_string().contains("conv1, bn1, layer1, layer2, layer3, layer4, fc"), "{error}");
    let all = ["conv1", "bn1", "layer1", "layer2", "layer3", "layer4", "fc"];
    assert!(matches!(refused(&all), Error::InvalidSetting { .. }));
}

/// The embedding is the output layer as well: its gradient of the one does not depend on the other.
#[test]
fn a_decoder_with_a_frozen_embedding_trains() {
    let _turn = beside();
    let case = Case::new(Make::Gpt(gpt(0.0, false).with_width(32)), OptimizerConfig::adamw(), 4, 4);
    let case = Case { frozen: &["Gpt.wte", "Gpt.wpe", "Gpt.h.0"], ..case };
    let mut trainer = case.trainer(&Way::default());
    let before = values(trainer.model());
    let losses: Vec<f64> = (0..8).map(|_| trainer.step(&case.batch(0)).unwrap().loss).collect();
    assert!(losses[7] < losses[0], "{losses:?}");
    for (path, after) in values(trainer.model()) {
        let learns = path.starts_with("Gpt.h.1.") || path.starts_with("Gpt.ln_f.");
        assert_eq!(before[&path].bits != after.bits, learns, "{path}");
    }
}
