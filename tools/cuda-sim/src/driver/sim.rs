//! The simulated machine: its GPUs, its address space, and everything the program made, behind one lock.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};

use serde::Serialize;
use serde_json::{Value, json};

use super::assembler::find;
use super::card::Card;
use super::code::{Answer, Code};
use super::counts::Counts;
use super::fault::{Faults, Operation};
use super::handles::{Handle, Handles};
use super::ledger::Ledger;
use super::log::Log;
use super::objects::{Context, Event, Function, Graph, Module, Stream};
use super::settings::{AssemblerSetting, CardSettings, Execution, Settings};
use super::space::Space;

/// The machine. Work (copies and kernels) happens outside of the lock.
#[derive(Debug)]
pub(crate) struct Sim {
    pub(crate) settings: Settings,
    pub(crate) log: Log,
    /// Checks each module, where the settings ask for it and it was found.
    pub(crate) assembler: Option<PathBuf>,
    state: Mutex<State>,
}

/// One GPU and what happens on it.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) card: Card,
    pub(crate) ledger: Ledger,
    pub(crate) counts: Counts,
    /// The sticky error, which every call that needs the context answers from now on.
    pub(crate) poison: Option<Code>,
    /// The primary context while it is retained.
    pub(crate) primary: Option<Handle>,
    pub(crate) retained: u32,
    /// GPUs whose memory this one reaches.
    pub(crate) peers: Vec<usize>,
}

/// Pinned memory of the host, in bytes.
#[derive(Debug, Default, Clone, Serialize)]
pub(crate) struct HostBooks {
    pub(crate) live_bytes: u64,
    pub(crate) peak_bytes: u64,
    pub(crate) live: u64,
    pub(crate) allocations: u64,
}

/// Everything that changes.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) devices: Vec<Device>,
    pub(crate) host: HostBooks,
    pub(crate) space: Space,
    pub(crate) faults: Faults,
    pub(crate) execution: Execution,
    pub(crate) contexts: Handles<Context>,
    pub(crate) streams: Handles<Stream>,
    pub(crate) events: Handles<Event>,
    pub(crate) modules: Handles<Arc<Module>>,
    pub(crate) functions: Handles<Function>,
    /// Graphs under construction, made, and instantiated.
    pub(crate) graphs: Handles<Graph>,
    /// Memory pools, each with its GPU.
    pub(crate) pools: Handles<usize>,
}

impl Sim {
    /// A machine as the settings describe it.
    ///
    /// # Errors
    /// When the log cannot be opened.
    pub(crate) fn new(settings: Settings) -> std::io::Result<Self> {
        let log = Log::new(settings.log.as_deref(), settings.trace)?;
        let device = |card: &CardSettings| Device {
            card: Card::of(card.capability),
            ledger: Ledger::new(card.total, card.taken, settings.granule),
            counts: Counts::default(),
            poison: None,
            primary: None,
            retained: 0,
            peers: Vec::new(),
        };
        let devices: Vec<Device> = settings.cards.iter().map(device).collect();
        let pools = {
            let mut pools = Handles::new(7);
            for ordinal in 0..devices.len() {
                pools.insert(ordinal);
            }
            pools
        };
        let state = State {
            devices,
            host: HostBooks::default(),
            space: Space::default(),
            faults: Faults::new(settings.faults.iter().cloned()),
            execution: settings.execution,
            contexts: Handles::new(1),
            streams: Handles::new(2),
            events: Handles::new(3),
            modules: Handles::new(4),
            functions: Handles::new(5),
            graphs: Handles::new(6),
            pools,
        };
        let assembler = match &settings.assembler {
            Some(AssemblerSetting::At(path)) => Some(path.clone()),
            Some(AssemblerSetting::Find) => find(|name| std::env::var_os(name)),
            None => None,
        };
        Ok(Self { settings, log, assembler, state: Mutex::new(state) })
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        // a panic elsewhere leaves books that are whole between two statements; going on beats hiding it behind this
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// The check before every operation on a GPU: the sticky error, then the faults on order.
    pub(crate) fn gate(&self, state: &mut State, device: usize, operation: Operation) -> Answer {
        let on = state.devices.get_mut(device).ok_or(Code::INVALID_DEVICE)?;
        if let Some(code) = on.poison {
            return Err(code);
        }
        on.counts.count(operation);
        let Some(code) = state.faults.hit(operation, device) else { return Ok(()) };
        on.counts.faults += 1;
        self.log.write("fault", json!({ "device": device, "operation": operation.name(), "code": code.0 }));
        if code.is_sticky() {
            self.poison(state, device, code, "a fault on order");
        }
        Err(code)
    }

    /// Makes a sticky error of `code` on `device`.
    pub(crate) fn poison(&self, state: &mut State, device: usize, code: Code, why: &str) {
        if let Some(device_state) = state.devices.get_mut(device) {
            device_state.poison.get_or_insert(code);
            self.log.write("poisoned", json!({ "device": device, "code": code.0, "why": why }));
        }
    }

    /// Bytes and counts of everything, as the log's last record and the control commands give them.
    pub(crate) fn summary(&self) -> Value {
        let state = self.state();
        let devices: Vec<Value> = state
            .devices
            .iter()
            .map(|device| {
                json!({
                    "memory": device.ledger,
                    "free": device.ledger.free(),
                    "counts": device.counts,
                    "poisoned": device.poison.map(|code| code.0),
                })
            })
            .collect();
        json!({
            "devices": devices,
            "host": state.host,
            "faults_pending": state.faults.pending(),
            "streams": state.streams.len(),
            "events": state.events.len(),
            "modules": state.modules.len(),
        })
    }
}

impl State {
    /// The GPU of the context `current`.
    ///
    /// # Errors
    /// `INVALID_CONTEXT` for no context (0) or one that is gone.
    pub(crate) fn device_of(&self, current: Handle) -> Answer<usize> {
        self.contexts.get(current).map(|context| context.device).map_err(|_| Code::INVALID_CONTEXT)
    }

    pub(crate) fn device(&self, ordinal: usize) -> Answer<&Device> {
        self.devices.get(ordinal).ok_or(Code::INVALID_DEVICE)
    }

    pub(crate) fn device_mut(&mut self, ordinal: usize) -> Answer<&mut Device> {
        self.devices.get_mut(ordinal).ok_or(Code::INVALID_DEVICE)
    }
}
