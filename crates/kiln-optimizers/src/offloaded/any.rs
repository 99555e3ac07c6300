//! An optimizer behind an `Arc<dyn DynOptimizer>`, with its state in host memory.

use std::sync::Arc;

use burn::optim::{DynOptimizer, DynState, LearningRate, StateSink, StateSource};
use burn::tensor::kind::BridgeTensor;
use burn::tensor::{Device, Tensor};

use crate::leaves::Leaves;
use crate::place::{Place, host_or};

/// An optimizer of any type with its state in host memory, one whole parameter at a time: [`Offloaded`](super::Offloaded) for programs that
/// have an `Arc<dyn DynOptimizer>`, as burn's groups of parameters do.
///
/// Its state has a type of its own. A run that changes from another optimizer to it, or back, converts the state through a record, which
/// is the inner optimizer's record.
#[derive(Clone)]
pub struct OffloadedAny {
    optimizer: Arc<dyn DynOptimizer>,
}

/// A state between two steps.
#[derive(Clone)]
enum Kept {
    /// The state as the optimizer made it, on its device.
    State(DynState),
    /// The state as its record, in host memory.
    Leaves(Leaves),
}

impl OffloadedAny {
    /// `optimizer`, whose state is copied one parameter at a time.
    pub fn new(optimizer: Arc<dyn DynOptimizer>) -> Self {
        Self { optimizer }
    }

    /// Keeps the state after a step. `fits` says that states of this parameter come back from their leaves with the same dtypes.
    fn keep(&self, state: DynState, place: Place, device: &Device, fits: bool) -> DynState {
        let rank = state.rank();
        let kept = match place {
            Place::Host | Place::Recording => Kept::State(state),
            Place::Device => {
                let of = |state: &DynState| {
                    let mut sink = StateSink::default();
                    self.optimizer.state_flatten("", state, &mut sink);
                    Leaves::of_sink(sink)
                };
                let leaves = of(&state);
                let again = |leaves: Leaves| self.restored(leaves, rank, device).map(|state| of(&state));
                match fits || leaves.keep_dtypes(device, again) {
                    true => Kept::Leaves(leaves),
                    false => Kept::State(state),
                }
            }
        };
        DynState::create(kept, rank)
    }

    fn restored(&self, leaves: Leaves, rank: usize, device: &Device) -> Option<DynState> {
        self.optimizer.state_unflatten(rank, "", &mut leaves.into_source(), device)
    }

    /// A step on a device whose memory is at `place`.
    pub(super) fn step_at(
        &self,
        place: Place,
        rank: usize,
        lr: LearningRate,
        tensor: BridgeTensor,
        grad: BridgeTensor,
        state: Option<DynState>,
    ) -> (BridgeTensor, Option<DynState>) {
        let (tensor, device) = with_device(tensor);
        let fits = state.as_ref().is_some_and(|state| matches!(state.downcast_ref(), Kept::Leaves(_)));
        let state = state.map(|state| match state.downcast::<Kept>() {
            Kept::State(state) => self.optimizer.to_device_dyn(state, &device),
            Kept::Leaves(leaves) => match self.restored(leaves, rank, &device) {
                Some(state) => state,
                None => panic!("the optimizer's state cannot be read from the record that it has written"),
            },
        });
        let (tensor, state) = self.optimizer.step_dyn(rank, lr, tensor, grad, state);
        (tensor, state.map(|state| self.keep(state, place, &device, fits)))
    }
}

/// The device of a tensor of any rank.
fn with_device(tensor: BridgeTensor) -> (BridgeTensor, Device) {
    let tensor = Tensor::<1>::from_bridge(tensor);
    let device = tensor.device();
    (tensor.into_bridge(), device)
}

impl DynOptimizer for OffloadedAny {
    fn step_dyn(
        &self,
        rank: usize,
        lr: LearningRate,
        tensor: BridgeTensor,
        grad: BridgeTensor,
        state: Option<DynState>,
    ) -> (BridgeTensor, Option<DynState>) {
        let (tensor, device) = with_device(tensor);
        self.step_at(Place::of(&device), rank, lr, tensor, grad, state)
    }

    /// The state as it is: it stays in host memory.
    fn to_device_dyn(&self, state: DynState, _: &Device) -> DynState {
        state
    }

    fn state_flatten(&self, prefix: &str, state: &DynState, out: &mut StateSink) {
        match state.downcast_ref::<Kept>() {
            Kept::State(state) => self.optimizer.state_flatten(prefix, state, out),
            Kept::Leaves(leaves) => leaves.clone().push(prefix, out),
        }
    }

    /// Ignores `device` if the program has a device with the host's memory, and reads the state onto that one.
    fn state_unflatten(
        &self,
        rank: usize,
        prefix: &str,
        source: &mut StateSource,
        device: &Device,
    ) -> Option<DynState> {
        let host = host_or(device);
        let state = self.optimizer.state_unflatten(rank, prefix, source, &host)?;
        Some(self.keep(state, Place::of(&host), &host, false))
    }
}
