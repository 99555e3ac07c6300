//! The document of every page, its colours, and its parts: tiles, tables, sections. `maud` escapes all text.

use std::fmt::Write;

use maud::{DOCTYPE, Markup, PreEscaped, html};

/// Colours by name, on a light page and on a dark one. A name is a variable of the style sheet, and the end of the classes `f-` (fill),
/// `s-` (stroke) and `b-` (background). `c0` to `c7` are the colours of curves.
const COLORS: [(&str, &str, &str); 29] = [
    ("paper", "#ffffff", "#1a1817"),
    ("ink", "#1f1d1b", "#ebe6e1"),
    ("quiet", "#655f5a", "#a89f97"),
    ("line", "#e0dad4", "#3a3633"),
    ("card", "#f7f4f1", "#252220"),
    ("mark", "#9a928a", "#8b837b"),
    ("good", "#1f7a4d", "#6cc08b"),
    ("bad", "#b3261e", "#ff8a80"),
    ("busy", "#8a6100", "#e0b84c"),
    ("curve", "#111111", "#ffffff"),
    ("forward", "#b44b1e", "#c25a2b"),
    ("backward", "#7a3b8c", "#9a5bad"),
    ("c0", "#b44b1e", "#e3814f"),
    ("c1", "#2f6ea5", "#6db0e8"),
    ("c2", "#3d8f86", "#5cbcb1"),
    ("c3", "#8a5fb0", "#b993dd"),
    ("c4", "#b98900", "#dcb345"),
    ("c5", "#c2477f", "#e884b3"),
    ("c6", "#5d7a2c", "#a3c268"),
    ("c7", "#6b6560", "#a89f97"),
    ("parameter", "#3f5f80", "#5d83ab"),
    ("optimizer-state", "#93abbd", "#8fa9bf"),
    ("gradient", "#3d8f86", "#4aa398"),
    ("input", "#d6a536", "#d9b04f"),
    ("data-loader", "#8a6fa8", "#a48bc0"),
    ("activation", "#b44b1e", "#cf6a3b"),
    ("transient", "#e6b297", "#e3ac90"),
    ("workspace", "#aaa39b", "#837d77"),
    ("others", "#e0dad4", "#3a3633"),
];

/// A whole page: one file that asks for nothing. `data` are JSON texts, which `scripts` find by their ids.
pub(crate) fn document(title: &str, body: &Markup, data: &[(&str, String)], scripts: &[&str]) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                meta http-equiv="Content-Security-Policy"
                    content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:";
                link rel="icon" href="data:,";
                title { (title) }
                style { (PreEscaped(colors())) (PreEscaped(include_str!("style.css"))) }
            }
            body {
                (body)
                @for (id, json) in data {
                    script type="application/json" id=(id) { (PreEscaped(in_script(json))) }
                }
                // The scripts of a page share one scope.
                script { (PreEscaped(format!("\"use strict\";(() => {{{}}})();", scripts.concat()))) }
            }
        }
    };
    // HTML reads both ends of lines alike.
    printable(&page.into_string().replace('\r', ""))
}

/// The colours as variables of a style sheet, and their classes.
pub(crate) fn colors() -> String {
    let (mut light, mut dark, mut classes) = (String::new(), String::new(), String::new());
    for (name, on_light, on_dark) in COLORS {
        let _ = write!(light, "--{name}:{on_light};");
        let _ = write!(dark, "--{name}:{on_dark};");
        let _ = write!(
            classes,
            ".f-{name}{{fill:var(--{name})}}.s-{name}{{stroke:var(--{name})}}.b-{name}{{background:var(--{name})}}"
        );
    }
    format!(":root{{{light}}}@media(prefers-color-scheme:dark){{:root{{{dark}}}}}{classes}")
}

/// JSON that reads the same but can end neither a script nor a line of it.
fn in_script(json: &str) -> String {
    let mut escaped = String::with_capacity(json.len());
    for c in json.chars() {
        if matches!(c, '<' | '>' | '&' | '\u{2028}' | '\u{2029}') || c.is_control() {
            let _ = write!(escaped, "\\u{:04x}", u32::from(c));
        } else {
            escaped.push(c);
        }
    }
    escaped
}

/// Text without the control characters that a terminal interprets and XML forbids.
pub(crate) fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && !matches!(c, '\n' | '\t') { '\u{fffd}' } else { c }).collect()
}

/// A figure that readers look for first.
#[derive(Default)]
pub(crate) struct Tile {
    pub(crate) id: &'static str,
    pub(crate) name: String,
    pub(crate) value: String,
    /// The exact value, for programs.
    pub(crate) data: Option<String>,
    /// Small text below the figure.
    pub(crate) note: String,
    /// A fraction that is drawn as a bar.
    pub(crate) part: Option<f64>,
    /// Whether the figure is beyond a limit.
    pub(crate) over: bool,
}

/// The tiles of a page.
pub(crate) fn tiles(tiles: &[Tile]) -> Markup {
    html! {
        div class="tiles" {
            @for tile in tiles {
                div class="tile" {
                    span { (tile.name) }
                    b id=[Some(tile.id).filter(|id| !id.is_empty())] class=[tile.over.then_some("over")] data-value=[&tile.data] { (tile.value) }
                    @if let Some(part) = tile.part {
                        i class="bar" { i class=[(part > 1.0).then_some("over")] style=(percent_of("width", part.clamp(0.0, 1.0))) {} }
                    }
                    @if !tile.note.is_empty() { small { (breakable(&tile.note)) } }
                }
            }
        }
    }
}

/// A style that sets `property` to a fraction in percent.
pub(crate) fn percent_of(property: &str, part: f64) -> String {
    format!("{property}:{:.2}%", 100.0 * part)
}

/// Text whose long names, as of operations, are broken between their words.
fn breakable(text: &str) -> Markup {
    let escaped = html! { (text) }.into_string();
    PreEscaped(escaped.replace("::", "::<wbr>").replace('_', "_<wbr>"))
}

/// A table whose first column names its rows. It has no head if there are no column names. Columns whose names begin with `#` are
/// aligned to the right.
pub(crate) fn table(id: &str, columns: &[&str], rows: &[Vec<String>]) -> Markup {
    let number = |index: usize| columns.get(index).filter(|name| name.starts_with('#')).map(|_| "number");
    html! {
        div class="wide" { table id=(id) {
            @if !columns.is_empty() {
                thead { tr { @for (index, name) in columns.iter().enumerate() {
                    th scope="col" class=[number(index)] { (name.trim_start_matches('#')) }
                } } }
            }
            tbody { @for row in rows { tr { @for (index, cell) in row.iter().enumerate() {
                @if index == 0 { th scope="row" { (cell) } } @else { td class=[number(index)] { (cell) } }
            } } } }
        } }
    }
}

/// A section with a title; empty when it has no content.
pub(crate) fn section(id: &str, title: &str, content: &Markup) -> Markup {
    html! {
        @if !content.0.is_empty() {
            section aria-labelledby=(id) { h2 id=(id) { (title) } (content) }
        }
    }
}

/// A section that is collapsed until it is opened.
pub(crate) fn folded(id: &str, title: &str, content: &Markup) -> Markup {
    html! { details id=(id) { summary { (title) } (content) } }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_cannot_end_an_element_or_a_script() {
        let rows = [vec!["</td><script>".to_owned(), "\"&\u{1b}".to_owned()]];
        let page = document("<title>", &table("t", &["a"], &rows), &[("d", "\"</script>\u{2028}\u{7f}\"".into())], &[]);
        for part in
            ["<title>&lt;title&gt;</title>", "&lt;/td&gt;&lt;script&gt;", "&quot;&amp;\u{fffd}", "\\u003c/script"]
        {
            assert!(page.contains(part), "{part}: {page}");
        }
        assert!(!page.contains('\u{2028}') && page.contains("\\u007f"), "{page}");
        assert_eq!(section("a", "A", &html! {}).0, "");
    }
}
