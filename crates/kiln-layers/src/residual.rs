//! Residual addition.

use burn::backend::tensor::FloatTensor;
use burn::tensor::Tensor;
use kiln_operations::{Computed, KernelBackend, Operation, all, run};

use crate::check::{main_input, same_dtype, same_size};
use crate::error::Error;

/// x + branch: the end of a residual branch.
///
/// Both have one shape and one dtype: f32, f16 or bf16. The sum is that of burn's addition; on the CPU, 16-bit values are added by all threads.
/// Keeps nothing. Both gradients are the gradient of the sum.
///
/// # Errors
/// [`Error::Size`], [`Error::DType`], [`Error::UnsupportedDevice`] and [`Error::UnsupportedDType`].
pub fn residual<const D: usize>(x: Tensor<D>, branch: Tensor<D>) -> Result<Tensor<D>, Error> {
    main_input("the input", &x)?;
    same_dtype(("the input", x.dtype()), ("the branch", branch.dtype()))?;
    for (of_x, of_branch) in x.dims().into_iter().zip(branch.dims()) {
        same_size(("a dimension of the input", of_x), ("the same dimension of the branch", of_branch))?;
    }
    Ok(Tensor::from_dispatch(run(Residual, vec![x.into_dispatch(), branch.into_dispatch()]).remove(0)))
}

#[derive(Clone, Copy, Debug)]
struct Residual;

impl Operation for Residual {
    const NAME: &'static str = "residual addition";

    type Saved<B: KernelBackend> = ();

    fn forward<B: KernelBackend>(&self, inputs: Vec<FloatTensor<B>>, _: &[bool]) -> Computed<B, ()> {
        let [x, branch] = all(inputs);
        Computed { outputs: vec![B::add(x, branch)], saved: Some(()) }
    }

    fn gradient<B: KernelBackend>(
        &self,
        (): (),
        gradient: FloatTensor<B>,
        wanted: &[bool],
    ) -> Vec<Option<FloatTensor<B>>> {
        wanted.iter().map(|wanted| wanted.then(|| gradient.clone())).collect()
    }
}
