//! From addresses of a state space to host memory, with the bounds and the alignment checked.

use super::mask::expand;
use super::state::{Block, LANES, Lanes, Op, Trouble, Warp};
pub(crate) use super::trace::Touch;
use crate::ptx::{Region, Space};

/// Generic addresses of shared memory start here; no host address looks like it.
pub(crate) const SHARED_WINDOW: u64 = 1 << 56;
/// Generic addresses of local memory start here.
pub(crate) const LOCAL_WINDOW: u64 = 2 << 56;
const OFFSET: u64 = (1 << 56) - 1;

/// The space and the cache entry of a memory operation, as [`Op::c`] holds them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub space: Space,
    /// Entry of [`Block::regions`].
    pub entry: u32,
}

impl Place {
    /// The form that [`Op::c`] holds.
    pub(crate) fn pack(self) -> u32 {
        self.entry << 3 | self.space as u32
    }

    #[inline(always)]
    fn unpack(c: u32) -> Place {
        let space = match c & 7 {
            0 => Space::Generic,
            1 => Space::Global,
            2 => Space::Shared,
            3 => Space::Local,
            4 => Space::Param,
            _ => Space::Const,
        };
        Place { space, entry: c >> 3 }
    }
}

/// Host addresses of `bytes` bytes at register `slot` plus `op.x`, for the lanes in `mask`; the other lanes hold nothing
/// of use. Nothing where a lane's address is outside of its space or no multiple of `align`, a power of two: then
/// [`Block::trouble`] names the first such lane.
///
/// # Safety
/// `slot` must be a 64-bit register, and `op.c` a [`Place`] of this kernel.
#[inline(always)]
pub(crate) unsafe fn locate(
    warp: &Warp,
    block: &mut Block<'_>,
    op: &Op,
    slot: u32,
    mask: u32,
    (bytes, align): (u32, u32),
    touch: Touch,
) -> Option<Lanes<u64>> {
    let place = Place::unpack(op.c);
    // SAFETY: the caller's promise.
    let base = unsafe { warp.get::<u64>(slot) };
    let first = base[mask.trailing_zeros() as usize & 31].wrapping_add(op.x);
    let mut step = 0;
    let region = match (place.space, first & !OFFSET) {
        (Space::Shared, _) => block.shared,
        (Space::Param, _) => block.params,
        (Space::Generic, SHARED_WINDOW) => Region { start: SHARED_WINDOW, ..block.shared },
        (Space::Local, _) | (Space::Generic, LOCAL_WINDOW) => {
            step = block.local_bytes;
            let start = if place.space == Space::Local { 0 } else { LOCAL_WINDOW };
            let host = block.local.host.wrapping_add((u64::from(warp.first_thread) * step) as usize);
            Region { start, len: step, host }
        }
        (Space::Global | Space::Const | Space::Generic, _) => block.regions[place.entry as usize],
    };
    let room = region.len.wrapping_sub(u64::from(bytes)) as i64;
    let (mut outside, mut low) = (room, 0_u64);
    let mut hosts = [0; LANES];
    let host = region.host as u64;
    // an offset from the region's start is inside where neither it nor what it leaves of the room is negative
    if mask == !0 {
        for l in 0..LANES {
            let address = base[l].wrapping_add(op.x);
            let offset = address.wrapping_sub(region.start);
            outside |= room.wrapping_sub(offset as i64) | offset as i64;
            low |= address;
            hosts[l] = host.wrapping_add(offset);
        }
    } else {
        let running = expand(mask);
        for l in 0..LANES {
            let address = base[l].wrapping_add(op.x);
            let offset = address.wrapping_sub(region.start);
            outside |= (room.wrapping_sub(offset as i64) | offset as i64) & i64::from(running[l] as i32);
            low |= address & i64::from(running[l] as i32) as u64;
            hosts[l] = host.wrapping_add(offset);
        }
    }
    if step != 0 {
        for l in 0..LANES {
            hosts[l] = hosts[l].wrapping_add(l as u64 * step);
        }
    }
    if outside >= 0 && low & u64::from(align - 1) == 0 {
        return unraced(warp, block, op, hosts, mask, bytes, touch);
    }
    let mut addresses = [0; LANES];
    for l in 0..LANES {
        addresses[l] = base[l].wrapping_add(op.x);
    }
    match one_by_one(warp, block, place, (&addresses, mask), (bytes, align), touch) {
        Ok(hosts) => unraced(warp, block, op, hosts, mask, bytes, touch),
        Err(trouble) => {
            block.trouble = Some(trouble);
            None
        }
    }
}

/// The addresses, unless races are looked for and one of the accesses is in one.
#[inline(always)]
fn unraced(
    warp: &Warp,
    block: &mut Block<'_>,
    op: &Op,
    hosts: Lanes<u64>,
    mask: u32,
    bytes: u32,
    touch: Touch,
) -> Option<Lanes<u64>> {
    let raced = block.races.is_some() && races(warp, block, op, (&hosts, mask), u64::from(bytes), touch);
    (!raced).then_some(hosts)
}

/// Notes accesses where races are looked for. Whether one of them is in a race: then [`Block::trouble`] has it.
pub(super) fn races(
    warp: &Warp,
    block: &mut Block<'_>,
    op: &Op,
    hosts: (&Lanes<u64>, u32),
    bytes: u64,
    touch: Touch,
) -> bool {
    let Some(races) = &mut block.races else { return false };
    let at = (std::ptr::from_ref(op) as usize - races.ops) / size_of::<Op>();
    let own = block.local.host as u64;
    let own = own..own + block.local.len * (block.threads as u64);
    let race = races.note(hosts, bytes, touch, (warp.first_thread, at as u32), (block.shared, own));
    block.trouble = race.map(Trouble::Race);
    race.is_some()
}

/// [`locate`] where the lanes are not all inside of the allocation that came last.
#[cold]
#[inline(never)]
fn one_by_one(
    warp: &Warp,
    block: &mut Block<'_>,
    place: Place,
    (addresses, mask): (&Lanes<u64>, u32),
    (bytes, align): (u32, u32),
    touch: Touch,
) -> Result<Lanes<u64>, Trouble> {
    let mut hosts = [0; LANES];
    if let Some(trace) = &mut block.trace {
        trace.begin(touch, bytes);
    }
    let mut last: Option<Region> = None;
    for lane in (0..LANES).filter(|l| mask >> l & 1 == 1) {
        let address = addresses[lane];
        let error = (bytes, place.space, lane as u32);
        if address & u64::from(align - 1) != 0 {
            let (_, space, lane) = error;
            return Err(Trouble::Misaligned { address, bytes: align, space, lane });
        }
        let (space, offset) = match (place.space, address & !OFFSET) {
            (Space::Generic, SHARED_WINDOW) => (Space::Shared, address & OFFSET),
            (Space::Generic, LOCAL_WINDOW) => (Space::Local, address & OFFSET),
            (space, _) => (space, address),
        };
        let region = match space {
            Space::Shared => Some(block.shared),
            Space::Param => Some(block.params),
            Space::Local => {
                let thread = u64::from(warp.first_thread) + lane as u64;
                let start = thread * block.local_bytes;
                // SAFETY: the local memory holds `local_bytes` for each thread of the block.
                let host = unsafe { block.local.host.add(start as usize) };
                Some(Region { start: 0, len: block.local_bytes, host })
            }
            Space::Global | Space::Const | Space::Generic => {
                if !last.is_some_and(|r| holds(&r, offset, bytes)) {
                    last = block.memory.region(offset);
                }
                if let Some(trace) = &mut block.trace {
                    let real = last.filter(|r| holds(r, offset, bytes));
                    hosts[lane] = trace.note(offset, real.map(|r| (r.host as u64).wrapping_add(offset - r.start)));
                    continue;
                }
                last
            }
        };
        match region.filter(|r| holds(r, offset, bytes)) {
            Some(r) => hosts[lane] = (r.host as u64).wrapping_add(offset - r.start),
            None => {
                let (bytes, space, lane) = error;
                return Err(Trouble::Illegal { address, bytes, space, lane });
            }
        }
    }
    // a traced block comes here for each operation
    if let Some(region) = last.filter(|_| block.trace.is_none()) {
        block.regions[place.entry as usize] = region;
    }
    Ok(hosts)
}

fn holds(region: &Region, address: u64, bytes: u32) -> bool {
    address >= region.start
        && address - region.start <= region.len
        && region.len - (address - region.start) >= u64::from(bytes)
}
