//! Errors of reading PTX, and of running kernels.

use std::fmt;

/// Why a PTX text is refused; the driver answers `CUDA_ERROR_INVALID_PTX`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PtxError {
    /// The text is not PTX as this reader knows it.
    #[error("line {line}: {what}")]
    Syntax {
        /// Line of the text, from 1.
        line: u32,
        /// The text that was found, and the text that is accepted.
        what: String,
    },
    /// An instruction, or a form of one, that the interpreter does not have.
    #[error("line {line}: instruction `{instruction}` is not supported")]
    UnknownInstruction {
        /// Line of the text, from 1.
        line: u32,
        /// The whole opcode with its modifiers, such as `cp.async.bulk.shared`.
        instruction: String,
    },
    /// A register, label, parameter or variable that nothing declares.
    #[error("line {line}: `{name}` is not declared")]
    UnknownName {
        /// Line of the text, from 1.
        line: u32,
        /// The name as written.
        name: String,
    },
    /// An operand that does not fit its instruction, such as a 64-bit register where 32 bits are read.
    #[error("line {line}: `{instruction}`: {what}")]
    Operand {
        /// Line of the text, from 1.
        line: u32,
        /// The opcode.
        instruction: String,
        /// The mistake of the operand.
        what: String,
    },
    /// The host has no room for the variables of a module.
    #[error("no memory of the host for a variable of {bytes} bytes")]
    NoRoom {
        /// Bytes of the variable.
        bytes: u64,
    },
}

/// A state space of PTX.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Space {
    /// Any of global, shared and local, told apart by the address.
    Generic,
    /// Device memory.
    Global,
    /// Memory of one block.
    Shared,
    /// Memory of one thread.
    Local,
    /// The kernel's parameters.
    Param,
    /// Constant memory, kept in device memory here.
    Const,
}

impl fmt::Display for Space {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Space::Generic => "generic",
            Space::Global => "global",
            Space::Shared => "shared",
            Space::Local => "local",
            Space::Param => "param",
            Space::Const => "const",
        })
    }
}

/// Where in a launch an error happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// Index of the block in the grid (x, y, z).
    pub block: [u32; 3],
    /// Index of the first thread concerned, counted through the block.
    pub thread: u32,
    /// Line of the PTX text, from 1.
    pub line: u32,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [x, y, z] = self.block;
        write!(f, "block ({x}, {y}, {z}), thread {}, PTX line {}", self.thread, self.line)
    }
}

/// Why a launch failed or stopped.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExecError {
    /// An access outside of every live allocation, or of the block's shared memory; `CUDA_ERROR_ILLEGAL_ADDRESS` (700).
    #[error("illegal {space} address {address:#x} ({bytes} bytes) at {fault}")]
    IllegalAddress {
        /// The address in its space.
        address: u64,
        /// Bytes asked for at that address.
        bytes: u32,
        /// Space of the access.
        space: Space,
        /// Where.
        fault: Fault,
    },
    /// An address that is no multiple of the access's size; `CUDA_ERROR_MISALIGNED_ADDRESS` (716).
    #[error("misaligned {space} address {address:#x} ({bytes} bytes) at {fault}")]
    Misaligned {
        /// The address in its space.
        address: u64,
        /// Bytes of the access, which the address should be a multiple of.
        bytes: u32,
        /// Space of the access.
        space: Space,
        /// Where.
        fault: Fault,
    },
    /// An instruction for the whole warp ran with some lanes elsewhere, which a GPU leaves undefined.
    #[error("an instruction for the whole warp ran with lanes {mask:#010x} only at {fault}")]
    Diverged {
        /// The lanes that were there.
        mask: u32,
        /// Where.
        fault: Fault,
    },
    /// An access that no barrier orders with an earlier one of the same byte, where one of them writes.
    #[error("a race: {what} {space} memory at {fault}, {earlier} at PTX line {earlier_line}")]
    Race {
        /// What the access does.
        what: &'static str,
        /// The memory.
        space: Space,
        /// The earlier access.
        earlier: String,
        /// Line of the earlier access in the PTX text.
        earlier_line: u32,
        /// Where.
        fault: Fault,
    },
    /// A `trap` instruction; `CUDA_ERROR_LAUNCH_FAILED` (719).
    #[error("trap at {fault}")]
    Trap {
        /// Where.
        fault: Fault,
    },
    /// The launch passed [`Limits::max_instructions`](super::Limits::max_instructions).
    #[error("stopped after {limit} warp instructions")]
    TooManyInstructions {
        /// The limit.
        limit: u64,
    },
    /// Every thread that is left waits for another one; a GPU would hang.
    #[error("every thread left waits at a barrier, at {fault}")]
    Deadlock {
        /// Where the first of them waits.
        fault: Fault,
    },
    /// The launch itself is wrong, such as a block larger than the kernel allows; `CUDA_ERROR_INVALID_VALUE` (1).
    #[error("invalid launch: {what}")]
    InvalidLaunch {
        /// The mistake.
        what: &'static str,
    },
}
