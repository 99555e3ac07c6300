//! A norm and a gated feed-forward layer in one operation, on burn's modules.

use burn::backend::tensor::FloatTensor;
use burn::nn::{Linear, RmsNorm};
use burn::tensor::Tensor;
use kiln_operations::{Computed, InOrder, KernelBackend, Onto, Operation, all, run};

use crate::check::{main_input, same_size};
use crate::error::Error;
use crate::linear::{Prologue, gradients, parameters, prologue_linear};
use crate::norm::{Norm, NormSettings};
use crate::normed_layers::{NormedLayers, normed_gradients, normed_layers, nothing, plain};
use crate::swiglu::Swiglu;

/// An RMS norm and a gated feed-forward layer (SwiGLU, Shazeer 2020) in one operation: down(silu(gate(norm(x))) * up(norm(x))), as in the
/// blocks of Llama. The output has the bits of [`norm_linear`](crate::norm_linear), [`swiglu`](crate::swiglu) and
/// [`linear`](crate::linear) one after the other.
///
/// `x` is `[.., width]` in f32, f16 or bf16. `gate` and `up` have `width` inputs and as many outputs as `down` has inputs. The result
/// `[.., outputs of down]` has the dtype of `x`. Keeps `x`, the outputs of `gate` and `up`, and two f32 values for each row. The norm's output
/// and the product of the two are computed again in the backward pass.
///
/// # Errors
/// Those of [`norm_linear`](crate::norm_linear), for each of the layers.
pub fn gated_feed_forward<const D: usize>(
    norm: &RmsNorm,
    [gate, up, down]: [&Linear; 3],
    x: Tensor<D>,
) -> Result<Tensor<D>, Error> {
    main_input("the input", &x)?;
    let (width, device) = (x.dims()[D - 1], x.device());
    let (norm_weight, _, settings) = Norm::from(norm).parameters(width)?;
    let (gate, up) = (parameters(gate, width, &device)?, parameters(up, width, &device)?);
    let ([_, hidden], [_, of_up]) = (gate.0.dims(), up.0.dims());
    same_size(("the number of outputs of the gate", hidden), ("that of the layer beside it", of_up))?;
    let layers = [gate, up, parameters(down, hidden, &device)?];
    let layers = layers.into_iter().flat_map(|(weight, bias)| [weight.into_dispatch(), bias.into_dispatch()]);
    let inputs = [x.into_dispatch(), norm_weight.into_dispatch()].into_iter().chain(layers).collect();
    Ok(Tensor::from_dispatch(run(GatedFeedForward(settings), inputs).remove(0)))
}

/// The settings of the norm. Inputs are x, the norm's weight, and weight and bias of gate, up and down.
#[derive(Clone, Copy, Debug)]
struct GatedFeedForward(NormSettings);

/// What the backward pass needs.
#[derive(Clone, Debug)]
struct Saved<T> {
    /// The norm, and the layers of gate and up.
    layers: NormedLayers<T>,
    /// The outputs of gate and up.
    gate: T,
    up: T,
    /// The weight of the last layer.
    weight: T,
}

impl Operation for GatedFeedForward {
    const NAME: &'static str = "gated feed-forward";

    type Saved<B: KernelBackend> = Saved<FloatTensor<B>>;

    fn forward<B: KernelBackend>(
        &self,
        mut inputs: Vec<FloatTensor<B>>,
        wanted: &[bool],
    ) -> Computed<B, Self::Saved<B>> {
        let [weight, bias] = all(inputs.split_off(6));
        let (outputs, layers) = normed_layers::<B>(inputs, self.0);
        let [gate, up] = all(outputs);
        let product = product::<B>(&gate, &up);
        let kept = weight.clone();
        let saved = wanted.contains(&true).then(|| Saved { layers, gate, up, weight: kept });
        let none = nothing::<B>(&weight);
        let [y, _] = prologue_linear::<B>([product, none.clone(), none, weight, bias], Prologue::None);
        Computed { outputs: vec![y], saved }
    }

    fn gradient<B: KernelBackend>(
        &self,
        saved: Self::Saved<B>,
        gradient: FloatTensor<B>,
        wanted: &[bool],
    ) -> Vec<Option<FloatTensor<B>>> {
        backward::<B>(saved, gradient, wanted, None)
    }

    fn in_order(&self) -> InOrder {
        InOrder::Backward(&[1, 2, 3, 4, 5, 6, 7])
    }

    fn gradient_in_order<B: KernelBackend>(
        &self,
        saved: Self::Saved<B>,
        gradient: FloatTensor<B>,
        wanted: &[bool],
        sums: Vec<Onto<FloatTensor<B>>>,
    ) -> Vec<Option<FloatTensor<B>>> {
        backward::<B>(saved, gradient, wanted, Some(sums))
    }
}

/// silu(gate) * up.
fn product<B: KernelBackend>(gate: &FloatTensor<B>, up: &FloatTensor<B>) -> FloatTensor<B> {
    let [product] = all(B::run(&Swiglu::Forward, vec![gate.clone(), up.clone()]));
    product
}

/// The gradients of the inputs that are wanted.
fn backward<B: KernelBackend>(
    Saved { layers, gate, up, weight }: Saved<FloatTensor<B>>,
    gradient: FloatTensor<B>,
    wanted: &[bool],
    mut sums: Option<Vec<Onto<FloatTensor<B>>>>,
) -> Vec<Option<FloatTensor<B>>> {
    let first = layers.inputs();
    let last_sums = sums.as_mut().map(|sums| {
        let [weight, bias] = all(sums.split_off(first));
        vec![Onto::Apart, Onto::Apart, Onto::Apart, weight, bias]
    });
    let flags = [wanted[..first].contains(&true), false, false, wanted[first], wanted[first + 1]];
    // The values of the product are read for the gradient of the weight alone.
    let read = if wanted[first] { product::<B>(&gate, &up) } else { gate.clone() };
    let [of_product, _, _, of_weight, of_bias] = gradients::<B>(plain::<B>(read, weight), gradient, flags, last_sums);
    let mut made = match of_product {
        Some(of_product) => {
            let of_outputs = B::run(&Swiglu::Backward, vec![gate, up, of_product]);
            normed_gradients::<B>(layers, of_outputs, &wanted[..first], sums)
        }
        None => vec![None; first],
    };
    made.extend([of_weight, of_bias]);
    made
}
