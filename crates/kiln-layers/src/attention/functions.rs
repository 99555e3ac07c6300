//! Attention that never has the whole matrix of scores in memory.

use burn::backend::Dispatch;
use burn::tensor::{Device, Tensor};
use kiln_operations::run;

use super::graph::{GroupedAttention, SelfAttention};
use super::options::{AttentionOptions, setting};
use super::terms::{Sizes, Terms};
use crate::check::{main_input, same_dtype, same_size};
use crate::error::Error;

/// Exact self-attention, softmax(scale Q Kᵀ) V for each head, in memory that grows with the length and not with its square
/// (FlashAttention-2, Dao 2023).
///
/// `qkv` is `[batch, time, 3 width]` in f32, f16 or bf16: the queries of all heads, then the keys, then the values, as one linear layer
/// makes them. The result is `[batch, time, width]` in the same dtype. `heads` must divide `width`. Computes in f32. `options` is a
/// [`Mask`](crate::Mask) or [`AttentionOptions`]. Keeps `qkv`, the output and one f32 value for each query of each head.
///
/// # Errors
/// [`Error::InvalidSetting`] for a width that `3 heads` does not divide and for options out of range, [`Error::Size`] for masks of other
/// sizes, [`Error::UnsupportedDevice`] and [`Error::UnsupportedDType`].
pub fn self_attention(qkv: Tensor<3>, heads: usize, options: impl Into<AttentionOptions>) -> Result<Tensor<3>, Error> {
    main_input("the input", &qkv)?;
    let terms = packed_terms(qkv.dims(), heads, options.into(), &qkv.device())?;
    let (settings, masks) = terms.into_inputs();
    let inputs = [qkv.into_dispatch()].into_iter().chain(masks).collect();
    Ok(Tensor::from_dispatch(run(SelfAttention(settings), inputs).remove(0)))
}

/// Checks a call with packed queries, keys and values `[samples, time, packed]`, and returns its masks, dropout and settings.
pub(crate) fn packed_terms(
    [samples, time, packed]: [usize; 3],
    heads: usize,
    options: AttentionOptions,
    device: &Device,
) -> Result<Terms<Dispatch>, Error> {
    if heads == 0 || packed == 0 || packed % (3 * heads) != 0 {
        let expected = "a positive number whose triple divides the packed width of queries, keys and values";
        return Err(setting("the number of heads", heads.to_string(), expected));
    }
    let sizes = Sizes { samples, heads, kv_heads: heads, time, keys: time, depth: packed / 3 / heads };
    options.checked(sizes, device)
}

/// Exact attention, softmax(scale Q Kᵀ) V for each head, in memory that grows with the lengths and not with their product
/// (FlashAttention-2, Dao 2023).
///
/// `queries` are `[batch, heads, time, depth]` in f32, f16 or bf16. `keys` and `values` are `[batch, kv_heads, keys, depth]` in the same
/// dtype. `kv_heads` must divide `heads`: each head of keys and values serves `heads / kv_heads` consecutive heads of queries (grouped
/// queries, Ainslie et al. 2023). The result is `[batch, heads, time, depth]`. It lies in memory as `[batch, time, heads, depth]`, so
/// that `swap_dims(1, 2).reshape([batch, time, heads * depth])` copies nothing. Inputs may be such views as well. Computes in f32.
/// `options` is a [`Mask`](crate::Mask) or [`AttentionOptions`]. Keeps the inputs, the output and one f32 value for each query of each
/// head.
///
/// # Errors
/// [`Error::Size`] and [`Error::DType`] for inputs that differ, [`Error::InvalidSetting`] for heads that do not divide and for options out
/// of range, [`Error::UnsupportedDevice`] and [`Error::UnsupportedDType`].
pub fn attention(
    queries: Tensor<4>,
    keys: Tensor<4>,
    values: Tensor<4>,
    options: impl Into<AttentionOptions>,
) -> Result<Tensor<4>, Error> {
    main_input("the queries", &queries)?;
    same_dtype(("the queries", queries.dtype()), ("the keys", keys.dtype()))?;
    same_dtype(("the queries", queries.dtype()), ("the values", values.dtype()))?;
    let [samples, heads, time, depth] = queries.dims();
    let [key_samples, kv_heads, count, key_depth] = keys.dims();
    let [value_samples, value_heads, value_count, value_depth] = values.dims();
    same_size(("the number of samples of the queries", samples), ("that of the keys", key_samples))?;
    same_size(("the number of samples of the queries", samples), ("that of the values", value_samples))?;
    same_size(("the depth of the queries", depth), ("that of the keys", key_depth))?;
    same_size(("the depth of the queries", depth), ("that of the values", value_depth))?;
    same_size(("the number of heads of the keys", kv_heads), ("that of the values", value_heads))?;
    same_size(("the number of keys", count), ("the number of values", value_count))?;
    let sizes = Sizes { samples, heads, kv_heads, time, keys: count, depth };
    let (settings, masks) = grouped_terms(sizes, options.into(), &queries.device())?.into_inputs();
    let inputs = [queries, keys, values].map(Tensor::into_dispatch).into_iter().chain(masks).collect();
    Ok(Tensor::from_dispatch(run(GroupedAttention(settings), inputs).remove(0)))
}

/// Checks a call with separate queries, keys and values, and returns its masks, dropout and settings.
pub(crate) fn grouped_terms(
    sizes: Sizes,
    options: AttentionOptions,
    device: &Device,
) -> Result<Terms<Dispatch>, Error> {
    let Sizes { heads, kv_heads, depth, .. } = sizes;
    if depth == 0 {
        return Err(setting("the depth", depth.to_string(), "a positive number"));
    }
    if heads == 0 || kv_heads == 0 || heads % kv_heads != 0 {
        let value = format!("{kv_heads} beside {heads} of the queries");
        return Err(setting("the number of heads of the keys", value, "a divisor of the queries' heads"));
    }
    options.checked(sizes, device)
}
