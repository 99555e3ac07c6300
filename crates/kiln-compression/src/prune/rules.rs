//! Which axes an operation of burn ties together, and which it freezes.

use burn::backend::capture::TensorId;
use burn::backend::ir::{
    ActivationOperationIr as Activation, BaseOperationIr as Base, BoolOperationIr, FloatOperationIr as Float,
    IntOperationIr, ModuleOperationIr as Layer, NumericOperationIr as Numeric, OperationIr, TensorIr,
};

use super::axes::{Axes, surviving};

type Ties = Axes<TensorId>;

fn axis(tensor: &TensorIr, axis: usize) -> (TensorId, usize, usize) {
    (tensor.id, axis, tensor.shape[axis])
}

fn rank(tensor: &TensorIr) -> usize {
    tensor.shape.num_dims()
}

/// Ties the axes of an operation's inputs and outputs. What is not understood freezes all of them.
pub(super) fn apply(axes: &mut Ties, operation: &OperationIr) {
    match operation {
        OperationIr::BaseFloat(op) | OperationIr::BaseInt(op) | OperationIr::BaseBool(op) => base(axes, op, operation),
        OperationIr::NumericFloat(_, op) | OperationIr::NumericInt(_, op) => numeric(axes, op, operation),
        OperationIr::Float(_, Float::Matmul(op)) => matmul(axes, &op.lhs, &op.rhs, &op.out),
        OperationIr::Float(
            _,
            Float::Cross(_) | Float::Random(_) | Float::Quantize(_) | Float::Dequantize(_) | Float::GridSample2d(_),
        ) => freeze_all(axes, operation),
        OperationIr::Float(..) => elementwise(axes, operation),
        OperationIr::Int(IntOperationIr::Matmul(_)) => freeze_all(axes, operation),
        OperationIr::Int(_) => elementwise(axes, operation),
        OperationIr::Bool(
            BoolOperationIr::IntoFloat(_)
            | BoolOperationIr::IntoInt(_)
            | BoolOperationIr::Not(_)
            | BoolOperationIr::And(_)
            | BoolOperationIr::Or(_)
            | BoolOperationIr::Xor(_),
        ) => elementwise(axes, operation),
        OperationIr::Activation(op) => match op {
            Activation::Softmax(op) | Activation::LogSoftmax(op) | Activation::Softmin(op) => {
                along(axes, &op.input, &op.out, &[op.axis]);
            }
            Activation::PRelu(op) => prelu(axes, &op.lhs, &op.rhs, &op.out),
            _ => elementwise(axes, operation),
        },
        OperationIr::Module(op) => layer(axes, op, operation),
        OperationIr::Init(_) | OperationIr::Custom(_) | OperationIr::Distributed(_) => freeze_all(axes, operation),
        OperationIr::Drop(_) => {}
    }
}

/// Freezes every axis of a tensor.
pub(super) fn freeze(axes: &mut Ties, tensor: &TensorIr) {
    (0..rank(tensor)).for_each(|at| axes.freeze(axis(tensor, at)));
}

fn freeze_all(axes: &mut Ties, operation: &OperationIr) {
    operation.inputs().chain(operation.outputs()).for_each(|tensor| freeze(axes, tensor));
}

/// Ties the last axes of two tensors as broadcasting does: a size of 1 fits everything.
fn broadcast(axes: &mut Ties, a: &TensorIr, b: &TensorIr, skip_last: usize) {
    for back in skip_last + 1..=rank(a).min(rank(b)) {
        let (i, j) = (axis(a, rank(a) - back), axis(b, rank(b) - back));
        if i.2 == j.2 {
            axes.tie(i, j);
        }
    }
}

fn elementwise(axes: &mut Ties, operation: &OperationIr) {
    for output in operation.outputs() {
        operation.inputs().for_each(|input| broadcast(axes, input, output, 0));
    }
}

/// Axes that change or mix are frozen, the others are tied.
fn along(axes: &mut Ties, input: &TensorIr, output: &TensorIr, mixed: &[usize]) {
    for at in 0..rank(input).max(rank(output)) {
        let inside = at < rank(input) && at < rank(output);
        if inside && !mixed.contains(&at) {
            axes.tie(axis(input, at), axis(output, at));
            continue;
        }
        for tensor in [input, output] {
            if at < rank(tensor) {
                axes.freeze(axis(tensor, at));
            }
        }
    }
}

/// An alpha for all channels, or one for each.
fn prelu(axes: &mut Ties, x: &TensorIr, alpha: &TensorIr, out: &TensorIr) {
    along(axes, x, out, &[]);
    match rank(x) >= 2 && rank(alpha) == 1 && alpha.shape[0] == x.shape[1] {
        true => axes.tie(axis(alpha, 0), axis(x, 1)),
        false if rank(alpha) == rank(x) => broadcast(axes, alpha, out, 0),
        false => freeze(axes, alpha),
    }
}

/// `[.., n, k] x [.., k, m]`.
fn matmul(axes: &mut Ties, a: &TensorIr, b: &TensorIr, out: &TensorIr) {
    if [a, b, out].iter().any(|tensor| rank(tensor) < 2) {
        [a, b, out].iter().for_each(|tensor| freeze(axes, tensor));
        return;
    }
    axes.tie(axis(a, rank(a) - 1), axis(b, rank(b) - 2));
    axes.tie(axis(a, rank(a) - 2), axis(out, rank(out) - 2));
    axes.tie(axis(b, rank(b) - 1), axis(out, rank(out) - 1));
    broadcast(axes, a, out, 2);
    broadcast(axes, b, out, 2);
}

fn base(axes: &mut Ties, op: &Base, operation: &OperationIr) {
    match op {
        Base::Reshape(op) => {
            let survivors = surviving(&op.input.shape, &op.out.shape);
            for at in (0..rank(&op.input)).filter(|at| !survivors.iter().any(|survivor| survivor.0 == *at)) {
                axes.freeze(axis(&op.input, at));
            }
            for at in (0..rank(&op.out)).filter(|at| !survivors.iter().any(|survivor| survivor.1 == *at)) {
                axes.freeze(axis(&op.out, at));
            }
            for (from, to, block) in survivors {
                axes.tie_blocks(axis(&op.input, from), axis(&op.out, to), block);
            }
        }
        Base::SwapDims(op) => {
            let mut order: Vec<usize> = (0..rank(&op.input)).collect();
            order.swap(op.dim1, op.dim2);
            permute(axes, &op.input, &op.out, &order);
        }
        Base::Permute(op) => permute(axes, &op.input, &op.out, &op.axes),
        Base::Expand(op) => {
            broadcast(axes, &op.input, &op.out, 0);
            // How often a value is repeated is a number in the program.
            for back in 1..=rank(&op.out) {
                let at = rank(&op.out) - back;
                let size = if back <= rank(&op.input) { op.input.shape[rank(&op.input) - back] } else { 1 };
                if size != op.out.shape[at] {
                    axes.freeze(axis(&op.out, at));
                }
            }
        }
        Base::Flip(op) => along(axes, &op.input, &op.out, &op.axes),
        Base::Slice(op) => {
            let cut = |at: &usize| {
                op.tensor.shape[*at] != op.out.shape[*at] || op.ranges.get(*at).is_some_and(|range| range.step != 1)
            };
            let cut: Vec<usize> = (0..rank(&op.tensor)).filter(cut).collect();
            along(axes, &op.tensor, &op.out, &cut);
        }
        Base::Select(op) => {
            freeze(axes, &op.indices);
            along(axes, &op.tensor, &op.out, &[op.dim]);
        }
        Base::RepeatDim(op) => along(axes, &op.tensor, &op.out, &[op.dim]),
        Base::Cat(op) => op.tensors.iter().for_each(|tensor| along(axes, tensor, &op.out, &[op.dim])),
        Base::AllDim(op) | Base::AnyDim(op) => along(axes, &op.input, &op.out, &[op.axis]),
        Base::MaskWhere(_)
        | Base::MaskFill(_)
        | Base::Equal(_)
        | Base::EqualElem(_)
        | Base::NotEqual(_)
        | Base::NotEqualElem(_)
        | Base::Cast(_) => elementwise(axes, operation),
        _ => freeze_all(axes, operation),
    }
}

fn permute(axes: &mut Ties, input: &TensorIr, out: &TensorIr, order: &[usize]) {
    order.iter().enumerate().for_each(|(to, from)| axes.tie(axis(input, *from), axis(out, to)));
}

fn numeric(axes: &mut Ties, op: &Numeric, operation: &OperationIr) {
    match op {
        Numeric::MeanDim(op)
        | Numeric::SumDim(op)
        | Numeric::ProdDim(op)
        | Numeric::ArgMax(op)
        | Numeric::ArgMin(op)
        | Numeric::ArgTopK(op)
        | Numeric::TopK(op)
        | Numeric::MaxDim(op)
        | Numeric::MinDim(op)
        | Numeric::MaxAbsDim(op) => along(axes, &op.input, &op.out, &[op.axis]),
        Numeric::SumDims(op) => along(axes, &op.input, &op.out, &op.axes),
        Numeric::CumSum(op) | Numeric::CumProd(op) | Numeric::CumMin(op) | Numeric::CumMax(op) => {
            along(axes, &op.input, &op.out, &[op.axis]);
        }
        Numeric::Pad(op) => {
            let padded: Vec<usize> = (0..op.padding.len()).filter(|at| op.padding[*at] != (0, 0)).collect();
            along(axes, &op.input, &op.out, &padded);
        }
        Numeric::Full(_)
        | Numeric::Mean(_)
        | Numeric::Sum(_)
        | Numeric::Prod(_)
        | Numeric::Max(_)
        | Numeric::Min(_)
        | Numeric::MaxAbs(_)
        | Numeric::TopKWithIndices(_)
        | Numeric::MaxDimWithIndices(_)
        | Numeric::MinDimWithIndices(_)
        | Numeric::IntRandom(_)
        | Numeric::Sort(_)
        | Numeric::SortWithIndices(_)
        | Numeric::ArgSort(_) => freeze_all(axes, operation),
        _ => elementwise(axes, operation),
    }
}

fn layer(axes: &mut Ties, op: &Layer, operation: &OperationIr) {
    /// A convolution: the axes of its weight that are outputs and inputs.
    macro_rules! convolution {
        ($op:expr, $groups:expr, $out:expr, $in:expr) => {{
            let (x, weight, out) = (&$op.x, &$op.weight, &$op.out);
            for tensor in [x, weight, out] {
                (2..rank(tensor)).for_each(|at| axes.freeze(axis(tensor, at)));
            }
            axes.tie(axis(x, 0), axis(out, 0));
            if let Some(bias) = &$op.bias {
                axes.tie(axis(bias, 0), axis(out, 1));
            }
            let depthwise = $groups == x.shape[1] && $groups == out.shape[1];
            if $groups == 1 {
                axes.tie(axis(weight, $in), axis(x, 1));
                axes.tie(axis(weight, $out), axis(out, 1));
            } else if depthwise {
                axes.tie(axis(x, 1), axis(weight, 0));
                axes.tie(axis(x, 1), axis(out, 1));
                axes.freeze(axis(weight, 1));
            } else {
                // Each group would have to lose as many channels.
                [x, weight, out].into_iter().for_each(|tensor| (0..2).for_each(|at| axes.freeze(axis(tensor, at))));
            }
        }};
    }
    /// Pools and interpolation change what comes after batch and channels.
    macro_rules! spatial {
        ($op:expr) => {{
            let mixed: Vec<usize> = (2..rank(&$op.x)).collect();
            along(axes, &$op.x, &$op.out, &mixed)
        }};
    }
    match op {
        Layer::Conv1d(op) => convolution!(op, op.options.groups, 0, 1),
        Layer::Conv2d(op) => convolution!(op, op.options.groups, 0, 1),
        Layer::Conv3d(op) => convolution!(op, op.options.groups, 0, 1),
        Layer::ConvTranspose1d(op) => convolution!(op, op.options.groups, 1, 0),
        Layer::ConvTranspose2d(op) => convolution!(op, op.options.groups, 1, 0),
        Layer::ConvTranspose3d(op) => convolution!(op, op.options.groups, 1, 0),
        Layer::Linear(op) => {
            let last = [rank(&op.x) - 1, rank(&op.out) - 1];
            axes.tie(axis(&op.x, last[0]), axis(&op.weight, 0));
            axes.tie(axis(&op.weight, 1), axis(&op.out, last[1]));
            if let Some(bias) = &op.bias {
                axes.tie(axis(bias, 0), axis(&op.out, last[1]));
            }
            (0..last[0].min(last[1])).for_each(|at| axes.tie(axis(&op.x, at), axis(&op.out, at)));
        }
        Layer::BatchNorm(op) => {
            along(axes, &op.x, &op.out, &[]);
            for statistic in [&op.gamma, &op.beta, &op.mean, &op.variance] {
                axes.tie(axis(statistic, 0), axis(&op.x, 1));
            }
        }
        Layer::LayerNorm(op) => {
            // The norm of fewer channels is another norm.
            let last = rank(&op.input) - 1;
            along(axes, &op.input, &op.out, &[last]);
            freeze(axes, &op.gamma);
            op.beta.iter().for_each(|beta| freeze(axes, beta));
        }
        Layer::Embedding(op) => {
            let last = rank(&op.out) - 1;
            axes.freeze(axis(&op.weights, 0));
            axes.tie(axis(&op.weights, 1), axis(&op.out, last));
            (0..last).for_each(|at| axes.freeze(axis(&op.out, at)));
            freeze(axes, &op.indices);
        }
        Layer::AvgPool1d(op) => spatial!(op),
        Layer::AvgPool2d(op) => spatial!(op),
        Layer::AdaptiveAvgPool1d(op) => spatial!(op),
        Layer::AdaptiveAvgPool2d(op) => spatial!(op),
        Layer::AdaptiveAvgPool3d(op) => spatial!(op),
        Layer::MaxPool1d(op) => spatial!(op),
        Layer::MaxPool1dWithIndices(op) => spatial!(op),
        Layer::MaxPool2d(op) => spatial!(op),
        Layer::MaxPool2dWithIndices(op) => spatial!(op),
        Layer::Interpolate(op) => spatial!(op),
        _ => freeze_all(axes, operation),
    }
}

/// The weight of a layer that multiplies and adds, and how often each of its elements is used.
pub(super) fn multiplied(operation: &OperationIr) -> Option<(&TensorIr, usize)> {
    let per_channel = |tensor: &TensorIr, at: usize| tensor.shape.num_elements() / tensor.shape[at].max(1);
    Some(match operation {
        OperationIr::Float(_, Float::Matmul(op)) => (&op.rhs, per_channel(&op.out, rank(&op.out) - 1)),
        OperationIr::Module(op) => match op {
            Layer::Linear(op) => (&op.weight, per_channel(&op.out, rank(&op.out) - 1)),
            Layer::Conv1d(op) => (&op.weight, per_channel(&op.out, 1)),
            Layer::Conv2d(op) => (&op.weight, per_channel(&op.out, 1)),
            Layer::Conv3d(op) => (&op.weight, per_channel(&op.out, 1)),
            Layer::ConvTranspose1d(op) => (&op.weight, per_channel(&op.x, 1)),
            Layer::ConvTranspose2d(op) => (&op.weight, per_channel(&op.x, 1)),
            Layer::ConvTranspose3d(op) => (&op.weight, per_channel(&op.x, 1)),
            _ => return None,
        },
        _ => return None,
    })
}
