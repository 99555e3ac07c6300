//! The policy for samples that cannot be read, and their reports: each is left out or replaced, and reported once.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rand::RngExt;
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::order::sample_rng;
use crate::printable::printable;

/// What happens when a sample cannot be read because it is damaged, no image, too large or missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadSample {
    /// Its batch is an error.
    Fail,
    /// Its batch has one sample less. A batch without samples is [`Error::NothingLeft`].
    Skip,
    /// Another sample of the same set replaces it, chosen as a function of (order, epoch, sample).
    Substitute,
}

/// The policy for samples that cannot be read, and the most there may be. As text: `fail`, `skip:100`, `substitute:100`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
#[non_exhaustive]
pub struct BadSamples {
    /// What happens to a bad sample.
    pub policy: BadSample,
    /// The number of different bad samples after which the loader gives up. Training must not go on without a disk that went away.
    pub at_most: usize,
}

impl BadSamples {
    /// Every bad sample is an error.
    pub const FAIL: Self = Self { policy: BadSample::Fail, at_most: 0 };

    /// Up to `at_most` samples are left out.
    pub const fn skip(at_most: usize) -> Self {
        Self { policy: BadSample::Skip, at_most }
    }

    /// Up to `at_most` samples are replaced by others.
    pub const fn substitute(at_most: usize) -> Self {
        Self { policy: BadSample::Substitute, at_most }
    }
}

impl fmt::Display for BadSamples {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.policy {
            BadSample::Fail => write!(f, "fail"),
            BadSample::Skip => write!(f, "skip:{}", self.at_most),
            BadSample::Substitute => write!(f, "substitute:{}", self.at_most),
        }
    }
}

impl FromStr for BadSamples {
    type Err = Error;

    /// # Errors
    /// [`Error::InvalidSetting`] for text that `Display` does not write.
    fn from_str(text: &str) -> Result<Self, Error> {
        let count = |text: &str| text.parse().ok().filter(|at_most| *at_most > 0);
        let parsed = match text.split_once(':') {
            None => (text == "fail").then_some(Self::FAIL),
            Some(("skip", at_most)) => count(at_most).map(Self::skip),
            Some(("substitute", at_most)) => count(at_most).map(Self::substitute),
            Some(_) => None,
        };
        parsed.ok_or_else(|| Error::InvalidSetting {
            name: "bad samples",
            value: format!("'{}'", text.chars().take(50).collect::<String>()),
            expected: "fail, skip:N or substitute:N, N being the most that may be bad",
        })
    }
}

impl From<BadSamples> for String {
    fn from(rule: BadSamples) -> Self {
        rule.to_string()
    }
}

impl TryFrom<String> for BadSamples {
    type Error = Error;

    fn try_from(text: String) -> Result<Self, Error> {
        text.parse()
    }
}

/// A sample that could not be read, or was read in spite of damage. Each is reported once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadSampleReport {
    /// The sample.
    pub id: usize,
    /// Its file, if it is a file.
    pub path: Option<PathBuf>,
    /// Why it could not be read, or its damage.
    pub reason: String,
}

/// The most substitutes that are tried for one sample.
const TRIES: u64 = 16;

/// Bad samples of a loader, by id.
#[derive(Debug)]
pub(crate) struct BadSampleLog {
    rule: BadSamples,
    reports: Reports,
    repairable: Reports,
}

type Reports = Mutex<BTreeMap<usize, BadSampleReport>>;

fn locked(reports: &Reports) -> MutexGuard<'_, BTreeMap<usize, BadSampleReport>> {
    reports.lock().unwrap_or_else(PoisonError::into_inner)
}

impl BadSampleLog {
    pub(crate) fn new(rule: BadSamples) -> Self {
        Self { rule, reports: Mutex::default(), repairable: Mutex::default() }
    }

    /// The samples that could not be read.
    pub(crate) fn reports(&self) -> Vec<BadSampleReport> {
        locked(&self.reports).values().cloned().collect()
    }

    /// The damaged samples that can be read.
    pub(crate) fn repairable(&self) -> Vec<BadSampleReport> {
        locked(&self.repairable).values().cloned().collect()
    }

    /// The numbers of both.
    pub(crate) fn counts(&self) -> [usize; 2] {
        [&self.reports, &self.repairable].map(|reports| locked(reports).len())
    }

    /// Notes that sample `id` is damaged and can be read. Returns whether that is new.
    pub(crate) fn add_repairable(&self, id: usize, path: &Path, damage: &str) -> bool {
        let mut repairable = locked(&self.repairable);
        let new = !repairable.contains_key(&id);
        repairable.entry(id).or_insert_with(|| {
            let reason = format!("'{}': {damage}", printable(path));
            BadSampleReport { id, path: Some(path.to_owned()), reason }
        });
        new
    }

    /// Loads sample `id`, or the sample that replaces it, from one of the `positions` of its epoch. `None` when the sample
    /// is left out.
    pub(crate) fn resolve<T>(
        &self,
        (epoch, id): (u64, usize),
        positions: usize,
        at: impl Fn(usize) -> usize,
        load: impl Fn(usize) -> Result<T, Error>,
    ) -> Result<Option<T>, Error> {
        let mut error = match load(id) {
            Err(error) if error.is_of_a_sample() => error,
            other => return other.map(Some),
        };
        let mut bad = id;
        for attempt in 0..TRIES {
            match self.rule.policy {
                BadSample::Fail => return Err(error),
                BadSample::Skip => return self.report(bad, &error).map(|()| None),
                BadSample::Substitute => self.report(bad, &error)?,
            }
            bad = at(sample_rng(SUBSTITUTES ^ attempt, epoch, id as u64).random_range(0..positions));
            error = match load(bad) {
                Err(error) if error.is_of_a_sample() => error,
                other => return other.map(Some),
            };
        }
        Err(error)
    }

    fn report(&self, id: usize, error: &Error) -> Result<(), Error> {
        let mut reports = locked(&self.reports);
        if reports.contains_key(&id) {
            return Ok(());
        }
        let reason = error.to_string();
        tracing::warn!("sample {id}: {reason}");
        reports.insert(id, BadSampleReport { id, path: error.path().map(Into::into), reason: reason.clone() });
        if reports.len() > self.rule.at_most {
            return Err(Error::TooManyBadSamples { at_most: self.rule.at_most, last: reason });
        }
        Ok(())
    }
}

/// Keeps the choice of substitutes apart from augmentation, which is a function of (seed, epoch, sample) too.
const SUBSTITUTES: u64 = 0x5375_6273_7469_7475;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_policy_is_written_as_it_is_read() {
        for rule in [BadSamples::FAIL, BadSamples::skip(3), BadSamples::substitute(100)] {
            assert_eq!(rule.to_string().parse::<BadSamples>().unwrap(), rule);
        }
        for text in ["", "skip", "skip:", "skip:0", "skip:x", "fail:1", "Fail", "replace:3"] {
            let error = text.parse::<BadSamples>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("bad samples is '{text}', expected fail, skip:N")), "{error}");
        }
    }

    /// The sequential order.
    fn same(position: usize) -> usize {
        position
    }

    fn load(bad: &[usize]) -> impl Fn(usize) -> Result<usize, Error> {
        |id| match bad.contains(&id) {
            true => Err(Error::format(Path::new("file.jpg"), "truncated")),
            false => Ok(id),
        }
    }

    proptest! {
        #[test]
        fn every_sample_is_delivered_replaced_or_reported(
            bad in prop::collection::btree_set(0usize..50, 0..20), substitute: bool, epoch: u64,
        ) {
            let bad: Vec<usize> = bad.into_iter().collect();
            let rule = if substitute { BadSamples::substitute(50) } else { BadSamples::skip(50) };
            let log = BadSampleLog::new(rule);
            for id in 0..50 {
                let got = log.resolve((epoch, id), 50, same, load(&bad)).unwrap();
                match got {
                    Some(got) if bad.contains(&id) => prop_assert!(substitute && !bad.contains(&got)),
                    Some(got) => prop_assert_eq!(got, id),
                    None => prop_assert!(!substitute && bad.contains(&id)),
                }
                let again = BadSampleLog::new(rule).resolve((epoch, id), 50, same, load(&bad)).unwrap();
                prop_assert_eq!(got, again);
            }
            prop_assert_eq!(log.reports().iter().map(|report| report.id).collect::<Vec<_>>(), bad);
        }
    }

    #[test]
    fn failing_is_the_first_and_the_bound_the_last_resort() {
        let error = BadSampleLog::new(BadSamples::FAIL).resolve((0, 1), 5, same, load(&[1])).unwrap_err();
        assert_eq!(error.to_string(), "'file.jpg' is damaged or of another format: truncated");
        let log = BadSampleLog::new(BadSamples::skip(2));
        for id in [3, 3, 4, 3] {
            assert!(log.resolve((0, id), 9, same, load(&[3, 4, 5])).unwrap().is_none());
        }
        let error = log.resolve((0, 5), 9, same, load(&[3, 4, 5])).unwrap_err();
        assert!(error.to_string().contains("more than 2 samples"), "{error}");
        assert_eq!(log.counts(), [3, 0]);
    }

    #[test]
    fn other_failures_pass_and_substitutes_run_out() {
        let setting = |_| Err::<(), _>(Error::setting("x", "y", "z"));
        let log = BadSampleLog::new(BadSamples::skip(9));
        assert!(matches!(log.resolve((0, 0), 3, same, setting), Err(Error::InvalidSetting { .. })));
        assert!(BadSampleLog::new(BadSamples::substitute(9)).resolve((0, 0), 3, same, load(&[0, 1, 2])).is_err());
    }
}
