//! Reports the prediction of each image, and counts failures.

use std::io::{ErrorKind, Write};
use std::ops::ControlFlow;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Result, bail};
use kiln_data::printable;
use serde_json::{Map, Value, json};

use crate::interrupt::Interrupt;
use crate::output::{json_line, path_json};

/// Classes with their shares, the largest first: probabilities for an image, or parts of its pixels.
pub(super) type Shares = Vec<(usize, f64)>;

/// Reports images on stdout, one line each, and counts them.
pub(super) struct Printer {
    is_json: bool,
    classes: Vec<String>,
    interrupt: Interrupt,
    started: Instant,
    predicted: usize,
    failed: usize,
    is_closed: bool,
}

impl Printer {
    pub(super) fn new(is_json: bool, classes: Vec<String>, interrupt: Interrupt) -> Self {
        Self { is_json, classes, interrupt, started: Instant::now(), predicted: 0, failed: 0, is_closed: false }
    }

    pub(super) fn classes(&self) -> &[String] {
        &self.classes
    }

    /// Reports the classes of an image. A line of JSON also has the further values under their names.
    pub(super) fn image(
        &mut self,
        path: &Path,
        what: &'static str,
        shares: &Shares,
        more: &[(&str, Value)],
    ) -> Result<ControlFlow<()>> {
        self.predicted += 1;
        let name = |class: usize| &self.classes[class];
        let line = if self.is_json {
            let classes: Vec<Value> = shares
                .iter()
                .map(|(class, share)| json!({ "class": name(*class), "index": class, what: share }))
                .collect();
            let mut line =
                Map::from_iter([("file".to_owned(), path_json(path)), ("classes".to_owned(), json!(classes))]);
            line.extend(more.iter().map(|(name, value)| ((*name).to_owned(), value.clone())));
            json_line(&line)?
        } else {
            let classes = shares.iter().map(|(class, share)| format!("{} {share:.4}", printable(name(*class))));
            format!("{}: {}", printable(&path), classes.collect::<Vec<_>>().join(", "))
        };
        self.line(&line)
    }

    /// Reports an image without a prediction, because it cannot be read or does not fit the model.
    pub(super) fn failure(&mut self, path: &Path, error: &str) -> Result<ControlFlow<()>> {
        self.failed += 1;
        tracing::warn!("{error}");
        match self.is_json {
            true => self.line(&json_line(&json!({ "file": path_json(path), "error": error }))?),
            false => Ok(self.flow()),
        }
    }

    fn line(&mut self, line: &str) -> Result<ControlFlow<()>> {
        match writeln!(std::io::stdout().lock(), "{line}") {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => self.is_closed = true,
            written => written?,
        }
        Ok(self.flow())
    }

    /// Whether stdout is still open.
    fn flow(&self) -> ControlFlow<()> {
        match self.is_closed || self.interrupt.requested() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }

    /// Ends the report on `all` images.
    ///
    /// # Errors
    /// If an image has no prediction.
    pub(super) fn finish(self, all: usize) -> Result<ExitCode> {
        let (predicted, seconds) = (self.predicted, self.started.elapsed().as_secs_f64());
        let speed = predicted as f64 / seconds;
        tracing::info!("{predicted} of {all} images in {seconds:.1} s, {speed:.1} images/s");
        if self.interrupt.requested() {
            return Ok(ExitCode::from(130));
        }
        match self.failed {
            0 => Ok(ExitCode::SUCCESS),
            failed => bail!("{failed} of {all} images could not be predicted; the warnings name them"),
        }
    }
}

/// The `top` largest of `values`, with their indices; the first if several are equal.
pub(super) fn largest(values: impl IntoIterator<Item = f64>, top: usize) -> Shares {
    let mut all: Shares = values.into_iter().enumerate().collect();
    all.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    all.truncate(top);
    all
}

/// Converts logits to probabilities of classes.
pub(super) fn probabilities(logits: &[f32]) -> Vec<f64> {
    let most = logits.iter().fold(f64::NEG_INFINITY, |most, logit| most.max(f64::from(*logit)));
    let weights: Vec<f64> = logits.iter().map(|logit| (f64::from(*logit) - most).exp()).collect();
    let sum: f64 = weights.iter().sum();
    weights.into_iter().map(|weight| weight / sum).collect()
}

#[cfg(test)]
mod tests {
    use super::{largest, probabilities};

    #[test]
    fn the_largest_come_first_and_the_first_of_equal_ones() {
        assert_eq!(largest([0.1, 0.4, 0.4, 0.1], 3), [(1, 0.4), (2, 0.4), (0, 0.1)]);
        assert_eq!(largest([0.5], 5), [(0, 0.5)]);
    }

    #[test]
    fn probabilities_add_up_whatever_the_logits() {
        let found = probabilities(&[1000.0, 1000.0 + 2f32.ln(), -1000.0]);
        for (found, expected) in found.iter().zip([1.0 / 3.0, 2.0 / 3.0, 0.0]) {
            assert!((found - expected).abs() < 1e-4, "{found}, expected {expected}");
        }
    }
}
