//! `kiln_sim_*`: functions that no CUDA driver has, for a test that shares the process with the program.

use super::machine::{call_any_time, configure, machine};
use super::pointer::{Out, Text};
use crate::driver::{Code, Command, Sim};
use std::ffi::c_char;

/// Gives settings as lines of `NAME=value`, names without `KILN_SIM_`; they go before the environment's. Answers 0, 401
/// when the machine exists already (from the first driver call on), 1 for a line that is none.
#[unsafe(no_mangle)]
extern "C" fn kiln_sim_configure(lines: Text) -> u32 {
    call_any_time("kiln_sim_configure", || configure(lines.text()?))
}

/// Does a command given as JSON and writes the JSON answer with a zero byte behind it, cut to `length` bytes. Gives the
/// bytes of the whole answer without the zero byte; -1 when there is no machine.
#[unsafe(no_mangle)]
extern "C" fn kiln_sim_command(command: Text, answer: Out<c_char>, length: i32) -> i64 {
    let Some(sim) = machine() else { return -1 };
    let Ok(text) = command.text().map(|text| sim.command_text(text)) else { return -1 };
    if !answer.is_null() && answer.put_text(&text, length).is_err() {
        return -1;
    }
    text.len() as i64
}

/// A number about a GPU, or `u64::MAX` where there is none.
fn number(device: u32, read: impl Fn(&Sim, usize) -> Option<u64>) -> u64 {
    machine().and_then(|sim| read(sim, device as usize)).unwrap_or(u64::MAX)
}

/// Bytes that the program asked for and has not given back.
#[unsafe(no_mangle)]
extern "C" fn kiln_sim_live_bytes(device: u32) -> u64 {
    number(device, |sim, on| Some(sim.state().device(on).ok()?.ledger.live_bytes))
}

/// The most that `kiln_sim_live_bytes` was since the start or `kiln_sim_reset_peaks`.
#[unsafe(no_mangle)]
extern "C" fn kiln_sim_peak_bytes(device: u32) -> u64 {
    number(device, |sim, on| Some(sim.state().device(on).ok()?.ledger.peak_bytes))
}

/// A number by the name that the summary has, such as `launches`, `synchronisations` or `free`.
#[unsafe(no_mangle)]
extern "C" fn kiln_sim_count(device: u32, name: Text) -> u64 {
    number(device, |sim, on| {
        let on = &sim.summary()["devices"][on];
        let name = name.text().ok()?;
        on["counts"].get(name).or(on["memory"].get(name)).or(on.get(name))?.as_u64()
    })
}

fn command(name: &'static str, command: &Command) -> u32 {
    call_any_time(name, || {
        let sim = machine().ok_or(Code::NOT_INITIALIZED)?;
        sim.command(command).map(drop).map_err(|_| Code::INVALID_VALUE)
    })
}

/// Lets peaks start again from what is live. Answers 0, or 1 for a GPU that is not there.
#[unsafe(no_mangle)]
extern "C" fn kiln_sim_reset_peaks(device: u32) -> u32 {
    command("kiln_sim_reset_peaks", &Command::ResetPeaks { device: device as usize })
}

/// Takes free memory away from the program, as another process would. Answers 0, or 1 when so much is not free.
#[unsafe(no_mangle)]
extern "C" fn kiln_sim_take(device: u32, bytes: u64) -> u32 {
    command("kiln_sim_take", &Command::Take { device: device as usize, bytes })
}

/// Gives back memory taken by `kiln_sim_take` or the settings. Answers 0, or 1 for a GPU that is not there.
#[unsafe(no_mangle)]
extern "C" fn kiln_sim_give(device: u32, bytes: u64) -> u32 {
    command("kiln_sim_give", &Command::Give { device: device as usize, bytes })
}

/// Orders faults, written as in `KILN_SIM_FAULTS`, counted from now. Answers 0, or 1 for a text that orders none.
#[unsafe(no_mangle)]
extern "C" fn kiln_sim_arm(faults: Text) -> u32 {
    match faults.text() {
        Ok(text) => command("kiln_sim_arm", &Command::Arm { faults: text.to_owned() }),
        Err(code) => code.0,
    }
}
