//! The explanation as text for the terminal.

use std::fmt;

use bytesize::ByteSize;

use crate::category::Category;

use super::explanation::{BufferGroup, Explanation, Suggestion};

/// The width that rows stay within.
const WIDTH: usize = 80;

/// The largest number of buffers in `must_go` that the text names.
const NAMED: usize = 8;

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (peak, limit) = (size(self.peak_bytes), size(self.limit_bytes));
        match self.over_bytes {
            0 => writeln!(f, "A batch of {} fits: {peak} of {limit}.", self.batch)?,
            over => writeln!(f, "A batch of {} takes {peak}, {} over the limit of {limit}.", self.batch, size(over))?,
        }
        writeln!(f, "The peak is at {} in the {} phase.", self.operation, self.phase)?;

        let mut rows: Vec<_> = Category::ALL.map(|category| (category, self.breakdown.of(category))).into();
        rows.retain(|(_, bytes)| *bytes > 0);
        rows.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
        let row = |(category, bytes): &(Category, u64)| {
            let share = 100.0 * *bytes as f64 / self.peak_bytes.max(1) as f64;
            vec![category.to_string(), size(*bytes), format!("{share:.1} %")]
        };
        table(f, "At the peak", &[1, 2], rows.iter().map(row))?;
        table(f, "Largest groups of buffers", &[1], self.groups.iter().map(BufferGroup::cells))?;
        if !self.suggestions.is_empty() {
            table(f, "Changes that would help", &[1, 2], self.suggestions.iter().map(Suggestion::cells))?;
        }
        self.must_go(f)
    }
}

impl Explanation {
    fn must_go(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.over_bytes == 0 {
            return Ok(());
        }
        if !self.fits_without {
            return writeln!(f, "\nEven without any tensor it would not fit.");
        }
        let all = size(self.must_go.iter().map(|group| group.bytes).sum());
        let heading = match self.must_go.len() {
            1 => format!("One buffer would have to go, {all}"),
            count => format!("{count} buffers would have to go, the largest first, {all}"),
        };
        table(f, &heading, &[1], self.must_go.iter().take(NAMED).map(BufferGroup::cells))?;
        match self.must_go.len().saturating_sub(NAMED) {
            0 => Ok(()),
            more => writeln!(f, "  and {more} more"),
        }
    }
}

impl BufferGroup {
    fn cells(&self) -> Vec<String> {
        let sides: Vec<_> = self.shape.iter().map(usize::to_string).collect();
        let path = match &self.path {
            Some(path) if !path.is_empty() => path.clone(),
            _ => self.operation.clone(),
        };
        let count = if self.buffers == 1 { String::new() } else { format!("and {} more", self.buffers - 1) };
        // Workspace has no shape.
        let tensor = if sides.is_empty() { String::new() } else { format!("{} {}", self.dtype, sides.join("x")) };
        vec![path, size(self.bytes), self.category.to_string(), tensor, count]
    }
}

impl Suggestion {
    fn cells(&self) -> Vec<String> {
        let fits = if self.fits { "fits" } else { "does not fit" };
        let (peak, saved) = (size(self.peak_bytes), format!("saves {}", size(self.saved_bytes)));
        let note = self.note.clone().unwrap_or_default();
        vec![self.name.clone(), peak, saved, fits.into(), note]
    }
}

/// Bytes for readers, in a suitable unit: `1.5 GiB`.
fn size(bytes: u64) -> String {
    ByteSize::b(bytes).display().iec().to_string()
}

/// Writes a table with a heading. Columns of numbers are aligned to the right. If a row is too long, its last cell, a note, is below it.
fn table(
    f: &mut fmt::Formatter<'_>,
    heading: &str,
    numbers: &[usize],
    rows: impl Iterator<Item = Vec<String>>,
) -> fmt::Result {
    let rows: Vec<_> = rows.collect();
    let length = |text: &str| text.chars().count();
    let width =
        |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| length(cell)).max().unwrap_or(0);
    let padded = |(column, cell): (usize, &String)| match (numbers.contains(&column), width(column)) {
        (true, width) => format!("  {cell:>width$}"),
        (false, width) => format!("  {cell:<width$}"),
    };
    write!(f, "\n{heading}\n")?;
    for row in &rows {
        let cells: Vec<String> = row.iter().enumerate().map(padded).collect();
        if length(cells.concat().trim_end()) <= WIDTH {
            writeln!(f, "{}", cells.concat().trim_end())?;
            continue;
        }
        let Some((note, _)) = row.split_last() else { continue };
        let mut line = cells[..cells.len() - 1].concat().trim_end().to_owned();
        let mut is_note = false;
        for word in note.split(' ') {
            if !is_note || length(&line) + 1 + length(word) > WIDTH {
                writeln!(f, "{line}")?;
                line = format!("      {word}");
                is_note = true;
            } else {
                line = format!("{line} {word}");
            }
        }
        writeln!(f, "{line}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::category::{Breakdown, Phase};

    const MIB: u64 = 1 << 20;

    fn group(path: Option<&str>, buffers: usize, mib: u64) -> BufferGroup {
        let (path, operation, dtype) = (path.map(str::to_owned), "Conv2d".to_owned(), "F32".to_owned());
        let (category, shape, bytes) = (Category::Activation, vec![8, 64], mib * MIB);
        BufferGroup { path, operation, category, buffers, shape, dtype, bytes }
    }

    fn suggestion(name: &str, peak: u64, fits: bool, note: Option<&str>) -> Suggestion {
        let suggestion = Suggestion::new(name, 100 * MIB, peak * MIB);
        Suggestion { fits, exact: note.is_none(), note: note.map(str::to_owned), ..suggestion }
    }

    fn explanation() -> Explanation {
        let mut breakdown = Breakdown::default();
        breakdown.add(Category::Parameter, 25 * MIB + MIB / 2);
        breakdown.add(Category::Activation, 74 * MIB + MIB / 2);
        Explanation {
            batch: 32,
            peak_bytes: 100 * MIB,
            limit_bytes: 80 * MIB,
            over_bytes: 20 * MIB,
            operation: "Matmul".into(),
            phase: Phase::Backward,
            breakdown,
            groups: vec![group(Some("layers.0"), 3, 40), group(None, 1, 8)],
            suggestions: vec![
                suggestion("micro-batches of 9", 60, true, None),
                suggestion("16-bit precision", 81, false, Some("estimate")),
            ],
            must_go: vec![group(Some("layers.0"), 1, 20)],
            fits_without: true,
        }
    }

    #[test]
    fn it_reads_as_a_table() {
        let expected = "\
A batch of 32 takes 100.0 MiB, 20.0 MiB over the limit of 80.0 MiB.
The peak is at Matmul in the backward phase.

At the peak
  saved activations  74.5 MiB  74.5 %
  parameters         25.5 MiB  25.5 %

Largest groups of buffers
  layers.0  40.0 MiB  saved activations  F32 8x64  and 2 more
  Conv2d     8.0 MiB  saved activations  F32 8x64

Changes that would help
  micro-batches of 9  60.0 MiB  saves 40.0 MiB  fits
  16-bit precision    81.0 MiB  saves 19.0 MiB  does not fit  estimate

One buffer would have to go, 20.0 MiB
  layers.0  20.0 MiB  saved activations  F32 8x64
";
        assert_eq!(explanation().to_string(), expected);
    }

    #[test]
    fn long_notes_stay_within_the_terminal() {
        let note = "estimate: half of each activation but batch-norm's, and a copy of the weights in 16 bits";
        let suggestions = vec![suggestion("16-bit precision", 81, false, Some(note))];
        let text = Explanation { suggestions, ..explanation() }.to_string();
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(text.contains("batch-norm's"), "{text}");
    }

    #[test]
    fn a_long_list_is_cut_and_a_hopeless_one_left_out() {
        let many = Explanation { must_go: vec![group(Some("x"), 1, 1); 11], ..explanation() }.to_string();
        assert!(many.contains("\n11 buffers would have to go, the largest first, 11.0 MiB\n"), "{many}");
        assert!(many.ends_with("F32 8x64\n  and 3 more\n"), "{many}");
        let hopeless = Explanation { fits_without: false, ..explanation() }.to_string();
        assert!(hopeless.ends_with("\nEven without any tensor it would not fit.\n"), "{hopeless}");
    }

    #[test]
    fn what_fits_needs_nothing_to_go() {
        let text = Explanation { limit_bytes: 100 * MIB, over_bytes: 0, must_go: vec![], ..explanation() }.to_string();
        assert!(text.starts_with("A batch of 32 fits: 100.0 MiB of 100.0 MiB.\n"), "{text}");
        assert!(!text.contains("have to go"), "{text}");
    }
}
