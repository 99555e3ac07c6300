//! How often each operation happened on one GPU.

use serde::Serialize;

use super::fault::Operation;

/// Counts of one GPU since the start. Operations that fail count too, except on a GPU with a sticky error.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Counts {
    pub(crate) memory_queries: u64,
    pub(crate) host_to_device: u64,
    pub(crate) host_to_device_bytes: u64,
    pub(crate) device_to_host: u64,
    pub(crate) device_to_host_bytes: u64,
    pub(crate) device_to_device: u64,
    pub(crate) device_to_device_bytes: u64,
    pub(crate) peer: u64,
    pub(crate) peer_bytes: u64,
    pub(crate) memsets: u64,
    pub(crate) memset_bytes: u64,
    pub(crate) streams: u64,
    /// `cuStreamSynchronize` and `cuCtxSynchronize`.
    pub(crate) synchronisations: u64,
    pub(crate) event_synchronisations: u64,
    pub(crate) stream_waits: u64,
    pub(crate) events: u64,
    pub(crate) events_recorded: u64,
    pub(crate) modules: u64,
    /// Modules that were refused.
    pub(crate) modules_refused: u64,
    pub(crate) launches: u64,
    /// Launches that ran in the interpreter.
    pub(crate) executed: u64,
    /// Warp instructions of those.
    pub(crate) warp_instructions: u64,
    /// Bytes that measured launches read, and wrote.
    pub(crate) kernels_read_bytes: u64,
    pub(crate) kernels_written_bytes: u64,
    pub(crate) graph_launches: u64,
    /// Faults on order that happened.
    pub(crate) faults: u64,
}

impl Counts {
    /// Counts one operation; bytes of copies are added where the copy happens.
    pub(crate) fn count(&mut self, operation: Operation) {
        let counter = match operation {
            Operation::Info => &mut self.memory_queries,
            Operation::HostToDevice => &mut self.host_to_device,
            Operation::DeviceToHost => &mut self.device_to_host,
            Operation::DeviceToDevice => &mut self.device_to_device,
            Operation::Peer => &mut self.peer,
            Operation::Memset => &mut self.memsets,
            Operation::StreamCreate => &mut self.streams,
            Operation::Synchronise => &mut self.synchronisations,
            Operation::StreamWait => &mut self.stream_waits,
            Operation::EventCreate => &mut self.events,
            Operation::EventRecord => &mut self.events_recorded,
            Operation::EventSynchronise => &mut self.event_synchronisations,
            Operation::ModuleLoad => &mut self.modules,
            Operation::Launch => &mut self.launches,
            Operation::GraphLaunch => &mut self.graph_launches,
            // the ledger counts allocations; attributes of functions are not work
            Operation::Alloc | Operation::AllocHost | Operation::Free | Operation::FunctionAttribute => return,
        };
        *counter += 1;
    }

    /// Adds the bytes of a copy or memset that happened.
    pub(crate) fn moved(&mut self, operation: Operation, bytes: u64) {
        match operation {
            Operation::HostToDevice => self.host_to_device_bytes += bytes,
            Operation::DeviceToHost => self.device_to_host_bytes += bytes,
            Operation::DeviceToDevice => self.device_to_device_bytes += bytes,
            Operation::Peer => self.peer_bytes += bytes,
            Operation::Memset => self.memset_bytes += bytes,
            _ => {}
        }
    }
}
