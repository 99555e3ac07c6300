//! Plans that stream blocks: their costs, and the blocks that are streamed where nothing else fits.

use std::ops::Range;

use super::cost::{ChainCost, Cost, Step, Sums, picoseconds};
use super::segments::{Mode, Plan, PlanSegment};

/// In chains up to this length, all sets of streamed blocks are tried.
const ALL: usize = 8;
/// Numbers of streamed blocks that are tried in longer chains, at most. They are spread evenly.
const TRIED: usize = 64;

impl ChainCost {
    /// The chain without the bytes that leave memory when the blocks are streamed that `plan` streams.
    pub(super) fn left_by(&self, plan: &Plan) -> Self {
        let streams = |segment: &&PlanSegment| segment.mode == Mode::Stream;
        self.without(plan.segments().iter().filter(streams).flat_map(|segment| segment.blocks.clone()))
    }

    fn without(&self, streamed: impl Iterator<Item = usize>) -> Self {
        let mut left = self.clone();
        for block in streamed {
            let Cost { parameters, state, gradients, .. } = &mut left.blocks[block];
            left.resident = left.resident.saturating_sub(*parameters + *state);
            *gradients = 0;
        }
        left
    }

    /// Memory and time of a streamed segment. `sums` are those of the chain without what is streamed.
    pub(super) fn streamed(&self, sums: &Sums<'_>, blocks: Range<usize>) -> Step {
        let own = || self.blocks[blocks.clone()].iter();
        let parameters: u64 = own().map(|cost| cost.parameters).sum();
        let gradients: u64 = own().map(|cost| cost.gradients).sum();
        let traffic: u64 = own().map(Cost::traffic).sum();
        let step = sums.step(blocks.start, blocks.end, Mode::Stream);
        Step {
            needs: step.needs + parameters + gradients,
            extra: step.extra + picoseconds(traffic as f64 * self.store.unwrap_or(0.0)),
            ..step
        }
    }

    /// The sets of blocks to stream that are tried, from none to all. In long chains more and more of the blocks in the order of the bytes that
    /// leave memory for each second. Of blocks that are alike, once the first ones, which are recomputed anyway, and once the last ones, whose activations
    /// and gradients exist together with those of all others.
    pub(super) fn streamable(&self) -> Vec<Vec<usize>> {
        let Some(store) = self.store else { return vec![vec![]] };
        let seconds = |cost: &Cost| (cost.forward + cost.traffic() as f64 * store).max(f64::MIN_POSITIVE);
        let gain = |block: &usize| {
            let cost = &self.blocks[*block];
            (cost.parameters + cost.state + cost.gradients) as f64 / seconds(cost)
        };
        if self.blocks.len() <= ALL {
            let mut sets: Vec<u32> = (0..1 << self.blocks.len()).collect();
            sets.sort_by_key(|set| set.count_ones());
            let blocks = |set: u32| (0..self.blocks.len()).filter(|block| set >> block & 1 == 1).collect();
            return sets.into_iter().map(blocks).collect();
        }
        let mut first: Vec<usize> = (0..self.blocks.len()).collect();
        let mut last: Vec<usize> = first.iter().copied().rev().collect();
        let count = first.len();
        for order in [&mut first, &mut last] {
            order.sort_by(|a, b| gain(b).total_cmp(&gain(a)));
        }
        let mut sets: Vec<Vec<usize>> = vec![];
        for part in 0..=count.min(TRIED) {
            for order in [&first, &last] {
                let mut set = order[..count * part / count.clamp(1, TRIED)].to_vec();
                set.sort_unstable();
                if sets.last() != Some(&set) {
                    sets.push(set);
                }
            }
        }
        sets
    }

    /// Calls `run` with the sums of the chain whose blocks in `streamed` are streamed, one by one.
    pub(super) fn with_streamed<R>(&self, streamed: &[usize], run: impl FnOnce(&Sums<'_>) -> R) -> R {
        let left = self.without(streamed.iter().copied());
        let mut sums = Sums::new(&left);
        let steps: Vec<_> = streamed.iter().map(|block| (*block, self.streamed(&sums, *block..block + 1))).collect();
        sums.stream(steps);
        run(&sums)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_streamed_in_the_order_of_bytes_for_each_second() {
        let cost = |parameters, forward| Cost { parameters, forward, ..Cost::default() };
        let mut blocks = vec![cost(10, 1.0); 9];
        (blocks[1], blocks[3]) = (cost(30, 1.0), cost(10, 0.1));
        let chain = ChainCost::new(blocks);
        assert_eq!(chain.streamable(), [[0; 0]], "without a store nothing is streamed");
        let sets = chain.with_store(1e-6).streamable();
        assert_eq!(sets[..6], [vec![], vec![3], vec![1, 3], vec![0, 1, 3], vec![1, 3, 8], vec![0, 1, 2, 3]]);
        assert_eq!(sets.last(), Some(&(0..9).collect()));
        let short = ChainCost::new(vec![cost(10, 1.0); 3]).with_store(1e-6).streamable();
        assert_eq!(short, [vec![], vec![0], vec![1], vec![2], vec![0, 1], vec![0, 2], vec![1, 2], vec![0, 1, 2]]);
        let many = ChainCost::new(vec![cost(10, 1.0); 1000]).with_store(1e-6).streamable();
        assert_eq!((many.len(), many[1].len(), many[2 * TRIED - 1].len()), (2 * TRIED, 15, 1000));
    }
}
