//! One dispatch for all operations: from burn's tensors to the backend that holds them.

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::tensor::{BoolTensor, FloatTensor, IntTensor};
use burn::backend::{
    Autodiff, Backend, BackendTensor, Dispatch, DispatchAutodiffContext, DispatchTensor, DispatchTensorKind,
    ExtensionType, backend_extension,
};

use crate::graph::{light_node, node};
use crate::operation::{KernelBackend, LightOperation, Operation};

/// An input of an operation.
#[derive(Clone, Debug)]
pub enum Input<B: Backend> {
    /// Numbers, which may have a gradient.
    Float(FloatTensor<B>),
    /// Integers.
    Int(IntTensor<B>),
    /// Booleans.
    Bool(BoolTensor<B>),
}

/// The inputs of an operation. On [`Dispatch`] each is a [`Input::Float`], and its true kind is found with its backend.
#[derive(Clone, Debug)]
pub struct Inputs<B: Backend>(Vec<Input<B>>);

impl Input<Dispatch> {
    fn tensor(&self) -> &DispatchTensor {
        let (Self::Float(tensor) | Self::Int(tensor) | Self::Bool(tensor)) = self;
        tensor
    }
}

impl<B: KernelBackend> Inputs<B> {
    /// The tensors as kernels take them.
    fn into_vec(self) -> Vec<FloatTensor<B>> {
        let held = |input| match input {
            Input::Float(tensor) => tensor,
            Input::Int(tensor) => B::of_int(tensor),
            Input::Bool(tensor) => B::of_bool(tensor),
        };
        self.0.into_iter().map(held).collect()
    }
}

impl<B: Backend> ExtensionType<B> for Inputs<B> {
    type Target = Inputs<Dispatch>;

    fn map_to_dispatch<F>(self, map_kind: F, autodiff: DispatchAutodiffContext) -> Self::Target
    where
        F: Fn(BackendTensor<B>) -> DispatchTensorKind,
    {
        let mapped = |input| {
            let tensor = match input {
                Input::Float(tensor) => BackendTensor::Float(tensor),
                Input::Int(tensor) => BackendTensor::Int(tensor),
                Input::Bool(tensor) => BackendTensor::Bool(tensor),
            };
            Input::Float(DispatchTensor { kind: map_kind(tensor), autodiff })
        };
        Inputs(self.0.into_iter().map(mapped).collect())
    }

    fn map_from_dispatch<F>(target: Self::Target, unwrap_kind: F) -> Self
    where
        F: Fn(DispatchTensor) -> BackendTensor<B>,
    {
        let unwrapped = |input| {
            let (Input::Float(tensor) | Input::Int(tensor) | Input::Bool(tensor)) = input;
            match unwrap_kind(tensor) {
                BackendTensor::Int(tensor) => Input::Int(tensor),
                BackendTensor::Bool(tensor) => Input::Bool(tensor),
                other => Input::Float(other.float()),
            }
        };
        Inputs(target.0.into_iter().map(unwrapped).collect())
    }

    fn routing_tensor(target: &Self::Target) -> Option<&DispatchTensor> {
        target.0.first().map(Input::tensor)
    }

    fn routing_float_tensor(target: &Self::Target) -> Option<&DispatchTensor> {
        Self::routing_tensor(target)
    }

    fn autodiff_context(target: &Self::Target) -> DispatchAutodiffContext {
        let contexts = target.0.iter().map(|input| input.tensor().autodiff);
        contexts.fold(DispatchAutodiffContext::Disabled, DispatchAutodiffContext::merge)
    }
}

/// All operations on a backend, with gradients or without.
#[backend_extension(Flex: cfg(feature = "flex"), Cube: cfg(feature = "cube"), Capture, Autodiff)]
pub trait Operations: Backend {
    /// Runs an operation, and adds it to the graph of its inputs if the backend has one.
    fn operation<O: Operation>(#[extension_type] inputs: Inputs<Self>, operation: O) -> Vec<FloatTensor<Self>>;

    /// Runs an operation that is computed again rather than kept.
    fn light_operation<O: LightOperation>(x: FloatTensor<Self>, operation: O) -> FloatTensor<Self>;
}

macro_rules! without_gradients {
    ($($(#[$feature:meta])? $backend:ident;)*) => {$(
        $(#[$feature])?
        impl Operations for burn::backend::$backend {
            fn operation<O: Operation>(inputs: Inputs<Self>, operation: O) -> Vec<FloatTensor<Self>> {
                let inputs = inputs.into_vec();
                let wanted = vec![false; inputs.len()];
                operation.forward::<Self>(inputs, &wanted).outputs
            }

            fn light_operation<O: LightOperation>(x: FloatTensor<Self>, operation: O) -> FloatTensor<Self> {
                operation.forward::<Self>(x)
            }
        }
    )*};
}
without_gradients! {
    #[cfg(feature = "flex")] Flex;
    #[cfg(feature = "cube")] Cube;
    Capture;
}

impl<B: KernelBackend, C: CheckpointStrategy> Operations for Autodiff<B, C> {
    fn operation<O: Operation>(inputs: Inputs<Self>, operation: O) -> Vec<FloatTensor<Self>> {
        let parts = |input: Input<Self>| match input {
            Input::Float(tensor) => {
                let wanted = tensor.is_tracked();
                let (tensor, node) = tensor.into_parts();
                (tensor, Some(node).filter(|_| wanted))
            }
            Input::Int(tensor) => (B::of_int(tensor), None),
            Input::Bool(tensor) => (B::of_bool(tensor), None),
        };
        let (inputs, nodes) = inputs.0.into_iter().map(parts).unzip();
        node::<B, C, O>(operation, inputs, nodes)
    }

    fn light_operation<O: LightOperation>(x: FloatTensor<Self>, operation: O) -> FloatTensor<Self> {
        light_node::<B, C, O>(operation, x)
    }
}

/// Runs an operation on the device of its inputs, and returns its outputs. The first input is a tensor of numbers.
///
/// # Panics
/// Without inputs or with more than 36. burn panics for devices for which this crate is not compiled.
pub fn run<O: Operation>(operation: O, inputs: Vec<DispatchTensor>) -> Vec<DispatchTensor> {
    Dispatch::operation(Inputs(inputs.into_iter().map(Input::Float).collect()), operation)
}

/// Runs an operation that is computed again rather than kept.
///
/// # Panics
/// burn panics for devices for which this crate is not compiled.
pub fn run_light<O: LightOperation>(operation: O, x: DispatchTensor) -> DispatchTensor {
    Dispatch::light_operation(x, operation)
}
