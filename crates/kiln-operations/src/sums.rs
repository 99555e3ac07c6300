//! Gradients that the backward pass adds to sums where it makes them.

use std::fmt;

use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{
    Autodiff, Backend, BackendTensor, Dispatch, DispatchAutodiffContext, DispatchTensor, DispatchTensorKind,
    ExtensionType, backend_extension,
};
use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::Tensor;

/// The loss with a backward pass that adds gradients of `model`'s parameters to `sums`, each as soon as it is made. Gradients beside their
/// sums, which would be as big as all parameters, never exist.
///
/// `which` says for which parameters. The gradient of a parameter that the model uses once has the bits that it would have if it was added
/// afterwards. The gradients of several uses are added to the sum one after the other, in an order that checkpoints may change: leave such
/// a parameter out where bits matter.
///
/// The sums that the backward pass goes on with are taken out of `sums`; afterwards they are in the place of the gradients. What stays in
/// `sums` is to be added by the caller: sums of another dtype than their parameter's or on another backend than the loss, and all of them
/// on a backend for which this crate is not compiled. A parameter that the loss does not depend on keeps its sum as its gradient.
///
/// ```
/// use burn::nn::LinearConfig;
/// use burn::optim::GradientsParams;
/// use burn::tensor::{Device, Distribution, Tensor};
///
/// let device = Device::flex().autodiff();
/// let layer = LinearConfig::new(3, 2).init(&device);
/// let mut sums = GradientsParams::new();
/// for _ in 0..4 {
///     let x = Tensor::<2>::random([5, 3], Distribution::Default, &device);
///     let loss = kiln_operations::accumulate_into(layer.forward(x).mean(), &layer, &mut sums, |_| true);
///     assert!(sums.is_empty());
///     sums = GradientsParams::from_grads(loss.backward(), &layer);
/// }
/// // The gradient of a bias in a mean over 5 x 2 outputs is a half: 4 of them.
/// let bias = sums.get::<1>(layer.bias.as_ref().unwrap().id).unwrap();
/// assert_eq!(bias.into_data().to_vec::<f32>().unwrap(), [2.0, 2.0]);
/// ```
pub fn accumulate_into<M: Module>(
    loss: Tensor<1>,
    model: &M,
    sums: &mut GradientsParams,
    which: impl Fn(ParamId) -> bool,
) -> Tensor<1> {
    let root = loss.into_dispatch();
    let mut collect = Collect { like: place(&root), sums, which, found: vec![root] };
    if collect.like.is_some() && !collect.sums.is_empty() {
        model.visit(&mut collect);
    }
    match collect.found.len() {
        1 => Tensor::from_dispatch(collect.found.remove(0)),
        _ => Tensor::from_dispatch(Dispatch::sums_before(Leaves(collect.found))),
    }
}

/// The root of a backward pass that begins with `sums`, each the sum of gradients of the leaf with its number. See [`accumulate_into`].
fn root_accumulating<B: Backend, C: CheckpointStrategy>(
    root: FloatTensor<Autodiff<B, C>>,
    sums: Vec<(NodeId, FloatTensor<B>)>,
) -> FloatTensor<Autodiff<B, C>> {
    match Backward::<B, 1>::prepare::<C>(Begin, [root.node()]).compute_bound().stateful() {
        OpsKind::Tracked(prepared) => prepared.finish(Sums(sums), root.into_primitive()),
        OpsKind::UnTracked(prepared) => prepared.finish(root.into_primitive()),
    }
}

/// The first operation of a backward pass. burn adds each gradient of a leaf to what is registered for it.
#[derive(Debug)]
struct Begin;

#[derive(Clone)]
struct Sums<B: Backend>(Vec<(NodeId, FloatTensor<B>)>);

impl<B: Backend> fmt::Debug for Sums<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} sums of gradients", self.0.len())
    }
}

impl<B: Backend> Backward<B, 1> for Begin {
    type State = Sums<B>;

    fn backward(self, ops: Ops<Sums<B>, 1>, gradients: &mut Gradients, _: &mut Checkpointer) {
        let gradient = gradients.consume::<B>(&ops.node);
        for (leaf, sum) in ops.state.0 {
            gradients.register::<B>(leaf, sum);
        }
        if let Some(root) = &ops.parents[0] {
            gradients.register::<B>(root.id, gradient);
        }
    }
}

/// The backend of a tensor in a graph, and burn's strategy for it. `None` for backends without [`SumsBefore`].
fn place(tensor: &DispatchTensor) -> Option<(u8, DispatchAutodiffContext)> {
    let DispatchTensorKind::Autodiff(inner) = &tensor.kind else { return None };
    let backend = match &**inner {
        #[cfg(feature = "flex")]
        DispatchTensorKind::Flex(_) => 0,
        #[cfg(feature = "cube")]
        DispatchTensorKind::Cube(_) => 1,
        DispatchTensorKind::Capture(_) => 2,
        _ => return None,
    };
    Some((backend, tensor.autodiff))
}

/// Takes the sums that the backward pass of the first tensor can go on with: after it leaf, sum, leaf, sum.
struct Collect<'a, W> {
    like: Option<(u8, DispatchAutodiffContext)>,
    sums: &'a mut GradientsParams,
    which: W,
    found: Vec<DispatchTensor>,
}

impl<W: Fn(ParamId) -> bool> ModuleVisitor for Collect<'_, W> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if !(self.which)(param.id) {
            return;
        }
        let Some(sum) = self.sums.remove::<D>(param.id) else { return };
        let (leaf, dtype, device) = (param.val(), sum.dtype(), sum.device());
        let fits = param.is_require_grad() && leaf.dtype() == dtype && leaf.device().inner() == device;
        let leaf = leaf.into_dispatch();
        if !fits || place(&leaf) != self.like {
            return self.sums.register(param.id, sum);
        }
        self.found.extend([leaf, sum.into_dispatch()]);
    }
}

/// A root, and leaves with their sums.
struct Leaves<B: Backend>(Vec<FloatTensor<B>>);

impl<B: Backend> ExtensionType<B> for Leaves<B> {
    type Target = Leaves<Dispatch>;

    fn map_to_dispatch<F>(self, map_kind: F, autodiff: DispatchAutodiffContext) -> Self::Target
    where
        F: Fn(BackendTensor<B>) -> DispatchTensorKind,
    {
        let mapped = |tensor| DispatchTensor { kind: map_kind(BackendTensor::Float(tensor)), autodiff };
        Leaves(self.0.into_iter().map(mapped).collect())
    }

    fn map_from_dispatch<F>(target: Self::Target, unwrap_kind: F) -> Self
    where
        F: Fn(DispatchTensor) -> BackendTensor<B>,
    {
        Leaves(target.0.into_iter().map(|tensor| unwrap_kind(tensor).float()).collect())
    }

    fn routing_tensor(target: &Self::Target) -> Option<&DispatchTensor> {
        target.0.first()
    }

    fn routing_float_tensor(target: &Self::Target) -> Option<&DispatchTensor> {
        target.0.first()
    }

    fn autodiff_context(target: &Self::Target) -> DispatchAutodiffContext {
        target
            .0
            .iter()
            .map(|tensor| tensor.autodiff)
            .fold(DispatchAutodiffContext::Disabled, DispatchAutodiffContext::merge)
    }
}

/// [`root_accumulating`] on the backend that holds the tensors.
#[backend_extension(Flex: cfg(feature = "flex"), Cube: cfg(feature = "cube"), Capture, Autodiff)]
trait SumsBefore: Backend {
    /// Without a graph there is no backward pass: the root.
    fn sums_before(#[extension_type] leaves: Leaves<Self>) -> FloatTensor<Self> {
        let mut tensors = leaves.0;
        tensors.swap_remove(0)
    }
}

#[cfg(feature = "flex")]
impl SumsBefore for burn::backend::Flex {}
#[cfg(feature = "cube")]
impl SumsBefore for burn::backend::Cube {}
impl SumsBefore for burn::backend::Capture {}

impl<B: Backend, C: CheckpointStrategy> SumsBefore for Autodiff<B, C> {
    fn sums_before(leaves: Leaves<Self>) -> FloatTensor<Self> {
        let mut tensors = leaves.0.into_iter();
        let root = tensors.next().unwrap_or_else(|| unreachable!("the root is first"));
        let mut sums = vec![];
        while let (Some(leaf), Some(sum)) = (tensors.next(), tensors.next()) {
            sums.push((leaf.id(), sum.into_primitive()));
        }
        root_accumulating::<B, C>(root, sums)
    }
}
