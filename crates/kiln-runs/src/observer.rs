//! Progress and metrics of a run in progress.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Instant;

use indicatif::ProgressBar;
use kiln_data::{Bottleneck, LoaderStats, printable};
use kiln_report::{Samples, Schedule, counted};
use kiln_training::{Batch, Evaluation, Event, StepReport, TrainingData};
use serde_json::{Map, Value, json};

use crate::error::Error;
use crate::metrics::MetricsWriter;
use crate::progress::{Progress, StepLine};
use crate::record::{About, Outcome, RunRecord};
use crate::watched::{Loaded, WatchedData};

/// Steps over which the final loss is averaged: single batches differ too much from each other.
const RECENT: usize = 50;

/// Says the parts of a line about a run.
pub type Say = Box<dyn Fn(Vec<String>)>;

/// Appends metrics, moves the progress bar, notes how the run is, and listens for a wish to stop.
pub struct Observer {
    metrics: MetricsWriter,
    record: RunRecord,
    progress: Progress,
    bar: ProgressBar,
    total_steps: u64,
    /// Batches of an epoch.
    batches: u64,
    /// Bytes that a step may take.
    limit_bytes: Option<u64>,
    is_interrupted: Box<dyn Fn() -> bool>,
    say: Say,
    started: Instant,
    loaded: Loaded,
    /// Steps this process has seen.
    steps: u64,
    losses: Vec<f64>,
    /// Losses of the last steps, oldest first.
    recent: VecDeque<f64>,
    peak_bytes: Option<u64>,
    /// Attempts that failed for lack of memory, and the seconds that they took.
    failures: usize,
    lost_seconds: f64,
    last: Option<Evaluation>,
    failure: Option<Error>,
}

impl Observer {
    /// Notes that this process works on the run in `directory` after step `at`, with the batches of `data`. It stops when `is_interrupted`
    /// says so.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn begin<B: Batch>(
        directory: &Path,
        about: About,
        at: u64,
        (data, progress): (&WatchedData<'_, B>, &Progress),
        say: Say,
        is_interrupted: impl Fn() -> bool + 'static,
    ) -> Result<Self, Error> {
        let (total_steps, limit_bytes) = (about.total_steps, about.limit_bytes);
        let record = RunRecord::begin(directory, about, at)?;
        Ok(Self {
            metrics: MetricsWriter::after(directory, at)?,
            record,
            bar: progress.steps(total_steps, at),
            progress: progress.clone(),
            total_steps,
            batches: data.train().batches() as u64,
            limit_bytes,
            is_interrupted: Box::new(is_interrupted),
            say,
            started: Instant::now(),
            loaded: data.loaded(),
            steps: 0,
            losses: vec![],
            recent: VecDeque::new(),
            peak_bytes: None,
            failures: 0,
            lost_seconds: 0.0,
            last: None,
            failure: None,
        })
    }

    /// The most bytes of a step beyond those before the model was made. The first step does not count, because it also allocates the
    /// optimizer's state.
    pub fn peak_bytes(&self) -> Option<u64> {
        self.peak_bytes
    }

    /// What loading did for the steps of this process.
    pub fn loaded(&self) -> LoaderStats {
        *self.loaded.borrow()
    }

    /// The last evaluation of this process.
    pub fn last(&self) -> Option<&Evaluation> {
        self.last.as_ref()
    }

    /// Why metrics, notes or the report could not be written, which has stopped the run.
    pub fn take_failure(&mut self) -> Option<Error> {
        self.failure.take()
    }

    /// Sees an event of the run. Breaks if the run is to stop.
    pub fn see(&mut self, event: &Event) -> ControlFlow<()> {
        let outcome = match event {
            Event::Step(report) => self.step(report),
            Event::Evaluated(evaluation) => self.evaluated(evaluation),
            // The metrics up to a checkpoint must be as durable as the checkpoint.
            Event::Saving => self.metrics.sync(),
            Event::Saved(path) => {
                tracing::debug!("saved {}", printable(&path));
                self.record.refresh(self.results())
            }
            _ => Ok(()),
        };
        if let Err(error) = outcome {
            self.failure = Some(error);
        }
        match self.failure.is_some() || (self.is_interrupted)() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }

    fn step(&mut self, report: &StepReport) -> Result<(), Error> {
        self.steps += 1;
        if self.steps > 1 {
            self.peak_bytes = self.peak_bytes.max(report.peak_bytes);
        }
        if report.failures > 0 {
            self.failures += report.failures;
            self.lost_seconds += report.lost_seconds;
            let (step, failures, parts) = (report.step, report.failures, report.micro_batches);
            self.say(vec![format!("step {step}"), ran_out(failures, parts)]);
        }
        if !report.skipped {
            self.losses.push(report.loss);
            self.recent.push_back(report.loss);
            if self.recent.len() > RECENT {
                self.recent.pop_front();
            }
        } else {
            let skipped = format!("skipped: overflow at a loss scale of {}", report.loss_scale);
            self.say(vec![format!("step {}", report.step), skipped]);
        }
        self.bar.set_position(report.step);
        let stats = self.loaded();
        let waiting = match stats.bottleneck() {
            Bottleneck::Loader => Some((stats.waiting(), stats.longest_stage().to_string())),
            Bottleneck::Consumer => None,
        };
        let line = StepLine {
            loss: report.loss,
            peak_bytes: self.peak_bytes,
            limit_bytes: self.limit_bytes,
            samples_per_second: stats.samples_per_second(),
            waiting,
        };
        self.bar.set_message(line.line(self.total_steps));
        self.metrics.line(&json!({
            "kind": "step", "step": report.step, "epoch": report.epoch, "loss": report.loss,
            "gradient_norm": report.gradient_norm, "learning_rate": report.learning_rate,
            "loss_scale": report.loss_scale, "skipped": report.skipped, "micro_batches": report.micro_batches, "failures": report.failures,
        }))
    }

    fn evaluated(&mut self, evaluation: &Evaluation) -> Result<(), Error> {
        let mean = self.losses.iter().sum::<f64>() / self.losses.len() as f64;
        let mean = if self.losses.is_empty() { "-".to_owned() } else { format!("{mean:.4}") };
        self.losses.clear();
        let metrics: Vec<String> =
            evaluation.metrics.iter().map(|(name, value)| format!("{name} {value:.4}")).collect();
        let seconds = self.started.elapsed().as_secs_f64();
        let begin = [
            format!("step {}", evaluation.step),
            format!("epochs {}", passes(evaluation.step, evaluation.epochs, self.batches)),
            format!("loss {mean}"),
        ];
        self.say(begin.into_iter().chain(metrics).chain([format!("{seconds:.1} s")]).collect());
        self.last = Some(evaluation.clone());
        let mut line = json!({ "kind": "evaluation", "step": evaluation.step, "epochs": evaluation.epochs });
        for (name, value) in &evaluation.metrics {
            line[*name] = json!(value);
        }
        self.metrics.line(&line)?;
        self.record.refresh(self.results())
    }

    /// Says the parts of a line while no bar is on the terminal.
    fn say(&self, parts: Vec<String>) {
        self.progress.suspend(|| (self.say)(parts));
    }

    /// The figures of this process so far.
    pub fn results(&self) -> Map<String, Value> {
        let loaded = self.loaded();
        let figures = [
            ("seconds", json!(self.seconds())),
            ("final_loss", json!(self.final_loss())),
            ("peak_bytes", json!(self.peak_bytes)),
            ("failed_attempts", json!(self.failures)),
            ("lost_seconds", json!(self.lost_seconds)),
            ("samples_per_second", json!(loaded.samples_per_second())),
            ("waiting_for_data", json!(loaded.waiting())),
            ("loader_peak_bytes", json!(loaded.peak_bytes)),
        ];
        let stages = loaded.stages().map(|(stage, seconds)| (format!("loader_{stage}_seconds"), json!(seconds)));
        figures.into_iter().map(|(name, value)| (name.to_owned(), value)).chain(stages).collect()
    }

    /// Notes how the work of this process ended, and writes the report, whose path it returns.
    ///
    /// # Errors
    /// Those of [`RunRecord::refresh`].
    pub fn end(
        &mut self,
        outcome: Outcome,
        results: Map<String, Value>,
        samples: Samples,
        schedule: Option<Schedule>,
    ) -> Result<PathBuf, Error> {
        self.record.end(outcome, results, samples, schedule, self.steps > 0)
    }

    /// Notes that the run failed with `error`, and writes the report, as [`end`](Self::end) does. If that fails too, it only logs the
    /// failure, because `error` is more important to the user.
    pub fn fail(&mut self, error: String) {
        if let Err(error) = self.end(Outcome::Failed(error), self.results(), Samples::default(), None) {
            tracing::debug!("{error}");
        }
    }

    /// Mean training loss over the last steps of this process.
    fn final_loss(&self) -> Option<f64> {
        let count = self.recent.len();
        (count > 0).then(|| self.recent.iter().sum::<f64>() / count as f64)
    }

    /// Removes the bar.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }

    fn seconds(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }
}

/// The message about a step that was repeated in smaller pieces.
fn ran_out(failures: usize, parts: usize) -> String {
    format!("memory ran out {}; done in {}", counted(failures, "time"), counted(parts, "micro-batch"))
}

/// The passes over the data after `step` steps and `epochs` whole epochs of `batches` batches: `2`, or `0.37` within an epoch.
fn passes(step: u64, epochs: u64, batches: u64) -> String {
    // Unreadable batches have no steps.
    match step.saturating_sub(epochs.saturating_mul(batches)).min(batches) {
        0 => epochs.to_string(),
        within => {
            let hundredths = (100 * within / batches).clamp(1, 99);
            format!("{epochs}.{hundredths:02}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_that_is_under_way_is_a_fraction() {
        for (step, epochs, shown) in [
            (0, 0, "0"),
            (1, 0, "0.01"),
            (74, 0, "0.37"),
            (199, 0, "0.99"),
            (200, 1, "1"),
            (390, 2, "2"),
            (450, 2, "2.25"),
        ] {
            assert_eq!(passes(step, epochs, 200), shown, "step {step}");
        }
    }

    #[test]
    fn one_failure_is_no_plural() {
        assert_eq!(ran_out(1, 1), "memory ran out 1 time; done in 1 micro-batch");
        assert_eq!(ran_out(2, 4), "memory ran out 2 times; done in 4 micro-batches");
    }
}
