//! The second pass of a segment: a graph of its own, from new leaves to the outputs whose gradients are given.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::rc::Rc;

use burn::backend::TensorMetadata;
use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::ops::FloatTensorOps;
use burn::backend::tensor::FloatTensor;
use burn::backend::{
    Autodiff, AutodiffBackend, Backend, DispatchKindConversion, DispatchTensor, GradientCheckpointingStrategy,
};
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{DType, FloatDType, Shape, Tensor};
use kiln_operations::{Sinks, adds_in_order, stands_for};

use super::forward::{Source, Untracked, describe};
use super::tensors::TensorMap;
use crate::Error;
use crate::stream::Streamed;

/// Sets burn's checkpointing strategy of all parameters, which `valid` and `train` reset.
pub(crate) struct Restrategize(pub(crate) GradientCheckpointingStrategy);

impl ModuleMapper for Restrategize {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|tensor| match tensor.gradient_checkpointing_strategy() {
            Some(strategy) if strategy != self.0 => {
                let learned = tensor.is_require_grad();
                let tensor = tensor.without_autodiff().autodiff().with_gradient_checkpointing_strategy(self.0);
                tensor.set_require_grad(learned)
            }
            _ => tensor,
        })
    }
}

/// Makes leaves of the inputs that need a gradient.
pub(crate) struct Leaves<B: Backend, C> {
    sources: std::vec::IntoIter<Option<Source>>,
    leaves: Vec<(Source, FloatTensor<Autodiff<B>>)>,
    marker: PhantomData<C>,
}

impl<B: Backend, C> Leaves<B, C> {
    pub(crate) fn of(sources: Vec<Option<Source>>) -> Self {
        Self { sources: sources.into_iter(), leaves: vec![], marker: PhantomData }
    }

    /// Hands the leaves' gradients to the outer graph.
    pub(crate) fn register(self, mut inner: Option<&mut Gradients>, outer: &mut Gradients) {
        for (source, leaf) in self.leaves {
            match inner.as_mut().and_then(|inner| inner.remove::<B>(&leaf)) {
                Some(gradient) => outer.register::<B>(source.node, gradient),
                // The operation before this input expects a gradient even if the segment did not use the input.
                None if !source.leaf => {
                    let zeros = B::float_zeros(leaf.shape(), &leaf.device(), leaf.dtype().into());
                    outer.register::<B>(source.node, zeros);
                }
                None => {}
            }
        }
    }
}

impl<B: Backend, C: CheckpointStrategy> TensorMap for Leaves<B, C>
where
    DispatchTensor: DispatchKindConversion<Autodiff<B, C>>,
{
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        let tensor = Untracked.float(tensor);
        let Some(source) = self.sources.next().flatten() else { return tensor };
        let leaf = tensor.require_grad();
        if let Ok(primitive) = leaf.clone().try_into_primitive::<Autodiff<B, C>>() {
            self.leaves.push((source, primitive));
        }
        leaf
    }
}

/// Joins the outputs that have a gradient to one root.
pub(crate) struct Roots<B: Backend, C> {
    given: std::vec::IntoIter<Option<FloatTensor<B>>>,
    root: Option<FloatTensor<Autodiff<B>>>,
    pub(crate) described: Vec<String>,
    marker: PhantomData<C>,
}

impl<B: Backend, C> Roots<B, C> {
    pub(crate) fn given(gradients: Vec<Option<FloatTensor<B>>>) -> Self {
        Self { given: gradients.into_iter(), root: None, described: vec![], marker: PhantomData }
    }
}

impl<B: Backend, C: CheckpointStrategy> TensorMap for Roots<B, C>
where
    DispatchTensor: DispatchKindConversion<Autodiff<B, C>> + DispatchKindConversion<B>,
{
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        self.described.push(describe(&tensor));
        if let Some(gradient) = self.given.next().flatten()
            && tensor.is_tracked()
            && let Ok(primitive) = tensor.clone().try_into_primitive::<Autodiff<B, C>>()
        {
            let zero = B::float_zeros(Shape::new([1]), &primitive.device(), FloatDType::F32);
            let root = match Backward::<B, 1>::prepare::<C>(Inject, [primitive.node()]).compute_bound().stateful() {
                OpsKind::Tracked(prepared) => prepared.finish(gradient, zero),
                OpsKind::UnTracked(prepared) => prepared.finish(zero),
            };
            self.root = Some(match self.root.take() {
                Some(sum) => <Autodiff<B, C> as FloatTensorOps<Autodiff<B, C>>>::float_add(sum, root),
                None => root,
            });
        }
        tensor
    }
}

/// Lets the leaves of `module` stand for its parameters in the outer graph, so that rows are added to the running sums of those. The gradients
/// of parameters in a store go there.
pub(crate) fn stand_for<B: Backend, C: CheckpointStrategy>(
    module: &impl Module,
    parameters: &[Option<Source>],
    store: Option<&Streamed>,
) where
    DispatchTensor: DispatchKindConversion<Autodiff<B, C>>,
{
    struct StandFor<'a, B, C> {
        parameters: std::slice::Iter<'a, Option<Source>>,
        store: Option<&'a Streamed>,
        marker: PhantomData<(B, C)>,
    }
    impl<B: Backend, C: CheckpointStrategy> ModuleVisitor for StandFor<'_, B, C>
    where
        DispatchTensor: DispatchKindConversion<Autodiff<B, C>>,
    {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if let Some(Some(parameter)) = self.parameters.next()
                && !self.store.is_some_and(|store| store.has(param.id))
                && let Ok(leaf) = param.val().try_into_primitive::<Autodiff<B, C>>()
            {
                stands_for(leaf.id(), parameter.node);
            }
        }
    }
    if adds_in_order() {
        module.visit(&mut StandFor { parameters: parameters.iter(), store, marker: PhantomData::<(B, C)> });
    }
}

/// Sends the gradients of parameters that are in a store there, each as soon as it is made.
pub(crate) struct ToStore<'a, B: Backend, C> {
    store: &'a Streamed,
    sinks: Sinks<B>,
    failure: Failure,
    marker: PhantomData<C>,
}

/// The first error of the store in a backward pass.
type Failure = Rc<RefCell<Option<Error>>>;

impl<B: Backend, C: CheckpointStrategy> ModuleVisitor for ToStore<'_, B, C>
where
    DispatchTensor: DispatchKindConversion<Autodiff<B, C>> + DispatchKindConversion<B>,
{
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        // A gradient in bf16 is added in f32, when it is whole.
        if param.dtype() != DType::F32 || !self.store.has(param.id) {
            return;
        }
        if let Ok(leaf) = param.val().try_into_primitive::<Autodiff<B, C>>() {
            let (store, id, failure) = (self.store.clone(), param.id, self.failure.clone());
            let add = move |gradient| {
                if failure.borrow().is_none() {
                    let added = store.add_to_sum(id, Tensor::<D>::from_primitive::<B>(gradient));
                    *failure.borrow_mut() = added.err();
                }
            };
            let (store, failure, device) = (self.store.clone(), self.failure.clone(), param.device().inner());
            let take = move || match store.take_sum::<D>(id, &device) {
                Ok(sum) => sum.and_then(|sum| sum.try_into_primitive::<B>().ok()),
                Err(error) => {
                    failure.borrow_mut().get_or_insert(error);
                    None
                }
            };
            self.sinks.insert_with_sum(leaf.id(), take, add);
        }
    }
}

/// The backward pass of the replay of `module`. `None` when no output needs it.
pub(crate) fn backward<B: Backend, C: CheckpointStrategy>(
    roots: Roots<B, C>,
    module: &impl Module,
    store: Option<&Streamed>,
) -> Result<Option<Gradients>, Error>
where
    DispatchTensor: DispatchKindConversion<Autodiff<B, C>> + DispatchKindConversion<B>,
{
    let Some(root) = roots.root else { return Ok(None) };
    let pass = || <Autodiff<B, C> as AutodiffBackend>::backward(root);
    let Some(store) = store else { return Ok(Some(pass())) };
    let failure = Failure::default();
    let mut to_store =
        ToStore::<B, C> { store, sinks: Sinks::default(), failure: failure.clone(), marker: PhantomData };
    module.visit(&mut to_store);
    let gradients = to_store.sinks.during(pass);
    failure.take().map_or(Ok(Some(gradients)), Err)
}

/// Starts a backward pass at a tensor with a gradient that is given.
#[derive(Debug)]
struct Inject;

impl<B: Backend> Backward<B, 1> for Inject {
    type State = FloatTensor<B>;

    fn backward(self, ops: Ops<Self::State, 1>, gradients: &mut Gradients, _: &mut Checkpointer) {
        let _ = gradients.consume::<B>(&ops.node);
        if let Some(output) = &ops.parents[0] {
            gradients.register::<B>(output.id, ops.state);
        }
    }
}

/// Hands the parameters' gradients to the outer graph, and those that did not go to the store yet to the store.
pub(crate) struct Push<B: Backend, C> {
    inner: Option<Gradients>,
    parameters: std::vec::IntoIter<Option<Source>>,
    store: Option<Streamed>,
    found: Vec<(NodeId, FloatTensor<B>)>,
    adds: Vec<Box<dyn FnOnce() -> Result<(), Error>>>,
    marker: PhantomData<C>,
}

impl<B: Backend, C> Push<B, C> {
    /// `parameters` are those of the outer graph, in the order that the module is visited in.
    pub(crate) fn new(inner: Option<Gradients>, parameters: Vec<Option<Source>>, store: Option<Streamed>) -> Self {
        let (parameters, found, adds) = (parameters.into_iter(), vec![], vec![]);
        Self { inner, parameters, store, found, adds, marker: PhantomData }
    }

    /// Registers the gradients, the last parameter first, as a backward pass does, and adds those for the store.
    pub(crate) fn register(self, outer: &mut Gradients) -> Result<(), Error> {
        for (parameter, gradient) in self.found.into_iter().rev() {
            outer.register::<B>(parameter, gradient);
        }
        self.adds.into_iter().try_for_each(|add| add())
    }
}

impl<B: Backend, C: CheckpointStrategy> ModuleVisitor for Push<B, C>
where
    DispatchTensor: DispatchKindConversion<Autodiff<B, C>> + DispatchKindConversion<B>,
{
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if let Some(parameter) = self.parameters.next().flatten()
            && let Ok(primitive) = param.val().try_into_primitive::<Autodiff<B, C>>()
            && let Some(gradient) = self.inner.as_mut().and_then(|inner| inner.remove::<B>(&primitive))
        {
            match self.store.as_ref().filter(|store| store.has(param.id)).cloned() {
                None => self.found.push((parameter.node, gradient)),
                Some(store) => {
                    let (id, gradient) = (param.id, Tensor::<D>::from_primitive::<B>(gradient));
                    self.adds.push(Box::new(move || store.add_to_sum(id, gradient)));
                }
            }
        }
    }
}
