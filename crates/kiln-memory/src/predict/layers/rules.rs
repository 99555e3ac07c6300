//! The table of operations. The `graph.rs` of each operation in kiln-layers defines its inputs, outputs and scalars.
//!
//! An operation whose id is not in the table has new outputs and no workspace. Its time is that of the bytes that it moves.

use super::super::memory::Memory;
use super::operation::Operation;
use super::{cube, flex, work};

/// The rules of one operation. Tensors are numbered in the order in which the operation was recorded with them.
pub(super) struct Rule {
    id: &'static str,
    /// On the CPU device: pairs of an input and the output that is written in its memory, if the input has no other handle. If several
    /// pairs have the same input or output, the first one that is possible counts.
    pub(super) over: &'static [(usize, usize)],
    /// On the CPU device: inputs that are read without a copy if the values of a row or a column lie side by side. Others are copied into
    /// row-major order.
    pub(super) any_order: &'static [usize],
    /// On the CPU device: pairs of an input and the output that has the same layout.
    pub(super) like: &'static [(usize, usize)],
    /// Scratch memory of the kernel on the CPU device, without copies of inputs.
    pub(super) flex: fn(&Operation<'_>, &Memory<'_>) -> u64,
    /// Bytes of the temporary tensors on a CubeCL device.
    pub(super) cube: fn(&Operation<'_>) -> u64,
    pub(super) multiply_adds: fn(&Operation<'_>) -> f64,
}

/// An operation that needs no memory besides its tensors.
const PLAIN: Rule =
    Rule { id: "", over: &[], any_order: &[], like: &[], flex: |_, _| 0, cube: |_| 0, multiply_adds: |_| 0.0 };

pub(super) fn rule(id: &str) -> Option<&'static Rule> {
    RULES.iter().find(|rule| rule.id == id)
}

static RULES: &[Rule] = &[
    // x; kept, gradient
    Rule {
        id: "kiln::activation",
        flex: |op, memory| flex::chunks(op, 2, memory),
        cube: |op| cube::wide(op, 0, 2),
        ..PLAIN
    },
    Rule {
        id: "kiln::activation_backward",
        over: &[(1, 0)],
        flex: |op, memory| flex::chunks(op, 2, memory),
        cube: |op| cube::wide(op, 0, 5),
        ..PLAIN
    },
    Rule { id: "kiln::add_relu", over: &[(0, 0)], flex: flex::add_relu, cube: |op| cube::wide(op, 0, 2), ..PLAIN },
    Rule {
        id: "kiln::add_relu_backward",
        over: &[(1, 0)],
        flex: flex::add_relu,
        cube: |op| cube::wide(op, 0, 2),
        ..PLAIN
    },
    // x, both ways
    Rule {
        id: "kiln::dropout",
        over: &[(0, 0)],
        flex: |op, memory| flex::chunks(op, 1, memory),
        cube: |op| cube::wide(op, 0, 2),
        ..PLAIN
    },
    // gate, up; gate, up, gradient
    Rule {
        id: "kiln::swiglu",
        flex: |op, memory| flex::chunks(op, 3, memory),
        cube: |op| cube::wide(op, 0, 3),
        ..PLAIN
    },
    Rule {
        id: "kiln::swiglu_backward",
        over: &[(0, 0), (2, 1)],
        flex: |op, memory| flex::chunks(op, 3, memory),
        cube: |op| cube::wide(op, 0, 5),
        ..PLAIN
    },
    // x; y, gradient
    Rule { id: "kiln::softmax", flex: flex::softmax, cube: |op| cube::wide(op, 0, 2), ..PLAIN },
    Rule {
        id: "kiln::softmax_backward",
        over: &[(1, 0)],
        flex: flex::softmax,
        cube: |op| cube::wide(op, 0, 2),
        ..PLAIN
    },
    // x, weight, bias; x, statistics, weight, gradient
    Rule { id: "kiln::norm", flex: flex::norm, cube: |op| cube::wide(op, 0, 2), ..PLAIN },
    Rule {
        id: "kiln::norm_backward",
        over: &[(3, 0)],
        flex: flex::norm_backward,
        cube: |op| cube::wide(op, 0, 2),
        ..PLAIN
    },
    Rule { id: "kiln::group_norm", flex: flex::group_norm, cube: |op| cube::wide(op, 0, 2), ..PLAIN },
    Rule {
        id: "kiln::group_norm_backward",
        over: &[(3, 0)],
        flex: flex::group_norm,
        cube: |op| cube::wide(op, 0, 2),
        ..PLAIN
    },
    // x, weight, bias, mean, variance, maybe residual; gradient, saved tensors. The residual's gradient takes the memory. Scalars:
    // whether it trains, whether hard-swish follows.
    Rule {
        id: "kiln::batch_norm",
        over: &[(0, 0)],
        flex: flex::batch_norm,
        cube: |op| cube::wide(op, 0, 3 + 2 * op.scalar(1)),
        ..PLAIN
    },
    // x, statistics, weight, bias. Scalar: whether hard-swish follows.
    Rule {
        id: "kiln::batch_norm_again",
        flex: flex::batch_norm,
        cube: |op| cube::wide(op, 0, 2 + 2 * op.scalar(0)),
        ..PLAIN
    },
    Rule {
        id: "kiln::batch_norm_backward",
        over: &[(0, 3), (0, 0)],
        flex: flex::batch_norm,
        cube: |op| cube::wide(op, 0, 3 + 2 * op.scalar(1)),
        ..PLAIN
    },
    // x, scale; x, scale, gradient
    Rule {
        id: "kiln::channel_scale",
        over: &[(0, 0)],
        flex: |op, memory| flex::channel_scale(op, 1, memory),
        cube: |op| cube::wide(op, 0, 2),
        ..PLAIN
    },
    Rule {
        id: "kiln::channel_scale_backward",
        over: &[(2, 0)],
        flex: |op, memory| flex::channel_scale(op, 2, memory),
        cube: |op| cube::wide(op, 0, 2),
        ..PLAIN
    },
    Rule { id: "kiln::rotary", over: &[(0, 0)], flex: flex::rotary, cube: |op| cube::wide(op, 0, 2), ..PLAIN },
    Rule { id: "kiln::rotary_backward", over: &[(0, 0)], flex: flex::rotary, cube: |op| cube::wide(op, 0, 2), ..PLAIN },
    // qkv; qkv, output, log sums, gradient. Scalars: heads, causal.
    Rule {
        id: "kiln::attention",
        any_order: &[0],
        flex: |op, memory| flex::attention(&work::Attention::packed(op), op, memory),
        cube: |op| cube::attention(&work::Attention::packed(op)),
        multiply_adds: |op| 2.0 * work::Attention::packed(op).product(),
        ..PLAIN
    },
    Rule {
        id: "kiln::attention_backward",
        any_order: &[0, 1, 3],
        flex: |op, memory| flex::attention_backward(&work::Attention::packed(op), op, memory),
        cube: |op| cube::attention_backward(&work::Attention::packed(op), op.reads_half(0)),
        multiply_adds: |op| 5.0 * work::Attention::packed(op).product(),
        ..PLAIN
    },
    // queries, keys, values; queries, keys, values, output, log sums, gradient. Scalars: heads, causal.
    Rule {
        id: "kiln::grouped_attention",
        any_order: &[0, 1, 2],
        flex: |op, memory| flex::attention(&work::Attention::grouped(op), op, memory),
        cube: |op| cube::attention(&work::Attention::grouped(op)),
        multiply_adds: |op| 2.0 * work::Attention::grouped(op).product(),
        ..PLAIN
    },
    Rule {
        id: "kiln::grouped_attention_backward",
        any_order: &[0, 1, 2, 3, 5],
        flex: |op, memory| flex::attention_backward(&work::Attention::grouped(op), op, memory),
        cube: |op| cube::attention_backward(&work::Attention::grouped(op), op.reads_half(0)),
        multiply_adds: |op| 5.0 * work::Attention::grouped(op).product(),
        ..PLAIN
    },
    // hidden rows, weight, bias, targets, weights of classes, weights of rows
    Rule {
        id: "kiln::linear_cross_entropy",
        any_order: &[0, 1],
        flex: flex::loss,
        cube: cube::loss,
        multiply_adds: work::logits,
        ..PLAIN
    },
    Rule {
        id: "kiln::linear_cross_entropy_gradients",
        any_order: &[0, 1],
        like: &[(1, 2)],
        flex: flex::loss,
        cube: cube::loss,
        multiply_adds: work::logits_and_gradients,
        ..PLAIN
    },
    // a gradient that was kept, the gradient of the loss
    Rule {
        id: "kiln::scaled",
        over: &[(0, 0)],
        any_order: &[0],
        like: &[(0, 0)],
        flex: |op, memory| flex::chunks(op, 2, memory),
        cube: |op| cube::wide(op, 0, 1),
        ..PLAIN
    },
    // x, weight and bias of the norm, weight, bias. Scalar: 0 without a prologue.
    Rule {
        id: "kiln::linear",
        any_order: &[3],
        flex: |op, memory| flex::linear(op, 3, 1, memory),
        cube: |op| op.bytes(0),
        multiply_adds: |op| work::linear(op, 3),
        ..PLAIN
    },
    // x, statistics, weight and bias of the norm, weight, gradient. Scalar: 0 without a prologue.
    Rule {
        id: "kiln::linear_weight_backward",
        any_order: &[4],
        like: &[(4, 0)],
        flex: |op, memory| flex::linear(op, 4, 1, memory),
        cube: |op| 2 * op.bytes(0),
        multiply_adds: |op| work::linear(op, 4),
        ..PLAIN
    },
    Rule {
        id: "kiln::linear_input_backward",
        any_order: &[4],
        flex: |op, memory| flex::linear(op, 4, 2, memory),
        cube: |op| 2 * op.bytes(0),
        multiply_adds: |op| work::linear(op, 4),
        ..PLAIN
    },
    // x, weight, bias; weight, gradient; x, gradient. Scalars: stride, padding before and behind, dilation, each of both sides; groups.
    Rule {
        id: "kiln::conv2d",
        flex: |op, memory| flex::conv2d(op, [0, 1], memory),
        cube: |op| op.bytes(0),
        multiply_adds: |op| work::conv2d(op.out_elements(0), op.elements(1), op.dim(1, 0)),
        ..PLAIN
    },
    Rule {
        id: "kiln::conv2d_x_backward",
        flex: |op, memory| flex::conv2d(op, [1, 0], memory),
        cube: |op| op.bytes(1),
        multiply_adds: |op| work::conv2d(op.elements(1), op.elements(0), op.dim(0, 0)),
        ..PLAIN
    },
    Rule {
        id: "kiln::conv2d_weight_backward",
        flex: flex::conv2d_weight_backward,
        cube: |op| op.bytes(0) + op.bytes(1),
        multiply_adds: |op| work::conv2d(op.elements(1), op.out_elements(0), op.dim(1, 1)),
        ..PLAIN
    },
    Rule { id: "kiln::conv2d_bias_backward", flex: flex::planes, ..PLAIN },
    // x; positions, gradient
    Rule { id: "kiln::max_pool", flex: flex::max_pool, cube: |op| 2 * op.bytes(0), ..PLAIN },
    Rule { id: "kiln::max_pool_backward", flex: flex::max_pool_backward, cube: |op| 2 * op.out_bytes(0), ..PLAIN },
    // parameter, state, gradient
    Rule { id: "kiln::sgd_update", over: &[(0, 0)], ..PLAIN },
    Rule { id: "kiln::momentum_update", over: &[(0, 0), (1, 1)], ..PLAIN },
    Rule { id: "kiln::adam_update", over: &[(0, 0), (1, 1), (2, 2)], ..PLAIN },
    Rule { id: "kiln::adamw_update", over: &[(0, 0), (1, 1), (2, 2)], ..PLAIN },
    // parameter, codes and scales of each moment, gradient; the kernels of both devices make no temporary tensors
    Rule { id: "kiln::momentum_8bit_update", over: &[(0, 0), (1, 1), (2, 2)], ..PLAIN },
    Rule { id: "kiln::adamw_8bit_update", over: &[(0, 0), (1, 1), (2, 2), (3, 3), (4, 4)], ..PLAIN },
    Rule { id: "kiln::adamw_4bit_update", over: &[(0, 0), (1, 1), (2, 2), (3, 3), (4, 4)], ..PLAIN },
    // values in f32
    Rule { id: "kiln::stochastic_round", cube: |op| cube::wide(op, 0, 6), ..PLAIN },
];
