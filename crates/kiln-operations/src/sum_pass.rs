//! Passes that add to running sums, and the one that runs on a thread.

use std::cell::RefCell;
use std::collections::HashMap;

use burn::backend::autodiff::NodeId;
use burn::backend::tensor::FloatTensor;
use burn::backend::{BackendTensor, DispatchTensor, DispatchTensorKind, TensorMetadata};
use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::tensor::{DType, Shape, Tensor};

use crate::operation::KernelBackend;
use crate::relay::{SentSum, SumRelay, SumUse};
use crate::running_sums::{Factor, RunningSums, Sum};

thread_local! {
    /// The pass that runs on this thread.
    static OPEN: RefCell<Option<SumPass>> = const { RefCell::new(None) };
}

/// The forward and the backward pass of a micro-batch, which add to [sums](RunningSums). Passes may run beside each other on several threads, as
/// those of a model in stages do, as long as a use of a parameter meets them in their order.
#[derive(Debug)]
pub struct SumPass {
    sums: RunningSums,
    leaves: HashMap<NodeId, Leaf>,
    /// Uses so far.
    uses: HashMap<(ParamId, &'static str), usize>,
    first_sample: usize,
    /// Whether no other pass of this replica follows in the batch.
    is_last: bool,
}

/// A node that stands for a parameter.
#[derive(Clone, Copy, Debug)]
struct Leaf {
    holder: Holder,
    /// The dtype that the parameter was read in, if this is the result of reading it.
    read: Option<DType>,
}

/// Where the gradient of a parameter goes.
#[derive(Clone, Copy, Debug)]
enum Holder {
    /// To its sums.
    Sums(ParamId),
    /// To a leaf without sums.
    Leaf(NodeId),
}

/// The place for the gradient of an input.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taken {
    pub(crate) place: Place,
    /// The dtype that the parameter was read in, if the node is the result of reading it.
    pub(crate) read: Option<DType>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Place {
    /// The sum that was taken: its number among those of a parameter.
    Sum(ParamId, usize),
    /// A leaf without sums.
    Leaf(NodeId),
}

impl RunningSums {
    /// The pass of a micro-batch, which adds to the sums of the parameters of `model`. `first_sample` is the number of the micro-batch's first
    /// sample in the batch.
    pub fn pass(&self, model: &impl Module, first_sample: usize) -> SumPass {
        let mut leaves = Leaves(HashMap::new());
        model.visit(&mut leaves);
        SumPass { sums: self.clone(), leaves: leaves.0, uses: HashMap::new(), first_sample, is_last: false }
    }
}

impl SumPass {
    /// Says whether this is the last pass of a batch, on this replica.
    pub fn last(self, is_last: bool) -> Self {
        Self { is_last, ..self }
    }

    /// Runs the forward pass, the backward pass, or a part of one on this thread.
    pub fn during<R>(&mut self, part: impl FnOnce() -> R) -> R {
        struct Close<'a>(&'a mut SumPass, Option<SumPass>);
        impl Drop for Close<'_> {
            fn drop(&mut self) {
                if let Some(pass) = OPEN.replace(self.1.take()) {
                    *self.0 = pass;
                }
            }
        }
        let (leaves, uses) = (std::mem::take(&mut self.leaves), std::mem::take(&mut self.uses));
        let open = Self { sums: self.sums.clone(), leaves, uses, ..*self };
        let _close = Close(self, OPEN.replace(Some(open)));
        part()
    }
}

/// The leaves of parameters.
struct Leaves(HashMap<NodeId, Leaf>);

impl ModuleVisitor for Leaves {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        // A gradient of 16 bits is added in f32, when it is whole.
        if param.is_require_grad()
            && param.dtype() == DType::F32
            && let Some(leaf) = node_of(&param.val().into_dispatch())
        {
            self.0.insert(leaf, Leaf { holder: Holder::Sums(param.id), read: None });
        }
    }
}

/// The node of a tensor on a backend on which rows are added in their order.
fn node_of(tensor: &DispatchTensor) -> Option<NodeId> {
    let DispatchTensorKind::Autodiff(inner) = &tensor.kind else { return None };
    match &**inner {
        #[cfg(feature = "flex")]
        DispatchTensorKind::Flex(BackendTensor::Autodiff(tensor)) => Some(tensor.id()),
        DispatchTensorKind::Capture(BackendTensor::Autodiff(tensor)) => Some(tensor.id()),
        _ => None,
    }
}

/// Whether operations on this thread add rows in their order, since [running sums](RunningSums) are open.
pub fn adds_in_order() -> bool {
    OPEN.with_borrow(Option::is_some)
}

/// Whether operations on this thread take long sequences in parts: unless [running sums](RunningSums) are open that want them whole.
pub fn takes_parts() -> bool {
    OPEN.with_borrow(|open| open.as_ref().is_none_or(|open| open.sums.in_parts))
}

/// The number of the first sample of the micro-batch in its batch, in the pass of [running sums](RunningSums) on this thread.
pub fn first_sample() -> usize {
    OPEN.with_borrow(|open| open.as_ref().map_or(0, |open| open.first_sample))
}

/// Lets a leaf of another graph, such as that of a recomputed segment, stand for the leaf of a parameter.
pub fn stands_for(inner: NodeId, outer: NodeId) {
    OPEN.with_borrow_mut(|open| {
        if let Some(open) = open
            && let Some(leaf) = open.leaves.get(&outer).copied()
        {
            open.leaves.insert(inner, leaf);
        }
    });
}

/// Lets the result of reading a parameter stand for its leaf. An operation that adds to the sum hands this node an empty gradient.
pub(crate) fn reads(read: NodeId, leaf: NodeId, dtype: DType) {
    OPEN.with_borrow_mut(|open| {
        if let Some(open) = open {
            let holder = open.leaves.get(&leaf).map_or(Holder::Leaf(leaf), |leaf| leaf.holder);
            open.leaves.insert(read, Leaf { holder, read: Some(dtype) });
        }
    });
}

/// The place of the sum of the next use of a leaf by an operation, and the sum if there is one. `None` for other tensors.
pub(crate) fn take<B: KernelBackend>(leaf: NodeId, operation: &'static str) -> Option<(Taken, Option<FloatTensor<B>>)> {
    let (place, read, found) = OPEN.with_borrow_mut(|open| {
        let open = open.as_mut()?;
        let Leaf { holder, read } = *open.leaves.get(&leaf)?;
        let parameter = match holder {
            Holder::Sums(parameter) => parameter,
            Holder::Leaf(leaf) => return Some((Place::Leaf(leaf), read, Found::Here(None))),
        };
        let uses = open.uses.entry((parameter, operation)).or_default();
        let number = *uses;
        *uses += 1;
        let mut sums = open.sums.lock();
        let sums = sums.entry(parameter).or_default();
        let index = sums.iter().position(|sum| (sum.operation, sum.number) == (operation, number));
        let place = |index| Place::Sum(parameter, index);
        if let Some(index) = index {
            return Some((place(index), read, Found::Here(sums[index].tensor.take())));
        }
        sums.push(Sum { operation, number, tensor: None, factor: None, open: 0 });
        let found = match &open.sums.relay {
            Some(relay) => Found::Before(relay.clone(), SumUse { parameter, operation: operation.into(), number }),
            None => Found::Here(None),
        };
        Some((place(sums.len() - 1), read, found))
    })?;
    let sum = match found {
        Found::Here(sum) => sum.and_then(B::from_dispatch),
        Found::Before(relay, of) => relay.take(&of).and_then(|SentSum { values, shape, factor }| {
            at(place, |sum| sum.factor = factor.map(Factor::Known));
            Some(B::float_reshape(B::from_dispatch(values.into_dispatch())?, shape))
        }),
    };
    Some((Taken { place, read }, sum))
}

/// Where a sum is found.
enum Found {
    Here(Option<DispatchTensor>),
    /// With the replica before.
    Before(SumRelay, SumUse),
}

/// Puts a sum back that was taken. `is_open`: whether a backward pass will [say its factor](settle).
pub(crate) fn put<B: KernelBackend>(place: Place, sum: FloatTensor<B>, is_open: bool) {
    at(place, |sum_of| {
        sum_of.tensor = Some(B::into_dispatch(sum));
        sum_of.open += usize::from(is_open);
    });
    hand_on::<B>(place);
}

/// Says what a sum is to be multiplied by: one element in f32.
pub(crate) fn settle<B: KernelBackend>(place: Place, factor: &FloatTensor<B>) {
    let factor = match B::values(factor).and_then(|values| values.first().copied()) {
        Some(value) => Factor::Known(value),
        None => Factor::Unknown,
    };
    at(place, |sum| {
        sum.open = sum.open.saturating_sub(1);
        sum.factor = Some(match (sum.factor, factor) {
            (Some(Factor::Known(first)), Factor::Known(second)) if first != second => Factor::Several([first, second]),
            (Some(several @ Factor::Several(_)), _) => several,
            _ => factor,
        });
    });
    hand_on::<B>(place);
}

/// Hands a sum to the next replica after the last pass has added to it.
fn hand_on<B: KernelBackend>(place: Place) {
    let Place::Sum(parameter, _) = place else { return };
    let relay = OPEN.with_borrow(|open| open.as_ref().filter(|open| open.is_last)?.sums.relay.clone());
    let Some(relay) = relay else { return };
    let ready = at(place, |sum| {
        let factor = match sum.factor {
            None => None,
            Some(Factor::Known(factor)) => Some(factor),
            _ => return None,
        };
        let tensor = sum.tensor.take_if(|_| sum.open == 0)?;
        Some((SumUse { parameter, operation: sum.operation.into(), number: sum.number }, tensor, factor))
    });
    let Some((of, tensor, factor)) = ready.flatten() else { return };
    let Some(tensor) = B::from_dispatch(tensor) else { return };
    let shape = tensor.shape();
    let values = B::float_reshape(tensor, Shape::new([shape.num_elements()]));
    let sum = SentSum { values: Tensor::from_dispatch(B::into_dispatch(values)), shape, factor };
    if let Some(SentSum { values, shape, .. }) = relay.give(of, sum)
        && let Some(values) = B::from_dispatch(values.into_dispatch())
    {
        at(place, |sum| sum.tensor = Some(B::into_dispatch(B::float_reshape(values, shape))));
    }
}

fn at<R>(place: Place, change: impl FnOnce(&mut Sum) -> R) -> Option<R> {
    let Place::Sum(parameter, index) = place else { return None };
    OPEN.with_borrow(|open| {
        let mut sums = open.as_ref()?.sums.lock();
        Some(change(sums.get_mut(&parameter)?.get_mut(index)?))
    })
}
