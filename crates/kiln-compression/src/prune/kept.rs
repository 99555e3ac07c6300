//! Channels that are removed together, and those that are kept.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::Error;

/// An axis of a parameter or of a running statistic.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Member {
    /// The path of the parameter.
    pub path: String,
    /// The number of the axis.
    pub axis: usize,
    /// Consecutive entries of the axis for each channel: 1, or more where a layer reads flattened maps.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub block: usize,
}

fn one() -> usize {
    1
}

fn is_one(block: &usize) -> bool {
    *block == 1
}

/// Axes that have the same channels. A channel is removed from all of them or from none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChannelGroup {
    /// Number of channels.
    pub size: usize,
    /// The axes, in the order of the model's fields.
    pub members: Vec<Member>,
}

/// A group and its channels that are kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptGroup {
    /// The group.
    pub group: ChannelGroup,
    /// The channels that are kept, ascending; at least one.
    pub channels: Vec<usize>,
}

/// The channels of a model that are kept, by group. Made by [`Channels::choose`](crate::Channels::choose).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// The groups. Axes in no group stay whole.
    pub groups: Vec<KeptGroup>,
}

impl Kept {
    pub(super) fn new(groups: impl IntoIterator<Item = (ChannelGroup, Vec<usize>)>) -> Self {
        Self { groups: groups.into_iter().map(|(group, channels)| KeptGroup { group, channels }).collect() }
    }

    /// By path, the axes that are cut and what is kept of each, with the size that each axis has before.
    pub(super) fn cuts(&self) -> BTreeMap<&str, Vec<Cut>> {
        let mut cuts: BTreeMap<&str, Vec<Cut>> = BTreeMap::new();
        for own in &self.groups {
            for Member { path, axis, block } in &own.group.members {
                let entries = own.channels.iter().flat_map(|channel| channel * block..(channel + 1) * block).collect();
                let cut = Cut { axis: *axis, size: own.group.size * block, entries };
                cuts.entry(path.as_str()).or_default().push(cut);
            }
        }
        cuts
    }

    /// Checks that the kept channels are channels, and that the model with these shapes has the groups.
    pub(super) fn check(&self, shapes: &BTreeMap<String, Vec<usize>>) -> Result<(), Error> {
        for own in &self.groups {
            let ascending = own.channels.windows(2).all(|pair| pair[0] < pair[1]);
            if !ascending || own.channels.last().is_none_or(|last| *last >= own.group.size) {
                let value = format!("{:?} of {}", own.channels, own.group.size);
                let expected = "at least one, ascending, below the group's size";
                return Err(Error::invalid("the kept channels of a group", value, expected));
            }
            for Member { path, axis, block } in &own.group.members {
                let shape = shapes.get(path).ok_or_else(|| Error::unknown(path, shapes.keys()))?;
                let size = own.group.size * block;
                if shape.get(*axis) != Some(&size) {
                    let value = format!("{shape:?} for '{path}' where axis {axis} of the group has {size}");
                    return Err(Error::invalid("the shape of a parameter", value, "the group's size at its axis"));
                }
            }
        }
        Ok(())
    }
}

/// The entries of an axis that are kept.
#[derive(Clone, Debug)]
pub(super) struct Cut {
    pub(super) axis: usize,
    pub(super) size: usize,
    pub(super) entries: Vec<usize>,
}

/// The elements of a row-major tensor whose index is kept along every cut axis.
pub(super) fn elements(shape: &[usize], cuts: &[Cut]) -> Vec<bool> {
    let mut kept = vec![true; shape.iter().product()];
    for cut in cuts {
        let inner: usize = shape[cut.axis + 1..].iter().product();
        let mut is_kept = vec![false; cut.size];
        cut.entries.iter().for_each(|entry| is_kept[*entry] = true);
        for (index, kept) in kept.iter_mut().enumerate() {
            *kept &= is_kept[index / inner % cut.size];
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_kept_along_every_axis() {
        let cuts = [Cut { axis: 0, size: 2, entries: vec![1] }, Cut { axis: 1, size: 3, entries: vec![0, 2] }];
        let expected = [[[false; 2]; 3], [[true; 2], [false; 2], [true; 2]]].concat().concat();
        assert_eq!(elements(&[2, 3, 2], &cuts), expected);
        assert_eq!(elements(&[2, 3, 2], &[]), [true; 12]);
    }

    #[test]
    fn choices_that_do_not_fit_are_errors() {
        let member = Member { path: "fc.weight".into(), axis: 1, block: 1 };
        let group = ChannelGroup { size: 4, members: vec![member] };
        let shapes = BTreeMap::from([("fc.weight".to_owned(), vec![3, 4])]);
        let check = |channels: Vec<usize>, shapes| Kept::new([(group.clone(), channels)]).check(shapes);
        assert_eq!(check(vec![0, 3], &shapes), Ok(()));
        for wrong in [vec![], vec![1, 0], vec![2, 2], vec![4]] {
            assert!(matches!(check(wrong, &shapes), Err(Error::InvalidSetting { .. })));
        }
        let other = BTreeMap::from([("fc.weight".to_owned(), vec![4, 3])]);
        assert!(matches!(check(vec![0], &other), Err(Error::InvalidSetting { .. })));
        assert!(matches!(check(vec![0], &BTreeMap::new()), Err(Error::UnknownParameter { .. })));
    }
}
