//! A segment as operations of burn's autodiff graph.
//!
//! ```text
//! input  ─┐                 ┌─ output 0 ─
//! input  ─┼─ join … ── hub ─┼─ output 1 ─
//! anchor ─┘                 └─ …
//! ```
//!
//! An operation of burn has one output. Therefore all outputs of a segment depend on one operation, the hub: each output hands
//! its gradient to the hub, which runs the closure again when it has all of them. The joins make every input an ancestor of
//! the hub, so that burn runs the inputs' own operations after the hub has registered their gradients. Parameters are leaves;
//! their gradients are registered under their ids. The anchor is one of the parameters. These operations pass a token to each
//! other: a tensor of one zero.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, NodeGuard, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend};

use crate::Error;

/// Runs the closure again and registers gradients of inputs and parameters, given those of the outputs.
pub(crate) type Replay<B> = Box<dyn FnOnce(Vec<Option<FloatTensor<B>>>, &mut Gradients) -> Result<(), Error> + Send>;

/// State that the hub and its outputs share.
struct Shared<B: Backend> {
    token: FloatTensor<B>,
    outputs: usize,
    replay: Mutex<Option<Replay<B>>>,
    /// The gradients of the outputs that have received one.
    given: Mutex<HashMap<usize, FloatTensor<B>>>,
}

/// State of the operations, which burn requires to be `Clone` and `Debug`.
struct State<B: Backend>(Arc<Shared<B>>);

impl<B: Backend> Clone for State<B> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<B: Backend> fmt::Debug for State<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a segment of {} outputs", self.0.outputs)
    }
}

/// A segment in the graph, before its outputs are attached.
pub(crate) struct Hub<B: Backend> {
    tensor: FloatTensor<Autodiff<B>>,
    state: State<B>,
}

/// Puts a segment that depends on `guards` into the graph. `None` when it depends on nothing.
pub(crate) fn hub<B: Backend, C: CheckpointStrategy>(
    guards: Vec<NodeGuard>,
    outputs: usize,
    token: FloatTensor<B>,
    replay: Replay<B>,
) -> Option<Hub<B>> {
    let mut guards = guards.into_iter();
    let mut before = guards.next()?;
    let mut after_join = false;
    for guard in guards {
        let join = Backward::<B, 2>::prepare::<C>(Join { after_join }, [before, guard]).compute_bound().stateful();
        let tensor = match join {
            OpsKind::Tracked(prepared) => prepared.finish(token.clone(), token.clone()),
            OpsKind::UnTracked(prepared) => prepared.finish(token.clone()),
        };
        before = tensor.node();
        after_join = true;
    }
    let shared =
        Shared { token: token.clone(), outputs, replay: Mutex::new(Some(replay)), given: Mutex::new(HashMap::new()) };
    let state = State(Arc::new(shared));
    let tensor = match Backward::<B, 1>::prepare::<C>(Center { after_join }, [before]).compute_bound().stateful() {
        OpsKind::Tracked(prepared) => prepared.finish(state.clone(), token),
        OpsKind::UnTracked(prepared) => prepared.finish(token),
    };
    Some(Hub { tensor, state })
}

impl<B: Backend> Hub<B> {
    /// The output with number `slot` and the value that the first pass computed.
    pub(crate) fn output<C: CheckpointStrategy>(&self, slot: usize, value: FloatTensor<B>) -> FloatTensor<Autodiff<B>> {
        match Backward::<B, 1>::prepare::<C>(Output { slot }, [self.tensor.node()]).compute_bound().stateful() {
            OpsKind::Tracked(prepared) => prepared.finish(self.state.clone(), value),
            OpsKind::UnTracked(prepared) => prepared.finish(value),
        }
    }
}

#[derive(Debug)]
struct Join {
    after_join: bool,
}

impl<B: Backend> Backward<B, 2> for Join {
    type State = FloatTensor<B>;

    fn backward(self, ops: Ops<Self::State, 2>, gradients: &mut Gradients, _: &mut Checkpointer) {
        let token = gradients.consume::<B>(&ops.node);
        // The other parent is an input, whose gradient the hub has registered.
        if let (true, Some(join)) = (self.after_join, &ops.parents[0]) {
            gradients.register::<B>(join.id, token);
        }
    }
}

#[derive(Debug)]
struct Center {
    after_join: bool,
}

impl<B: Backend> Backward<B, 1> for Center {
    type State = State<B>;

    fn backward(self, ops: Ops<Self::State, 1>, gradients: &mut Gradients, _: &mut Checkpointer) {
        let token = gradients.consume::<B>(&ops.node);
        let shared = &ops.state.0;
        let mut given = lock(&shared.given);
        let given = (0..shared.outputs).map(|slot| given.remove(&slot)).collect();
        // burn runs every operation once, so the replay is always there.
        if let Some(replay) = lock(&shared.replay).take()
            && let Err(error) = replay(given, gradients)
        {
            panic!("{error}"); // burn's backward pass cannot return an error
        }
        if let (true, Some(join)) = (self.after_join, &ops.parents[0]) {
            gradients.register::<B>(join.id, token);
        }
    }
}

#[derive(Debug)]
struct Output {
    slot: usize,
}

impl<B: Backend> Backward<B, 1> for Output {
    type State = State<B>;

    fn backward(self, ops: Ops<Self::State, 1>, gradients: &mut Gradients, _: &mut Checkpointer) {
        let gradient = gradients.consume::<B>(&ops.node);
        lock(&ops.state.0.given).insert(self.slot, gradient);
        if let Some(hub) = &ops.parents[0] {
            gradients.register::<B>(hub.id, ops.state.0.token.clone());
        }
    }
}

/// Locks also after a panic of another holder: the guarded values are replaced as a whole, never half changed.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
