//! A norm, the linear layer that makes queries, keys and values, and self-attention in one operation, on burn's modules.

use burn::backend::tensor::FloatTensor;
use burn::nn::Linear;
use burn::tensor::Tensor;
use kiln_operations::{Computed, InOrder, KernelBackend, Onto, Operation, all, run};

use crate::attention::{AttentionOptions, Settings, packed, packed_backward, packed_terms};
use crate::error::Error;
use crate::in_parts::{Cut, InParts, OfParts, is_long};
use crate::linear::{
    Appended, Input, LayerWeight, LinearSaved, PARAMETERS, Parts, Prepared, Prologue, changed_linear, layer_gradients,
    prepared,
};
use crate::norm::Norm;

/// A norm, the linear layer for queries, keys and values, and self-attention in one operation. It has the bits of
/// [`self_attention`](crate::self_attention)`(`[`norm_linear`](crate::norm_linear)`(norm, qkv, x), heads, options)`.
///
/// `x` is `[batch, time, width]`. `qkv` has `width` inputs and three times as many outputs as the result `[batch, time, outputs]`. Keeps
/// `x`, the result, and one f32 value for each query of each head. Queries, keys and values, three times the size of the result, are
/// computed again in the backward pass.
///
/// Of a sequence of more than 8,192 positions, queries, keys and values of one head exist at a time, unless the masks of heads differ, weights
/// are dropped, the layer's weight is stored in codes, or rows are added [in their order](kiln_operations::RunningSums).
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
    let ([samples, time, _], [_, packed], device) = (x.dims(), qkv.weight.dims(), x.device());
    let Prepared { prologue, mut inputs, parts } = prepared(input, qkv, x)?;
    let terms = packed_terms([samples, time, packed], heads, options, &device)?;
    let by_heads = heads > 1 && is_long(time) && terms.are_of_all_heads();
    let (settings, masks) = terms.into_inputs();
    inputs.extend(masks);
    let count = inputs.len();
    let appended = Appended::append(&mut inputs, [parts]);
    let rows = appended.rows_of_outputs(3).filter(|_| by_heads);
    let operation = ProjectedAttention { prologue, settings, appended };
    let [y] = all(match rows {
        Some(of_parts) => {
            let mut rows = vec![0; count];
            rows[WEIGHT..OF_LAYER].fill(3);
            rows.extend(of_parts);
            let settings = Settings { heads: 1, ..operation.settings };
            let cut = Cut::OfHeads { groups: heads, rows };
            run(InParts { operation: ProjectedAttention { settings, ..operation }, cut }, inputs)
        }
        None => run(operation, inputs),
    });
    Ok(Tensor::from_dispatch(y))
}

/// The inputs of the linear layer: x, and weight and bias of the norm and of the layer.
const OF_LAYER: usize = 5;
/// The layer's weight among them, which its bias follows.
const WEIGHT: usize = 3;

/// The prologue of the linear layer, and the settings of the attention. Inputs are x, the norm's weight and bias, the layer's weight and
/// bias, the masks of the attention, and the parts of the weight.
#[derive(Clone, Debug)]
pub(super) struct ProjectedAttention {
    pub(super) prologue: Prologue,
    pub(super) settings: Settings,
    pub(super) appended: Appended,
}

/// What the backward pass needs.
#[derive(Clone, Debug)]
pub(super) struct Saved<T> {
    /// x, norm's weight and bias, weight and bias.
    linear: [T; 5],
    parts: Parts<T>,
    output: T,
    log_sums: T,
    masks: Vec<T>,
}

impl Operation for ProjectedAttention {
    const NAME: &'static str = "linear and attention";

    type Saved<B: KernelBackend> = Saved<FloatTensor<B>>;

    fn forward<B: KernelBackend>(&self, inputs: Vec<FloatTensor<B>>, wanted: &[bool]) -> Computed<B, Self::Saved<B>> {
        let (linear, parts, masks) = self.listed::<B>(inputs);
        let kept = wanted.contains(&true).then(|| (linear.clone(), parts.clone()));
        let [qkv, _] = self.projected::<B>(linear, parts);
        let [output, log_sums] = packed::<B>(qkv, &self.settings, &masks);
        let saved = kept.map(|(linear, parts)| Saved { linear, parts, output: output.clone(), log_sums, masks });
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

impl OfParts for ProjectedAttention {
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
        let (linear, parts, masks) = self.listed::<B>(inputs);
        output.zip(kept).map(|(output, log_sums)| Saved { linear, parts, output, log_sums, masks })
    }
}

/// The inputs of the linear layer, the parts of its weight, and the masks.
type Listed<T> = ([T; OF_LAYER], Parts<T>, Vec<T>);

impl ProjectedAttention {
    fn listed<B: KernelBackend>(&self, mut inputs: Vec<FloatTensor<B>>) -> Listed<FloatTensor<B>> {
        let [parts] = all(self.appended.take(&mut inputs));
        let masks = inputs.split_off(OF_LAYER);
        (all(inputs), parts, masks)
    }

    /// Queries, keys and values, and the statistics of the rows of the norm.
    fn projected<B: KernelBackend>(
        &self,
        [x, norm_weight, norm_bias, weight, bias]: [FloatTensor<B>; 5],
        parts: Parts<FloatTensor<B>>,
    ) -> [FloatTensor<B>; 2] {
        changed_linear::<B>(x, [norm_weight, norm_bias], LayerWeight { weight, parts }, bias, self.prologue)
    }

    fn gradients<B: KernelBackend>(
        &self,
        Saved { linear, parts, output, log_sums, masks }: Saved<FloatTensor<B>>,
        gradient: FloatTensor<B>,
        wanted: &[bool],
        sums: Option<Vec<Onto<FloatTensor<B>>>>,
    ) -> Vec<Option<FloatTensor<B>>> {
        let [qkv, statistics] = self.projected::<B>(linear.clone(), parts.clone());
        let gradient = packed_backward::<B>([qkv, output, log_sums], gradient, &self.settings, masks);
        let [x, norm_weight, norm_bias, weight, _] = linear;
        let saved = LinearSaved { x, statistics, norm: [norm_weight, norm_bias], weight, prologue: self.prologue };
        layer_gradients::<B>(saved, &self.appended, parts, gradient, wanted, sums)
    }
}
