use std::fmt;

use super::{Explanation, Holder, Remedy};
use crate::Category;

/// Buffers that would have to go, of those that the text names.
const NAMED: usize = 8;

fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

fn percent(part: u64, whole: u64) -> String {
    format!("{:.1} %", 100.0 * part as f64 / whole.max(1) as f64)
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (peak, limit) = (mib(self.peak_bytes), mib(self.limit_bytes));
        match self.over_bytes {
            0 => writeln!(f, "A batch of {} fits: {peak} of {limit}.", self.batch)?,
            over => writeln!(f, "A batch of {} takes {peak}, {} over the limit of {limit}.", self.batch, mib(over))?,
        }
        writeln!(f, "The peak is at {} in the {} phase.", self.operation, self.phase)?;

        let mut rows: Vec<_> = Category::ALL.map(|category| (category, self.breakdown.of(category))).into();
        rows.retain(|(_, bytes)| *bytes > 0);
        rows.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
        let row = |(category, bytes): &(Category, u64)| {
            vec![category.to_string(), mib(*bytes), percent(*bytes, self.peak_bytes)]
        };
        table(f, "At the peak", &[1, 2], rows.iter().map(row))?;
        table(f, "Largest holders", &[1], self.holders.iter().map(Holder::cells))?;
        table(f, "What would help", &[1, 2], self.remedies.iter().map(Remedy::cells))?;
        self.must_go(f)
    }
}

impl Explanation {
    fn must_go(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.over_bytes == 0 {
            return Ok(());
        }
        let all = mib(self.must_go.iter().map(|holder| holder.bytes).sum());
        let heading = match (self.fits_without, self.must_go.len()) {
            (false, _) => "Without any tensor it would not fit: the device and its kernels take more than that.".into(),
            (true, 1) => format!("One buffer would have to go, {all}"),
            (true, count) => format!("{count} buffers would have to go, the largest first, {all}"),
        };
        let named = if self.fits_without { NAMED } else { 0 };
        table(f, &heading, &[1], self.must_go.iter().take(named).map(Holder::cells))?;
        match self.must_go.len().saturating_sub(named) {
            more if more > 0 && named > 0 => writeln!(f, "  and {more} more"),
            _ => Ok(()),
        }
    }
}

impl Holder {
    fn cells(&self) -> Vec<String> {
        let sides: Vec<_> = self.shape.iter().map(usize::to_string).collect();
        let path = match &self.path {
            Some(path) if !path.is_empty() => path.clone(),
            _ => self.operation.clone(),
        };
        let count = if self.buffers == 1 { String::new() } else { format!("and {} more", self.buffers - 1) };
        // What is no tensor has no shape.
        let tensor = if sides.is_empty() { String::new() } else { format!("{} {}", self.dtype, sides.join("x")) };
        vec![path, mib(self.bytes), self.category.to_string(), tensor, count]
    }
}

impl Remedy {
    fn cells(&self) -> Vec<String> {
        let fits = if self.fits { "fits" } else { "does not fit" };
        let (peak, saved) = (mib(self.peak_bytes), format!("saves {}", mib(self.saved_bytes)));
        let note = self.note.clone().unwrap_or_default();
        vec![self.name.clone(), peak, saved, fits.into(), note]
    }
}

/// Writes a table with a heading, as wide as its cells; columns of numbers are aligned to the right.
fn table(
    f: &mut fmt::Formatter<'_>,
    heading: &str,
    numbers: &[usize],
    rows: impl Iterator<Item = Vec<String>>,
) -> fmt::Result {
    let rows: Vec<_> = rows.collect();
    writeln!(f, "\n{heading}")?;
    let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    for row in &rows {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let width = width(column).unwrap_or(0);
            line += &match numbers.contains(&column) {
                true => format!("  {cell:>width$}"),
                false => format!("  {cell:<width$}"),
            };
        }
        writeln!(f, "{}", line.trim_end())?;
    }
    Ok(())
}
