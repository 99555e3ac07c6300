use std::error::Error;
use std::fmt;

use burn::tensor::{Device, ExecutionError};
use serde::{Deserialize, Serialize};

use crate::report::{DeviceFigures, Exhausted, Report, Try};
use crate::{Ease, Ladder, MicroBatch, MicroBatchState, Outcome, Probe, Remedy, Setting, Situation, Strength, attempt};

/// Trains batch after batch, each until it fits: attempts, and between them what the ladder says.
///
/// What was learned of one batch serves the next: sizes, the checkpoint plan, offload. What memory was short for comes back when
/// it is there again: sizes grow ([`MicroBatch`]), and once whole batches fit, offload and stronger plans are taken back ([`Ease`]).
#[derive(Debug)]
pub struct Recovery {
    device: Device,
    sizes: MicroBatch,
    ladder: Ladder,
    present: Strength,
    /// The strength that it began with: nothing weaker is tried.
    least: Strength,
    ease: Ease,
    peak: Peak,
}

/// Reads the most bytes that an attempt took.
struct Peak(Box<dyn Fn() -> Option<u64> + Send>);

impl fmt::Debug for Peak {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Peak")
    }
}

/// What a recovery has learned, to be saved with a run: a run that goes on cuts its batches as it would have.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecoveryState {
    /// Sizes that fit and sizes that failed.
    pub sizes: MicroBatchState,
    /// The checkpoint plan that was come to.
    pub plan: usize,
    /// Whether what can live on the host does.
    pub offload: bool,
    /// How far it is from a weaker plan, or from no offload.
    #[serde(default)]
    pub ease: Ease,
}

/// A batch that was trained.
#[derive(Debug)]
#[must_use]
pub struct Recovered<T> {
    /// What the work returned.
    pub value: T,
    /// What it ran with.
    pub setting: Setting,
    /// The attempts that failed before.
    pub tries: Vec<Try>,
}

/// A batch that was not trained.
pub enum Stopped<B, E> {
    /// Nothing is left to try.
    Exhausted(Box<Exhausted<B>>),
    /// An error that is no memory fault, or the loss of the device, as it was.
    Passed(E),
}

impl Recovery {
    /// For batches on `device`.
    pub fn new(device: Device, sizes: MicroBatch, ladder: Ladder) -> Self {
        let (present, least, ease) = (Strength::default(), Strength::default(), Ease::default());
        Self { device, sizes, ladder, present, least, ease, peak: Peak(Box::new(|| None)) }
    }

    /// Starts with a stronger checkpoint plan than the first, or with offload, as predicted; nothing weaker is tried later.
    #[must_use]
    pub fn starting_with(self, plan: usize, offload: bool) -> Self {
        let present = Strength { plan, offload };
        Self { present, least: present, ..self }
    }

    /// Asks `peak`, when an attempt has succeeded, for the most bytes that it took in all, counted as the
    /// [limit](crate::MicroBatchConfig::limit) is: from two sizes on, the next are found by the line through their peaks.
    #[must_use]
    pub fn measuring(self, peak: impl Fn() -> Option<u64> + Send + 'static) -> Self {
        Self { peak: Peak(Box::new(peak)), ..self }
    }

    /// What was learned so far.
    pub fn state(&self) -> RecoveryState {
        let Strength { plan, offload } = self.present;
        RecoveryState { sizes: self.sizes.state().clone(), plan, offload, ease: self.ease }
    }

    /// Goes on from what a run had learned.
    ///
    /// # Errors
    /// Those of [`MicroBatch::resume`].
    pub fn restore(&mut self, state: RecoveryState) -> Result<(), crate::Error> {
        self.sizes = MicroBatch::resume(self.sizes.config().clone(), state.sizes)?;
        (self.present, self.ease) = (Strength { plan: state.plan, offload: state.offload }, state.ease);
        Ok(())
    }

    /// The sizes, to save their state.
    pub fn sizes(&self) -> &MicroBatch {
        &self.sizes
    }

    /// The sizes, to tell them of measured peaks and limits.
    pub fn sizes_mut(&mut self) -> &mut MicroBatch {
        &mut self.sizes
    }

    /// What the next attempt at a batch of `samples` runs with.
    pub fn setting(&self, samples: usize, bucket: u64) -> Setting {
        let micro_batch = self.sizes.size(bucket).min(samples.max(1));
        Setting { micro_batch, plan: self.present.plan, offload: self.present.offload }
    }

    /// Trains a batch of `samples` in shape bucket `bucket`.
    ///
    /// `work` is called with the batch and what to run with, as often as needed; it must change nothing outside of itself,
    /// and read its input from `batch`, which stays. `evidence` adds to the probe what proves that the result was written.
    /// See [`attempt`].
    ///
    /// # Errors
    /// [`Stopped::Exhausted`] hands the batch back with a report. [`Stopped::Passed`] is what `work` returned.
    ///
    /// # Panics
    /// When `work` or `evidence` panics for another reason than memory.
    pub fn run<B, T, E>(
        &mut self,
        samples: usize,
        bucket: u64,
        batch: B,
        mut work: impl FnMut(&B, Setting) -> Result<T, E>,
        mut evidence: impl FnMut(&T, &mut Probe),
    ) -> Result<Recovered<T>, Stopped<B, E>>
    where
        E: Error + From<ExecutionError> + 'static,
    {
        let mut tries: Vec<Try> = vec![];
        loop {
            let setting = self.setting(samples, bucket);
            let failure = match attempt(&self.device, || work(&batch, setting), &mut evidence) {
                Outcome::Done(value) => {
                    self.sizes.succeeded(bucket, setting.micro_batch, (self.peak.0)());
                    let config = self.sizes.config();
                    let (calm, max_backoff) = (config.calm, config.max_backoff);
                    let whole = setting.micro_batch == config.batch;
                    if whole && self.ease.proven.is_some() {
                        self.sizes.relearn(); // what was measured was under the stronger plan
                    }
                    self.present = self.ease.fitted(self.present, whole, self.least, calm, max_backoff);
                    return Ok(Recovered { value, setting, tries });
                }
                Outcome::Passed(error) => return Err(Stopped::Passed(error)),
                Outcome::Failed(failure) => failure,
            };
            // The allocation that failed is the least that the attempt needed.
            let mut sizes = self.sizes.clone();
            let stepped_up = sizes.fits(bucket).is_some_and(|fits| setting.micro_batch > fits);
            let smaller = sizes.failed(bucket, setting.micro_batch, failure.bytes());
            let tried: Vec<Remedy> = tries.iter().map(|tried| tried.remedy).collect();
            let proven = self.ease.failed();
            let remedy = match proven {
                Some(proven) if proven.offload != setting.offload => Remedy::Offload,
                Some(proven) => Remedy::Plan(proven.plan),
                None => {
                    let situation = Situation { failure: &failure, setting, smaller, stepped_up, tried: &tried };
                    self.ladder.remedy(&situation)
                }
            };
            tracing::warn!(micro_batch = setting.micro_batch, plan = setting.plan, "{failure}; {remedy}");
            tries.push(Try { setting, failure, remedy });
            if let Some(proven) = proven {
                self.present = proven; // what was on trial says nothing of sizes
                continue;
            }
            match remedy {
                Remedy::Reclaim => {}
                Remedy::MicroBatch(size) => {
                    self.sizes = sizes;
                    self.sizes.shrink_to(bucket, size);
                }
                Remedy::Plan(plan) => {
                    self.present.plan = plan;
                    self.sizes.relearn();
                }
                Remedy::Offload => {
                    self.present.offload = true;
                    self.sizes.relearn();
                }
                Remedy::GiveUp => {
                    let device = DeviceFigures { total: self.sizes.config().limit, ..DeviceFigures::of(&self.device) };
                    let line = self.sizes.line(bucket);
                    let report = Report { tries, device, line, ..Report::default() };
                    return Err(Stopped::Exhausted(Box::new(Exhausted { batch, report })));
                }
            }
        }
    }
}

impl<B, E: fmt::Debug> fmt::Debug for Stopped<B, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exhausted(exhausted) => f.debug_tuple("Exhausted").field(exhausted).finish(),
            Self::Passed(error) => f.debug_tuple("Passed").field(error).finish(),
        }
    }
}

impl<B, E: fmt::Display> fmt::Display for Stopped<B, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exhausted(exhausted) => exhausted.fmt(f),
            Self::Passed(error) => error.fmt(f),
        }
    }
}

impl<B, E: Error + 'static> Error for Stopped<B, E> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Exhausted(_) => None,
            // It prints as the error itself, so what comes next is the error's own cause.
            Self::Passed(error) => error.source(),
        }
    }
}
