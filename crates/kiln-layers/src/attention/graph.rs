//! Attention as operations of burn's graph: with packed inputs, and with separate queries, keys and values.

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Capture, TensorMetadata, backend_extension};
use burn::tensor::{DType, Shape};

use super::terms::Terms;
use crate::graph::without_gradients;
use kiln_operations::{like, operation, record};

#[backend_extension(Flex: cfg(feature = "flex"), Cube: cfg(feature = "cube"), Capture, Autodiff)]
pub(crate) trait AttentionLayer: Backend {
    fn packed_attention_layer(qkv: FloatTensor<Self>, #[extension_type] terms: Terms<Self>) -> FloatTensor<Self>;

    fn grouped_attention_layer(
        queries: FloatTensor<Self>,
        keys: FloatTensor<Self>,
        values: FloatTensor<Self>,
        #[extension_type] terms: Terms<Self>,
    ) -> FloatTensor<Self>;
}

/// Attention on a backend without gradients.
pub(crate) trait AttentionKernels: Backend {
    /// Attention of packed queries, keys and values `[batch, time, 3 width]`. Returns the output `[batch, time, width]`, and the
    /// logarithm of each row's sum of exponentials in f32, `[batch, heads, time]`.
    fn packed_attention(qkv: FloatTensor<Self>, terms: &Terms<Self>) -> [FloatTensor<Self>; 2] {
        super::composed::packed_forward::<Self>(&qkv, terms)
    }

    /// The gradient of `qkv`. `saved` has input, output and logarithms of sums.
    fn packed_attention_backward(
        saved: [FloatTensor<Self>; 3],
        gradient: FloatTensor<Self>,
        terms: &Terms<Self>,
    ) -> FloatTensor<Self> {
        super::composed::packed_backward::<Self>(&saved, &gradient, terms)
    }

    /// Attention of queries `[batch, heads, time, depth]` to keys and values `[batch, kv_heads, keys, depth]`. Returns the output, and
    /// the logarithm of each row's sum of exponentials in f32, `[batch, heads, time]`.
    fn grouped_attention(inputs: [FloatTensor<Self>; 3], terms: &Terms<Self>) -> [FloatTensor<Self>; 2] {
        super::composed::grouped_forward::<Self>(&inputs, terms)
    }

    /// The gradients of the inputs that are wanted. `saved` has output and logarithms of sums.
    fn grouped_attention_backward(
        inputs: [FloatTensor<Self>; 3],
        saved: [FloatTensor<Self>; 2],
        gradient: FloatTensor<Self>,
        terms: &Terms<Self>,
        wanted: [bool; 3],
    ) -> [Option<FloatTensor<Self>>; 3] {
        super::composed::grouped_backward::<Self>(&inputs, &saved, &gradient, terms, wanted)
    }
}

without_gradients!(AttentionLayer, AttentionKernels {
    fn packed_attention_layer(
        qkv: FloatTensor<Self>,
        terms: Terms<Self>,
    ) -> FloatTensor<Self> {
        let [output, _] = Self::packed_attention(qkv, &terms);
        output
    }

    fn grouped_attention_layer(
        queries: FloatTensor<Self>,
        keys: FloatTensor<Self>,
        values: FloatTensor<Self>,
        terms: Terms<Self>,
    ) -> FloatTensor<Self> {
        let [output, _] = Self::grouped_attention([queries, keys, values], &terms);
        output
    }
});

impl<B: AttentionKernels, C: CheckpointStrategy> AttentionLayer for Autodiff<B, C> {
    fn packed_attention_layer(qkv: FloatTensor<Self>, terms: Terms<Self>) -> FloatTensor<Self> {
        let (qkv, node) = qkv.into_parts();
        let terms = terms.inner();
        record::<B, C, _, 1>(
            "attention",
            [node],
            |_| {
                let [output, log_sums] = B::packed_attention(qkv.clone(), &terms);
                (output.clone(), Some(([qkv, output, log_sums], terms)))
            },
            |(saved, terms), gradient, _| [Some(B::packed_attention_backward(saved, gradient, &terms))],
        )
    }

    fn grouped_attention_layer(
        queries: FloatTensor<Self>,
        keys: FloatTensor<Self>,
        values: FloatTensor<Self>,
        terms: Terms<Self>,
    ) -> FloatTensor<Self> {
        let ((queries, of_queries), (keys, of_keys), (values, of_values)) =
            (queries.into_parts(), keys.into_parts(), values.into_parts());
        let terms = terms.inner();
        record::<B, C, _, 3>(
            "attention",
            [of_queries, of_keys, of_values],
            |_| {
                let inputs = [queries, keys, values];
                let [output, log_sums] = B::grouped_attention(inputs.clone(), &terms);
                (output.clone(), Some((inputs, [output, log_sums], terms)))
            },
            |(inputs, saved, terms), gradient, wanted| {
                B::grouped_attention_backward(inputs, saved, gradient, &terms, wanted)
            },
        )
    }
}

#[cfg(feature = "flex")]
impl AttentionKernels for burn::backend::Flex {
    fn packed_attention(qkv: FloatTensor<Self>, terms: &Terms<Self>) -> [FloatTensor<Self>; 2] {
        super::flex::packed_forward(&qkv, terms)
    }

    fn packed_attention_backward(
        saved: [FloatTensor<Self>; 3],
        gradient: FloatTensor<Self>,
        terms: &Terms<Self>,
    ) -> FloatTensor<Self> {
        super::flex::packed_backward(&saved, &gradient, terms)
    }

    fn grouped_attention(inputs: [FloatTensor<Self>; 3], terms: &Terms<Self>) -> [FloatTensor<Self>; 2] {
        super::flex::grouped_forward(&inputs, terms)
    }

    fn grouped_attention_backward(
        inputs: [FloatTensor<Self>; 3],
        saved: [FloatTensor<Self>; 2],
        gradient: FloatTensor<Self>,
        terms: &Terms<Self>,
        wanted: [bool; 3],
    ) -> [Option<FloatTensor<Self>>; 3] {
        super::flex::grouped_backward(&inputs, &saved, &gradient, terms, wanted)
    }
}

impl AttentionKernels for Capture {
    fn packed_attention(qkv: FloatTensor<Self>, terms: &Terms<Self>) -> [FloatTensor<Self>; 2] {
        let shape = qkv.shape();
        let output = (Shape::new([shape[0], shape[1], shape[2] / 3]), qkv.dtype());
        let log_sums = (Shape::new([shape[0], terms.settings.heads, shape[1]]), DType::F32);
        operation(&super::cost::PACKED, terms.with([qkv]), &terms.scalars(), [output, log_sums])
    }

    fn packed_attention_backward(
        saved: [FloatTensor<Self>; 3],
        gradient: FloatTensor<Self>,
        terms: &Terms<Self>,
    ) -> FloatTensor<Self> {
        let (like_input, inputs) = (like(&saved[0]), terms.with(saved.into_iter().chain([gradient])));
        let [gradient] = operation(&super::cost::PACKED_BACKWARD, inputs, &terms.scalars(), [like_input]);
        gradient
    }

    fn grouped_attention(inputs: [FloatTensor<Self>; 3], terms: &Terms<Self>) -> [FloatTensor<Self>; 2] {
        let (output, shape) = (like(&inputs[0]), inputs[0].shape());
        let log_sums = (Shape::new([shape[0], shape[1], shape[2]]), DType::F32);
        operation(&super::cost::GROUPED, terms.with(inputs), &terms.scalars(), [output, log_sums])
    }

    fn grouped_attention_backward(
        inputs: [FloatTensor<Self>; 3],
        saved: [FloatTensor<Self>; 2],
        gradient: FloatTensor<Self>,
        terms: &Terms<Self>,
        wanted: [bool; 3],
    ) -> [Option<FloatTensor<Self>>; 3] {
        let outputs = inputs.each_ref().map(like);
        let inputs = terms.with(inputs.into_iter().chain(saved).chain([gradient]));
        let gradients = operation(&super::cost::GROUPED_BACKWARD, inputs, &terms.scalars(), outputs);
        let mut gradients = gradients.into_iter().zip(wanted).map(|(gradient, wanted)| wanted.then_some(gradient));
        [(); 3].map(|()| gradients.next().flatten())
    }
}
