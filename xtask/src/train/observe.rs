//! What a run shows and records while it goes on.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{IsTerminal, Write};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Instant;

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressStyle};
use kiln_data::{Bottleneck, LoaderStats};
use kiln_memory::{Measured, Meter};
use kiln_training::{Evaluation, Event, StepReport};
use serde_json::json;

use super::watch::Watch;

const MIB: f64 = (1 << 20) as f64;

/// Steps that the final loss is the mean of: single batches differ too much from each other.
const RECENT: usize = 50;

/// Appends metrics, moves the progress bar, measures memory, and listens for Ctrl-C.
pub(crate) struct Observer {
    metrics: File,
    bar: ProgressBar,
    interrupted: Arc<AtomicBool>,
    started: Instant,
    meter: &'static Meter,
    watch: Arc<Watch>,
    data: Option<Box<dyn Fn() -> LoaderStats>>,
    /// Steps this process has seen.
    steps: u64,
    losses: Vec<f64>,
    /// Losses of the last steps, oldest first.
    recent: VecDeque<f64>,
    /// The most bytes beyond those before the model within a step after the first; none before the second step.
    pub(crate) peak_bytes: Option<u64>,
    /// The second step of this process, over time: the first also allocates what stays.
    pub(crate) measured: Option<Measured>,
    /// Attempts that failed for want of memory, and seconds that went into them.
    pub(crate) failures: usize,
    pub(crate) lost_seconds: f64,
    pub(crate) last: Option<Evaluation>,
    pub(crate) failure: Option<anyhow::Error>,
}

impl Observer {
    /// `meter` counts from before the model was built.
    pub(crate) fn new(
        metrics: File,
        total_steps: u64,
        at_step: u64,
        meter: &'static Meter,
        watch: Arc<Watch>,
    ) -> Result<Self> {
        let interrupted = Arc::new(AtomicBool::new(false));
        let flag = interrupted.clone();
        ctrlc::set_handler(move || {
            if flag.swap(true, Relaxed) {
                std::process::exit(130); // the second time: at once
            }
        })
        .context("cannot listen for Ctrl-C")?;
        let bar = if std::io::stderr().is_terminal() { ProgressBar::new(total_steps) } else { ProgressBar::hidden() };
        let style = "{bar:30} step {pos}/{len}  {per_sec}  ETA {eta}  {msg}";
        bar.set_style(ProgressStyle::with_template(style)?);
        bar.set_position(at_step);
        bar.reset_eta();
        Ok(Self {
            metrics,
            bar,
            interrupted,
            started: Instant::now(),
            meter,
            watch,
            data: None,
            steps: 0,
            losses: vec![],
            recent: VecDeque::new(),
            peak_bytes: None,
            measured: None,
            failures: 0,
            lost_seconds: 0.0,
            last: None,
            failure: None,
        })
    }

    /// Shows beside the loss what `data` says of the loader.
    pub(crate) fn follow(&mut self, data: impl Fn() -> LoaderStats + 'static) {
        self.data = Some(Box::new(data));
    }

    pub(crate) fn see(&mut self, event: &Event) -> ControlFlow<()> {
        let outcome = match event {
            Event::Step(report) => self.step(report),
            Event::Evaluated(evaluation) => self.evaluated(evaluation),
            // What a checkpoint stands for must be as durable as the checkpoint.
            Event::Saving => self.metrics.sync_data().context("cannot write metrics"),
            Event::Saved(path) => {
                tracing::debug!("saved {}", path.display());
                Ok(())
            }
        };
        if !matches!(event, Event::Step(_)) {
            self.meter.reset_peak(); // measuring and saving are not training
        }
        if let Err(error) = outcome {
            self.failure = Some(error);
        }
        match self.failure.is_some() || self.interrupted.load(Relaxed) {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }

    fn step(&mut self, report: &StepReport) -> Result<()> {
        self.steps += 1;
        if self.steps > 1 {
            // The first step also allocates what stays: optimizer state and thread pools.
            let measured = self.watch.end();
            let peak = measured.as_ref().map_or_else(|| self.meter.peak_bytes(), |measured| measured.peak_bytes);
            self.peak_bytes = self.peak_bytes.max(Some(peak));
            self.measured = measured.or(self.measured.take());
        } else {
            self.watch.begin();
        }
        self.meter.reset_peak();
        if report.failures > 0 {
            self.failures += report.failures;
            self.lost_seconds += report.lost_seconds;
            let (step, failures, parts) = (report.step, report.failures, report.micro_batches);
            self.bar.suspend(|| {
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
            self.bar.suspend(|| tracing::info!("step {}  skipped: overflow at a loss scale of {scale}", report.step));
        }
        self.bar.set_position(report.step);
        let data = self.data.as_ref().map_or(String::new(), |data| {
            let stats = data();
            let (waiting, mib) = (100.0 * stats.waiting(), stats.bytes_in_flight as f64 / MIB);
            let on = match stats.bottleneck() {
                Bottleneck::Loader => format!(" ({})", stats.longest_stage()),
                Bottleneck::Consumer => String::new(),
            };
            format!(
                "  {:.0} samples/s  {waiting:.0} % waiting for data{on}  {mib:.1} MiB in flight",
                stats.samples_per_second()
            )
        });
        self.bar.set_message(format!("loss {:.4}{data}", report.loss));
        self.record(json!({
            "kind": "step", "step": report.step, "epoch": report.epoch, "loss": report.loss,
            "gradient_norm": report.gradient_norm, "learning_rate": report.learning_rate,
            "loss_scale": report.loss_scale, "skipped": report.skipped, "micro_batches": report.micro_batches, "failures": report.failures,
        }))
    }

    fn evaluated(&mut self, evaluation: &Evaluation) -> Result<()> {
        let mean = self.losses.iter().sum::<f64>() / self.losses.len() as f64;
        let mean = if self.losses.is_empty() { "-".to_owned() } else { format!("{mean:.4}") };
        self.losses.clear();
        let figures: Vec<String> =
            evaluation.figures.iter().map(|(name, value)| format!("{name} {value:.4}")).collect();
        let seconds = self.started.elapsed().as_secs_f64();
        self.bar.suspend(|| {
            tracing::info!(
                "step {}  epochs {}  loss {mean}  {}  {seconds:.1} s",
                evaluation.step,
                evaluation.epochs,
                figures.join("  ")
            );
        });
        self.last = Some(evaluation.clone());
        let mut line = json!({ "kind": "evaluation", "step": evaluation.step, "epochs": evaluation.epochs });
        for (name, value) in &evaluation.figures {
            line[*name] = json!(value);
        }
        self.record(line)
    }

    fn record(&mut self, line: serde_json::Value) -> Result<()> {
        writeln!(self.metrics, "{line}").context("cannot write metrics")
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
