//! What an item runs in.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use burn::tensor::Device;
use serde::{Deserialize, Serialize};

use super::findings::{Findings, Outcome, Record};
use super::provenance::{Provenance, card_index};
use super::{ITEMS, Item, measure};
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
        match (arguments.quick, card_index(&arguments.device)) {
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

/// What is left for writing down what a command said.
pub(crate) const WRITING: Duration = Duration::from_secs(2);

/// Ends an item: what it needs is not here.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Skip(pub(crate) String);

/// A command that took longer than it may, and what it had said.
#[derive(Debug, thiserror::Error)]
#[error("'{name}' was ended after {seconds:.0} s{}", said(.stdout, .stderr))]
pub(crate) struct TimeUp {
    name: String,
    seconds: f64,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
}

/// A command that was ended because somebody wants no more.
#[derive(Debug, thiserror::Error)]
#[error("stopped")]
pub(crate) struct Stopped;

/// How long an item may take: `patience` times its own seconds.
pub(crate) fn limit(item: &Item, patience: f64) -> Duration {
    Duration::from_secs(item.seconds).mul_f64(patience)
}

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
        deadline: Instant::now() + limit(item, arguments.patience),
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
        card_index(&self.name).is_some()
    }

    /// Number of the NVIDIA card.
    pub(crate) fn card(&self) -> Option<u32> {
        card_index(&self.name)
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
        wait_for(command, self.left().saturating_sub(WRITING))
    }
}

/// Runs `command` and takes what it prints; kills it after `limit`, which is a [`TimeUp`].
pub(crate) fn wait_for(command: &mut Command, limit: Duration) -> Result<Output> {
    waited(command, limit, &AtomicBool::new(false), |child| child.kill())
}

/// The same with a group of processes of its own: all that `command` started is killed with it. So it is when `stop`
/// becomes true, which is [`Stopped`].
pub(crate) fn wait_for_group(command: &mut Command, limit: Duration, stop: &AtomicBool) -> Result<Output> {
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(command, 0);
    waited(command, limit, stop, kill_group)
}

fn waited(
    command: &mut Command,
    limit: Duration,
    stop: &AtomicBool,
    kill: impl Fn(&mut Child) -> std::io::Result<()>,
) -> Result<Output> {
    let (stdout, stderr) = (tempfile::NamedTempFile::new()?, tempfile::NamedTempFile::new()?);
    command.stdin(Stdio::null()).stdout(stdout.reopen()?).stderr(stderr.reopen()?);
    let name = command.get_program().to_string_lossy().into_owned();
    let mut child = command.spawn().with_context(|| format!("cannot run '{name}'"))?;
    let until = Instant::now() + limit;
    loop {
        if let Some(status) = child.try_wait()? {
            if !status.success() {
                let _ = kill(&mut child); // what it left behind
            }
            return Ok(Output { status, stdout: std::fs::read(stdout.path())?, stderr: std::fs::read(stderr.path())? });
        }
        let stopped = stop.load(Relaxed);
        if stopped || Instant::now() >= until {
            kill(&mut child)?;
            child.wait()?;
            ensure!(!stopped, Stopped);
            let (stdout, stderr) = (std::fs::read(stdout.path())?, std::fs::read(stderr.path())?);
            bail!(TimeUp { name, seconds: limit.as_secs_f64(), stdout, stderr });
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Kills the group that `child` leads, by the shell: the standard library kills single processes alone.
fn kill_group(child: &mut Child) -> std::io::Result<()> {
    let group = format!("kill -s KILL -- -{}", child.id());
    let done = Command::new("sh").args(["-c", &group]).stdin(Stdio::null()).stderr(Stdio::null()).status();
    if done.is_ok_and(|status| status.success()) { Ok(()) } else { child.kill() }
}

/// The ends of what a command printed.
fn said(stdout: &[u8], stderr: &[u8]) -> String {
    let part = |name: &str, bytes: &[u8]| {
        let text = one_line(&tail(&String::from_utf8_lossy(bytes), 600));
        if text.is_empty() { text } else { format!("; last on {name}: {text}") }
    };
    part("stderr", stderr) + &part("stdout", stdout)
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
        let mut command = Command::new("sh");
        let error = wait_for(command.args(["-c", "echo half; exec sleep 60"]), Duration::from_millis(300)).unwrap_err();
        assert!(error.to_string().ends_with("was ended after 0 s; last on stdout: half"), "{error}");
        assert_eq!(error.downcast::<TimeUp>().unwrap().stdout, b"half\n");
        let output = wait_for(Command::new("echo").arg("[1, 2]"), Duration::from_secs(20)).unwrap();
        assert_eq!(last_json::<Vec<u8>>(&output).unwrap(), [1, 2]);
    }

    #[test]
    fn patience_multiplies_what_an_item_may_take() {
        assert_eq!(limit(&ITEMS[0], 2.5), Duration::from_millis(2500 * ITEMS[0].seconds));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn what_a_command_started_ends_with_it() {
        let folder = tempfile::tempdir().unwrap();
        let started = || std::fs::read_to_string(folder.path().join("id")).unwrap_or_default().trim().to_owned();
        let run = |limit, stop: &AtomicBool| {
            let mut command = Command::new("sh");
            command.args(["-c", "sleep 60 & echo $! > id; wait"]).current_dir(folder.path());
            wait_for_group(&mut command, limit, stop).unwrap_err()
        };
        let ended = |id: &str| {
            let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
            stat.is_empty() || stat.contains(") Z ") // gone, or dead and nobody has asked how it ended
        };
        let until = |done: &dyn Fn() -> bool| {
            let begun = Instant::now();
            while !done() {
                assert!(begun.elapsed().as_secs() < 30);
                std::thread::sleep(Duration::from_millis(5));
            }
        };
        assert!(run(Duration::from_secs(2), &AtomicBool::new(false)).is::<TimeUp>());
        let first = started();
        until(&|| ended(&first));
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let running = scope.spawn(|| run(Duration::from_secs(60), &stop));
            until(&|| !started().is_empty() && started() != first);
            stop.store(true, Relaxed);
            assert!(running.join().unwrap().is::<Stopped>());
        });
        until(&|| ended(&started()));
    }
}
