//! Linear layers whose weight may be in codes and have a low-rank change: `x W + s (x A) B + bias`. The sum `W + s A B` and a gradient of W
//! never exist, and the values of codes do so while a layer reads them.

use burn::backend::TensorMetadata;
use burn::backend::tensor::FloatTensor;
use burn::tensor::{DType, FloatDType, Shape, Slice};
use kiln_operations::{Computed, InOrder, KernelBackend, Onto, Operation, all};

use super::add_product::{Side, add_product};
use super::graph::{LinearSaved, gradients, prologue_linear};
use super::parameters::{Appended, Change, PARAMETERS, Parts, Weight, values};
use super::settings::Prologue;
use crate::activation::activation_gradient;
use crate::composed::{cast, full};
use crate::norm::row_norm_gradients;

/// Rows of a weight whose squares are summed at a time.
const ROWS: usize = 256;

/// The output of a layer that reads `x` behind a prologue, and the statistics of each row if the prologue is a norm. With magnitudes m it is
/// `m / n (x W + s (x A) B) + bias`, where n are the norms of the columns of `W + s A B`.
pub(crate) fn changed_linear<B: KernelBackend>(
    x: FloatTensor<B>,
    norm: [FloatTensor<B>; 2],
    Weight { weight, parts: Parts { codes, change } }: Weight<FloatTensor<B>>,
    bias: FloatTensor<B>,
    prologue: Prologue,
) -> [FloatTensor<B>; 2] {
    let weight = values::<B>(weight, codes, x.dtype());
    let Some(change) = change else {
        let [norm_weight, norm_bias] = norm;
        return prologue_linear::<B>([x, norm_weight, norm_bias, weight, bias], prologue);
    };
    let Some([factors, _]) = factors::<B>(&weight, &change) else {
        return sum_of_parts::<B>(x, norm, weight, &change, bias, prologue);
    };
    let [y, statistics] = sum_of_parts::<B>(x, norm, weight, &change, nothing::<B>(&bias), prologue);
    let y = by_column::<B>(y, factors);
    let y = match bias.shape().num_elements() {
        0 => y,
        _ => {
            let bias = along_rows::<B>(bias, &y);
            B::float_add(y, bias)
        }
    };
    [y, statistics]
}

/// `x W + s (x A) B + bias` of the rows behind a prologue, and their statistics.
fn sum_of_parts<B: KernelBackend>(
    x: FloatTensor<B>,
    [norm_weight, norm_bias]: [FloatTensor<B>; 2],
    weight: FloatTensor<B>,
    [a, b, s, _]: &Change<FloatTensor<B>>,
    bias: FloatTensor<B>,
    prologue: Prologue,
) -> [FloatTensor<B>; 2] {
    let given = [x.clone(), norm_weight.clone(), norm_bias.clone(), a.clone(), nothing::<B>(a)];
    let [h, _] = prologue_linear::<B>(given, prologue);
    let [y, statistics] = prologue_linear::<B>([x, norm_weight, norm_bias, weight, bias], prologue);
    [add_product::<B>(y, scaled::<B>(h, s.clone()), b.clone(), Side::Rows), statistics]
}

/// The factors m / n and 1 / n of the outputs, if there are magnitudes. The norms of `W + s A B` are summed some rows at a time, and are
/// constants of the backward pass (Liu et al. 2024, section 4.3).
fn factors<B: KernelBackend>(
    weight: &FloatTensor<B>,
    [a, b, s, magnitude]: &Change<FloatTensor<B>>,
) -> Option<[FloatTensor<B>; 2]> {
    let (inputs, outputs) = (weight.shape()[0], magnitude.shape().num_elements());
    if outputs == 0 {
        return None;
    }
    let mut squares = full::<B>(Shape::new([1, outputs]), 0.0, &weight.device(), DType::F32);
    for first in (0..inputs).step_by(ROWS) {
        let rows = [Slice::from(first..inputs.min(first + ROWS)), Slice::from(0..outputs)];
        let narrow = [rows[0], Slice::from(0..b.shape()[0])];
        let product = B::float_matmul(B::float_slice(a.clone(), &narrow), b.clone());
        let rows = cast::<B>(B::float_slice(weight.clone(), &rows), DType::F32);
        let sum = B::float_add(rows, scaled::<B>(cast::<B>(product, DType::F32), s.clone()));
        squares = B::float_add(squares, B::float_sum_dim(B::float_mul(sum.clone(), sum), 0));
    }
    let norms = B::float_reshape(B::float_sqrt(squares), Shape::new([outputs]));
    // An output whose weights are all 0 stays 0.
    let is_any = B::float_sign(norms.clone());
    let inverse = B::float_recip(B::float_clamp_min(norms, f32::MIN_POSITIVE.into()));
    let inverse = B::float_mul(inverse, is_any);
    Some([B::float_mul(cast::<B>(magnitude.clone(), DType::F32), inverse.clone()), inverse])
}

/// The sums of a layer's weight and bias, and of its change.
type SumsOfLayer<T> = ([Onto<T>; 2], Change<Onto<T>>);

/// A layer's parameters and what they are read with, from which the backward pass computes gradients.
pub(crate) struct LayerBackward<T> {
    /// What the layer reads, with its weight.
    pub(crate) read: LinearSaved<T>,
    pub(crate) parts: Parts<T>,
    /// The gradient of the output.
    pub(crate) gradient: T,
    /// Whether gradients of weight and bias are wanted, and those of the change.
    pub(crate) wanted: ([bool; 2], Change<bool>),
    /// Whether the gradient of the rows is wanted that the layer reads behind its prologue.
    pub(crate) for_rows: bool,
    /// With sums, rows are added in their order, to the sums that are there.
    pub(crate) sums: Option<SumsOfLayer<T>>,
}

/// The gradients of a layer's parameters, and of the rows that it reads.
pub(crate) struct OfLayer<T> {
    pub(crate) own: [Option<T>; 2],
    pub(crate) change: Change<Option<T>>,
    pub(crate) rows: Option<T>,
}

impl<T> OfLayer<T> {
    /// No gradients.
    pub(crate) fn none() -> Self {
        Self { own: [None, None], change: [None, None, None, None], rows: None }
    }
}

/// The sums of one layer, if there are sums.
type LayerSums<T> = Option<[Onto<T>; 2]>;

/// The gradients of weight and bias of a layer that are wanted.
fn of_parameters<B: KernelBackend>(
    read: LinearSaved<FloatTensor<B>>,
    gradient: FloatTensor<B>,
    [weight, bias]: [bool; 2],
    sums: LayerSums<FloatTensor<B>>,
) -> [Option<FloatTensor<B>>; 2] {
    if !(weight || bias) {
        return [None, None];
    }
    let sums = sums.map(|[weight, bias]| vec![Onto::Apart, Onto::Apart, Onto::Apart, weight, bias]);
    let [_, _, _, of_weight, of_bias] = gradients::<B>(read, gradient, [false, false, false, weight, bias], sums);
    [of_weight, of_bias]
}

/// Computes the gradients that are wanted.
pub(crate) fn layer_backward<B: KernelBackend>(layer: LayerBackward<FloatTensor<B>>) -> OfLayer<FloatTensor<B>> {
    let LayerBackward { read, parts: Parts { codes, change }, gradient, wanted: (own, wanted), for_rows, sums } = layer;
    let read = LinearSaved { weight: values::<B>(read.weight, codes, read.x.dtype()), ..read };
    let (sums, change_sums) = sums.unzip();
    let Some(change) = change else {
        return OfLayer {
            own: of_parameters::<B>(read.clone(), gradient.clone(), own, sums),
            rows: for_rows.then(|| rows_gradient::<B>(read.x, read.weight, gradient)),
            ..OfLayer::none()
        };
    };
    let [a, b, s, magnitude] = &change;
    let [a_sum, b_sum, m_sum] = match change_sums {
        Some([a, b, _, m]) => [Some([a, Onto::Apart]), Some([b, Onto::Apart]), Some([Onto::Apart, m])],
        None => [None, None, None],
    };
    let factors = factors::<B>(&read.weight, &change);
    let weight_and_bias = match factors {
        // The bias is added behind the factors.
        Some(_) => of_parameters::<B>(read.clone(), gradient.clone(), [false, own[1]], sums),
        None => of_parameters::<B>(read.clone(), gradient.clone(), own, sums),
    };
    let (of_magnitude, gradient) = match factors {
        None => (None, gradient),
        Some([factors, inverse]) => {
            let of_magnitude = if wanted[3] {
                let of_parts = by_column::<B>(gradient.clone(), inverse);
                let (x, norm, weight) = (read.x.clone(), read.norm.clone(), read.weight.clone());
                let [parts, _] = sum_of_parts::<B>(x, norm, weight, &change, nothing::<B>(s), read.prologue);
                of_columns::<B>(B::float_mul(of_parts, parts), magnitude, m_sum)
            } else {
                None
            };
            (of_magnitude, by_column::<B>(gradient, factors))
        }
    };
    let of_a = if wanted[0] {
        let of_narrow = narrow_gradient::<B>(gradient.clone(), b.clone(), s.clone());
        let narrow = LinearSaved { weight: a.clone(), ..read.clone() };
        of_parameters::<B>(narrow, of_narrow, [true, false], a_sum)[0].clone()
    } else {
        None
    };
    let of_b = if wanted[1] {
        let [norm_weight, norm_bias] = read.norm.clone();
        let given = [read.x.clone(), norm_weight, norm_bias, a.clone(), nothing::<B>(a)];
        let [h, _] = prologue_linear::<B>(given, read.prologue);
        let narrow = plain::<B>(scaled::<B>(h, s.clone()), b.clone());
        of_parameters::<B>(narrow, gradient.clone(), [true, false], b_sum)[0].clone()
    } else {
        None
    };
    let rows = for_rows.then(|| {
        let of_rows = rows_gradient::<B>(read.x, read.weight, gradient.clone());
        let of_narrow = narrow_gradient::<B>(gradient, b.clone(), s.clone());
        add_product::<B>(of_rows, of_narrow, a.clone(), Side::Columns)
    });
    OfLayer { own: weight_and_bias, change: [of_a, of_b, None, of_magnitude], rows }
}

/// The gradient of the rows, which are like `x`, that a layer without a change reads behind its prologue.
fn rows_gradient<B: KernelBackend>(
    x: FloatTensor<B>,
    weight: FloatTensor<B>,
    gradient: FloatTensor<B>,
) -> FloatTensor<B> {
    let like = x.clone();
    let wanted = [true, false, false, false, false];
    let [of_rows, ..] = gradients::<B>(plain::<B>(x, weight), gradient, wanted, None);
    of_rows.unwrap_or(like)
}

/// The sums of the columns of rows, as the gradient of `parameter`: that of the bias of a layer with these outputs.
fn of_columns<B: KernelBackend>(
    rows: FloatTensor<B>,
    parameter: &FloatTensor<B>,
    sums: LayerSums<FloatTensor<B>>,
) -> Option<FloatTensor<B>> {
    let (mut shape, device, outputs) = (rows.shape(), rows.device(), parameter.shape()[0]);
    let last = shape.num_dims() - 1;
    shape[last] = 1;
    let (x, weight) = (
        full::<B>(shape, 0.0, &device, rows.dtype()),
        full::<B>(Shape::new([1, outputs]), 0.0, &device, parameter.dtype()),
    );
    let [_, of_bias] = of_parameters::<B>(plain::<B>(x, weight), rows, [false, true], sums);
    of_bias
}

/// The gradient of x A, from that of the layer's output.
fn narrow_gradient<B: KernelBackend>(gradient: FloatTensor<B>, b: FloatTensor<B>, s: FloatTensor<B>) -> FloatTensor<B> {
    let mut shape = gradient.shape();
    let last = shape.num_dims() - 1;
    shape[last] = b.shape()[0];
    let like = B::float_empty(shape, &gradient.device(), FloatDType::from(gradient.dtype()));
    scaled::<B>(rows_gradient::<B>(like, b, gradient), s)
}

/// A vector as one row of a tensor like `rows`, in its dtype.
fn along_rows<B: KernelBackend>(vector: FloatTensor<B>, rows: &FloatTensor<B>) -> FloatTensor<B> {
    let mut shape = vec![1; rows.shape().num_dims()];
    if let Some(last) = shape.last_mut() {
        *last = vector.shape().num_elements();
    }
    B::float_reshape(cast::<B>(vector, rows.dtype()), Shape::from(shape))
}

/// Rows, each of whose columns is multiplied by its factor.
fn by_column<B: KernelBackend>(rows: FloatTensor<B>, factors: FloatTensor<B>) -> FloatTensor<B> {
    let factors = along_rows::<B>(factors, &rows);
    B::float_mul(rows, factors)
}

/// `x` times s.
fn scaled<B: KernelBackend>(x: FloatTensor<B>, s: FloatTensor<B>) -> FloatTensor<B> {
    by_column::<B>(x, s)
}

/// What the backward pass of a linear layer without a prologue needs.
pub(crate) fn plain<B: KernelBackend>(x: FloatTensor<B>, weight: FloatTensor<B>) -> LinearSaved<FloatTensor<B>> {
    let none = nothing::<B>(&weight);
    LinearSaved { x, statistics: none.clone(), norm: [none.clone(), none], weight, prologue: Prologue::None }
}

/// A tensor without elements, in the place of a parameter that a layer does not have.
pub(crate) fn nothing<B: KernelBackend>(like: &FloatTensor<B>) -> FloatTensor<B> {
    full::<B>(Shape::new([0]), 0.0, &like.device(), like.dtype())
}

/// One linear layer whose weight has parts. Inputs are x, weight and bias of the norm, weight and bias of the layer, and the parts.
#[derive(Clone, Debug)]
pub(crate) struct LinearInParts {
    pub(crate) prologue: Prologue,
    pub(crate) appended: Appended,
}

impl Operation for LinearInParts {
    const NAME: &'static str = "linear in parts";

    /// What the layer reads, and the parts of its weight.
    type Saved<B: KernelBackend> = (LinearSaved<FloatTensor<B>>, Parts<FloatTensor<B>>);

    fn forward<B: KernelBackend>(
        &self,
        mut inputs: Vec<FloatTensor<B>>,
        wanted: &[bool],
    ) -> Computed<B, Self::Saved<B>> {
        let [parts] = all(self.appended.take(&mut inputs));
        let [x, norm_weight, norm_bias, weight, bias] = all(inputs);
        let (norm, prologue) = ([norm_weight, norm_bias], self.prologue);
        let kept = wanted.contains(&true).then(|| (x.clone(), norm.clone(), weight.clone(), parts.clone()));
        let [y, statistics] = changed_linear::<B>(x, norm, Weight { weight, parts }, bias, prologue);
        let saved = kept.map(|(x, norm, weight, parts)| (LinearSaved { x, statistics, norm, weight, prologue }, parts));
        Computed { outputs: vec![y], saved }
    }

    fn gradient<B: KernelBackend>(
        &self,
        (layer, parts): Self::Saved<B>,
        gradient: FloatTensor<B>,
        wanted: &[bool],
    ) -> Vec<Option<FloatTensor<B>>> {
        layer_gradients::<B>(layer, &self.appended, parts, gradient, wanted, None)
    }

    fn in_order(&self) -> InOrder {
        InOrder::Backward(PARAMETERS)
    }

    fn gradient_in_order<B: KernelBackend>(
        &self,
        (layer, parts): Self::Saved<B>,
        gradient: FloatTensor<B>,
        wanted: &[bool],
        sums: Vec<Onto<FloatTensor<B>>>,
    ) -> Vec<Option<FloatTensor<B>>> {
        layer_gradients::<B>(layer, &self.appended, parts, gradient, wanted, Some(sums))
    }
}

/// The gradients of the inputs of an operation: x, weight and bias of the norm, weight and bias of its one layer, others that have none, and the
/// change of the layer's weight if there is one.
pub(crate) fn layer_gradients<B: KernelBackend>(
    saved: LinearSaved<FloatTensor<B>>,
    appended: &Appended,
    parts: Parts<FloatTensor<B>>,
    gradient: FloatTensor<B>,
    wanted: &[bool],
    mut sums: Option<Vec<Onto<FloatTensor<B>>>>,
) -> Vec<Option<FloatTensor<B>>> {
    let mut wanted = wanted.to_vec();
    let [of_change] = all(appended.take_changes(&mut wanted));
    let change_sums = sums.as_mut().and_then(|sums| appended.take_changes(sums).into_iter().next().flatten());
    let Some(of_change) = of_change else {
        wanted.truncate(5);
        let saved = LinearSaved { weight: values::<B>(saved.weight, parts.codes, saved.x.dtype()), ..saved };
        return gradients::<B>(saved, gradient, all(wanted), sums).into();
    };
    let others = wanted.split_off(5).len();
    let [for_x, for_norm_weight, for_norm_bias, for_weight, for_bias] = all(wanted);
    let (norm_sums, sums) = sums
        .zip(change_sums)
        .map(|(sums, change_sums)| {
            let [x, norm_weight, norm_bias, weight, bias] = all(sums.into_iter().take(5).collect());
            ([x, norm_weight, norm_bias], ([weight, bias], change_sums))
        })
        .unzip();
    let before = [for_x, for_norm_weight, for_norm_bias];
    let (x, statistics, norm, prologue) =
        (saved.x.clone(), saved.statistics.clone(), saved.norm.clone(), saved.prologue);
    let OfLayer { own, change, rows } = layer_backward::<B>(LayerBackward {
        read: saved,
        parts,
        gradient,
        wanted: ([for_weight, for_bias], of_change),
        for_rows: before.contains(&true),
        sums,
    });
    let of_before = match rows {
        Some(of_rows) => prologue_gradients::<B>([x, statistics], norm, of_rows, prologue, before, norm_sums),
        None => [None, None, None],
    };
    of_before.into_iter().chain(own).chain(vec![None; others]).chain(change).collect()
}

/// The gradients of x and of the norm's weight and bias, from that of the prologue's output.
pub(crate) fn prologue_gradients<B: KernelBackend>(
    [x, statistics]: [FloatTensor<B>; 2],
    [norm_weight, _]: [FloatTensor<B>; 2],
    of_rows: FloatTensor<B>,
    prologue: Prologue,
    wanted: [bool; 3],
    sums: Option<[Onto<FloatTensor<B>>; 3]>,
) -> [Option<FloatTensor<B>>; 3] {
    match prologue {
        Prologue::None => [Some(of_rows), None, None],
        Prologue::Activation(kind) => [Some(activation_gradient::<B>(x, of_rows, kind)), None, None],
        Prologue::Norm(settings) => {
            row_norm_gradients::<B>([x, statistics, norm_weight], of_rows, settings, wanted, sums)
        }
    }
}
