//! Divisions of blocks among devices, compared with all divisions that there are.

use std::ops::Range;

use kiln_parallel::{BlockCost, DeviceLimit, Error, Load, Schedule, SplitOptions, Stages};
use proptest::prelude::*;

/// Blocks, devices and options whose times are multiples of an eighth of a second, so that sums and quotients are exact.
type Case = (Vec<BlockCost>, Vec<DeviceLimit>, SplitOptions);

fn blocks() -> impl Strategy<Value = Vec<BlockCost>> {
    let block =
        (0u8..5, 0u64..9, 0u64..5, 0u64..9, 0u64..5).prop_map(|(seconds, parameters, kept, workspace, output)| {
            BlockCost {
                seconds: seconds.into(),
                parameter_bytes: parameters,
                activation_bytes: kept,
                workspace_bytes: workspace,
                output_bytes: output,
            }
        });
    prop::collection::vec(block, 1..=8)
}

fn cases() -> impl Strategy<Value = Case> {
    let schedule =
        prop_oneof![Just(Schedule::Sequential), Just(Schedule::GPipe), Just(Schedule::OneForwardOneBackward)];
    let link = prop::option::of(prop::sample::select(vec![0.5, 1.0, 2.0]));
    let options = (schedule, 1usize..6, link).prop_map(|(schedule, micro_batches, link)| SplitOptions {
        schedule,
        micro_batches,
        link,
    });
    // Some limits bind, some do not.
    let bytes = prop_oneof![0u64..60, 20u64..120, Just(1000)];
    let device =
        (bytes, prop::sample::select(vec![0.5, 1.0, 2.0])).prop_map(|(bytes, speed)| DeviceLimit { bytes, speed });
    (blocks(), prop::collection::vec(device, 1..=4), options).prop_map(|(blocks, mut devices, options)| {
        devices.truncate(blocks.len());
        (blocks, devices, options)
    })
}

/// All ways to cut `blocks` into `stages` ranges, earliest cuts first.
fn divisions(blocks: Range<usize>, stages: usize) -> Vec<Vec<Range<usize>>> {
    if stages == 1 {
        return vec![vec![blocks]];
    }
    let ends = blocks.start + 1..=blocks.end + 1 - stages;
    let with_first = |end: usize| {
        let first = blocks.start..end;
        let rests = divisions(end..blocks.end, stages - 1).into_iter();
        rests.map(move |rest| std::iter::once(first.clone()).chain(rest).collect())
    };
    ends.flat_map(with_first).collect()
}

/// Seconds and bytes of one stage, added up block by block.
fn price((blocks, devices, options): &Case, stage: usize, range: &Range<usize>) -> (f64, u64) {
    let mine = &blocks[range.clone()];
    let compute = mine.iter().map(|block| block.seconds).sum::<f64>() / devices[stage].speed;
    let sent = options
        .link
        .filter(|_| stage + 1 < devices.len())
        .map_or(0.0, |link| mine.last().map_or(0.0, |block| block.output_bytes as f64 / link));
    let held = options.schedule.in_flight(stage, devices.len(), options.micro_batches) as u64;
    let input = if range.start > 0 { blocks[range.start - 1].output_bytes } else { 0 };
    let parameters: u64 = mine.iter().map(|block| block.parameter_bytes).sum();
    let activations: u64 = mine.iter().map(|block| block.activation_bytes).sum();
    let workspace = mine.iter().map(|block| block.workspace_bytes).max().unwrap_or(0);
    (compute.max(sent), parameters + held * (activations + input) + workspace)
}

/// Slowest seconds, most bytes, most bytes lacking.
fn judge(case: &Case, division: &[Range<usize>]) -> (f64, u64, u64) {
    let prices: Vec<_> = division.iter().enumerate().map(|(stage, range)| price(case, stage, range)).collect();
    let lacks = prices.iter().zip(&case.1).map(|((_, bytes), device)| bytes.saturating_sub(device.bytes)).max();
    let slowest = prices.iter().map(|(seconds, _)| *seconds).fold(0.0, f64::max);
    (slowest, prices.iter().map(|(_, bytes)| *bytes).max().unwrap_or(0), lacks.unwrap_or(0))
}

fn slowest(stages: &Stages) -> f64 {
    stages.loads().iter().map(Load::seconds).fold(0.0, f64::max)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn the_division_is_the_best_of_all_and_errs_only_if_none_fits(case in cases()) {
        let all = divisions(0..case.0.len(), case.1.len());
        let fitting = all.iter().map(|division| (judge(&case, division), division)).filter(|((_, _, lacks), _)| *lacks == 0);
        // Of equals, the first is the least: the one with the earliest cuts.
        let best = fitting.min_by(|((time, bytes, _), _), ((other, others, _), _)| {
            time.total_cmp(other).then(bytes.cmp(others))
        });
        match (Stages::split(&case.0, &case.1, &case.2), best) {
            (Ok(found), Some((_, best))) => {
                prop_assert_eq!(found.ranges(), &best[..]);
                for (stage, (range, load)) in best.iter().zip(found.loads()).enumerate() {
                    prop_assert_eq!((load.seconds(), load.bytes), price(&case, stage, range));
                }
            }
            (Err(Error::DoesNotFit { device, needs, limit, .. }), None) => {
                let least = all.iter().map(|division| judge(&case, division).2).min();
                prop_assert_eq!(Some(needs - limit), least);
                prop_assert_eq!(limit, case.1[device].bytes);
            }
            (found, best) => prop_assert!(false, "{found:?}, all divisions have {best:?}"),
        }
    }

    #[test]
    fn more_memory_never_makes_stages_slower(case in cases(), more in prop::collection::vec(0u64..40, 4)) {
        let (blocks, devices, options) = case;
        let grown: Vec<DeviceLimit> = devices
            .iter()
            .zip(more)
            .map(|(device, more)| DeviceLimit { bytes: device.bytes + more, ..*device })
            .collect();
        if let Ok(before) = Stages::split(&blocks, &devices, &options) {
            let after = Stages::split(&blocks, &grown, &options).unwrap();
            prop_assert!(slowest(&after) <= slowest(&before));
        }
    }
}

#[test]
fn a_hundred_blocks_are_divided_among_eight_devices() {
    let blocks: Vec<BlockCost> = (0..100)
        .map(|i| BlockCost {
            seconds: 0.001 * (1 + i % 7) as f64,
            parameter_bytes: 1000,
            activation_bytes: 100,
            ..BlockCost::default()
        })
        .collect();
    let options = SplitOptions::new(Schedule::OneForwardOneBackward, 32);
    let stages = Stages::split(&blocks, &[DeviceLimit::new(1 << 20); 8], &options).unwrap();
    let total: f64 = blocks.iter().map(|block| block.seconds).sum();
    // No stage is more than half of the longest block above the mean.
    assert!(slowest(&stages) <= total / 8.0 + 0.0035, "{stages}");
    assert_eq!(stages.ranges().len(), 8);
}
