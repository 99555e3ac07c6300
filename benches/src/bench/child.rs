//! A case in a process of its own, which takes one turn for each line on its stdin.
//!
//! Only in a process of its own are resident peak, heap and scratch memory of threads free from other cases' effects. Processes can wait,
//! so that cases still alternate step by step, and other work on the machine affects all of them.

use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::case::Case;

/// The figures of one turn.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Turn {
    pub(crate) seconds: f64,
    pub(crate) processor_seconds: Option<f64>,
    /// The most live bytes above those before the model was built.
    pub(crate) peak_bytes: u64,
    /// Whether the turn counts. It does not if a gradient overflowed and nothing was updated.
    pub(crate) counts: bool,
    /// Attempts that failed for lack of memory.
    pub(crate) failures: usize,
    pub(crate) micro_batches: usize,
}

/// The most memory of the process over all turns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Footprint {
    pub(crate) resident_bytes: Option<u64>,
    pub(crate) reserved_bytes: Option<u64>,
}

/// Takes turns until stdin ends, then prints the footprint of the process.
pub(crate) fn serve(mut turn: impl FnMut() -> Result<Turn>, footprint: impl FnOnce() -> Footprint) -> Result<()> {
    answer(&json!("ready"))?;
    for line in io::stdin().lines() {
        line?;
        answer(&turn()?)?;
    }
    answer(&footprint())
}

fn answer(value: &impl Serialize) -> Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{}", serde_json::to_string(value)?)?;
    Ok(out.flush()?)
}

/// Wall-clock seconds, and processor seconds as `processor` counts them.
pub(crate) fn timed<R>(processor: fn() -> Option<f64>, work: impl FnOnce() -> R) -> (R, f64, Option<f64>) {
    let (before, begun) = (processor(), Instant::now());
    let result = work();
    let seconds = begun.elapsed().as_secs_f64();
    let used = before.zip(processor()).map(|(before, after)| after - before);
    (result, seconds, used.filter(|used| *used > 0.0))
}

/// A case in its process.
pub(crate) struct Process {
    case: String,
    child: Child,
    /// `None` once the process was asked to end.
    turns: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Process {
    /// Returns when the case is ready for its first turn.
    pub(crate) fn start(case: &Case, device: &str) -> Result<Self> {
        let case = case.to_string();
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["bench", "--case", &case, "--device", device]).stdin(Stdio::piped()).stdout(Stdio::piped());
        if std::env::var_os("KILN_LOG").is_none() {
            command.env("KILN_LOG", "error"); // how it would train is not of interest here
        }
        let mut child = command.spawn().with_context(|| format!("cannot start {case}"))?;
        let turns = child.stdin.take();
        let answers = BufReader::new(child.stdout.take().context("a process without stdout")?);
        let mut process = Self { case, child, turns, answers };
        let ready: String = process.read()?;
        ensure!(ready == "ready", "{} says '{ready}' when it starts", process.case);
        Ok(process)
    }

    pub(crate) fn turn(&mut self) -> Result<Turn> {
        let Some(turns) = &mut self.turns else { bail!("{} has ended", self.case) };
        // A process that has ended reported its reason on stderr; its answer is then missing.
        let _ = turns.write_all(b"turn\n").and_then(|()| turns.flush());
        self.read()
    }

    pub(crate) fn finish(mut self) -> Result<Footprint> {
        drop(self.turns.take());
        let footprint = self.read()?;
        let status = self.child.wait()?;
        ensure!(status.success(), "{}: {status}", self.case);
        Ok(footprint)
    }

    fn read<A: DeserializeOwned>(&mut self) -> Result<A> {
        let mut line = String::new();
        if self.answers.read_line(&mut line)? == 0 {
            bail!("{} failed: {}", self.case, self.child.wait()?);
        }
        serde_json::from_str(&line).with_context(|| format!("{} says '{}'", self.case, line.trim_end()))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It ends by itself when its stdin ends. After a failure of another case it is killed at once.
        drop(self.turns.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
