//! `cargo xtask predictions`: predicted against measured peaks of training steps that are drawn at random.

mod draw;
mod outcome;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};
use bytesize::ByteSize;
use clap::Args;
use kiln_cli::usage::Usage;

use outcome::{Outcome, append, read};

/// Steps with less are reported, and not compared with the goals.
const LEAST: u64 = 50 << 20;
/// The goals in percent: how low a prediction may be, the median of the sizes of errors, and how high it may be.
const GOALS: [f64; 3] = [0.1, 0.1, 0.5];
/// Steps that are shown at the end, those with the largest errors.
const SHOWN: usize = 10;

/// Each step is measured in a process of its own, by `kiln memory`. Ctrl-C ends the command; the same command goes on. The exit status is 1 when
/// the goals are missed.
#[derive(Args)]
pub struct PredictionsArguments {
    /// Number of steps to draw
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub draws: u64,
    /// What the draws begin with
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// The steps that were measured, a line for each [default: predictions-SEED.tsv]
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
}

/// Measures the steps that the file lacks, and compares all of them with the goals.
///
/// # Errors
/// Those of the file, and of a step that cannot be measured.
pub fn run(arguments: &PredictionsArguments) -> Result<ExitCode> {
    ensure!(arguments.draws > 0, Usage("--draws is 0, expected at least 1".into()));
    let path = arguments.out.clone().unwrap_or_else(|| format!("predictions-{}.tsv", arguments.seed).into());
    let mut outcomes = read(&path)?;
    for (number, found) in (0..).zip(&outcomes) {
        let expected = draw::options(arguments.seed, number).join(" ");
        ensure!(
            found.number == number && found.options == expected,
            "{}: step {} is '{}', expected step {number}, '{expected}': give another --out for another seed",
            path.display(),
            found.number,
            found.options
        );
    }
    let page = tempfile::tempdir()?;
    for number in outcomes.len() as u64..arguments.draws {
        let options = draw::options(arguments.seed, number);
        let outcome = measured(number, &options, page.path())?;
        tracing::info!("{}", shown(&outcome));
        append(&path, &outcome)?;
        outcomes.push(outcome);
    }
    let (text, met) = summary(&outcomes);
    std::io::stdout().lock().write_all(text.as_bytes())?;
    Ok(ExitCode::from(u8::from(!met)))
}

/// Measures a step. Its page goes to the folder `out`.
fn measured(number: u64, options: &[String], out: &Path) -> Result<Outcome> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("memory").args(options).args(["--json", "--quiet", "--out"]).arg(out);
    let step = || format!("step {number}: memory {}", options.join(" "));
    let printed = command.output().with_context(step)?;
    ensure!(printed.status.success(), "{}: {}", step(), String::from_utf8_lossy(&printed.stderr).trim());
    let json = serde_json::from_slice(&printed.stdout).with_context(step)?;
    Outcome::of(number, options, &json).with_context(|| format!("{}: no prediction, or nothing measured", step()))
}

fn shown(outcome: &Outcome) -> String {
    let (error, measured) = (100.0 * outcome.error(), ByteSize(outcome.measured).to_string());
    format!("{error:+7.3} % of {measured:>9}: {}", outcome.options)
}

/// The errors of all steps beside the goals, the steps with the largest ones, and whether the goals are met.
fn summary(outcomes: &[Outcome]) -> (String, bool) {
    let mut large: Vec<&Outcome> = outcomes.iter().filter(|outcome| outcome.measured >= LEAST).collect();
    large.sort_by(|a, b| a.error().abs().total_cmp(&b.error().abs()));
    let Some(median) = large.get(large.len() / 2) else {
        return (format!("no step of {} has {} or more\n", outcomes.len(), ByteSize(LEAST)), false);
    };
    let errors = || large.iter().map(|outcome| 100.0 * outcome.error());
    let (low, high) = (errors().fold(f64::INFINITY, f64::min), errors().fold(f64::NEG_INFINITY, f64::max));
    let median = 100.0 * median.error().abs();
    let met = -low <= GOALS[0] && median <= GOALS[1] && high <= GOALS[2];
    let mut text = format!(
        "{} steps, {} of them of {} or more: median error {median:.3} % (goal {} %), lowest {low:+.3} % (goal -{} %), highest {high:+.3} % (goal +{} %); {}\n",
        outcomes.len(),
        large.len(),
        ByteSize(LEAST),
        GOALS[1],
        GOALS[0],
        GOALS[2],
        if met { "goals met" } else { "GOALS MISSED" }
    );
    for outcome in large.iter().rev().take(SHOWN) {
        text += &format!("{}\n", shown(outcome));
    }
    (text, met)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_steps_do_not_count_and_one_low_prediction_misses_the_goals() {
        let step = |measured: u64, error: f64| Outcome {
            number: 0,
            predicted: (measured as f64 * (1.0 + error)) as u64,
            measured,
            options: "gpt".into(),
        };
        let good = [step(LEAST, 0.0), step(2 * LEAST, 0.004), step(3 * LEAST, -0.0005), step(1 << 20, 0.5)];
        let (text, met) = summary(&good);
        assert!(met && text.starts_with("4 steps, 3 of them of 50.0 MiB or more: median error 0.050 %"), "{text}");
        let low = [&good[..], &[step(LEAST, -0.002)]].concat();
        let (text, met) = summary(&low);
        assert!(!met && text.contains("lowest -0.200 % (goal -0.1 %)") && text.contains("GOALS MISSED"), "{text}");
        assert_eq!(summary(&good[3..]), ("no step of 1 has 50.0 MiB or more\n".to_owned(), false));
    }
}
