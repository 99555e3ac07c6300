//! A kernel ready to run.

use crate::ptx::machine::Op;
use crate::ptx::text::Width;

/// A value that the launch gives each thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Special {
    /// `%tid` of an axis.
    Thread(u8),
    /// `%ntid` of an axis.
    Threads(u8),
    /// `%ctaid` of an axis.
    Block(u8),
    /// `%nctaid` of an axis.
    Blocks(u8),
    Lane,
    Warp,
    Warps,
    /// Bit of the lane itself.
    MaskEqual,
    MaskBelow,
    MaskUpTo,
    MaskAbove,
    MaskFrom,
    /// Bytes of dynamic shared memory.
    DynamicShared,
    /// Bytes of shared memory in all.
    TotalShared,
    /// Address of a variable of the module, by its index.
    Global(u32),
}

impl Special {
    /// The special register `name`, given with its `%`.
    pub(crate) fn parse(name: &str) -> Option<Special> {
        let axis = |letter: &str| ["x", "y", "z"].iter().position(|a| *a == letter).map(|a| a as u8);
        if let Some((base, letter)) = name.split_once('.') {
            let axis = axis(letter)?;
            return Some(match base {
                "%tid" => Special::Thread(axis),
                "%ntid" => Special::Threads(axis),
                "%ctaid" => Special::Block(axis),
                "%nctaid" => Special::Blocks(axis),
                _ => return None,
            });
        }
        Some(match name {
            "%laneid" => Special::Lane,
            "%warpid" => Special::Warp,
            "%nwarpid" => Special::Warps,
            "%lanemask_eq" => Special::MaskEqual,
            "%lanemask_lt" => Special::MaskBelow,
            "%lanemask_le" => Special::MaskUpTo,
            "%lanemask_gt" => Special::MaskAbove,
            "%lanemask_ge" => Special::MaskFrom,
            "%dynamic_smem_size" => Special::DynamicShared,
            "%total_smem_size" => Special::TotalShared,
            _ => return None,
        })
    }

    /// Width of the register that holds it.
    pub(crate) fn width(self) -> Width {
        if matches!(self, Special::Global(_)) { Width::W64 } else { Width::W32 }
    }

    /// Whether it changes from block to block.
    pub(crate) fn changes_with_block(self) -> bool {
        matches!(self, Special::Block(_))
    }
}

/// What follows the operations of a basic block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    Goto(u32),
    /// To `yes` where the predicate, flipped by `flip`, holds.
    Branch {
        predicate: u32,
        flip: u32,
        yes: u32,
        no: u32,
    },
    /// To `yes` where the 32-bit register `index` has `value`.
    Case {
        index: u32,
        value: u32,
        yes: u32,
        no: u32,
    },
    /// The thread ends.
    End,
    /// Waits for the threads of the block: all of them, or as many as `count` says.
    Barrier {
        id: u32,
        count: Option<u32>,
        next: u32,
    },
    /// Waits for the lanes that register `mask` names. `orders` says whether it also orders their accesses of memory.
    Converge {
        mask: u32,
        orders: bool,
        next: u32,
    },
}

/// Operations that run without a jump, and what follows them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BasicBlock {
    pub first: u32,
    pub end: u32,
    /// Line of the instruction that ends the block.
    pub line: u32,
    pub exit: Exit,
}

/// A variable of the module, as the kernels name it.
#[derive(Debug, Clone)]
pub(crate) struct Global {
    pub name: String,
    pub index: u32,
}

/// A kernel ready to run.
#[derive(Debug, Default)]
pub(crate) struct Program {
    pub ops: Vec<Op>,
    /// Line of each operation.
    pub lines: Vec<u32>,
    pub blocks: Vec<BasicBlock>,
    /// Registers of operations with many operands.
    pub lists: Vec<u32>,
    /// Bytes of one warp's registers.
    pub register_bytes: u32,
    /// Registers that never change: slot, width, value.
    pub constants: Vec<(u32, Width, u64)>,
    /// Registers that the launch fills.
    pub specials: Vec<(u32, Special)>,
    /// Memory operations, each with an entry in the table of regions.
    pub places: u32,
    /// Bytes of shared memory that the kernel declares.
    pub shared_bytes: u64,
    /// Bytes of local memory of one thread.
    pub local_bytes: u64,
}
