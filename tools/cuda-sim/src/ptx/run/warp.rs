//! Runs one warp until it ends or waits.

use crate::ptx::lower::{Exit, Program};
use crate::ptx::machine::{Block, Trouble, Warp};

/// What lanes that stand at one place wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wait {
    Nothing,
    /// The barrier of this number; of so many threads, or of all.
    Barrier {
        id: u32,
        count: Option<u32>,
    },
    /// The lanes of this mask, and whether their accesses of memory are ordered then.
    Lanes(u32, bool),
}

/// Lanes that stand at the start of the same basic block.
#[derive(Debug, Clone, Copy)]
pub(super) struct Group {
    pub at: u32,
    pub mask: u32,
    pub wait: Wait,
    /// Line where the lanes wait.
    pub line: u32,
}

/// One warp and where its lanes stand.
pub(super) struct Lockstep {
    pub warp: Warp,
    /// Lanes that have not ended.
    pub alive: u32,
    pub groups: Vec<Group>,
    /// The highest lanes run first when this warp gets its next turn.
    highest_next: bool,
}

/// Why an operation failed and where.
#[derive(Debug, Clone, Copy)]
pub(super) struct Failure {
    pub trouble: Trouble,
    pub line: u32,
    pub mask: u32,
}

/// Why a warp stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stop {
    /// All lanes have ended.
    Ended,
    /// All lanes that are left wait.
    Waits,
    /// It has run its share.
    Share,
}

impl Lockstep {
    /// A warp that has not started.
    pub(super) fn new(warp: Warp) -> Lockstep {
        Lockstep { warp, alive: 0, groups: Vec::with_capacity(8), highest_next: false }
    }

    /// Puts the lanes of `alive` at the start of the kernel.
    pub(super) fn restart(&mut self, alive: u32) {
        self.alive = alive;
        self.groups.clear();
        self.groups.push(Group { at: 0, mask: alive, wait: Wait::Nothing, line: 0 });
    }

    /// Lets lanes go on that waited for lanes which have all arrived, or ended.
    fn release_lanes(&mut self, block: &mut Block<'_>) {
        let waiting = |g: &Group| if let Wait::Lanes(..) = g.wait { g.mask } else { 0 };
        let arrived = self.groups.iter().map(waiting).fold(0, |a, b| a | b);
        for group in &mut self.groups {
            if let Wait::Lanes(mask, orders) = group.wait
                && mask & self.alive & !arrived == 0
            {
                group.wait = Wait::Nothing;
                if orders {
                    block.races.iter_mut().for_each(|races| races.sync(self.warp.first_thread));
                }
            }
        }
    }

    /// Takes the lanes that run next: those at the lowest block, or at the highest to let lanes go on that others spin
    /// for. Gives where they stand and the lowest place of the other lanes that could run.
    fn choose(&mut self, highest: bool, block: &mut Block<'_>) -> Option<(u32, u32)> {
        if self.groups.len() > 1 || self.groups.first().is_some_and(|g| g.wait != Wait::Nothing) {
            self.release_lanes(block);
        }
        let places = || self.groups.iter().filter(|g| g.wait == Wait::Nothing).map(|g| g.at);
        let at = if highest { places().max() } else { places().min() }?;
        let mut mask = 0;
        self.groups.retain(|g| {
            let here = g.at == at && g.wait == Wait::Nothing;
            mask |= if here { g.mask } else { 0 };
            !here
        });
        self.warp.mask = mask;
        let limit = self.groups.iter().filter(|g| g.wait == Wait::Nothing).map(|g| g.at).min();
        Some((at, if highest { u32::MAX } else { limit.unwrap_or(u32::MAX) }))
    }

    fn put(&mut self, at: u32, mask: u32, wait: Wait, line: u32) {
        self.groups.push(Group { at, mask, wait, line });
    }

    /// Runs until no lane can go on, or until about `share` operations have run; adds them to `count`.
    pub(super) fn run(
        &mut self,
        program: &Program,
        block: &mut Block<'_>,
        share: u64,
        count: &mut u64,
    ) -> Result<Stop, Failure> {
        let mut left = share as i64;
        let mut highest = std::mem::take(&mut self.highest_next);
        loop {
            let Some((mut at, limit)) = self.choose(highest, block) else {
                return Ok(if self.alive == 0 { Stop::Ended } else { Stop::Waits });
            };
            let floor = if highest { left - SPIN } else { 0 };
            highest = false;
            self.warp.whole = self.warp.mask == self.alive;
            let mask = self.warp.mask;
            loop {
                let now = &program.blocks[at as usize];
                let ops = &program.ops[now.first as usize..now.end as usize];
                *count += ops.len() as u64 + 1;
                left -= ops.len() as i64 + 1;
                for (n, op) in ops.iter().enumerate() {
                    // SAFETY: the operation and the registers belong to `program`.
                    if unsafe { (op.run)(&mut self.warp, block, op) } {
                        let trouble = block.trouble.take().unwrap_or(Trouble::Trap);
                        return Err(Failure { trouble, line: program.lines[now.first as usize + n], mask });
                    }
                }
                match now.exit {
                    Exit::Goto(next) => at = next,
                    Exit::Branch { yes, no, .. } | Exit::Case { yes, no, .. } => {
                        // SAFETY: the registers belong to `program`.
                        let taken = unsafe { taken(&self.warp, now.exit) } & mask;
                        if taken == mask {
                            at = yes;
                        } else if taken == 0 {
                            at = no;
                        } else {
                            self.put(yes, taken, Wait::Nothing, now.line);
                            self.put(no, mask & !taken, Wait::Nothing, now.line);
                            break;
                        }
                    }
                    Exit::End => {
                        self.alive &= !mask;
                        break;
                    }
                    Exit::Barrier { id, count, next } => {
                        let lane = mask.trailing_zeros() as usize & 31;
                        // SAFETY: lowering gave 32-bit registers.
                        let value = |slot: u32| unsafe { self.warp.get::<u32>(slot)[lane] };
                        let wait = Wait::Barrier { id: value(id), count: count.map(value) };
                        self.put(next, mask, wait, now.line);
                        break;
                    }
                    Exit::Converge { mask: slot, orders, next } => {
                        let lane = mask.trailing_zeros() as usize & 31;
                        // SAFETY: lowering gave a 32-bit register.
                        let named = unsafe { self.warp.get::<u32>(slot)[lane] };
                        if named & self.alive & !mask == 0 {
                            at = next;
                            if orders {
                                block.races.iter_mut().for_each(|races| races.sync(self.warp.first_thread));
                            }
                        } else {
                            self.put(next, mask, Wait::Lanes(named, orders), now.line);
                            break;
                        }
                    }
                }
                if at >= limit {
                    self.put(at, mask, Wait::Nothing, now.line);
                    break;
                }
                if left < floor {
                    self.put(at, mask, Wait::Nothing, now.line);
                    break;
                }
            }
            if left < 0 {
                // the lowest lanes may spin for others of the same warp
                self.highest_next = self.groups.len() > 1;
                return Ok(Stop::Share);
            }
        }
    }
}

/// The lanes that take the branch at the end of a block.
///
/// # Safety
/// The registers of `exit` must be those of the warp's kernel.
#[inline(always)]
unsafe fn taken(warp: &Warp, exit: Exit) -> u32 {
    match exit {
        // SAFETY: the caller's promise.
        Exit::Branch { predicate, flip, .. } => unsafe { warp.predicate(predicate) ^ flip },
        Exit::Case { index, value, .. } => {
            // SAFETY: the caller's promise; lowering gave a 32-bit register.
            let values = unsafe { warp.get::<u32>(index) };
            values.iter().enumerate().fold(0, |taken, (lane, found)| taken | u32::from(*found == value) << lane)
        }
        _ => 0,
    }
}

/// Operations that lanes which others may spin for run before the lowest ones go on.
const SPIN: i64 = 1 << 10;
