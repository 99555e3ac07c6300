//! `cargo xtask same-bits`: one exact training run in many ways, all of which must end with the same weights.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use kiln_cli::usage::Usage;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use sha2::{Digest, Sha256};

/// The runs whose weights are compared, by their options.
const RUNS: [&[&str]; 3] = [&[], &["--dropout", "0.1"], &["--precision", "bf16"]];
/// Steps between two checkpoints of a run that is killed.
const SAVE_EVERY: &str = "25";
/// The time that a process takes to begin.
const START: Duration = Duration::from_millis(800);

/// A GPT is trained with --exact in each way in a process of its own: within budgets, in micro-batches, under checkpoint plans, from a store, on 1
/// and 4 threads, in stages, on replicas, with failed allocations, and killed and resumed. Ctrl-C ends the command; the same command goes on. The exit status is 1 when
/// weights differ.
#[derive(Args)]
pub struct SameBitsArguments {
    /// Optimizer steps of each run
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub steps: u64,
    /// How often a run is killed
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub kills: u64,
    /// What the moments of kills depend on
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Folder with the results of the runs that have ended; another program needs another one
    #[arg(long, value_name = "DIR", default_value = "same-bits")]
    pub out: PathBuf,
}

/// How a run is taken.
struct Way {
    options: Vec<String>,
    threads: Option<&'static str>,
    is_killed: bool,
}

impl Way {
    fn of(options: &[&str]) -> Self {
        Self { options: options.iter().map(|word| (*word).to_owned()).collect(), threads: None, is_killed: false }
    }

    /// The command of the run and, if it was killed, how often.
    fn name(&self, run: &[&str], kills: u64) -> String {
        let threads = self.threads.map_or_else(String::new, |threads| format!("RAYON_NUM_THREADS={threads} "));
        let options = run.iter().copied().chain(self.options.iter().map(String::as_str));
        let options: String = options.map(|word| format!(" {word}")).collect();
        let killed = if self.is_killed { format!(", killed {kills} times") } else { String::new() };
        format!("{threads}train gpt --exact{options}{killed}")
    }
}

/// The ways to take a step whose peak is `peak` bytes.
fn ways(peak: u64) -> Vec<Way> {
    let within = |percent: u64| format!("step:{}KiB", peak * percent / 100 / 1024);
    let [much, some, little] = [80, 60, 40].map(within);
    let on = |threads| Way { threads: Some(threads), ..Way::of(&["--micro-batch", "3"]) };
    vec![
        Way::of(&[]),
        Way::of(&["--memory", &much]),
        Way::of(&["--memory", &some]),
        Way::of(&["--memory", &little]),
        Way::of(&["--micro-batch", "1", "--checkpointing", "every:1"]),
        Way::of(&["--micro-batch", "3", "--checkpointing", "stream"]),
        on("1"),
        on("4"),
        Way::of(&["--stages", "2"]),
        Way::of(&["--stages", "4", "--pipeline-schedule", "gpipe"]),
        Way::of(&["--replicas", "2"]),
        Way::of(&["--replicas", "4", "--checkpointing", "every:1"]),
        Way::of(&["--memory", &much, "--inject-oom", "0.05"]),
        Way { is_killed: true, ..Way::of(&["--memory", &some]) },
    ]
}

/// How a run has ended.
#[derive(Clone, Debug, PartialEq)]
struct Ended {
    /// The SHA-256 of its weights.
    weights: String,
    kills: u64,
}

/// Takes the runs that the folder lacks, and compares the weights of all.
///
/// # Errors
/// Those of the folder, and of a run that fails.
pub fn run(arguments: &SameBitsArguments) -> Result<ExitCode> {
    ensure!(arguments.steps > 0, Usage("--steps is 0, expected at least 1".into()));
    fs::create_dir_all(&arguments.out).with_context(|| arguments.out.display().to_string())?;
    let (mut text, mut same) = (String::new(), true);
    for (number, run) in RUNS.iter().enumerate() {
        let mut expected = None;
        for (way, place) in ways(peak(run)?).iter().zip(0..) {
            let mut folder = format!("{}-steps-{number}-{place}", arguments.steps);
            if way.is_killed {
                folder += &format!("-{}-kills-{}", arguments.kills, arguments.seed);
            }
            let folder = arguments.out.join(folder);
            let found = ended(&folder, run, way, arguments).with_context(|| way.name(run, arguments.kills))?;
            let differs = *expected.get_or_insert_with(|| found.weights.clone()) != found.weights;
            let mark = if differs { " DIFFERS" } else { "" };
            let line = format!("{:.12}..{mark}  {}", found.weights, way.name(run, found.kills));
            tracing::info!("{line}");
            text += &format!("{line}\n");
            same &= !differs;
        }
    }
    text += &format!("{} steps each: {}\n", arguments.steps, if same { "the same weights" } else { "WEIGHTS DIFFER" });
    std::io::stdout().lock().write_all(text.as_bytes())?;
    Ok(ExitCode::from(u8::from(!same)))
}

/// Takes a run, unless an earlier call has: its end is then in a file beside its folder.
fn ended(folder: &Path, run: &[&str], way: &Way, arguments: &SameBitsArguments) -> Result<Ended> {
    let known = folder.with_extension("end");
    if let Some((weights, kills)) = fs::read_to_string(&known).ok().as_deref().and_then(|text| text.split_once(' ')) {
        return Ok(Ended { weights: weights.to_owned(), kills: kills.parse()? });
    }
    remove(folder)?;
    let mut kills = 0;
    if way.is_killed {
        let begun = Instant::now();
        finish(start(folder, run, way, arguments)?)?;
        remove(folder)?;
        // Short enough that the run is killed that often before its end, also as it repeats the steps since its last checkpoint.
        let most = 1.4 * begun.elapsed().div_f64(arguments.kills as f64 + 1.0).as_secs_f64() + START.as_secs_f64();
        kills = kill(folder, run, way, arguments, most)?;
    }
    finish(start(folder, run, way, arguments)?)?;
    let weights = Sha256::digest(fs::read(folder.join("model.safetensors"))?);
    let weights: String = weights.iter().map(|byte| format!("{byte:02x}")).collect();
    fs::write(&known, format!("{weights} {kills}"))?;
    remove(folder)?;
    Ok(Ended { weights, kills })
}

/// Kills (SIGKILL) a run within `most` seconds after each of its starts. Returns how often it was running then.
fn kill(folder: &Path, run: &[&str], way: &Way, arguments: &SameBitsArguments, most: f64) -> Result<u64> {
    let mut random = StdRng::seed_from_u64(arguments.seed);
    for kills in 0..arguments.kills {
        let mut child = start(folder, run, way, arguments)?;
        std::thread::sleep(Duration::from_secs_f64(random.random_range(0.0..most)));
        if child.try_wait()?.is_some() {
            return finish(child).map(|()| kills);
        }
        child.kill()?;
        child.wait()?;
    }
    Ok(arguments.kills)
}

/// Starts a run, or goes on with the one in the folder if it has a checkpoint.
fn start(folder: &Path, run: &[&str], way: &Way, arguments: &SameBitsArguments) -> Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["train", "gpt"]);
    if fs::read_dir(folder.join("checkpoints")).is_ok_and(|mut entries| entries.next().is_some()) {
        command.arg("--resume").arg(folder);
    } else {
        remove(folder)?;
        let steps = arguments.steps.to_string();
        command.args(["--exact", "--seed", "3", "--save-every", SAVE_EVERY, "--max-steps", &steps]);
        command.args(run).args(&way.options).arg("--out").arg(folder);
    }
    if let Some(threads) = way.threads {
        command.env("RAYON_NUM_THREADS", threads);
    }
    Ok(command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?)
}

/// Waits for a run, which must succeed.
fn finish(child: Child) -> Result<()> {
    let ended = child.wait_with_output()?;
    ensure!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr).trim());
    Ok(())
}

fn remove(folder: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    Ok(())
}

/// The peak of a step, in bytes.
fn peak(run: &[&str]) -> Result<u64> {
    let page = tempfile::tempdir()?;
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["memory", "gpt", "--json", "--quiet", "--out"]).arg(page.path()).args(run);
    let printed = command.output()?;
    ensure!(printed.status.success(), "{}", String::from_utf8_lossy(&printed.stderr).trim());
    let json: serde_json::Value = serde_json::from_slice(&printed.stdout)?;
    json["prediction"]["peak_bytes"].as_u64().context("kiln memory has printed no peak")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_is_another_command() {
        let names = |run| ways(20 << 20).iter().map(|way| way.name(run, 20)).collect::<std::collections::BTreeSet<_>>();
        let of_dropout = names(RUNS[1]);
        assert_eq!((names(RUNS[0]).len(), of_dropout.len()), (14, 14));
        assert!(of_dropout.contains("train gpt --exact --dropout 0.1 --memory step:12288KiB, killed 20 times"));
        assert!(of_dropout.contains("RAYON_NUM_THREADS=4 train gpt --exact --dropout 0.1 --micro-batch 3"));
    }
}
