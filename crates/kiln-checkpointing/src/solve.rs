use crate::cost::{Picoseconds, Step, Sums};
use crate::{ChainCost, Error, Mode, Plan, PlanSegment};

/// Chains up to this length are solved exactly, and of the fastest plans the one with the least peak is taken.
const EXACT: usize = 64;
/// Partial plans that are kept per block in longer chains.
const KEPT: usize = 256;

/// The fastest plan whose peak stays within `budget` bytes.
///
/// Dynamic programming over the boundaries of segments, from the first block to the last. What matters of a partial plan is
/// how many bytes it holds until the backward pass and how much time it adds; of all partial plans up to a block, those are
/// kept that no other beats in both (Beaumont et al. 2019 discretise the bytes instead). A segment fits if what is held before
/// it and its own peak are within the budget. Chains of more than 64 blocks keep at most 256 partial plans per block, spread
/// over the bytes held; the result is then within the budget and may miss the fastest plan by a little.
///
/// ```
/// use kiln_checkpointing::{ChainCost, Cost, solve};
///
/// let block = Cost { input: 10, saved: 100, workspace: 0, gradients: 0, forward: 1e-3 };
/// let chain = ChainCost { blocks: vec![block; 8], ..ChainCost::default() };
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
    let sums = Sums::new(costs);
    let Some((mut plan, time)) = fastest(&sums, budget) else {
        return Err(Error::Infeasible { budget, least: least_peak(&sums) });
    };
    while sums.blocks() <= EXACT {
        let below = costs.simulate(&plan)?.peak.saturating_sub(1);
        match fastest(&sums, below) {
            Some((lower, same)) if same == time => plan = lower,
            _ => break,
        }
    }
    Ok(plan)
}

/// The peak below which no plan of this chain gets.
///
/// # Errors
/// [`Error::InvalidCost`].
pub fn least(costs: &ChainCost) -> Result<u64, Error> {
    costs.check()?;
    Ok(least_peak(&Sums::new(costs)))
}

/// A partial plan up to some block.
#[derive(Clone, Copy)]
struct Partial {
    held: u64,
    time: Picoseconds,
    /// Where its last segment begins, which partial plan it extends there, and how the segment is run.
    from: usize,
    before: usize,
    mode: Mode,
}

fn fastest(sums: &Sums, budget: u64) -> Option<(Plan, Picoseconds)> {
    let blocks = sums.blocks();
    let mut kept: Vec<Vec<Partial>> = vec![vec![]; blocks + 1];
    kept[0].push(Partial { held: 0, time: 0, from: 0, before: 0, mode: Mode::Plain });
    for to in 1..=blocks {
        let mut front = Front::new(budget, if blocks <= EXACT { None } else { Some(KEPT) });
        segments(sums, to, &mut |from, mode, step| {
            for (before, partial) in kept[from].iter().enumerate() {
                if partial.held + step.needs > budget {
                    break; // sorted by what they hold
                }
                let (held, time) = (partial.held + step.holds, partial.time + step.extra);
                front.add(Partial { held, time, from, before, mode });
            }
        });
        kept[to] = front.finish();
    }
    // Sorted by what they hold, and so from slow to fast.
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
    see(to - 1, Mode::Plain, sums.step(to - 1, to, Mode::Plain));
    let mut workspace = 0;
    for from in (0..to).rev() {
        workspace = sums.workspace(from).max(workspace);
        see(from, Mode::Recompute, sums.step_with(from, to, Mode::Recompute, workspace));
        if sums.offloads() {
            see(from, Mode::Offload, sums.step_with(from, to, Mode::Offload, workspace));
        }
    }
}

/// Partial plans of which none is beaten in both bytes and time.
struct Front {
    all: Vec<Partial>,
    /// The fastest per range of bytes, when not all are kept.
    ranges: Option<Vec<Option<Partial>>>,
    /// The one that holds least, which finds a plan where there is one.
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

/// Whether any plan fits: of all partial plans the one that holds least is the best.
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
