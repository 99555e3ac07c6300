//! Runs other processes with a time limit.

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::failures::{one_line, tail};

/// A command that exceeded its time, and its output so far.
#[derive(Debug, thiserror::Error)]
#[error("'{name}' was ended after {seconds:.0} s{}", said(.stdout, .stderr))]
pub(crate) struct TimeUp {
    name: String,
    seconds: f64,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
}

/// A command that was ended by an interrupt.
#[derive(Debug, thiserror::Error)]
#[error("stopped")]
pub(crate) struct Stopped;

/// Runs `command` and returns its output. After `limit` it is killed, and the error is [`TimeUp`].
pub(crate) fn wait_for(command: &mut Command, limit: Duration) -> Result<Output> {
    waited(command, limit, &AtomicBool::new(false), |child| child.kill())
}

/// Runs `command` in a process group of its own and returns its output. After `limit` the whole group is killed, and the error is
/// [`TimeUp`]. When `stop` becomes true, the group is killed too, and the error is [`Stopped`].
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
    let program = command.get_program().to_owned();
    let mut child = command.spawn().with_context(|| format!("cannot run '{}'", Path::new(&program).display()))?;
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
            // Results are kept: they do not name folders of one machine.
            let name = Path::new(&program).file_name().unwrap_or(&program).to_string_lossy().into_owned();
            bail!(TimeUp { name, seconds: limit.as_secs_f64(), stdout, stderr });
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Kills the group that `child` leads, through the shell: the standard library kills only single processes.
fn kill_group(child: &mut Child) -> std::io::Result<()> {
    let group = format!("kill -s KILL -- -{}", child.id());
    let done = Command::new("sh").args(["-c", &group]).stdin(Stdio::null()).stderr(Stdio::null()).status();
    if done.is_ok_and(|status| status.success()) { Ok(()) } else { child.kill() }
}

/// The last part of the output of a command.
fn said(stdout: &[u8], stderr: &[u8]) -> String {
    let part = |name: &str, bytes: &[u8]| {
        let text = one_line(&tail(&String::from_utf8_lossy(bytes), 600));
        if text.is_empty() { text } else { format!("; last on {name}: {text}") }
    };
    part("stderr", stderr) + &part("stdout", stdout)
}

/// Parses the last line of the output of a successful command as JSON.
pub(crate) fn last_json<T: serde::de::DeserializeOwned>(output: &Output) -> Result<T> {
    let tail = || one_line(&tail(&String::from_utf8_lossy(&output.stderr), 600));
    ensure!(output.status.success(), "{}: {}", output.status, tail());
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().last().with_context(|| format!("it printed nothing: {}", tail()))?;
    Ok(serde_json::from_str(line)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_has_a_limit() {
        let mut command = Command::new("sh");
        let error = wait_for(command.args(["-c", "echo half; exec sleep 60"]), Duration::from_millis(300)).unwrap_err();
        assert!(error.to_string().ends_with("was ended after 0 s; last on stdout: half"), "{error}");
        assert_eq!(error.downcast::<TimeUp>().unwrap().stdout, b"half\n");
        let output = wait_for(Command::new("echo").arg("[1, 2]"), Duration::from_secs(20)).unwrap();
        assert_eq!(last_json::<Vec<u8>>(&output).unwrap(), [1, 2]);
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
