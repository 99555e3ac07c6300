//! Gradients that leave a backward pass as soon as an operation has made them.

use std::any::Any;
use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;

use burn::backend::Backend;
use burn::backend::autodiff::NodeId;
use burn::backend::tensor::FloatTensor;

/// Takes each gradient that an operation of this crate makes of a leaf.
type Sink<B> = Box<dyn FnMut(FloatTensor<B>)>;

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
        self.0.insert(leaf, Box::new(sink));
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
    // A sink may run operations, and a backward pass of its own.
    let mut sink = SINKS.with_borrow_mut(|sinks| sinks.remove(&leaf));
    let Some(take) = sink.as_mut().and_then(|sink| sink.downcast_mut::<Sink<B>>()) else { return Some(gradient) };
    take(gradient);
    SINKS.with_borrow_mut(|sinks| sinks.extend(sink.map(|sink| (leaf, sink))));
    None
}
