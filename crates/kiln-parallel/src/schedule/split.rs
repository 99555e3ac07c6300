//! The best division of a chain of blocks among devices.

use std::ops::Range;

use super::{BlockCost, DeviceLimit, Load, SplitOptions, Stages, check, check_count};
use crate::error::Error;

impl Stages {
    /// The division of `blocks` among all of `devices`, in this order, whose slowest stage is the fastest possible.
    ///
    /// A stage takes the seconds of its blocks divided by its device's speed, or those of the transfer of its output if they are more
    /// ([`Load::seconds`]). It needs the bytes of
    /// - the parameters of its blocks,
    /// - the activations of its blocks and the input of its first block, for each micro-batch that it holds,
    /// - the largest workspace of its blocks.
    ///
    /// No stage needs more bytes than its device has. Of the divisions whose slowest stage is equally fast, those are taken whose largest
    /// stage needs the fewest bytes, and of these the one with the earliest first cut, second cut, and so on. Times are compared in whole
    /// picoseconds, so that rounding decides nothing.
    ///
    /// The search is exact: dynamic programming over stages and cuts, `devices * blocks^2 / 2` steps, run three times.
    ///
    /// ```
    /// use kiln_parallel::{BlockCost, DeviceLimit, Schedule, SplitOptions, Stages};
    ///
    /// let block = BlockCost { seconds: 0.01, parameter_bytes: 100, activation_bytes: 50, ..BlockCost::default() };
    /// let slow = BlockCost { seconds: 0.03, ..block };
    /// let options = SplitOptions::new(Schedule::OneForwardOneBackward, 8);
    /// let stages = Stages::split(&[block, block, block, slow], &[DeviceLimit::new(1000); 2], &options)?;
    /// assert_eq!(stages.ranges(), [0..3, 3..4]);
    /// assert_eq!(stages.loads()[0].bytes, 3 * 100 + 2 * 3 * 50);
    /// # Ok::<(), kiln_parallel::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::DoesNotFit`] if no division fits: it names the device that lacks the most bytes in the division that lacks the least.
    /// [`Error::InvalidSetting`] without devices, for more devices than blocks, and for numbers that cannot be.
    pub fn split(blocks: &[BlockCost], devices: &[DeviceLimit], options: &SplitOptions) -> Result<Self, Error> {
        let chain = Chain::new(blocks, devices, options)?;
        let fits = |part: &Part| chain.bytes(part) <= devices[part.stage].bytes;
        let Some(time) = chain.least(|part| fits(part).then(|| chain.time(part))) else {
            return Err(chain.closest());
        };
        let fast = |part: &Part| fits(part) && chain.time(part) <= time;
        let bytes = chain.least(|part| fast(part).then(|| chain.bytes(part))).unwrap_or(u64::MAX);
        let ranges = chain.earliest(|part| fast(part) && chain.bytes(part) <= bytes);
        Ok(chain.loaded(Self::of(ranges)))
    }

    /// Computes the seconds and bytes of each stage ([`loads`](Self::loads)). Does not check whether the devices have as many bytes.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] if the stages have other numbers of blocks or devices, and for numbers that cannot be.
    pub fn with_costs(
        self,
        blocks: &[BlockCost],
        devices: &[DeviceLimit],
        options: &SplitOptions,
    ) -> Result<Self, Error> {
        let chain = Chain::new(blocks, devices, options)?;
        let covered = self.ranges().last().map_or(0, |range| range.end);
        if (self.ranges().len(), covered) != (devices.len(), blocks.len()) {
            let value = format!("{} stages of {covered} blocks", self.ranges().len());
            let expected = "as many stages as devices, and as many blocks as there are costs";
            return Err(Error::invalid("stages", value, expected));
        }
        Ok(chain.loaded(self))
    }
}

/// Time as an integer, so that sums do not depend on their order.
type Picoseconds = u64;

fn picoseconds(seconds: f64) -> Picoseconds {
    (seconds * 1e12).round() as Picoseconds
}

/// A possible stage: its number, its blocks, and their largest workspace.
struct Part {
    stage: usize,
    blocks: Range<usize>,
    workspace: u64,
}

/// The costs of all possible stages. Element `i` of a sum is that of the first `i` blocks.
struct Chain<'a> {
    blocks: &'a [BlockCost],
    devices: &'a [DeviceLimit],
    /// The micro-batches that each stage holds.
    in_flight: Vec<u128>,
    time: Vec<u128>,
    parameters: Vec<u128>,
    activations: Vec<u128>,
    /// The time in which the output of each block reaches the next stage.
    transfer: Vec<Picoseconds>,
}

impl<'a> Chain<'a> {
    fn new(blocks: &'a [BlockCost], devices: &'a [DeviceLimit], options: &SplitOptions) -> Result<Self, Error> {
        check_count(blocks.len(), devices.len())?;
        check(blocks, devices, options)?;
        let SplitOptions { schedule, micro_batches, link } = *options;
        let sums = |of: &dyn Fn(&BlockCost) -> u64| {
            let running = blocks.iter().scan(0, |sum, block| {
                *sum += u128::from(of(block));
                Some(*sum)
            });
            std::iter::once(0).chain(running).collect()
        };
        let transfer = |block: &BlockCost| link.map_or(0, |rate| picoseconds(block.output_bytes as f64 / rate));
        Ok(Self {
            blocks,
            devices,
            in_flight: (0..devices.len())
                .map(|stage| schedule.in_flight(stage, devices.len(), micro_batches) as u128)
                .collect(),
            time: sums(&|block| picoseconds(block.seconds)),
            parameters: sums(&|block| block.parameter_bytes),
            activations: sums(&|block| block.activation_bytes),
            transfer: blocks.iter().map(transfer).collect(),
        })
    }

    fn bytes(&self, Part { stage, blocks: Range { start, end }, workspace }: &Part) -> u64 {
        let input = start.checked_sub(1).map_or(0, |before| self.blocks[before].output_bytes);
        let held = self.activations[*end] - self.activations[*start] + u128::from(input);
        let parameters = self.parameters[*end] - self.parameters[*start];
        let bytes = parameters + self.in_flight[*stage] * held + u128::from(*workspace);
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }

    fn compute(&self, Part { stage, blocks: Range { start, end }, .. }: &Part) -> Picoseconds {
        let time = (self.time[*end] - self.time[*start]) as f64 / self.devices[*stage].speed;
        time.round() as Picoseconds // a time that is too long becomes the longest
    }

    fn sends(&self, part: &Part) -> Picoseconds {
        if part.blocks.end == self.blocks.len() { 0 } else { self.transfer[part.blocks.end - 1] }
    }

    fn time(&self, part: &Part) -> Picoseconds {
        self.compute(part).max(self.sends(part))
    }

    /// The last block, plus 1, that a stage may have so that each later stage has a block.
    fn end(&self, stage: usize) -> usize {
        self.blocks.len() + stage + 1 - self.devices.len()
    }

    /// The least that the largest key of a division's stages can be. Stages without a key are not allowed.
    fn least(&self, key: impl Fn(&Part) -> Option<u64>) -> Option<u64> {
        // The least largest key if the stages so far end before each block. Nothing yet ends before block 0.
        let mut best: Vec<Option<u64>> = vec![None; self.blocks.len() + 1];
        best[0] = Some(0);
        for stage in 0..self.devices.len() {
            let before = std::mem::replace(&mut best, vec![None; self.blocks.len() + 1]);
            for end in stage + 1..=self.end(stage) {
                let mut workspace = 0;
                for start in (stage..end).rev() {
                    workspace = self.blocks[start].workspace_bytes.max(workspace);
                    let Some(largest) = before[start] else { continue };
                    let Some(key) = key(&Part { stage, blocks: start..end, workspace }) else { continue };
                    let key = key.max(largest);
                    best[end] = Some(best[end].map_or(key, |best| best.min(key)));
                }
            }
        }
        best[self.blocks.len()]
    }

    /// The division with the earliest cuts whose stages are all allowed. Empty if there is none.
    fn earliest(&self, allowed: impl Fn(&Part) -> bool) -> Vec<Range<usize>> {
        let (blocks, stages) = (self.blocks.len(), self.devices.len());
        // For each stage and first block: the end of the shortest stage that the later stages can complete.
        let mut ends: Vec<Vec<Option<usize>>> = vec![vec![None; blocks + 1]; stages];
        for stage in (0..stages).rev() {
            for start in stage..self.end(stage) {
                let mut workspace = 0;
                ends[stage][start] = (start + 1..=self.end(stage)).find(|&end| {
                    workspace = self.blocks[end - 1].workspace_bytes.max(workspace);
                    let completed = ends.get(stage + 1).map_or(end == blocks, |later| later[end].is_some());
                    completed && allowed(&Part { stage, blocks: start..end, workspace })
                });
            }
        }
        let cut = |begin: &mut usize, stage: usize| {
            let end = ends[stage][*begin]?;
            Some(std::mem::replace(begin, end)..end)
        };
        (0..stages).scan(0, |begin, stage| cut(begin, stage)).collect()
    }

    /// The error that says which device lacks the most bytes in the division that lacks the least.
    fn closest(&self) -> Error {
        let lacks = |part: &Part| self.bytes(part).saturating_sub(self.devices[part.stage].bytes);
        let least = self.least(|part| Some(lacks(part))).unwrap_or(u64::MAX);
        let parts = self.parts(self.earliest(|part| lacks(part) <= least));
        let worst = parts.iter().max_by_key(|part| (lacks(part), std::cmp::Reverse(part.stage)));
        let (device, needs) = worst.map_or((0, u64::MAX), |part| (part.stage, self.bytes(part)));
        Error::DoesNotFit {
            blocks: self.blocks.len(),
            devices: self.devices.len(),
            device,
            needs,
            limit: self.devices[device].bytes,
        }
    }

    fn parts(&self, ranges: Vec<Range<usize>>) -> Vec<Part> {
        let workspace =
            |range: &Range<usize>| self.blocks[range.clone()].iter().map(|block| block.workspace_bytes).max();
        let part = |(stage, blocks)| Part { stage, workspace: workspace(&blocks).unwrap_or(0), blocks };
        ranges.into_iter().enumerate().map(part).collect()
    }

    fn loaded(&self, stages: Stages) -> Stages {
        let seconds = |time: Picoseconds| time as f64 / 1e12;
        let load = |part: &Part| Load {
            compute: seconds(self.compute(part)),
            transfer: seconds(self.sends(part)),
            bytes: self.bytes(part),
        };
        let loads = self.parts(stages.ranges().to_vec()).iter().map(load).collect();
        stages.and_loads(loads)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::order::Schedule;

    const BLOCK: BlockCost =
        BlockCost { seconds: 1.0, parameter_bytes: 10, activation_bytes: 4, workspace_bytes: 3, output_bytes: 2 };

    fn one_f_one_b(micro_batches: usize) -> SplitOptions {
        SplitOptions::new(Schedule::OneForwardOneBackward, micro_batches)
    }

    #[test]
    fn equal_blocks_on_equal_devices_are_divided_evenly_whatever_rounding_does() {
        for seconds in [0.1, 1.0 / 3.0, 1e-7] {
            let blocks = [BlockCost { seconds, ..BLOCK }; 12];
            let stages = Stages::split(&blocks, &[DeviceLimit::new(1000); 4], &one_f_one_b(8)).unwrap();
            assert_eq!(stages.ranges(), [0..3, 3..6, 6..9, 9..12]);
        }
    }

    #[test]
    fn bytes_are_parameters_and_all_that_micro_batches_in_flight_keep() {
        let stages = Stages::split(&[BLOCK; 6], &[DeviceLimit::new(1000); 3], &one_f_one_b(8)).unwrap();
        let bytes: Vec<u64> = stages.loads().iter().map(|load| load.bytes).collect();
        assert_eq!(bytes, [20 + 3 * 8 + 3, 20 + 2 * (8 + 2) + 3, 20 + (8 + 2) + 3]);
        let options = SplitOptions::new(Schedule::GPipe, 8);
        let stages = Stages::split(&[BLOCK; 6], &[DeviceLimit::new(1000); 3], &options).unwrap();
        assert_eq!(stages.loads()[2].bytes, 20 + 8 * (8 + 2) + 3);
    }

    #[test]
    fn a_faster_device_gets_more_blocks_and_a_smaller_one_fewer() {
        let fast = DeviceLimit { bytes: 1000, speed: 2.0 };
        let stages = Stages::split(&[BLOCK; 6], &[fast, DeviceLimit::new(1000)], &one_f_one_b(1)).unwrap();
        assert_eq!(stages.ranges(), [0..4, 4..6]);
        assert_eq!(stages.loads().iter().map(Load::seconds).collect::<Vec<_>>(), [2.0, 2.0]);
        let small = DeviceLimit { bytes: 35, speed: 2.0 };
        let stages = Stages::split(&[BLOCK; 6], &[small, DeviceLimit::new(1000)], &one_f_one_b(1)).unwrap();
        assert_eq!(stages.ranges(), [0..2, 2..6]);
    }

    #[test]
    fn a_cut_avoids_a_wide_boundary_only_if_transfers_count() {
        let mut blocks = [BLOCK; 4];
        blocks[1].output_bytes = 100;
        let devices = [DeviceLimit::new(1000); 2];
        assert_eq!(Stages::split(&blocks, &devices, &one_f_one_b(2)).unwrap().ranges(), [0..2, 2..4]);
        let stages = Stages::split(&blocks, &devices, &one_f_one_b(2).with_link(10.0)).unwrap();
        assert_eq!(stages.ranges(), [0..1, 1..4]);
        assert_eq!(stages.loads()[0].transfer, 0.2);
        assert_eq!(stages.loads()[1].transfer, 0.0);
    }

    #[test]
    fn ties_go_to_even_memory_and_then_to_early_cuts() {
        let blocks: [BlockCost; 5] = std::array::from_fn(|i| BlockCost {
            // The block in the middle takes all the time, and either half of the others.
            seconds: if i == 2 { 1.0 } else { 0.0 },
            parameter_bytes: [10, 10, 30, 10, 10][i],
            ..BlockCost::default()
        });
        let stages = Stages::split(&blocks, &[DeviceLimit::new(1000); 2], &one_f_one_b(1)).unwrap();
        assert_eq!(stages.ranges(), [0..2, 2..5].map(|range: Range<usize>| range));
        let even = [BlockCost::default(); 5];
        let stages = Stages::split(&even, &[DeviceLimit::new(0); 3], &one_f_one_b(1)).unwrap();
        assert_eq!(stages.ranges(), [0..1, 1..2, 2..5]);
    }

    #[test]
    fn the_error_names_the_device_that_lacks_the_most() {
        let devices = [DeviceLimit::new(20), DeviceLimit::new(12)];
        let message = Stages::split(&[BLOCK; 2], &devices, &one_f_one_b(1)).unwrap_err().to_string();
        assert_eq!(
            message,
            "2 blocks do not fit into 2 devices: in the closest division, device 1 needs 19 bytes and has 12 (7 too few)"
        );
        let huge = BlockCost { activation_bytes: u64::MAX, ..BLOCK };
        let error = Stages::split(&[huge; 2], &devices, &one_f_one_b(4)).unwrap_err();
        assert!(matches!(error, Error::DoesNotFit { needs: u64::MAX, .. }), "{error}");
    }

    #[test]
    fn given_stages_are_priced_like_found_ones() {
        let (blocks, devices) = ([BLOCK; 7], [DeviceLimit::new(1000); 3]);
        let found = Stages::split(&blocks, &devices, &one_f_one_b(4)).unwrap();
        let cuts: Vec<usize> = found.ranges().iter().skip(1).map(|range| range.start).collect();
        let given = Stages::at(7, &cuts).unwrap().with_costs(&blocks, &devices, &one_f_one_b(4)).unwrap();
        assert_eq!(given, found);
        assert!(Stages::even(7, 2).unwrap().with_costs(&blocks, &devices, &one_f_one_b(4)).is_err());
        assert!(Stages::even(6, 3).unwrap().with_costs(&blocks, &devices, &one_f_one_b(4)).is_err());
    }

    #[test]
    fn numbers_that_cannot_be_are_errors() {
        let device = DeviceLimit::new(1000);
        let message = |block, device, options: SplitOptions| {
            Stages::split(&[block], &[device], &options).unwrap_err().to_string()
        };
        let slow = BlockCost { seconds: f64::NAN, ..BLOCK };
        assert_eq!(message(slow, device, one_f_one_b(1)), "seconds = NaN: expected seconds, finite and not negative");
        let still = DeviceLimit { speed: 0.0, ..device };
        assert_eq!(message(BLOCK, still, one_f_one_b(1)), "speed = 0: expected finite and above 0");
        assert_eq!(message(BLOCK, device, one_f_one_b(0)), "micro_batches = 0: expected at least 1");
        let link = one_f_one_b(1).with_link(-1.0);
        assert_eq!(message(BLOCK, device, link), "link = -1: expected bytes a second, finite and above 0");
        assert!(Stages::split(&[BLOCK], &[], &one_f_one_b(1)).is_err());
        assert!(Stages::split(&[BLOCK], &[device; 2], &one_f_one_b(1)).is_err());
    }
}
