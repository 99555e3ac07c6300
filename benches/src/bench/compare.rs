//! Compares figures with earlier ones, to find those that got worse.

use super::case::{Group, REFERENCE};
use super::results::{Measured, Results};
use super::statistics::Spread;

/// The quantity of a case that is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Quantity {
    /// Time of a step, relative to burn's loop.
    Ratio,
    /// Seconds of a function.
    Seconds,
    /// The most bytes at once.
    Peak,
}

impl Quantity {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ratio => "time, to burn's loop",
            Self::Seconds => "processor time, ms",
            Self::Peak => "peak, MiB",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Within the threshold.
    Same,
    /// Beyond the threshold, but the middle halves of both measurements overlap.
    Unclear,
    Better,
    Worse,
}

impl Verdict {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Same => "same",
            Self::Unclear => "within the spread",
            Self::Better => "better",
            Self::Worse => "WORSE",
        }
    }

    /// Compares two measurements, of which the lower is better. `threshold` is a fraction of the earlier median.
    fn of(before: Spread, now: Spread, threshold: f64) -> Self {
        let change = now.median / before.median - 1.0;
        match () {
            () if change.abs() <= threshold || now.median == before.median => Self::Same,
            () if before.overlaps(now) => Self::Unclear,
            () if change > 0.0 => Self::Worse,
            () => Self::Better,
        }
    }
}

/// One figure, before and now.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Compared {
    pub(crate) case: String,
    pub(crate) quantity: Quantity,
    pub(crate) before: Spread,
    pub(crate) now: Spread,
    pub(crate) verdict: Verdict,
}

/// Compares the cases that both results have. Steps are compared by their ratios to burn's loop, which depend little on the machine.
/// Functions are compared by processor time, and only on the baseline's machine.
pub(crate) fn compare(baseline: &Results, now: &Results, threshold: f64) -> Vec<Compared> {
    let same_machine = baseline.provenance.is_same_machine(&now.provenance);
    let mut all = vec![];
    for case in &now.cases {
        let Some(before) = baseline.cases.iter().find(|before| before.name == case.name) else { continue };
        let mut add = |quantity, of: fn(&Measured) -> Option<Spread>| {
            if let (Some(before), Some(now)) = (of(before), of(case)) {
                let verdict = Verdict::of(before, now, threshold);
                all.push(Compared { case: case.name.clone(), quantity, before, now, verdict });
            }
        };
        if !case.name.ends_with(&format!("/{REFERENCE}")) {
            add(Quantity::Ratio, |case| case.ratio);
        }
        if case.name.starts_with(Group::Function.name()) && same_machine {
            add(Quantity::Seconds, |case| case.processor_seconds.or(Some(case.seconds)));
        }
        add(Quantity::Peak, |case| Some(Spread::exactly(case.peak_bytes as f64)));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::super::results::tests::{measured, results};
    use super::*;

    fn spread(low: f64, median: f64, high: f64) -> Spread {
        Spread { low, median, high }
    }

    #[test]
    fn a_change_counts_beyond_the_threshold_and_the_spread() {
        let before = spread(0.99, 1.0, 1.01);
        assert_eq!(Verdict::of(before, spread(1.03, 1.04, 1.05), 0.05), Verdict::Same);
        assert_eq!(Verdict::of(before, spread(1.05, 1.06, 1.07), 0.05), Verdict::Worse);
        assert_eq!(Verdict::of(before, spread(1.00, 1.50, 2.00), 0.05), Verdict::Unclear);
        assert_eq!(Verdict::of(before, spread(0.80, 0.90, 0.95), 0.05), Verdict::Better);
        assert_eq!(Verdict::of(before, spread(1.015, 1.02, 1.03), 0.0), Verdict::Worse);
        assert_eq!(Verdict::of(Spread::exactly(0.0), Spread::exactly(0.0), 0.05), Verdict::Same);
    }

    #[test]
    fn functions_are_compared_on_the_same_machine_only() {
        let step = measured("resnet/clip", Some(1.1), 100);
        let function = measured("function/probe", None, 10);
        let baseline = results(vec![step.clone(), function.clone()]);
        let quantities = |now: &Results| -> Vec<_> {
            compare(&baseline, now, 0.05).iter().map(|c| (c.case.clone(), c.quantity)).collect()
        };
        let [clip, probe] = ["resnet/clip".to_owned(), "function/probe".to_owned()];
        let same = quantities(&baseline);
        let peak = (probe.clone(), Quantity::Peak);
        let steps = [(clip.clone(), Quantity::Ratio), (clip, Quantity::Peak)];
        assert_eq!(same, [&steps[..], &[(probe, Quantity::Seconds), peak.clone()]].concat());
        let mut other = baseline.clone();
        other.provenance.cores += 1;
        assert_eq!(quantities(&other), [&steps[..], &[peak]].concat());
    }

    #[test]
    fn a_higher_peak_is_worse_and_a_new_case_is_not_compared() {
        let baseline = results(vec![measured("gpt/burn", Some(1.0), 100), measured("gpt/step", Some(1.0), 100)]);
        let now = results(vec![
            measured("gpt/burn", Some(1.0), 104),
            measured("gpt/step", Some(1.0), 106),
            measured("gpt/new", Some(3.0), 1),
        ]);
        let found: Vec<_> =
            compare(&baseline, &now, 0.05).into_iter().map(|c| (c.case, c.quantity, c.verdict)).collect();
        let expected = [
            ("gpt/burn".to_owned(), Quantity::Peak, Verdict::Same), // its time is not Kiln's
            ("gpt/step".to_owned(), Quantity::Ratio, Verdict::Same),
            ("gpt/step".to_owned(), Quantity::Peak, Verdict::Worse),
        ];
        assert_eq!(found, expected);
    }
}
