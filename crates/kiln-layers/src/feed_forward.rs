//! A norm and a feed-forward layer, on burn's modules.

use burn::nn::Linear;
use burn::tensor::{DType, Tensor};
use kiln_operations::run;

use crate::activation::Activation;
use crate::error::Error;
use crate::in_parts::{Chain, Cut, InParts, is_long};
use crate::linear::{
    Appended, Input, LinearInParts, Prepared, Prologue, activation_linear, norm_linear, parameters, prepared,
};
use crate::norm::Norm;

/// A norm and a feed-forward layer: down(activation(up(norm(x)))), as in the blocks of GPT-2.
///
/// `x` is `[.., width]` in f32, f16 or bf16. `up` has as many outputs as `down` has inputs. The result `[.., outputs of down]` has the dtype of
/// `x`. It is [`norm_linear`] and [`activation_linear`] one after the other, and keeps what they keep.
///
/// A sequence `[samples, time, width]` of more than 8,192 positions is taken 2,048 positions at a time. Then `x` alone is kept, and the
/// backward pass computes the rest again: nothing that is wider than `x` exists for the whole sequence. While rows are added [in their
/// order](kiln_operations::RunningSums), it is taken as a whole.
///
/// # Errors
/// Those of [`norm_linear`] and [`activation_linear`].
pub fn feed_forward<'a, const D: usize>(
    norm: impl Into<Norm<'a>>,
    activation: Activation,
    [up, down]: [&Linear; 2],
    x: Tensor<D>,
) -> Result<Tensor<D>, Error> {
    if D != 3 || !is_long(x.dims()[1]) {
        return activation_linear(activation, down, norm_linear(norm, up, x)?);
    }
    let (device, dtype) = (x.device(), x.dtype());
    let Prepared { prologue, mut inputs, parts } = prepared(Input::Norm(norm.into()), up, x)?;
    let first = LinearInParts { prologue, appended: Appended::append(&mut inputs, [parts]) };
    let count = inputs.len();
    let hidden = up.weight.lazy_shape()[1];
    let (layer, parts) = parameters(down, hidden, (&device, dtype))?.into_inputs();
    let no_norm = [(); 2].map(|()| Tensor::<1>::empty([0], (&device, DType::F32)).into_dispatch());
    let mut others: Vec<_> = no_norm.into_iter().chain(layer).collect();
    let second =
        LinearInParts { prologue: Prologue::Activation(activation), appended: Appended::append(&mut others, [parts]) };
    inputs.extend(others);
    let operation = Chain { first, second, inputs: count };
    Ok(Tensor::from_dispatch(run(InParts { operation, cut: Cut::OfTime }, inputs).remove(0)))
}
