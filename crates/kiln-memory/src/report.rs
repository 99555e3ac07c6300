use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::{Error, Measured, Prediction};

mod chart;
mod figures;
mod html;
mod svg;
mod text;
mod timeline;

/// What a training step takes, as it was predicted and as it was measured, to be read by people and by programs.
///
/// ```
/// use kiln_memory::Report;
///
/// let report = Report::new("ResNet-50").with_fact("batch", 32);
/// assert!(report.text(10).starts_with("ResNet-50\n"));
/// assert!(report.html().contains("<th scope=\"row\">batch</th><td>32</td>"));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Report {
    /// What it is about.
    pub title: String,
    /// What a reader should know of the step, such as model, batch and device, with names, in order.
    pub facts: Vec<(String, String)>,
    /// What was predicted.
    pub prediction: Option<Prediction>,
    /// What was measured.
    pub measured: Option<Measured>,
}

impl Report {
    /// A report that holds nothing yet.
    pub fn new(title: impl Into<String>) -> Self {
        Self { title: title.into(), ..Self::default() }
    }

    /// Adds a fact.
    #[must_use]
    pub fn with_fact(mut self, name: impl Into<String>, value: impl ToString) -> Self {
        self.facts.push((name.into(), value.to_string()));
        self
    }

    /// Says what was predicted.
    #[must_use]
    pub fn with_prediction(mut self, prediction: Prediction) -> Self {
        self.prediction = Some(prediction);
        self
    }

    /// Says what was measured.
    #[must_use]
    pub fn with_measured(mut self, measured: Measured) -> Self {
        self.measured = Some(measured);
        self
    }

    /// How far the predicted peak is off, as a part of the measured one: negative when it is too low. `None` unless both
    /// are there and the measured one is not zero.
    pub fn error(&self) -> Option<f64> {
        figures::error(self.prediction.as_ref().map(|p| p.peak_bytes), self.measured.as_ref().map(|m| m.peak_bytes))
    }

    /// A table for the terminal: peaks, phases, what the peak consists of, and the `holders` largest buffers in it.
    pub fn text(&self, holders: usize) -> String {
        text::text(self, holders)
    }

    /// All of it, on one line.
    pub fn json(&self) -> String {
        serde_json::to_string(self).expect("strings, numbers and lists of them have a JSON form")
    }

    /// A page that needs no network and no other file: the timeline, what is alive at any moment of it, and the tables.
    /// Holds [`json`](Self::json) in the element `data`.
    pub fn html(&self) -> String {
        html::html(self)
    }

    /// The timeline alone, as a picture that stands for itself.
    pub fn svg(&self) -> String {
        svg::svg(self)
    }

    /// Writes [`html`](Self::html) to a file: all of it, or nothing.
    ///
    /// # Errors
    /// [`Error::Write`] when the file cannot be written; one that was there before is as it was.
    pub fn write_html(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        replace(path.as_ref(), self.html().as_bytes())
    }

    /// Writes [`json`](Self::json) to a file: all of it, or nothing.
    ///
    /// # Errors
    /// [`Error::Write`] when the file cannot be written; one that was there before is as it was.
    pub fn write_json(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        replace(path.as_ref(), self.json().as_bytes())
    }
}

/// Puts a file in the place of another, so that a reader sees either.
fn replace(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let mut part = path.as_os_str().to_owned();
    // Two processes that write the same report do not write into each other's part.
    part.push(format!(".{}.partial", std::process::id()));
    let write = || -> io::Result<()> {
        let mut file = File::create(&part)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&part, path)
    };
    write().map_err(|source| {
        // There may be none; what failed first is what matters.
        let _ = fs::remove_file(&part);
        Error::Write { path: path.to_owned(), source }
    })
}
