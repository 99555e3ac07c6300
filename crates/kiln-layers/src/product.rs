//! A product of 16-bit matrices with a result in f32, as a computation inside of other operations on devices without kernels for the whole
//! operation.

use burn::backend::TensorMetadata;
use burn::backend::tensor::FloatTensor;
use burn::tensor::{DType, Shape};
#[cfg(feature = "cube")]
use burn_cubecl::kernel::matmul::{MatmulStrategy, matmul};
#[cfg(feature = "cube")]
use burn_cubecl::{CubeDevice, tensor::CubeTensor};
#[cfg(feature = "cube")]
use kiln_operations::CubeKernel;
use kiln_operations::{Cost, Kernel, KernelBackend, all};

use crate::composed::Wide;

/// A product of two matrices in one dtype, whose sums are f32, in this dtype.
#[derive(Clone, Copy, Debug)]
struct Product(DType);

static COST: Cost = Cost::new("kiln::product");

impl Kernel for Product {
    fn cost(&self) -> &'static Cost {
        &COST
    }

    fn outputs(&self, inputs: &[(Shape, DType)]) -> Vec<(Shape, DType)> {
        vec![(Shape::new([inputs[0].0[0], inputs[1].0[1]]), self.0)]
    }

    fn composed<B: KernelBackend>(&self, inputs: Vec<FloatTensor<B>>) -> Vec<FloatTensor<B>> {
        vec![Wide::<B>::of(&inputs[0]).matmul(Wide::of(&inputs[1])).narrow(self.0)]
    }

    #[cfg(feature = "cube")]
    fn cube(&self, _: &CubeDevice, inputs: &[(Shape, DType)]) -> Option<CubeKernel<Self>> {
        // burn's own products of f32 matrices have f32 results.
        let has_values = inputs.iter().all(|(shape, _)| shape.num_elements() > 0);
        (has_values && inputs[0].1 != DType::F32).then_some(Self::launch)
    }
}

#[cfg(feature = "cube")]
impl Product {
    fn launch(&self, inputs: Vec<CubeTensor>) -> Vec<CubeTensor> {
        let [left, right] = all(inputs);
        let product = matmul(left, right, None, MatmulStrategy::default(), self.0);
        vec![product.unwrap_or_else(|error| unreachable!("burn has a kernel for each product: {error:?}"))]
    }
}

/// A product of two matrices of one dtype, whose sums are f32, in `dtype`.
pub(crate) fn product<B: KernelBackend>(left: FloatTensor<B>, right: FloatTensor<B>, dtype: DType) -> FloatTensor<B> {
    debug_assert_eq!(left.dtype(), right.dtype());
    let [product] = all(B::run(&Product(dtype), vec![left, right]));
    product
}
