//! Marks of a page, `<!-- figures: .. -->` and `<!-- output .. -->`, and the table or block below each.

use anyhow::{Context, Result, bail, ensure};

/// The evidence that the figures below a mark are still right.
#[derive(Debug, PartialEq)]
pub(crate) enum Proof {
    /// `of: PATHS | code: HASH`: the described sources have not changed since the command was run.
    Code { of: Vec<String>, hash: String },
    /// `in: FILE`: each number of the table occurs in a file of results.
    In(String),
    /// `test: FILE`: a test compares them.
    Test(String),
    /// `at: REVISION`: they are of an earlier revision, and the page says so.
    At(String),
    /// `by: REASON`: nothing in the project can change them.
    By,
    /// `<!-- output -->`: the block begins with its command; `<!-- output: COMMAND | has: A, B -->`: the command prints these.
    Output { has: Option<Vec<String>> },
}

#[derive(Debug, PartialEq)]
pub(crate) struct Mark {
    /// The line of the mark, counted from 1.
    pub(crate) line: usize,
    /// The command that prints the figures.
    pub(crate) command: String,
    pub(crate) proof: Proof,
    /// Lines of the table or of the block of code below it.
    pub(crate) below: Vec<String>,
}

/// A table with measured or predicted figures.
pub(crate) struct Unmarked {
    pub(crate) line: usize,
    pub(crate) head: String,
}

/// The marks of a page, and the tables that lack one.
pub(crate) fn read(text: &str) -> Result<(Vec<Mark>, Vec<Unmarked>)> {
    let lines: Vec<&str> = text.lines().collect();
    let (mut marks, mut unmarked) = (vec![], vec![]);
    let mut marked = false; // by the comment above, with nothing but blank lines between
    let mut at = 0;
    while at < lines.len() {
        let line = lines[at];
        if line.starts_with("<!--") {
            let end = at + lines[at..].iter().position(|line| line.ends_with("-->")).context("a comment has no end")?;
            let comment = lines[at..=end].join(" ");
            let comment = comment.trim_start_matches("<!--").trim_end_matches("-->").trim();
            if comment.starts_with("figures:") || comment.starts_with("output") {
                let below = below(&lines[end + 1..]);
                marks.push(parse(comment, at + 1, below).with_context(|| format!("line {}", at + 1))?);
            }
            marked = comment.starts_with("figures:") || comment.starts_with("output") || comment.starts_with("bench");
            at = end + 1;
        } else {
            let length = block(&lines[at..]);
            if line.starts_with('|') && !marked && has_figures(&lines[at..at + length]) {
                unmarked.push(Unmarked { line: at + 1, head: line.to_owned() });
            }
            marked &= line.trim().is_empty();
            at += length;
        }
    }
    Ok((marks, unmarked))
}

/// The number of lines of the table or fenced code that begins here; 1 if neither does.
fn block(lines: &[&str]) -> usize {
    let first = lines[0].trim_start();
    if first.starts_with("```") {
        let closing = lines[1..].iter().position(|line| line.trim_start().starts_with("```"));
        return closing.map_or(lines.len(), |inside| inside + 2);
    }
    lines.iter().take_while(|line| line.starts_with('|')).count().max(1)
}

/// The next table or code, without its fences.
fn below(lines: &[&str]) -> Vec<String> {
    let Some(start) = lines.iter().position(|line| !line.trim().is_empty()) else { return vec![] };
    let block = &lines[start..start + block(&lines[start..])];
    block.iter().filter(|line| !line.starts_with("```")).map(|line| line.to_string()).collect()
}

fn parse(comment: &str, line: usize, below: Vec<String>) -> Result<Mark> {
    let mut parts = comment.split(" | ").map(str::trim);
    let opening = parts.next().unwrap_or_default();
    let (kind, command) = opening.split_once(':').unwrap_or((opening, ""));
    let list = |text: &str| text.split(", ").map(|part| part.trim().to_owned()).collect::<Vec<_>>();
    let keys: Vec<(&str, &str)> = parts
        .map(|part| part.split_once(": ").with_context(|| format!("'{part}' is no `KEY: VALUE`")))
        .collect::<Result<_>>()?;
    let proof = match (kind, keys.as_slice()) {
        ("figures", [("of", paths), ("code", hash)]) => Proof::Code { of: list(paths), hash: hash.to_string() },
        ("figures", [("in", file)]) => Proof::In(file.to_string()),
        ("figures", [("test", file)]) => Proof::Test(file.to_string()),
        ("figures", [("at", revision)]) => Proof::At(revision.to_string()),
        ("figures", [("by", _)]) => Proof::By,
        ("output", []) => Proof::Output { has: None },
        ("output", [("has", texts)]) => Proof::Output { has: Some(list(texts)) },
        _ => bail!("'{comment}' is no mark, expected one of those in docs/maintaining.md"),
    };
    ensure!(!below.is_empty() || matches!(proof, Proof::Output { has: Some(_) }), "nothing stands below the mark");
    Ok(Mark { line, command: command.trim().to_owned(), proof, below })
}

/// Cells of the rows of a table, below its head.
pub(crate) fn cells<T: AsRef<str>>(table: &[T]) -> Vec<Vec<&str>> {
    let rows = table.iter().map(AsRef::as_ref).skip(2);
    rows.map(|row| row.trim_matches('|').split('|').map(str::trim).collect()).collect()
}

/// Whether a table has at least two figures that are measured, predicted or calculated, in contrast to counts and names.
fn has_figures(table: &[&str]) -> bool {
    let figure = |cell: &&&str| {
        let text: Vec<char> = cell.chars().collect();
        let digit = |at: usize| text.get(at).is_some_and(char::is_ascii_digit);
        let decimal = (1..text.len()).any(|at| matches!(text[at], '.' | ',') && digit(at - 1) && digit(at + 1));
        let unit = [" %", " MiB", " GiB", " MB", " GB", " ms", " s"].iter().any(|unit| cell.ends_with(unit));
        decimal || (unit && text.iter().any(char::is_ascii_digit))
    };
    cells(table).iter().flatten().filter(figure).count() >= 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_and_tables_without_one_are_found() {
        let page = "<!-- figures: cargo bench | of: a, b/c.rs |\n code: 12 -->\n\n| A | B |\n|---|---|\n| 1.5 | 2 MiB |\n\ntext\n\
                    | A | B |\n|---|---|\n| x | 12 % |\n| y | 1,024 |\n\n| Names | n |\n|---|---|\n| x | 3 |\n\
                    ```text\n| A |\n|---|\n| 1.5 |\n| 2.5 |\n```\n<!-- output -->\n```text\n$ kiln plan\nfits\n```\n\
                    <!-- output: kiln plan | has: 1.5, x -->\n";
        let (marks, unmarked) = read(page).unwrap();
        let table = ["| A | B |", "|---|---|", "| 1.5 | 2 MiB |"].map(str::to_owned).to_vec();
        let code = Proof::Code { of: vec!["a".into(), "b/c.rs".into()], hash: "12".into() };
        assert_eq!(marks[0], Mark { line: 1, command: "cargo bench".into(), proof: code, below: table });
        assert_eq!(marks[1].below, ["$ kiln plan", "fits"]);
        assert_eq!(marks[2].proof, Proof::Output { has: Some(vec!["1.5".into(), "x".into()]) });
        assert_eq!(unmarked.iter().map(|table| table.line).collect::<Vec<_>>(), [9]);
    }

    #[test]
    fn a_mark_that_cannot_be_read_is_refused() {
        for page in ["<!-- figures: x | of: a -->\n| A |", "<!-- figures: x | in: f -->\n", "<!-- figures: x"] {
            assert!(read(page).is_err(), "{page}");
        }
    }
}
