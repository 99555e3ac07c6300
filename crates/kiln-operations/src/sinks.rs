//! Gradients that leave a backward pass as soon as an operation has made them.

use std::any::Any;
use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;

use burn::backend::Backend;
use burn::backend::autodiff::NodeId;
use burn::backend::tensor::FloatTensor;

/// Where the gradients of a leaf go.
struct Sink<B: Backend> {
    /// Takes each gradient that an operation of this crate makes.
    add: Box<dyn FnMut(FloatTensor<B>)>,
    /// Hands out the sum that rows are added to in their order.
    sum: Option<TakeSum<B>>,
}

type TakeSum<B> = Box<dyn FnMut() -> Option<FloatTensor<B>>>;

thread_local! {
    /// Sinks of the backward pass that runs on this thread. Each is a [`Sink`] of its backend.
    static SINKS: RefCell<HashMap<NodeId, Box<dyn Any>>> = RefCell::default();
}

/// The sinks of the leaves of a backward pass.
///
/// A leaf with a sink takes no memory for its gradient until the end of the backward pass. Gradients that burn's own operations make stay in burn's
/// container. burn runs a backward pass on the thread that calls it.
pub struct Sinks<B: Backend>(HashMap<NodeId, Sink<B>>);

impl<B: Backend> Default for Sinks<B> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<B: Backend> fmt::Debug for Sinks<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sinks of {} leaves", self.0.len())
    }
}

impl<B: Backend> Sinks<B> {
    /// Gives a leaf a sink.
    pub fn insert(&mut self, leaf: NodeId, sink: impl FnMut(FloatTensor<B>) + 'static) {
        self.0.insert(leaf, Sink { add: Box::new(sink), sum: None });
    }

    /// Gives a leaf a sink that has the sum of the gradients before. While [running sums](crate::RunningSums) are open, the operation that uses
    /// the leaf takes this sum out with `sum`, adds rows to it in their order, and hands it to `sink`.
    pub fn insert_with_sum(
        &mut self,
        leaf: NodeId,
        sum: impl FnMut() -> Option<FloatTensor<B>> + 'static,
        sink: impl FnMut(FloatTensor<B>) + 'static,
    ) {
        self.0.insert(leaf, Sink { add: Box::new(sink), sum: Some(Box::new(sum)) });
    }

    /// Runs a backward pass with these sinks. Another backward pass within it has its own.
    pub fn during<R>(self, pass: impl FnOnce() -> R) -> R {
        struct Restore(HashMap<NodeId, Box<dyn Any>>);
        impl Drop for Restore {
            fn drop(&mut self) {
                SINKS.set(std::mem::take(&mut self.0));
            }
        }
        let sinks = self.0.into_iter().map(|(leaf, sink)| (leaf, Box::new(sink) as Box<dyn Any>)).collect();
        let _restore = Restore(SINKS.replace(sinks));
        pass()
    }
}

/// Hands a gradient to the sink of its leaf. Returns it if there is none.
pub(crate) fn offered<B: Backend>(leaf: NodeId, gradient: FloatTensor<B>) -> Option<FloatTensor<B>> {
    let mut gradient = Some(gradient);
    with_sink::<B, _>(leaf, |sink| gradient.take().map(&mut sink.add));
    gradient
}

/// Takes the sum of a leaf out of its sink. `None` for a leaf whose sink has no sums, or without a sink.
pub(crate) fn taken_sum<B: Backend>(leaf: NodeId) -> Option<Option<FloatTensor<B>>> {
    with_sink::<B, _>(leaf, |sink| sink.sum.as_mut().map(|take| take())).flatten()
}

/// Calls `act` with the sink of a leaf, if it has one.
fn with_sink<B: Backend, R>(leaf: NodeId, act: impl FnOnce(&mut Sink<B>) -> R) -> Option<R> {
    // A sink may run operations, and a backward pass of its own.
    let mut sink = SINKS.with_borrow_mut(|sinks| sinks.remove(&leaf))?;
    let result = sink.downcast_mut::<Sink<B>>().map(act);
    SINKS.with_borrow_mut(|sinks| sinks.insert(leaf, sink));
    result
}
