//! Ctrl-C: the first one asks a run to stop and save, the second one ends the process.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// The longest time until a pause notices Ctrl-C.
const SLICE: Duration = Duration::from_millis(50);

/// Whether the user has asked the run to stop.
#[derive(Clone, Default)]
pub(crate) struct Interrupt {
    requested: Arc<AtomicBool>,
    /// Whether the first Ctrl-C ends the process.
    at_once: Arc<AtomicBool>,
}

impl Interrupt {
    /// Listens for Ctrl-C and for the signals that end a process.
    pub(crate) fn listen() -> Result<Self> {
        static LISTENING: Mutex<Option<Interrupt>> = Mutex::new(None);
        let mut listening = LISTENING.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(interrupt) = &*listening {
            return Ok(interrupt.clone());
        }
        let interrupt = Self::default();
        let Self { requested, at_once } = interrupt.clone();
        ctrlc::set_handler(move || {
            if requested.swap(true, Relaxed) || at_once.load(Relaxed) {
                std::process::exit(130);
            }
        })
        .context("cannot listen for Ctrl-C")?;
        Ok(listening.insert(interrupt).clone())
    }

    pub(crate) fn requested(&self) -> bool {
        self.requested.load(Relaxed)
    }

    /// Lets Ctrl-C end the process while `wait` waits for the user, who has nothing to lose.
    pub(crate) fn at_once<T>(&self, wait: impl FnOnce() -> T) -> T {
        self.at_once.store(true, Relaxed);
        let waited = wait();
        self.at_once.store(false, Relaxed);
        waited
    }

    /// Waits for `pause`, or until the user asks to stop.
    pub(crate) fn wait(&self, pause: Duration) -> ControlFlow<()> {
        let end = Instant::now() + pause;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if self.requested() {
                return ControlFlow::Break(());
            }
            if left.is_zero() {
                return ControlFlow::Continue(());
            }
            std::thread::sleep(left.min(SLICE));
        }
    }
}
