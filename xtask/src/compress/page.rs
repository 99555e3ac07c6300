//! `compression.html`: what a model lost and what it kept, in one file that needs no network.

use std::fmt::Write;
use std::path::Path;

use anyhow::Result;
use benches::atomic::replace;
use benches::pipelines::WriteInto;

/// The name of the page in a run's directory.
pub(super) const PAGE: &str = "compression.html";

/// What a page says.
pub(super) struct Page {
    pub(super) title: String,
    /// Figures before and after, each with its name.
    pub(super) figures: Vec<[String; 3]>,
    /// What was asked for.
    pub(super) facts: Vec<(String, String)>,
    /// Rows of a table about the layers, and their columns' names.
    pub(super) columns: Vec<&'static str>,
    pub(super) rows: Vec<Vec<String>>,
}

impl Page {
    /// Writes the page into the directory of a run.
    pub(super) fn file(self) -> WriteInto {
        Box::new(move |directory: &Path| replace(&directory.join(PAGE), self.html()?.as_bytes()))
    }

    fn html(&self) -> Result<String> {
        let mut tiles = String::new();
        for [name, before, after] in &self.figures {
            write!(
                tiles,
                "<div class=\"tile\"><span>{}</span><b>{}</b><small>before: {}</small></div>",
                escape(name),
                escape(after),
                escape(before)
            )?;
        }
        let mut facts = String::new();
        for (name, value) in &self.facts {
            write!(facts, "<tr><th>{}</th><td>{}</td></tr>", escape(name), escape(value))?;
        }
        let mut layers = String::new();
        if !self.rows.is_empty() {
            let cells = |tag: &str, cells: &mut dyn Iterator<Item = &str>| {
                let cells: String = cells.map(|cell| format!("<{tag}>{}</{tag}>", escape(cell))).collect();
                format!("<tr>{cells}</tr>")
            };
            let head = cells("th", &mut self.columns.iter().copied());
            let body: String = self.rows.iter().map(|row| cells("td", &mut row.iter().map(String::as_str))).collect();
            write!(
                layers,
                "<h2>Layers</h2><div class=\"wide\"><table id=\"layers\"><thead>{head}</thead><tbody>{body}</tbody></table></div>"
            )?;
        }
        let title = escape(&self.title);
        Ok(format!(
            "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"><title>{title}</title><style>\
             :root{{color-scheme:light dark;--text:#222;--back:#fff;--card:#f6f3f0;--line:#ddd6d0}}\
             @media (prefers-color-scheme:dark){{:root{{--text:#eee;--back:#181614;--card:#262220;--line:#443e3a}}}}\
             body{{font:16px/1.5 system-ui,sans-serif;max-width:860px;margin:2em auto;padding:0 1em;color:var(--text);background:var(--back)}}\
             .tiles{{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:.8em}}\
             .tile{{background:var(--card);border-radius:8px;padding:.8em 1em;display:flex;flex-direction:column}}\
             .tile b{{font-size:1.5em;font-variant-numeric:tabular-nums}}\
             .wide{{overflow-x:auto}}table{{border-collapse:collapse}}th{{text-align:left;padding:.2em 1.5em .2em 0}}\
             td{{padding:.2em 1.5em .2em 0;font-variant-numeric:tabular-nums}}tbody tr{{border-top:1px solid var(--line)}}\
             </style></head><body><h1>{title}</h1><div class=\"tiles\">{tiles}</div>\
             <h2>Settings</h2><table>{facts}</table>{layers}</body></html>\n"
        ))
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_layers_are_escaped() {
        let page = Page {
            title: "a & b".into(),
            figures: vec![["accuracy".into(), "0.9".into(), "0.8".into()]],
            facts: vec![("bits".into(), "<8>".into())],
            columns: vec!["layer"],
            rows: vec![vec!["fc.weight".into()]],
        };
        let html = page.html().unwrap();
        assert!(
            html.contains("<h1>a &amp; b</h1>") && html.contains("&lt;8&gt;") && html.contains("<td>fc.weight</td>")
        );
    }
}
