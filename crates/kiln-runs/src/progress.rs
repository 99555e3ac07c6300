//! Progress on a terminal: a bar of the steps, and one for each evaluation.

use std::io::IsTerminal;

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressFinish, ProgressStyle};

/// Columns of a line.
const COLUMNS: usize = 80;
/// Columns of the bar itself.
const BAR: usize = 8;
/// Columns of the remaining time, as in `  ETA 12m`.
const LEFT: usize = 10;

/// Bars on stderr. There are none if stderr is redirected.
#[derive(Clone)]
pub struct Progress(MultiProgress);

impl Progress {
    /// Bars, or none if they are not `wanted`.
    pub fn new(wanted: bool) -> Self {
        let shown = wanted && std::io::stderr().is_terminal();
        let target = if shown { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        Self(MultiProgress::with_draw_target(target))
    }

    /// The bar of a run of `total` steps that has taken `at` steps.
    pub(crate) fn steps(&self, total: u64, at: u64) -> ProgressBar {
        let bar = self.0.add(ProgressBar::new(total));
        let style = ProgressStyle::with_template(&format!("{{pos}}/{{len}} {{bar:{BAR}}} {{msg}}  ETA {{eta}}"));
        if let Ok(style) = style {
            bar.set_style(style);
        }
        bar.set_position(at);
        bar.reset_eta();
        bar
    }

    /// The bar of one evaluation on `batches` batches. It disappears when it is dropped.
    pub(crate) fn evaluation(&self, batches: usize) -> ProgressBar {
        let bar = ProgressBar::new(batches as u64).with_finish(ProgressFinish::AndClear);
        let bar = self.0.add(bar);
        if let Ok(style) = ProgressStyle::with_template("evaluating {bar:30} {pos}/{len} batches  ETA {eta}") {
            bar.set_style(style);
        }
        bar
    }

    /// Calls `say` while no bar is on the terminal.
    pub fn suspend(&self, say: impl FnOnce()) {
        self.0.suspend(say);
    }
}

/// The text about the last step of a run.
pub(crate) struct StepLine {
    pub(crate) loss: f64,
    /// The most bytes of a step so far.
    pub(crate) peak_bytes: Option<u64>,
    /// Bytes that a step may take.
    pub(crate) limit_bytes: Option<u64>,
    pub(crate) samples_per_second: f64,
    /// The share of time that steps wait for data, and the slowest part of loading, if steps wait.
    pub(crate) waiting: Option<(f64, String)>,
}

impl StepLine {
    /// As much of the text as a line has room for, beside the bar of a run of `steps` steps.
    pub(crate) fn line(&self, steps: u64) -> String {
        let position = 2 * steps.to_string().len() + 1;
        // A line that fills the terminal may wrap.
        self.within((COLUMNS - 1).saturating_sub(position + BAR + LEFT + 2))
    }

    fn within(&self, room: usize) -> String {
        let loss = format!("loss {}", short(self.loss));
        let peak = self.peak();
        let rate = self.samples_per_second;
        let rate = if rate < 10.0 { format!("{rate:.1}") } else { format!("{rate:.0}") };
        let (rate, rate_short) = (format!("{rate} samples/s"), format!("{rate}/s"));
        let waiting = self.waiting.as_ref().map(|(share, stage)| format!("{:.0}% waits ({stage})", 100.0 * share));
        let all = [Some(loss.clone()), peak.clone(), Some(rate.clone()), waiting];
        let choices = [
            all.to_vec(),
            all[..3].to_vec(),
            vec![Some(loss.clone()), peak.clone(), Some(rate_short)],
            vec![Some(loss.clone()), peak],
        ];
        let lines = choices.into_iter().map(|parts| parts.into_iter().flatten().collect::<Vec<_>>().join("  "));
        lines.into_iter().find(|line| line.chars().count() <= room).unwrap_or(loss)
    }

    /// `peak 41.2/300 MiB`.
    fn peak(&self) -> Option<String> {
        let peak = self.peak_bytes?;
        let (unit, bytes) = match self.limit_bytes.unwrap_or(peak) {
            0..0x4000_0000 => ("MiB", f64::from(1 << 20)),
            _ => ("GiB", f64::from(1 << 30)),
        };
        let number = |of: u64| match of as f64 / bytes {
            value if value >= 100.0 || value.fract() == 0.0 => format!("{value:.0}"),
            value if value >= 10.0 || unit == "MiB" => format!("{value:.1}"),
            value => format!("{value:.2}"),
        };
        let limit = self.limit_bytes.map_or(String::new(), |limit| format!("/{}", number(limit)));
        Some(format!("peak {}{limit} {unit}", number(peak)))
    }
}

/// Four decimals, or scientific notation for a number with too many digits.
fn short(loss: f64) -> String {
    if loss.abs() < 1000.0 || !loss.is_finite() { format!("{loss:.4}") } else { format!("{loss:.2e}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status() -> StepLine {
        let (peak_bytes, limit_bytes) = (Some(43_201_331), Some(300 << 20));
        StepLine { loss: 1.82151, peak_bytes, limit_bytes, samples_per_second: 812.3, waiting: None }
    }

    #[test]
    fn the_peak_stands_against_the_budget() {
        assert_eq!(status().line(744), "loss 1.8215  peak 41.2/300 MiB  812 samples/s");
        let unlimited = StepLine { limit_bytes: None, ..status() };
        assert_eq!(unlimited.line(744), "loss 1.8215  peak 41.2 MiB  812 samples/s");
        let gpu = StepLine { peak_bytes: Some(13 << 30), limit_bytes: Some(16 << 30), ..status() };
        assert_eq!(gpu.line(744), "loss 1.8215  peak 13/16 GiB  812 samples/s");
        assert_eq!(StepLine { peak_bytes: None, ..status() }.line(744), "loss 1.8215  812 samples/s");
    }

    #[test]
    fn a_line_of_any_run_fits() {
        for steps in [1, 744, 1_000_000, u64::from(u32::MAX)] {
            for loss in [0.0, -123.456, 1e30, f64::NAN, f64::INFINITY] {
                for rate in [0.0, 9.99, 123_456.0] {
                    for waiting in [None, Some((0.42, "decoding".to_owned()))] {
                        for limit in [None, Some(1), Some(300 << 20), Some(999 << 40)] {
                            let status = StepLine {
                                loss,
                                samples_per_second: rate,
                                waiting: waiting.clone(),
                                limit_bytes: limit,
                                ..status()
                            };
                            let line = status.line(steps);
                            let position = 2 * steps.to_string().len() + 1;
                            assert!(line.starts_with("loss"), "{line}");
                            assert!(position + BAR + 2 + line.len() + LEFT < COLUMNS, "{line}");
                        }
                    }
                }
            }
        }
    }
}
