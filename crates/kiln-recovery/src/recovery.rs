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
use crate::report::{DeviceFigures, ExhaustionReport};
use crate::retry::{
    Attempts, Controller, Ladder, Patience, Pauses, Relaxation, Remedy, SavingLevel, Setting, Shortage, Try, can_pass,
};
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
    /// Reads the peak bytes of an attempt.
    peak: Callback<dyn Fn() -> Option<u64> + Send>,
    /// Pauses, unless the caller ends the wait.
    pause: Callback<dyn FnMut(Duration) -> ControlFlow<()> + Send>,
}

/// A function of the caller, which `Debug` shows by its name.
struct Callback<F: ?Sized>(Box<F>);

impl<F: ?Sized> fmt::Debug for Callback<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Callback")
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
#[derive(Debug, thiserror::Error)]
pub enum Stopped<E> {
    /// Nothing is left to try.
    #[error("{0}")]
    Exhausted(Box<ExhaustionReport>),
    /// Not a memory failure, or the loss of the device. The error of the work, unchanged.
    #[error(transparent)]
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
            peak: Callback(Box::new(|| None)),
            pause: Callback(Box::new(sleep)),
        }
    }

    /// Starts with a stronger level than the default, for example from a prediction. No weaker level is tried later.
    #[must_use]
    pub fn with_level(mut self, level: SavingLevel) -> Self {
        (self.controller.level, self.controller.least) = (level, level);
        self
    }

    /// Calls `peak` after each success for the peak bytes of the attempt, counted like the
    /// [limit](crate::MicroBatchSearchConfig::with_limit). From two sizes on, a linear fit through the peaks predicts the next.
    #[must_use]
    pub fn with_peak(self, peak: impl Fn() -> Option<u64> + Send + 'static) -> Self {
        Self { peak: Callback(Box::new(peak)), ..self }
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
        Self { pause: Callback(Box::new(pause)), ..self }
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
        let batch = self.controller.search.config().batch();
        shortages.values_mut().for_each(|shortage| shortage.keep_within(batch));
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
    /// `work` is called with a setting, once for each attempt. It must change nothing outside itself. `check` adds to the probe the tensors
    /// that must have been written for the result to count. See [`attempt`].
    ///
    /// # Errors
    /// [`Stopped::Exhausted`] has a report of the attempts. [`Stopped::Other`] is the error of `work`.
    ///
    /// # Panics
    /// When `work` or `check` panics for another reason than memory.
    pub fn run<T, E>(
        &mut self,
        samples: usize,
        bucket: u64,
        mut work: impl FnMut(Setting) -> Result<T, E>,
        mut check: impl FnMut(&T, &mut Probe),
    ) -> Result<Recovered<T>, Stopped<E>>
    where
        E: Error + From<ExecutionError> + 'static,
    {
        let mut attempts = self.start(samples, bucket);
        loop {
            let setting = attempts.setting();
            match attempt(&self.device, || work(setting), &mut check) {
                AttemptOutcome::Done(value) => {
                    self.succeeded(&attempts, None);
                    let (tries, waited) = (attempts.failed().to_vec(), attempts.waited());
                    return Ok(Recovered { value, setting, tries, waited });
                }
                AttemptOutcome::Failed(failure) => {
                    self.after(&mut attempts, &failure).map_err(Stopped::Exhausted)?;
                }
                AttemptOutcome::Other(error) => return Err(Stopped::Other(error)),
            }
        }
    }

    /// Begins a batch of `samples` in shape bucket `bucket`, in a loop of one's own: after each failed attempt follows [`after`](Self::after),
    /// after one that succeeded [`succeeded`](Self::succeeded).
    ///
    /// ```
    /// use burn::tensor::Device;
    /// use kiln_recovery::{Failure, Kind, Ladder, MicroBatchSearch, MicroBatchSearchConfig, Recovery};
    ///
    /// let search = MicroBatchSearch::new(MicroBatchSearchConfig::new(8))?;
    /// let mut recovery = Recovery::new(Device::flex(), search, Ladder::standard());
    /// let mut attempts = recovery.start(8, 0);
    /// while attempts.setting().micro_batch > 3 {
    ///     let failure = Failure::new(Kind::OutOfMemory, "no memory");
    ///     recovery.after(&mut attempts, &failure).map_err(|report| report.to_string())?;
    /// }
    /// recovery.succeeded(&attempts, None);
    /// assert_eq!((attempts.setting().micro_batch, recovery.setting(8, 0).micro_batch), (2, 2));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn start(&self, samples: usize, bucket: u64) -> Attempts {
        self.controller.start(samples, bucket)
    }

    /// Decides what follows a failed attempt, and pauses if that is a pause. The next attempt has the new [`Attempts::setting`].
    ///
    /// # Errors
    /// A report of the attempts if nothing is left to try, or if the caller has ended the wait.
    pub fn after(&mut self, attempts: &mut Attempts, failure: &Failure) -> Result<(), Box<ExhaustionReport>> {
        let setting = attempts.setting();
        let remedy = self.controller.failed(attempts, failure);
        tracing::warn!(micro_batch = setting.micro_batch, plan = setting.plan, "{failure}; {remedy}");
        let interrupted = matches!(remedy, Remedy::Wait(pause) if (self.pause.0)(pause).is_break());
        if !interrupted && remedy != Remedy::GiveUp {
            return Ok(());
        }
        let mut tries = attempts.failed().to_vec();
        if let Some(last) = tries.last_mut() {
            last.remedy = Remedy::GiveUp;
        }
        let search = &self.controller.search;
        Err(Box::new(ExhaustionReport {
            tries,
            waited: attempts.waited(),
            interrupted,
            device: DeviceFigures { total: search.config().limit(), ..DeviceFigures::of(&self.device) },
            fit: search.fit(attempts.bucket()),
            ..ExhaustionReport::default()
        }))
    }

    /// Learns from the attempt that succeeded. `peak`: its peak bytes, if measured. Otherwise those of [`with_peak`](Self::with_peak) count.
    pub fn succeeded(&mut self, attempts: &Attempts, peak: Option<u64>) {
        self.controller.succeeded(attempts, peak.or_else(|| (self.peak.0)()));
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
}
