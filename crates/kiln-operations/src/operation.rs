//! Operations in two parts: kernels, which compute tensors on each backend, and the node of burn's graph that is made of them.

use std::fmt::Debug;

#[cfg(feature = "flex")]
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::{BoolTensor, FloatTensor, IntTensor};
use burn::backend::{Backend, Capture, DispatchTensor};
use burn::tensor::{DType, Shape};
#[cfg(feature = "cube")]
use burn_cubecl::{CubeDevice, tensor::CubeTensor};

use crate::capture::{like, operations};
use crate::cost::Cost;

/// A computation of tensors from tensors, without gradients. Its settings are its fields.
///
/// Integer and boolean tensors are among its tensors in the form in which the backend holds every tensor; see [`KernelBackend::int`].
pub trait Kernel: Clone + Debug + Send + Sync + 'static {
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
    fn composed<B: KernelBackend>(&self, inputs: Vec<FloatTensor<B>>) -> Vec<FloatTensor<B>>;

    /// Computes the outputs on burn's CPU device.
    #[cfg(feature = "flex")]
    fn flex(&self, inputs: Vec<FlexTensor>) -> Vec<FlexTensor> {
        self.composed::<burn::backend::Flex>(inputs)
    }

    /// The function that computes the outputs of such inputs with kernels in CubeCL, if there is one for this device. Otherwise they are
    /// [`composed`](Self::composed).
    #[cfg(feature = "cube")]
    fn cube(&self, _device: &CubeDevice, _inputs: &[(Shape, DType)]) -> Option<CubeKernel<Self>> {
        None
    }
}

/// A function that computes a kernel's outputs from its inputs on a CubeCL device.
#[cfg(feature = "cube")]
pub type CubeKernel<K> = fn(&K, Vec<CubeTensor>) -> Vec<CubeTensor>;

/// A backend without gradients that runs kernels. It holds tensors of numbers, integers and booleans in one form.
pub trait KernelBackend: Backend {
    /// Runs a kernel.
    fn run<K: Kernel>(kernel: &K, inputs: Vec<FloatTensor<Self>>) -> Vec<FloatTensor<Self>>;

    /// A tensor of integers among the tensors of a kernel.
    fn int(tensor: FloatTensor<Self>) -> IntTensor<Self>;

    /// A tensor of integers for the tensors of a kernel.
    fn of_int(tensor: IntTensor<Self>) -> FloatTensor<Self>;

    /// A tensor of booleans among the tensors of a kernel.
    fn bool(tensor: FloatTensor<Self>) -> BoolTensor<Self>;

    /// A tensor of booleans for the tensors of a kernel.
    fn of_bool(tensor: BoolTensor<Self>) -> FloatTensor<Self>;

    /// Whether operations add rows in their order while [running sums](crate::RunningSums) are open.
    const ADDS_IN_ORDER: bool = true;

    /// A tensor without a graph, for [`Tensor::from_dispatch`](burn::tensor::Tensor::from_dispatch).
    fn into_dispatch(tensor: FloatTensor<Self>) -> DispatchTensor;

    /// The tensor, if it is one of this backend without a graph.
    fn from_dispatch(tensor: DispatchTensor) -> Option<FloatTensor<Self>>;

    /// The tensor in another dtype.
    fn cast(tensor: FloatTensor<Self>, dtype: DType) -> FloatTensor<Self> {
        Self::float_cast(tensor, dtype.into())
    }

    /// The sum of two tensors of one shape and dtype.
    fn add(a: FloatTensor<Self>, b: FloatTensor<Self>) -> FloatTensor<Self> {
        Self::float_add(a, b)
    }

    /// The values of a tensor, if reading them does not wait for the device: on the CPU.
    fn values(_tensor: &FloatTensor<Self>) -> Option<Vec<f32>> {
        None
    }
}

/// The methods of a backend that holds tensors of all kinds in one form.
macro_rules! one_form {
    ($backend:ident) => {
        fn into_dispatch(tensor: FloatTensor<Self>) -> burn::backend::DispatchTensor {
            burn::backend::DispatchTensor {
                kind: burn::backend::DispatchTensorKind::$backend(burn::backend::BackendTensor::Float(tensor)),
                autodiff: burn::backend::DispatchAutodiffContext::Disabled,
            }
        }

        fn from_dispatch(tensor: burn::backend::DispatchTensor) -> Option<FloatTensor<Self>> {
            match tensor.kind {
                burn::backend::DispatchTensorKind::$backend(burn::backend::BackendTensor::Float(tensor)) => {
                    Some(tensor)
                }
                _ => None,
            }
        }

        fn int(tensor: FloatTensor<Self>) -> IntTensor<Self> {
            tensor
        }

        fn of_int(tensor: IntTensor<Self>) -> FloatTensor<Self> {
            tensor
        }

        fn bool(tensor: FloatTensor<Self>) -> BoolTensor<Self> {
            tensor
        }

        fn of_bool(tensor: BoolTensor<Self>) -> FloatTensor<Self> {
            tensor
        }
    };
}
#[cfg(feature = "cube")]
pub(crate) use one_form;

#[cfg(feature = "flex")]
impl KernelBackend for burn::backend::Flex {
    fn run<K: Kernel>(kernel: &K, inputs: Vec<FloatTensor<Self>>) -> Vec<FloatTensor<Self>> {
        kernel.flex(inputs)
    }

    fn cast(tensor: FloatTensor<Self>, dtype: DType) -> FloatTensor<Self> {
        crate::cpu::elementwise::cast(tensor, dtype)
    }

    fn add(a: FloatTensor<Self>, b: FloatTensor<Self>) -> FloatTensor<Self> {
        crate::cpu::elementwise::add(a, b)
    }

    fn values(tensor: &FloatTensor<Self>) -> Option<Vec<f32>> {
        Some(crate::cpu::stored::to_f32(tensor))
    }

    one_form!(Flex);
}

impl KernelBackend for Capture {
    fn run<K: Kernel>(kernel: &K, inputs: Vec<FloatTensor<Self>>) -> Vec<FloatTensor<Self>> {
        let described: Vec<(Shape, DType)> = inputs.iter().map(like).collect();
        operations(kernel.cost(), inputs, &kernel.scalars(), kernel.outputs(&described))
    }

    one_form!(Capture);
}

/// What an operation computed: its outputs, of which the first has a gradient, and what its backward pass needs.
#[derive(Clone, Debug)]
pub struct Computed<B: Backend, S> {
    /// The outputs.
    pub outputs: Vec<FloatTensor<B>>,
    /// What [`Operation::gradient`] gets. It is needed if an input needs a gradient.
    pub saved: Option<S>,
}

/// One node of burn's graph with 1 to 36 inputs. Its settings are its fields.
pub trait Operation: Clone + Debug + Send + 'static {
    /// The name of the node.
    const NAME: &'static str;

    /// What the backward pass needs.
    type Saved<B: KernelBackend>: Clone + Debug + Send + 'static;

    /// Computes the outputs, and chooses what is kept. `wanted` says for each input whether it needs a gradient. If none does, keep no
    /// clone of an input: the first kernel may then write over it.
    fn forward<B: KernelBackend>(&self, inputs: Vec<FloatTensor<B>>, wanted: &[bool]) -> Computed<B, Self::Saved<B>>;

    /// The gradient of each input, from what was kept and the gradient of the first output. A gradient that is not `wanted` may be
    /// `None`, and so may those at the end of the list.
    fn gradient<B: KernelBackend>(
        &self,
        saved: Self::Saved<B>,
        gradient: FloatTensor<B>,
        wanted: &[bool],
    ) -> Vec<Option<FloatTensor<B>>>;

    /// The inputs whose gradients are added to [running sums](crate::RunningSums), and in which pass.
    fn in_order(&self) -> InOrder {
        InOrder::Never
    }

    /// Whether the output is its first input, a parameter, in another form: [running sums](crate::RunningSums) of the parameter are then
    /// added to where the output is used. The gradient that it gets may be empty, of one element instead of as many as the output has.
    const READS_PARAMETER: bool = false;

    /// Works as [`forward`](Self::forward) while [running sums](crate::RunningSums) are open. `sums` has those of the inputs that are
    /// [`InOrder::Forward`]; they are added to and returned, one for each input that has one.
    #[allow(clippy::type_complexity)]
    fn forward_in_order<B: KernelBackend>(
        &self,
        inputs: Vec<FloatTensor<B>>,
        wanted: &[bool],
        _sums: Vec<Onto<FloatTensor<B>>>,
    ) -> (Computed<B, Self::Saved<B>>, Vec<Option<FloatTensor<B>>>) {
        (self.forward(inputs, wanted), vec![])
    }

    /// Works as [`gradient`](Self::gradient) while [running sums](crate::RunningSums) are open: sums over rows are computed one row after
    /// the other. `sums` has those of the inputs that are [`InOrder::Backward`], to be added to and returned as gradients.
    fn gradient_in_order<B: KernelBackend>(
        &self,
        saved: Self::Saved<B>,
        gradient: FloatTensor<B>,
        wanted: &[bool],
        _sums: Vec<Onto<FloatTensor<B>>>,
    ) -> Vec<Option<FloatTensor<B>>> {
        self.gradient(saved, gradient, wanted)
    }

    /// What the sums of inputs that are [`InOrder::Forward`] are multiplied by at the end, one element in f32, from what was kept and the
    /// gradient of the first output.
    fn factor<B: KernelBackend>(_saved: &Self::Saved<B>, gradient: &FloatTensor<B>) -> FloatTensor<B> {
        gradient.clone()
    }
}

/// The inputs of an operation whose gradients it can add to a sum, one row after the other.
#[derive(Clone, Copy, Debug)]
pub enum InOrder {
    /// The gradients are of their own.
    Never,
    /// Those of these inputs are added in the forward pass.
    Forward(&'static [usize]),
    /// Those of these inputs are added in the backward pass.
    Backward(&'static [usize]),
}

/// The sum that the gradient of an input is added to.
#[derive(Clone, Debug)]
pub enum Onto<T> {
    /// There is none: the gradient is of its own.
    Apart,
    /// A sum that begins with this gradient.
    Begin,
    /// A sum that exists.
    Sum(T),
}

impl<T> Onto<T> {
    /// Whether there is no sum.
    pub fn is_apart(&self) -> bool {
        matches!(self, Self::Apart)
    }

    /// The sum, if it exists.
    pub fn sum(self) -> Option<T> {
        match self {
            Self::Sum(sum) => Some(sum),
            _ => None,
        }
    }
}

/// An operation with one input that costs less to compute again than to keep, such as an activation. It keeps its input. With burn's
/// balanced checkpointing its output is computed again, and so is its input if possible.
pub trait LightOperation: Clone + Debug + Send + 'static {
    /// The name of the node.
    const NAME: &'static str;

    /// Computes the output.
    fn forward<B: KernelBackend>(&self, x: FloatTensor<B>) -> FloatTensor<B>;

    /// The gradient of the input, from the input and the gradient of the output.
    fn gradient<B: KernelBackend>(&self, x: FloatTensor<B>, gradient: FloatTensor<B>) -> FloatTensor<B>;
}

/// The tensors of a list as an array.
///
/// # Panics
/// When the list has another length, which is a bug of the operation.
pub fn all<T, const N: usize>(tensors: Vec<T>) -> [T; N] {
    let count = tensors.len();
    <[T; N]>::try_from(tensors).unwrap_or_else(|_| panic!("{count} tensors, expected {N}"))
}
