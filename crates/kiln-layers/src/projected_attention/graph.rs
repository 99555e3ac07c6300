//! A linear layer and self-attention as one operation of burn's graph, from the kernels of both.

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, backend_extension};

use crate::attention::{AttentionKernels, Terms};
use crate::graph::without_gradients;
use crate::linear::{LinearParameters, LinearSaved, gradients, prologue_linear};
use kiln_operations::{Runs, record};

#[backend_extension(Flex: cfg(feature = "flex"), Cube: cfg(feature = "cube"), Capture, Autodiff)]
pub(crate) trait ProjectedAttentionLayer: Backend {
    fn projected_attention_layer(
        x: FloatTensor<Self>,
        #[extension_type] linear: LinearParameters<Self>,
        #[extension_type] terms: Terms<Self>,
    ) -> FloatTensor<Self>;
}

/// The bodies use the kernels of linear layer and attention.
pub(crate) trait ProjectedAttentionKernels: Runs + AttentionKernels {}

#[cfg(feature = "flex")]
impl ProjectedAttentionKernels for burn::backend::Flex {}
impl ProjectedAttentionKernels for burn::backend::Capture {}

without_gradients!(ProjectedAttentionLayer, ProjectedAttentionKernels {
    fn projected_attention_layer(
        x: FloatTensor<Self>,
        linear: LinearParameters<Self>,
        terms: Terms<Self>,
    ) -> FloatTensor<Self> {
        let [qkv, _] = project::<Self>(x, linear);
        let [output, _] = Self::packed_attention(qkv, &terms);
        output
    }
});

/// Queries, keys and values, and the statistics of the input's rows.
fn project<B: Runs>(x: FloatTensor<B>, linear: LinearParameters<B>) -> [FloatTensor<B>; 2] {
    let LinearParameters { norm_weight, norm_bias, weight, bias, prologue } = linear;
    prologue_linear::<B>([x, norm_weight, norm_bias, weight, bias], prologue)
}

impl<B: ProjectedAttentionKernels, C: CheckpointStrategy> ProjectedAttentionLayer for Autodiff<B, C> {
    fn projected_attention_layer(
        x: FloatTensor<Self>,
        linear: LinearParameters<Self>,
        terms: Terms<Self>,
    ) -> FloatTensor<Self> {
        let ((x, of_x), terms) = (x.into_parts(), terms.inner());
        let (linear, [of_norm_weight, of_norm_bias, of_weight, of_bias]) = linear.into_parts();
        record::<B, C, _, 5>(
            "linear and attention",
            [of_x, of_norm_weight, of_norm_bias, of_weight, of_bias],
            |_| {
                let [qkv, _] = project::<B>(x.clone(), linear.clone());
                let [output, log_sums] = B::packed_attention(qkv, &terms);
                (output.clone(), Some((x, linear, [output, log_sums], terms)))
            },
            |(x, linear, [output, log_sums], terms), gradient, wanted| {
                let [qkv, statistics] = project::<B>(x.clone(), linear.clone());
                let gradient = B::packed_attention_backward([qkv, output, log_sums], gradient, &terms);
                let LinearParameters { norm_weight, norm_bias, weight, prologue, .. } = linear;
                let saved = LinearSaved { x, statistics, norm: [norm_weight, norm_bias], weight, prologue };
                gradients::<B>(saved, gradient, wanted)
            },
        )
    }
}
