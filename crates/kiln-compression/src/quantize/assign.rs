//! The bits of each weight under a budget of bytes: what each number of bits costs, and the best choice.

use super::codes;
use super::error_report::squared_error;
use super::model::{blocks_of, for_each_chosen};
use super::settings::Quantization;
use super::weights::{check_bits, check_finite, packed_bytes};
use crate::Error;
use burn::module::Module;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The cost of one number of bits for a weight.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct BitChoice {
    /// Bits of a code.
    pub bits: u8,
    /// Bytes of codes and scales.
    pub bytes: u64,
    /// The error, in any unit that adds up over weights. Finite and not negative.
    pub error: f64,
}

/// The numbers of bits that one weight may have.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LayerChoices {
    /// The path of the weight.
    pub path: String,
    /// At least one choice, in any order.
    pub choices: Vec<BitChoice>,
}

/// The choices of bits for each weight that `settings` chooses, for [`assign_bits`](super::assign_bits).
///
/// The error of a choice is the sum of squared errors of the weight's values, which does not see what the model makes of them, times the
/// weight's sensitivity: 1 unless `sensitivities` has its path. A common sensitivity is the mean squared gradient of the loss (Z. Dong et
/// al., "HAWQ", ICCV 2019, in its diagonal form). The bits in `settings` are not read.
///
/// ```
/// use burn::nn::LinearConfig;
/// use burn::tensor::Device;
/// use kiln_compression::{Quantization, assign_bits, bit_choices, quantize};
///
/// let model = LinearConfig::new(64, 10).init(&Device::flex());
/// let mut settings = Quantization::default();
/// let choices = bit_choices(&model, &settings, &[2, 4, 8], &Default::default())?;
/// settings.bits_of = assign_bits(&choices, 400)?.bits;
/// let quantized = quantize(&model, &settings)?;
/// assert_eq!(quantized.weights()["weight"].bits(), 4);
/// # Ok::<(), kiln_compression::Error>(())
/// ```
///
/// # Errors
///
/// As [`quantize`](super::quantize); [`Error::InvalidSetting`] if a sensitivity is negative or not finite, and
/// [`Error::UnknownParameter`] if it belongs to no chosen weight.
pub fn bit_choices<M: Module>(
    model: &M,
    settings: &Quantization,
    bits: &[u8],
    sensitivities: &BTreeMap<String, f64>,
) -> Result<Vec<LayerChoices>, Error> {
    bits.iter().try_for_each(|bits| check_bits(*bits))?;
    if let Some(value) = sensitivities.values().find(|value| !(**value >= 0.0 && value.is_finite())) {
        return Err(Error::invalid("a sensitivity", value, "a finite number of at least 0"));
    }
    let mut layers = Vec::new();
    for_each_chosen(model, settings, |parameter, _| {
        let blocks = blocks_of(parameter, settings);
        let values = parameter.values()?;
        check_finite("a weight", &values)?;
        let sensitivity = sensitivities.get(&parameter.path).copied().unwrap_or(1.0);
        let choice = |bits: &u8| {
            let scales = codes::scales(&values, &blocks, *bits, settings.range, settings.half_scales);
            let codes = codes::codes(&values, &blocks, &scales, *bits);
            let error = squared_error(&values, &codes::values(&codes, &blocks, &scales));
            let bytes = packed_bytes(codes.len(), scales.len(), *bits, settings.half_scales);
            BitChoice { bits: *bits, bytes, error: error * sensitivity }
        };
        layers.push(LayerChoices { path: parameter.path.clone(), choices: bits.iter().map(choice).collect() });
        Ok(())
    })?;
    match sensitivities.keys().find(|path| !layers.iter().any(|layer| layer.path == **path)) {
        Some(path) => Err(Error::unknown(path, layers.iter().map(|layer| &layer.path))),
        None => Ok(layers),
    }
}

/// The assignment with the least error within a budget.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Assignment {
    /// Bits of each weight by its path.
    pub bits: BTreeMap<String, u8>,
    /// The sum of the bytes.
    pub bytes: u64,
    /// The sum of the errors.
    pub error: f64,
}

/// Chooses the bits of each weight, so that the sum of errors is the least one with at most `budget` bytes.
///
/// The choice is exact, up to rounding of sums. It is a knapsack with several choices: a dynamic programme over the weights keeps the
/// partial choices of which none has both fewer bytes and less error, and drops those that cannot become the best. What a partial
/// choice can still reach is bounded from below by the relaxation that may split choices, and from above by its completion without the
/// split (E. Zemel, "The linear multiple choice knapsack problem", Operations Research 28, 1980).
///
/// ```
/// use kiln_compression::{BitChoice, LayerChoices, assign_bits};
///
/// let layer = |path: &str, errors: [f64; 2]| LayerChoices {
///     path: path.into(),
///     choices: vec![
///         BitChoice { bits: 4, bytes: 50, error: errors[0] },
///         BitChoice { bits: 8, bytes: 100, error: errors[1] },
///     ],
/// };
/// let assignment = assign_bits(&[layer("first", [9.0, 1.0]), layer("last", [4.0, 2.0])], 160)?;
/// assert_eq!(assignment.bits["first"], 8);
/// assert_eq!(assignment.bits["last"], 4);
/// assert_eq!((assignment.bytes, assignment.error), (150, 5.0));
/// # Ok::<(), kiln_compression::Error>(())
/// ```
///
/// # Errors
///
/// [`Error::BudgetTooSmall`] if the smallest choices do not fit, [`Error::InvalidSetting`] if a weight has no choice or an error is
/// negative or not finite.
pub fn assign_bits(layers: &[LayerChoices], budget: u64) -> Result<Assignment, Error> {
    let mut fronts = layers.iter().map(front).collect::<Result<Vec<_>, _>>()?;
    // Weights that differ most are decided first, so that the bounds tighten early.
    let spread = |front: &[BitChoice]| front[0].error - front[front.len() - 1].error;
    let mut order: Vec<usize> = (0..layers.len()).collect();
    order.sort_by(|a, b| spread(&fronts[*b]).total_cmp(&spread(&fronts[*a])));
    let fronts: Vec<Vec<BitChoice>> = order.iter().map(|layer| std::mem::take(&mut fronts[*layer])).collect();

    let smallest = fronts.iter().map(|front| front[0].bytes).sum();
    if smallest > budget {
        return Err(Error::BudgetTooSmall { budget, smallest });
    }
    let chosen = solve(&fronts, budget);
    let picked = || order.iter().zip(&fronts).zip(&chosen).map(|((layer, front), choice)| (*layer, front[*choice]));
    Ok(Assignment {
        bits: picked().map(|(layer, choice)| (layers[layer].path.clone(), choice.bits)).collect(),
        bytes: picked().map(|(_, choice)| choice.bytes).sum(),
        error: picked().map(|(_, choice)| choice.error).sum(),
    })
}

/// The choices of which none has both fewer bytes and less error, from the fewest bytes to the least error.
fn front(layer: &LayerChoices) -> Result<Vec<BitChoice>, Error> {
    if let Some(choice) = layer.choices.iter().find(|choice| !(choice.error >= 0.0 && choice.error.is_finite())) {
        return Err(Error::invalid("the error of a choice of bits", choice.error, "a finite number of at least 0"));
    }
    let mut choices = layer.choices.clone();
    choices.sort_by(|a, b| a.bytes.cmp(&b.bytes).then(a.error.total_cmp(&b.error)));
    let mut front: Vec<BitChoice> = Vec::with_capacity(choices.len());
    for choice in choices {
        if front.last().is_none_or(|last| choice.error < last.error) {
            front.push(choice);
        }
    }
    match front.is_empty() {
        true => Err(Error::invalid("the choices of bits of a weight", "none", "at least one")),
        false => Ok(front),
    }
}

/// A choice for the first layers.
struct Partial {
    bytes: u64,
    error: f64,
    /// The partial choice of one layer less, and the choice of this layer.
    from: (usize, usize),
}

/// The position of the chosen one in each front.
fn solve(fronts: &[Vec<BitChoice>], budget: u64) -> Vec<usize> {
    let rest: Vec<Relaxed> = (0..=fronts.len()).map(|layer| Relaxed::of(&fronts[layer..])).collect();
    let mut stages = vec![vec![Partial { bytes: 0, error: 0.0, from: (0, 0) }]];
    let mut best = f64::INFINITY;
    for (layer, front) in fronts.iter().enumerate() {
        let relaxed = &rest[layer + 1];
        let mut next = Vec::new();
        for (parent, partial) in stages[layer].iter().enumerate() {
            for (choice, BitChoice { bytes, error, .. }) in front.iter().enumerate() {
                let (bytes, error) = (partial.bytes + bytes, partial.error + error);
                let Some((least, reached)) = relaxed.bounds(budget, bytes) else { break };
                best = best.min(error + reached);
                // The room is for the rounding of sums in another order.
                if error + least <= best * (1.0 + 1e-12) {
                    next.push(Partial { bytes, error, from: (parent, choice) });
                }
            }
        }
        next.sort_by(|a, b| a.bytes.cmp(&b.bytes).then(a.error.total_cmp(&b.error)));
        let mut least = f64::INFINITY;
        next.retain(|partial| {
            let keep = partial.error < least;
            least = least.min(partial.error);
            keep
        });
        stages.push(next);
    }
    // A front ends with the least error.
    let mut at = stages[fronts.len()].len().saturating_sub(1);
    let mut chosen = vec![0; fronts.len()];
    for layer in (0..fronts.len()).rev() {
        let (parent, choice) = stages[layer + 1][at].from;
        (at, chosen[layer]) = (parent, choice);
    }
    chosen
}

/// The least error of some layers by their bytes, if choices could be split: from the fewest bytes on, steps in the order of error saved
/// for each byte.
struct Relaxed {
    bytes: Vec<u64>,
    errors: Vec<f64>,
}

impl Relaxed {
    fn of(fronts: &[Vec<BitChoice>]) -> Self {
        let mut steps: Vec<(u64, f64)> = fronts.iter().flat_map(|front| hull_steps(front)).collect();
        steps.sort_by(|a, b| (b.1 / b.0 as f64).total_cmp(&(a.1 / a.0 as f64)));
        let mut bytes = vec![fronts.iter().map(|front| front[0].bytes).sum()];
        let mut errors = vec![fronts.iter().map(|front| front[0].error).sum()];
        for (step, saved) in steps {
            bytes.push(bytes[bytes.len() - 1] + step);
            errors.push(errors[errors.len() - 1] - saved);
        }
        Self { bytes, errors }
    }

    /// A bound of the error of these layers with what is left of `budget` after `spent`, and an error that is reached; none if they do
    /// not fit.
    fn bounds(&self, budget: u64, spent: u64) -> Option<(f64, f64)> {
        let left = budget.checked_sub(spent)?;
        let step = self.bytes.partition_point(|bytes| *bytes <= left).checked_sub(1)?;
        let reached = self.errors[step];
        let least = match (self.bytes.get(step + 1), self.errors.get(step + 1)) {
            (Some(bytes), Some(error)) => {
                let part = (left - self.bytes[step]) as f64 / (bytes - self.bytes[step]) as f64;
                reached + part * (error - reached)
            }
            _ => reached,
        };
        Some((least, reached))
    }
}

/// The steps along the lower convex hull of a front: bytes more, error saved.
fn hull_steps(front: &[BitChoice]) -> Vec<(u64, f64)> {
    let mut hull: Vec<&BitChoice> = Vec::with_capacity(front.len());
    let saved = |a: &BitChoice, b: &BitChoice| (a.error - b.error) / (b.bytes - a.bytes) as f64;
    for choice in front {
        while let [.., before, last] = hull[..]
            && saved(before, last) <= saved(last, choice)
        {
            hull.pop();
        }
        hull.push(choice);
    }
    hull.windows(2).map(|pair| (pair[1].bytes - pair[0].bytes, pair[0].error - pair[1].error)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn layers(choices: &[Vec<(u64, f64)>]) -> Vec<LayerChoices> {
        let layer = |(index, choices): (usize, &Vec<(u64, f64)>)| LayerChoices {
            path: format!("layer{index}"),
            choices: choices
                .iter()
                .enumerate()
                .map(|(bits, (bytes, error))| BitChoice { bits: bits as u8 + 2, bytes: *bytes, error: *error })
                .collect(),
        };
        choices.iter().enumerate().map(layer).collect()
    }

    /// The least error of all combinations that fit.
    fn brute_force(choices: &[Vec<(u64, f64)>], budget: u64) -> Option<f64> {
        let Some((first, rest)) = choices.split_first() else { return Some(0.0) };
        let reached = first.iter().filter(|(bytes, _)| *bytes <= budget);
        reached.filter_map(|(bytes, error)| Some(error + brute_force(rest, budget - bytes)?)).min_by(f64::total_cmp)
    }

    #[test]
    fn a_budget_that_nothing_fits_is_refused() {
        let two = layers(&[vec![(5, 1.0), (3, 2.0)], vec![(4, 0.0)]]);
        assert_eq!(assign_bits(&two, 6), Err(Error::BudgetTooSmall { budget: 6, smallest: 7 }));
        assert_eq!(assign_bits(&two, 7).unwrap().error, 2.0);
        assert_eq!(assign_bits(&[], 0).unwrap(), Assignment { bits: BTreeMap::new(), bytes: 0, error: 0.0 });
    }

    #[test]
    fn choices_without_sense_are_refused() {
        for choices in [vec![], vec![(1, f64::NAN)], vec![(1, -1.0)], vec![(1, 1.0), (2, f64::INFINITY)]] {
            assert!(matches!(assign_bits(&layers(&[choices]), 10), Err(Error::InvalidSetting { .. })));
        }
    }

    #[test]
    fn a_deep_model_is_assigned() {
        // 200 weights of 7 choices each, whose bytes have no common divisor. Without bounds the search would not end.
        let choices: Vec<Vec<(u64, f64)>> = (0..200_u64)
            .map(|layer| {
                let values = 1_000 + 7_919 * (layer * layer % 389);
                let scale = 1.0 + (layer as f64 * 0.7).sin().abs();
                (2..=8)
                    .map(|bits| (values * bits / 8 + 4, scale * values as f64 * 0.25_f64.powi(bits as i32)))
                    .collect()
            })
            .collect();
        let eight: u64 = choices.iter().map(|choices| choices[6].0).sum();
        for share in [3, 4, 5, 6, 7] {
            let assignment = assign_bits(&layers(&choices), eight * share / 8).unwrap();
            assert!(assignment.bytes <= eight * share / 8);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]
        #[test]
        fn the_choice_is_the_best_of_all(
            choices in prop::collection::vec(prop::collection::vec((0_u64..40, 0.0_f64..30.0), 1..5), 0..6), budget in 0_u64..160, whole: bool,
        ) {
            let choices: Vec<Vec<(u64, f64)>> =
                choices.into_iter().map(|layer| layer.into_iter().map(|(bytes, error)| (bytes, if whole { error.round() } else { error })).collect()).collect();
            let layers = layers(&choices);
            match (assign_bits(&layers, budget), brute_force(&choices, budget)) {
                (Ok(assignment), Some(least)) => {
                    // Errors that are whole numbers add up exactly, others in another order.
                    let rounding = if whole { 0.0 } else { 1e-11 };
                    prop_assert!((assignment.error - least).abs() <= rounding);
                    prop_assert!(assignment.bytes <= budget);
                    let picked = layers.iter().map(|layer| {
                        let bits = assignment.bits[&layer.path];
                        *layer.choices.iter().find(|choice| choice.bits == bits).unwrap()
                    });
                    let picked: Vec<BitChoice> = picked.collect();
                    prop_assert_eq!(picked.iter().map(|choice| choice.bytes).sum::<u64>(), assignment.bytes);
                    prop_assert!((picked.iter().map(|choice| choice.error).sum::<f64>() - assignment.error).abs() <= 1e-11);
                }
                (Err(Error::BudgetTooSmall { smallest, .. }), None) => prop_assert!(smallest > budget),
                (assignment, least) => prop_assert!(false, "{assignment:?} {least:?}"),
            }
        }
    }
}
