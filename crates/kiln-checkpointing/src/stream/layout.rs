//! The parameters of a store: their order, paths, shapes and dtypes.

use std::collections::HashMap;
use std::ops::Range;

use burn::module::ParamId;
use burn::tensor::DType;
use serde::{Deserialize, Serialize};

use super::store::Content;

/// A parameter in a store.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Entry {
    /// The parameter's id, under which the optimizer's state is stored.
    pub(super) id: u64,
    pub(super) path: String,
    pub(super) shape: Vec<usize>,
    pub(super) dtype: DType,
    /// Rows of each part that is updated by itself, all of them if it is not divided.
    pub(super) rows: usize,
}

impl Entry {
    /// A parameter in parts, or undivided.
    pub(super) fn of(id: ParamId, path: String, shape: Vec<usize>, dtype: DType, parts: Option<Parts>) -> Self {
        let rows = parts.map_or(shape[0].max(1), |parts| parts.rows(&shape));
        Self { id: id.val(), path, rows, shape, dtype }
    }

    pub(super) fn parts(&self) -> usize {
        self.shape[0].div_ceil(self.rows).max(1)
    }

    /// The rows of a part among those of the parameter.
    pub(super) fn rows_of(&self, part: usize) -> Range<usize> {
        (part * self.rows).min(self.shape[0])..((part + 1) * self.rows).min(self.shape[0])
    }

    /// The bytes of a part among those of the parameter's value, or of its gradient.
    pub(super) fn bytes_of(&self, content: Content, part: usize) -> Range<usize> {
        let (rows, row_bytes) = (self.rows_of(part), self.dtype_of(content).size() * row_elements(&self.shape));
        rows.start * row_bytes..rows.end * row_bytes
    }

    /// The dtype of the parameter's value, or of its gradient: sums are in f32.
    pub(super) fn dtype_of(&self, content: Content) -> DType {
        if content == Content::Value { self.dtype } else { DType::F32 }
    }

    /// The shape of a part.
    pub(super) fn shape_of(&self, part: usize) -> Vec<usize> {
        let mut shape = self.shape.clone();
        shape[0] = self.rows_of(part).len();
        shape
    }

    fn is_like(&self, other: &Self) -> bool {
        (&self.path, &self.shape, self.dtype) == (&other.path, &other.shape, other.dtype)
    }
}

fn row_elements(shape: &[usize]) -> usize {
    shape[1..].iter().product()
}

/// How [updates](crate::Streamed::update) divide large parameters: into parts of several rows, which are changed one after the other. An
/// update then takes the memory of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parts {
    /// The most bytes of a part in f32. A part has at least one row.
    pub bytes: usize,
    /// Each part has a multiple of so many elements, and the last one at least as many. A parameter that cannot be divided so stays whole.
    /// 1 for an optimizer that updates each element by itself, as Adam and SGD do. For one whose state has a number for each block of
    /// elements: its blocks, and the fewest elements for which it keeps such a state.
    pub multiple_of: usize,
}

impl Parts {
    /// Rows of each part of a parameter. If these are not all rows, a power of two, so that several parts are a block of an operation that
    /// works by rows.
    pub fn rows(&self, shape: &[usize]) -> usize {
        let (all, row) = (shape[0].max(1), row_elements(shape));
        let most = (self.bytes / (4 * row).max(1)).max(1);
        if most >= all {
            return all;
        }
        let rows = 1 << most.ilog2();
        let (unit, rest) = (self.multiple_of.max(1), all % rows * row);
        if (rows * row).is_multiple_of(unit) && (rest == 0 || rest >= unit) { rows } else { all }
    }
}

/// The parameters of a store by number and by id.
#[derive(Clone, Debug, Default)]
pub(super) struct Layout {
    pub(super) entries: Vec<Entry>,
    pub(super) numbers: HashMap<ParamId, usize>,
}

impl Layout {
    /// Gives a parameter the next number.
    pub(super) fn add(&mut self, entry: Entry) -> usize {
        let number = self.entries.len();
        self.numbers.insert(entry.id.into(), number);
        self.entries.push(entry);
        number
    }

    /// How the parameters of a model differ from those that a store has. `None` if they are the same.
    pub(super) fn difference(&self, stored: &[Entry]) -> Option<String> {
        let text = |entry: &Entry| format!("{} {:?} of {:?}", entry.path, entry.shape, entry.dtype);
        let (model, store) = (self.entries.len(), stored.len());
        match self.entries.iter().zip(stored).find(|(model, stored)| !model.is_like(stored)) {
            Some((model, stored)) => Some(format!("it has {}, the model {}", text(stored), text(model))),
            None if model != store => Some(format!("it has {store} parameters, the model {model}")),
            None => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn parts_have_whole_blocks_and_none_is_short(
            rows in 1_usize..5000,
            width in 1_usize..70,
            bytes in 1_usize..100_000,
            unit in (0_u32..10).prop_map(|bits| 1_usize << bits),
        ) {
            let parts = Parts { bytes, multiple_of: unit };
            let entry = Entry::of(ParamId::new(), String::new(), vec![rows, width], DType::F32, Some(parts));
            let ranges: Vec<_> = (0..entry.parts()).map(|part| entry.rows_of(part)).collect();
            prop_assert_eq!((ranges[0].start, ranges[ranges.len() - 1].end), (0, rows));
            prop_assert!(ranges.windows(2).all(|pair| pair[0].end == pair[1].start));
            if let Some((last, others)) = ranges.split_last().filter(|(_, others)| !others.is_empty()) {
                prop_assert!(last.len() * width >= unit);
                for part in others {
                    prop_assert!((part.len() * width).is_multiple_of(unit));
                    prop_assert!(part.len() == 1 || 4 * part.len() * width <= bytes);
                }
            }
        }
    }

    #[test]
    fn a_parameter_stays_whole_if_its_parts_would_cut_blocks() {
        let rows = |shape: [usize; 2], multiple_of| Parts { bytes: 4 << 20, multiple_of }.rows(&shape);
        assert_eq!([rows([50_257, 1280], 1), rows([50_257, 1280], 4096)], [512; 2]); // GPT-2 large
        assert_eq!([rows([1280, 50_257], 1), rows([1280, 50_257], 4096)], [16, 1280]); // an odd number of elements in a row
        assert_eq!([rows([49_153, 576], 1), rows([49_153, 576], 4096)], [1024, 49_153]); // one row would be left
        assert_eq!(rows([100, 100], 1), 100);
    }
}
