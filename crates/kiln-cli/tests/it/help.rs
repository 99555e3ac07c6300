//! The help of every command, the words that options take, and what a wrong word is answered with.

use std::path::Path;

use clap::{Arg, Command, Subcommand};

use super::support::{config, done, kiln, output, stderr, text};

/// Options whose help says no default: without them nothing is done, or nothing is given.
const WITHOUT_DEFAULT: [&str; 10] =
    ["config", "resume", "from", "freeze", "classes", "teacher", "lora", "base_batch", "pattern", "skip"];

fn program() -> Command {
    let program = kiln_cli::Command::augment_subcommands(Command::new("kiln"));
    let mut program = <kiln_cli::Verbosity as clap::Args>::augment_args(program);
    program.build();
    program
}

/// All commands that have no commands below them, with their paths.
fn leaves(command: &Command, path: &str, into: &mut Vec<(String, Command)>) {
    for below in command.get_subcommands().filter(|below| below.get_name() != "help") {
        let path = format!("{path} {}", below.get_name());
        match below.has_subcommands() {
            true => leaves(below, &path, into),
            false => into.push((path, below.clone())),
        }
    }
}

fn commands() -> Vec<(String, Command)> {
    let mut all = vec![];
    leaves(&program(), "kiln", &mut all);
    assert!(all.len() > 15, "{}", all.len());
    all
}

fn help_of(arg: &Arg) -> String {
    let of = |text: Option<&clap::builder::StyledStr>| text.map_or(String::new(), ToString::to_string);
    format!("{} {}", of(arg.get_help()), of(arg.get_long_help()))
}

#[test]
fn every_option_has_a_line_of_help_and_its_default() {
    program().debug_assert();
    for (path, command) in commands() {
        for arg in command.get_arguments().filter(|arg| !arg.is_hide_set() && arg.get_id() != "help") {
            let help = help_of(arg);
            assert!(help.trim().len() > 3, "{path} --{}", arg.get_id());
            assert!(
                help.chars().next().is_some_and(char::is_uppercase)
                    || help.starts_with("gpt-")
                    || help.starts_with("fail"),
                "{path}: {help}"
            );
            if arg.get_action().takes_values()
                && !arg.is_required_set()
                && !WITHOUT_DEFAULT.contains(&arg.get_id().as_str())
            {
                let said = help.contains("[default: ") || !arg.get_default_values().is_empty();
                assert!(said, "{path} --{} has no default in its help: {help}", arg.get_id());
            }
        }
    }
}

#[test]
fn the_devices_are_named_wherever_one_is_chosen() {
    let all = commands().into_iter().filter(|(path, _)| !path.starts_with("kiln plan"));
    let helps: Vec<(String, String)> = all
        .filter_map(|(path, command)| {
            let device = command.get_arguments().find(|arg| arg.get_id() == "device").map(help_of);
            device.map(|help| (path, help))
        })
        .collect();
    assert!(helps.len() > 10, "{helps:?}");
    for (path, help) in helps {
        for name in ["cpu", "gpu:N", "cuda:N", "rocm:N", "metal:N", "vulkan:N", "webgpu:N"] {
            assert!(help.contains(name), "{path}: {help}");
        }
    }
}

#[test]
fn every_help_fits_into_80_columns() {
    for (path, mut command) in commands() {
        for width in [80, 100] {
            let mut command = command.clone().term_width(width);
            for help in [command.render_help().to_string(), command.render_long_help().to_string()] {
                let long = help.lines().find(|line| line.chars().count() > width);
                assert!(long.is_none(), "{path} at {width} columns: {long:?}");
            }
        }
        let (short, long) = (command.render_help().to_string(), command.render_long_help().to_string());
        assert!(short.len() <= long.len(), "{path}");
        assert!(short.contains("Example"), "{path} has no example");
    }
}

/// Examples are calls that are understood.
#[test]
fn examples_parse() {
    let mut examples = 0;
    for (path, mut command) in commands() {
        let help = command.render_help().to_string();
        for line in help.lines().filter(|line| line.starts_with("  kiln ")) {
            for call in line.split('#').next().unwrap().split("&&") {
                let words: Vec<&str> = call.split_whitespace().collect();
                let parsed = program().try_get_matches_from(&words);
                assert!(parsed.is_ok(), "{path}: {call}: {:?}", parsed.err().map(|error| error.to_string()));
                examples += 1;
            }
        }
    }
    assert!(examples > 25, "{examples}");
}

#[test]
fn a_command_lists_only_what_it_takes() {
    let folder = tempfile::tempdir().unwrap();
    let long_help = |of: &str| {
        let (_, mut command) = commands().into_iter().find(|(path, _)| path == of).unwrap();
        command.render_long_help().to_string()
    };
    let memory = long_help("kiln memory gpt");
    for option in ["--resume", "--replicas", "--epochs", "--save-every", "--keep", "--learning-rate", "--inject-oom"] {
        assert!(!memory.lines().any(|line| line.trim_start().starts_with(option)), "{option}");
        let refused = output(folder.path(), &["memory", "gpt", option, "1"]);
        assert_eq!(refused.status.code(), Some(2), "{}", stderr(&refused));
    }
    assert!(memory.contains("--stages") && memory.contains("--checkpointing"), "{memory}");
    let segment = long_help("kiln train segment");
    assert!(!segment.contains("--stages") && !segment.contains("--replicas"), "{segment}");
    for heading in
        ["Data:", "Model:", "Training:", "Memory:", "Precision:", "Checkpoints:", "Output:", "Several devices:"]
    {
        assert!(long_help("kiln train gpt").contains(&format!("\n{heading}\n")), "{heading}");
    }
}

/// The settings that a run of one step writes down.
fn settings(folder: &Path, out: &str, arguments: &[&str]) -> toml::Table {
    done(folder, &[arguments, &["--max-steps", "1", "--out", out]].concat());
    config(&folder.join(out)).parse().unwrap()
}

#[test]
fn words_that_people_type_mean_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let book = text(at, 8000);
    let train = ["train", "gpt", "--context", "16", "--data", book.to_str().unwrap()];
    let long = [
        "--batch-size",
        "4",
        "--learning-rate",
        "0.01",
        "--weight-decay",
        "0.05",
        "--precision",
        "bf16",
        "--device",
        "flex",
    ];
    let expected = settings(at, "long", &[&train[..], &long].concat());
    for (out, words) in [
        ("short", ["--bs", "4", "--lr", "0.01", "--wd", "0.05", "--precision", "bfloat16", "--device", "cpu"]),
        ("old", ["--batch", "4", "--lr", "0.01", "--wd", "0.05", "--precision", "BF16", "--device", "CPU"]),
    ] {
        assert_eq!(settings(at, out, &[&train[..], &words].concat()), expected, "{words:?}");
    }
    let adamw = expected["optimizer"]["adamw"].as_table().unwrap();
    assert_eq!(adamw["weight_decay"].as_float(), Some(0.05));
    for (precision, name) in [("fp16", "f16"), ("amp", "f16"), ("float32", "f32")] {
        let run = settings(at, precision, &[&train[..], &["--precision", precision]].concat());
        assert_eq!(run["run"]["precision"].as_str(), Some(name));
    }
}

/// `[default: ..]` of an option of a command.
fn default(command: &str, option: &str) -> String {
    let (_, command) = commands().into_iter().find(|(path, _)| path == command).unwrap();
    let arg = command.get_arguments().find(|arg| arg.get_id() == option).unwrap();
    let help = arg.get_help().unwrap().to_string();
    help.split("[default: ").nth(1).unwrap().split([']', ',']).next().unwrap().to_owned()
}

#[test]
fn defaults_in_the_help_are_those_of_the_recipes() {
    let folder = tempfile::tempdir().unwrap();
    for (command, out) in [("classify", "resnet"), ("segment", "unet"), ("gpt", "gpt")] {
        let run = settings(folder.path(), out, &["train", command]);
        let of = |table: &str, key: &str| run[table][key].to_string().parse::<f64>().unwrap();
        for (table, key, option) in [
            ("run", "batch_size", "batch_size"),
            ("run", "epochs", "epochs"),
            ("run", "clip_norm", "clip_norm"),
            ("run", "workers", "workers"),
            ("run", "seed", "seed"),
            ("run", "keep", "keep"),
            ("run", "save_every", "save_every"),
            ("run", "evaluate_every", "evaluate_every"),
            ("schedule", "peak", "learning_rate"),
            ("schedule", "warmup", "warmup"),
        ] {
            let said = default(&format!("kiln train {command}"), option);
            assert_eq!(said.parse::<f64>().unwrap(), of(table, key), "{command} --{option}");
        }
        let optimizer = default(&format!("kiln train {command}"), "optimizer");
        assert!(run["optimizer"].as_table().unwrap().contains_key(&optimizer), "{optimizer}");
    }
}

#[test]
fn a_slip_is_answered_with_the_word_that_was_meant() {
    let folder = tempfile::tempdir().unwrap();
    for (arguments, parts) in [
        (&["trian"][..], &["trian", "train"][..]),
        (&["train", "gpt2"], &["gpt2", "gpt"]),
        (&["train", "gpt", "--bach-size", "3"], &["--bach-size", "--batch-size"]),
        (&["train", "gpt", "--precision", "fp8"], &["--precision", "f32, f16 or bf16"]),
        (&["train", "gpt", "--optimizer", "adam"], &["adamw, adamw8bit", "or sgd8bit"]),
        (&["plan", "gpt", "--memory", "1GiB", "--device", "tpu"], &["cpu, gpu:N, cuda:N, rocm:N"]),
        (&["load", "photos", "--transform", "none"], &["whole, evaluation or training"]),
    ] {
        let refused = output(folder.path(), arguments);
        let text = stderr(&refused);
        assert_eq!(refused.status.code(), Some(2), "{arguments:?}: {text}");
        assert!(parts.iter().all(|part| text.contains(part)), "{arguments:?}: {text}");
    }
}

#[test]
fn without_a_command_the_first_five_are_shown() {
    let folder = tempfile::tempdir().unwrap();
    let shown = output(folder.path(), &[]);
    assert!(shown.status.success());
    let text = String::from_utf8(shown.stdout).unwrap();
    let calls: Vec<&str> = text.lines().filter(|line| line.starts_with("  kiln ")).collect();
    assert_eq!(calls.len(), 5, "{text}");
    assert!(text.lines().all(|line| line.len() <= 80), "{text}");
    for call in calls {
        let call = call.trim().split("  ").next().unwrap();
        assert!(program().try_get_matches_from(call.split_whitespace()).is_ok(), "{call}");
    }
}

#[test]
fn a_quiet_run_prints_its_final_line_only() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let book = text(at, 8000);
    let train = ["train", "gpt", "--data", book.to_str().unwrap(), "--context", "16", "--max-steps", "2"];
    let quiet = kiln(at, &[&train[..], &["--out", "run", "-q"]].concat()).output().unwrap();
    let text = stderr(&quiet);
    assert!(quiet.status.success(), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(text.contains("run: step 2") && text.contains("bits_per_byte"), "{text}");
    let verbose = stderr(&output(at, &[&["-v"], &train[..], &["--out", "verbose"]].concat()));
    assert!(verbose.contains("DEBUG") && verbose.lines().count() > 3, "{verbose}");
    let both = output(at, &["-q", "-v", "models"]);
    assert_eq!(both.status.code(), Some(2), "{}", stderr(&both));
}
