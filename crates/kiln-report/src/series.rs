//! Curves from the lines of metrics: extracted, smoothed, shortened, and their best points.

use serde_json::Value;

/// Points of a curve: steps and values.
pub(crate) type Points = Vec<(f64, f64)>;

/// Which values of a figure are better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// The highest.
    Highest,
    /// The lowest.
    Lowest,
}

/// A figure of evaluations by which models are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measure {
    /// Its name in the metrics.
    pub name: &'static str,
    /// Its name for readers.
    pub title: &'static str,
    /// Which of its values are better.
    pub goal: Goal,
}

/// Figures by which models are compared. The first one that a run has is used.
const MEASURES: [Measure; 4] = [
    Measure { name: "val_miou", title: "mean IoU", goal: Goal::Highest },
    Measure { name: "val_accuracy", title: "validation accuracy", goal: Goal::Highest },
    Measure { name: "bits_per_byte", title: "bits per byte", goal: Goal::Lowest },
    Measure { name: "val_loss", title: "validation loss", goal: Goal::Lowest },
];

/// The best and the last value of a figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Best {
    /// The step of the best value.
    pub step: f64,
    /// The best value.
    pub value: f64,
    /// The last value.
    pub last: f64,
}

/// Steps and values of one figure from all lines of a kind (`step` or `evaluation`), without skipped steps.
pub fn series(metrics: &[Value], kind: &str, figure: &str) -> Vec<(f64, f64)> {
    let of_kind = metrics.iter().filter(|line| line["kind"] == kind && line["skipped"] != true);
    of_kind.filter_map(|line| Some((line["step"].as_f64()?, line[figure].as_f64()?))).collect()
}

/// The figure by which the run of these metrics is compared with others.
pub fn main_measure(metrics: &[Value]) -> Option<Measure> {
    let has = |name: &str| metrics.iter().any(|line| line["kind"] == "evaluation" && line[name].is_number());
    MEASURES.into_iter().find(|measure| has(measure.name))
}

/// Names of all figures in evaluations.
pub(crate) fn evaluated(metrics: &[Value]) -> Vec<&str> {
    let mut names: Vec<&str> = vec![];
    for line in metrics.iter().filter(|line| line["kind"] == "evaluation") {
        for (name, value) in line.as_object().into_iter().flatten() {
            if value.is_number() && name != "step" && name != "epochs" && !names.contains(&name.as_str()) {
                names.push(name);
            }
        }
    }
    names
}

/// The best point; the first if several are equal.
pub fn best(points: &[(f64, f64)], goal: Goal) -> Option<Best> {
    let last = points.last()?.1;
    let better = |a: f64, b: f64| match goal {
        Goal::Highest => a > b,
        Goal::Lowest => a < b,
    };
    let first = points.iter().find(|point| point.1.is_finite())?;
    let (step, value) = points.iter().fold(*first, |best, point| if better(point.1, best.1) { *point } else { best });
    Some(Best { step, value, last })
}

/// An exponential moving average over a fiftieth of the curve, corrected for the influence of its first value. Spikes are limited to the
/// [`ceiling`], so that one does not hide the curve after it.
pub(crate) fn smooth(points: &[(f64, f64)]) -> Points {
    let keep = 1.0 - 1.0 / (points.len() as f64 / 50.0).max(1.0);
    let top = ceiling(points).unwrap_or(f64::INFINITY);
    let (mut sum, mut weight) = (0.0, 0.0);
    let mut next = |&(x, y): &(f64, f64)| {
        sum = keep * sum + (1.0 - keep) * y.min(top);
        weight = keep * weight + (1.0 - keep);
        (x, sum / weight)
    };
    points.iter().map(&mut next).collect()
}

/// At most about `columns` points at even distances, for the display under the pointer.
pub(crate) fn sampled(points: &[(f64, f64)], columns: usize) -> Points {
    if points.len() <= columns || columns < 2 {
        return points.to_vec();
    }
    let last = points.len() - 1;
    (0..columns).map(|column| points[column * last / (columns - 1)]).collect()
}

/// The lowest and the highest point of each of `columns` parts of the curve, so that no spike is lost.
pub(crate) fn envelope(points: &[(f64, f64)], columns: usize) -> Points {
    if points.len() <= 2 * columns {
        return points.to_vec();
    }
    let mut kept = vec![];
    for column in 0..columns {
        let part = &points[column * points.len() / columns..(column + 1) * points.len() / columns];
        let by_value = |a: &&(f64, f64), b: &&(f64, f64)| a.1.total_cmp(&b.1);
        let ends = part.iter().min_by(by_value).zip(part.iter().max_by(by_value));
        if let Some((low, high)) = ends {
            let [first, second] = if low.0 <= high.0 { [low, high] } else { [high, low] };
            kept.extend([*first, *second]);
        }
    }
    kept.dedup();
    kept
}

/// The value above which there are only spikes. An axis that ends there shows the curve. `None` if there are no spikes.
pub(crate) fn ceiling(points: &[(f64, f64)]) -> Option<f64> {
    let mut values: Vec<f64> = points.iter().map(|point| point.1).filter(|value| value.is_finite()).collect();
    values.sort_by(f64::total_cmp);
    let (most, usual) = (*values.last()?, *values.get(values.len() * 98 / 100)?);
    (values.len() >= 50 && usual > 0.0 && most > 4.0 * usual).then_some(1.5 * usual)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_best_is_the_first_of_equal_ones() {
        let points = [(1.0, 0.5), (2.0, 0.9), (3.0, 0.9), (4.0, 0.8)];
        assert_eq!(best(&points, Goal::Highest), Some(Best { step: 2.0, value: 0.9, last: 0.8 }));
        assert_eq!(best(&points, Goal::Lowest), Some(Best { step: 1.0, value: 0.5, last: 0.8 }));
        assert_eq!(best(&[], Goal::Lowest), None);
    }

    #[test]
    fn curves_are_taken_from_their_lines() {
        let metrics = [
            json!({"kind": "step", "step": 1, "loss": 2.0, "skipped": false}),
            json!({"kind": "step", "step": 2, "loss": 9.0, "skipped": true}),
            json!({"kind": "step", "step": 3, "loss": null}),
            json!({"kind": "evaluation", "step": 3, "epochs": 1, "val_loss": 1.5, "bits_per_byte": 2.5}),
        ];
        assert_eq!(series(&metrics, "step", "loss"), [(1.0, 2.0)]);
        assert_eq!(main_measure(&metrics).map(|measure| measure.name), Some("bits_per_byte"));
        assert_eq!(evaluated(&metrics), ["bits_per_byte", "val_loss"]);
        assert_eq!(main_measure(&metrics[..3]), None);
    }

    #[test]
    fn a_short_curve_keeps_its_ends_and_its_spikes() {
        let points: Points = (0..10_000).map(|x| (f64::from(x), if x == 4321 { 50.0 } else { 1.0 })).collect();
        let short = envelope(&points, 300);
        assert!(short.len() <= 600 && short.contains(&(4321.0, 50.0)));
        assert!(short.windows(2).all(|pair| pair[0].0 < pair[1].0));
        let samples = sampled(&points, 100);
        assert_eq!((samples.len(), samples[0], samples[99]), (100, points[0], points[9999]));
        assert_eq!(ceiling(&points), Some(1.5));
        assert_eq!(ceiling(&points[..40]), None);
        let smooth = smooth(&points);
        assert!((smooth[100].1 - 1.0).abs() < 1e-9 && smooth[4321].1 > smooth[4320].1 && smooth[4321].1 < 1.01);
    }
}
