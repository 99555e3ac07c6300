//! Every optimizer that settings can name, beside the laws: it learns, its state moves to the host, and only its own state is loaded.

use std::path::Path;

use burn::tensor::Device;
use burn_pack::{Reader, Writer};
use kiln_recovery::{Injector, Ladder, Offload, Reclaim};
use kiln_training::{Checkpoints, Error, OptimizerConfig, Schedule};
use serde_json::json;

use crate::support::{
    Ids, Net, Settings, Snapshot, Watched, batch, builder, inject, numbers, recovery, settings, temporary, turn,
};

const STEPS: u64 = 4;
const BATCH: usize = 8;

fn config(name: &str) -> OptimizerConfig {
    OptimizerConfig::named(name).unwrap()
}

/// The hidden layer has more than 4,096 elements: optimizers with state in few bits leave smaller ones in f32.
fn net(_: &Device) -> Net {
    Net::new(&[16, 72, 72], true, 0.1)
}

fn settings_of(name: &str) -> Settings {
    let rate = match name {
        "sgd" | "sgd8bit" => 0.05,
        "lion" => 1e-3,
        _ => 5e-3,
    };
    Settings { schedule: Schedule::constant(rate), ..settings(config(name)) }
}

fn trainer(name: &str, on_host: bool) -> Watched<Ids<Net>> {
    let optimizer = config(name);
    let builder = builder(Ids::net(), net, &settings_of(name));
    let builder = builder.with_optimizer(move |model: &Net| match on_host {
        true => optimizer.offloaded_groups(model),
        false => optimizer.groups(model),
    });
    Watched::build(builder, &batch(0, BATCH))
}

fn steps(trainer: &mut Watched<Ids<Net>>, range: std::ops::Range<u64>) -> Vec<String> {
    range.map(|step| numbers(&trainer.step(&batch(step, BATCH)).unwrap())).collect()
}

#[test]
fn each_learns() {
    let _turn = turn();
    for name in OptimizerConfig::NAMES {
        let mut trainer = trainer(name, false);
        let losses: Vec<f64> = (0..60).map(|step| trainer.step(&batch(step % 2, BATCH)).unwrap().loss).collect();
        let [first, last] = [losses[0] + losses[1], losses[58] + losses[59]];
        assert!(last < 0.7 * first, "{name}: {first} to {last}");
    }
}

#[test]
fn state_that_is_moved_to_the_host_for_lack_of_memory_keeps_the_numbers() {
    let _turn = turn();
    for name in OptimizerConfig::NAMES {
        let run = |faults: Injector| {
            let mut trainer = trainer(name, false);
            let ladder = Ladder::new().with(Reclaim { times: 1 }).with(Offload);
            trainer.set_recovery(Some(recovery(BATCH, BATCH, ladder)));
            inject(&mut trainer, faults);
            let numbers: Vec<String> = steps(&mut trainer, 0..STEPS);
            let offload = trainer.recovery().unwrap().setting(BATCH, 0).offload;
            (numbers, Snapshot::of(&trainer), offload)
        };
        let (expected, undisturbed, offload) = run(Injector::calls([]));
        assert!(!offload);
        // The second step fails twice: at its first boundary, and again after memory was freed.
        let per_step = {
            let mut trainer = trainer(name, false);
            let faults = inject(&mut trainer, Injector::calls([]));
            let _ = steps(&mut trainer, 0..1);
            faults.seen()
        };
        let (found, snapshot, offload) = run(Injector::calls([per_step + 1, per_step + 2]));
        assert!(offload, "{name}: the state is still on the device");
        assert_eq!(found, expected, "{name}");
        snapshot.assert_same(&undisturbed, name);
    }
}

/// Files of a checkpoint with another block size of its codes, as another version of Kiln may write them, and a manifest that fits.
fn with_other_blocks(path: &Path) {
    let file = path.join("optimizer.bpk");
    let reader = Reader::from_file(&file).unwrap();
    let scalars = reader.scalars().clone();
    let paths = reader.metadata().clone();
    let mut writer = Writer::new(reader.into_tensors().unwrap());
    for (name, value) in scalars {
        writer = writer.with_scalar(&name, if name.ends_with(".block") { 512u32.into() } else { value });
    }
    let writer = paths.iter().fold(writer, |writer, (id, path)| writer.with_metadata(id, path));
    let after = writer.into_bytes().unwrap();
    std::fs::write(&file, &*after).unwrap();
    let manifest = path.join("manifest.json");
    let mut files: serde_json::Value = serde_json::from_slice(&std::fs::read(&manifest).unwrap()).unwrap();
    files["files"]["optimizer.bpk"] = json!({ "bytes": after.len(), "crc32": crc32fast::hash(&after) });
    std::fs::write(&manifest, files.to_string()).unwrap();
}

#[test]
fn state_that_cannot_be_read_is_an_error_that_names_the_parameter_and_what_to_do() {
    let _turn = turn();
    for name in ["adamw8bit", "adamw4bit", "sgd8bit"] {
        let folder = temporary();
        let checkpoints = || Checkpoints::new(folder.path(), 1).unwrap();
        let mut saved = trainer(name, false);
        let _ = steps(&mut saved, 0..2);
        let path = saved.save_to(&checkpoints()).unwrap();
        with_other_blocks(&path);
        for on_host in [false, true] {
            let mut other = trainer(name, on_host);
            let before = Snapshot::of(&other);
            other.set_checkpoints(checkpoints());
            for error in [other.resume().unwrap_err(), other.start_from(&path).unwrap_err()] {
                assert!(matches!(error, Error::Load { .. }), "{error}");
                let text = error.to_string();
                assert!(text.contains("cannot read the state of layers.1.weight"), "{text}");
                assert!(text.contains("begin a new run from its model"), "{text}");
            }
            Snapshot::of(&other).assert_same(&before, "a run that could not be resumed");
        }
    }
}

#[test]
fn a_checkpoint_of_another_optimizer_is_refused() {
    let _turn = turn();
    let folder = temporary();
    let checkpoints = || Checkpoints::new(folder.path(), 1).unwrap();
    let mut saved = trainer("adamw", false);
    let _ = steps(&mut saved, 0..1);
    saved.save_to(&checkpoints()).unwrap();
    for name in ["adamw8bit", "adamw4bit", "lion", "sgd"] {
        let mut other = trainer(name, false);
        other.set_checkpoints(checkpoints());
        let error = other.resume().unwrap_err().to_string();
        assert!(error.contains("its optimizer is AdamW") && error.contains("this run has "), "{error}");
        assert!(error.contains("resume with those of the checkpoint"), "{error}");
    }
}
