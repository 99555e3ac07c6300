//! The report of a step as data: prediction and measurement side by side, and explanations of steps that do not fit.

mod explain;
mod explanation;
mod explanation_text;
mod live_curve;
mod suggestions;

use serde::{Deserialize, Serialize};

use crate::measure::Measured;
use crate::predict::Prediction;

pub use explanation::{BufferGroup, Explanation, Suggestion};

/// The predicted and measured memory of a training step. `MemoryPage` of kiln-report makes a page, a text and a picture of its JSON.
///
/// ```
/// use kiln_memory::MemoryReport;
///
/// let report = MemoryReport::new("ResNet-50").with_fact("batch", 32);
/// let page: kiln_report::MemoryPage = serde_json::from_str(&report.json())?;
/// assert!(page.text(10).starts_with("ResNet-50\n"));
/// assert!(page.html().contains("<dt>batch</dt><dd>32</dd>"));
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MemoryReport {
    /// The heading.
    pub title: String,
    /// Named facts about the step in order, such as model, batch and device.
    pub facts: Vec<(String, String)>,
    /// The prediction.
    pub prediction: Option<Prediction>,
    /// The measurement.
    pub measured: Option<Measured>,
    /// The most bytes at once over the whole run that the measured step is part of.
    #[serde(default)]
    pub run_peak_bytes: Option<u64>,
    /// Bytes that the step may take: the budget.
    #[serde(default)]
    pub limit_bytes: Option<u64>,
    /// Bytes that the program could have in all on this device: those that it has and those that are free.
    #[serde(default)]
    pub available_bytes: Option<u64>,
    /// Changes that lower the peak, for example from [`StepTrace::explain`](crate::StepTrace::explain).
    #[serde(default)]
    pub suggestions: Vec<Suggestion>,
}

impl MemoryReport {
    /// An empty report.
    pub fn new(title: impl Into<String>) -> Self {
        Self { title: title.into(), ..Self::default() }
    }

    /// Adds a fact.
    #[must_use]
    pub fn with_fact(mut self, name: impl Into<String>, value: impl ToString) -> Self {
        self.facts.push((name.into(), value.to_string()));
        self
    }

    /// Sets the prediction.
    #[must_use]
    pub fn with_prediction(mut self, prediction: Prediction) -> Self {
        self.prediction = Some(prediction);
        self
    }

    /// Sets the measurement.
    #[must_use]
    pub fn with_measured(mut self, measured: Measured) -> Self {
        self.measured = Some(measured);
        self
    }

    /// Sets the highest peak of the whole run that the measured step is part of.
    #[must_use]
    pub fn with_run_peak(mut self, bytes: impl Into<Option<u64>>) -> Self {
        self.run_peak_bytes = bytes.into();
        self
    }

    /// Sets the bytes that the step may take: the budget.
    #[must_use]
    pub fn with_limit(mut self, bytes: impl Into<Option<u64>>) -> Self {
        self.limit_bytes = bytes.into();
        self
    }

    /// Sets the bytes that the program could have in all on this device: those that it has and those that are free.
    #[must_use]
    pub fn with_available(mut self, bytes: impl Into<Option<u64>>) -> Self {
        self.available_bytes = bytes.into();
        self
    }

    /// Sets the changes that lower the peak.
    #[must_use]
    pub fn with_suggestions(mut self, suggestions: Vec<Suggestion>) -> Self {
        self.suggestions = suggestions;
        self
    }

    /// The error of the predicted peak relative to the measured one. It is negative if the prediction is too low. `None` if one of the
    /// peaks is missing or the measured one is zero.
    pub fn error(&self) -> Option<f64> {
        let predicted = self.prediction.as_ref()?.peak_bytes as f64;
        let measured = self.measured.as_ref()?.peak_bytes as f64;
        (measured > 0.0).then(|| predicted / measured - 1.0)
    }

    /// The whole report as JSON, on one line. A time that is not finite is `null`.
    pub fn json(&self) -> String {
        serde_json::to_string(self).expect("strings, numbers and lists of them have a JSON form")
    }
}
