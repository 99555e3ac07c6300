//! Layers and losses for any burn program. Their backward pass keeps as little memory as possible.
//!
//! - [`LinearCrossEntropy`]: the loss of a linear output layer; the logits of the whole batch are never in memory.
//! - [`SegmentationLoss`]: cross-entropy and Dice of the classes of pixels. It keeps only the gradient of the logits.
//! - [`self_attention`], [`attention`], [`MultiHeadAttention`]: exact attention in memory that grows with the length of a sequence, not
//!   with its square; masks, grouped queries and dropout. [`rotary`]: rotary position embedding that keeps nothing.
//! - [`linear`], [`norm_linear`], [`activation_linear`]: on burn's own [`Linear`](burn::nn::Linear); the output of the norm or of the
//!   activation is not kept. [`feed_forward`] and [`gated_feed_forward`] take long sequences some positions at a time.
//! - [`layer_norm`], [`rms_norm`], [`group_norm`], [`instance_norm`], [`gelu`], [`gelu_tanh`], [`silu`], [`relu`], [`softmax`]: each keeps
//!   its input or its output, never both. [`swiglu`] keeps its inputs, and [`dropout`] nothing.
//! - [`batch_norm`], [`batch_norm_relu`], [`batch_norm_add_relu`]: on burn's own [`BatchNorm`](burn::nn::BatchNorm), without a copy in
//!   f32 and without a tensor between norm, residual and ReLU. [`batch_norm_activated`] has other activations, such as
//!   [`NormActivation::Relu6`] and [`NormActivation::HardSwish`]. [`batch_norm_leaky_relu`] keeps only its output.
//!   [`batch_norm_relu_conv2d`] does not keep the convolution's input, [`conv2d_batch_norm`] and [`conv2d_batch_norm_relu`] do not keep
//!   its output, and [`residual_end`] keeps neither. [`batch_norm_excited_conv2d`] keeps no tensor of the squeeze-and-excitation between
//!   norm and convolution.
//! - [`residual`] adds a branch to its input. [`add_relu`] keeps only its output, [`max_pool2d`] one byte for each value of its output.
//! - [`conv2d`]: on burn's own [`Conv2d`](burn::nn::conv::Conv2d), without columns of images. [`upsample_conv2d`]: the convolution of an
//!   image that is doubled and joined with another; neither the doubled nor the joined image is in memory.
//!
//! All layers accept f32, f16 and bf16 and compute in f32. On CubeCL devices, products of matrices and convolutions are in the dtype of
//! their input. On the CPU, linear layers and their loss multiply bf16 values by bf16 weights, with sums in f32, on processors with
//! AVX512-BF16 by its instruction. On the CPU device their results have the same bits whatever the number of threads.
//!
//! # Devices
//! burn's Flex device (feature `flex`, on by default) has kernels of this crate. On CUDA (feature `cuda`) and burn's other CubeCL
//! runtimes (`cube`, beside burn's own feature), norms, activations, SwiGLU, attention, dropout, the loss of a linear layer and an
//! embedding's gradient have kernels in CubeCL, and the others are composed of burn's operations, which burn fuses. They keep as little
//! for the backward pass and compute in bounded blocks. burn's capture device records them. On any other device each function returns
//! [`Error::UnsupportedDevice`].
//!
//! *Architecture invariant*: this crate knows burn and kiln-operations, and no technique. Each operation is one node of burn's graph, and
//! states beside its kernel what it costs.
//!
//! ```
//! use burn::tensor::{Device, Distribution, Tensor};
//! use kiln_layers::{Mask, gelu, self_attention};
//!
//! let device = Device::flex().autodiff();
//! let qkv = Tensor::<3>::random([2, 64, 3 * 32], Distribution::Default, &device).require_grad();
//! let y = gelu(self_attention(qkv.clone(), 4, Mask::Causal)?)?;
//! assert_eq!(y.dims(), [2, 64, 32]);
//! let gradients = y.sum().backward();
//! assert_eq!(qkv.grad(&gradients).map(|gradient| gradient.dims()), Some([2, 64, 96]));
//! # Ok::<(), kiln_layers::Error>(())
//! ```

mod activation;
mod add_relu;
mod attention;
mod batch_norm;
mod bias;
mod channel_scale;
#[cfg(feature = "cube")]
mod channels_last;
mod check;
#[cfg(feature = "cube")]
mod columns;
mod composed;
mod conv2d;
mod dropout;
mod embedding;
mod error;
mod feed_forward;
mod gated_feed_forward;
mod grid;
mod group_norm;
mod in_parts;
mod linear;
mod linear_cross_entropy;
mod max_pool;
#[cfg(feature = "cube")]
#[allow(missing_docs, reason = "the macro writes a module for the function")]
mod mixed;
mod norm;
mod norm_conv2d;
mod norm_grouped_attention;
mod normed_layers;
mod order;
mod projected_attention;
mod residual;
mod rotary;
mod row_weight;
mod segmentation_loss;
mod softmax;
mod swiglu;
mod upsample_conv2d;

pub use activation::{Activation, gelu, gelu_tanh, relu, silu};
pub use add_relu::add_relu;
pub use attention::{
    AttentionOptions, DropoutSeed, Mask, MultiHeadAttention, MultiHeadAttentionConfig, attention, self_attention,
};
pub use batch_norm::{
    NormActivation, batch_norm, batch_norm_activated, batch_norm_add_relu, batch_norm_leaky_relu, batch_norm_relu,
};
pub use check::takes;
pub use conv2d::conv2d;
pub use dropout::{dropout, dropout_layer};
pub use embedding::{add_positions, embedding, embedding_by_rows};
pub use error::Error;
pub use feed_forward::feed_forward;
pub use gated_feed_forward::gated_feed_forward;
pub use group_norm::{group_norm, instance_norm};
pub use kiln_operations::RowParts;
pub use linear::{activation_linear, linear, norm_linear};
pub use linear_cross_entropy::{LinearCrossEntropy, Reduction};
pub use max_pool::max_pool2d;
pub use norm::{Norm, layer_norm, rms_norm};
pub use norm_conv2d::{
    batch_norm_activated_conv2d, batch_norm_excited_conv2d, batch_norm_relu_conv2d, conv2d_batch_norm,
    conv2d_batch_norm_activated, conv2d_batch_norm_relu, residual_end,
};
pub use norm_grouped_attention::{Projections, norm_grouped_attention};
pub use projected_attention::norm_self_attention;
pub use residual::residual;
pub use rotary::{RotaryOptions, RotaryPairs, RotaryScaling, rotary};
pub use row_weight::RowWeight;
pub use segmentation_loss::SegmentationLoss;
pub use softmax::softmax;
pub use swiglu::swiglu;
pub use upsample_conv2d::upsample_conv2d;

/// The guide's examples.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/layers.md")]
struct Guide;
