//! Progress and metrics of a run that is under way.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::time::Instant;

use anyhow::Result;
use indicatif::ProgressBar;
use kiln_data::{Bottleneck, LoaderStats};
use kiln_training::{Evaluation, Event, StepReport};
use serde_json::{Map, Value, json};

use super::interrupt::Interrupt;
use crate::log::fitted;
use crate::metrics::MetricsWriter;
use crate::page::Samples;
use crate::progress::{Progress, Status};
use crate::runs::{Outcome, RunRecord};

/// Steps that the final loss is the mean of: single batches differ too much from each other.
const RECENT: usize = 50;

/// Appends metrics, moves the progress bar, measures memory, and listens for Ctrl-C.
pub(crate) struct Observer {
    metrics: MetricsWriter,
    record: RunRecord,
    progress: Progress,
    bar: ProgressBar,
    total_steps: u64,
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
    /// The most bytes of a step beyond those before the model was made. The first step, which also allocates the optimizer's state,
    /// does not count.
    pub(crate) peak_bytes: Option<u64>,
    /// Attempts that failed for want of memory, and seconds that went into them.
    pub(crate) failures: usize,
    pub(crate) lost_seconds: f64,
    pub(crate) last: Option<Evaluation>,
    pub(crate) failure: Option<anyhow::Error>,
}

impl Observer {
    /// Shows beside the loss what `data` says of the loader.
    pub(crate) fn new(
        (metrics, record): (MetricsWriter, RunRecord),
        progress: &Progress,
        (at_step, total_steps): (u64, u64),
        limit_bytes: Option<u64>,
        interrupt: Interrupt,
        data: impl Fn() -> LoaderStats + 'static,
    ) -> Result<Self> {
        Ok(Self {
            metrics,
            record,
            bar: progress.steps(total_steps, at_step)?,
            progress: progress.clone(),
            total_steps,
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
                tracing::debug!("saved {}", path.display());
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
                tracing::info!("step {step}  memory ran out {failures} times; done in {parts} micro-batches");
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
            let begin =
                [("step", evaluation.step.to_string()), ("epochs", evaluation.epochs.to_string()), ("loss", mean)];
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

    /// Figures of this process so far.
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
        samples: &Samples,
        more: [&str; 2],
    ) -> Result<std::path::PathBuf> {
        self.record.end(outcome, results, samples, more, self.steps > 0)
    }

    /// The same for a run that failed, of which the user is told more important things than that this failed too.
    pub(crate) fn fail(&mut self, error: &anyhow::Error) {
        let outcome = Outcome::Failed(format!("{error:#}"));
        if let Err(error) = self.end(outcome, self.results(), &Samples::default(), ["", ""]) {
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
