//! A finding: what happened, in numbers, what it means, and what to try.

use std::fmt;

use bytesize::ByteSize;

/// The guide that explains it all.
const GUIDE: &str = "docs/out-of-memory.md";
/// Columns of a line.
const WIDTH: usize = 78;

/// What was found.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Finding {
    pub(super) what: String,
    /// Figures with their names.
    pub(super) figures: Vec<(&'static str, String)>,
    pub(super) meaning: Vec<&'static str>,
    /// What to try, the most promising first: an option or a step, and what it does.
    pub(super) tries: Vec<(&'static str, &'static str)>,
}

impl Finding {
    pub(super) fn new(what: impl Into<String>) -> Self {
        Self { what: what.into(), ..Self::default() }
    }

    pub(super) fn nothing() -> Self {
        Self::new("Nothing in it speaks of missing memory.").meaning(
            "Known are the messages of PyTorch, burn, CubeCL, CUDA, HIP, wgpu, XLA, and of Linux when it ends a process.",
        )
    }

    pub(super) fn meaning(mut self, text: &'static str) -> Self {
        self.meaning.push(text);
        self
    }

    pub(super) fn figure(mut self, name: &'static str, bytes: Option<u64>) -> Self {
        self.figures.extend(bytes.map(|bytes| (name, ByteSize(bytes).to_string())));
        self
    }

    pub(super) fn try_(mut self, what: &'static str, why: &'static str) -> Self {
        self.tries.push((what, why));
        self
    }

    /// What makes the tensors of a training step smaller, the cheapest first.
    pub(super) fn less(self) -> Self {
        self.try_("kiln plan --bytes", "lists what a step has in memory, and the ways that fit")
            .try_("--memory SIZE", "chooses micro-batches and recomputation so that a step fits")
            .try_("--precision bf16", "halves activations")
            .try_("--optimizer adamw8bit", "a quarter of AdamW's state")
            .try_("--store DIR", "parameters, gradients and state in files, for a model that is too large")
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in wrapped(&self.what, WIDTH) {
            writeln!(f, "{line}")?;
        }
        let column = self.figures.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        for (name, value) in &self.figures {
            writeln!(f, "  {name:column$}  {value:>10}")?;
        }
        if !self.meaning.is_empty() {
            writeln!(f, "\nWhat it means:")?;
        }
        for line in self.meaning.iter().flat_map(|text| wrapped(text, WIDTH - 2)) {
            writeln!(f, "  {line}")?;
        }
        if !self.tries.is_empty() {
            writeln!(f, "\nWhat to try:")?;
        }
        let column = self.tries.iter().map(|(what, _)| what.len()).max().unwrap_or(0);
        for (what, why) in &self.tries {
            let mut lines = wrapped(why, WIDTH.saturating_sub(column + 4).max(30)).into_iter();
            writeln!(f, "  {what:column$}  {}", lines.next().unwrap_or_default())?;
            for line in lines {
                writeln!(f, "  {:column$}  {line}", "")?;
            }
        }
        writeln!(f, "\nMore: {GUIDE}")
    }
}

/// The lines of a text of words.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = vec![];
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_fits_into_80_columns() {
        let all = Finding::new("word ".repeat(40))
            .meaning("some words about it, and some more, and so on, until it is long")
            .less();
        let text = all.figure("asked for", Some(3 << 29)).to_string();
        assert!(text.lines().all(|line| line.chars().count() < 80), "{text}");
        assert!(text.contains("asked for     1.5 GiB"), "{text}");
        assert!(wrapped("", 10).is_empty());
    }
}
