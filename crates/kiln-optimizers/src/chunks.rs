//! The division of a parameter into chunks that are updated one after the other.

use std::ops::Range;

use burn::tensor::{Device, Tensor};

use crate::error::Error;
use crate::place::Place;

/// A parameter of `len` elements in chunks of `elements`. The last chunk also has the remainder, so that no chunk is shorter than
/// `elements`: an optimizer that treats short tensors differently thus treats a chunk as it treats the whole parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chunks {
    len: usize,
    elements: usize,
}

/// The number of elements of a chunk, from a setting.
pub(crate) fn positive(elements: usize) -> Result<usize, Error> {
    match elements {
        0 => Err(Error::InvalidSetting { name: "elements", value: "0".into(), expected: "at least 1" }),
        elements => Ok(elements),
    }
}

impl Chunks {
    pub(crate) fn of(len: usize, elements: usize) -> Self {
        Self { len, elements: elements.max(1) }
    }

    /// A single chunk.
    pub(crate) fn whole(len: usize) -> Self {
        Self::of(len, usize::MAX)
    }

    pub(crate) fn count(self) -> usize {
        (self.len / self.elements).max(1)
    }

    /// The elements of a chunk.
    pub(crate) fn range(self, chunk: usize) -> Range<usize> {
        let start = chunk * self.elements.min(self.len);
        start..if chunk + 1 == self.count() { self.len } else { start + self.elements }
    }

    /// The rows of a chunk in a tensor of state. The tensor has a row for each element, or for each block of equally many elements, of
    /// which the last may be short. `None` if `rows` rows cannot be such blocks, or if a block would lie in two chunks.
    pub(crate) fn rows(self, chunk: usize, rows: usize) -> Option<Range<usize>> {
        let (whole, rest) = (self.len / self.elements, self.len % self.elements);
        // This is the only number of rows in a chunk with which the chunks can add up to all rows.
        let each = usize::try_from(rows as u128 * self.elements as u128 / self.len.max(1) as u128).ok()?;
        if each == 0 || !self.elements.is_multiple_of(each) {
            return None;
        }
        let block = self.elements / each;
        (whole.checked_mul(each)? + rest.div_ceil(block) == rows)
            .then(|| chunk * each..if chunk + 1 == self.count() { rows } else { (chunk + 1) * each })
    }
}

/// Updates a parameter chunk by chunk, in place if no other handle to it exists. `update` gets the first element of a chunk, and the
/// chunk's part of the parameter and of the gradient. With one chunk these have the parameter's shape, otherwise `[1, .., 1, elements]`.
pub(crate) fn by_chunks<const D: usize>(
    chunks: Chunks,
    parameter: Tensor<D>,
    gradient: Tensor<D>,
    mut update: impl FnMut(usize, Tensor<D>, Tensor<D>) -> Tensor<D>,
) -> Tensor<D> {
    if chunks.count() == 1 {
        return update(0, parameter, gradient);
    }
    let (dims, device) = (parameter.dims(), parameter.device());
    let mut values: Tensor<1> = parameter.reshape([chunks.len]);
    let mut gradient: Option<Tensor<1>> = Some(gradient.reshape([chunks.len]));
    for range in (0..chunks.count()).map(|chunk| chunks.range(chunk)) {
        let row = |tensor: Tensor<1>| tensor.slice(range.clone()).reshape(row_of::<D>(range.len()));
        // The last chunk takes the gradient: a recorded step then knows where it is dropped.
        let part = if range.end == chunks.len { gradient.take() } else { gradient.clone() };
        let Some(part) = part else { break };
        let updated = update(range.start, row(values.clone()), row(part));
        wait_for(&updated, &device);
        values = values.slice_assign(range.clone(), updated.reshape([range.len()]));
    }
    values.reshape(dims)
}

/// The shape of a chunk of a parameter of rank `D`.
fn row_of<const D: usize>(elements: usize) -> [usize; D] {
    std::array::from_fn(|axis| if axis + 1 == D { elements } else { 1 })
}

/// Waits until a chunk is written. A device with a queue can report that a chunk was not written only before the next one is written into
/// the same tensor.
fn wait_for<const D: usize>(updated: &Tensor<D>, device: &Device) {
    if Place::of(device) != Place::Device {
        return;
    }
    if let Err(error) = updated.clone().slice(std::array::from_fn::<_, D, _>(|_| 0..1)).try_into_data() {
        panic!("a chunk of a parameter was not updated: {error}");
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn chunks_follow_each_other_and_none_is_short(len in 0_usize..500, elements in 1_usize..600) {
            let chunks = Chunks::of(len, elements);
            let ranges: Vec<_> = (0..chunks.count()).map(|chunk| chunks.range(chunk)).collect();
            prop_assert_eq!(ranges[0].start, 0);
            prop_assert_eq!(ranges[ranges.len() - 1].end, len);
            prop_assert!(ranges.windows(2).all(|pair| pair[0].end == pair[1].start));
            prop_assert!(ranges.len() == 1 || ranges.iter().all(|range| (elements..2 * elements).contains(&range.len())));
        }

        #[test]
        fn rows_are_those_of_blocks(len in 1_usize..500, blocks in 1_usize..8, block in 1_usize..9) {
            let chunks = Chunks::of(len, blocks * block);
            prop_assume!(chunks.count() > 1);
            for chunk in 0..chunks.count() {
                let range = chunks.range(chunk);
                let rows = chunks.rows(chunk, len.div_ceil(block));
                prop_assert_eq!(rows, Some(range.start / block..range.end.div_ceil(block)));
            }
        }
    }

    #[test]
    fn other_numbers_of_rows_are_refused() {
        let chunks = Chunks::of(1000, 256);
        assert_eq!(chunks.rows(0, 1000), Some(0..256));
        assert_eq!(chunks.rows(2, 1000), Some(512..1000));
        assert_eq!(chunks.rows(2, 4), Some(2..4));
        for rows in [0, 1, 2, 3, 5, 255, 999, 1001] {
            assert_eq!(chunks.rows(0, rows), None, "{rows}");
        }
    }
}
