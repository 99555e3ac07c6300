//! Tables for the terminal, within 80 columns.

/// The width in columns that tables stay within, if their first columns leave room.
pub(super) const WIDTH: usize = 80;
/// The width that the last column needs to stand beside the others.
const ROOM: usize = 16;
/// A space at which a line is not broken; written as a space.
pub(super) const NO_BREAK: char = '\u{a0}';

/// Formats rows with two spaces between columns. Columns of numbers, given by index, are aligned to the right. If a row is too long, its
/// last cell continues on the next line.
pub(super) fn columns(numbers: &[usize], rows: &[Vec<String>]) -> String {
    let most = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| length(cell)).max();
    let widths: Vec<_> = (0..most).map(|column| width(column).unwrap_or(0)).collect();
    let padded = |(column, cell): (usize, &String)| match (numbers.contains(&column), widths[column]) {
        (true, width) => format!("  {cell:>width$}"),
        (false, width) => format!("  {cell:<width$}"),
    };
    let mut out = String::new();
    for row in rows {
        let Some((last, cells)) = row.split_last() else { continue };
        let line: String = cells.iter().enumerate().map(padded).collect();
        let whole = line.clone() + &padded((cells.len(), last));
        if length(whole.trim_end()) <= WIDTH || last.is_empty() {
            out += &format!("{}\n", whole.trim_end());
            continue;
        }
        let beside = length(&line) + 2;
        let longest = last.split(' ').map(length).max().unwrap_or(0);
        let has_room = beside + longest.max(ROOM) <= WIDTH;
        if !has_room {
            out += &format!("{}\n", line.trim_end());
        }
        let indent = if has_room { beside } else { 6 };
        for (index, text) in wrapped(last, WIDTH - indent).into_iter().enumerate() {
            match has_room && index == 0 {
                true => out += &format!("{line}  {text}\n"),
                false => out += &format!("{}{text}\n", " ".repeat(indent)),
            }
        }
    }
    out.replace(NO_BREAK, " ")
}

fn length(text: &str) -> usize {
    text.chars().count()
}

/// Lines of at most `width` characters, except for words that are longer.
pub(super) fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = vec![];
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if length(line) + 1 + length(word) <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// The end of a text, with at most `width` characters: the last parts of a path are the most informative.
pub(super) fn end(text: &str, width: usize) -> String {
    match length(text) {
        short if short <= width => text.to_owned(),
        long => format!("…{}", text.chars().skip(long + 1 - width.max(1)).collect::<String>()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn row(cells: &[&str]) -> Vec<String> {
        cells.iter().map(|cell| (*cell).to_owned()).collect()
    }

    #[test]
    fn columns_are_as_wide_as_their_cells() {
        let rows = [row(&["a", "1", "x"]), row(&["bcd", "20", ""])];
        assert_eq!(columns(&[1], &rows), "  a     1  x\n  bcd  20\n");
    }

    #[test]
    fn a_long_cell_goes_on_beside_itself_or_below() {
        let note = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen";
        let text = columns(&[], &[row(&["a", note])]);
        assert_eq!(text.lines().count(), 2);
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
        assert!(
            text.lines().nth(1).is_some_and(|line| line.starts_with("     ") && !line.starts_with("      ")),
            "{text}"
        );
        let long = "x".repeat(70);
        let below = columns(&[], &[row(&[&long, note])]);
        assert!(below.starts_with(&format!("  {long}\n      one two")), "{below}");
        let option = format!("--a{NO_BREAK}1");
        let kept = columns(&[], &[row(&[&"y".repeat(74), &option])]);
        assert!(kept.ends_with("\n      --a 1\n"), "{kept}");
    }

    #[test]
    fn the_end_of_a_path_is_kept() {
        assert_eq!(end("layer1.conv", 20), "layer1.conv");
        assert_eq!(end("layer1.conv", 6), "….conv");
    }

    proptest! {
        #[test]
        fn words_of_a_row_stay_within_the_width(words in prop::collection::vec("[a-z]{1,12}", 1..60), first in "[a-z]{0,60}") {
            let text = columns(&[], &[vec![first, words.join(" ")]]);
            prop_assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{}", text);
            let seen: Vec<_> = text.split_whitespace().collect();
            prop_assert!(seen.ends_with(&words.iter().map(String::as_str).collect::<Vec<_>>()));
        }
    }
}
