//! Parameters that are read in another dtype.

use burn::backend::TensorMetadata;
use burn::backend::tensor::FloatTensor;
use burn::tensor::{DType, Shape, Tensor};

use crate::dispatch::run;
use crate::operation::{Computed, KernelBackend, Operation};

/// A parameter in `dtype`, as [`Tensor::cast`]. While [running sums](crate::RunningSums) are open, operations that use it add to the
/// parameter's sum in f32, without a gradient in `dtype` between.
///
/// ```
/// use burn::tensor::{DType, Device, Tensor};
///
/// let weight = Tensor::<2>::ones([2, 2], &Device::flex().autodiff()).require_grad();
/// assert_eq!(kiln_operations::read_parameter(weight, DType::BF16).dtype(), DType::BF16);
/// ```
pub fn read_parameter<const D: usize>(parameter: Tensor<D>, dtype: DType) -> Tensor<D> {
    if parameter.dtype() == dtype || !(crate::adds_in_order() || is_on_cpu(&parameter)) {
        return parameter.cast(dtype);
    }
    Tensor::from_dispatch(run(ReadAs(dtype), vec![parameter.into_dispatch()]).remove(0))
}

/// Whether a tensor without a graph is on burn's CPU device, where [the operation](KernelBackend::cast) is faster than burn's.
fn is_on_cpu<const D: usize>(_tensor: &Tensor<D>) -> bool {
    #[cfg(feature = "flex")]
    return !_tensor.device().is_autodiff()
        && matches!(_tensor.device().as_dispatch(), burn::backend::DispatchDevice::Flex(_));
    #[cfg(not(feature = "flex"))]
    return false;
}

#[derive(Clone, Copy, Debug)]
struct ReadAs(DType);

impl Operation for ReadAs {
    const NAME: &'static str = "read";
    const READS_PARAMETER: bool = true;

    /// The parameter's shape and dtype.
    type Saved<B: KernelBackend> = (Shape, DType);

    fn forward<B: KernelBackend>(&self, mut inputs: Vec<FloatTensor<B>>, _: &[bool]) -> Computed<B, (Shape, DType)> {
        let parameter = inputs.remove(0);
        let saved = (parameter.shape(), parameter.dtype());
        Computed { outputs: vec![B::cast(parameter, self.0)], saved: Some(saved) }
    }

    fn gradient<B: KernelBackend>(
        &self,
        (shape, dtype): (Shape, DType),
        gradient: FloatTensor<B>,
        _: &[bool],
    ) -> Vec<Option<FloatTensor<B>>> {
        let is_empty = gradient.shape() != shape;
        vec![(!is_empty).then(|| B::cast(gradient, dtype))]
    }
}
