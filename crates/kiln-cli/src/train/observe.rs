//! Progress and metrics of a run in progress.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::time::Instant;

use anyhow::Result;
use indicatif::ProgressBar;
use kiln_data::{Bottleneck, LoaderStats, printable};
use kiln_report::{Samples, Schedule};
use kiln_training::{Evaluation, Event, StepReport};
use serde_json::{Map, Value, json};

use crate::interrupt::Interrupt;
use crate::log::fitted;
use crate::metrics::MetricsWriter;
use crate::progress::{Progress, Status};
use crate::runs::{Outcome, RunRecord};
use crate::words::counted;

/// Steps over which the final loss is averaged: single batches differ too much from each other.
const RECENT: usize = 50;

/// Appends metrics, moves the progress bar, measures memory, and listens for Ctrl-C.
pub(crate) struct Observer {
    metrics: MetricsWriter,
    record: RunRecord,
    pub(crate) progress: Progress,
    bar: ProgressBar,
    total_steps: u64,
    /// Batches of an epoch.
    batches: u64,
    /// Bytes that a step may take.
    limit_bytes: Option<u64>,
    interrupt: Interrupt,
    started: Instant,
    /// Statistics of the loader.
    data: Box<dyn Fn() -> LoaderStats>,
    /// Steps this process has seen.
    steps: u64,
    losses: Vec<f64>,
    /// Losses of the last steps, oldest first.
    recent: VecDeque<f64>,
    /// The most bytes of a step beyond those before the model was made. The first step does not count, because it also allocates the
    /// optimizer's state.
    pub(crate) peak_bytes: Option<u64>,
    /// Attempts that failed for lack of memory, and the seconds that they took.
    pub(crate) failures: usize,
    pub(crate) lost_seconds: f64,
    pub(crate) last: Option<Evaluation>,
    pub(crate) failure: Option<anyhow::Error>,
}

impl Observer {
    /// An observer that shows the loader's statistics from `data` beside the loss.
    pub(crate) fn new(
        (metrics, record): (MetricsWriter, RunRecord),
        progress: Progress,
        (at_step, total_steps, batches): (u64, u64, u64),
        limit_bytes: Option<u64>,
        interrupt: Interrupt,
        data: impl Fn() -> LoaderStats + 'static,
    ) -> Result<Self> {
        Ok(Self {
            metrics,
            record,
            bar: progress.steps(total_steps, at_step)?,
            progress,
            total_steps,
            batches,
            limit_bytes,
            interrupt,
            started: Instant::now(),
            data: Box::new(data),
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

    pub(crate) fn see(&mut self, event: &Event) -> ControlFlow<()> {
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
        match self.failure.is_some() || self.interrupt.requested() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }

    fn step(&mut self, report: &StepReport) -> Result<()> {
        self.steps += 1;
        if self.steps > 1 {
            self.peak_bytes = self.peak_bytes.max(report.peak_bytes);
        }
        if report.failures > 0 {
            self.failures += report.failures;
            self.lost_seconds += report.lost_seconds;
            let (step, failures, parts) = (report.step, report.failures, report.micro_batches);
            self.progress.suspend(|| {
                tracing::info!("step {step}  {}", ran_out(failures, parts));
            });
        }
        if !report.skipped {
            self.losses.push(report.loss);
            self.recent.push_back(report.loss);
            if self.recent.len() > RECENT {
                self.recent.pop_front();
            }
        } else {
            let scale = report.loss_scale;
            self.progress
                .suspend(|| tracing::info!("step {}  skipped: overflow at a loss scale of {scale}", report.step));
        }
        self.bar.set_position(report.step);
        let stats = (self.data)();
        let waiting = match stats.bottleneck() {
            Bottleneck::Loader => Some((stats.waiting(), stats.longest_stage().to_string())),
            Bottleneck::Consumer => None,
        };
        let status = Status {
            loss: report.loss,
            peak_bytes: self.peak_bytes,
            limit_bytes: self.limit_bytes,
            samples_per_second: stats.samples_per_second(),
            waiting,
        };
        self.bar.set_message(status.line(self.total_steps));
        self.metrics.line(&json!({
            "kind": "step", "step": report.step, "epoch": report.epoch, "loss": report.loss,
            "gradient_norm": report.gradient_norm, "learning_rate": report.learning_rate,
            "loss_scale": report.loss_scale, "skipped": report.skipped, "micro_batches": report.micro_batches, "failures": report.failures,
        }))
    }

    fn evaluated(&mut self, evaluation: &Evaluation) -> Result<()> {
        let mean = self.losses.iter().sum::<f64>() / self.losses.len() as f64;
        let mean = if self.losses.is_empty() { "-".to_owned() } else { format!("{mean:.4}") };
        self.losses.clear();
        let metrics: Vec<String> =
            evaluation.metrics.iter().map(|(name, value)| format!("{name} {value:.4}")).collect();
        let seconds = self.started.elapsed().as_secs_f64();
        self.progress.suspend(|| {
            let begin = [
                ("step", evaluation.step.to_string()),
                ("epochs", passes(evaluation.step, evaluation.epochs, self.batches)),
                ("loss", mean),
            ];
            let begin = begin.into_iter().map(|(name, value)| format!("{name} {value}"));
            let parts = begin.chain(metrics).chain([format!("{seconds:.1} s")]);
            tracing::info!("{}", fitted(parts, "  "));
        });
        self.last = Some(evaluation.clone());
        let mut line = json!({ "kind": "evaluation", "step": evaluation.step, "epochs": evaluation.epochs });
        for (name, value) in &evaluation.metrics {
            line[*name] = json!(value);
        }
        self.metrics.line(&line)?;
        self.record.refresh(self.results())
    }

    /// The figures of this process so far.
    pub(crate) fn results(&self) -> Map<String, Value> {
        let loaded = (self.data)();
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

    /// Notes how the work of this process ended, and writes the report.
    pub(crate) fn end(
        &mut self,
        outcome: Outcome,
        results: Map<String, Value>,
        samples: Samples,
        schedule: Option<Schedule>,
    ) -> Result<std::path::PathBuf> {
        self.record.end(outcome, results, samples, schedule, self.steps > 0)
    }

    /// Notes that the run failed with `error`, and writes the report, as [`end`](Self::end) does. If that fails too, it only logs the
    /// failure, because `error` is more important to the user.
    pub(crate) fn fail(&mut self, error: &anyhow::Error) {
        let outcome = Outcome::Failed(format!("{error:#}"));
        if let Err(error) = self.end(outcome, self.results(), Samples::default(), None) {
            tracing::debug!("{error:#}");
        }
    }

    /// Mean training loss over the last steps of this process.
    pub(crate) fn final_loss(&self) -> Option<f64> {
        let count = self.recent.len();
        (count > 0).then(|| self.recent.iter().sum::<f64>() / count as f64)
    }

    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }

    pub(crate) fn seconds(&self) -> f64 {
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
