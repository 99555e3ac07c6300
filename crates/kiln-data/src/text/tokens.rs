//! Token ids, in memory or in a file.

use std::ops::Range;
use std::sync::Arc;

use crate::error::Error;

use super::token_file::TokenFile;

/// Token ids, in memory or in a file.
#[derive(Clone, Debug)]
pub(super) enum Tokens {
    Memory(Arc<[u32]>),
    File(TokenFile),
}

impl Tokens {
    pub(super) fn len(&self) -> usize {
        match self {
            Tokens::Memory(ids) => ids.len(),
            Tokens::File(file) => file.len(),
        }
    }

    /// Adds the ids at the positions of `range` to `ids`. The range ends at [`len`](Self::len) at most.
    pub(super) fn read(&self, range: Range<usize>, ids: &mut Vec<u32>) -> Result<(), Error> {
        match self {
            Tokens::Memory(tokens) => {
                ids.extend_from_slice(&tokens[range]);
                Ok(())
            }
            Tokens::File(file) => file.read(range, ids),
        }
    }
}
