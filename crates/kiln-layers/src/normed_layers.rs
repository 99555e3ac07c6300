//! Linear layers that read the output of one norm. The norm's output never exists as a whole.

use burn::backend::TensorMetadata;
use burn::backend::tensor::FloatTensor;
use burn::tensor::Shape;
use kiln_operations::{KernelBackend, Onto, all};

use crate::composed::full;
use crate::linear::{LinearSaved, Prologue, gradients, prologue_linear};
use crate::norm::{NormSettings, row_norm_gradients};

/// What the backward pass of the layers needs.
#[derive(Clone, Debug)]
pub(crate) struct NormedLayers<T> {
    /// The input of the norm.
    pub(crate) x: T,
    /// The statistics of its rows.
    statistics: T,
    /// The norm's weight.
    norm: T,
    /// The weight of each layer.
    weights: Vec<T>,
    settings: NormSettings,
}

/// The outputs of the layers, from x, the norm's weight, and weight and bias of each layer.
pub(crate) fn normed_layers<B: KernelBackend>(
    inputs: Vec<FloatTensor<B>>,
    settings: NormSettings,
) -> (Vec<FloatTensor<B>>, NormedLayers<FloatTensor<B>>) {
    let mut inputs = inputs.into_iter();
    let [x, norm] = all(inputs.by_ref().take(2).collect());
    let none = nothing::<B>(&norm);
    let (mut outputs, mut weights, mut found) = (vec![], vec![], None);
    while let (Some(weight), Some(bias)) = (inputs.next(), inputs.next()) {
        weights.push(weight.clone());
        let given = [x.clone(), norm.clone(), none.clone(), weight, bias];
        let [y, statistics] = prologue_linear::<B>(given, Prologue::Norm(settings));
        outputs.push(y);
        found.get_or_insert(statistics);
    }
    let statistics = found.unwrap_or(none);
    (outputs, NormedLayers { x, statistics, norm, weights, settings })
}

impl<T: Clone> NormedLayers<T> {
    /// The inputs that are read by the norm and the layers: x, the norm's weight, and weight and bias of each layer.
    pub(crate) fn inputs(&self) -> usize {
        2 + 2 * self.weights.len()
    }
}

/// The gradients of the layers' inputs that are wanted, in their order, from those of the outputs. With `sums`, one for each input, rows are
/// added in their order, to the sums that are there.
pub(crate) fn normed_gradients<B: KernelBackend>(
    saved: NormedLayers<FloatTensor<B>>,
    of_outputs: Vec<FloatTensor<B>>,
    wanted: &[bool],
    sums: Option<Vec<Onto<FloatTensor<B>>>>,
) -> Vec<Option<FloatTensor<B>>> {
    let NormedLayers { x, statistics, norm, weights, settings } = saved;
    let none = nothing::<B>(&norm);
    let mut sums = sums.map(Vec::into_iter);
    let mut next = || sums.as_mut().map(|sums| sums.next().unwrap_or(Onto::Apart));
    let (_, of_norm) = (next(), next());
    let (mut of_layers, mut of_normed) = (vec![], None);
    for (index, (weight, gradient)) in weights.into_iter().zip(of_outputs).enumerate() {
        let layer_sums =
            next().zip(next()).map(|(weight, bias)| vec![Onto::Apart, Onto::Apart, Onto::Apart, weight, bias]);
        let wanted_here = [false, false, false, wanted[2 + 2 * index], wanted[3 + 2 * index]];
        if wanted_here.contains(&true) {
            let (x, statistics, weight) = (x.clone(), statistics.clone(), weight.clone());
            let norm = [norm.clone(), none.clone()];
            let saved = LinearSaved { x, statistics, norm, weight, prologue: Prologue::Norm(settings) };
            let [_, _, _, of_weight, of_bias] = gradients::<B>(saved, gradient.clone(), wanted_here, layer_sums);
            of_layers.extend([of_weight, of_bias]);
        } else {
            of_layers.extend([None, None]);
        }
        if wanted[0] || wanted[1] {
            let of_input = input_gradient::<B>(x.clone(), weight, gradient);
            of_normed = Some(match of_normed {
                Some(sum) => B::float_add(sum, of_input),
                None => of_input,
            });
        }
    }
    let mut made = vec![None, None];
    if let Some(of_normed) = of_normed {
        let sums = of_norm.map(|of_norm| [Onto::Apart, of_norm, Onto::Apart]);
        let wanted = [wanted[0], wanted[1], false];
        let [of_x, of_norm, _] = row_norm_gradients::<B>([x, statistics, norm], of_normed, settings, wanted, sums);
        made = vec![of_x, of_norm];
    }
    made.extend(of_layers);
    made
}

/// The gradient of the input of a linear layer, which is like `x`, without its prologue.
fn input_gradient<B: KernelBackend>(
    x: FloatTensor<B>,
    weight: FloatTensor<B>,
    gradient: FloatTensor<B>,
) -> FloatTensor<B> {
    let like = x.clone();
    let [of_input, ..] = gradients::<B>(plain::<B>(x, weight), gradient, [true, false, false, false, false], None);
    of_input.unwrap_or(like)
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
