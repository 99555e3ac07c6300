//! Commands that change the machine while a program runs on it, as JSON: `{"do": "take", "device": 0, "bytes": 1073741824}`.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use serde::Deserialize;
use serde_json::{Value, json};

use super::code::Code;
use super::fault::{FaultError, parse_faults};
use super::log::with_process;
use super::settings::Execution;
use super::sim::Sim;

/// A command. `device` is an ordinal and 0 where it is left out; sizes are bytes.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
#[non_exhaustive]
pub enum Command {
    /// All bytes, peaks and counts.
    Read,
    /// Something that is not the program takes free memory of a GPU.
    Take {
        /// The GPU.
        #[serde(default)]
        device: usize,
        /// How much.
        bytes: u64,
    },
    /// It gives memory back, at most what it holds.
    Give {
        /// The GPU.
        #[serde(default)]
        device: usize,
        /// How much.
        bytes: u64,
    },
    /// Orders faults, written as in `KILN_SIM_FAULTS`; they count from now.
    Arm {
        /// One or more, separated by commas.
        faults: String,
    },
    /// Drops all faults on order.
    Disarm,
    /// Makes a sticky error at once, as a kernel of the program would.
    Poison {
        /// The GPU.
        #[serde(default)]
        device: usize,
        /// The code's number or name.
        code: String,
    },
    /// Lets the peaks of a GPU start again from what is live.
    ResetPeaks {
        /// The GPU.
        #[serde(default)]
        device: usize,
    },
    /// How launches are handled from the next one on.
    Execute {
        /// `run`, `skip` or `measure`.
        kernels: Execution,
    },
}

/// Why a command did nothing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CommandError {
    /// No such GPU.
    #[error("there is no device {device}, only {devices}")]
    Device {
        /// The ordinal asked for.
        device: usize,
        /// How many there are.
        devices: usize,
    },
    /// More memory than is free.
    #[error("cannot take {bytes} bytes of device {device}: only {free} are free")]
    Short {
        /// The GPU.
        device: usize,
        /// Bytes asked for.
        bytes: u64,
        /// Bytes free.
        free: u64,
    },
    /// A fault that cannot be read.
    #[error(transparent)]
    Fault(#[from] FaultError),
    /// A code that cannot be read, or does not stick.
    #[error("`{code}` is not a sticky error, such as ILLEGAL_ADDRESS or 719")]
    Code {
        /// The code as given.
        code: String,
    },
    /// A text that is no command.
    #[error("not a command: {0}")]
    Syntax(#[from] serde_json::Error),
}

impl Sim {
    /// Does what a command says; gives the answer as JSON.
    ///
    /// # Errors
    /// [`CommandError`]; nothing has changed then.
    pub(crate) fn command(&self, command: &Command) -> Result<Value, CommandError> {
        let mut state = self.state();
        let devices = state.devices.len();
        let missing = |device| CommandError::Device { device, devices };
        let answer = match command {
            Command::Read => {
                drop(state);
                return Ok(self.summary());
            }
            Command::Take { device, bytes } => {
                let ledger = &mut state.device_mut(*device).map_err(|_| missing(*device))?.ledger;
                let short = |short: super::ledger::Short| CommandError::Short {
                    device: *device,
                    bytes: *bytes,
                    free: short.free,
                };
                ledger.take(*bytes).map_err(short)?;
                json!({ "free": ledger.free(), "taken": ledger.taken })
            }
            Command::Give { device, bytes } => {
                let ledger = &mut state.device_mut(*device).map_err(|_| missing(*device))?.ledger;
                let given = ledger.give(*bytes);
                json!({ "given": given, "free": ledger.free(), "taken": ledger.taken })
            }
            Command::Arm { faults } => {
                parse_faults(faults)?.into_iter().for_each(|fault| state.faults.arm(fault));
                json!({ "pending": state.faults.pending() })
            }
            Command::Disarm => json!({ "dropped": state.faults.disarm() }),
            Command::Poison { device, code } => {
                state.device(*device).map_err(|_| missing(*device))?;
                let sticky = Code::parse(code).filter(|code| code.is_sticky());
                let sticky = sticky.ok_or_else(|| CommandError::Code { code: code.clone() })?;
                self.poison(&mut state, *device, sticky, "a command");
                json!({ "code": sticky.0 })
            }
            Command::ResetPeaks { device } => {
                let ledger = &mut state.device_mut(*device).map_err(|_| missing(*device))?.ledger;
                ledger.reset_peaks();
                json!({ "peak_bytes": ledger.peak_bytes })
            }
            Command::Execute { kernels } => {
                state.execution = *kernels;
                json!({})
            }
        };
        drop(state);
        self.log.write("command", json!({ "command": format!("{command:?}") }));
        Ok(answer)
    }

    /// Does a command given as JSON; the answer is JSON with `"ok": true`, or `"ok": false` and `"error"`.
    pub(crate) fn command_text(&self, text: &str) -> String {
        let done = serde_json::from_str(text).map_err(CommandError::from).and_then(|command| self.command(&command));
        let answer = match done {
            Ok(answer) => json!({ "ok": true, "answer": answer }),
            Err(error) => json!({ "ok": false, "error": error.to_string() }),
        };
        answer.to_string()
    }
}

/// Listens at the control socket of the settings, if there is one, for the rest of the process: each line that comes in
/// is a command, each line that goes out its answer.
///
/// # Errors
/// When the socket cannot be made.
pub(crate) fn listen(sim: &'static Sim) -> std::io::Result<()> {
    let Some(path) = sim.settings.control.as_deref().map(with_process) else { return Ok(()) };
    remove_stale(&path)?;
    let listener = UnixListener::bind(path)?;
    let serve = move || {
        for connection in listener.incoming().flatten() {
            // one that breaks off ends only itself
            std::thread::spawn(move || drop(answer(sim, connection)));
        }
    };
    std::thread::Builder::new().name("kiln-sim-control".to_owned()).spawn(serve)?;
    Ok(())
}

/// Removes a socket that an earlier process left, but no other kind of file.
fn remove_stale(path: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::FileTypeExt;
    match fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() => fs::remove_file(path),
        _ => Ok(()),
    }
}

fn answer(sim: &Sim, connection: UnixStream) -> std::io::Result<()> {
    let mut out = connection.try_clone()?;
    for line in BufReader::new(connection).lines() {
        let mut answer = sim.command_text(&line?);
        answer.push('\n');
        out.write_all(answer.as_bytes())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::settings::Settings;
    use super::*;

    fn sim() -> Sim {
        let settings = Settings::read(|name| (name == "TOTAL").then(|| "1000".to_owned())).expect("settings");
        Sim::new(settings).expect("a machine")
    }

    #[test]
    fn memory_is_taken_and_given_back() {
        let sim = sim();
        let answer = sim.command_text(r#"{"do": "take", "bytes": 900}"#);
        assert_eq!(answer, r#"{"answer":{"free":100,"taken":900},"ok":true}"#);
        assert!(sim.command_text(r#"{"do": "take", "device": 0, "bytes": 200}"#).contains("only 100 are free"));
        assert!(sim.command_text(r#"{"do": "give", "bytes": 5000}"#).contains(r#""given":900"#));
        assert!(sim.command_text(r#"{"do": "take", "device": 3, "bytes": 1}"#).contains("there is no device 3"));
    }

    #[test]
    fn nonsense_changes_nothing() {
        let sim = sim();
        let before = sim.command_text(r#"{"do":"read"}"#);
        for text in [
            "",
            "{}",
            r#"{"do":"explode"}"#,
            r#"{"do":"take"}"#,
            r#"{"do":"take","bytes":1,"unit":"GB"}"#,
            r#"{"do":"arm","faults":"alloc"}"#,
            r#"{"do":"poison","code":"OUT_OF_MEMORY"}"#,
        ] {
            assert!(sim.command_text(text).contains(r#""ok":false"#), "{text}");
        }
        assert_eq!(sim.command_text(r#"{"do":"read"}"#), before);
    }

    #[test]
    fn faults_and_poison_show_in_what_is_read() {
        let sim = sim();
        assert!(sim.command_text(r#"{"do":"arm","faults":"alloc:3:2,sync:1:700"}"#).contains(r#""pending":2"#));
        assert!(sim.command_text(r#"{"do":"poison","code":"ILLEGAL_ADDRESS"}"#).contains("700"));
        let read = sim.summary();
        assert_eq!((&read["faults_pending"], &read["devices"][0]["poisoned"]), (&json!(2), &json!(700)));
        assert!(sim.command_text(r#"{"do":"disarm"}"#).contains(r#""dropped":2"#));
    }
}
