//! Runs the warps of one block in turn and lets them pass their barriers.

use super::warp::{Failure, Group, Lockstep, Stop, Wait};
use crate::ptx::lower::Program;
use crate::ptx::machine::{Block, Races, Trouble};

/// Operations a warp runs before the next one of its block gets its turn.
pub(super) const SHARE: u64 = 1 << 20;
/// The most operations of a warp's turn in a random order.
const SHORT_SHARE: u64 = 256;

/// The next of a sequence of random numbers (splitmix64, Steele et al. 2014).
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let z = (*state ^ *state >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ z >> 31
}

/// Why a block did not end.
#[derive(Debug, Clone, Copy)]
pub(super) enum Broken {
    Failed {
        failure: Failure,
        warp: usize,
    },
    /// Every lane that is left waits; the first of them.
    Deadlock {
        group: Group,
        warp: usize,
    },
    /// The caller asked to stop.
    Stopped,
}

/// Runs the warps until all have ended. After each share, `go_on` hears how many operations have run since it was
/// asked last, and says whether to continue. With a seed, the order of the warps and their shares are random.
pub(super) fn run(
    program: &Program,
    warps: &mut [Lockstep],
    block: &mut Block<'_>,
    mut seed: Option<u64>,
    mut go_on: impl FnMut(u64) -> bool,
) -> Result<(), Broken> {
    let mut order: Vec<usize> = (0..warps.len()).collect();
    loop {
        let mut runnable = false;
        if let Some(state) = &mut seed {
            for last in (1..order.len()).rev() {
                order.swap(last, next(state) as usize % (last + 1));
            }
        }
        for &n in &order {
            let share = seed.as_mut().map_or(SHARE, |state| 1 + next(state) % SHORT_SHARE);
            let warp = &mut warps[n];
            if warp.alive == 0 {
                continue;
            }
            let mut count = 0;
            let stop =
                warp.run(program, block, share, &mut count).map_err(|failure| Broken::Failed { failure, warp: n })?;
            runnable |= stop == Stop::Share;
            if !go_on(count) {
                return Err(Broken::Stopped);
            }
        }
        let released = release(warps);
        if released {
            block.races.iter_mut().for_each(Races::barrier);
        }
        if warps.iter().all(|w| w.alive == 0) {
            return match block.races.as_mut().and_then(Races::settle) {
                Some(race) => {
                    let failure = Failure { trouble: Trouble::Race(race), line: 0, mask: 0 };
                    Err(Broken::Failed { failure, warp: 0 })
                }
                None => Ok(()),
            };
        }
        if !released && !runnable {
            let first = warps.iter().enumerate().find_map(|(warp, w)| w.groups.first().map(|&group| (group, warp)));
            return match first {
                Some((group, warp)) => Err(Broken::Deadlock { group, warp }),
                None => Ok(()),
            };
        }
    }
}

/// Opens each barrier where all threads, or as many as it names, have arrived; whether one was opened.
fn release(warps: &mut [Lockstep]) -> bool {
    let alive: u32 = warps.iter().map(|w| w.alive.count_ones()).sum();
    let mut arrived: Vec<(u32, u32, Option<u32>)> = Vec::new();
    for group in warps.iter().flat_map(|w| &w.groups) {
        if let Wait::Barrier { id, count } = group.wait {
            let threads = group.mask.count_ones();
            match arrived.iter_mut().find(|a| a.0 == id) {
                Some(barrier) => barrier.1 += threads,
                None => arrived.push((id, threads, count)),
            }
        }
    }
    arrived.retain(|&(_, threads, count)| threads >= count.unwrap_or(alive));
    for group in warps.iter_mut().flat_map(|w| &mut w.groups) {
        if let Wait::Barrier { id, .. } = group.wait
            && arrived.iter().any(|a| a.0 == id)
        {
            group.wait = Wait::Nothing;
        }
    }
    !arrived.is_empty()
}
