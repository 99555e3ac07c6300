//! The loop around attempts: each batch is tried until it fits.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::ops::ControlFlow;
use std::time::Duration;

use burn::tensor::{Device, ExecutionError};
use serde::{Deserialize, Serialize};

use crate::attempt::{AttemptOutcome, Probe, attempt};
use crate::failure::Failure;
use crate::ladder::{Ladder, Relaxation, Remedy, SavingLevel, Setting};
use crate::report::{DeviceFigures, Exhausted, ExhaustionReport, Try};
use crate::retry::{Batch, Controller, Patience, Pauses, Shortage, can_pass};
use crate::search::{MicroBatchSearch, MicroBatchSearchState};

/// Trains batch after batch. Each batch is tried until it fits or nothing is left to try.
///
/// - **Lack of capacity**: a setting fails that has not succeeded before. The [`Ladder`] chooses the next setting, which later
///   batches keep. Sizes grow again ([`MicroBatchSearch`]), and offload and stronger plans are taken back ([`Relaxation`]) when
///   memory is free again.
/// - **Passing shortage**: a setting fails that has succeeded before. It is tried again, at once and after pauses of 100 and
///   200 ms. Then the ladder chooses smaller settings for this batch only, and the next batch starts with the earlier setting
///   again ([`Shortage`]).
/// - **Nothing left to try**: the batch pauses and tries again, until its [`Patience`] is used up. A buffer that is too big for
///   an empty device is not worth a wait.
#[derive(Debug)]
pub struct Recovery {
    device: Device,
    controller: Controller,
    peak: Peak,
    pause: Pause,
}

/// Reads the peak bytes of an attempt.
struct Peak(Box<dyn Fn() -> Option<u64> + Send>);

impl fmt::Debug for Peak {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Peak")
    }
}

/// Pauses, unless the caller ends the wait.
struct Pause(Box<dyn FnMut(Duration) -> ControlFlow<()> + Send>);

impl fmt::Debug for Pause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pause")
    }
}

/// The state of a [`Recovery`], saved with a run. A resumed run cuts its batches identically.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecoveryState {
    /// Sizes that fit and sizes that failed.
    pub sizes: MicroBatchSearchState,
    /// The current checkpoint plan.
    pub plan: usize,
    /// Whether the state that can live on the host is kept there.
    pub offload: bool,
    /// The progress towards a weaker plan or no offload.
    #[serde(default, alias = "ease")]
    pub relaxation: Relaxation,
    /// Shortages that may pass, by shape bucket.
    #[serde(default)]
    pub shortages: BTreeMap<u64, Shortage>,
}

/// A trained batch.
#[derive(Debug)]
#[must_use]
pub struct Recovered<T> {
    /// The value that the work returned.
    pub value: T,
    /// The setting that succeeded.
    pub setting: Setting,
    /// The failed attempts before.
    pub tries: Vec<Try>,
    /// The sum of the pauses.
    pub waited: Duration,
}

/// The reason why a batch was not trained.
pub enum Stopped<B, E> {
    /// Nothing is left to try.
    Exhausted(Box<Exhausted<B>>),
    /// Not a memory failure, or the loss of the device. The error of the work, unchanged.
    Other(E),
}

impl Recovery {
    /// A recovery for batches on `device`, with the sizes of `search` and the remedies of `ladder`.
    pub fn new(device: Device, search: MicroBatchSearch, ladder: Ladder) -> Self {
        let sleep = |pause| {
            std::thread::sleep(pause);
            ControlFlow::Continue(())
        };
        Self {
            device,
            controller: Controller::new(search, ladder),
            peak: Peak(Box::new(|| None)),
            pause: Pause(Box::new(sleep)),
        }
    }

    /// Starts with a stronger level than the default, for example from a prediction. No weaker level is tried later.
    #[must_use]
    pub fn starting_with(mut self, level: SavingLevel) -> Self {
        (self.controller.level, self.controller.least) = (level, level);
        self
    }

    /// Calls `peak` after each success for the peak bytes of the attempt, counted like the
    /// [limit](crate::MicroBatchSearchConfig::with_limit). From two sizes on, a linear fit through the peaks predicts the next.
    #[must_use]
    pub fn measuring(self, peak: impl Fn() -> Option<u64> + Send + 'static) -> Self {
        Self { peak: Peak(Box::new(peak)), ..self }
    }

    /// Sets how long one batch may wait for memory. Default: 5 minutes.
    #[must_use]
    pub fn with_patience(mut self, patience: Patience) -> Self {
        self.controller.patience = patience;
        self
    }

    /// Calls `pause` for each pause, instead of `std::thread::sleep`. It returns `Break` to end the wait, after Ctrl-C for
    /// example: the batch is then given up at once.
    #[must_use]
    pub fn with_pause(self, pause: impl FnMut(Duration) -> ControlFlow<()> + Send + 'static) -> Self {
        Self { pause: Pause(Box::new(pause)), ..self }
    }

    /// The state, to save it with the run.
    pub fn state(&self) -> RecoveryState {
        let Controller { level: SavingLevel { plan, offload }, relaxation, .. } = self.controller;
        let (sizes, shortages) = (self.controller.search.state().clone(), self.controller.shortages.clone());
        RecoveryState { sizes, plan, offload, relaxation, shortages }
    }

    /// Continues from a saved state.
    ///
    /// # Errors
    /// Those of [`MicroBatchSearch::resume`].
    pub fn restore(&mut self, state: RecoveryState) -> Result<(), crate::Error> {
        let RecoveryState { sizes, plan, offload, relaxation, mut shortages } = state;
        let config = self.controller.search.config();
        shortages.values_mut().for_each(|shortage| shortage.keep_within(config.min(), config.batch()));
        let controller = &mut self.controller;
        controller.search = MicroBatchSearch::resume(controller.search.config().clone(), sizes)?;
        controller.level = SavingLevel { plan, offload };
        (controller.relaxation, controller.shortages) = (relaxation, shortages);
        Ok(())
    }

    /// The size search.
    pub fn sizes(&self) -> &MicroBatchSearch {
        &self.controller.search
    }

    /// The size search, to give it measured peaks and limits.
    pub fn sizes_mut(&mut self) -> &mut MicroBatchSearch {
        &mut self.controller.search
    }

    /// The setting of the first attempt at a batch of `samples`.
    pub fn setting(&self, samples: usize, bucket: u64) -> Setting {
        self.controller.start(samples, bucket).setting()
    }

    /// Trains a batch of `samples` in shape bucket `bucket`.
    ///
    /// `work` is called with the batch and a setting, once for each attempt. It must change nothing outside itself and only read `batch`.
    /// `evidence` adds to the probe the tensors that prove that the result was written. See [`attempt`].
    ///
    /// # Errors
    /// [`Stopped::Exhausted`] hands the batch back with a report. [`Stopped::Other`] is the error of `work`.
    ///
    /// # Panics
    /// When `work` or `evidence` panics for another reason than memory.
    pub fn run<B, T, E>(
        &mut self,
        samples: usize,
        bucket: u64,
        batch: B,
        mut work: impl FnMut(&B, Setting) -> Result<T, E>,
        evidence: impl FnMut(&T, &mut Probe),
    ) -> Result<Recovered<T>, Stopped<B, E>>
    where
        E: Error + From<ExecutionError> + 'static,
    {
        self.run_shared(samples, bucket, batch, |batch, setting| work(batch, *setting), evidence)
    }

    /// [`run`](Self::run) for a batch of which other replicas train parts at the same time. Before it begins, `work` may replace the
    /// setting that it gets by the one that all replicas can run with. The sizes are then learned for the setting that ran.
    ///
    /// # Errors
    /// Those of [`run`](Self::run).
    ///
    /// # Panics
    /// When `work` or `evidence` panics for another reason than memory.
    pub fn run_shared<B, T, E>(
        &mut self,
        samples: usize,
        bucket: u64,
        batch: B,
        mut work: impl FnMut(&B, &mut Setting) -> Result<T, E>,
        mut evidence: impl FnMut(&T, &mut Probe),
    ) -> Result<Recovered<T>, Stopped<B, E>>
    where
        E: Error + From<ExecutionError> + 'static,
    {
        let mut progress = self.controller.start(samples, bucket);
        let mut tries: Vec<Try> = vec![];
        loop {
            let mut setting = progress.setting();
            let outcome = attempt(&self.device, || work(&batch, &mut setting), &mut evidence);
            progress.ran_with(setting);
            let failure = match outcome {
                AttemptOutcome::Done(value) => {
                    self.controller.succeeded(&progress, (self.peak.0)());
                    return Ok(Recovered { value, setting, tries, waited: progress.waited() });
                }
                AttemptOutcome::Other(error) => return Err(Stopped::Other(error)),
                AttemptOutcome::Failed(failure) => failure,
            };
            let remedy = self.controller.failed(&mut progress, &failure);
            tracing::warn!(micro_batch = setting.micro_batch, plan = setting.plan, "{failure}; {remedy}");
            let mut tried = Try { setting, failure, remedy };
            let interrupted = match remedy {
                Remedy::Wait(pause) if (self.pause.0)(pause).is_break() => true,
                Remedy::GiveUp => false,
                _ => {
                    tries.push(tried);
                    continue;
                }
            };
            tried.remedy = Remedy::GiveUp;
            tries.push(tried);
            let report = self.report(&progress, bucket, tries, interrupted);
            return Err(Stopped::Exhausted(Box::new(Exhausted { batch, report })));
        }
    }

    /// Pauses before another try at work that is not a batch, such as an update of parameters. The pauses grow, and their sum stays within
    /// the [`Patience`].
    ///
    /// Returns whether to try again. False when the patience is used up, when the caller's pause breaks, or when no wait helps against
    /// `failure`, such as a buffer that is too big for an empty device.
    ///
    /// ```
    /// use std::time::Duration;
    /// use burn::tensor::Device;
    /// use kiln_recovery::{Failure, Kind, Ladder, MicroBatchSearch, MicroBatchSearchConfig, Patience, Pauses, Recovery};
    ///
    /// let search = MicroBatchSearch::new(MicroBatchSearchConfig::new(8))?;
    /// let patience = Patience::new(Duration::from_millis(150));
    /// let mut recovery = Recovery::new(Device::flex(), search, Ladder::standard()).with_patience(patience);
    /// let (failure, mut pauses) = (Failure::new(Kind::OutOfMemory, "no memory"), Pauses::new());
    /// let mut tries = 1;
    /// while recovery.pause(&mut pauses, &failure) {
    ///     tries += 1;
    /// }
    /// assert_eq!((tries, pauses.waited()), (3, Duration::from_millis(150))); // after 100 and 50 ms
    /// # Ok::<(), kiln_recovery::Error>(())
    /// ```
    pub fn pause(&mut self, pauses: &mut Pauses, failure: &Failure) -> bool {
        if !can_pass(failure) {
            return false;
        }
        let Some(pause) = pauses.next(self.controller.patience.total()) else { return false };
        tracing::warn!("{failure}; another try in {pause:?}");
        (self.pause.0)(pause).is_continue()
    }

    fn report(&self, progress: &Batch, bucket: u64, tries: Vec<Try>, interrupted: bool) -> ExhaustionReport {
        let search = &self.controller.search;
        ExhaustionReport {
            tries,
            waited: progress.waited(),
            interrupted,
            device: DeviceFigures { total: search.config().limit(), ..DeviceFigures::of(&self.device) },
            fit: search.fit(bucket),
            ..ExhaustionReport::default()
        }
    }
}

impl<B, E: fmt::Debug> fmt::Debug for Stopped<B, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exhausted(exhausted) => f.debug_tuple("Exhausted").field(exhausted).finish(),
            Self::Other(error) => f.debug_tuple("Other").field(error).finish(),
        }
    }
}

impl<B, E: fmt::Display> fmt::Display for Stopped<B, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exhausted(exhausted) => exhausted.fmt(f),
            Self::Other(error) => error.fmt(f),
        }
    }
}

impl<B, E: Error + 'static> Error for Stopped<B, E> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Exhausted(_) => None,
            // It prints as the error itself, so the next source is the source of that error.
            Self::Other(error) => error.source(),
        }
    }
}
