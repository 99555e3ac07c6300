//! A lower bound on the time that the rest of a chain adds, which shortens the exact search.

use super::cost::{Picoseconds, Sums};

/// A lower bound on the time that the blocks from each block on add when they have to fit into the bytes that are left.
pub(super) struct Bound {
    /// For the blocks from one on: bytes saved and time added by recomputing the first of them, in the order of bytes saved
    /// per time, as running sums.
    rest: Vec<Vec<(u64, Picoseconds)>>,
    /// Bytes that plain blocks from one on hold.
    plain: Vec<u64>,
    /// Bytes that all blocks may hold together.
    room: u64,
}

impl Bound {
    pub(super) fn new(sums: &Sums, budget: u64) -> Self {
        let blocks = sums.blocks();
        let block = |index: usize| sums.block(index);
        let mut order: Vec<usize> = (0..blocks).filter(|index| block(*index).0 > 0).collect();
        order.sort_by(|a, b| {
            let ((a_bytes, a_time), (b_bytes, b_time)) = (block(*a), block(*b));
            (u128::from(b_bytes) * u128::from(a_time)).cmp(&(u128::from(a_bytes) * u128::from(b_time)))
        });
        let running = |from: usize| {
            let (mut bytes, mut time) = (0, 0);
            let later = order.iter().filter(|index| **index >= from);
            later
                .map(|index| {
                    let (saved, added) = block(*index);
                    (bytes, time) = (bytes + saved, time + added);
                    (bytes, time)
                })
                .collect()
        };
        let plain = (0..=blocks).map(|from| (from..blocks).map(|index| block(index).0).sum()).collect();
        Self { rest: (0..=blocks).map(running).collect(), plain, room: budget.saturating_sub(sums.after()) }
    }

    /// The least time that the blocks from `from` on add when those before hold `held` bytes; none when they cannot fit.
    ///
    /// A block that is recomputed saves at most all bytes it holds, at the time of its forward pass: the least time for a
    /// number of bytes is that of a fractional knapsack.
    pub(super) fn least(&self, from: usize, held: u64) -> Option<Picoseconds> {
        let missing = (held + self.plain[from]).saturating_sub(self.room);
        let rest = &self.rest[from];
        let last = rest.partition_point(|(bytes, _)| *bytes < missing);
        let (before, time) = if last == 0 { (0, 0) } else { rest[last - 1] };
        if missing == before {
            return Some(time);
        }
        let (bytes, end) = *rest.get(last)?;
        let part = u128::from(missing - before) * u128::from(end - time) / u128::from(bytes - before);
        Some(time + part as Picoseconds)
    }
}
