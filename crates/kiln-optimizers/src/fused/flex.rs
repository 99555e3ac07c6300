//! An update on the CPU: one pass over parameter, gradient and state, in tasks of a fixed size.
//!
//! Scratch memory: none. A tensor is changed in place if no other handle to it exists. Otherwise it stays as it is, and its next value is
//! a new tensor of 4 bytes for each value. A tensor that is not contiguous is copied first.
//!
//! Work for each value: AdamW 8 products, 4 sums, 3 divisions and a root; Adam at most 9, 5, 1 and a root; SGD with momentum at most 6
//! products and 4 sums. Reads and writes take longer: 28 bytes for each value of Adam and AdamW, 20 of SGD with momentum.

use burn::backend::flex::FlexTensor;
use rayon::prelude::*;

use super::rule::Rule;
use kiln_operations::cpu::place::{Place, Values};

/// Values of a task: its tensors stay in a core's second-level cache.
const TASK: usize = 16 * 1024;

/// The parameter and its state after a step on the gradient, which is multiplied by `factor`.
pub(super) fn update<R: Rule<N>, const N: usize>(
    rule: R,
    values: [FlexTensor; N],
    gradient: &FlexTensor,
    factor: f32,
) -> [FlexTensor; N] {
    let gradient = gradient.to_contiguous();
    let mut gradient = gradient.storage::<f32>();
    let mut places = values.map(Place::<f32>::of);
    let mut values = places.each_mut().map(Place::values);
    let mut tasks = Vec::with_capacity(gradient.len().div_ceil(TASK));
    while let Some(part) = gradient.split_off(..TASK.min(gradient.len())).filter(|part| !part.is_empty()) {
        tasks.push((values.each_mut().map(|values| values.split_off(part.len())), part));
    }
    let run =
        |(values, gradient): ([Values<'_, f32>; N], &[f32])| rule.apply(values.map(Values::filled), gradient, factor);
    match tasks.len() {
        1 => tasks.into_iter().for_each(run),
        _ => tasks.into_par_iter().for_each(run),
    }
    places.map(Place::tensor)
}
