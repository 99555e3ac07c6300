//! Linear layers whose weight may have a low-rank change: `x W + s (x A) B + bias`. The sum `W + s A B` and a gradient of W never exist.

use burn::backend::DispatchTensor;
use burn::backend::TensorMetadata;
#[cfg(feature = "flex")]
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::tensor::{FloatDType, Shape, Tensor};
use kiln_operations::{Computed, Cost, InOrder, Kernel, KernelBackend, LowRankWeight, Onto, Operation, all};

use super::graph::{LinearSaved, gradients, prologue_linear};
use super::settings::{ADD_PRODUCT, Prologue};
use crate::activation::activation_gradient;
use crate::composed::{cast, full};
use crate::norm::row_norm_gradients;

/// The parameters of a linear layer.
pub(crate) struct Parameters {
    pub(crate) weight: Tensor<2>,
    /// Has no elements if there is none.
    pub(crate) bias: Tensor<1>,
    /// A, B and s.
    change: Option<(Tensor<2>, Tensor<2>, Tensor<1>)>,
}

impl Parameters {
    pub(super) fn plain(weight: Tensor<2>, bias: Tensor<1>) -> Self {
        Self { weight, bias, change: None }
    }

    pub(super) fn changed(LowRankWeight { weight, a, b, scale }: LowRankWeight, bias: Tensor<1>) -> Self {
        Self { weight, bias, change: Some((a, b, scale)) }
    }

    /// Weight and bias, and A, B and s of the change, if there is one.
    pub(crate) fn into_inputs(self) -> ([DispatchTensor; 2], Option<[DispatchTensor; 3]>) {
        let change = self.change.map(|(a, b, s)| [a.into_dispatch(), b.into_dispatch(), s.into_dispatch()]);
        ([self.weight.into_dispatch(), self.bias.into_dispatch()], change)
    }
}

/// Which of the layers of an operation have a low-rank change. A, B and s of each change are the last inputs of the operation.
#[derive(Clone, Debug)]
pub(crate) struct Changed(Vec<bool>);

impl Changed {
    /// Adds the changes to the inputs of an operation.
    pub(crate) fn append(
        inputs: &mut Vec<DispatchTensor>,
        changes: impl IntoIterator<Item = Option<[DispatchTensor; 3]>>,
    ) -> Self {
        let append = |change: Option<[DispatchTensor; 3]>| {
            let changed = change.is_some();
            inputs.extend(change.into_iter().flatten());
            changed
        };
        Self(changes.into_iter().map(append).collect())
    }

    /// Takes what belongs to the changes from the end of a list with an item for each input, and returns it by layer.
    pub(crate) fn take<T>(&self, items: &mut Vec<T>) -> Vec<Option<[T; 3]>> {
        let count = 3 * self.0.iter().filter(|changed| **changed).count();
        let mut last = items.split_off(items.len() - count).into_iter();
        self.0.iter().map(|changed| changed.then(|| all(last.by_ref().take(3).collect()))).collect()
    }
}

/// All inputs of an operation but the first, of as many as it has.
pub(crate) const PARAMETERS: &[usize] =
    &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23];

/// A weight and its change, as the backward pass reads them.
#[derive(Clone, Debug)]
pub(crate) struct Weight<T> {
    pub(crate) weight: T,
    /// A, B and s.
    pub(crate) change: Option<[T; 3]>,
}

/// The output of a layer that reads `x` behind a prologue, and the statistics of each row if the prologue is a norm.
pub(crate) fn changed_linear<B: KernelBackend>(
    x: FloatTensor<B>,
    [norm_weight, norm_bias]: [FloatTensor<B>; 2],
    Weight { weight, change }: Weight<FloatTensor<B>>,
    bias: FloatTensor<B>,
    prologue: Prologue,
) -> [FloatTensor<B>; 2] {
    let Some([a, b, s]) = change else {
        return prologue_linear::<B>([x, norm_weight, norm_bias, weight, bias], prologue);
    };
    let none = nothing::<B>(&a);
    let given = [x.clone(), norm_weight.clone(), norm_bias.clone(), a, none];
    let [h, _] = prologue_linear::<B>(given, prologue);
    let [y, statistics] = prologue_linear::<B>([x, norm_weight, norm_bias, weight, bias], prologue);
    [add_product::<B>(y, scaled::<B>(h, s), b, Side::Rows), statistics]
}

/// The gradients of weight and bias, of A and of B.
type OfParameters<T> = ([Option<T>; 2], [Option<T>; 2]);

/// The gradients of a layer's own parameters that are `wanted`, from the gradient of its output. `saved` is what the layer reads. With `sums`
/// rows are added in their order, to the sums that are there.
pub(crate) fn parameter_gradients<B: KernelBackend>(
    saved: &LinearSaved<FloatTensor<B>>,
    change: Option<&[FloatTensor<B>; 3]>,
    gradient: &FloatTensor<B>,
    (wanted, of_change): ([bool; 2], [bool; 2]),
    sums: Option<([Onto<FloatTensor<B>>; 2], [Onto<FloatTensor<B>>; 2])>,
) -> OfParameters<FloatTensor<B>> {
    let (sums, change_sums) = sums.unzip();
    let of_layer =
        |saved: LinearSaved<FloatTensor<B>>, gradient, [weight, bias]: [bool; 2], sums: Option<[Onto<_>; 2]>| {
            if !(weight || bias) {
                return [None, None];
            }
            let sums = sums.map(|[weight, bias]| vec![Onto::Apart, Onto::Apart, Onto::Apart, weight, bias]);
            let [_, _, _, of_weight, of_bias] =
                gradients::<B>(saved, gradient, [false, false, false, weight, bias], sums);
            [of_weight, of_bias]
        };
    let own = of_layer(saved.clone(), gradient.clone(), wanted, sums);
    let Some([a, b, s]) = change.filter(|_| of_change.contains(&true)) else { return (own, [None, None]) };
    let (a_sum, b_sum) = change_sums.map(|[a, b]| ([a, Onto::Apart], [b, Onto::Apart])).unzip();
    let of_narrow = narrow_gradient::<B>(gradient.clone(), b.clone(), s.clone());
    let [of_a, _] =
        of_layer(LinearSaved { weight: a.clone(), ..saved.clone() }, of_narrow, [of_change[0], false], a_sum);
    let of_b = if of_change[1] {
        let [norm_weight, norm_bias] = saved.norm.clone();
        let given = [saved.x.clone(), norm_weight, norm_bias, a.clone(), nothing::<B>(a)];
        let [h, _] = prologue_linear::<B>(given, saved.prologue);
        let narrow = plain::<B>(scaled::<B>(h, s.clone()), b.clone());
        of_layer(narrow, gradient.clone(), [true, false], b_sum)[0].clone()
    } else {
        None
    };
    (own, [of_a, of_b])
}

/// The gradient of the rows that a layer reads behind its prologue, which are like `x`, from that of its output.
pub(crate) fn rows_gradient<B: KernelBackend>(
    x: FloatTensor<B>,
    Weight { weight, change }: Weight<FloatTensor<B>>,
    gradient: FloatTensor<B>,
) -> FloatTensor<B> {
    let like = x.clone();
    let wanted = [true, false, false, false, false];
    let [of_rows, ..] = gradients::<B>(plain::<B>(x, weight), gradient.clone(), wanted, None);
    let of_rows = of_rows.unwrap_or(like);
    match change {
        None => of_rows,
        Some([a, b, s]) => add_product::<B>(of_rows, narrow_gradient::<B>(gradient, b, s), a, Side::Columns),
    }
}

/// The gradient of x A, from that of the layer's output.
fn narrow_gradient<B: KernelBackend>(gradient: FloatTensor<B>, b: FloatTensor<B>, s: FloatTensor<B>) -> FloatTensor<B> {
    let mut shape = gradient.shape();
    let last = shape.num_dims() - 1;
    shape[last] = b.shape()[0];
    let like = B::float_empty(shape, &gradient.device(), FloatDType::from(gradient.dtype()));
    scaled::<B>(rows_gradient::<B>(like, Weight { weight: b, change: None }, gradient), s)
}

/// `x` times s.
fn scaled<B: KernelBackend>(x: FloatTensor<B>, s: FloatTensor<B>) -> FloatTensor<B> {
    let ones = vec![1; x.shape().num_dims()];
    let s = cast::<B>(s, x.dtype());
    B::float_mul(x, B::float_reshape(s, Shape::from(ones)))
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

/// One linear layer whose weight has a low-rank change. Inputs are x, weight and bias of the norm, weight and bias of the layer, A, B and s.
#[derive(Clone, Copy, Debug)]
pub(super) struct LowRankLinear(pub(super) Prologue);

impl Operation for LowRankLinear {
    const NAME: &'static str = "low-rank linear";

    /// What the layer reads, and its change.
    type Saved<B: KernelBackend> = (LinearSaved<FloatTensor<B>>, [FloatTensor<B>; 3]);

    fn forward<B: KernelBackend>(&self, inputs: Vec<FloatTensor<B>>, wanted: &[bool]) -> Computed<B, Self::Saved<B>> {
        let [x, norm_weight, norm_bias, weight, bias, a, b, s] = all(inputs);
        let (norm, change, prologue) = ([norm_weight, norm_bias], [a, b, s], self.0);
        let kept = wanted.contains(&true).then(|| (x.clone(), norm.clone(), weight.clone(), change.clone()));
        let [y, statistics] = changed_linear::<B>(x, norm, Weight { weight, change: Some(change) }, bias, prologue);
        let saved =
            kept.map(|(x, norm, weight, change)| (LinearSaved { x, statistics, norm, weight, prologue }, change));
        Computed { outputs: vec![y], saved }
    }

    fn gradient<B: KernelBackend>(
        &self,
        (layer, change): Self::Saved<B>,
        gradient: FloatTensor<B>,
        wanted: &[bool],
    ) -> Vec<Option<FloatTensor<B>>> {
        layer_gradients::<B>(layer, &Changed(vec![true]), vec![Some(change)], gradient, wanted, None)
    }

    fn in_order(&self) -> InOrder {
        InOrder::Backward(PARAMETERS)
    }

    fn gradient_in_order<B: KernelBackend>(
        &self,
        (layer, change): Self::Saved<B>,
        gradient: FloatTensor<B>,
        wanted: &[bool],
        sums: Vec<Onto<FloatTensor<B>>>,
    ) -> Vec<Option<FloatTensor<B>>> {
        layer_gradients::<B>(layer, &Changed(vec![true]), vec![Some(change)], gradient, wanted, Some(sums))
    }
}

/// The gradients of the inputs of an operation: x, weight and bias of the norm, weight and bias of its one layer, others that have none, and the
/// layer's change if there is one.
pub(crate) fn layer_gradients<B: KernelBackend>(
    saved: LinearSaved<FloatTensor<B>>,
    changed: &Changed,
    change: Vec<Option<[FloatTensor<B>; 3]>>,
    gradient: FloatTensor<B>,
    wanted: &[bool],
    mut sums: Option<Vec<Onto<FloatTensor<B>>>>,
) -> Vec<Option<FloatTensor<B>>> {
    let mut wanted = wanted.to_vec();
    let (Some(change), Some([for_a, for_b, _])) =
        (change.into_iter().next().flatten(), changed.take(&mut wanted).into_iter().next().flatten())
    else {
        wanted.truncate(5);
        return gradients::<B>(saved, gradient, all(wanted), sums).into();
    };
    let change_sums = sums.as_mut().and_then(|sums| changed.take(sums).into_iter().next().flatten());
    let others = wanted.split_off(5).len();
    let [for_x, for_norm_weight, for_norm_bias, for_weight, for_bias] = all(wanted);
    let (norm_sums, sums) = sums
        .zip(change_sums)
        .map(|(sums, [a, b, _])| {
            let [x, norm_weight, norm_bias, weight, bias] = all(sums.into_iter().take(5).collect());
            ([x, norm_weight, norm_bias], ([weight, bias], [a, b]))
        })
        .unzip();
    let flags = ([for_weight, for_bias], [for_a, for_b]);
    let (own, of_change) = parameter_gradients::<B>(&saved, Some(&change), &gradient, flags, sums);
    let flags = [for_x, for_norm_weight, for_norm_bias];
    let LinearSaved { x, statistics, norm, weight, prologue } = saved;
    let before = match flags.contains(&true) {
        true => {
            let of_rows = rows_gradient::<B>(x.clone(), Weight { weight, change: Some(change) }, gradient);
            prologue_gradients::<B>([x, statistics], norm, of_rows, prologue, flags, norm_sums)
        }
        false => [None, None, None],
    };
    before.into_iter().chain(own).chain(vec![None; others]).chain(of_change).collect()
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

/// The side of a matrix that rows are multiplied with.
#[derive(Clone, Copy, Debug)]
enum Side {
    /// Its rows: the product is with the matrix.
    Rows,
    /// Its columns: the product is with the transposed matrix.
    Columns,
}

/// Rows, to which the product of other rows with a matrix is added. Inputs are the first rows, the others, and the matrix.
#[derive(Clone, Copy, Debug)]
struct AddProduct(Side);

fn add_product<B: KernelBackend>(
    y: FloatTensor<B>,
    x: FloatTensor<B>,
    matrix: FloatTensor<B>,
    side: Side,
) -> FloatTensor<B> {
    let [y] = all(B::run(&AddProduct(side), vec![y, x, matrix]));
    y
}

impl Kernel for AddProduct {
    fn cost(&self) -> &'static Cost {
        &ADD_PRODUCT
    }

    /// The side.
    fn scalars(&self) -> Vec<i64> {
        vec![self.0 as i64]
    }

    fn composed<B: KernelBackend>(&self, inputs: Vec<FloatTensor<B>>) -> Vec<FloatTensor<B>> {
        let [y, x, matrix] = all(inputs);
        let (shape, dtype) = (y.shape(), y.dtype());
        let matrix = cast::<B>(matrix, dtype);
        let matrix = match self.0 {
            Side::Rows => matrix,
            Side::Columns => B::float_transpose(matrix),
        };
        let product = B::float_matmul(super::composed::matrix::<B>(x), matrix);
        vec![B::float_add(y, B::float_reshape(product, shape))]
    }

    #[cfg(feature = "flex")]
    fn flex(&self, inputs: Vec<FlexTensor>) -> Vec<FlexTensor> {
        let [y, x, matrix] = all(inputs);
        vec![super::flex::add_product(y, &x, &matrix, matches!(self.0, Side::Columns))]
    }
}
