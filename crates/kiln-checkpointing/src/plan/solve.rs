//! The fastest plan within a budget of bytes.

use super::cost::{ChainCost, Picoseconds, Step, Sums};
use super::segments::{Mode, Plan, PlanSegment};
use crate::Error;

/// Chains up to this length are solved exactly.
const EXACT: usize = 64;
/// Partial plans that are kept per block in longer chains, and in the first search of shorter ones.
const KEPT: usize = 256;

/// The fastest plan whose peak stays within `budget` bytes.
///
/// Dynamic programming over the boundaries of segments, from the first block to the last. A partial plan is described by the bytes it holds
/// until the backward pass and the time it adds. Of all partial plans up to a block, the search keeps those that no other beats in both
/// (Beaumont et al. 2019 discretise the bytes instead). A segment fits if its peak and the bytes held before it are within the budget
/// together.
///
/// Where blocks [may be streamed](ChainCost::with_store), the search is repeated with more and more blocks streamed, one by one, in the order
/// of the bytes that leave memory for each second. So there is a plan down to the memory of the largest block.
///
/// Chains of up to 64 blocks are solved exactly, and up to 8 blocks if some may be streamed; of the fastest plans, the one with the least peak is returned. Longer chains
/// keep at most 256 partial plans per block, spread over the bytes held: the plan is within the budget, and may be slightly
/// slower than the fastest.
///
/// ```
/// use kiln_checkpointing::{ChainCost, Cost, solve};
///
/// let block = Cost { input: 10, saved: 100, forward: 1e-3, ..Cost::default() };
/// let chain = ChainCost::new(vec![block; 8]);
/// let plan = solve(&chain, 500)?; // plain would take 800 bytes
/// assert!(chain.simulate(&plan)?.peak <= 500);
/// println!("{plan}");
/// # Ok::<(), kiln_checkpointing::Error>(())
/// ```
///
/// # Errors
/// [`Error::Infeasible`] with the least possible peak, [`Error::InvalidCost`].
pub fn solve(costs: &ChainCost, budget: u64) -> Result<Plan, Error> {
    costs.check()?;
    let mut best: Option<(Plan, Picoseconds, Vec<usize>)> = None;
    for streamed in costs.streamable() {
        let limit = best.as_ref().map_or(Picoseconds::MAX, |(_, time, _)| time.saturating_sub(1));
        if let Some((plan, time)) = costs.with_streamed(&streamed, |sums| fastest_within(sums, budget, limit)) {
            best = Some((plan, time, streamed));
        }
    }
    let Some((mut plan, time, streamed)) = best else {
        return Err(Error::Infeasible { budget, least: least(costs)? });
    };
    while plan.blocks() <= EXACT {
        let below = costs.simulate(&plan)?.peak.saturating_sub(1);
        match costs.with_streamed(&streamed, |sums| fastest(sums, below, time, None)) {
            Some((lower, _)) => plan = lower,
            None => break,
        }
    }
    Ok(plan)
}

/// The fastest plan within a budget that adds at most `limit` of time, exactly for short chains.
fn fastest_within(sums: &Sums, budget: u64, limit: Picoseconds) -> Option<(Plan, Picoseconds)> {
    // The time of a plan that fits bounds the exact search, which otherwise takes ten times as long.
    let first = fastest(sums, budget, limit, Some(KEPT));
    if sums.blocks() > EXACT {
        return first;
    }
    let limit = first.as_ref().map_or(limit, |(_, time)| *time);
    // Without a limit, an exact search would find nothing that the first one has not found.
    let exact = (limit < Picoseconds::MAX).then(|| fastest(sums, budget, limit, None)).flatten();
    exact.or(first)
}

/// The least peak that any plan of this chain has.
///
/// # Errors
/// [`Error::InvalidCost`].
pub fn least(costs: &ChainCost) -> Result<u64, Error> {
    costs.check()?;
    let all = costs.streamable().into_iter().map(|streamed| costs.with_streamed(&streamed, least_peak));
    Ok(all.min().unwrap_or(u64::MAX))
}

/// A partial plan up to some block.
#[derive(Clone, Copy)]
struct Partial {
    held: u64,
    time: Picoseconds,
    /// The first block of its last segment, the index of the partial plan before that, and the segment's mode.
    from: usize,
    before: usize,
    mode: Mode,
}

/// The fastest plan within a budget that adds at most `limit` of time. `ranges` bounds the partial plans kept per block.
fn fastest(sums: &Sums, budget: u64, limit: Picoseconds, ranges: Option<usize>) -> Option<(Plan, Picoseconds)> {
    let blocks = sums.blocks();
    let mut kept: Vec<Vec<Partial>> = vec![vec![]; blocks + 1];
    // In the first search there is nothing to compare a bound with.
    let bound = (limit < Picoseconds::MAX).then(|| Bound::new(sums, budget));
    let within = |to: usize, held: u64, time: Picoseconds| match &bound {
        Some(bound) => time <= limit && bound.least(to, held).is_some_and(|rest| time + rest <= limit),
        None => true,
    };
    kept[0].push(Partial { held: 0, time: 0, from: 0, before: 0, mode: Mode::Plain });
    for to in 1..=blocks {
        let mut front = Front::new(budget, ranges);
        segments(sums, to, &mut |from, mode, step| {
            for (before, partial) in kept[from].iter().enumerate() {
                if partial.held + step.needs > budget {
                    break; // sorted by the bytes they hold
                }
                let (held, time) = (partial.held + step.holds, partial.time + step.extra);
                if within(to, held, time) {
                    front.add(Partial { held, time, from, before, mode });
                }
            }
        });
        kept[to] = front.finish();
    }
    // Sorted by the bytes they hold, and therefore from slow to fast.
    let (mut index, end) =
        kept[blocks].iter().enumerate().rfind(|(_, partial)| partial.held + sums.after() <= budget)?;
    let (time, mut to, mut segments) = (end.time, blocks, vec![]);
    while to > 0 {
        let Partial { from, before, mode, .. } = kept[to][index];
        segments.push(PlanSegment { blocks: from..to, mode });
        (to, index) = (from, before);
    }
    segments.reverse();
    Some((Plan::new(segments), time))
}

/// All segments that end before block `to`.
fn segments(sums: &Sums, to: usize, see: &mut dyn FnMut(usize, Mode, Step)) {
    if let Some(step) = sums.streamed(to - 1) {
        return see(to - 1, Mode::Stream, step);
    }
    see(to - 1, Mode::Plain, sums.step(to - 1, to, Mode::Plain));
    let mut workspace = 0;
    for from in (0..to).rev().take_while(|from| sums.streamed(*from).is_none()) {
        workspace = sums.workspace(from).max(workspace);
        see(from, Mode::Recompute, sums.step_with(from, to, Mode::Recompute, workspace));
        if sums.offloads() {
            see(from, Mode::Offload, sums.step_with(from, to, Mode::Offload, workspace));
        }
    }
}

/// A lower bound on the time that the blocks from each block on add when they have to fit into the bytes that are left.
struct Bound {
    /// For the blocks from one on: bytes saved and time added by recomputing the first of them, in the order of bytes saved
    /// per time, as running sums.
    rest: Vec<Vec<(u64, Picoseconds)>>,
    /// Bytes that plain blocks from one on hold.
    plain: Vec<u64>,
    /// Bytes that all blocks may hold together.
    room: u64,
}

impl Bound {
    fn new(sums: &Sums, budget: u64) -> Self {
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
    fn least(&self, from: usize, held: u64) -> Option<Picoseconds> {
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

/// Partial plans up to one block, reduced to those that no other beats in both bytes and time.
struct Front {
    all: Vec<Partial>,
    /// The fastest partial plan in each range of bytes, when not all are kept.
    ranges: Option<Vec<Option<Partial>>>,
    /// The partial plan that holds the least, so that a plan is found if one exists.
    least: Option<Partial>,
    budget: u64,
}

impl Front {
    fn new(budget: u64, ranges: Option<usize>) -> Self {
        Self { all: vec![], ranges: ranges.map(|count| vec![None; count]), least: None, budget }
    }

    fn add(&mut self, partial: Partial) {
        let Some(ranges) = &mut self.ranges else { return self.all.push(partial) };
        if self.least.is_none_or(|least| (partial.held, partial.time) < (least.held, least.time)) {
            self.least = Some(partial);
        }
        let range = (partial.held as u128 * (ranges.len() as u128 - 1) / u128::from(self.budget.max(1))) as usize;
        let best = &mut ranges[range.min(KEPT - 1)];
        if best.is_none_or(|best| (partial.time, partial.held) < (best.time, best.held)) {
            *best = Some(partial);
        }
    }

    fn finish(mut self) -> Vec<Partial> {
        self.all.extend(self.ranges.into_iter().flatten().flatten().chain(self.least));
        self.all.sort_by_key(|partial| (partial.held, partial.time));
        let mut fastest = Picoseconds::MAX;
        self.all.retain(|partial| {
            let better = partial.time < fastest;
            fastest = fastest.min(partial.time);
            better
        });
        self.all
    }
}

fn least_peak(sums: &Sums) -> u64 {
    let (mut low, mut high) = (0, u64::MAX / 4);
    while low < high {
        let middle = low + (high - low) / 2;
        if feasible(sums, middle) { high = middle } else { low = middle + 1 }
    }
    low
}

/// Whether any plan fits. Only the least bytes held up to each block matter.
fn feasible(sums: &Sums, budget: u64) -> bool {
    let blocks = sums.blocks();
    let mut held = vec![u64::MAX; blocks + 1];
    held[0] = 0;
    for to in 1..=blocks {
        let mut best = u64::MAX;
        segments(sums, to, &mut |from, _, step| {
            if held[from] != u64::MAX && held[from] + step.needs <= budget {
                best = best.min(held[from] + step.holds);
            }
        });
        held[to] = best;
    }
    held[blocks] != u64::MAX && held[blocks] + sums.after() <= budget
}

#[cfg(test)]
mod tests {
    use super::super::cost::Cost;
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_bounds_of_the_exact_search_do_not_change_its_plan(
            blocks in prop::collection::vec((1u64..20, 0u64..50, 0u64..10, 0u64..6, 0u32..9), 1..16),
            head in 0u64..40, share in 0.2f64..1.0, offload in any::<bool>(),
        ) {
            let cost = |(input, saved, workspace, gradients, forward)| {
                Cost { input, saved, workspace, gradients, forward: f64::from(forward) * 1e-3, ..Cost::default() }
            };
            let costs = ChainCost::new(blocks.into_iter().map(cost).collect()).with_head(head);
            let costs = if offload { costs.with_transfer(3e-4) } else { costs };
            let budget = (costs.simulate(&Plan::none(costs.blocks.len())).unwrap().peak as f64 * share) as u64;
            let sums = Sums::new(&costs);
            if let Some((plan, time)) = fastest(&sums, budget, Picoseconds::MAX, None) {
                prop_assert_eq!(fastest(&sums, budget, time, None), Some((plan, time)));
                let (_, first) = fastest(&sums, budget, Picoseconds::MAX, Some(KEPT)).unwrap();
                prop_assert!(first >= time);
            }
        }
    }
}
