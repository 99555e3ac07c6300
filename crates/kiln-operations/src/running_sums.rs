//! Sums of gradients over the micro-batches of a batch, to which operations add one row after the other.

use std::cell::RefCell;
use std::collections::HashMap;

use burn::backend::autodiff::NodeId;
use burn::backend::tensor::FloatTensor;
use burn::backend::{BackendTensor, DispatchTensor, DispatchTensorKind};
use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{DType, Tensor};

use crate::operation::KernelBackend;

thread_local! {
    /// The sums that passes on this thread add to.
    static OPEN: RefCell<Option<RunningSums>> = const { RefCell::new(None) };
}

/// Sums of the gradients of parameters, one for each use of a parameter, such as the two of an embedding that is the output layer too.
///
/// During a [pass](Self::during) an operation of this crate adds the gradients of its [`in_order`](crate::Operation::in_order) inputs to
/// what is there, row by row in the order of the rows, and computes all sums over rows so. Therefore the sums of a batch have the same bits
/// however it is cut into micro-batches. Gradients that burn's own operations make stay in burn's container.
///
/// ```
/// use burn::nn::LinearConfig;
/// use burn::tensor::Device;
/// use kiln_operations::RunningSums;
///
/// let layer = LinearConfig::new(3, 2).init(&Device::flex().autodiff());
/// let mut sums = RunningSums::default();
/// for _micro_batch in 0..4 {
///     sums.during(&layer, 0, || { /* forward and backward pass with the layers of kiln-layers */ });
/// }
/// assert!(sums.finish(&layer)?.is_empty());
/// # Ok::<(), kiln_operations::SumError>(())
/// ```
#[derive(Debug, Default)]
pub struct RunningSums {
    sums: HashMap<ParamId, Vec<Sum>>,
    /// Of the pass that runs or ran last.
    pass: Pass,
}

/// A forward and a backward pass.
#[derive(Debug, Default)]
struct Pass {
    leaves: HashMap<NodeId, Leaf>,
    /// Uses so far.
    uses: HashMap<(ParamId, &'static str), usize>,
    first_sample: usize,
}

/// The sum of one use.
#[derive(Debug)]
struct Sum {
    operation: &'static str,
    /// Its number among the uses by such an operation in a pass.
    number: usize,
    /// Not here while an operation adds to it.
    tensor: Option<DispatchTensor>,
    /// What it is to be multiplied by, if that is known.
    factor: Option<Factor>,
    /// Forward passes that have added to it and whose backward passes have not said the factor yet.
    open: usize,
}

/// The number that a sum is to be multiplied by.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Factor {
    Known(f32),
    /// Not known while a step is recorded.
    Unknown,
    /// Two micro-batches have different ones.
    Several([f32; 2]),
}

/// Why sums cannot be had.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SumError {
    /// The losses of rows have other factors in one micro-batch than in another.
    #[error(
        "the losses of rows are multiplied by {0} in one micro-batch and by {1} in another, expected a mean over the weight of the \
         micro-batch"
    )]
    Factors(f32, f32),
    /// A forward pass has added to the sum of a parameter, and no backward pass followed: a loss that is only looked at must be computed without
    /// a graph.
    #[error("the output of {operation} has no backward pass, expected one in each micro-batch")]
    Dropped {
        /// The operation.
        operation: &'static str,
    },
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
    /// Runs the forward and the backward pass of a micro-batch, which add to the sums of the parameters of `model`. A backward pass that is
    /// not part of `pass` must run in [`go_on`](Self::go_on). `first_sample` is the number of the micro-batch's first sample in the batch.
    pub fn during<R>(&mut self, model: &impl Module, first_sample: usize, pass: impl FnOnce() -> R) -> R {
        let mut leaves = Leaves(HashMap::new());
        model.visit(&mut leaves);
        self.pass = Pass { leaves: leaves.0, uses: HashMap::new(), first_sample };
        self.go_on(pass)
    }

    /// Goes on with the pass of [`during`](Self::during), after something else.
    pub fn go_on<R>(&mut self, pass: impl FnOnce() -> R) -> R {
        struct Close<'a>(&'a mut RunningSums, Option<RunningSums>);
        impl Drop for Close<'_> {
            fn drop(&mut self) {
                *self.0 = OPEN.replace(self.1.take()).unwrap_or_default();
            }
        }
        let open = std::mem::take(self);
        let _close = Close(self, OPEN.replace(Some(open)));
        pass()
    }

    /// Whether there is no sum.
    pub fn is_empty(&self) -> bool {
        self.sums.is_empty()
    }

    /// The number of uses of a parameter that have a sum.
    pub fn uses_of(&self, parameter: ParamId) -> usize {
        self.sums.get(&parameter).map_or(0, Vec::len)
    }

    /// The gradients of the parameters of `model` that have a sum. The sums of several uses are added in the order of the first pass.
    ///
    /// # Errors
    /// [`SumError`] for a loss whose sum over the micro-batches cannot be had.
    pub fn finish(mut self, model: &impl Module) -> Result<GradientsParams, SumError> {
        struct Finish<'a> {
            sums: &'a mut HashMap<ParamId, Vec<Sum>>,
            gradients: Result<GradientsParams, SumError>,
        }
        impl ModuleVisitor for Finish<'_> {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                let (Some(sums), Ok(gradients)) = (self.sums.remove(&param.id), &mut self.gradients) else { return };
                let mut total: Option<Tensor<D>> = None;
                for Sum { operation, tensor, factor, open, .. } in sums {
                    if open > 0 {
                        self.gradients = Err(SumError::Dropped { operation });
                        return;
                    }
                    let Some(sum) = tensor.map(Tensor::<D>::from_dispatch) else { continue };
                    let sum = match factor {
                        None | Some(Factor::Known(1.0)) => sum,
                        Some(Factor::Known(factor)) => sum * factor,
                        Some(Factor::Unknown) => sum * 0.5, // any other number than 1: what counts is the operation
                        Some(Factor::Several([one, other])) => {
                            self.gradients = Err(SumError::Factors(one, other));
                            return;
                        }
                    };
                    total = Some(match total {
                        Some(total) => total + sum,
                        None => sum,
                    });
                }
                if let Some(total) = total {
                    gradients.register(param.id, total);
                }
            }
        }
        let mut finish = Finish { sums: &mut self.sums, gradients: Ok(GradientsParams::new()) };
        model.visit(&mut finish);
        finish.gradients
    }
}

/// The uses of the parameters of a model that have sums, for a step that is recorded as one of several micro-batches.
#[derive(Clone, Debug, Default)]
pub struct SumUses(Vec<Vec<(&'static str, usize)>>);

impl RunningSums {
    /// The uses of the parameters of `model`.
    pub fn uses(&self, model: &impl Module) -> SumUses {
        struct Uses<'a>(&'a RunningSums, SumUses);
        impl ModuleVisitor for Uses<'_> {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                let sums = self.0.sums.get(&param.id).into_iter().flatten();
                self.1.0.push(sums.map(|sum| (sum.operation, sum.number)).collect());
            }
        }
        let mut uses = Uses(self, SumUses::default());
        model.visit(&mut uses);
        uses.1
    }
}

impl SumUses {
    /// Sums of zeros for a model with the same parameters, whose values do not matter.
    pub fn zeros(&self, model: &impl Module) -> RunningSums {
        struct Zeros<'a>(std::slice::Iter<'a, Vec<(&'static str, usize)>>, RunningSums);
        impl ModuleVisitor for Zeros<'_> {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                for &(operation, number) in self.0.next().into_iter().flatten() {
                    let zeros = Tensor::<D>::zeros(param.shape(), (&param.device().inner(), DType::F32));
                    let tensor = Some(zeros.into_dispatch());
                    let sum = Sum { operation, number, tensor, factor: None, open: 0 };
                    self.1.sums.entry(param.id).or_default().push(sum);
                }
            }
        }
        let mut zeros = Zeros(self.0.iter(), RunningSums::default());
        model.visit(&mut zeros);
        zeros.1
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

/// The number of the first sample of the micro-batch in its batch, in the pass of [running sums](RunningSums) on this thread.
pub fn first_sample() -> usize {
    OPEN.with_borrow(|open| open.as_ref().map_or(0, |open| open.pass.first_sample))
}

/// Lets a leaf of another graph, such as that of a recomputed segment, stand for the leaf of a parameter.
pub fn stands_for(inner: NodeId, outer: NodeId) {
    OPEN.with_borrow_mut(|open| {
        if let Some(open) = open
            && let Some(leaf) = open.pass.leaves.get(&outer).copied()
        {
            open.pass.leaves.insert(inner, leaf);
        }
    });
}

/// Lets the result of reading a parameter stand for its leaf. An operation that adds to the sum hands this node an empty gradient.
pub(crate) fn reads(read: NodeId, leaf: NodeId, dtype: DType) {
    OPEN.with_borrow_mut(|open| {
        if let Some(open) = open {
            let holder = open.pass.leaves.get(&leaf).map_or(Holder::Leaf(leaf), |leaf| leaf.holder);
            open.pass.leaves.insert(read, Leaf { holder, read: Some(dtype) });
        }
    });
}

/// The place of the sum of the next use of a leaf by an operation, and the sum if there is one. `None` for other tensors.
pub(crate) fn take<B: KernelBackend>(leaf: NodeId, operation: &'static str) -> Option<(Taken, Option<FloatTensor<B>>)> {
    OPEN.with_borrow_mut(|open| {
        let open = open.as_mut()?;
        let Leaf { holder, read } = *open.pass.leaves.get(&leaf)?;
        let parameter = match holder {
            Holder::Sums(parameter) => parameter,
            Holder::Leaf(leaf) => return Some((Taken { place: Place::Leaf(leaf), read }, None)),
        };
        let uses = open.pass.uses.entry((parameter, operation)).or_default();
        let number = *uses;
        *uses += 1;
        let sums = open.sums.entry(parameter).or_default();
        let index = sums.iter().position(|sum| (sum.operation, sum.number) == (operation, number));
        let index = index.unwrap_or_else(|| {
            sums.push(Sum { operation, number, tensor: None, factor: None, open: 0 });
            sums.len() - 1
        });
        let sum = sums[index].tensor.take().and_then(B::from_dispatch);
        Some((Taken { place: Place::Sum(parameter, index), read }, sum))
    })
}

/// Puts a sum back that was taken. `is_open`: whether a backward pass will [say its factor](settle).
pub(crate) fn put<B: KernelBackend>(place: Place, sum: FloatTensor<B>, is_open: bool) {
    at(place, |place| {
        place.tensor = Some(B::into_dispatch(sum));
        place.open += usize::from(is_open);
    });
}

/// Says what a sum is to be multiplied by: one element in f32.
pub(crate) fn settle<B: KernelBackend>(place: Place, factor: &FloatTensor<B>) {
    let factor = match B::values(factor).and_then(|values| values.first().copied()) {
        Some(value) => Factor::Known(value),
        None => Factor::Unknown,
    };
    at(place, |place| {
        place.open = place.open.saturating_sub(1);
        place.factor = Some(match (place.factor, factor) {
            (Some(Factor::Known(first)), Factor::Known(second)) if first != second => Factor::Several([first, second]),
            (Some(several @ Factor::Several(_)), _) => several,
            _ => factor,
        });
    });
}

fn at(place: Place, change: impl FnOnce(&mut Sum)) {
    let Place::Sum(parameter, index) = place else { return };
    OPEN.with_borrow_mut(|open| {
        let sums = open.as_mut().and_then(|open| open.sums.get_mut(&parameter));
        if let Some(sum) = sums.and_then(|sums| sums.get_mut(index)) {
            change(sum);
        }
    });
}
