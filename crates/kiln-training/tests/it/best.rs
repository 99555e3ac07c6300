//! The best checkpoint of a run, and runs that end early, also when they are killed and resumed.

use std::cell::RefCell;
use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use std::rc::Rc;

use burn::tensor::Device;
use kiln_data::TrainTest;
use kiln_training::{BestConfig, Checkpoints, Error, Event, Finish, Goal, Trainer, load_model};

use crate::counting::{Count, Counting, counting};
use crate::support::{batch, beside, noted, temporary, told};

/// Values after each second update.
const VALUES: [f64; 11] = [0.0, 0.25, 0.5, 0.375, 0.5, 0.75, 0.625, 0.5, 0.75, 0.25, 0.125];
const TOTAL: u64 = 20;

fn data() -> TrainTest<Vec<Vec<usize>>> {
    TrainTest { train: (0..100).map(|step| batch(step, 4)).collect(), test: vec![batch(0, 4)] }
}

fn trainer(values: &[f64], config: BestConfig, steps: u64) -> Trainer<Counting> {
    counting(values, 2, config, steps, |every| every)
}

fn config() -> BestConfig {
    BestConfig::new("score", Goal::Highest)
}

/// Updates of the model in a checkpoint.
fn updates(path: &Path) -> f32 {
    load_model(Count::new(&Device::flex()), path).unwrap().updates.val().into_scalar()
}

/// Resumes and fits, until this process has seen `steps` steps.
fn fit(trainer: &mut Trainer<Counting>, checkpoints: &Checkpoints, steps: u64) -> Finish {
    trainer.set_checkpoints(checkpoints.clone());
    trainer.resume().unwrap();
    let last = trainer.state().step.saturating_add(steps);
    let _ = noted(trainer, told, move |report| report.step >= last);
    trainer.fit(&data()).unwrap()
}

#[test]
fn the_first_of_the_best_is_kept_beside_the_newest() {
    let _turn = beside();
    let folder = temporary();
    let checkpoints = Checkpoints::new(folder.path(), 2).unwrap();
    assert_eq!(checkpoints.best(), None);
    let mut whole = trainer(&VALUES, config(), TOTAL);
    assert_eq!(fit(&mut whole, &checkpoints, u64::MAX), Finish::Complete);
    assert_eq!(whole.progress().best.map(|best| (best.step, best.value)), Some((10, 0.75)));
    assert_eq!(updates(&checkpoints.best().unwrap()), 10.0);
    assert_eq!(updates(&checkpoints.newest().unwrap().unwrap()), 20.0);

    // Low values of a loss, in a run that is interrupted after every step.
    let folder = temporary();
    let checkpoints = Checkpoints::new(folder.path(), 1).unwrap();
    let lowest = BestConfig::new("score", Goal::Lowest);
    let negated: Vec<f64> = VALUES.iter().map(|value| -value).collect();
    for _ in 0..TOTAL {
        let _ = fit(&mut trainer(&negated, lowest.clone(), TOTAL), &checkpoints, 1);
        let names = |path: &Path| path.file_name().unwrap().to_string_lossy().into_owned();
        let entries = fs::read_dir(folder.path()).unwrap().map(|entry| names(&entry.unwrap().path()));
        assert!(entries.into_iter().all(|name| name == "best" || name.starts_with("step-")));
    }
    assert_eq!(updates(&checkpoints.best().unwrap()), 10.0);

    // A metric that the task does not have.
    let mut other = trainer(&VALUES, BestConfig::new("accuracy", Goal::Highest), TOTAL);
    let error = other.fit(&data()).unwrap_err();
    assert!(matches!(&error, Error::InvalidSetting { value, .. } if value == "accuracy"), "{error}");
}

#[test]
fn a_run_that_gets_no_better_ends_and_goes_on_with_more_patience() {
    let _turn = beside();
    for interrupted in [u64::MAX, 1, 3] {
        let folder = temporary();
        let checkpoints = Checkpoints::new(folder.path(), 1).unwrap();
        let patient = |patience: u64| config().with_patience(patience);
        let mut last = Finish::Stopped;
        for _ in 0..TOTAL {
            let mut part = trainer(&VALUES, patient(4), TOTAL);
            last = fit(&mut part, &checkpoints, interrupted);
            if last == Finish::EndedEarly {
                // The best is of step 10; four evaluations follow.
                assert_eq!((part.state().step, part.progress().without_improvement), (18, 4));
                break;
            }
        }
        assert_eq!(last, Finish::EndedEarly);
        // It takes no further step, and continues when its settings allow it.
        let mut again = trainer(&VALUES, patient(4), TOTAL);
        assert_eq!(fit(&mut again, &checkpoints, u64::MAX), Finish::EndedEarly);
        assert_eq!(again.state().step, 18);
        let mut longer = trainer(&VALUES, patient(9), TOTAL);
        assert_eq!(fit(&mut longer, &checkpoints, u64::MAX), Finish::Complete);
        assert_eq!(longer.state().step, TOTAL);
        assert_eq!(updates(&checkpoints.best().unwrap()), 10.0);
    }
}

#[test]
fn the_rate_falls_when_the_run_gets_no_better_and_again_after_a_resume() {
    let _turn = beside();
    // After two evaluations in a row without a better one. The model counts its updates in units of the rate, and so its values come later.
    let falls = |step: u64| [8, 16, 20].iter().filter(|at| step > **at).count() as i32;
    for interrupted in [u64::MAX, 1, 3] {
        let folder = temporary();
        let checkpoints = Checkpoints::new(folder.path(), 1).unwrap();
        let rates: Rc<RefCell<Vec<(u64, f64)>>> = Rc::default();
        for part in 0.. {
            let mut trainer = trainer(&VALUES, config().with_reduction(2, 0.5), TOTAL);
            let seen = rates.clone();
            trainer.observe(move |event| {
                if let Event::Step(report) = event {
                    seen.borrow_mut().push((report.step, report.learning_rate));
                }
                ControlFlow::Continue(())
            });
            if fit(&mut trainer, &checkpoints, interrupted) == Finish::Complete {
                assert_eq!(trainer.state().reductions, 3, "{interrupted}");
                break;
            }
            assert!(part < TOTAL);
        }
        let expected: Vec<(u64, f64)> = (1..=TOTAL).map(|step| (step, 0.5f64.powi(falls(step)))).collect();
        assert_eq!(*rates.borrow(), expected, "interrupted every {interrupted} steps");
    }
}

#[test]
fn the_best_checkpoint_and_the_run_are_brought_together() {
    let _turn = beside();
    let folder = temporary();
    let checkpoints = Checkpoints::new(folder.path(), 9).unwrap();
    let _ = fit(&mut trainer(&VALUES, config(), TOTAL), &checkpoints, 11);
    let best = folder.path().join("best");
    // Killed after the checkpoint of step 10 and before it was made the best one.
    fs::rename(&best, folder.path().join("best.old")).unwrap();
    fs::rename(folder.path().join("step-00000004"), &best).unwrap();
    let mut resumed = trainer(&VALUES, config(), TOTAL);
    let _ = fit(&mut resumed, &checkpoints, 1);
    assert_eq!((updates(&checkpoints.best().unwrap()), resumed.progress().best.unwrap().step), (10.0, 10));

    // Killed while it was replaced.
    fs::rename(&best, folder.path().join("best.old")).unwrap();
    assert_eq!(updates(&checkpoints.best().unwrap()), 10.0);

    // Lost with its checkpoint: the next evaluation is the best.
    fs::remove_dir_all(folder.path().join("best.old")).unwrap();
    fs::remove_dir_all(folder.path().join("step-00000010")).unwrap();
    let mut resumed = trainer(&VALUES, config(), TOTAL);
    let _ = fit(&mut resumed, &checkpoints, 3);
    assert_eq!(resumed.progress().best.map(|best| best.value), Some(0.5));

    // A damaged file of the best one.
    fs::write(checkpoints.best().unwrap().join("state.json"), "{}").unwrap();
    assert_eq!(checkpoints.best(), None);
}
