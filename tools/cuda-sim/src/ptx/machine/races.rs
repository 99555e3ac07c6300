//! Accesses of the same byte that nothing orders: races, as compute-sanitizer's racecheck finds them.
//!
//! Two accesses of a byte race if one of them writes, not both are atomic, and neither a barrier of the block nor, within a warp,
//! `bar.warp.sync` lies between them. Threads of different blocks of a launch are never ordered. Lanes that store to a byte in one
//! instruction do not race: one of them wins. Neither do stores of the value that is there. A barrier of some threads of a block counts as one
//! of all, so that a race may be missed.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use super::mask::LANES;
use super::trace::Touch;
use crate::ptx::Region;

/// Who accessed a byte last, and when.
#[derive(Clone, Copy, Default)]
struct Access {
    /// The block's number from 1 on; 0 for none.
    block: u32,
    warp: u8,
    lane: u8,
    atomic: bool,
    /// Barriers of the block before it.
    barriers: u32,
    /// `bar.warp.sync` of the warp before it.
    syncs: u32,
    /// The operation, by its position in the kernel.
    op: u32,
}

/// In place of a block, a warp or a lane: several of them.
const SEVERAL: u8 = u8::MAX;
const SEVERAL_BLOCKS: u32 = u32::MAX;

impl Access {
    /// Whether this access, an earlier one, is ordered with `now`.
    fn is_ordered(&self, now: &Access) -> bool {
        if self.block == 0 {
            return true;
        }
        if self.block != now.block {
            return false;
        }
        if self.barriers != now.barriers {
            return true;
        }
        if self.warp != now.warp {
            return false;
        }
        self.lane == now.lane && now.lane != SEVERAL || self.syncs != now.syncs
    }

    /// The later of two reads, or both where they are not ordered.
    fn and(self, now: Access) -> Access {
        if self.is_ordered(&now) {
            return now;
        }
        let block = if self.block == now.block { now.block } else { SEVERAL_BLOCKS };
        let warp = if self.warp == now.warp { now.warp } else { SEVERAL };
        Access { block, warp, lane: SEVERAL, op: self.op, ..now }
    }
}

/// The accesses of one byte.
#[derive(Clone, Copy, Default)]
struct Byte {
    written: Access,
    read: Access,
}

impl Byte {
    /// Notes an access. Gives the earlier one that it races with, and whether both are stores.
    fn note(&mut self, now: Access, touch: Touch) -> Option<(Access, bool)> {
        let written = self.written;
        let both_store = touch == Touch::Write && !written.atomic;
        let together = both_store && (written.op, written.warp, written.block) == (now.op, now.warp, now.block);
        let raced = !(written.is_ordered(&now) || together || written.atomic && now.atomic);
        if raced && !both_store {
            return Some((written, false));
        }
        if touch == Touch::Read {
            self.read = self.read.and(now);
            return None;
        }
        if !self.read.is_ordered(&now) {
            return Some((self.read, false));
        }
        self.written = now;
        raced.then_some((written, true))
    }
}

/// Notes an access of some bytes. Gives the earlier one that it races with first.
fn first_race(bytes: &mut [Byte], now: Access, touch: Touch) -> Option<(Access, bool)> {
    bytes.iter_mut().fold(None, |found, byte| {
        let raced = byte.note(now, touch);
        found.or(raced)
    })
}

/// Bytes of a page of [`Global`].
const PAGE: u64 = 1 << 10;

/// The accesses of device memory in one launch.
#[derive(Default)]
pub(crate) struct Global(Mutex<Pages>);

#[derive(Default)]
struct Pages {
    /// The place in `pages` of the page of a number.
    places: HashMap<u64, usize>,
    pages: Vec<[Byte; PAGE as usize]>,
    /// The page that came last, and its place.
    last: Option<(u64, usize)>,
}

impl Pages {
    fn page(&mut self, number: u64) -> &mut [Byte] {
        let place = match self.last.filter(|last| last.0 == number) {
            Some((_, place)) => place,
            None => *self.places.entry(number).or_insert_with(|| {
                self.pages.push([Byte::default(); PAGE as usize]);
                self.pages.len() - 1
            }),
        };
        self.last = Some((number, place));
        &mut self.pages[place]
    }

    fn note(&mut self, bytes: Range<u64>, now: Access, touch: Touch) -> Option<(Access, bool)> {
        let (mut at, mut found) = (bytes.start, None);
        while at < bytes.end {
            let first = at % PAGE;
            let end = PAGE.min(first + bytes.end - at);
            let raced = first_race(&mut self.page(at / PAGE)[first as usize..end as usize], now, touch);
            found = found.or(raced);
            at += end - first;
        }
        found
    }
}

/// What a thread of the host notes of the blocks that it runs.
pub(crate) struct Races<'a> {
    global: &'a Global,
    /// Address of the operations of the kernel.
    pub(super) ops: usize,
    /// The accesses of shared memory.
    shared: Vec<Byte>,
    block: u32,
    barriers: u32,
    /// `bar.warp.sync` of each warp.
    syncs: Vec<u32>,
    /// Whether all lanes access the bytes of each lane, as for matrices.
    pub(super) together: bool,
    /// Stores over stores that nothing orders with them: the address of a byte, its value before, and the race if the value changes.
    doubtful: Vec<(u64, u8, Race)>,
}

/// Two accesses of a byte that nothing orders.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Race {
    pub is_shared: bool,
    /// Whether the later one writes.
    pub writes: bool,
    /// The later thread in its block, and its operation.
    pub thread: u32,
    pub op: u32,
    /// The earlier thread in its block; nothing where there are several.
    pub earlier: Option<u32>,
    pub earlier_op: u32,
    /// Whether the earlier one is in another block.
    pub elsewhere: bool,
}

impl<'a> Races<'a> {
    /// For blocks of `warps` warps with `bytes` bytes of shared memory. `ops` is the address of the operations of the kernel.
    pub(crate) fn new(global: &'a Global, ops: usize, warps: usize, bytes: usize) -> Self {
        Races {
            global,
            ops,
            shared: vec![Byte::default(); bytes],
            block: 0,
            barriers: 0,
            syncs: vec![0; warps],
            together: false,
            doubtful: vec![],
        }
    }

    /// A block begins.
    pub(crate) fn begin(&mut self, number: u64) {
        self.block = number as u32 + 1;
        // What blocks before it did to the same shared memory lies before a barrier.
        self.barriers += 1;
    }

    /// The race of stores that have changed a value since they were noted.
    pub(crate) fn settle(&mut self) -> Option<Race> {
        // SAFETY: the addresses were located in live memory, which no launch outlives.
        let changed = |host: u64, before: u8| unsafe { (host as *const u8).read() != before };
        let found = self.doubtful.iter().find(|(host, before, _)| changed(*host, *before)).map(|doubt| doubt.2);
        self.doubtful.clear();
        found
    }

    /// All threads have arrived at a barrier.
    pub(crate) fn barrier(&mut self) {
        self.barriers += 1;
    }

    /// Lanes of a warp have waited for each other.
    pub(crate) fn sync(&mut self, first_thread: u32) {
        self.syncs[first_thread as usize / LANES] += 1;
    }

    /// Notes that lanes of the warp of `first_thread` access `bytes` bytes at these addresses of the host, in operation `op`. Gives the race
    /// that one of the accesses is in. Nothing is noted of the threads' own memory.
    #[cold]
    #[inline(never)]
    pub(super) fn note(
        &mut self,
        (hosts, mask): (&[u64; LANES], u32),
        bytes: u64,
        touch: Touch,
        (first_thread, op): (u32, u32),
        (shared, own): (Region, Range<u64>),
    ) -> Option<Race> {
        if let Some(race) = self.settle() {
            return Some(race);
        }
        let warp = (first_thread as usize / LANES) as u8;
        let mut now = Access {
            block: self.block,
            warp,
            lane: SEVERAL,
            atomic: touch == Touch::Update,
            barriers: self.barriers,
            syncs: self.syncs[warp as usize],
            op,
        };
        let mut pages = None;
        for lane in (0..LANES).filter(|lane| mask >> lane & 1 == 1) {
            let host = hosts[lane];
            if own.contains(&host) {
                continue;
            }
            if !self.together {
                now.lane = lane as u8;
            }
            let inside = host.checked_sub(shared.host as u64).filter(|offset| *offset < shared.len);
            let raced =
                match inside {
                    Some(first) => {
                        let span = &mut self.shared[first as usize..(first + bytes) as usize];
                        // All blocks of a thread of the host are one here.
                        first_race(span, Access { block: 1, ..now }, touch)
                    }
                    None => pages
                        .get_or_insert_with(|| self.global.0.lock().unwrap_or_else(PoisonError::into_inner))
                        .note(host..host + bytes, now, touch),
                };
            let Some((earlier, both_store)) = raced else { continue };
            let one = earlier.warp != SEVERAL && earlier.lane != SEVERAL && earlier.block != SEVERAL_BLOCKS;
            let race = Race {
                is_shared: inside.is_some(),
                writes: touch != Touch::Read,
                thread: first_thread + lane as u32,
                op,
                earlier: one.then(|| u32::from(earlier.warp) * LANES as u32 + u32::from(earlier.lane)),
                earlier_op: earlier.op,
                elsewhere: inside.is_none() && earlier.block != now.block,
            };
            if !both_store {
                return Some(race);
            }
            // SAFETY: these bytes were located in live memory.
            let doubt = |at| (at, unsafe { (at as *const u8).read() }, race);
            self.doubtful.extend((host..host + bytes).map(doubt));
        }
        None
    }
}
