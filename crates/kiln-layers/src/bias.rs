//! The gradient of the bias of a linear layer: the sum of each column of a matrix.
//!
//! It is a computation inside of other operations, on devices without kernels for the whole operation.

use burn::backend::TensorMetadata;
use burn::backend::tensor::FloatTensor;
use burn::tensor::{DType, Shape};
#[cfg(feature = "cube")]
use burn_cubecl::{CubeDevice, tensor::CubeTensor};
#[cfg(feature = "cube")]
use kiln_operations::CubeKernel;
use kiln_operations::{Cost, Kernel, KernelBackend, all};

use crate::composed::Wide;

/// The sum of each column of a matrix, in this dtype.
#[derive(Clone, Copy, Debug)]
struct BiasGradient(DType);

static COST: Cost = Cost::new("kiln::bias_gradient");

impl Kernel for BiasGradient {
    fn cost(&self) -> &'static Cost {
        &COST
    }

    fn outputs(&self, inputs: &[(Shape, DType)]) -> Vec<(Shape, DType)> {
        vec![(Shape::new([inputs[0].0[1]]), self.0)]
    }

    fn composed<B: KernelBackend>(&self, inputs: Vec<FloatTensor<B>>) -> Vec<FloatTensor<B>> {
        let columns = inputs[0].shape()[1];
        vec![Wide::<B>::of(&inputs[0]).sum(&[0]).reshape([columns]).narrow(self.0)]
    }

    #[cfg(feature = "cube")]
    fn cube(&self, device: &CubeDevice, inputs: &[(Shape, DType)]) -> Option<CubeKernel<Self>> {
        (inputs[0].0.num_elements() > 0 && crate::columns::takes(device, 3)).then_some(Self::launch)
    }
}

#[cfg(feature = "cube")]
impl BiasGradient {
    fn launch(&self, inputs: Vec<CubeTensor>) -> Vec<CubeTensor> {
        let [matrix] = all(inputs);
        vec![crate::columns::sums(matrix, self.0)]
    }
}

/// The sum of each column of a matrix, in `dtype`.
pub(crate) fn bias_gradient<B: KernelBackend>(matrix: FloatTensor<B>, dtype: DType) -> FloatTensor<B> {
    let [sums] = all(B::run(&BiasGradient(dtype), vec![matrix]));
    sums
}
