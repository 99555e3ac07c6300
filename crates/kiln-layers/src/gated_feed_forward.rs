//! A norm and a gated feed-forward layer in one operation, on burn's modules.

use burn::backend::tensor::FloatTensor;
use burn::nn::{Linear, RmsNorm};
use burn::tensor::Tensor;
use kiln_operations::{Computed, InOrder, KernelBackend, Onto, Operation, all, run};

use crate::check::{main_input, same_size};
use crate::error::Error;
use crate::in_parts::{Cut, InParts, OfParts, is_long};
use crate::linear::{
    Appended, LayerBackward, LayerWeight, OfLayer, PARAMETERS, Prologue, changed_linear, layer_backward, nothing,
    parameters, plain,
};
use crate::norm::{Norm, NormSettings};
use crate::normed_layers::{NormedLayers, Wanted, layer_inputs, normed_gradients, normed_layers};
use crate::swiglu::Swiglu;

/// An RMS norm and a gated feed-forward layer (SwiGLU, Shazeer 2020) in one operation: down(silu(gate(norm(x))) * up(norm(x))), as in the
/// blocks of Llama. The output has the bits of [`norm_linear`](crate::norm_linear), [`swiglu`](crate::swiglu) and
/// [`linear`](crate::linear) one after the other.
///
/// `x` is `[.., width]` in f32, f16 or bf16. `gate` and `up` have `width` inputs and as many outputs as `down` has inputs. The result
/// `[.., outputs of down]` has the dtype of `x`. Keeps `x`, the outputs of `gate` and `up`, and two f32 values for each row. The norm's output
/// and the product of the two are computed again in the backward pass. A sequence of more than 8,192 positions is taken part by part, as by
/// [`feed_forward`](crate::feed_forward).
///
/// # Errors
/// Those of [`norm_linear`](crate::norm_linear), for each of the layers.
pub fn gated_feed_forward<const D: usize>(
    norm: &RmsNorm,
    [gate, up, down]: [&Linear; 3],
    x: Tensor<D>,
) -> Result<Tensor<D>, Error> {
    main_input("the input", &x)?;
    let (x_dims, device) = (x.dims(), x.device());
    let width = x_dims[D - 1];
    let of_rows = (&device, x.dtype());
    let (norm_weight, _, settings) = Norm::from(norm).parameters(width)?;
    let (gate, up) = (parameters(gate, width, of_rows)?, parameters(up, width, of_rows)?);
    let ([_, hidden], [_, of_up]) = (gate.weight.dims(), up.weight.dims());
    same_size(("the number of outputs of the gate", hidden), ("that of the layer beside it", of_up))?;
    let (layers, parts) = layer_inputs([gate, up, parameters(down, hidden, of_rows)?]);
    let mut inputs: Vec<_> = [x.into_dispatch(), norm_weight.into_dispatch()].into_iter().chain(layers).collect();
    let appended = Appended::append(&mut inputs, parts);
    let operation = GatedFeedForward { norm: settings, appended };
    let made: Vec<_> = match D == 3 && is_long(x_dims[1]) {
        true => run(InParts { operation, cut: Cut::OfTime }, inputs),
        false => run(operation, inputs),
    };
    let [y] = all(made);
    Ok(Tensor::from_dispatch(y))
}

/// Inputs are x, the norm's weight, weight and bias of gate, up and down, and the parts of their weights.
#[derive(Clone, Debug)]
struct GatedFeedForward {
    norm: NormSettings,
    appended: Appended,
}

/// What the backward pass needs.
#[derive(Clone, Debug)]
struct Saved<T> {
    /// The norm, and the layers of gate and up.
    layers: NormedLayers<T>,
    /// The outputs of gate and up.
    gate: T,
    up: T,
    /// The weight of the last layer.
    weight: LayerWeight<T>,
}

impl OfParts for GatedFeedForward {}

impl Operation for GatedFeedForward {
    const NAME: &'static str = "gated feed-forward";

    type Saved<B: KernelBackend> = Saved<FloatTensor<B>>;

    fn forward<B: KernelBackend>(
        &self,
        mut inputs: Vec<FloatTensor<B>>,
        wanted: &[bool],
    ) -> Computed<B, Self::Saved<B>> {
        let [gate, up, parts] = all(self.appended.take(&mut inputs));
        let [weight, bias] = all(inputs.split_off(6));
        let weight = LayerWeight { weight, parts };
        let (outputs, layers) = normed_layers::<B>(inputs, vec![gate, up], self.norm);
        let [gate, up] = all(outputs);
        let product = product::<B>(&gate, &up);
        let saved = wanted.contains(&true).then(|| Saved { layers, gate, up, weight: weight.clone() });
        let none = nothing::<B>(&weight.weight);
        let [y, _] = changed_linear::<B>(product, [none.clone(), none], weight, bias, Prologue::None);
        Computed { outputs: vec![y], saved }
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

/// silu(gate) * up.
fn product<B: KernelBackend>(gate: &FloatTensor<B>, up: &FloatTensor<B>) -> FloatTensor<B> {
    let [product] = all(B::run(&Swiglu::Forward, vec![gate.clone(), up.clone()]));
    product
}

impl GatedFeedForward {
    /// The gradients of the inputs that are wanted.
    fn gradients<B: KernelBackend>(
        &self,
        Saved { layers, gate, up, weight }: Saved<FloatTensor<B>>,
        gradient: FloatTensor<B>,
        wanted: &[bool],
        mut sums: Option<Vec<Onto<FloatTensor<B>>>>,
    ) -> Vec<Option<FloatTensor<B>>> {
        let mut wanted = wanted.to_vec();
        let mut changes = self.appended.take_changes(&mut wanted);
        let mut change_sums = sums.as_mut().map(|sums| self.appended.take_changes(sums));
        let first = layers.inputs();
        let of_change = changes.pop().flatten();
        let last_sums = sums.as_mut().zip(change_sums.as_mut()).map(|(sums, changes)| {
            let of_change = changes.pop().flatten().unwrap_or([(); 4].map(|()| Onto::Apart));
            (all(sums.split_off(first)), of_change)
        });
        let own = [wanted[first], wanted[first + 1]];
        wanted.truncate(first);
        let before = wanted.contains(&true) || changes.iter().flatten().flatten().any(|wanted| *wanted);
        // The values of the product are read for the gradients of the layer's parameters alone.
        let reads = own.contains(&true) || of_change.into_iter().flatten().any(|wanted| wanted);
        let read = if reads { product::<B>(&gate, &up) } else { gate.clone() };
        let OfLayer { own, change, rows } = layer_backward::<B>(LayerBackward {
            read: plain::<B>(read, weight.weight),
            parts: weight.parts,
            gradient,
            wanted: (own, of_change.unwrap_or_default()),
            for_rows: before,
            sums: last_sums,
        });
        let (mut made, mut of_changes) = match rows {
            Some(of_product) => {
                let of_outputs = B::run(&Swiglu::Backward, vec![gate, up, of_product]);
                let wanted = Wanted { inputs: wanted, changes, sums: sums.zip(change_sums) };
                normed_gradients::<B>(layers, of_outputs, wanted)
            }
            None => (vec![None; first], changes.iter().map(|change| change.map(|_| [const { None }; 4])).collect()),
        };
        made.extend(own);
        of_changes.push(of_change.map(|_| change));
        made.extend(of_changes.into_iter().flatten().flatten());
        made
    }
}
