//! One adapter of one weight, and the weight that results from it.
// I inputs, O outputs, R rank

use burn::module::{Module, Param, Reparameterization};
use burn::tensor::{DType, Tensor};

/// A low-rank change of a frozen weight: `V + s A B` (LoRA, Hu et al. 2022, arXiv 2106.09685), and with a magnitude
/// `m (V + s A B) / ||V + s A B||` for each output (DoRA, Liu et al. 2024, arXiv 2402.09353). [`LowRank`](crate::LowRank) attaches it.
///
/// burn ships LoRA as `Lora`. This crate has its own because burn's has another initialisation of A than peft, no DoRA, and a scale that
/// visitors do not see, so that adapters could not be taken out of a model.
///
/// A base that is quantised is dequantised. The sum is computed in the dtype of the factors and returned in the dtype of the base, if
/// that is one of floating point.
#[derive(Module, Debug)]
pub struct Adapter {
    /// A, `[I, R]`.
    pub a: Param<Tensor<2>>,
    /// B, `[R, O]`.
    pub b: Param<Tensor<2>>,
    /// The norm of each output's weights, `[O]`; without it the adapter is a LoRA.
    pub magnitude: Option<Param<Tensor<1>>>,
    /// The factor s of the product, `[1]`. It is not trained. It is a parameter so that a record of the model contains it.
    pub scale: Param<Tensor<1>>,
}

impl Reparameterization for Adapter {
    const NAME: &'static str = "low_rank";

    fn apply<const D: usize>(&self, base: Tensor<D>) -> Tensor<D> {
        let (shape, dtype) = (base.shape(), base.dtype());
        let a_ir = self.a.val();
        let [inputs, outputs] = [a_ir.dims()[0], self.b.dims()[1]];
        let base_io = dense(base).cast(a_ir.dtype()).reshape([inputs, outputs]);
        let changed = base_io + a_ir.matmul(self.b.val()) * self.scale.val().unsqueeze();
        let changed = match &self.magnitude {
            // The norm is a constant of the backward pass: section 4.3 of the paper.
            Some(magnitude) => {
                let norm = norms(changed.clone().detach());
                changed * (magnitude.val() / norm).unsqueeze()
            }
            None => changed,
        };
        let changed = changed.reshape(shape);
        if dtype.is_float() { changed.cast(dtype) } else { changed }
    }
}

/// The values of a weight that may be quantised.
pub(super) fn dense<const D: usize>(weight: Tensor<D>) -> Tensor<D> {
    match weight.dtype() {
        DType::QFloat(_) => weight.dequantize(),
        _ => weight,
    }
}

/// The norm of each output's weights: `[I, O]` to `[O]`. An output whose weights are all 0 has the least positive norm, so that a
/// division by it gives 0.
pub(super) fn norms(weight_io: Tensor<2>) -> Tensor<1> {
    let outputs = weight_io.dims()[1];
    weight_io.square().sum_dim(0).sqrt().reshape([outputs]).clamp_min(f32::MIN_POSITIVE)
}
