//! The bias of a linear layer: added to the rows of a matrix, and its gradient, which is the sum of each column.
//!
//! These are computations inside of other operations, on devices without kernels for the whole operation.

use burn::backend::TensorMetadata;
use burn::backend::tensor::FloatTensor;
use burn::tensor::{DType, Shape};
#[cfg(feature = "cube")]
use burn_cubecl::{CubeDevice, tensor::CubeTensor};
#[cfg(feature = "cube")]
use kiln_operations::CubeKernel;
use kiln_operations::{Cost, Kernel, KernelBackend, all};

use crate::composed::Wide;

#[derive(Clone, Copy, Debug)]
enum Bias {
    /// A matrix, to each row of which the bias is added, from both.
    Add,
    /// The sum of each column of a matrix, in this dtype.
    Gradient(DType),
}

static ADD: Cost = Cost::new("kiln::bias");
static GRADIENT: Cost = Cost::new("kiln::bias_gradient");

impl Kernel for Bias {
    fn cost(&self) -> &'static Cost {
        match self {
            Self::Add => &ADD,
            Self::Gradient(_) => &GRADIENT,
        }
    }

    fn outputs(&self, inputs: &[(Shape, DType)]) -> Vec<(Shape, DType)> {
        match self {
            Self::Add => inputs[..1].to_vec(),
            Self::Gradient(dtype) => vec![(Shape::new([inputs[0].0[1]]), *dtype)],
        }
    }

    fn composed<B: KernelBackend>(&self, inputs: Vec<FloatTensor<B>>) -> Vec<FloatTensor<B>> {
        let (dtype, columns) = (inputs[0].dtype(), inputs[0].shape()[1]);
        let matrix = Wide::<B>::of(&inputs[0]);
        vec![match self {
            Self::Add => (matrix + Wide::<B>::of(&inputs[1]).reshape([1, columns])).narrow(dtype),
            Self::Gradient(dtype) => matrix.sum(&[0]).reshape([columns]).narrow(*dtype),
        }]
    }

    #[cfg(feature = "cube")]
    fn cube(&self, device: &CubeDevice, inputs: &[(Shape, DType)]) -> Option<CubeKernel<Self>> {
        (inputs[0].0.num_elements() > 0 && crate::columns::takes(device, 3)).then_some(Self::launch)
    }
}

#[cfg(feature = "cube")]
impl Bias {
    fn launch(&self, inputs: Vec<CubeTensor>) -> Vec<CubeTensor> {
        vec![match self {
            Self::Add => {
                let [matrix, bias] = all(inputs);
                crate::columns::added(matrix, bias)
            }
            Self::Gradient(dtype) => {
                let [matrix] = all(inputs);
                crate::columns::sums(matrix, *dtype)
            }
        }]
    }
}

/// Adds a bias to each row of a matrix.
pub(crate) fn add_bias<B: KernelBackend>(matrix: FloatTensor<B>, bias: FloatTensor<B>) -> FloatTensor<B> {
    let [sum] = all(B::run(&Bias::Add, vec![matrix, bias]));
    sum
}

/// The sum of each column of a matrix, in `dtype`.
pub(crate) fn bias_gradient<B: KernelBackend>(matrix: FloatTensor<B>, dtype: DType) -> FloatTensor<B> {
    let [sums] = all(B::run(&Bias::Gradient(dtype), vec![matrix]));
    sums
}
