//! How many channels of each group are kept: functions on numbers.

/// The channels that a group keeps when `ratio` of them is removed: as Torch-Pruning, rounded down, then up to a multiple of `round_to`.
/// At least one multiple, and at most all.
pub(super) fn uniform(size: usize, ratio: f64, round_to: usize) -> usize {
    let kept = (size as f64 * (1.0 - ratio)) as usize;
    kept.max(1).next_multiple_of(round_to).min(size)
}

/// The best `count` channels, ascending. Of equal ones the first are kept.
pub(super) fn best(importance: &[f32], count: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..importance.len()).collect();
    order.sort_by(|a, b| importance[*b].total_cmp(&importance[*a]));
    order.truncate(count);
    order.sort_unstable();
    order
}

/// How many channels each group keeps so that `cost` falls to `target`: `round_to` channels at a time are removed from the group where they
/// matter least, by their share of the group's mean importance. None if everything that can go is not enough.
pub(super) fn under_target(
    importance: &[Vec<f32>],
    round_to: usize,
    target: u64,
    cost: impl Fn(&[usize]) -> u64,
) -> Option<Vec<usize>> {
    let ascending: Vec<Vec<f32>> = importance
        .iter()
        .map(|group| {
            let mean = group.iter().sum::<f32>() / group.len().max(1) as f32;
            let mut shares: Vec<f32> = group.iter().map(|own| if mean > 0.0 { own / mean } else { 0.0 }).collect();
            shares.sort_by(f32::total_cmp);
            shares
        })
        .collect();
    let mut kept: Vec<usize> = importance.iter().map(Vec::len).collect();
    while cost(&kept) > target {
        // The first removal from a group makes its size a multiple.
        let step = |group: usize| match kept[group] % round_to {
            0 => round_to,
            rest => rest,
        };
        let score = |group: usize| {
            let gone = ascending[group].len() - kept[group];
            let next = &ascending[group][gone..gone + step(group)];
            next.iter().sum::<f32>() / next.len() as f32
        };
        let candidates = (0..kept.len()).filter(|group| kept[*group] > step(*group));
        let group = candidates.min_by(|a, b| score(*a).total_cmp(&score(*b)))?;
        kept[group] -= step(group);
    }
    Some(kept)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_uniform_ratio_is_rounded_up_to_a_multiple() {
        assert_eq!(
            [(64, 0.5, 1), (64, 0.3, 1), (64, 0.3, 8), (10, 0.99, 4), (3, 0.9, 8)].map(|(s, r, m)| uniform(s, r, m)),
            [32, 44, 48, 4, 3]
        );
    }

    #[test]
    fn the_best_are_kept_in_order() {
        assert_eq!(best(&[0.1, 3.0, 2.0, 3.0], 3), [1, 2, 3]);
        assert_eq!(best(&[1.0, 1.0, 1.0], 2), [0, 1]);
    }

    #[test]
    fn groups_lose_what_matters_least_for_them() {
        // The second group is large throughout: only its shape counts.
        let importance = [vec![1.0, 1.0, 1.0, 1.0], vec![100.0, 300.0, 300.0, 100.0]];
        let kept = under_target(&importance, 1, 6, |kept| kept.iter().sum::<usize>() as u64);
        assert_eq!(kept, Some(vec![4, 2]));
        assert_eq!(under_target(&importance, 1, 1, |kept| kept.iter().sum::<usize>() as u64), None);
    }

    proptest! {
        #[test]
        fn targets_are_met_in_multiples(
            groups in prop::collection::vec(prop::collection::vec(0.0f32..1.0, 1..30), 1..6), part in 0.0..1.0f64, round_to in 1usize..6,
        ) {
            let cost = |kept: &[usize]| kept.windows(2).map(|pair| pair[0] * pair[1]).sum::<usize>() as u64 + kept[0] as u64;
            let sizes: Vec<usize> = groups.iter().map(Vec::len).collect();
            let target = (cost(&sizes) as f64 * part) as u64;
            match under_target(&groups, round_to, target, cost) {
                Some(kept) => {
                    prop_assert!(cost(&kept) <= target);
                    for (kept, size) in kept.iter().zip(&sizes) {
                        prop_assert!(kept == size || (*kept >= round_to && kept.is_multiple_of(round_to)));
                    }
                }
                None => {
                    let least: Vec<usize> = sizes.iter().map(|size| round_to.min(*size)).collect();
                    prop_assert!(cost(&least) > target);
                }
            }
        }
    }
}
