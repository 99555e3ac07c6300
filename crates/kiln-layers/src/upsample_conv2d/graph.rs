//! The convolution of a doubled image and another as an operation of burn's graph.

use burn::backend::tensor::FloatTensor;
use kiln_operations::{Computed, Operation, Runs};

use super::steps::{backward, forward};

/// The convolution of the doubled input, alone or joined with another input of the doubled size. Inputs are x, maybe the other one, weight
/// and bias.
#[derive(Clone, Copy, Debug)]
pub(super) struct UpsampleConv2d {
    pub(super) joins: bool,
}

impl Operation for UpsampleConv2d {
    const NAME: &'static str = "convolution of a doubled image";

    fn forward<B: Runs>(&self, inputs: Vec<FloatTensor<B>>, tracked: bool) -> Computed<B> {
        let saved = if tracked { inputs[..inputs.len() - 1].to_vec() } else { vec![] };
        let mut inputs = inputs.into_iter();
        let mut next = || inputs.next().unwrap_or_else(|| unreachable!("3 inputs, or 4 if it joins two"));
        let (x, skip) = (next(), self.joins.then(&mut next));
        let (weight, bias) = (next(), next());
        Computed { outputs: vec![forward::<B>(x, skip, weight, bias)], saved }
    }

    fn gradient<B: Runs>(
        &self,
        saved: Vec<FloatTensor<B>>,
        gradient: FloatTensor<B>,
        wanted: &[bool],
    ) -> Vec<Option<FloatTensor<B>>> {
        let mut saved = saved.into_iter();
        let mut next = || saved.next().unwrap_or_else(|| unreachable!("the inputs without the bias"));
        let (x, skip) = (next(), self.joins.then(&mut next));
        let weight = next();
        match *wanted {
            [for_x, for_weight, for_bias] => {
                let wanted = [for_x, false, for_weight, for_bias];
                let [of_x, _, of_weight, of_bias] = backward::<B>((x, skip), weight, gradient, wanted);
                vec![of_x, of_weight, of_bias]
            }
            _ => backward::<B>((x, skip), weight, gradient, [wanted[0], wanted[1], wanted[2], wanted[3]]).into(),
        }
    }
}
