//! Checkpoints that are unreadable or unwritable for a moment: whole ones stay, and pending actions are done later.

use std::cell::Cell;
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor};
use kiln_data::TrainTest;
use kiln_recovery::Injector;
use kiln_training::{
    BestConfig, Boundary, Checkpoints, Error, Event, Finish, Goal, Intervals, Metric, Metrics, OptimizerConfig, Pass,
    Task, Trainer,
};

use crate::support::{Ids, Net, Settings, Snapshot, Watched, batch, inject, settings, trainer, turn};

fn net_trainer(net: &Net) -> Watched<Ids<Net>> {
    trainer(net, Ids::net(), &Settings { steps: 9, ..settings(OptimizerConfig::adamw()) })
}

fn steps(trainer: &mut Trainer<Ids<Net>>, count: u64) {
    for _ in 0..count {
        let at = trainer.state().step;
        let _ = trainer.step(&batch(at, 4)).unwrap();
    }
}

/// A folder in the place of a file: the file is there and cannot be read.
fn hide(file: &Path, aside: &Path) {
    fs::rename(file, aside).unwrap();
    fs::create_dir(file).unwrap();
}

#[test]
fn a_checkpoint_that_cannot_be_read_for_a_moment_is_kept_until_the_run_comes_past_it() {
    let _turn = turn();
    let net = Net::new(&[8, 16], false, 0.0);
    for file in ["model.bpk", "optimizer.bpk", "state.json", "manifest.json"] {
        let folder = tempfile::tempdir().unwrap();
        let checkpoints = Checkpoints::new(folder.path().join("run"), 2).unwrap();
        let mut first = net_trainer(&net);
        first.set_checkpoints(checkpoints.clone());
        steps(&mut first, 2);
        let older = first.save().unwrap();
        steps(&mut first, 3);
        let newest = first.save().unwrap();
        let aside = folder.path().join("aside");
        hide(&newest.join(file), &aside);
        assert_eq!(checkpoints.newest().unwrap().as_ref(), Some(&newest), "{file}: it may be whole");

        let mut second = net_trainer(&net);
        second.set_checkpoints(checkpoints.clone());
        assert_eq!(second.resume().unwrap(), Some(older), "{file}");
        steps(&mut second, 1);
        let saved = second.save().unwrap();
        assert_eq!(checkpoints.newest().unwrap(), Some(saved), "{file}: the run has gone back");
        // The disk works again, and the user needs the earlier checkpoint.
        let kept = newest.with_extension("later");
        fs::remove_dir(kept.join(file)).unwrap();
        fs::rename(&aside, kept.join(file)).unwrap();
        fs::rename(&kept, &newest).unwrap();
        let mut third = net_trainer(&net);
        third.set_checkpoints(checkpoints.clone());
        assert_eq!(third.resume().unwrap().as_ref(), Some(&newest), "{file}");
        Snapshot::of(&third).assert_same(&Snapshot::of(&first), file);

        // Checkpoints whose steps the run has passed again are not kept.
        second.save().unwrap();
        assert!(kept.is_dir() && !newest.exists(), "{file}");
        steps(&mut second, 2);
        second.save().unwrap();
        assert!(!kept.exists() && newest.is_dir(), "{file}");
        assert_eq!(fs::read_dir(folder.path().join("run")).unwrap().count(), 2, "{file}");
    }
}

#[test]
fn a_later_checkpoint_that_is_damaged_is_removed() {
    let _turn = turn();
    let net = Net::new(&[8, 16], false, 0.0);
    type Damage = fn(&Path) -> std::io::Result<()>;
    let damages: [Damage; 4] = [
        |path| fs::remove_file(path.join("optimizer.bpk")),
        |path| fs::write(path.join("model.bpk"), "short"),
        |path| fs::write(path.join("manifest.json"), "{"),
        |path| fs::remove_file(path.join("manifest.json")),
    ];
    for (number, damage) in damages.iter().enumerate() {
        let folder = tempfile::tempdir().unwrap();
        let checkpoints = Checkpoints::new(folder.path(), 2).unwrap();
        let mut first = net_trainer(&net);
        first.set_checkpoints(checkpoints.clone());
        steps(&mut first, 1);
        let older = first.save().unwrap();
        steps(&mut first, 2);
        damage(&first.save().unwrap()).unwrap();
        let mut second = net_trainer(&net);
        second.set_checkpoints(checkpoints.clone());
        assert_eq!(second.resume().unwrap().as_ref(), Some(&older), "{number}");
        steps(&mut second, 1);
        let saved = second.save().unwrap();
        assert_eq!(checkpoints.list().unwrap(), [saved, older], "{number}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "{number}");
    }
}

/// A model that counts its updates.
#[derive(Module, Debug)]
struct Count {
    updates: Param<Tensor<1>>,
}

/// Each update adds 1. The score after `n` updates is the `n`th of a table.
struct Counting;

const SCORES: [f64; 10] = [0.0, 0.5, 0.25, 0.75, 0.75, 0.5, 1.0, 0.25, 0.5, 0.0];
const TOTAL: u64 = 9; // of epochs of 3

impl Task for Counting {
    type Model = Count;
    type Batch = Vec<usize>;

    fn loss(&self, pass: &Pass<'_, Count>, _: &Vec<usize>) -> Tensor<1> {
        -pass.model().updates.val()
    }

    fn metrics(&self, pass: &Pass<'_, Count>, _: &Vec<usize>) -> Metrics {
        let updates: f32 = pass.model().updates.val().into_scalar();
        let score = Tensor::from_floats([SCORES[updates as usize] as f32], pass.device());
        Metrics::new().with("score", Metric::mean(score, 1))
    }
}

fn counting() -> Trainer<Counting> {
    let sgd = OptimizerConfig::Sgd { momentum: 0.0, weight_decay: 0.0, nesterov: false };
    let init = |device: &Device| Count { updates: Param::from_tensor(Tensor::zeros([1], device)) };
    Trainer::builder(Counting, init)
        .with_optimizer(move |model: &Count| sgd.groups(model))
        .with_schedule(1.0)
        .with_steps(TOTAL)
        .with(|settings| settings.checkpoints.intervals = Intervals::default().with_evaluation(1).with_checkpoint(2))
        .with(|settings| settings.checkpoints.best = Some(BestConfig::new("score", Goal::Highest)))
        .with_prediction(false)
        .with_recovery(false)
        .build(&Device::flex(), &batch(0, 4))
        .unwrap()
}

/// The states of all checkpoints in a folder, and of the best one.
fn states(folder: &Path) -> Vec<(PathBuf, String)> {
    let names = fs::read_dir(folder).unwrap().map(|entry| PathBuf::from(entry.unwrap().file_name()));
    let mut names: Vec<PathBuf> = names.collect();
    names.sort();
    let read = |name: PathBuf| {
        let state = fs::read_to_string(folder.join(&name).join("state.json")).unwrap();
        (name, state)
    };
    names.into_iter().map(read).collect()
}

/// The disk disappears at one event, and is there again when the run continues, in this process or in another one.
#[test]
fn what_was_due_when_the_disk_was_gone_is_done_when_the_run_goes_on() {
    let _turn = turn();
    let data = TrainTest { train: (0..3).map(|step| batch(step, 4)).collect::<Vec<_>>(), test: vec![batch(0, 4)] };
    let folder = tempfile::tempdir().unwrap();
    let whole = folder.path().join("whole");
    let mut trainer = counting();
    trainer.set_checkpoints(Checkpoints::new(&whole, 99).unwrap());
    assert_eq!(trainer.fit(&data).unwrap(), Finish::Complete);
    let (expected, progress) = (states(&whole), trainer.progress());
    // Steps 2, 4, 6 and 8, the ends of the epochs, each evaluation that was the best so far, and the best one.
    let saved = [1, 2, 3, 4, 6, 8, 9];
    let names: Vec<&PathBuf> = expected.iter().map(|(name, _)| name).collect();
    assert_eq!(names.len(), 1 + saved.len(), "{names:?}");

    let mut failed = 0;
    for (at, goes_on) in (1..=2 * saved.len()).flat_map(|at| [(at, true), (at, false)]) {
        let context = format!("event {at}, goes on: {goes_on}");
        let (run, away) = (folder.path().join(&context), folder.path().join("away"));
        let checkpoints = Checkpoints::new(&run, 99).unwrap();
        let mut trainer = counting();
        trainer.set_checkpoints(checkpoints.clone());
        let (seen, disk, gone) = (Cell::new(0), run.clone(), away.clone());
        trainer.observe(move |event| {
            seen.set(seen.get() + usize::from(matches!(event, Event::Saving | Event::Saved(_))));
            if seen.get() == at {
                seen.set(at + 1);
                let _ = fs::rename(&disk, &gone);
                fs::write(&disk, "no folder").unwrap();
            }
            ControlFlow::Continue(())
        });
        let finish = trainer.fit(&data);
        fs::remove_file(&run).unwrap();
        if away.exists() {
            fs::rename(&away, &run).unwrap();
        }
        let Err(error) = finish else {
            assert_eq!(at, 2 * saved.len(), "{context}: only the disk behind the last checkpoint is not missed");
            continue;
        };
        assert!(matches!(error, Error::Save { .. }), "{context}: {error}");
        failed += 1;
        if let Some(best) = trainer.progress().best {
            assert!(run.join(format!("step-{:08}", best.step)).exists(), "{context}: {best:?} has no checkpoint");
        }
        if !goes_on {
            trainer = counting();
            trainer.set_checkpoints(checkpoints);
            trainer.resume().unwrap();
        }
        assert_eq!(trainer.fit(&data).unwrap(), Finish::Complete, "{context}");
        assert_eq!((states(&run), trainer.progress()), (expected.clone(), progress), "{context}");
    }
    assert_eq!(failed, 2 * (2 * saved.len() - 1));
}

#[test]
fn steps_that_were_taken_by_hand_are_saved_when_a_run_ends_with_an_error() {
    let _turn = turn();
    let net = Net::new(&[8, 16], false, 0.0);
    let folder = tempfile::tempdir().unwrap();
    let data: Vec<Vec<usize>> = (0..3).map(|step| batch(step, 4)).collect();
    let fails = |trainer: &mut Watched<Ids<Net>>| {
        inject(trainer, Injector::calls([1]).only_at(Boundary::Forward.name()));
        assert!(matches!(trainer.fit(&data).unwrap_err(), Error::Memory(_)));
    };
    let checkpoints = Checkpoints::new(folder.path(), 1).unwrap();
    let mut first = net_trainer(&net);
    first.set_checkpoints(checkpoints.clone());
    fails(&mut first);
    assert_eq!(checkpoints.list().unwrap(), Vec::<PathBuf>::new(), "no step was taken");
    steps(&mut first, 2);
    fails(&mut first);
    let saved = checkpoints.newest().unwrap().unwrap();
    assert!(saved.ends_with("step-00000002"), "{}", saved.display());

    // A checkpoint that the run was resumed from is not written again.
    let mut second = net_trainer(&net);
    second.set_checkpoints(checkpoints.clone());
    second.resume().unwrap();
    fs::write(saved.join("note"), "the same").unwrap();
    fails(&mut second);
    assert!(saved.join("note").exists());
    steps(&mut second, 1);
    fails(&mut second);
    assert!(checkpoints.newest().unwrap().unwrap().ends_with("step-00000003"));
}
