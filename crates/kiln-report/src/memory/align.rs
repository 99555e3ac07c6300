//! Finds the time at which each predicted operation ran, by matching the predicted bytes with the measured ones.

/// The most samples of a phase that are matched. From more samples, evenly spaced ones are taken.
const MOST: usize = 512;
/// The fewest samples with which a phase can be matched.
const FEWEST: usize = 8;
/// Weight of the estimated time against the bytes: where the bytes stay the same, the estimate decides.
const ESTIMATE: f64 = 0.1;

/// The time at which each operation of a phase begins. Each sample is assigned to an operation, in the same order. Of all assignments,
/// the one with the smallest sum of differences in bytes is taken (dynamic time warping, Sakoe and Chiba 1978, with operations that may
/// have no sample). `None` if the samples are too few or the bytes do not change.
///
/// `live` are the predicted bytes of the operations, `weights` their estimated times, and `samples` seconds and bytes between `from` and
/// `to`.
pub(super) fn align(live: &[u64], weights: &[f64], samples: &[(f64, u64)], from: f64, to: f64) -> Option<Vec<f64>> {
    let (low, high) = (*live.iter().min()? as f64, *live.iter().max()? as f64);
    let well = samples.len() >= FEWEST && high > low && to > from;
    if !well || weights.len() != live.len() {
        return None;
    }
    let samples = thin(samples);
    let middles = middles(weights);
    let places: Vec<f64> = samples.iter().map(|(at, _)| (at - from) / (to - from)).collect();
    let matched = offsets(live, &middles, &samples, &places).map(|offset| {
        cheapest(samples.len(), live.len(), |sample, operation| {
            let bytes = (samples[sample].1 as f64 + offset - live[operation] as f64).abs() / (high - low);
            bytes + ESTIMATE * (places[sample] - middles[operation]).abs()
        })
    });
    let (_, owners) = matched.into_iter().min_by(|a, b| a.0.total_cmp(&b.0))?;
    Some(starts(weights, &samples, &owners, from, to))
}

fn thin(samples: &[(f64, u64)]) -> Vec<(f64, u64)> {
    let count = samples.len().min(MOST);
    (0..count).map(|index| samples[index * samples.len() / count]).collect()
}

/// The middle of each operation in the estimated time, from 0 to 1.
fn middles(weights: &[f64]) -> Vec<f64> {
    let total: f64 = weights.iter().sum();
    let mut done = 0.0;
    let middle = |(index, weight): (usize, &f64)| {
        let middle = done + weight / 2.0;
        done += weight;
        if total > 0.0 { middle / total } else { (index as f64 + 0.5) / weights.len() as f64 }
    };
    weights.iter().enumerate().map(middle).collect()
}

/// Candidates for the bytes by which the prediction is above the measurement throughout: the difference at the highest bytes, the
/// difference at the lowest bytes, and the median of the differences at the estimated places. The median is wrong where the estimated
/// times are wrong.
fn offsets(live: &[u64], middles: &[f64], samples: &[(f64, u64)], places: &[f64]) -> [f64; 3] {
    let mut differences: Vec<f64> = samples
        .iter()
        .zip(places)
        .map(|(sample, place)| {
            let operation = middles.partition_point(|middle| middle < place).min(live.len() - 1);
            live[operation] as f64 - sample.1 as f64
        })
        .collect();
    differences.sort_by(f64::total_cmp);
    let measured = || samples.iter().map(|sample| sample.1);
    let between = |live: Option<&u64>, measured: Option<u64>| {
        live.copied().unwrap_or_default() as f64 - measured.unwrap_or_default() as f64
    };
    [
        differences[differences.len() / 2],
        between(live.iter().max(), measured().max()),
        between(live.iter().min(), measured().min()),
    ]
}

/// The operation of each sample, at the smallest total cost. Operations never go backward from one sample to the next. The first result
/// is the sum of the costs.
fn cheapest(samples: usize, operations: usize, cost: impl Fn(usize, usize) -> f64) -> (f64, Vec<usize>) {
    let mut sums = vec![0.0; operations];
    // For each sample and operation, the operation of the sample before.
    let mut before: Vec<u32> = Vec::with_capacity(samples * operations);
    for sample in 0..samples {
        let (mut best, mut least) = (0, f64::INFINITY);
        for (operation, sum) in sums.iter_mut().enumerate() {
            if *sum < least {
                (best, least) = (operation, *sum);
            }
            before.push(best as u32);
            *sum = least + cost(sample, operation);
        }
    }
    let mut operation = (0..operations).min_by(|a, b| sums[*a].total_cmp(&sums[*b])).unwrap_or(0);
    let sum = sums.get(operation).copied().unwrap_or_default();
    let mut owners = vec![0; samples];
    for sample in (0..samples).rev() {
        owners[sample] = operation;
        operation = before[sample * operations + operation] as usize;
    }
    (sum, owners)
}

/// The beginnings of operations, between the samples that belong to them, spread by their estimated times.
fn starts(weights: &[f64], samples: &[(f64, u64)], owners: &[usize], from: f64, to: f64) -> Vec<f64> {
    let mut starts = vec![from];
    let mut since = from;
    let ends = samples.iter().map(|sample| sample.0).zip(owners.iter().copied());
    for (at, owner) in ends.chain([(to, weights.len())]) {
        let (first, last) = (starts.len() - 1, owner.min(weights.len() - 1));
        let total: f64 = weights[first..=last].iter().sum();
        let mut done = 0.0;
        for (index, operation) in (first..last).enumerate() {
            done += weights[operation];
            let even = (index + 1) as f64 / (last + 1 - first) as f64;
            let part = if total > 0.0 { done / total } else { even };
            starts.push((since + (at - since) * part).min(at.max(since)));
        }
        since = at.max(since);
    }
    starts
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn operations_begin_where_the_measured_bytes_change() {
        // By the estimate all take the same time. In fact the second took most of it.
        let live = [100, 300, 200, 50];
        let seconds = |at: usize| at as f64 / 100.0;
        let bytes = |at: usize| match at {
            0..10 => 104,
            10..80 => 304,
            80..90 => 204,
            _ => 54,
        };
        let samples: Vec<_> = (0..100).map(|at| (seconds(at), bytes(at))).collect();
        let starts = align(&live, &[1.0; 4], &samples, 0.0, 1.0).unwrap();
        for (start, expected) in starts.iter().zip([0.0, 0.1, 0.8, 0.9]) {
            assert!((start - expected).abs() < 0.011, "{starts:?}");
        }
    }

    #[test]
    fn too_little_to_match_is_none() {
        let samples: Vec<_> = (0..100).map(|at| (f64::from(at) / 100.0, 1)).collect();
        assert_eq!(align(&[5, 5, 5], &[1.0; 3], &samples, 0.0, 1.0), None, "bytes that stay the same");
        assert_eq!(align(&[5, 6], &[1.0; 2], &samples[..FEWEST - 1], 0.0, 1.0), None, "few samples");
        assert_eq!(align(&[5, 6], &[1.0; 2], &samples, 1.0, 1.0), None, "no time");
        assert_eq!(align(&[], &[], &samples, 0.0, 1.0), None, "no operations");
    }

    proptest! {
        #[test]
        fn operations_stay_in_order_and_within_the_phase(
            operations in prop::collection::vec((0u64..1 << 40, 0.0..2.0f64), 2..40),
            bytes in prop::collection::vec(0u64..1 << 40, FEWEST..700),
        ) {
            let (live, weights): (Vec<_>, Vec<_>) = operations.into_iter().unzip();
            let count = bytes.len() as f64;
            let samples: Vec<_> = bytes.iter().enumerate().map(|(at, bytes)| (3.0 + at as f64 / count, *bytes)).collect();
            if let Some(starts) = align(&live, &weights, &samples, 3.0, 4.0) {
                prop_assert_eq!(starts.len(), live.len());
                prop_assert!(starts.is_sorted(), "{:?}", starts);
                prop_assert!(starts[0] == 3.0 && starts.iter().all(|start| (3.0..=4.0).contains(start)));
            }
        }
    }
}
