//! A norm, the linear layer that makes queries, keys and values, and self-attention in one operation, on burn's modules.

use burn::backend::Dispatch;
use burn::nn::Linear;
use burn::tensor::Tensor;

use super::graph::ProjectedAttentionLayer;
use crate::attention::{AttentionOptions, packed_terms};
use crate::error::Error;
use crate::linear::{Input, parameters};
use crate::norm::Norm;

/// A norm, the linear layer for queries, keys and values, and self-attention in one operation. It has the bits of
/// [`self_attention`](crate::self_attention)`(`[`norm_linear`](crate::norm_linear)`(norm, qkv, x), heads, options)`.
///
/// `x` is `[batch, time, width]`. `qkv` has `width` inputs and three times as many outputs as the result `[batch, time, outputs]`. Keeps
/// `x`, the result, and one f32 value for each query of each head. Queries, keys and values, three times the size of the result, are
/// computed again in the backward pass.
///
/// # Errors
/// Those of [`norm_linear`](crate::norm_linear) and [`self_attention`](crate::self_attention).
pub fn norm_self_attention<'a>(
    norm: impl Into<Norm<'a>>,
    qkv: &Linear,
    x: Tensor<3>,
    heads: usize,
    options: impl Into<AttentionOptions>,
) -> Result<Tensor<3>, Error> {
    projected_attention(Input::Norm(norm.into()), qkv, x, heads, options.into())
}

/// Attention with the queries, keys and values that a linear layer computes from its input.
pub(crate) fn projected_attention(
    input: Input<'_>,
    qkv: &Linear,
    x: Tensor<3>,
    heads: usize,
    options: AttentionOptions,
) -> Result<Tensor<3>, Error> {
    let parameters = parameters(input, qkv, &x)?;
    let [samples, time, _] = x.dims();
    let ([_, packed], device) = (qkv.weight.val().dims(), x.device());
    let terms = packed_terms([samples, time, packed], heads, options, &device)?;
    let output = <Dispatch as ProjectedAttentionLayer>::projected_attention_layer(x.into_dispatch(), parameters, terms);
    Ok(Tensor::from_dispatch(output))
}
