//! What an item runs in.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use burn::tensor::Device;
use serde::{Deserialize, Serialize};

use super::findings::{Findings, Outcome, Record};
use super::provenance::{Provenance, index};
use super::{ITEMS, measure};
use crate::cli::Gpu;

/// How large the problems of an item are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Size {
    /// For a card.
    Full,
    /// For the CPU.
    Small,
    /// To see that everything runs.
    Quick,
}

impl Size {
    pub(crate) fn of(arguments: &Gpu) -> Self {
        match (arguments.quick, index(&arguments.device)) {
            (true, _) => Self::Quick,
            (false, Some(_)) => Self::Full,
            (false, None) => Self::Small,
        }
    }
}

pub(crate) struct Context {
    /// As on the command line.
    pub(crate) name: String,
    /// Without autodiff.
    pub(crate) device: Device,
    pub(crate) python: PathBuf,
    pub(crate) record: Record,
    size: Size,
    deadline: Instant,
}

/// Ends an item: what it needs is not here.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Skip(pub(crate) String);

/// Runs item `number` in this process. The parent learns how it ended from the item's file.
pub(crate) fn child(arguments: &Gpu, number: usize) -> Result<()> {
    let item = &ITEMS[number - 1];
    let folder = arguments.out.as_ref().context("--child needs --out")?;
    let size = Size::of(arguments);
    let findings = Findings::new(number, Provenance::of(&arguments.device, size));
    let record = Record::begin(folder, findings)?;
    let mut context = Context {
        name: arguments.device.clone(),
        device: crate::device::open(&arguments.device)?,
        python: arguments.python.clone(),
        record,
        size,
        deadline: Instant::now() + Duration::from_secs(item.seconds),
    };
    let (outcome, reason) = match caught(|| (item.run)(&mut context)) {
        Ok(()) => (context.record.findings.verdict(), None),
        Err(error) if error.is::<Skip>() => (Outcome::Skipped, Some(error.to_string())),
        Err(error) => (Outcome::Error, Some(one_line(&format!("{error:#}")))),
    };
    context.record.end(outcome, reason)
}

impl Context {
    /// The value for the sizes that were asked for.
    pub(crate) fn pick<T>(&self, full: T, small: T, quick: T) -> T {
        match self.size {
            Size::Full => full,
            Size::Small => small,
            Size::Quick => quick,
        }
    }

    pub(crate) fn on_cuda(&self) -> bool {
        index(&self.name).is_some()
    }

    /// Number of the NVIDIA card.
    pub(crate) fn card(&self) -> Option<u32> {
        index(&self.name)
    }

    pub(crate) fn autodiff(&self) -> Device {
        self.device.clone().autodiff()
    }

    /// Until the item is ended.
    pub(crate) fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// Runs a part of the item. An error or a panic of it becomes a check that failed, and the item goes on; so does a part that
    /// is not begun because fewer than `seconds` are left.
    pub(crate) fn part(&mut self, what: &str, seconds: u64, part: impl FnOnce(&mut Self) -> Result<()>) {
        if self.left() < Duration::from_secs(seconds) {
            return self.record.check(what, false, format!("not begun: fewer than {seconds} s are left of the item"));
        }
        if let Err(error) = caught(|| part(self)) {
            self.record.check(what, false, one_line(&format!("{error:#}")));
        }
        // What is left of the part is not that of the next; a lost device says so there.
        let device = self.device.clone();
        let _ = caught(|| {
            measure::settle(&device);
            Ok(())
        });
    }

    /// Runs this program with other arguments, or another program, and waits as long as the item may take.
    pub(crate) fn wait_for(&self, command: &mut Command) -> Result<Output> {
        // Two seconds are for writing down what it said.
        wait_for(command, self.left().saturating_sub(Duration::from_secs(2)))
    }
}

/// Runs `command` and takes what it prints; kills it after `limit`.
pub(crate) fn wait_for(command: &mut Command, limit: Duration) -> Result<Output> {
    let (stdout, stderr) = (tempfile::NamedTempFile::new()?, tempfile::NamedTempFile::new()?);
    command.stdin(Stdio::null()).stdout(stdout.reopen()?).stderr(stderr.reopen()?);
    let name = command.get_program().to_string_lossy().into_owned();
    let mut child = command.spawn().with_context(|| format!("cannot run '{name}'"))?;
    let until = Instant::now() + limit;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if Instant::now() >= until {
            child.kill()?;
            child.wait()?;
            bail!("'{name}' was ended after {:.0} s", limit.as_secs_f64());
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    Ok(Output { status, stdout: std::fs::read(stdout.path())?, stderr: std::fs::read(stderr.path())? })
}

/// The last line of what a command that went well printed, as JSON.
pub(crate) fn last_json<T: serde::de::DeserializeOwned>(output: &Output) -> Result<T> {
    let tail = || one_line(&tail(&String::from_utf8_lossy(&output.stderr), 600));
    ensure!(output.status.success(), "{}: {}", output.status, tail());
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().last().with_context(|| format!("it printed nothing: {}", tail()))?;
    Ok(serde_json::from_str(line)?)
}

/// Calls `f`; a panic is an error.
pub(crate) fn caught<T>(f: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Err(anyhow!("panicked: {}", text.as_deref().unwrap_or("without a message")))
    })
}

/// A message without backtraces, and no longer than a table bears.
pub(crate) fn one_line(text: &str) -> String {
    let frame = |line: &str| line.starts_with("at ") || line.starts_with(|c: char| c.is_ascii_digit());
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !frame(line));
    let line = lines.collect::<Vec<_>>().join(" / ");
    line.chars().take(600).collect()
}

/// The last `count` characters.
pub(crate) fn tail(text: &str, count: usize) -> String {
    let skipped = text.chars().count().saturating_sub(count);
    text.chars().skip(skipped).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_become_one_line_without_backtraces() {
        assert_eq!(
            one_line("it failed\n   0: main\n      at src/main.rs:1\nout of memory\n"),
            "it failed / out of memory"
        );
        assert_eq!(tail("a longer text", 4), "text");
    }

    #[test]
    fn a_panic_is_an_error_and_a_command_has_a_limit() {
        let error = caught::<()>(|| panic!("no row {}", 7)).unwrap_err();
        assert_eq!(error.to_string(), "panicked: no row 7");
        let mut command = Command::new("sleep");
        let error = wait_for(command.arg("60"), Duration::from_millis(50)).unwrap_err();
        assert!(error.to_string().contains("was ended"), "{error}");
        let output = wait_for(Command::new("echo").arg("[1, 2]"), Duration::from_secs(20)).unwrap();
        assert_eq!(last_json::<Vec<u8>>(&output).unwrap(), [1, 2]);
    }
}
