//! Linear layers that read the output of one norm. The norm's output never exists as a whole.

use burn::backend::DispatchTensor;
use burn::backend::tensor::FloatTensor;
use kiln_operations::{KernelBackend, Onto, all};

use crate::linear::{
    Change, LayerBackward, LayerWeight, LinearSaved, OfLayer, Parameters, Parts, Prologue, changed_linear,
    layer_backward, nothing, prologue_gradients,
};
use crate::norm::NormSettings;

/// Weight and bias of each layer, and the parts of the weights.
pub(crate) fn layer_inputs(
    layers: impl IntoIterator<Item = Parameters>,
) -> (Vec<DispatchTensor>, Vec<Parts<DispatchTensor>>) {
    let (layers, parts): (Vec<_>, Vec<_>) = layers.into_iter().map(Parameters::into_inputs).unzip();
    (layers.into_iter().flatten().collect(), parts)
}

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
    weights: Vec<LayerWeight<T>>,
    settings: NormSettings,
}

/// The outputs of the layers, from x, the norm's weight, and weight and bias of each layer, and from the parts of the weights.
pub(crate) fn normed_layers<B: KernelBackend>(
    inputs: Vec<FloatTensor<B>>,
    parts: Vec<Parts<FloatTensor<B>>>,
    settings: NormSettings,
) -> (Vec<FloatTensor<B>>, NormedLayers<FloatTensor<B>>) {
    let mut inputs = inputs.into_iter();
    let [x, norm] = all(inputs.by_ref().take(2).collect());
    let none = nothing::<B>(&norm);
    let (mut outputs, mut weights, mut found) = (vec![], vec![], None);
    for parts in parts {
        let [weight, bias] = all(inputs.by_ref().take(2).collect());
        let weight = LayerWeight { weight, parts };
        weights.push(weight.clone());
        let norm = [norm.clone(), none.clone()];
        let [y, statistics] = changed_linear::<B>(x.clone(), norm, weight, bias, Prologue::Norm(settings));
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

/// Gradients of inputs, and of the change of each layer.
pub(crate) type OfLayers<T> = (Vec<Option<T>>, Vec<Option<Change<Option<T>>>>);

/// The sums of inputs, and of the change of each layer.
type SumsOfLayers<T> = (Vec<Onto<T>>, Vec<Option<Change<Onto<T>>>>);

/// Flags and sums of the inputs and of the low-rank changes: whether their gradients are wanted, and what they are added to.
pub(crate) struct Wanted<T> {
    pub(crate) inputs: Vec<bool>,
    pub(crate) changes: Vec<Option<Change<bool>>>,
    /// With sums, one for each input, rows are added in their order, to the sums that are there.
    pub(crate) sums: Option<SumsOfLayers<T>>,
}

/// The gradients of the layers' inputs that are wanted, in their order, from those of the outputs.
pub(crate) fn normed_gradients<B: KernelBackend>(
    saved: NormedLayers<FloatTensor<B>>,
    of_outputs: Vec<FloatTensor<B>>,
    wanted: Wanted<FloatTensor<B>>,
) -> OfLayers<FloatTensor<B>> {
    let NormedLayers { x, statistics, norm, weights, settings } = saved;
    let Wanted { inputs: wanted, changes, sums } = wanted;
    let (norm, prologue) = ([norm.clone(), nothing::<B>(&norm)], Prologue::Norm(settings));
    let (sums, change_sums) = sums.unzip();
    let (mut sums, mut change_sums) = (sums.map(Vec::into_iter), change_sums.map(Vec::into_iter));
    let norm_sums = sums.as_mut().map(|sums| all::<_, 2>(sums.by_ref().take(2).collect()));
    let (mut of_layers, mut of_changes, mut of_normed) = (vec![], vec![], None);
    for (index, ((weight, of_change), gradient)) in weights.into_iter().zip(changes).zip(of_outputs).enumerate() {
        let own_sums = sums.as_mut().map(|sums| all::<_, 2>(sums.by_ref().take(2).collect()));
        let own_change_sums =
            change_sums.as_mut().map(|sums| sums.next().flatten().unwrap_or([(); 4].map(|()| Onto::Apart)));
        let LayerWeight { weight, parts } = weight;
        let OfLayer { own, change, rows } = layer_backward::<B>(LayerBackward {
            read: LinearSaved { x: x.clone(), statistics: statistics.clone(), norm: norm.clone(), weight, prologue },
            parts,
            gradient,
            wanted: ([wanted[2 + 2 * index], wanted[3 + 2 * index]], of_change.unwrap_or_default()),
            for_rows: wanted[0] || wanted[1],
            sums: own_sums.zip(own_change_sums),
        });
        of_layers.extend(own);
        of_changes.push(of_change.map(|_| change));
        if let Some(of_rows) = rows {
            of_normed = Some(match of_normed {
                Some(sum) => B::float_add(sum, of_rows),
                None => of_rows,
            });
        }
    }
    let mut made = vec![None, None];
    if let Some(of_normed) = of_normed {
        let sums = norm_sums.map(|[_, of_norm]| [Onto::Apart, of_norm, Onto::Apart]);
        let wanted = [wanted[0], wanted[1], false];
        let [of_x, of_norm, _] = prologue_gradients::<B>([x, statistics], norm, of_normed, prologue, wanted, sums);
        made = vec![of_x, of_norm];
    }
    made.extend(of_layers);
    (made, of_changes)
}
