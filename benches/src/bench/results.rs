//! The results of a run, and their file.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use kiln_runs::replace;
use serde::{Deserialize, Serialize};

use super::statistics::Spread;
use crate::provenance::Provenance;

/// The newest layout of the file.
const FORMAT: u32 = 1;

/// The results of one run of `bench`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Results {
    pub(crate) format: u32,
    pub(crate) provenance: Provenance,
    pub(crate) cases: Vec<Measured>,
    /// Measurements of peers, if they were available.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) peers: Vec<Peer>,
}

/// A case.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Measured {
    pub(crate) name: String,
    pub(crate) what: String,
    /// The options of `train` for it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) options: String,
    pub(crate) rounds: usize,
    /// Wall-clock seconds.
    pub(crate) seconds: Spread,
    /// Processor seconds of all threads.
    pub(crate) processor_seconds: Option<Spread>,
    /// Wall-clock time, relative to burn's loop in the same round.
    pub(crate) ratio: Option<Spread>,
    /// Processor time, relative to burn's loop in the same round.
    pub(crate) processor_ratio: Option<Spread>,
    /// The most live bytes of the device's tensors above those before the model was built.
    pub(crate) peak_bytes: u64,
    /// The most resident bytes of the process, above those before the model was built.
    pub(crate) resident_bytes: Option<u64>,
    /// Bytes that the device's pool has taken from the driver, if there is a pool.
    pub(crate) reserved_bytes: Option<u64>,
    /// Parts that the batch was cut into in the last step.
    pub(crate) micro_batches: usize,
    /// Steps that were skipped because a gradient overflowed. Their rounds are left out.
    pub(crate) skipped: usize,
    /// Attempts that failed for lack of memory.
    pub(crate) failures: usize,
}

/// A peer, and Kiln's case with equal work.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Peer {
    pub(crate) case: String,
    /// The peer's command line.
    pub(crate) program: String,
    pub(crate) version: String,
    /// Medians of the peer's runs, one for each round.
    pub(crate) seconds: Spread,
    pub(crate) processor_seconds: Spread,
    /// Kiln's time relative to the peer's, round by round.
    pub(crate) ratio: Spread,
    pub(crate) processor_ratio: Spread,
    /// The most bytes of the peer's tensors.
    pub(crate) peak_bytes: Option<u64>,
    pub(crate) kiln_peak_bytes: u64,
}

impl Results {
    pub(crate) fn new(provenance: Provenance, cases: Vec<Measured>) -> Self {
        Self { format: FORMAT, provenance, cases, peers: vec![] }
    }

    pub(crate) fn read(path: &Path) -> Result<Self> {
        let text =
            std::fs::read_to_string(path).with_context(|| format!("cannot read results '{}'", path.display()))?;
        Self::parse(&text).with_context(|| format!("'{}' holds no results of `bench`", path.display()))
    }

    fn parse(text: &str) -> Result<Self> {
        let results: Self = serde_json::from_str(text)?;
        ensure!(results.format == FORMAT, "its format is {}, expected {FORMAT}", results.format);
        let positive =
            |spread: &Spread| spread.low > 0.0 && spread.low <= spread.median && spread.median <= spread.high;
        for case in &results.cases {
            let spreads = [Some(&case.seconds), case.ratio.as_ref(), case.processor_seconds.as_ref()];
            ensure!(spreads.into_iter().flatten().all(positive), "{}: quartiles out of order", case.name);
        }
        ensure!(!results.cases.is_empty(), "it has no case");
        Ok(results)
    }

    pub(crate) fn write(&self, path: &Path) -> Result<()> {
        Ok(replace(path, (serde_json::to_string_pretty(self)? + "\n").as_bytes())?)
    }

    pub(crate) fn case(&self, name: &str) -> Option<&Measured> {
        self.cases.iter().find(|case| case.name == name)
    }

    /// The cases of a group, in order.
    pub(crate) fn group<'a>(&'a self, group: &'a str) -> impl Iterator<Item = &'a Measured> {
        self.cases.iter().filter(move |case| case.name.split('/').next() == Some(group))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn measured(name: &str, ratio: Option<f64>, peak_bytes: u64) -> Measured {
        let spread = |median: f64| Spread { low: median - 1.0 / 64.0, median, high: median + 1.0 / 64.0 };
        Measured {
            name: name.into(),
            what: format!("what {name} does"),
            options: String::new(),
            rounds: 5,
            seconds: spread(0.25),
            processor_seconds: Some(spread(0.5)),
            ratio: ratio.map(spread),
            processor_ratio: ratio.map(spread),
            peak_bytes,
            resident_bytes: Some(2 * peak_bytes),
            reserved_bytes: None,
            micro_batches: 1,
            skipped: 0,
            failures: 0,
        }
    }

    pub(crate) fn results(cases: Vec<Measured>) -> Results {
        let provenance = Provenance {
            processor: "a processor".into(),
            cores: 2,
            system: "a system".into(),
            device: "flex".into(),
            gpu: None,
            sizes: None,
            revision: "0123abc".into(),
            dirty: false,
            burn: "0.22.1".into(),
            cubecl: "0.11.3".into(),
            rustc: "rustc 1.95.0".into(),
            build: "dev".into(),
            date: "2026-11-21".into(),
            load: [Some(0.1), Some(2.0)],
        };
        Results::new(provenance, cases)
    }

    #[test]
    fn what_is_written_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("results.json");
        let written = results(vec![measured("gpt/burn", Some(1.0), 100), measured("function/probe", None, 7)]);
        written.write(&path).unwrap();
        assert_eq!(Results::read(&path).unwrap(), written);
        assert_eq!(written.group("gpt").count(), 1);
    }

    #[test]
    fn odd_files_are_refused_with_their_names() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("results.json");
        let refused = |part: &str| {
            let error = format!("{:#}", Results::read(&path).unwrap_err());
            assert!(error.contains("results.json") && error.contains(part), "{error}");
        };
        refused("No such file");
        let mut odd = results(vec![measured("gpt/burn", Some(1.0), 100)]);
        odd.format = 9;
        odd.write(&path).unwrap();
        refused("format is 9");
        odd.format = FORMAT;
        odd.cases[0].seconds.median = 0.0;
        odd.write(&path).unwrap();
        refused("gpt/burn: quartiles");
        results(vec![]).write(&path).unwrap();
        refused("no case");
        for text in ["", "[]", "{\"format\": 1}", "{\"group\": \"train\"}\n{\"group\": \"train\"}"] {
            std::fs::write(&path, text).unwrap();
            refused("no results");
        }
    }
}
