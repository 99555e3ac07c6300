//! Checks that the numbers of a table occur in a file of results.

use super::mark::cells;

/// The first number of a table that a file does not have. In a page, one line must have all numbers of a row. In JSON, seconds may be
/// milliseconds and bytes MiB in the table, and numbers in parentheses may be derived.
pub(crate) fn missing(table: &[String], name: &str, results: &str) -> Option<String> {
    let json = name.ends_with(".json");
    let lines: Vec<Vec<f64>> = if json {
        vec![numbers(results).iter().filter_map(|text| value(text)).collect()]
    } else {
        results.lines().map(|line| numbers(line).iter().filter_map(|text| value(text)).collect()).collect()
    };
    let units: &[f64] = if json { &[1.0, 1e3, 1.0 / f64::from(1 << 20)] } else { &[1.0] };
    for row in cells(table) {
        let stated = |cell| if json { str::split(cell, '(').next().unwrap_or_default() } else { cell };
        let wanted: Vec<String> =
            row.into_iter().filter(|cell| is_number(cell)).map(stated).flat_map(numbers).collect();
        let lacks = |line: &Vec<f64>| wanted.iter().find(|text| !line.iter().any(|found| shows(text, *found, units)));
        let closest = lines.iter().map(lacks).min_by_key(|lack| lack.is_some()).flatten();
        if let Some(lack) = closest {
            return Some(if json { lack.clone() } else { wanted.join(", ") });
        }
    }
    None
}

/// Whether a cell holds figures, in contrast to a name with a number in it.
fn is_number(cell: &str) -> bool {
    cell.trim_start_matches(['*', '+', '-']).starts_with(|c: char| c.is_ascii_digit())
}

/// Whether a text is a number, rounded to the digits of the text.
fn shows(text: &str, number: f64, units: &[f64]) -> bool {
    let decimals = text.split_once('.').map_or(0, |(_, after)| after.len());
    let half = 0.5 * 10f64.powi(-(decimals as i32)) * (1.0 + 1e-9);
    value(text).is_some_and(|value| units.iter().any(|unit| (number * unit - value).abs() <= half))
}

fn value(text: &str) -> Option<f64> {
    text.replace(',', "").parse().ok()
}

/// Digits with the commas and points between them.
fn numbers(text: &str) -> Vec<String> {
    let parts = text.split(|c: char| !(c.is_ascii_digit() || matches!(c, ',' | '.')));
    let parts = parts.map(|part| part.trim_matches([',', '.'])).filter(|part| !part.is_empty());
    parts.map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(rows: &[&str]) -> Vec<String> {
        ["| A | B |", "|---|---|"].iter().chain(rows).map(|row| row.to_string()).collect()
    }

    #[test]
    fn a_row_stands_in_one_line_of_a_page() {
        let results = "| case 7 | 27.6 | 18.7 | 0.69 (0.69 to 0.72) |\n| other | 1,372 | 11.4 |\n";
        let found = |row: &str| missing(&table(&[row]), "results.md", results);
        assert_eq!(found("| GPT, 9 x 9 | 27.6 MiB | 0.69 |"), None);
        assert_eq!(found("| other | 1,372 | 11.4 |"), None);
        assert_eq!(found("| other | 1,372 | 11.5 |"), Some("1,372, 11.5".into()));
        assert_eq!(found("| mixed | 27.6 | 11.4 |"), Some("27.6, 11.4".into()));
    }

    #[test]
    fn numbers_of_json_are_rounded_and_have_units() {
        let results = r#"{"seconds": 0.08412, "peak_bytes": 19608371, "ratio": 0.6949}"#;
        let found = |row: &str| missing(&table(&[row]), "cpu.json", results);
        assert_eq!(found("| GPT | 84 (1.4) | 18.7 | 0.69 |"), None);
        assert_eq!(found("| GPT | 85 | 18.7 | 0.69 |"), Some("85".into()));
        assert_eq!(found("| GPT | 84 | 18.7 | 0.70 |"), Some("0.70".into()));
    }
}
