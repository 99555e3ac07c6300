//! Operations in two parts: kernels, which compute tensors on each backend, and the node of burn's graph that is made of them.

use std::fmt::Debug;

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::ops::NodeGuard;
#[cfg(feature = "flex")]
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Capture, Dispatch, DispatchTensor, ExtensionType, backend_extension};
use burn::tensor::{DType, Shape};

use crate::capture::{like, operations};
use crate::cost::Cost;
use crate::graph::record;

/// A computation of tensors from tensors, without gradients. Its settings are its fields.
pub trait Kernel: Clone + Debug + Send + 'static {
    /// What it costs, and the id under which it is recorded.
    fn cost(&self) -> &'static Cost;

    /// The settings on which its time and memory depend. They are recorded with it.
    fn scalars(&self) -> Vec<i64> {
        vec![]
    }

    /// Shapes and dtypes of the outputs, from those of the inputs. By default there is one output like the first input.
    fn outputs(&self, inputs: &[(Shape, DType)]) -> Vec<(Shape, DType)> {
        inputs[..1].to_vec()
    }

    /// Computes the outputs in a backend's own operations.
    fn composed<B: Backend>(&self, inputs: Vec<FloatTensor<B>>) -> Vec<FloatTensor<B>>;

    /// Computes the outputs on burn's CPU device.
    #[cfg(feature = "flex")]
    fn flex(&self, inputs: Vec<FlexTensor>) -> Vec<FlexTensor> {
        self.composed::<burn::backend::Flex>(inputs)
    }
}

/// A backend without gradients that runs kernels.
pub trait Runs: Backend {
    /// Runs a kernel.
    fn run<K: Kernel>(kernel: &K, inputs: Vec<FloatTensor<Self>>) -> Vec<FloatTensor<Self>>;
}

#[cfg(feature = "flex")]
impl Runs for burn::backend::Flex {
    fn run<K: Kernel>(kernel: &K, inputs: Vec<FloatTensor<Self>>) -> Vec<FloatTensor<Self>> {
        kernel.flex(inputs)
    }
}

// The type is `Fusion<CubeBackend>` or `CubeBackend`, depending on burn's features: burn may fuse the operations of a kernel.
#[cfg(feature = "cube")]
impl Runs for burn::backend::Cube {
    fn run<K: Kernel>(kernel: &K, inputs: Vec<FloatTensor<Self>>) -> Vec<FloatTensor<Self>> {
        kernel.composed::<Self>(inputs)
    }
}

impl Runs for Capture {
    fn run<K: Kernel>(kernel: &K, inputs: Vec<FloatTensor<Self>>) -> Vec<FloatTensor<Self>> {
        let described: Vec<(Shape, DType)> = inputs.iter().map(like).collect();
        operations(kernel.cost(), inputs, &kernel.scalars(), kernel.outputs(&described))
    }
}

/// What an operation computed: its outputs, of which the first has a gradient, and the tensors that its backward pass needs.
#[derive(Clone, Debug)]
pub struct Computed<B: Backend> {
    /// The outputs.
    pub outputs: Vec<FloatTensor<B>>,
    /// The tensors that [`Operation::gradient`] gets.
    pub saved: Vec<FloatTensor<B>>,
}

/// One node of burn's graph with 1 to 6 inputs. Its settings are its fields.
pub trait Operation: Clone + Debug + Send + 'static {
    /// The name of the node.
    const NAME: &'static str;

    /// Computes the outputs, and chooses what is kept. `tracked` says whether an input needs a gradient; otherwise nothing is kept.
    fn forward<B: Runs>(&self, inputs: Vec<FloatTensor<B>>, tracked: bool) -> Computed<B>;

    /// The gradient of each input, from what was kept and the gradient of the first output. A gradient that is not `wanted` may be
    /// `None`.
    fn gradient<B: Runs>(
        &self,
        saved: Vec<FloatTensor<B>>,
        gradient: FloatTensor<B>,
        wanted: &[bool],
    ) -> Vec<Option<FloatTensor<B>>>;
}

/// The inputs of an operation.
#[derive(Clone, Debug, ExtensionType)]
pub enum Inputs<B: Backend> {
    /// One tensor.
    One(FloatTensor<B>),
    /// Two tensors.
    Two(FloatTensor<B>, FloatTensor<B>),
    /// Three tensors.
    Three(FloatTensor<B>, FloatTensor<B>, FloatTensor<B>),
    /// Four tensors.
    Four(FloatTensor<B>, FloatTensor<B>, FloatTensor<B>, FloatTensor<B>),
    /// Five tensors.
    Five(FloatTensor<B>, FloatTensor<B>, FloatTensor<B>, FloatTensor<B>, FloatTensor<B>),
    /// Six tensors.
    Six(FloatTensor<B>, FloatTensor<B>, FloatTensor<B>, FloatTensor<B>, FloatTensor<B>, FloatTensor<B>),
}

impl<B: Backend> Inputs<B> {
    fn into_vec(self) -> Vec<FloatTensor<B>> {
        match self {
            Self::One(a) => vec![a],
            Self::Two(a, b) => vec![a, b],
            Self::Three(a, b, c) => vec![a, b, c],
            Self::Four(a, b, c, d) => vec![a, b, c, d],
            Self::Five(a, b, c, d, e) => vec![a, b, c, d, e],
            Self::Six(a, b, c, d, e, f) => vec![a, b, c, d, e, f],
        }
    }
}

/// All operations on a backend, with gradients or without.
#[backend_extension(Flex: cfg(feature = "flex"), Cube: cfg(feature = "cube"), Capture, Autodiff)]
pub trait Operations: Backend {
    /// Runs an operation, and adds it to the graph of its inputs if the backend has one.
    fn operation<O: Operation>(#[extension_type] inputs: Inputs<Self>, operation: O) -> Vec<FloatTensor<Self>>;
}

macro_rules! without_gradients {
    ($($(#[$feature:meta])? $backend:ident;)*) => {$(
        $(#[$feature])?
        impl Operations for burn::backend::$backend {
            fn operation<O: Operation>(inputs: Inputs<Self>, operation: O) -> Vec<FloatTensor<Self>> {
                operation.forward::<Self>(inputs.into_vec(), false).outputs
            }
        }
    )*};
}
without_gradients! {
    #[cfg(feature = "flex")] Flex;
    #[cfg(feature = "cube")] Cube;
    Capture;
}

impl<B: Runs, C: CheckpointStrategy> Operations for Autodiff<B, C> {
    fn operation<O: Operation>(inputs: Inputs<Self>, operation: O) -> Vec<FloatTensor<Self>> {
        fn sized<const N: usize>(nodes: Vec<NodeGuard>) -> [NodeGuard; N] {
            nodes.try_into().unwrap_or_else(|_| unreachable!("an operation has 1 to 6 inputs"))
        }
        let (inputs, nodes): (Vec<_>, Vec<_>) = inputs.into_vec().into_iter().map(|input| input.into_parts()).unzip();
        match nodes.len() {
            1 => node::<B, C, O, 1>(operation, inputs, sized(nodes)),
            2 => node::<B, C, O, 2>(operation, inputs, sized(nodes)),
            3 => node::<B, C, O, 3>(operation, inputs, sized(nodes)),
            4 => node::<B, C, O, 4>(operation, inputs, sized(nodes)),
            5 => node::<B, C, O, 5>(operation, inputs, sized(nodes)),
            _ => node::<B, C, O, 6>(operation, inputs, sized(nodes)),
        }
    }
}

fn node<B: Runs, C: CheckpointStrategy, O: Operation, const N: usize>(
    operation: O,
    inputs: Vec<FloatTensor<B>>,
    nodes: [NodeGuard; N],
) -> Vec<FloatTensor<Autodiff<B, C>>> {
    let mut others = vec![];
    let output = record::<B, C, _, N>(
        O::NAME,
        nodes,
        |tracked| {
            let Computed { outputs, saved } = operation.forward::<B>(inputs, tracked);
            let mut outputs = outputs.into_iter();
            let first = outputs.next().unwrap_or_else(|| unreachable!("an operation has an output"));
            others.extend(outputs);
            (first, Some((operation, saved)))
        },
        |(operation, saved), gradient, wanted| {
            let mut gradients = operation.gradient::<B>(saved, gradient, &wanted).into_iter();
            [(); N].map(|()| gradients.next().flatten())
        },
    );
    let others = others.into_iter().map(FloatTensor::<Autodiff<B, C>>::new);
    [output].into_iter().chain(others).collect()
}

/// Runs an operation on the device of its inputs, and returns its outputs.
///
/// # Panics
/// Without inputs or with more than 6. burn panics for devices for which this crate is not compiled.
pub fn run<O: Operation>(operation: O, inputs: Vec<DispatchTensor>) -> Vec<DispatchTensor> {
    let mut inputs = inputs.into_iter();
    let count = inputs.len();
    let mut next = || inputs.next().unwrap_or_else(|| panic!("an operation has 1 to 6 inputs"));
    let inputs: Inputs<Dispatch> = match count {
        1 => Inputs::One(next()),
        2 => Inputs::Two(next(), next()),
        3 => Inputs::Three(next(), next(), next()),
        4 => Inputs::Four(next(), next(), next(), next()),
        5 => Inputs::Five(next(), next(), next(), next(), next()),
        6 => Inputs::Six(next(), next(), next(), next(), next(), next()),
        _ => panic!("{count} inputs of {}, expected 1 to 6", O::NAME),
    };
    Dispatch::operation(inputs, operation)
}

/// The tensors of a list as an array.
///
/// # Panics
/// When the list has another length, which is a bug of the operation.
pub fn all<T, const N: usize>(tensors: Vec<T>) -> [T; N] {
    let count = tensors.len();
    <[T; N]>::try_from(tensors).unwrap_or_else(|_| panic!("{count} tensors, expected {N}"))
}
