//! Cuts the instructions of a kernel into basic blocks and orders them.

use std::collections::HashMap;

use super::builder::Builder;
use super::order::weak_topological;
use super::program::{BasicBlock, Exit, Global, Program};
use super::{arithmetic, memory, warp};
use crate::ptx::PtxError;
use crate::ptx::text::{Instruction, Item, KernelText, Operand, Variable, Width};

/// A block's end while labels are still names. A block number counts blocks in the order of the text.
enum End {
    Label(String),
    Next,
    Branch {
        predicate: u32,
        negated: bool,
        label: String,
    },
    /// A case of an indexed branch.
    Case {
        index: u32,
        value: u32,
        label: String,
    },
    /// To block `past` unless the predicate, negated where `negated`, holds.
    Guard {
        predicate: u32,
        negated: bool,
        past: u32,
    },
    Exit,
    Barrier {
        id: u32,
        count: Option<u32>,
    },
    Converge {
        mask: u32,
        orders: bool,
    },
}

struct Cut {
    first: usize,
    end: usize,
    line: u32,
    how: End,
}

/// Collects blocks while instructions are lowered.
struct Cutter {
    cuts: Vec<Cut>,
    labels: HashMap<String, usize>,
    first: usize,
}

impl Cutter {
    fn cut(&mut self, builder: &Builder<'_>, how: End) {
        let end = builder.program.ops.len();
        self.cuts.push(Cut { first: self.first, end, line: builder.line, how });
        self.first = end;
    }
}

/// Lowers a kernel; `params` are the offsets of its parameters and their size in all.
pub(crate) fn lower(
    kernel: &KernelText,
    variables: &[Variable],
    globals: &[Global],
    params: (&[u64], u64),
) -> Result<Program, PtxError> {
    let mut builder = Builder::new(kernel, variables, globals, params);
    let mut cutter = Cutter { cuts: Vec::new(), labels: HashMap::new(), first: 0 };
    for item in &kernel.items {
        match item {
            Item::Label(label) => {
                cutter.cut(&builder, End::Next);
                cutter.labels.insert(label.clone(), cutter.cuts.len());
            }
            Item::Instruction(instruction) => {
                builder.line = instruction.line;
                builder.opcode.clone_from(&instruction.opcode);
                one(&mut builder, &mut cutter, instruction, &kernel.targets)?;
            }
        }
    }
    cutter.cut(&builder, End::Exit);
    finish(builder, &cutter)
}

fn one(
    builder: &mut Builder<'_>,
    cutter: &mut Cutter,
    instruction: &Instruction,
    targets: &HashMap<String, Vec<String>>,
) -> Result<(), PtxError> {
    let opcode = instruction.opcode.as_str();
    let guard = match instruction.guard {
        Some((register, negated)) => Some((builder.read(&Operand::Register(register), Width::Pred)?, negated)),
        None => None,
    };
    if matches!(opcode, "bra" | "bra.uni") {
        let Operand::Name(label) = builder.operand(instruction, 0)? else { return builder.wrong("expected a label") };
        let label = label.clone();
        cutter.cut(
            builder,
            match guard {
                Some((predicate, negated)) => End::Branch { predicate, negated, label },
                None => End::Label(label),
            },
        );
        return Ok(());
    }
    if let Some((predicate, negated)) = guard {
        cutter.cut(builder, End::Guard { predicate, negated, past: 0 });
    }
    let guarded = cutter.cuts.len();
    let ended = control(builder, cutter, instruction, targets)?;
    if !ended {
        if let Some(mask) = warp::waits_for(builder, instruction)? {
            cutter.cut(builder, End::Converge { mask, orders: false });
        }
        plain(builder, instruction)?;
    }
    if guard.is_some() {
        if !ended {
            cutter.cut(builder, End::Next);
        }
        let after = cutter.cuts.len() as u32;
        if let End::Guard { past, .. } = &mut cutter.cuts[guarded - 1].how {
            *past = after;
        }
    }
    Ok(())
}

/// Instructions that end a block; whether this was one.
fn control(
    builder: &mut Builder<'_>,
    cutter: &mut Cutter,
    instruction: &Instruction,
    targets: &HashMap<String, Vec<String>>,
) -> Result<bool, PtxError> {
    match instruction.opcode.as_str() {
        "brx.idx" | "brx.idx.uni" => {
            let index = builder.read(builder.operand(instruction, 0)?, Width::W32)?;
            let list = match builder.operand(instruction, 1)? {
                Operand::Name(name) => targets.get(name).and_then(|labels| labels.split_last()),
                _ => None,
            };
            let Some((last, others)) = list else { return builder.wrong("expected a list of labels") };
            for (value, label) in others.iter().enumerate() {
                cutter.cut(builder, End::Case { index, value: value as u32, label: label.clone() });
            }
            cutter.cut(builder, End::Label(last.clone()));
        }
        "ret" | "exit" | "ret.uni" => cutter.cut(builder, End::Exit),
        "bar.sync"
        | "barrier.sync"
        | "barrier.sync.aligned"
        | "bar.cta.sync"
        | "barrier.cta.sync"
        | "barrier.cta.sync.aligned" => {
            let id = builder.read(builder.operand(instruction, 0)?, Width::W32)?;
            let count = match instruction.operands.get(1) {
                Some(count) => Some(builder.read(count, Width::W32)?),
                None => None,
            };
            cutter.cut(builder, End::Barrier { id, count });
        }
        "bar.warp.sync" => {
            let mask = builder.read(builder.operand(instruction, 0)?, Width::W32)?;
            cutter.cut(builder, End::Converge { mask, orders: true });
        }
        _ => return Ok(false),
    }
    Ok(true)
}

/// Instructions that do not end a block.
fn plain(builder: &mut Builder<'_>, instruction: &Instruction) -> Result<(), PtxError> {
    let mut parts = instruction.opcode.split('.');
    let name = parts.next().unwrap_or_default();
    let modifiers: Vec<&str> = parts.collect();
    match name {
        "ld" | "ldu" | "st" | "atom" | "red" | "cvta" | "mov" | "prefetch" | "prefetchu" | "isspacep" => {
            memory::lower(builder, instruction, name, &modifiers)
        }
        "shfl" | "vote" | "activemask" | "redux" | "match" | "ldmatrix" | "stmatrix" | "mma" | "wmma" | "trap" => {
            warp::lower(builder, instruction, name, &modifiers)
        }
        // every access is seen by all threads at once
        "membar" | "fence" => Ok(()),
        _ => arithmetic::lower(builder, instruction, name, &modifiers),
    }
}

/// Resolves labels, orders the blocks and numbers them anew.
fn finish(builder: Builder<'_>, cutter: &Cutter) -> Result<Program, PtxError> {
    let cuts = &cutter.cuts;
    let find = |cut: &Cut, label: &String| match cutter.labels.get(label) {
        Some(&at) => Ok(at as u32),
        None => Err(PtxError::UnknownName { line: cut.line, name: label.clone() }),
    };
    let mut exits = Vec::with_capacity(cuts.len());
    for (at, cut) in cuts.iter().enumerate() {
        let next = at as u32 + 1;
        exits.push(match &cut.how {
            End::Next => Exit::Goto(next),
            End::Label(label) => Exit::Goto(find(cut, label)?),
            End::Branch { predicate, negated, label } => {
                let (yes, no) = (find(cut, label)?, next);
                Exit::Branch { predicate: *predicate, flip: if *negated { !0 } else { 0 }, yes, no }
            }
            End::Case { index, value, label } => {
                Exit::Case { index: *index, value: *value, yes: find(cut, label)?, no: next }
            }
            End::Guard { predicate, negated, past } => {
                Exit::Branch { predicate: *predicate, flip: if *negated { !0 } else { 0 }, yes: next, no: *past }
            }
            End::Exit => Exit::End,
            End::Barrier { id, count } => Exit::Barrier { id: *id, count: *count, next },
            End::Converge { mask, orders } => Exit::Converge { mask: *mask, orders: *orders, next },
        });
    }
    let successors: Vec<Vec<u32>> = exits.iter().map(targets).collect();
    let order = weak_topological(&successors);
    let mut renumbered = vec![u32::MAX; cuts.len()];
    for (new, &old) in order.iter().enumerate() {
        renumbered[old as usize] = new as u32;
    }
    let to = |old: u32| renumbered[old as usize];
    let mut program = builder.program;
    program.blocks = order
        .iter()
        .map(|&old| {
            let cut = &cuts[old as usize];
            let exit = match exits[old as usize] {
                Exit::Goto(next) => Exit::Goto(to(next)),
                Exit::Branch { predicate, flip, yes, no } => Exit::Branch { predicate, flip, yes: to(yes), no: to(no) },
                Exit::Case { index, value, yes, no } => Exit::Case { index, value, yes: to(yes), no: to(no) },
                Exit::End => Exit::End,
                Exit::Barrier { id, count, next } => Exit::Barrier { id, count, next: to(next) },
                Exit::Converge { mask, orders, next } => Exit::Converge { mask, orders, next: to(next) },
            };
            BasicBlock { first: cut.first as u32, end: cut.end as u32, line: cut.line, exit }
        })
        .collect();
    Ok(program)
}

fn targets(exit: &Exit) -> Vec<u32> {
    match *exit {
        Exit::Goto(next) | Exit::Barrier { next, .. } | Exit::Converge { next, .. } => vec![next],
        Exit::Branch { yes, no, .. } | Exit::Case { yes, no, .. } => vec![yes, no],
        Exit::End => Vec::new(),
    }
}
