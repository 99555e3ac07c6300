//! The objects that a program holds handles of, and the work that it submits.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

use super::assembler::Resources;
use super::fault::Operation;
use super::handles::Handle;
use super::header::{Entry, Header};
use crate::ptx;

/// A context of the program on one GPU. All contexts of a GPU share its memory and its sticky error.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) device: usize,
    pub(crate) flags: u32,
}

/// A stream of a context.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) device: usize,
    pub(crate) context: Handle,
    pub(crate) flags: u32,
    pub(crate) priority: i32,
    /// The graph it records at the moment.
    pub(crate) graph: Option<Handle>,
}

/// An event of a context.
#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) device: usize,
    pub(crate) flags: u32,
    pub(crate) recorded: Option<Instant>,
    /// The graph it was last recorded into.
    pub(crate) graph: Option<Handle>,
}

/// A loaded module.
#[derive(Debug)]
pub(crate) struct Module {
    pub(crate) device: usize,
    pub(crate) header: Header,
    /// The assembler's report on each kernel, where an assembler was asked.
    pub(crate) resources: HashMap<String, Resources>,
    pub(super) text: String,
    pub(super) program: OnceLock<Result<Program, ptx::PtxError>>,
    /// What measured launches moved, by their arguments.
    pub(super) measured: Mutex<HashMap<Vec<u8>, ptx::Traffic>>,
}

/// A module that can run.
#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) module: ptx::Module,
    /// Address of each variable of the module.
    pub(crate) globals: Vec<u64>,
}

/// A kernel of a loaded module.
#[derive(Debug, Clone)]
pub(crate) struct Function {
    pub(crate) device: usize,
    pub(crate) module: Arc<Module>,
    /// Index in the module's header.
    pub(crate) entry: usize,
    /// Bytes of dynamic shared memory that `cuFuncSetAttribute` allowed.
    pub(crate) max_dynamic: Option<u32>,
}

impl Function {
    pub(crate) fn entry(&self) -> &Entry {
        &self.module.header.entries[self.entry]
    }

    /// The assembler's report, where an assembler was asked.
    pub(crate) fn resources(&self) -> Option<&Resources> {
        self.module.resources.get(&self.entry().name)
    }
}

/// Recorded work, under construction, made, or ready to run.
#[derive(Debug, Clone)]
pub(crate) struct Graph {
    pub(crate) device: usize,
    pub(crate) nodes: Vec<Work>,
    /// Something happened during the recording that a graph cannot hold.
    pub(crate) spoiled: bool,
    /// The stream that began it, while it records.
    pub(crate) origin: Option<Handle>,
    /// Whether it was instantiated, and how often it ran.
    pub(crate) instance: Option<u64>,
}

/// One piece of work.
#[derive(Debug, Clone)]
pub(crate) enum Work {
    Launch(Arc<Launch>),
    Transfer(Transfer),
    Fill(Fill),
    /// A function of the program that runs when the stream gets there.
    Call(HostCall),
    /// An allocation or a free that a recording stream saw; the memory itself was booked at once.
    Allocate,
    Free,
}

/// A function of the program and its argument.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HostCall {
    pub(crate) function: extern "C" fn(*mut std::ffi::c_void),
    /// The argument, an address that means something to the function alone.
    pub(crate) data: usize,
}

impl Work {
    /// NVIDIA's number for the kind of graph node that the work becomes.
    pub(crate) fn node_type(&self) -> u32 {
        match self {
            Work::Launch(_) => 0,
            Work::Transfer(_) => 1,
            Work::Fill(_) => 2,
            Work::Call(_) => 3,
            Work::Allocate => 10,
            Work::Free => 11,
        }
    }
}

/// A launch with its arguments copied.
#[derive(Debug)]
pub(crate) struct Launch {
    pub(crate) function: Function,
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    /// Bytes of dynamic shared memory.
    pub(crate) shared: u32,
    /// The parameter block.
    pub(crate) params: Vec<u8>,
}

/// A copy of rows of bytes between two addresses; one row where `height` is 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Transfer {
    pub(crate) source: u64,
    /// Bytes from one row to the next.
    pub(crate) source_pitch: u64,
    pub(crate) target: u64,
    /// Bytes from one row to the next.
    pub(crate) target_pitch: u64,
    /// Bytes of a row.
    pub(crate) width: u64,
    /// Rows.
    pub(crate) height: u64,
    /// Direction that the call names, which decides what must be device memory.
    pub(crate) direction: Operation,
}

impl Transfer {
    /// A copy of `bytes` bytes in one row.
    pub(crate) fn flat(direction: Operation, target: u64, source: u64, bytes: u64) -> Self {
        Self { source, source_pitch: bytes, target, target_pitch: bytes, width: bytes, height: 1, direction }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.width * self.height
    }
}

/// A memset: `value` in elements of `size` bytes (1, 2 or 4), `width` of them in each of `height` rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fill {
    pub(crate) target: u64,
    /// Bytes from one row to the next.
    pub(crate) pitch: u64,
    pub(crate) value: u32,
    /// Bytes of an element.
    pub(crate) size: u64,
    /// Elements of a row.
    pub(crate) width: u64,
    /// Rows.
    pub(crate) height: u64,
}
