//! The state that an operation works on: a warp's registers, the lanes that run, and the block around them.

use super::mask::expand;
pub(crate) use super::mask::{LANES, Lanes};
use super::races::{Race, Races};
use super::trace::Trace;
use crate::ptx::{Memory, Region, Space};

/// A type that a lane of a register can be read as.
///
/// # Safety
/// Every bit pattern must be a value, and the type must have no padding.
pub(crate) unsafe trait Lane: Copy + Default + 'static {
    /// `new` where `mask` is all ones, `old` where it is zero.
    fn blend(mask: u32, new: Self, old: Self) -> Self;
}

macro_rules! lane {
    ($($t:ty)*) => { $(
        // SAFETY: a plain number.
        unsafe impl Lane for $t {
            #[inline(always)]
            fn blend(mask: u32, new: $t, old: $t) -> $t {
                let mask = mask as i32 as $t;
                new & mask | old & !mask
            }
        }
    )* };
}
lane!(u8 i8 u16 i16 u32 i32 u64 i64);

// SAFETY: a plain number.
unsafe impl Lane for f32 {
    #[inline(always)]
    fn blend(mask: u32, new: f32, old: f32) -> f32 {
        f32::from_bits(u32::blend(mask, new.to_bits(), old.to_bits()))
    }
}

// SAFETY: a plain number.
unsafe impl Lane for f64 {
    #[inline(always)]
    fn blend(mask: u32, new: f64, old: f64) -> f64 {
        f64::from_bits(u64::blend(mask, new.to_bits(), old.to_bits()))
    }
}

/// Runs one operation; true where it failed and left why in [`Block::trouble`].
///
/// # Safety
/// The operation must come from the kernel that laid out the warp's registers.
pub(crate) type Handler = unsafe fn(&mut Warp, &mut Block<'_>, &Op) -> bool;

/// One decoded operation. `d`, `a`, `b` and `c` are byte offsets in a warp's registers; `x` depends on the operation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Op {
    pub run: Handler,
    pub d: u32,
    pub a: u32,
    pub b: u32,
    pub c: u32,
    pub x: u64,
}

/// Why an operation failed, without the place, which the caller adds.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Trouble {
    Illegal {
        address: u64,
        bytes: u32,
        space: Space,
        lane: u32,
    },
    Misaligned {
        address: u64,
        bytes: u32,
        space: Space,
        lane: u32,
    },
    Diverged,
    Trap,
    /// An access that nothing orders with an earlier one.
    Race(Race),
}

/// The state that the threads of one block share while they run.
pub(crate) struct Block<'a> {
    pub memory: &'a dyn Memory,
    /// The allocation each memory operation touched last.
    pub regions: Vec<Region>,
    /// Shared memory of the block.
    pub shared: Region,
    /// The parameters; `start` is 0.
    pub params: Region,
    /// Local memory of all threads of the block, one thread after the other; `start` is 0.
    pub local: Region,
    /// Bytes of local memory of one thread.
    pub local_bytes: u64,
    /// Threads that have local memory: those of whole warps.
    pub threads: usize,
    /// Register offsets of operations with more operands than an [`Op`] holds.
    pub lists: &'a [u32],
    pub trouble: Option<Trouble>,
    /// Notes what the block touches, in place of writing to device memory.
    pub trace: Option<Trace>,
    /// Notes who accesses which byte, where races are looked for.
    pub races: Option<Races<'a>>,
}

/// One warp: its registers and the lanes that run.
pub(crate) struct Warp {
    /// Start of the registers, 64-byte aligned.
    registers: *mut u8,
    /// The lanes that run.
    pub mask: u32,
    /// No live lane is outside of `mask`, so results need no merging.
    pub whole: bool,
    /// Carry flag of each lane.
    pub carry: u32,
    /// Index in the block of the thread in lane 0.
    pub first_thread: u32,
}

impl Warp {
    /// A warp over registers that start at `registers`.
    pub(crate) fn new(registers: *mut u8, first_thread: u32) -> Warp {
        Warp { registers, mask: 0, whole: false, carry: 0, first_thread }
    }

    /// Reads a register.
    ///
    /// # Safety
    /// `slot` must be the offset of a register of at least `LANES * size_of::<T>()` bytes of this warp's kernel.
    #[inline(always)]
    pub(crate) unsafe fn get<T: Lane>(&self, slot: u32) -> &Lanes<T> {
        // SAFETY: the caller's promise; slots are aligned to 64 bytes and always initialised.
        unsafe { &*self.registers.add(slot as usize).cast::<Lanes<T>>() }
    }

    /// Reads a 32-bit register as its halves: the low and the high one of each lane.
    ///
    /// # Safety
    /// `slot` must be the offset of a 32-bit register of this warp's kernel.
    #[inline(always)]
    pub(crate) unsafe fn halves(&self, slot: u32) -> &[u16; 2 * LANES] {
        // SAFETY: the caller's promise.
        unsafe { &*self.registers.add(slot as usize).cast::<[u16; 2 * LANES]>() }
    }

    /// Writes the running lanes of a register.
    ///
    /// # Safety
    /// As for [`Warp::get`].
    #[inline(always)]
    pub(crate) unsafe fn set<T: Lane>(&mut self, slot: u32, value: &Lanes<T>) {
        // SAFETY: the caller's promise; `&mut self` excludes references from `get`.
        let target = unsafe { &mut *self.registers.add(slot as usize).cast::<Lanes<T>>() };
        if self.whole {
            *target = *value;
        } else {
            let running = expand(self.mask);
            for l in 0..LANES {
                target[l] = T::blend(running[l], value[l], target[l]);
            }
        }
    }

    /// Writes all lanes of a register, running or not.
    ///
    /// # Safety
    /// As for [`Warp::get`].
    #[inline(always)]
    pub(crate) unsafe fn fill<T: Lane>(&mut self, slot: u32, value: T) {
        // SAFETY: the caller's promise.
        unsafe { *self.registers.add(slot as usize).cast::<Lanes<T>>() = [value; LANES] };
    }

    /// Writes all lanes of a predicate, running or not.
    ///
    /// # Safety
    /// As for [`Warp::predicate`].
    pub(crate) unsafe fn fill_predicate(&mut self, slot: u32, value: bool) {
        // SAFETY: the caller's promise.
        unsafe { self.registers.add(slot as usize).cast::<u32>().write(if value { !0 } else { 0 }) };
    }

    /// Writes one lane of a register.
    ///
    /// # Safety
    /// As for [`Warp::get`], and `lane` must be below [`LANES`].
    #[inline(always)]
    pub(crate) unsafe fn set_lane<T: Lane>(&mut self, slot: u32, lane: usize, value: T) {
        // SAFETY: the caller's promise.
        unsafe { *self.registers.add(slot as usize).cast::<T>().add(lane) = value };
    }

    /// Reads a predicate: one bit a lane.
    ///
    /// # Safety
    /// `slot` must be the offset of a predicate of this warp's kernel.
    #[inline(always)]
    pub(crate) unsafe fn predicate(&self, slot: u32) -> u32 {
        // SAFETY: the caller's promise.
        unsafe { self.registers.add(slot as usize).cast::<u32>().read() }
    }

    /// Writes the running lanes of a predicate.
    ///
    /// # Safety
    /// As for [`Warp::predicate`].
    #[inline(always)]
    pub(crate) unsafe fn set_predicate(&mut self, slot: u32, bits: u32) {
        // SAFETY: the caller's promise.
        let target = unsafe { &mut *self.registers.add(slot as usize).cast::<u32>() };
        *target = *target & !self.mask | bits & self.mask;
    }

    /// The running lanes, lowest first.
    #[inline(always)]
    pub(crate) fn running(&self) -> impl Iterator<Item = usize> + use<> {
        let mut rest = self.mask;
        std::iter::from_fn(move || {
            let lane = rest.trailing_zeros() as usize;
            rest &= rest.wrapping_sub(1);
            (lane < LANES).then_some(lane)
        })
    }
}
