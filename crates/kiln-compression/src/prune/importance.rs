//! How much channels matter, and how many are kept.

use burn::module::Module;
use serde::{Deserialize, Serialize};

use super::channels::Channels;
use super::kept::Kept;
use super::shrink::{Shapes, check_parts};
use crate::Error;
use crate::parameters::{Item, walk};

/// A target for the removal of channels.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum ChannelPruning {
    /// An equal part of each group.
    Uniform {
        /// The part that is removed, from 0 to below 1.
        ratio: f64,
        /// Each group keeps a multiple of it, rounded up; 1 or more. Hardware likes multiples of 8.
        #[serde(default = "one")]
        round_to: usize,
    },
    /// From the groups where they matter least, until a forward pass costs `left` of its multiply-adds. Groups are compared by the share of
    /// a channel in the mean importance of its group.
    MultiplyAdds {
        /// The part of the multiply-adds that is left, above 0 to 1.
        left: f64,
        /// How many channels are removed at a time, and each group keeps a multiple of it; 1 or more.
        #[serde(default = "one")]
        round_to: usize,
    },
}

fn one() -> usize {
    1
}

impl ChannelPruning {
    /// Removes `ratio` of each group, from 0 to below 1; sizes are rounded to single channels.
    pub fn uniform(ratio: f64) -> Self {
        Self::Uniform { ratio, round_to: 1 }
    }

    /// Leaves a part of the multiply-adds, above 0 to 1.
    pub fn multiply_adds(left: f64) -> Self {
        Self::MultiplyAdds { left, round_to: 1 }
    }

    fn check(&self) -> Result<(), Error> {
        match *self {
            Self::Uniform { round_to: 0, .. } | Self::MultiplyAdds { round_to: 0, .. } => {
                Err(Error::invalid("round_to", 0, "1 or more"))
            }
            Self::Uniform { ratio, .. } if !(0.0..1.0).contains(&ratio) => {
                Err(Error::invalid("ratio", ratio, "0 to below 1"))
            }
            Self::MultiplyAdds { left, .. } if !(left > 0.0 && left <= 1.0) => {
                Err(Error::invalid("left", left, "above 0 to 1"))
            }
            _ => Ok(()),
        }
    }
}

impl Channels {
    /// The importance of each channel of each group: the L2 norm of all its values in weights of two or more dimensions and in gammas
    /// of norms, on the input side and on the output side (Torch-Pruning's group magnitude).
    ///
    /// # Errors
    /// Those of [`shrink`](crate::shrink).
    pub fn importance(&self, model: &impl Module) -> Result<Vec<Vec<f32>>, Error> {
        let all = self.all();
        all.check(&Shapes::of(model).0)?;
        check_parts(model, &all)?;
        let mut sums: Vec<Vec<f32>> = self.groups.iter().map(|group| vec![0.0; group.size]).collect();
        walk(model, |place, item| {
            let Item::Float(param) = item else { return };
            let (path, shape) = (place.parameter(), param.shape());
            if place.is_inner() || (shape.len() < 2 && place.field() != "gamma") {
                return;
            }
            for (group, sums) in self.groups.iter().zip(&mut sums) {
                for member in group.members.iter().filter(|member| member.path == path) {
                    let outer: usize = shape[..member.axis].iter().product();
                    let inner: usize = shape[member.axis + 1..].iter().product();
                    let squares = param.stored().detach().square().reshape([outer, group.size, member.block * inner]);
                    let squares = squares.sum_dim(2).sum_dim(0).into_data();
                    sums.iter_mut().zip(squares.iter::<f32>()).for_each(|(sum, square)| *sum += square);
                }
            }
        });
        Ok(sums.into_iter().map(|group| group.into_iter().map(f32::sqrt).collect()).collect())
    }

    /// Chooses the channels to keep by their [`importance`](Self::importance) in `model`.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] for numbers out of range and for multiply-adds that cannot be reached, and those of
    /// [`importance`](Self::importance).
    pub fn choose(&self, model: &impl Module, how: &ChannelPruning) -> Result<Kept, Error> {
        how.check()?;
        let importance = self.importance(model)?;
        let sizes: Vec<usize> = self.groups.iter().map(|group| group.size).collect();
        let counts = match *how {
            ChannelPruning::Uniform { ratio, round_to } => {
                sizes.iter().map(|size| uniform(*size, ratio, round_to)).collect()
            }
            ChannelPruning::MultiplyAdds { left, round_to } => {
                let first = |counts: &[usize]| {
                    let groups = self.groups.iter().cloned().zip(counts.iter().map(|count| (0..*count).collect()));
                    self.multiply_adds(&Kept::new(groups))
                };
                let target = (first(&sizes) as f64 * left) as u64;
                let expected = "multiply-adds that the prunable channels can be reduced to";
                under_target(&importance, round_to, target, first)
                    .ok_or_else(|| Error::invalid("left", left, expected))?
            }
        };
        let kept = importance.iter().zip(counts).map(|(group, count)| best(group, count));
        Ok(Kept::new(self.groups.iter().cloned().zip(kept)))
    }
}

/// The channels that a group keeps when `ratio` of them is removed: as Torch-Pruning, rounded down, then up to a multiple of `round_to`.
/// At least one multiple, and at most all.
fn uniform(size: usize, ratio: f64, round_to: usize) -> usize {
    let kept = (size as f64 * (1.0 - ratio)) as usize;
    kept.max(1).next_multiple_of(round_to).min(size)
}

/// The best `count` channels, ascending. Of equal ones the first are kept.
fn best(importance: &[f32], count: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..importance.len()).collect();
    order.sort_by(|a, b| importance[*b].total_cmp(&importance[*a]));
    order.truncate(count);
    order.sort_unstable();
    order
}

/// How many channels each group keeps so that `cost` falls to `target`: `round_to` channels at a time are removed from the group where they
/// matter least, by their share of the group's mean importance. None if everything that can go is not enough.
fn under_target(
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
