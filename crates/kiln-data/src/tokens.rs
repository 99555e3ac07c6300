use std::ops::Range;
use std::sync::Arc;

use crate::{Error, TokenFile};

/// Token ids, in memory or in a file.
#[derive(Clone, Debug)]
pub(crate) enum Tokens {
    Memory(Arc<[u32]>),
    File(TokenFile),
}

impl Tokens {
    pub(crate) fn len(&self) -> usize {
        match self {
            Tokens::Memory(ids) => ids.len(),
            Tokens::File(file) => file.len(),
        }
    }

    /// Adds the ids at the positions of `range`, which ends at most at [`len`](Self::len), to `ids`.
    pub(crate) fn read(&self, range: Range<usize>, ids: &mut Vec<u32>) -> Result<(), Error> {
        match self {
            Tokens::Memory(tokens) => {
                ids.extend_from_slice(&tokens[range]);
                Ok(())
            }
            Tokens::File(file) => file.read(range, ids),
        }
    }
}
