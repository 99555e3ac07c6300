//! The state of a parameter that is updated chunk by chunk.

use burn::optim::{RecordState, StateSink, StateSource};
use burn::tensor::Device;

use crate::chunks::Chunks;
use crate::leaves::Leaves;

/// The state of a whole parameter, or one state for each chunk. Its record is the record of the whole parameter.
#[derive(Clone, Debug)]
pub(crate) enum Parts<P> {
    Whole(P),
    Chunks {
        chunks: Chunks,
        /// The parameter's shape.
        dims: Vec<usize>,
        parts: Vec<P>,
    },
}

impl<P> Parts<P> {
    /// Puts the states of all chunks together.
    pub(crate) fn of(chunks: Chunks, dims: &[usize], mut parts: Vec<P>) -> Option<Self> {
        match parts.len() {
            1 => parts.pop().map(Self::Whole),
            count if count == chunks.count() => Some(Self::Chunks { chunks, dims: dims.to_vec(), parts }),
            // Some chunks have no state, so the optimizer has none.
            _ => None,
        }
    }

    pub(crate) fn map(self, mut change: impl FnMut(P) -> P) -> Self {
        match self {
            Self::Whole(part) => Self::Whole(change(part)),
            Self::Chunks { chunks, dims, parts } => {
                Self::Chunks { chunks, dims, parts: parts.into_iter().map(change).collect() }
            }
        }
    }
}

impl<P: RecordState> Parts<P> {
    /// The state of each chunk of a parameter of shape `dims`. It stays divided if the chunks are the same, and is divided anew
    /// otherwise. A state that cannot be divided stays whole, and the parameter is then one chunk.
    pub(crate) fn divide(self, chunks: Chunks, dims: &[usize], device: &Device) -> (Chunks, Vec<P>) {
        let leaves = match self {
            Self::Whole(part) if chunks.count() == 1 => return (chunks, vec![part]),
            Self::Chunks { chunks: own, parts, .. } if own == chunks => return (chunks, parts),
            Self::Whole(part) => Leaves::of(&part),
            Self::Chunks { chunks: own, dims, parts } => {
                Leaves::join(parts.iter().map(Leaves::of).collect(), own, &dims)
            }
        };
        if chunks.count() > 1
            && let Some(parts) = leaves.split(chunks, dims)
        {
            return (chunks, parts.into_iter().map(|leaves| leaves.restored(device)).collect());
        }
        (Chunks::whole(dims.iter().product()), vec![leaves.restored(device)])
    }
}

impl<P: RecordState> RecordState for Parts<P> {
    fn state_flatten(&self, prefix: &str, out: &mut StateSink) {
        match self {
            Self::Whole(part) => part.state_flatten(prefix, out),
            Self::Chunks { chunks, dims, parts } => {
                Leaves::join(parts.iter().map(Leaves::of).collect(), *chunks, dims).push(prefix, out);
            }
        }
    }

    fn state_unflatten(prefix: &str, source: &mut StateSource, device: &Device) -> Option<Self> {
        P::state_unflatten(prefix, source, device).map(Self::Whole)
    }
}
