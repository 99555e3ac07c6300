//! A norm, the linear layers that make queries, keys and values, rotary positions and grouped attention in one operation, on burn's modules.

use burn::backend::TensorMetadata;
use burn::backend::tensor::FloatTensor;
use burn::nn::{Linear, RmsNorm};
use burn::tensor::{Shape, Tensor};
use kiln_operations::{Computed, InOrder, KernelBackend, Onto, Operation, all, run};

use crate::attention::{AttentionOptions, Settings, Sizes, grouped, grouped_backward, grouped_terms};
use crate::check::{main_input, same_size};
use crate::error::Error;
use crate::in_parts::{Cut, InParts, OfParts, is_long};
use crate::linear::{Appended, PARAMETERS, Parts, nothing, parameters};
use crate::norm::{Norm, NormSettings, row_norm, row_norm_gradients};
use crate::normed_layers::{NormedLayers, Wanted, layer_inputs, normed_gradients, normed_layers};
use crate::rotary::{Direction, RotaryOptions, rotated_heads};

/// The layers before the attention of a decoder's block.
#[derive(Clone, Copy, Debug)]
pub struct Projections<'a> {
    /// The norm of the input.
    pub norm: &'a RmsNorm,
    /// The layer of the queries: `heads` times the depth outputs.
    pub query: &'a Linear,
    /// The layer of the keys: a number of heads that divides `heads`, times the depth.
    pub key: &'a Linear,
    /// The layer of the values, as large as that of the keys.
    pub value: &'a Linear,
    /// Norms of each head of the queries and of the keys, as in Qwen 3, before they are rotated.
    pub head_norms: Option<[&'a RmsNorm; 2]>,
    /// The positions of queries and keys.
    pub rotary: RotaryOptions,
    /// Heads of the queries.
    pub heads: usize,
}

/// An RMS norm, linear layers for queries, keys and values, rotary positions and grouped attention in one operation, as in the blocks of Llama.
/// The output has the bits of [`norm_linear`](crate::norm_linear), [`rotary`](crate::rotary) and [`attention`](crate::attention) one after
/// the other.
///
/// `x` is `[batch, time, width]` in f32, f16 or bf16. The result is `[batch, time, heads * depth]`, for the linear layer that joins the heads.
/// `options` is a [`Mask`](crate::Mask) or [`AttentionOptions`]. Keeps `x`, the result, one f32 value for each query of each head, and a boolean
/// mask if there is one. Queries, keys and values are computed again in the backward pass. Of a long sequence they exist for one head of keys
/// and values at a time, as in [`norm_self_attention`](crate::norm_self_attention).
///
/// # Errors
/// Those of [`norm_linear`](crate::norm_linear) for each layer, and those of [`rotary`](crate::rotary) and [`attention`](crate::attention).
pub fn norm_grouped_attention(
    projections: Projections<'_>,
    x: Tensor<3>,
    options: impl Into<AttentionOptions>,
) -> Result<Tensor<3>, Error> {
    main_input("the input", &x)?;
    let Projections { norm, query, key, value, head_norms, rotary, heads } = projections;
    let ([samples, time, width], device) = (x.dims(), x.device());
    let (norm_weight, _, norm) = Norm::from(norm).parameters(width)?;
    let dtype = x.dtype();
    let layer = |layer| parameters(layer, width, (&device, dtype));
    let layers = [layer(query)?, layer(key)?, layer(value)?];
    let [of_query, of_key, of_value] = layers.each_ref().map(|layer| layer.weight.dims()[1]);
    same_size(("the number of outputs of the keys", of_key), ("that of the values", of_value))?;
    let not_divided = |name, value: usize, expected| Error::InvalidSetting { name, value: value.to_string(), expected };
    if heads == 0 || !of_query.is_multiple_of(heads) {
        return Err(not_divided("the number of heads", heads, "a divisor of the outputs of the queries"));
    }
    let depth = of_query / heads;
    if depth == 0 || !of_key.is_multiple_of(depth) {
        return Err(not_divided("the number of outputs of the keys", of_key, "a multiple of the depth of a head"));
    }
    rotary.check(depth)?;
    let sizes = Sizes { samples, heads, kv_heads: of_key / depth, time, keys: time, depth };
    let terms = grouped_terms(sizes, options.into(), &device)?;
    let by_heads = sizes.kv_heads > 1 && is_long(time) && terms.are_of_all_heads();
    let (settings, masks) = terms.into_inputs();
    let (mut head_weights, mut head_settings) = (vec![], vec![]);
    for norm in head_norms.into_iter().flatten() {
        let (weight, _, settings) = Norm::from(norm).parameters(depth)?;
        head_weights.push(weight.into_dispatch());
        head_settings.push(settings);
    }
    let (layers, parts) = layer_inputs(layers);
    let inputs = [x.into_dispatch(), norm_weight.into_dispatch()].into_iter().chain(layers);
    let mut inputs: Vec<_> = inputs.chain(head_weights).chain(masks).collect();
    let count = inputs.len();
    let appended = Appended::append(&mut inputs, parts);
    let rows = appended.rows_of_outputs(1).filter(|_| by_heads);
    let operation = NormGroupedAttention { norm, head_norms: head_settings, rotary, settings, appended };
    let [y] = all(match rows {
        Some(of_parts) => {
            let groups = sizes.kv_heads;
            let mut rows = vec![0; count];
            rows[FIRST_WEIGHT..OF_LAYERS].fill(1);
            rows.extend(of_parts);
            let settings = Settings { heads: heads / groups, ..operation.settings };
            let cut = Cut::OfHeads { groups, rows };
            run(InParts { operation: NormGroupedAttention { settings, ..operation }, cut }, inputs)
        }
        None => run(operation, inputs),
    });
    Ok(Tensor::from_dispatch(y))
}

/// Inputs are x, the norm's weight, weight and bias of each of the three layers, the weights of the norms of heads, if there are any, the
/// masks of the attention, and the parts of the layers' weights.
#[derive(Clone, Debug)]
struct NormGroupedAttention {
    norm: NormSettings,
    /// Those of queries and keys, or none.
    head_norms: Vec<NormSettings>,
    rotary: RotaryOptions,
    settings: Settings,
    appended: Appended,
}

/// What the backward pass needs.
#[derive(Clone, Debug)]
struct Saved<T> {
    /// x, the norm's weight, and weight and bias of each layer.
    layers: Vec<T>,
    /// The parts of their weights.
    parts: Vec<Parts<T>>,
    /// Weights of the norms of heads.
    head_norms: Vec<T>,
    masks: Vec<T>,
    output: T,
    log_sums: T,
}

/// The number of inputs of norm and layers.
const OF_LAYERS: usize = 8;
/// The first layer's weight among them.
const FIRST_WEIGHT: usize = 2;

impl Operation for NormGroupedAttention {
    const NAME: &'static str = "norm and grouped attention";

    type Saved<B: KernelBackend> = Saved<FloatTensor<B>>;

    fn forward<B: KernelBackend>(&self, inputs: Vec<FloatTensor<B>>, wanted: &[bool]) -> Computed<B, Self::Saved<B>> {
        let Listed { layers, parts, head_norms, masks } = self.listed::<B>(inputs);
        let kept = wanted.contains(&true).then(|| (layers.clone(), parts.clone()));
        let Heads { heads, .. } = self.heads::<B>(layers, parts, &head_norms);
        let [output, log_sums] = grouped::<B>(heads, &self.settings, &masks);
        let output = joined::<B>(output);
        let saved =
            kept.map(|(layers, parts)| Saved { layers, parts, head_norms, masks, output: output.clone(), log_sums });
        Computed { outputs: vec![output], saved }
    }

    fn gradient<B: KernelBackend>(
        &self,
        saved: Self::Saved<B>,
        gradient: FloatTensor<B>,
        wanted: &[bool],
    ) -> Vec<Option<FloatTensor<B>>> {
        self.gradients::<B>(saved, gradient, wanted, None)
    }

    fn in_order(&self) -> InOrder {
        InOrder::Backward(PARAMETERS)
    }

    fn gradient_in_order<B: KernelBackend>(
        &self,
        saved: Self::Saved<B>,
        gradient: FloatTensor<B>,
        wanted: &[bool],
        sums: Vec<Onto<FloatTensor<B>>>,
    ) -> Vec<Option<FloatTensor<B>>> {
        self.gradients::<B>(saved, gradient, wanted, Some(sums))
    }
}

impl OfParts for NormGroupedAttention {
    const KEEPS_OUTPUT: bool = true;

    fn kept<B: KernelBackend>(saved: Self::Saved<B>) -> Option<FloatTensor<B>> {
        Some(saved.log_sums)
    }

    fn saved<B: KernelBackend>(
        &self,
        inputs: Vec<FloatTensor<B>>,
        output: Option<FloatTensor<B>>,
        kept: Option<FloatTensor<B>>,
    ) -> Option<Self::Saved<B>> {
        let Listed { layers, parts, head_norms, masks } = self.listed::<B>(inputs);
        output.zip(kept).map(|(output, log_sums)| Saved { layers, parts, head_norms, masks, output, log_sums })
    }
}

/// The inputs.
struct Listed<T> {
    /// x, the norm's weight, and weight and bias of each layer.
    layers: Vec<T>,
    parts: Vec<Parts<T>>,
    head_norms: Vec<T>,
    masks: Vec<T>,
}

/// Queries, keys and values `[batch, heads, time, depth]`, and what they were computed from.
struct Heads<B: KernelBackend> {
    heads: [FloatTensor<B>; 3],
    layers: NormedLayers<FloatTensor<B>>,
    /// Inputs `[batch, time, heads, depth]` and statistics of the norms of heads.
    normed: Vec<[FloatTensor<B>; 2]>,
}

impl NormGroupedAttention {
    fn listed<B: KernelBackend>(&self, mut layers: Vec<FloatTensor<B>>) -> Listed<FloatTensor<B>> {
        let parts = self.appended.take(&mut layers);
        let mut head_norms = layers.split_off(OF_LAYERS);
        let masks = head_norms.split_off(self.head_norms.len());
        Listed { layers, parts, head_norms, masks }
    }

    fn heads<B: KernelBackend>(
        &self,
        layers: Vec<FloatTensor<B>>,
        parts: Vec<Parts<FloatTensor<B>>>,
        head_norms: &[FloatTensor<B>],
    ) -> Heads<B> {
        let (projected, layers) = normed_layers::<B>(layers, parts, self.norm);
        let depth = projected[0].shape()[2] / self.settings.heads;
        let mut normed = vec![];
        let heads = projected.into_iter().enumerate().map(|(index, projected)| {
            let mut heads = split::<B>(projected, depth);
            if let Some((&settings, weight)) = self.head_norms.get(index).zip(head_norms.get(index)) {
                let [y, statistics] = row_norm::<B>(heads.clone(), weight.clone(), nothing::<B>(weight), settings);
                normed.push([heads, statistics]);
                heads = y;
            }
            if index < 2 {
                heads = rotated_heads::<B>(heads, self.rotary, Direction::Forward);
            }
            B::float_swap_dims(heads, 1, 2)
        });
        let heads = all(heads.collect());
        Heads { heads, layers, normed }
    }

    fn gradients<B: KernelBackend>(
        &self,
        Saved { layers, parts, head_norms, masks, output, log_sums }: Saved<FloatTensor<B>>,
        gradient: FloatTensor<B>,
        wanted: &[bool],
        mut sums: Option<Vec<Onto<FloatTensor<B>>>>,
    ) -> Vec<Option<FloatTensor<B>>> {
        let mut wanted = wanted.to_vec();
        let (wanted_changes, change_sums) =
            (self.appended.take_changes(&mut wanted), sums.as_mut().map(|sums| self.appended.take_changes(sums)));
        let Heads { heads: [queries, keys, values], layers, mut normed } = self.heads::<B>(layers, parts, &head_norms);
        let (depth, masks_without_gradients) = (queries.shape()[3], vec![None; masks.len()]);
        let by_heads = |tensor| B::float_swap_dims(split::<B>(tensor, depth), 1, 2);
        let saved = [queries, keys, values, by_heads(output), log_sums];
        let of_heads = grouped_backward::<B>(saved, by_heads(gradient), &self.settings, masks, [true; 3]);
        let mut head_sums = sums.as_mut().map(|sums| sums.split_off(OF_LAYERS).into_iter());
        let mut of_head_norms = vec![];
        normed.reverse();
        let of_outputs = of_heads.into_iter().enumerate().map(|(index, of_heads)| {
            let mut of_heads = B::float_swap_dims(of_heads, 1, 2);
            if index < 2 {
                of_heads = rotated_heads::<B>(of_heads, self.rotary, Direction::Back);
            }
            if let (Some(&settings), Some([x, statistics]), Some(weight)) =
                (self.head_norms.get(index), normed.pop(), head_norms.get(index))
            {
                let sum = head_sums.as_mut().and_then(Iterator::next);
                let sums = sum.map(|sum| [Onto::Apart, sum, Onto::Apart]);
                let saved = [x, statistics, weight.clone()];
                let flags = [true, wanted[OF_LAYERS + index], false];
                let [of_x, of_weight, _] = row_norm_gradients::<B>(saved, of_heads.clone(), settings, flags, sums);
                of_head_norms.push(of_weight);
                of_heads = of_x.unwrap_or(of_heads);
            }
            let [samples, time, heads, depth] = of_heads.shape().dims();
            B::float_reshape(of_heads, Shape::new([samples, time, heads * depth]))
        });
        let of_outputs = of_outputs.collect();
        wanted.truncate(OF_LAYERS);
        let wanted = Wanted { inputs: wanted, changes: wanted_changes, sums: sums.zip(change_sums) };
        let (mut made, of_changes) = normed_gradients::<B>(layers, of_outputs, wanted);
        made.extend(of_head_norms);
        made.extend(masks_without_gradients);
        made.extend(of_changes.into_iter().flatten().flatten());
        made
    }
}

/// Turns `[batch, time, heads * depth]` into `[batch, time, heads, depth]`.
fn split<B: KernelBackend>(tensor: FloatTensor<B>, depth: usize) -> FloatTensor<B> {
    let [samples, time, width] = tensor.shape().dims();
    B::float_reshape(tensor, Shape::new([samples, time, width / depth, depth]))
}

/// Turns `[batch, heads, time, depth]` into `[batch, time, heads * depth]`.
fn joined<B: KernelBackend>(tensor: FloatTensor<B>) -> FloatTensor<B> {
    let [samples, heads, time, depth] = tensor.shape().dims();
    B::float_reshape(B::float_swap_dims(tensor, 1, 2), Shape::new([samples, time, heads * depth]))
}
