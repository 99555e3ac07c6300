//! Tables for the terminal.

use std::io::IsTerminal;

use kiln_data::printable;

/// The default number of columns of a terminal.
const USUAL: usize = 80;
/// The least width to which a cell is shortened.
const SHORTEST: usize = 8;

/// The width of a table on stdout. Unlimited if stdout is a file.
pub(super) fn width() -> usize {
    let of_variable = std::env::var("COLUMNS").ok().and_then(|text| text.parse().ok()).filter(|columns| *columns > 0);
    match (of_variable, std::io::stdout().is_terminal()) {
        (Some(columns), _) => columns,
        (None, true) => console::Term::stdout().size_checked().map_or(USUAL, |(_, columns)| usize::from(columns)),
        (None, false) => usize::MAX,
    }
}

/// The lines of a table. Columns in `right` are aligned to the right. Cells of the columns `flexible` are shortened until the lines have
/// at most `width` characters.
pub(super) fn lines(rows: &[Vec<String>], right: &[usize], flexible: &[usize], width: usize) -> Vec<String> {
    // Names and settings of runs come from outside and may contain control characters.
    let rows: Vec<Vec<String>> = rows.iter().map(|row| row.iter().map(printable).collect()).collect();
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let length = |row: &Vec<String>, column: usize| row.get(column).map_or(0, |cell| cell.chars().count());
    let mut widths: Vec<usize> =
        (0..columns).map(|column| rows.iter().map(|row| length(row, column)).max().unwrap_or(0)).collect();
    // The widest of the flexible columns is shortened first.
    while widths.iter().sum::<usize>() + columns.saturating_sub(1) > width {
        let widest = flexible.iter().filter(|column| widths[**column] > SHORTEST).max_by_key(|column| widths[**column]);
        match widest {
            Some(column) => widths[*column] -= 1,
            None => break,
        }
    }
    let line = |row: &Vec<String>| {
        let cells = row.iter().enumerate().map(|(column, cell)| {
            let (cell, width) = (cut(cell, widths[column]), widths[column]);
            if right.contains(&column) { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
        });
        cells.collect::<Vec<_>>().join(" ").trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

/// The beginning and the end of a text that is too long: runs' names end in their numbers.
fn cut(text: &str, width: usize) -> String {
    let count = text.chars().count();
    if count <= width {
        return text.to_owned();
    }
    let (end, begin) = (width.saturating_sub(1) / 2, width.saturating_sub(1) - width.saturating_sub(1) / 2);
    let characters = text.chars();
    characters.clone().take(begin).chain(['…']).chain(characters.skip(count - end)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_cells_give_way() {
        let row = |cells: [&str; 3]| cells.map(str::to_owned).to_vec();
        let rows = [row(["NAME", "STEP", "MODEL"]), row(["a-very-long-name-001", "10", "mobilenet_v3_large"])];
        assert_eq!(
            lines(&rows, &[1], &[0, 2], usize::MAX),
            ["NAME                 STEP MODEL", "a-very-long-name-001   10 mobilenet_v3_large"]
        );
        let short = lines(&rows, &[1], &[0, 2], 30);
        assert_eq!(short[1].chars().count(), 30);
        assert!(short[1].starts_with("a-very") && short[1].contains("001   10 mobil"), "{short:?}");
        // The shortest form.
        assert_eq!(lines(&rows, &[1], &[0, 2], 5)[1], "a-ve…001   10 mobi…rge");
        assert!(lines(&[], &[], &[], 80).is_empty());
    }
}
