//! A run whose parameters are in a store: after each step the store is the run, and a failure of it changes nothing.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use kiln_checkpointing::Plan;
use kiln_data::TrainTest;
use kiln_memory::BackendProfile;
use kiln_models::GptConfig;
use kiln_parallel::Schedule;
use kiln_precision::{Policy, Precision};
use kiln_recovery::{Injector, Ladder};
use kiln_training::{
    Checkpoints, Error, Finish, MemoryBudget, OptimizerConfig, Planner, StoreConfig, Trainer, TrainerBuilder,
};

use crate::HEAP;
use crate::case::{Case, Classify, Epochs, Make, Parts, Way, gpt, large_vocabulary, pruning, resnet, stages};
use crate::support::{Settings, Snapshot, beside, device, inject, noted, planned, recovery, temporary, told, turn};

/// A case, streamed from a directory.
fn in_directory<'a>(case: &'a Case, directory: &Path) -> TrainerBuilder<'a, Classify> {
    let way = Way::streamed(case.task.make.blocks_in_store());
    let store = StoreConfig::Directory(directory.to_owned());
    case.builder(&way, None).with(|settings| settings.memory.store = Some(store))
}

fn built(case: &Case, directory: &Path) -> Trainer<Classify> {
    in_directory(case, directory).build(&device(), &case.batch(0)).unwrap()
}

fn refused(builder: TrainerBuilder<'_, Classify>, case: &Case) -> String {
    builder.build(&device(), &case.batch(0)).map(|_| ()).unwrap_err().to_string()
}

/// A ResNet, whose batch-norm has running statistics, with a momentum in the store.
fn case() -> Case {
    Case::new(resnet(4, false), OptimizerConfig::sgd(), 4, 2).steps(5)
}

/// A decoder whose embedding, parameter 0, is in memory some rows at a time.
fn by_rows() -> Case {
    Case::new(Make::Gpt(large_vocabulary()), OptimizerConfig::adamw(), 4, 2).steps(5)
}

/// The events of a run up to its end or to step `stop`, and the run.
fn fitted(case: &Case, directory: &Path, stop: Option<u64>) -> (Vec<String>, Snapshot) {
    let mut trainer = built(case, directory);
    let notes = noted(&mut trainer, told, move |report| stop == Some(report.step));
    let batches: Vec<_> = (0..2).map(|step| case.batch(step)).collect();
    let samples = case.sizes.iter().sum();
    let data =
        TrainTest { train: Epochs { batches, samples }, test: Epochs { batches: vec![case.batch(7)], samples: 1 } };
    let ended = trainer.fit(&data).unwrap();
    assert_eq!(ended, if stop.is_some() { Finish::Stopped } else { Finish::Complete });
    let snapshot = Snapshot::of(&trainer);
    (notes.take(), snapshot)
}

#[test]
fn a_run_without_checkpoints_goes_on_from_its_store_after_any_step() {
    let _turn = turn();
    let case = case();
    let expected = case.run(&Way::default());
    for stop in 1..5 {
        let folder = temporary();
        let (mut notes, _) = fitted(&case, folder.path(), Some(stop));
        assert_eq!(built(&case, folder.path()).state().step, stop);
        // What belongs to the end of the step, as its evaluation, is done again.
        let (after, run) = fitted(&case, folder.path(), None);
        notes.retain(|note| !after.contains(note));
        notes.extend(after);
        assert_eq!(notes, expected.told, "stopped after {stop}");
        run.assert_same(expected.snapshot.as_ref().unwrap(), &format!("stopped after {stop}"));
    }
}

/// The file that a store writes next for a blob: a folder in its place makes that fail.
fn blocked(directory: &Path, blob: &str) -> PathBuf {
    let files = [0, 1].map(|version| directory.join(format!("{blob}.{version}")));
    let index = fs::read_to_string(directory.join("store.json")).unwrap();
    let index: serde_json::Value = serde_json::from_str(&index).unwrap();
    let (number, content) = blob.split_once('-').unwrap();
    let (number, part) = number.split_once('+').unwrap_or((number, "0"));
    let of_blob = |entry: &&serde_json::Value| {
        let is_part = entry[0]["part"].as_u64().unwrap_or(0) == part.parse::<u64>().unwrap();
        entry[0]["parameter"].as_u64() == number.parse().ok() && entry[0]["content"] == content && is_part
    };
    let current = index["blobs"].as_array().unwrap().iter().find(of_blob);
    let current = current.map_or(1, |entry| entry[1]["file"].as_u64().unwrap());
    files[1 - current as usize].clone()
}

#[test]
fn a_store_that_fails_anywhere_ends_the_step_with_an_error_and_changes_nothing() {
    let _turn = turn();
    // Gradients fail in the backward pass, values and states in the update, the rest and the index in the commit.
    let blobs = ["0-gradient", "9-gradient", "0-value", "9-value", "9-state", "0-rest", "store.json.new"];
    fails_at(&case(), &blobs);
    // In parts: the last operation's gradient, the first one's with the sum, and the update.
    fails_at(&by_rows(), &["0-partial", "0+1-partial", "0+1-gradient", "0+1-value", "0+1-state"]);
}

/// Runs in which files cannot be written once.
fn fails_at(case: &Case, blobs: &[&str]) {
    let step = |trainer: &mut Trainer<Classify>| trainer.step(&case.batch(trainer.state().step));
    let folder = temporary();
    let mut plain = built(case, &folder.path().join("plain"));
    let expected: Vec<_> = (0..4).map(|_| step(&mut plain).unwrap().loss.to_bits()).collect();
    let expected_run = Snapshot::of(&plain);
    for (number, blob) in blobs.iter().enumerate() {
        let directory = folder.path().join(format!("store {number}"));
        let mut trainer = built(case, &directory);
        let mut losses = vec![step(&mut trainer).unwrap().loss.to_bits(), step(&mut trainer).unwrap().loss.to_bits()];
        let before = Snapshot::of(&trainer);
        let file = if blob.contains('-') { blocked(&directory, blob) } else { directory.join(blob) };
        let aside = file.with_extension("aside");
        if file.exists() {
            fs::rename(&file, &aside).unwrap();
        }
        fs::create_dir(&file).unwrap();
        let error = step(&mut trainer).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, Error::Checkpointing(kiln_checkpointing::Error::Store { .. })), "{blob}: {text}");
        let named = file.file_name().unwrap().to_str().unwrap().trim_end_matches(".new");
        assert!(!text.contains('\n') && text.contains(named), "{blob}: {text}");
        Snapshot::of(&trainer).assert_same(&before, blob);
        fs::remove_dir(&file).unwrap();
        if aside.exists() {
            fs::rename(&aside, &file).unwrap();
        }
        losses.extend((0..2).map(|_| step(&mut trainer).unwrap().loss.to_bits()));
        assert_eq!(losses, expected, "{blob}");
        Snapshot::of(&trainer).assert_same(&expected_run, blob);
    }
}

#[test]
fn a_value_that_cannot_be_read_is_an_error_of_the_step_and_of_the_evaluation() {
    let _turn = turn();
    for (case, blob) in [(case(), "9-value"), (by_rows(), "0+1-value")] {
        cannot_be_read(&case, blob);
    }
}

fn cannot_be_read(case: &Case, blob: &str) {
    let folder = temporary();
    let mut trainer = built(case, folder.path());
    let _ = trainer.step(&case.batch(0)).unwrap();
    let next = blocked(folder.path(), blob);
    let current = next.with_extension(if next.extension().unwrap() == "0" { "1" } else { "0" });
    fs::write(&current, "damaged").unwrap();
    let data = Epochs { batches: vec![case.batch(1)], samples: 4 };
    for error in [trainer.step(&case.batch(1)).unwrap_err(), trainer.evaluate(&data).unwrap_err()] {
        assert!(error.to_string().contains(blob) && error.to_string().contains("damaged"), "{error}");
    }
    assert_eq!(trainer.state().step, 1);
}

#[test]
fn what_a_store_cannot_have_is_refused_in_one_line() {
    let _turn = turn();
    let case = case();
    let folder = temporary();
    let used = folder.path().join("used");
    let mut first = built(&case, &used);
    let text = refused(in_directory(&case, &used), &case);
    assert!(text.contains("uses it"), "{text}");
    let _ = first.step(&case.batch(0)).unwrap();
    drop(first);

    let other = Case::new(resnet(8, false), OptimizerConfig::sgd(), 4, 2);
    let text = refused(in_directory(&other, &used), &other);
    assert!(text.contains("the model"), "{text}");
    let other = Case::new(resnet(4, false), OptimizerConfig::adamw(), 4, 2).steps(5);
    let text = refused(in_directory(&other, &used), &other);
    assert!(text.contains("its optimizer is"), "{text}");
    fs::write(folder.path().join("notes.txt"), "mine").unwrap();
    let text = refused(in_directory(&case, folder.path()), &case);
    assert!(text.contains("notes.txt") || text.contains("used"), "{text}");

    let streamed = || in_directory(&case, &folder.path().join("new"));
    let text = refused(streamed().with(|settings| settings.memory.store = None), &case);
    assert_eq!(text, "store is none, expected a directory or the host's memory: the plan streams blocks");
    let text = refused(streamed().with_stages(stages(2, Schedule::GPipe)), &case);
    assert!(text.contains("streams no block of stages or replicas"), "{text}");
    let edited = streamed().with_model_edit(|_, _, _| Ok::<_, std::fmt::Error>(None));
    assert!(refused(edited, &case).contains("edit of the model"));
    let pruned = pruning().on(streamed());
    assert!(refused(pruned, &case).contains("expected none in a run that streams blocks"));
}

#[test]
fn a_checkpoint_of_a_run_in_memory_begins_one_in_a_store_and_a_damaged_one_changes_nothing() {
    let _turn = turn();
    let case = case();
    let folder = temporary();
    let checkpoints = Checkpoints::new(folder.path().join("run"), 2).unwrap();
    let mut plain = case.trainer(&Way::default());
    for step in 0..2 {
        let _ = plain.step(&case.batch(step)).unwrap();
    }
    let saved = plain.save_to(&checkpoints).unwrap();
    let mut streamed = built(&case, &folder.path().join("store"));
    let _ = streamed.step(&case.batch(9)).unwrap();
    let before = Snapshot::of(&streamed);

    let damaged = folder.path().join("damaged");
    fs::create_dir(&damaged).unwrap();
    for file in fs::read_dir(&saved).unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), damaged.join(file.file_name())).unwrap();
    }
    let model = fs::read(damaged.join("model.bpk")).unwrap();
    fs::write(damaged.join("model.bpk"), &model[..model.len() - 1]).unwrap();
    assert!(matches!(streamed.start_from(&damaged), Err(Error::Load { .. })));
    let other = Case::new(resnet(8, false), OptimizerConfig::sgd(), 4, 2).steps(5);
    let other = other.trainer(&Way::default()).save_to(&Checkpoints::new(folder.path().join("other"), 1).unwrap());
    let error = streamed.start_from(&other.unwrap()).unwrap_err();
    assert!(error.to_string().contains("not a checkpoint of this model"), "{error}");
    Snapshot::of(&streamed).assert_same(&before, "after checkpoints that cannot be used");

    streamed.start_from(&saved).unwrap();
    assert_eq!(streamed.state().step, 1, "a new run begins from it");
    streamed.set_checkpoints(checkpoints);
    assert_eq!(streamed.resume().unwrap(), Some(saved), "the checkpoint is newer");
    Snapshot::of(&streamed).assert_same(&Snapshot::of(&plain), "resumed in a store");
    assert_eq!(streamed.resume().unwrap(), Some(folder.path().join("store")), "the store has the run");
}

/// Set in a process that runs one test.
const ALONE: &str = "KILN_TEST_ALONE";

/// Runs a test in a process of its own, unless this is that process: in one in which the laws have run before, a step takes 0.8
/// to 0.9 MB more.
fn runs_elsewhere(test: &str) -> bool {
    if std::env::var_os(ALONE).is_some() {
        return false;
    }
    let mut process = Command::new(std::env::current_exe().unwrap());
    let output = process.args(["--exact", test, "--nocapture"]).env(ALONE, "1").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    true
}

#[test]
fn a_budget_below_the_model_streams_its_blocks_and_holds() {
    let _turn = turn();
    if runs_elsewhere("stored::a_budget_below_the_model_streams_its_blocks_and_holds") {
        return;
    }
    let case = Case::new(Make::Gpt(gpt(0.0, true).with_layers(6)), OptimizerConfig::adamw(), 8, 8);
    let folder = temporary();
    let builder = |store: Option<&str>| {
        let mut builder = planned(case.task.clone(), |device| case.task.make.init(device), &case.settings);
        builder.memory.micro_batch = None;
        builder.memory.store = store.map(|store| StoreConfig::Directory(folder.path().join(store)));
        // Values are read ahead at any moment: a step may need a second attempt.
        builder.with_allocator(&HEAP).with_recovery(true)
    };
    let planner = |store| builder(store).planner(&BackendProfile::flex(), &case.batch(0), 8).unwrap();
    let (in_memory, stored) = (planner(None), planner(Some("planned")));
    let least = |planner: &Planner| {
        let candidates = planner.candidates(Precision::F32, 1).unwrap();
        candidates.iter().map(|plan| plan.peak_bytes).min().unwrap()
    };
    let (all, few) = (least(&in_memory), least(&stored));
    assert!(3 * few < all, "{few} of {all}");
    // Memory is preferred.
    assert!(!stored.choose(all * 11 / 10).unwrap().checkpoints.streams());
    let mut before = (0, 0);
    for limit in [all * 9 / 10, all * 6 / 10, all * 4 / 10, all * 25 / 100] {
        assert!(in_memory.choose(limit).is_err());
        let name = format!("within {limit} of {all}");
        let new = builder(Some(&name)).with_memory(MemoryBudget::Bytes(limit));
        let mut trainer = new.build(&device(), &case.batch(0)).unwrap();
        let plan = trainer.plan().unwrap().clone();
        let now = (plan.checkpoints.streamed(), plan.moved_bytes);
        assert!(plan.fits && now.0 > 0 && now >= before, "{name}: {plan}");
        before = now;
        let step = |step| trainer.step(&case.batch(step)).unwrap_or_else(|error| panic!("{name}: {plan}: {error}"));
        let measured = (0..3).map(step).last().unwrap().peak_bytes.unwrap();
        let predicted = plan.peak_bytes;
        assert!(measured <= limit, "{name}: {measured} of {limit}, predicted {predicted}");
        // Half a MB is not predicted: a quarter of the smallest step.
        assert!(measured.abs_diff(predicted) < predicted / 10 + (1 << 19), "{name}: {measured}, predicted {predicted}");
    }
    let (streamed, all) = (stored.choose(few * 11 / 10).unwrap().checkpoints.streamed(), stored.blocks_in_store());
    assert!(before.0 > 0 && all == 12 && streamed + 2 >= all, "{streamed} of {all} are streamed");
}

#[test]
fn a_plan_that_streams_is_about_the_blocks_of_a_step_in_a_store() {
    let _turn = turn();
    let case = by_rows();
    let on_host = |blocks| case.builder(&Way::streamed(blocks), None);
    assert_eq!(refused(on_host(1), &case), "the plan is for 1 blocks, the chain has 2");
    let planner = on_host(2).planner(&BackendProfile::flex(), &case.batch(0), 4).unwrap();
    assert_eq!((planner.blocks(), planner.blocks_in_store()), (1, 2));
    let whole = case.builder(&Way::plan(Plan::every(1, 1).unwrap()), None);
    assert!(whole.build(&device(), &case.batch(0)).unwrap().plan().is_some());
}

/// Weights of 5.3 MB, which an update divides, with state for each element and for blocks of elements, and in bf16.
#[test]
fn a_large_parameter_is_updated_in_parts_with_the_same_bits() {
    let _turn = turn();
    for (name, in_bf16) in [
        ("adamw", false),
        ("adamw", true),
        ("lion", false),
        ("sgd8bit", false),
        ("adamw8bit", true),
        ("adamw4bit", false),
    ] {
        eprintln!("{name}, in bf16 {in_bf16}");
        let parts = Parts { width: 1152, norms: false, tied: false, ..Parts::new(2) };
        let case = Case::new(Make::Chain(parts), OptimizerConfig::named(name).unwrap(), 4, 2).steps(2);
        updated_in_parts(if in_bf16 { case.with(stored_in_bf16) } else { case });
    }
}

/// Words of 32 MB, with an optimizer that updates them in parts of 4 MiB, and with one that cannot.
#[test]
fn a_plan_counts_the_part_of_a_large_parameter_that_an_update_has_in_memory() {
    let _turn = beside();
    let config = GptConfig { vocab: 1_000_000, ..large_vocabulary() };
    let peak = |name: &str, in_bf16: bool| {
        let case = Case::new(Make::Gpt(config.clone()), OptimizerConfig::named(name).unwrap(), 4, 2);
        let case = if in_bf16 { case.with(stored_in_bf16) } else { case };
        let (way, store) = (Way::streamed(case.task.make.blocks_in_store()), StoreConfig::Host);
        let builder = case.builder(&way, None).with(|settings| settings.memory.store = Some(store));
        let planner = builder.planner(&BackendProfile::flex(), &case.batch(0), 4).unwrap();
        let (plan, precision) =
            (Plan::stream(planner.blocks_in_store(), 1).unwrap(), planner.precisions().next().unwrap());
        planner.evaluate(precision, &plan, 2, u64::MAX).unwrap().peak_bytes
    };
    let whole = peak("adafactor", false);
    assert!(whole > 3 * 32_000_000, "{whole}");
    for (name, in_bf16) in
        [("adamw", false), ("adamw", true), ("adamw8bit", false), ("adamw8bit", true), ("lion", false)]
    {
        let in_parts = peak(name, in_bf16);
        assert!(in_parts < 10 * (4 << 20), "{name}, in bf16 {in_bf16}: {in_parts}");
    }
}

fn stored_in_bf16(settings: Settings) -> Settings {
    Settings { policy: Policy::new(Precision::BF16).storing(), ..settings }
}

fn updated_in_parts(case: Case) {
    let folder = temporary();
    let (stored, checkpoints) = (folder.path().join("store"), Checkpoints::new(folder.path().join("run"), 1).unwrap());
    let (mut plain, mut streamed) = (case.trainer(&Way::default()), built(&case, &stored));
    let files = fs::read_dir(&stored).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
    assert!(files.filter(|file| file.contains('+')).count() > 0, "no parameter is divided");
    for step in 0..2 {
        assert_eq!(plain.step(&case.batch(step)).unwrap().loss, streamed.step(&case.batch(step)).unwrap().loss);
    }
    let expected = Snapshot::of(&plain);
    Snapshot::of(&streamed).assert_same(&expected, "streamed");
    // To a run in a store that has gone elsewhere, and back to one in memory.
    let path = plain.save_to(&checkpoints).unwrap();
    let _ = streamed.step(&case.batch(7)).unwrap();
    streamed.start_from(&path).unwrap();
    let back = Checkpoints::new(folder.path().join("back"), 1).unwrap();
    let _ = streamed.save_to(&back).unwrap();
    let mut again = case.trainer(&Way::default());
    again.set_checkpoints(back);
    again.resume().unwrap();
    let _ = plain.step(&case.batch(2)).unwrap();
    for (name, trainer) in [("streamed", &mut streamed), ("again", &mut again)] {
        let _ = trainer.step(&case.batch(2)).unwrap();
        assert_eq!(Snapshot::of(trainer).distance(&Snapshot::of(&plain)), 0.0, "{name}");
    }
}

#[test]
fn streamed_blocks_stay_in_the_store_when_memory_runs_out() {
    let _turn = turn();
    let case = Case::new(resnet(4, false), OptimizerConfig::sgd(), 4, 4);
    let blocks = case.task.make.blocks();
    let plan = Plan::none(blocks).with_streamed(1);
    let run = |failures: u64| {
        let mut trainer = case.trainer(&Way::plan(plan.clone()));
        trainer.set_recovery(Some(recovery(4, 4, Ladder::new().with_plans(3).with_offload())));
        inject(&mut trainer, Injector::calls(1..=failures));
        let report = trainer.step(&case.batch(0)).unwrap();
        assert_eq!(report.failures as u64, failures);
        Snapshot::of(&trainer)
    };
    let expected = run(0);
    for failures in 1..=3 {
        run(failures).assert_same(&expected, &format!("after {failures} failures"));
    }
}
