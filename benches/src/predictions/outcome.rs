//! A step that was predicted and measured, and the file of such steps.

use std::fmt;
use std::path::Path;

use anyhow::Result;
use serde_json::Value;

use crate::lines;

/// A step: its number, its peaks and its options.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Outcome {
    pub(super) number: u64,
    pub(super) predicted: u64,
    pub(super) measured: u64,
    pub(super) options: String,
}

impl Outcome {
    /// From what `kiln memory --json` prints. In a run with stages: the stage with the highest peak.
    pub(super) fn of(number: u64, options: &[String], printed: &Value) -> Option<Self> {
        let peak = |of: &Value| of["peak_bytes"].as_u64();
        let (predicted, measured) = match printed["stages"].as_array() {
            Some(stages) => {
                let (stage, measured) = stages.iter().map(peak).enumerate().max_by_key(|(_, bytes)| *bytes)?;
                (printed["plan"]["loads"][stage]["estimate"]["passes_peak_bytes"].as_u64()?, measured?)
            }
            None => (peak(&printed["prediction"])?, peak(&printed["measured"])?),
        };
        Some(Self { number, predicted, measured, options: options.join(" ") })
    }

    /// How much the prediction is above what was measured, as a fraction of it.
    pub(super) fn error(&self) -> f64 {
        self.predicted as f64 / self.measured.max(1) as f64 - 1.0
    }

    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.splitn(4, '\t');
        let mut number = || fields.next()?.parse().ok();
        let (number, predicted, measured) = (number()?, number()?, number()?);
        Some(Self { number, predicted, measured, options: fields.next()?.to_owned() })
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\t{}\t{}\t{}", self.number, self.predicted, self.measured, self.options)
    }
}

/// The steps in a file; none if there is no such file. A last line without an end, of a command that was killed, is removed.
pub(super) fn read(path: &Path) -> Result<Vec<Outcome>> {
    lines::read(path, "number, predicted and measured bytes, and options, between tabs", Outcome::parse)
}

/// Adds a step to a file.
pub(super) fn append(path: &Path, outcome: &Outcome) -> Result<()> {
    lines::append(path, &outcome.to_string())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::json;

    use super::*;

    #[test]
    fn the_file_goes_on_where_it_was_cut() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("steps.tsv");
        assert_eq!(read(&path).unwrap(), []);
        let step = |number| Outcome { number, predicted: 105, measured: 100, options: "gpt --micro-batch 2".into() };
        for number in 0..2 {
            append(&path, &step(number)).unwrap();
        }
        fs::write(&path, fs::read_to_string(&path).unwrap() + "2\t10").unwrap();
        assert_eq!(read(&path).unwrap(), [step(0), step(1)]);
        append(&path, &step(2)).unwrap();
        assert_eq!(read(&path).unwrap(), [step(0), step(1), step(2)]);
        assert!((step(0).error() - 0.05).abs() < 1e-9);
        fs::write(&path, "0\tmany\t1\tgpt\n").unwrap();
        let error = read(&path).unwrap_err().to_string();
        assert!(error.contains("steps.tsv:1: '0\tmany\t1\tgpt', expected number"), "{error}");
    }

    #[test]
    fn of_stages_the_highest_counts() {
        let whole = json!({"prediction": {"peak_bytes": 7}, "measured": {"peak_bytes": 6}});
        let outcome = Outcome::of(3, &["gpt".into()], &whole).unwrap();
        assert_eq!(outcome, Outcome { number: 3, predicted: 7, measured: 6, options: "gpt".into() });
        let load = |bytes: u64| json!({"estimate": {"passes_peak_bytes": bytes}});
        let stages = json!({"prediction": null, "measured": null, "plan": {"loads": [load(9), load(20)]},
            "stages": [{"peak_bytes": 10}, {"peak_bytes": 21}]});
        let outcome = Outcome::of(3, &[], &stages).unwrap();
        assert_eq!([outcome.predicted, outcome.measured], [20, 21]);
        assert_eq!(Outcome::of(3, &[], &json!({"prediction": null})), None);
    }
}
