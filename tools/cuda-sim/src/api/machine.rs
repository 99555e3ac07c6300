//! The one machine of the process, the context of each thread, and the steps around every call.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock};

use serde_json::json;

use crate::driver::{Answer, Code, Handle, Settings, Sim, listen};

static MACHINE: OnceLock<Option<Sim>> = OnceLock::new();
/// Settings given by `kiln_sim_configure`, before the environment's.
static CONFIGURED: Mutex<Vec<(String, String)>> = Mutex::new(Vec::new());
/// Whether the program called `cuInit`.
static INITIALISED: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// Contexts of this thread; the last one is current.
    static CONTEXTS: RefCell<Vec<Handle>> = const { RefCell::new(Vec::new()) };
}

/// The machine, made at the first call; nothing where the settings are wrong, which is said once on standard error.
pub(crate) fn machine() -> Option<&'static Sim> {
    static LISTENING: OnceLock<()> = OnceLock::new();
    let sim = MACHINE.get_or_init(|| build().inspect_err(|why| eprintln!("kiln-cuda-sim: {why}")).ok()).as_ref()?;
    LISTENING.get_or_init(|| {
        if let Err(error) = listen(sim) {
            eprintln!("kiln-cuda-sim: KILN_SIM_CONTROL: {error}");
        }
        // SAFETY: the function stays for as long as the library is loaded, which is until the process ends.
        unsafe { libc::atexit(at_exit) };
    });
    Some(sim)
}

fn build() -> Result<Sim, String> {
    let configured = CONFIGURED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let lookup = |name: &str| {
        let given = configured.iter().rev().find(|(known, _)| known == name).map(|(_, value)| value.clone());
        given.or_else(|| std::env::var(format!("KILN_SIM_{name}")).ok())
    };
    let settings = Settings::read(lookup).map_err(|error| error.to_string())?;
    let devices: Vec<_> =
        settings.cards.iter().map(|card| json!({ "total": card.total, "sm": card.capability })).collect();
    let sim = Sim::new(settings).map_err(|error| format!("KILN_SIM_LOG: {error}"))?;
    let assembler = sim.assembler.as_ref().map(|path| path.display().to_string());
    let fields = json!({
        "process": std::process::id(), "devices": devices, "driver": sim.settings.driver, "assembler": assembler,
    });
    sim.log.write("start", fields);
    Ok(sim)
}

/// Adds settings as lines of `NAME=value`, the name without `KILN_SIM_`.
///
/// # Errors
/// `ILLEGAL_STATE` once the machine exists; `INVALID_VALUE` for a line without `=`.
pub(crate) fn configure(text: &str) -> Answer {
    if MACHINE.get().is_some() {
        return Err(Code::ILLEGAL_STATE);
    }
    let mut configured = CONFIGURED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let (name, value) = line.split_once('=').ok_or(Code::INVALID_VALUE)?;
        configured.push((name.trim().to_owned(), value.trim().to_owned()));
    }
    Ok(())
}

extern "C" fn at_exit() {
    if let Some(Some(sim)) = MACHINE.get() {
        sim.log.write("summary", sim.summary());
    }
}

/// Notes that the program called `cuInit`.
pub(crate) fn initialise() -> Answer {
    machine().ok_or(Code::NOT_INITIALIZED)?;
    INITIALISED.store(true, Ordering::Release);
    Ok(())
}

/// Runs the body of a driver call that needs `cuInit` before it; gives its code.
pub(crate) fn call(name: &'static str, body: impl FnOnce(&'static Sim) -> Answer) -> u32 {
    call_any_time(name, || {
        if !INITIALISED.load(Ordering::Acquire) {
            return Err(Code::NOT_INITIALIZED);
        }
        body(machine().ok_or(Code::NOT_INITIALIZED)?)
    })
}

/// Runs the body of a driver call; gives its code. A panic, which would be a fault of this library, does not cross into
/// the program: it is reported on standard error and answered as `CUDA_ERROR_UNKNOWN`.
pub(crate) fn call_any_time(name: &'static str, body: impl FnOnce() -> Answer) -> u32 {
    let answer = catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| {
        eprintln!("kiln-cuda-sim: {name} panicked; please report this");
        Err(Code(999))
    });
    answer.err().unwrap_or(Code::SUCCESS).0
}

/// The calling thread's context; 0 where it has none.
pub(crate) fn current() -> Handle {
    CONTEXTS.with_borrow(|contexts| contexts.last().copied().unwrap_or(0))
}

/// Replaces the calling thread's context; 0 takes it away.
pub(crate) fn set_current(context: Handle) {
    CONTEXTS.with_borrow_mut(|contexts| {
        contexts.pop();
        if context != 0 {
            contexts.push(context);
        }
    });
}

/// Puts a context on top of the calling thread's.
pub(crate) fn push_current(context: Handle) {
    CONTEXTS.with_borrow_mut(|contexts| contexts.push(context));
}

/// Takes the top context off; gives it.
///
/// # Errors
/// `INVALID_CONTEXT` where there is none.
pub(crate) fn pop_current() -> Answer<Handle> {
    CONTEXTS.with_borrow_mut(|contexts| contexts.pop().ok_or(Code::INVALID_CONTEXT))
}
