//! State in host memory.

use burn::optim::{Optimizer, RecordState, StateSink, StateSource};
use burn::tensor::Device;

use crate::leaves::Leaves;
use crate::parts::Parts;
use crate::place::{Place, host_or};

/// State of [`Offloaded`](super::Offloaded) for one parameter. Its record is the record of the inner optimizer's state `S`.
#[derive(Clone, Debug)]
pub struct OffloadedState<S>(pub(super) Parts<Kept<S>>);

/// The state of a chunk between two steps.
#[derive(Clone, Debug)]
pub(super) enum Kept<S> {
    /// The state as the optimizer made it.
    State(S),
    /// The state as its record.
    Leaves(Leaves),
}

impl<S: RecordState> Kept<S> {
    /// Moves a state from the device `device` to the host. `fits` says that a record is known to keep the state's dtypes.
    pub(super) fn new(state: S, place: Place, device: &Device, fits: bool) -> Self {
        match place {
            Place::Host | Place::Recording => Self::State(state),
            Place::Device => {
                let leaves = Leaves::of(&state);
                let again = |leaves: Leaves| leaves.state::<S>(device).map(|state| Leaves::of(&state));
                match fits || leaves.keep_dtypes(device, again) {
                    true => Self::Leaves(leaves),
                    false => Self::State(state),
                }
            }
        }
    }

    /// Whether the state is kept as a record.
    pub(super) fn is_record(&self) -> bool {
        matches!(self, Self::Leaves(_))
    }
}

/// The state on `device`.
pub(super) fn copied_to<O: Optimizer, const D: usize>(kept: Kept<O::State<D>>, device: &Device) -> O::State<D> {
    match kept {
        Kept::State(state) => O::to_device(state, device),
        Kept::Leaves(leaves) => leaves.restored(device),
    }
}

impl<S: RecordState> RecordState for Kept<S> {
    fn state_flatten(&self, prefix: &str, out: &mut StateSink) {
        match self {
            Self::State(state) => state.state_flatten(prefix, out),
            Self::Leaves(leaves) => leaves.clone().push(prefix, out),
        }
    }

    /// Ignores `device`, since burn loads records onto its default device.
    fn state_unflatten(prefix: &str, source: &mut StateSource, device: &Device) -> Option<Self> {
        let device = host_or(device);
        let state = S::state_unflatten(prefix, source, &device)?;
        Some(Self::new(state, Place::of(&device), &device, false))
    }
}

impl<S: RecordState> RecordState for OffloadedState<S> {
    fn state_flatten(&self, prefix: &str, out: &mut StateSink) {
        self.0.state_flatten(prefix, out);
    }

    fn state_unflatten(prefix: &str, source: &mut StateSource, device: &Device) -> Option<Self> {
        Parts::state_unflatten(prefix, source, device).map(Self)
    }
}
