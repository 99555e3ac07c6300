//! The same weights under every budget: of a transformer without being asked, of others with `--exact`.

use std::path::Path;

use super::support::{config, done, refused, stderr, weights};

/// Two steps, and then two more with other options. Returns what both have said.
fn train(at: &Path, out: &str, [first, then]: [&[&str]; 2]) -> [String; 2] {
    let run = ["train", "resnet", "--batch-size", "256", "--seed", "3", "--max-steps", "2", "--out", out];
    let first = stderr(&done(at, &[&run[..], first].concat()));
    let run = ["train", "resnet", "--resume", out, "--max-steps", "4"];
    [first, stderr(&done(at, &[&run[..], then].concat()))]
}

#[test]
fn exact_runs_have_the_same_weights_under_every_budget() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    train(at, "free", [&[], &[]]);
    let [said, _] = train(at, "cut", [&["--memory", "step:12MiB"], &[]]);
    assert!(said.contains("micro-batches of") && said.contains("batch norm sees"), "{said}");
    assert!(weights(&at.join("cut")) != weights(&at.join("free")));

    // It goes on within another budget, in which memory runs out.
    let budgets: [&[&str]; 2] =
        [&["--exact", "--memory", "step:40MiB"], &["--memory", "step:14MiB", "--inject-oom", "0.02"]];
    let [_, said] = train(at, "exact", budgets);
    assert!(said.contains("whole batches of 256") && said.contains("streamed"), "{said}");
    assert!(!said.contains("batch norm sees"), "{said}");
    assert!(config(&at.join("exact")).contains("exact = \"always\""));
    assert!(weights(&at.join("exact")) == weights(&at.join("free")));
}

#[test]
fn runs_of_a_transformer_are_cut_and_have_the_same_weights() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let train = |out: &str, steps: &str, options: &[&str]| {
        let run = ["train", "gpt", "--seed", "3", "--max-steps", steps, "--out", out];
        stderr(&done(at, &[&run[..], options].concat()))
    };
    train("free", "4", &[]);
    train("never", "4", &["--exact=never"]);
    assert!(weights(&at.join("never")) != weights(&at.join("free")));
    for (out, options, said) in [
        ("always", &["--exact"][..], ""),
        ("cut", &["--memory", "step:18MiB"], "same bits"),
        ("one", &["--micro-batch", "1", "--checkpointing", "every:1"], ""),
        // Gradients of streamed blocks leave memory.
        ("stored", &["--memory", "step:8MiB"], "streamed"),
        ("both", &["--memory", "step:3MiB"], "micro-batches of 2 of 8: same bits"),
        ("short", &["--memory", "step:18MiB", "--inject-oom", "0.05"], "out of memory"),
    ] {
        let text = train(out, "4", options);
        assert!(text.contains(said), "{out}: {text}");
        assert!(weights(&at.join(out)) == weights(&at.join("free")), "{out}: {text}");
    }
    train("dropped", "4", &["--dropout", "0.1"]);
    let parts = ["--dropout", "0.1", "--micro-batch", "3", "--checkpointing", "stream"];
    train("dropped-parts", "4", &parts);
    assert!(weights(&at.join("dropped-parts")) == weights(&at.join("dropped")));
    assert!(weights(&at.join("dropped")) != weights(&at.join("free")));

    // It goes on as planned, or as another call plans.
    train("halves", "2", &["--exact", "--memory", "step:18MiB"]);
    assert!(config(&at.join("halves")).contains("planned_micro_batch"));
    let resume = ["train", "gpt", "--resume", "halves", "--max-steps", "4"];
    let text = stderr(&done(at, &[&resume[..], &["--memory", "step:8MiB"]].concat()));
    assert!(text.contains("whole batches of 8"), "{text}");
    assert!(!config(&at.join("halves")).contains("planned_micro_batch"));
    let learning_rates_follow_the_length = weights(&at.join("halves"));
    train("shorter", "2", &[]);
    let _ = done(at, &["train", "gpt", "--resume", "shorter", "--max-steps", "4"]);
    assert!(learning_rates_follow_the_length == weights(&at.join("shorter")));
}

#[test]
fn what_changes_numbers_is_refused_beside_it() {
    let folder = tempfile::tempdir().unwrap();
    for option in ["--allow-bf16", "--allow-8bit-optimizer"] {
        let run = ["train", "resnet", "--memory", "300MiB", "--exact", option];
        refused(folder.path(), &run, 2, &["--exact", "cannot be used with", option]);
    }
    let allowed = ["--exact=never", "--allow-bf16", "--max-steps", "1", "--out", "allowed"];
    done(folder.path(), &[&["train", "gpt", "--memory", "step:300MiB"], &allowed[..]].concat());
}

#[test]
fn a_run_of_a_program_without_the_setting_goes_on_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let train = |out: &str, steps: &str, more: &[&str]| {
        let run = ["train", "gpt", "--schedule", "constant", "--max-steps", steps, "--out", out];
        done(at, &[&run[..], more].concat());
    };
    train("whole", "4", &["--exact=never"]);
    train("older", "2", &["--exact=never"]);
    let file = at.join("older/config.toml");
    let settings = std::fs::read_to_string(&file).unwrap();
    assert!(settings.contains("exact = \"never\"\n"));
    std::fs::write(&file, settings.replace("exact = \"never\"\n", "")).unwrap();
    for steps in ["3", "4"] {
        done(at, &["train", "gpt", "--resume", "older", "--max-steps", steps]);
    }
    assert!(weights(&at.join("older")) == weights(&at.join("whole")));
}
