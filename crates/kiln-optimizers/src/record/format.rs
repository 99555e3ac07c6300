//! The format of the state that an optimizer keeps for large parameters.

use std::fmt;

use crate::blocks::CodeBook;

/// The format of the state that an optimizer of this crate keeps for large parameters. Small ones have f32 moments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateFormat {
    pub(super) moments: Vec<Moment>,
    pub(super) min_elements: usize,
    /// Whether a state with f32 moments has a number of steps.
    pub(super) counts_steps: bool,
}

/// The names of a moment in both kinds of state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Moment {
    /// Its name among codes, and below `momentum` among f32 moments.
    pub(super) name: &'static str,
    pub(super) book: CodeBook,
}

impl StateFormat {
    /// The moments of AdamW.
    pub(crate) fn adamw([first, second]: [CodeBook; 2], min_elements: usize) -> Self {
        let moments = vec![Moment { name: "moment_1", book: first }, Moment { name: "moment_2", book: second }];
        Self { moments, min_elements, counts_steps: true }
    }

    /// The velocity of SGD, if it has momentum.
    pub(crate) fn sgd(book: Option<CodeBook>, min_elements: usize) -> Self {
        let moments = book.into_iter().map(|book| Moment { name: "velocity", book }).collect();
        Self { moments, min_elements, counts_steps: false }
    }

    /// Parameters with fewer elements have f32 moments.
    pub fn min_elements(&self) -> usize {
        self.min_elements
    }

    /// A parameter can be updated in parts of several rows, each with a state of its own, if each part has a multiple of so many elements and
    /// the last one at least as many: parts then have whole blocks, and none is so small that its moments would be f32. The bits are those of
    /// an update of the whole parameter, unless codes are rounded stochastically.
    pub fn elements_of_parts(&self) -> usize {
        let block = self.moments.iter().map(|moment| moment.book.block()).max().unwrap_or(1);
        self.min_elements.max(1).next_multiple_of(block)
    }
}

impl fmt::Display for StateFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.moments.is_empty() {
            return write!(f, "no state");
        }
        for (place, Moment { name, book }) in self.moments.iter().enumerate() {
            let comma = if place == 0 { "" } else { ", " };
            write!(f, "{comma}{name} as {} bits in blocks of {} ({book:?})", book.bits(), book.block())?;
        }
        Ok(())
    }
}
