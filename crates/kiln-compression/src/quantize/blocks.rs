//! Which values of a weight share a scale.

use serde::{Deserialize, Serialize};

/// The values of a weight that share a scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Granularity {
    /// All values of the weight.
    Tensor,
    /// The values of one output channel: a column of a linear weight, a filter of a convolution.
    Channel,
    /// At most this many values in a row, all of one output channel.
    Block(usize),
}

/// A weight seen as `[groups, length, columns]`, with one scale for each of `[groups, 1, columns]`.
///
/// The weight's values keep their order, so the view costs nothing: as a tensor, `weight.reshape([groups, length, columns])` divided
/// by scales of shape `[groups, 1, columns]`.
///
/// ```
/// use kiln_compression::{Blocks, Granularity};
///
/// // A linear weight of burn is [inputs, outputs]: the output channel comes last.
/// let linear = Blocks::of(&[96, 10], true, Granularity::Block(64));
/// assert_eq!(linear, Blocks { groups: 2, length: 48, columns: 10 });
///
/// // A convolution's weight is [outputs, inputs, height, width].
/// let convolution = Blocks::of(&[16, 8, 3, 3], false, Granularity::Channel);
/// assert_eq!(convolution, Blocks { groups: 16, length: 72, columns: 1 });
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Blocks {
    /// The slowest dimension.
    pub groups: usize,
    /// The dimension that shares a scale.
    pub length: usize,
    /// The fastest dimension.
    pub columns: usize,
}

impl Blocks {
    /// The blocks of a weight of `shape`.
    ///
    /// `output_last` is true for the `[inputs, outputs]` of burn's linear layers and false for weights that begin with the output
    /// channel, as those of convolutions do. Blocks are as long as divides the inputs of a channel without a rest, at most as long as
    /// asked for. The kernel of a convolution is not split: one of 3 x 3 has blocks of 9, 18, 27 and so on, also where that is longer
    /// than asked for. A weight of one dimension is one channel. A transposed convolution's weight begins with the input channel, which
    /// then takes the place of the output channel.
    pub fn of(shape: &[usize], output_last: bool, granularity: Granularity) -> Self {
        let values = shape.iter().product();
        let one = Self { groups: 1, length: values, columns: 1 };
        if values == 0 {
            return one;
        }
        let (outputs, inputs, kernel) = match shape {
            [] | [_] => (1, values, 1),
            [others @ .., outputs] if output_last => (*outputs, others.iter().product(), 1),
            [outputs, inputs, kernel @ ..] => (*outputs, *inputs, kernel.iter().product()),
        };
        let output_last = output_last && shape.len() > 1;
        let length = match granularity {
            Granularity::Tensor => return one,
            Granularity::Channel => inputs * kernel,
            Granularity::Block(size) => largest_divisor(inputs, size / kernel) * kernel,
        };
        match output_last {
            true => Self { groups: inputs / length, length, columns: outputs },
            false => Self { groups: values / length, length, columns: 1 },
        }
    }

    /// The number of blocks, and so of scales.
    pub(crate) fn count(&self) -> usize {
        self.groups * self.columns
    }

    /// The blocks in order, each as the positions of its values.
    pub(crate) fn positions(&self) -> impl Iterator<Item = impl Iterator<Item = usize> + Clone> {
        let Self { groups, length, columns } = *self;
        (0..groups).flat_map(move |group| {
            (0..columns).map(move |column| (0..length).map(move |row| (group * length + row) * columns + column))
        })
    }

    /// The runs of values that lie beside each other, with the scales of each run: one scale for all of its values, or one for each.
    pub(crate) fn runs<'a>(&self, scales: &'a [f32]) -> impl Iterator<Item = (std::ops::Range<usize>, &'a [f32])> {
        let Self { groups, length, columns } = *self;
        let (rows, run) = if columns == 1 { (1, length) } else { (length, columns) };
        (0..groups * rows).map(move |index| {
            let group = index / rows;
            (index * run..(index + 1) * run, &scales[group * columns..(group + 1) * columns])
        })
    }
}

/// The largest divisor of `number` that is at most `limit`, and at least 1.
fn largest_divisor(number: usize, limit: usize) -> usize {
    (1..=limit.clamp(1, number)).rev().find(|divisor| number.is_multiple_of(*divisor)).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn channels_are_columns_or_rows_and_kernels_are_not_split() {
        use Granularity::{Block, Channel, Tensor};
        for (shape, output_last, granularity, [groups, length, columns]) in [
            (&[12, 5][..], true, Tensor, [1, 60, 1]),
            (&[12, 5], true, Channel, [1, 12, 5]),
            (&[12, 5], true, Block(5), [3, 4, 5]),
            (&[13, 5], true, Block(5), [13, 1, 5]),
            (&[12, 5], true, Block(100), [1, 12, 5]),
            (&[4, 6, 3, 3], false, Channel, [4, 54, 1]),
            (&[4, 6, 3, 3], false, Block(32), [8, 27, 1]),
            (&[4, 6, 3, 3], false, Block(1), [24, 9, 1]),
            (&[4, 6, 3, 3], false, Block(0), [24, 9, 1]),
            // One dimension is one channel.
            (&[6], false, Channel, [1, 6, 1]),
            (&[6], true, Block(4), [2, 3, 1]),
            (&[0, 3], true, Block(4), [1, 0, 1]),
        ] {
            let blocks = Blocks::of(shape, output_last, granularity);
            assert_eq!(blocks, Blocks { groups, length, columns }, "{shape:?} {granularity:?}");
        }
    }

    proptest! {
        #[test]
        fn every_value_is_in_one_block_of_one_channel(
            shape in prop::collection::vec(1_usize..7, 1..5), output_last: bool, size in 0_usize..20,
        ) {
            for granularity in [Granularity::Tensor, Granularity::Channel, Granularity::Block(size)] {
                let blocks = Blocks::of(&shape, output_last, granularity);
                let values = blocks.groups * blocks.length * blocks.columns;
                prop_assert_eq!(values, shape.iter().product::<usize>());
                let mut seen = vec![None; values];
                for (block, positions) in blocks.positions().enumerate() {
                    for position in positions {
                        prop_assert!(seen[position].replace(block).is_none());
                    }
                }
                // The scales of the runs are those of the blocks.
                let scales: Vec<f32> = (0..blocks.count()).map(|block| block as f32).collect();
                for (run, scales) in blocks.runs(&scales) {
                    for (index, position) in run.enumerate() {
                        prop_assert_eq!(seen[position], Some(scales[index % scales.len()] as usize));
                    }
                }
                if granularity != Granularity::Tensor && shape.len() > 1 {
                    let last = shape[shape.len() - 1];
                    let channel = |position: usize| if output_last { position % last } else { position / (values / shape[0]) };
                    for positions in blocks.positions() {
                        let channels: std::collections::BTreeSet<usize> = positions.map(channel).collect();
                        prop_assert_eq!(channels.len(), 1);
                    }
                }
            }
        }
    }
}
