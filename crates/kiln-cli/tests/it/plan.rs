//! Plans of steps, the commands that take them, and the memory and the schedule of runs in stages.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::support::{config, output, stderr, stdout, text};
use serde_json::Value;

const SMALL: [&str; 10] =
    ["plan", "gpt", "--model", "gpt-tiny", "--context", "64", "--vocab", "256", "--precision", "f32"];

#[test]
fn each_device_of_a_division_has_a_row() {
    let folder = tempfile::tempdir().unwrap();
    let divided = ["--memory", "24GiB", "--batch", "32", "--stages", "2", "--replicas", "2", "--shard-optimizer"];
    let table = stdout(folder.path(), &[&SMALL[..], &divided].concat());
    let rows = table.lines().filter(|line| line.starts_with(|first: char| first.is_ascii_digit())).count();
    assert_eq!(rows, 2, "{table}");
    assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
    assert!(table.contains("optimizer state divided") && table.contains("bubble"), "{table}");

    for kind in ["cuda", "rocm", "metal", "vulkan", "webgpu"] {
        let device = format!("{kind}:1");
        let options = ["--memory", "24GiB", "--batch", "32", "--stages", "2", "--device", device.as_str()];
        let shown = stdout(folder.path(), &[&SMALL[..], &options].concat());
        for part in
            [format!("on each device ({kind})"), format!("--stages {kind}:0,{kind}:1"), format!("--device {device}")]
        {
            assert!(shown.contains(&part), "{shown}");
        }
    }

    let json = |more: &[&str]| -> Value {
        let options = [&SMALL[..], &["--memory", "24GiB", "--batch", "32", "--json"], more].concat();
        serde_json::from_str(&stdout(folder.path(), &options)).unwrap()
    };
    let of =
        |plan: &Value, stage: usize, figure: &str| plan["plan"]["loads"][stage]["estimate"][figure].as_u64().unwrap();
    let whole = json(&["--replicas", "2"]);
    let shared = json(&["--replicas", "2", "--shard-optimizer"]);
    assert!(of(&shared, 0, "optimizer_bytes") < of(&whole, 0, "optimizer_bytes") * 6 / 10);
    assert_eq!(whole["plan"]["batch"], 16);
    let gpipe = json(&["--stages", "2", "--pipeline-schedule", "gpipe"]);
    let flushed = json(&["--stages", "2"]);
    assert_eq!(
        (&gpipe["plan"]["loads"][1]["in_flight"], &flushed["plan"]["loads"][1]["in_flight"]),
        (&4.into(), &1.into())
    );
}

/// The command below the table, as a shell reads it.
fn pasted(shown: &str, data: &Path) -> String {
    let from = shown.find(&format!("  {} train", env!("CARGO_BIN_EXE_kiln"))).unwrap_or_else(|| panic!("{shown}"));
    // Notes stand below it.
    let command = shown[from..].split("\n\n").next().unwrap();
    assert!(command.lines().rev().skip(1).all(|line| line.ends_with('\\')), "{command}");
    command.trim_end().replace(" PATH ", &format!(" '{}' ", data.display()))
}

fn run_settings(folder: &Path, command: &str, out: &str) -> toml::Table {
    let command = format!("{command} --max-steps 1 --out {out}");
    let run = Command::new("sh").args(["-c", &command]).current_dir(folder).output().unwrap();
    assert!(run.status.success(), "{command}: {}", stderr(&run));
    let text = config(&folder.join(out));
    text.parse::<toml::Table>().unwrap()["run"].as_table().unwrap().clone()
}

/// The plan that the JSON of the same call recommends.
fn recommended(folder: &Path, arguments: &[&str]) -> Value {
    let json: Value = serde_json::from_str(&stdout(folder, &[arguments, &["--json"]].concat())).unwrap();
    assert!(json["rows"].as_array().unwrap().len() > 5, "{json}");
    json["recommended"].clone()
}

#[track_caller]
fn same_plan(settings: &toml::Table, plan: &Value) {
    assert_eq!(settings["micro_batch"].as_integer(), plan["micro_batch"].as_i64());
    assert_eq!(settings["precision"].as_str(), plan["precision"].as_str());
    assert_eq!(settings["checkpointing"].as_str(), plan["checkpointing"].as_str());
}

#[test]
fn the_printed_command_takes_the_steps_that_were_chosen() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let book = text(at, 20_000);
    // A limit that whole batches do not fit into.
    for (out, device, limit) in [("cpu", "cpu", "12MiB"), ("card", "cuda", "700MiB")] {
        let plan = ["plan", "gpt", "--model", "gpt-tiny", "--context", "64", "--vocab", "256", "--batch-size", "64"];
        let plan = [&plan[..], &["--memory", limit, "--device", device]].concat();
        let shown = stdout(at, &plan);
        // A step for a GPU is taken on the CPU: the chosen options are the same.
        let command = pasted(&shown, &book).replace("--device cuda:0", "--device cpu");
        same_plan(&run_settings(at, &command, out), &recommended(at, &plan));
    }
    let photos = at.join("photos");
    for (class, shade) in [("cat", 20), ("dog", 200)] {
        fs::create_dir_all(photos.join(class)).unwrap();
        let picture = image::RgbImage::from_pixel(32, 32, image::Rgb([shade; 3]));
        (0..12).for_each(|index| picture.save(photos.join(class).join(format!("{index}.png"))).unwrap());
    }
    let plan = ["plan", "classify", "--model", "resnet18", "--image-size", "32", "--classes", "2", "--batch-size", "8"];
    let plan =
        [&plan[..], &["--memory", "1GiB", "--device", "cpu", "--precision", "f32", "--optimizer", "sgd8bit"]].concat();
    let command = pasted(&stdout(at, &plan), &photos);
    assert!(command.contains("--optimizer sgd8bit") && command.contains("--stem imagenet"), "{command}");
    same_plan(&run_settings(at, &command, "photos-run"), &recommended(at, &plan));
}

#[test]
fn the_five_best_ways_are_shown_and_the_nearest_when_none_fits() {
    let folder = tempfile::tempdir().unwrap();
    let wide = ["plan", "gpt", "--model", "gpt-mini", "--batch-size", "512"];
    for (limit, fits) in [("24GiB", true), ("2GiB", true), ("1MiB", false)] {
        let table = stdout(folder.path(), &[&wide[..], &["--memory", limit]].concat());
        let end = table.find(" train ").unwrap_or(table.len());
        assert!(table[..end].lines().all(|line| line.chars().count() <= 80), "{table}");
        let rows: Vec<&str> = table.lines().skip(4).take_while(|line| !line.is_empty()).collect();
        assert_eq!(rows.len(), 5, "{table}");
        assert_eq!(rows[0].starts_with('>'), fits, "{table}");
        assert!(table.contains("relative to the fastest"), "{table}");
        match fits {
            true => assert!(table.contains("train gpt") && !table.contains("lacks"), "{table}"),
            false => assert!(table.contains("Nothing fits") && table.contains("lacks"), "{table}"),
        }
    }
    let every = stdout(folder.path(), &[&wide[..], &["--memory", "2GiB", "--all"]].concat());
    assert!(every.lines().count() > 30 && every.lines().any(|line| line.starts_with('>')), "{every}");
}

#[test]
fn optimizers_in_few_bits_and_on_the_host_are_compared() {
    let folder = tempfile::tempdir().unwrap();
    let ways = |options: &[&str]| {
        let plan = ["plan", "gpt", "--model", "gpt2", "--memory", "8GiB", "--batch-size", "8", "--all", "--json"];
        let json: Value = serde_json::from_str(&stdout(folder.path(), &[&plan[..], options].concat())).unwrap();
        let way = |row: &Value| (row["optimizer"].as_str().unwrap().to_owned(), row["optimizer_on_host"] == true);
        json["rows"].as_array().unwrap().iter().map(way).collect::<std::collections::BTreeSet<_>>()
    };
    let of = |names: &[(&str, bool)]| names.iter().map(|(name, host)| ((*name).to_owned(), *host)).collect();
    assert_eq!(ways(&[]), of(&[("adamw", false), ("adamw", true), ("adamw8bit", false)]));
    // The one that is named is the only one, wherever its state is.
    assert_eq!(ways(&["--optimizer", "adamw4bit"]), of(&[("adamw4bit", false), ("adamw4bit", true)]));
    assert_eq!(ways(&["--device", "cpu"]), of(&[("adamw", false), ("adamw8bit", false)]));
}

#[test]
fn the_names_of_train_and_the_old_ones_are_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let plan = |options: &[&str]| {
        stdout(folder.path(), &[&["plan", "resnet", "--memory", "8GiB", "--precision", "f32"], options].concat())
    };
    let new = plan(&["--model", "resnet18", "--batch-size", "8", "--image-size", "64"]);
    assert_eq!(plan(&["--model", "resnet18", "--batch", "8", "--image", "64"]), new);
    assert_eq!(plan(&["--model", "resnet18", "--bs", "8", "--image-size", "64", "--device", "gpu"]), new);
}

#[test]
fn options_that_do_not_go_together_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |more: &[&str], named: &str| {
        let memory = if more.contains(&"--memory") { &[][..] } else { &["--memory", "24GiB"] };
        let refused = output(folder.path(), &[&SMALL[..], &["--batch", "32"], memory, more].concat());
        assert!(!refused.status.success() && stderr(&refused).contains(named), "{}", stderr(&refused));
    };
    refused(&["--shard-optimizer"], "--replicas");
    refused(&["--pipeline-schedule", "gpipe"], "--stages");
    refused(&["--stages", "2", "--pipeline-schedule", "zigzag"], "1f1b");
    refused(&["--stages", "0"], "--stages");
    refused(&["--stages", "100"], "stages");
    refused(&["--replicas", "3"], "multiple");
    refused(&["--stages", "2", "--memory", "1MiB"], "does not fit");
}

#[test]
fn a_run_in_stages_shows_its_schedule_and_what_each_device_holds() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let book = text(at, 20_000);
    let settings = ["--data", book.to_str().unwrap(), "--model", "gpt-tiny", "--context", "32", "--batch-size", "8"];
    let run = ["--stages", "2", "--max-steps", "2", "--json", "--out", "run"];
    let trained = stdout(at, &[&["train", "gpt"], &settings[..], &run].concat());
    let results: Value = serde_json::from_str(trained.lines().last().unwrap()).unwrap();
    let share = |name: &str| results[name].as_f64().unwrap();
    assert!((0.0..1.0).contains(&share("bubble")) && (0.0..1.0).contains(&share("predicted_bubble")), "{results}");
    assert_eq!(results["micro_batch"], 2, "two micro-batches for each stage");
    assert_eq!(results["devices"].as_array().map(Vec::len), Some(2));
    let page = fs::read_to_string(at.join("run/report.html")).unwrap();
    assert_eq!(page.matches("<rect class=\"f-backward\" x").count(), 8, "two stages, four micro-batches");
    assert!(page.contains("Schedule of the last step") && page.contains("color-scheme"));
    let memory = fs::read_to_string(at.join("run/memory.html")).unwrap();
    assert!(memory.contains("stage 1, predicted"), "{memory}");
    assert!(config(&at.join("run")).contains("micro_batch = 2"));

    let memory = [&["memory", "gpt"], &settings[..], &["--stages", "2", "--json", "--out", "memory"]].concat();
    let memory: Value = serde_json::from_str(&stdout(at, &memory)).unwrap();
    for stage in 0..2 {
        let predicted = memory["plan"]["loads"][stage]["estimate"]["passes_peak_bytes"].as_f64().unwrap();
        let measured = memory["stages"][stage]["peak_bytes"].as_f64().unwrap();
        assert!((predicted / measured - 1.0).abs() < 0.15, "stage {stage}: {predicted} {measured}");
    }
}

#[test]
fn the_changes_that_memory_lists_have_the_peaks_that_it_says() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let book = text(at, 20_000);
    let data = ["--data", book.to_str().unwrap(), "--model", "gpt-tiny", "--context", "64", "--batch-size", "32"];
    let memory = |more: &[&str]| stdout(at, &[&["memory", "gpt", "--out", "memory"], &data[..], more].concat());
    let shown = memory(&[]);
    assert!(shown.contains("What makes it smaller") && shown.contains("--micro-batch 16"), "{shown}");
    assert!(shown.lines().all(|line| line.chars().count() <= 80), "{shown}");
    let page = fs::read_to_string(at.join("memory/memory-gpt.html")).unwrap();
    assert!(page.contains("What you can do about it") && page.contains("data-copy=\"--micro-batch 16\""));

    let report: Value = serde_json::from_str(&memory(&["--json"])).unwrap();
    let peak = |report: &Value| report["prediction"]["peak_bytes"].as_f64().unwrap();
    let suggestions = report["suggestions"].as_array().unwrap();
    assert!(suggestions.len() >= 4, "{suggestions:?}");
    for suggestion in suggestions {
        let option = suggestion["option"].as_str().unwrap();
        let options: Vec<_> = option.split(' ').chain(["--json"]).collect();
        let changed: Value = serde_json::from_str(&memory(&options)).unwrap();
        let said = suggestion["peak_bytes"].as_f64().unwrap();
        assert!((peak(&changed) / said - 1.0).abs() < 1e-3, "{option}: {said}, then {}", peak(&changed));
        assert!(said < peak(&report), "{option}");
    }
}
