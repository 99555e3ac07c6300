//! Damaged checkpoints are not used, and impossible settings are refused.

use std::fs;
use std::path::{Path, PathBuf};

use burn::tensor::Device;
use kiln_data::{Loader, LoaderConfig, TrainTest};
use kiln_training::{Checkpoints, Error, Finish, Intervals, OptimizerConfig, Trainer};

use crate::case::bytes_of;
use crate::support::{self, Ids, Net, Settings, batch, beside, builder, noted, temporary, told};

/// Samples of a batch.
const SIZE: usize = 16;

/// Batches of samples, by default of 16.
fn loader(samples: usize, batch: usize) -> Loader<Vec<usize>> {
    Loader::new(samples, LoaderConfig::new(batch), |plan| Ok(plan.ids.clone())).unwrap()
}

fn settings(optimizer: OptimizerConfig) -> Settings {
    Settings { every: Intervals::default().with_evaluation(3), ..support::settings(optimizer) }
}

fn init(_: &Device) -> Net {
    Net::new(&[8, 16], true, 0.3)
}

fn trainer() -> Trainer<Ids<Net>> {
    builder(Ids::net(), init, &settings(OptimizerConfig::sgd())).build(&Device::flex(), &batch(0, SIZE)).unwrap()
}

fn resume(trainer: &mut Trainer<Ids<Net>>, checkpoints: &Checkpoints) -> Result<Option<PathBuf>, Error> {
    trainer.set_checkpoints(checkpoints.clone());
    trainer.resume()
}

/// Runs until this process has seen `stop_after` steps.
fn run(trainer: &mut Trainer<Ids<Net>>, checkpoints: &Checkpoints, stop_after: u64) -> Finish {
    let last = trainer.state().step + stop_after;
    let _ = noted(trainer, told, move |report| report.step >= last);
    trainer.set_checkpoints(checkpoints.clone());
    trainer.fit(&TrainTest { train: loader(120, SIZE), test: loader(64, 32) }).unwrap()
}

fn damage(folder: &Path, file: &str, how: fn(&mut Vec<u8>)) {
    let path = folder.join(file);
    let mut bytes = fs::read(&path).unwrap();
    how(&mut bytes);
    fs::write(path, bytes).unwrap();
}

#[test]
fn damaged_checkpoints_are_passed_over_and_never_loaded() {
    let _turn = beside();
    let flip: fn(&mut Vec<u8>) = |bytes| {
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
    };
    let halve: fn(&mut Vec<u8>) = |bytes| bytes.truncate(bytes.len() / 2);
    let empty: fn(&mut Vec<u8>) = Vec::clear;
    for file in ["model.bpk", "optimizer.bpk", "state.json", "manifest.json"] {
        for how in [flip, halve, empty] {
            let folder = temporary();
            let checkpoints = Checkpoints::new(folder.path(), 2).unwrap();
            let mut trainer = trainer();
            let _ = run(&mut trainer, &checkpoints, 1);
            let _ = run(&mut trainer, &checkpoints, 1);
            let saved = checkpoints.list().unwrap();
            assert_eq!(saved.len(), 2);

            damage(&saved[0], file, how);
            let mut resumed = self::trainer();
            assert_eq!(resume(&mut resumed, &checkpoints).unwrap().as_ref(), Some(&saved[1]), "{file}");
            assert_eq!(resumed.state().step, 1);

            // With both damaged nothing is loaded, and the error names the checkpoint.
            damage(&saved[1], file, how);
            let mut untouched = self::trainer();
            let before = bytes_of(untouched.model());
            let error = resume(&mut untouched, &checkpoints).unwrap_err();
            assert!(matches!(error, Error::Load { .. }) && error.to_string().contains("step-00000001"), "{error}");
            assert_eq!(bytes_of(untouched.model()), before);
            assert_eq!(untouched.state().step, 0);
        }
    }

    // Damaged checkpoints of later steps do not displace the good one that the run continued from.
    let folder = temporary();
    let checkpoints = Checkpoints::new(folder.path(), 1).unwrap();
    let _ = run(&mut trainer(), &checkpoints, 1);
    for later in ["step-00000010", "step-00000011"] {
        fs::create_dir(folder.path().join(later)).unwrap();
        fs::write(folder.path().join(later).join("manifest.json"), "{}").unwrap();
    }
    let mut resumed = trainer();
    assert!(resume(&mut resumed, &checkpoints).unwrap().is_some());
    assert_eq!(run(&mut resumed, &checkpoints, 2), Finish::Stopped);
    assert_eq!(checkpoints.list().unwrap(), [folder.path().join("step-00000003")]);
    assert_eq!(checkpoints.newest().unwrap(), Some(folder.path().join("step-00000003")));

    // A trainer that has taken further steps restores all of a checkpoint, including statistics that are not folded in yet.
    let at_three = bytes_of(resumed.model());
    let _ = resumed.step(&batch(7, SIZE)).unwrap();
    resume(&mut resumed, &checkpoints).unwrap();
    assert_eq!(resumed.state().step, 3);
    assert_eq!(bytes_of(resumed.model()), at_three);

    // A checkpoint of a run over other data is refused.
    let mut other = trainer();
    other.set_data(&loader(119, SIZE)).unwrap();
    let error = resume(&mut other, &checkpoints).unwrap_err().to_string();
    assert!(error.contains("a run of 120 samples, and this one has 119"), "{error}");
    // So is other data once the run is resumed.
    let mut other = trainer();
    resume(&mut other, &checkpoints).unwrap();
    let less = loader(119, SIZE);
    assert!(matches!(other.fit(&less), Err(Error::OtherData { was: 120, now: 119 })));
    // So is another batch size, in which the position would be another one.
    let mut other = trainer();
    resume(&mut other, &checkpoints).unwrap();
    let larger = loader(120, 32);
    let error = other.fit(&larger).unwrap_err();
    assert!(matches!(error, Error::OtherLength { unit: "batches an epoch", now: 4, .. }), "{error}");

    // A directory of the user's is no checkpoint, whatever it holds.
    let copy = folder.path().join("step-best");
    fs::create_dir(&copy).unwrap();
    assert!(!checkpoints.list().unwrap().contains(&copy));
    fs::remove_dir(&copy).unwrap();

    // A directory that a killed process left incomplete is skipped, and removed by the next save.
    let folder = temporary();
    let checkpoints = Checkpoints::new(folder.path(), 2).unwrap();
    let partial = folder.path().join(".step-00000009.partial");
    fs::create_dir(&partial).unwrap();
    fs::write(partial.join("model.bpk"), "half").unwrap();
    // The user's own files beside it stay, whatever their names.
    let own = ["best", "best.old", "mine.partial", ".mine.partial"].map(|name| folder.path().join(name));
    own.iter().for_each(|own| fs::create_dir(own).unwrap());
    fs::write(folder.path().join("list.partial"), "text").unwrap();
    let mut trainer = trainer();
    assert_eq!(resume(&mut trainer, &checkpoints).unwrap(), None);
    trainer.save_to(&checkpoints).unwrap();
    assert!(!partial.exists());
    assert!(own.iter().all(|own| own.is_dir()) && folder.path().join("list.partial").is_file());

    // A manifest of another size than one can have is not read.
    let saved = trainer.save_to(&checkpoints).unwrap();
    fs::OpenOptions::new().write(true).open(saved.join("manifest.json")).unwrap().set_len(64 << 20).unwrap();
    let error = resume(&mut trainer, &checkpoints).unwrap_err().to_string();
    assert!(error.contains("manifest.json is larger than 1048576 bytes"), "{error}");

    // A directory that is named relative to the current one.
    let here = tempfile::tempdir_in(".").unwrap();
    let relative = Checkpoints::new(here.path().file_name().unwrap(), 1).unwrap();
    let saved = trainer.save_to(&relative).unwrap();
    assert!(saved.is_relative() && saved.join("manifest.json").is_file());

    // A checkpoint cannot be written where a file is in the way; nothing is left behind.
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let blocked = Checkpoints::new(file.join("below"), 1).unwrap();
    assert!(matches!(trainer.save_to(&blocked), Err(Error::Save { .. })));
    assert!(matches!(Checkpoints::new(folder.path(), 0), Err(Error::InvalidSetting { .. })));
}

#[test]
fn impossible_settings_are_refused() {
    let _turn = beside();
    let given = settings(OptimizerConfig::sgd());
    let message = |settings: Settings| {
        let built = builder(Ids::net(), init, &settings).build(&Device::flex(), &batch(0, SIZE));
        built.map(|_| ()).unwrap_err().to_string()
    };
    assert_eq!(message(Settings { max_norm: Some(0.0), ..given.clone() }), "clip norm is 0, expected a number above 0");
    assert_eq!(message(Settings { micro_batch: Some(0), ..given.clone() }), "micro-batch is 0, expected at least 1");
    let rate = Settings { schedule: 0.0.into(), ..given };
    assert_eq!(message(rate), "learning rate is 0, expected a finite number above 0");
    let optimizer = OptimizerConfig::Sgd { momentum: 1.0, weight_decay: 0.0, nesterov: false };
    assert_eq!(optimizer.check().unwrap_err().to_string(), "momentum is 1, expected a number in [0, 1)");
    // A device without autodiff is taken with it, and a batch without samples is none.
    let mut trainer = trainer();
    let _ = trainer.step(&batch(0, SIZE)).unwrap();
    let empty = vec![];
    let built = builder(Ids::net(), init, &settings(OptimizerConfig::sgd())).build(&Device::flex(), &empty);
    assert_eq!(built.map(|_| ()).unwrap_err().to_string(), "batch size is 0, expected at least 1");
    assert!(matches!(trainer.step(&empty), Err(Error::NothingToLearn { step: 2 })));
}
