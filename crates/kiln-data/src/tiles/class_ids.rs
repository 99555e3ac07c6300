//! Class ids of pixels, and which ids a mask may have.

use std::ops::Range;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::decode::Samples;
use crate::error::Error;

/// The class ids that the pixels of a mask may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Classes {
    /// Ids are below this number, which is 1 to 65536.
    pub count: usize,
    /// The id of unlabelled pixels, if there is one; often 255.
    pub ignore: Option<u16>,
}

impl Classes {
    /// `count` classes, 1 to 65536; no pixel is ignored.
    pub const fn new(count: usize) -> Self {
        Self { count, ignore: None }
    }

    /// Sets the id of unlabelled pixels, often 255, which have no part in a loss.
    #[must_use]
    pub const fn with_ignore(self, ignore: u16) -> Self {
        Self { ignore: Some(ignore), ..self }
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        if !(1..=1 << 16).contains(&self.count) {
            return Err(Error::setting("classes", self.count.to_string(), "1 to 65536"));
        }
        Ok(())
    }

    /// Whether every id fits 8 bits.
    pub(super) fn are_small(&self) -> bool {
        self.count <= 256 && self.ignore.is_none_or(|ignore| ignore <= 255)
    }

    /// Refuses ids that are no class. `[top, left]` is their position in the mask; they are `width` columns wide.
    pub(super) fn check_ids(
        &self,
        ids: &Samples,
        mask: &Path,
        [top, left]: [usize; 2],
        width: usize,
    ) -> Result<(), Error> {
        let wrong = |id: u16| usize::from(id) >= self.count && Some(id) != self.ignore;
        let found = match ids {
            Samples::U8(ids) => ids.iter().map(|id| u16::from(*id)).enumerate().find(|(_, id)| wrong(*id)),
            Samples::F32(ids) => ids.iter().map(|id| *id as u16).enumerate().find(|(_, id)| wrong(*id)),
        };
        let Some((at, id)) = found else { return Ok(()) };
        let [y, x] = [top + at / width, left + at % width];
        let or = self.ignore.map_or(String::new(), |ignore| format!(" or {ignore} (ignored)"));
        Err(Error::format(mask, format!("class {id} at row {y}, column {x}, expected one below {}{or}", self.count)))
    }
}

/// Class ids of pixels, in the smaller type that holds all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ClassIds {
    /// Ids of at most 256 classes.
    U8(Vec<u8>),
    /// Ids of more classes.
    I64(Vec<i64>),
}

impl ClassIds {
    /// Number of ids.
    pub fn len(&self) -> usize {
        match self {
            Self::U8(ids) => ids.len(),
            Self::I64(ids) => ids.len(),
        }
    }

    /// Whether there is no id.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The ids in order.
    pub fn iter(&self) -> impl Iterator<Item = i64> + '_ {
        let (small, large): (&[u8], &[i64]) = match self {
            Self::U8(ids) => (ids, &[]),
            Self::I64(ids) => (&[], ids),
        };
        small.iter().map(|id| i64::from(*id)).chain(large.iter().copied())
    }

    pub(super) fn slice(&self, part: Range<usize>) -> Self {
        match self {
            Self::U8(ids) => Self::U8(ids[part].to_vec()),
            Self::I64(ids) => Self::I64(ids[part].to_vec()),
        }
    }
}
