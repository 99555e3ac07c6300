//! A run continues with other stages, and its model is evaluated.

use kiln_checkpointing::Plan;
use kiln_parallel::Schedule;
use kiln_precision::{Policy, Precision, ScalerConfig, Scaling};
use kiln_training::{Checkpoints, OptimizerConfig, StagesConfig};

use super::model::{Case, Parts, stages};
use crate::support::{Settings, Snapshot, numbers, settings, turn};

/// The divisions that a run has in turns.
fn divisions() -> [Option<StagesConfig>; 5] {
    [
        None,
        Some(stages(2, Schedule::OneForwardOneBackward)),
        Some(stages(4, Schedule::GPipe)),
        Some(stages(1, Schedule::Sequential)),
        Some(stages(3, Schedule::OneForwardOneBackward).with_cuts(vec![1, 4])),
    ]
}

#[test]
fn a_run_that_was_interrupted_goes_on_with_any_stages() {
    let _turn = turn();
    let plain = Case { steps: 5, ..Case::new(5, 7, 2) };
    let scaler =
        ScalerConfig { initial: 2f64.powi(28), backoff: 2f64.powi(-14), interval: 2, ..ScalerConfig::default() };
    let f16 = Settings {
        policy: Policy::new(Precision::F16).keep_norms(),
        scaling: Some(Scaling::Dynamic(scaler)),
        ..settings(OptimizerConfig::sgd())
    };
    let half = Case { settings: Settings { micro_batch: Some(2), ..f16 }, ..plain.clone() };
    let recomputed = Case { plan: Some(Plan::every(5, 2).unwrap()), ..plain.clone() };
    for (name, case, stops) in [("f32", plain, 1..5), ("f16", half, 1..3), ("recomputed", recomputed, 2..3)] {
        let (expected, snapshot) = case.run(None);
        for stop in stops {
            for (before, after) in
                divisions().into_iter().zip(divisions().into_iter().cycle().skip(1 + stop as usize % 4))
            {
                let context = format!("{name}, interrupted after {stop} steps, {before:?}, then {after:?}");
                let folder = tempfile::tempdir().unwrap();
                let checkpoints = Checkpoints::new(folder.path(), 1).unwrap();
                let mut found = vec![];
                let mut first = case.trainer(before);
                found.extend((0..stop).map(|step| numbers(&first.step(&case.batch(step)).unwrap())));
                first.save_to(&checkpoints).unwrap();
                drop(first);
                let mut second = case.trainer(after);
                // A trainer that has taken further steps restores all of a checkpoint.
                let _ = second.step(&case.batch(9)).unwrap();
                second.set_checkpoints(checkpoints);
                assert!(second.resume().unwrap().is_some());
                found.extend((stop..case.steps).map(|step| numbers(&second.step(&case.batch(step)).unwrap())));
                assert_eq!(found, expected, "{context}");
                Snapshot::of(&second).assert_same(&snapshot, &context);
            }
        }
    }
}

#[test]
fn with_dropout_a_run_goes_on_with_the_same_stages() {
    let _turn = turn();
    let plain = Case::new(4, 7, 2);
    let case = Case { parts: Parts { dropout: 0.3, ..plain.parts.clone() }, ..plain };
    let expected = case.run(Some(stages(2, Schedule::GPipe)));
    for stop in 1..case.steps {
        let folder = tempfile::tempdir().unwrap();
        let checkpoints = Checkpoints::new(folder.path(), 1).unwrap();
        let mut first = case.trainer(Some(stages(2, Schedule::OneForwardOneBackward)));
        let mut found: Vec<_> = (0..stop).map(|step| numbers(&first.step(&case.batch(step)).unwrap())).collect();
        first.save_to(&checkpoints).unwrap();
        let mut second = case.trainer(Some(stages(2, Schedule::Sequential)));
        second.set_checkpoints(checkpoints);
        assert!(second.resume().unwrap().is_some());
        found.extend((stop..case.steps).map(|step| numbers(&second.step(&case.batch(step)).unwrap())));
        assert_eq!(found, expected.0, "interrupted after {stop} steps");
        Snapshot::of(&second).assert_same(&expected.1, "dropout");
    }
}

#[test]
fn a_model_in_stages_is_evaluated_as_one_without() {
    let _turn = turn();
    let case = Case::new(5, 7, 2);
    let data = vec![case.batch(3), case.batch(4)];
    let evaluated = |stages: Option<StagesConfig>| {
        let mut trainer = case.trainer(stages);
        let mut found = vec![];
        for step in 0..2 {
            found.push(format!("{:?}", trainer.evaluate(&data).unwrap()));
            let _ = trainer.step(&case.batch(step)).unwrap();
        }
        found.push(format!("{:?}", trainer.evaluate(&data).unwrap()));
        assert_ne!(found[0], found[2], "it does not learn");
        found
    };
    let expected = evaluated(None);
    for division in divisions().into_iter().flatten() {
        assert_eq!(evaluated(Some(division.clone())), expected, "{division:?}");
    }
}
