//! `compression.html`: the losses and the savings of a compressed model, in one file that needs no network.

use crate::page::escape;

/// The content of a page.
pub(crate) struct Page {
    pub(crate) title: String,
    /// Figures before and after, each with its name.
    pub(crate) figures: Vec<[String; 3]>,
    /// The requested settings.
    pub(crate) facts: Vec<(String, String)>,
    /// Rows of a table about the layers, and their columns' names.
    pub(crate) columns: Vec<&'static str>,
    pub(crate) rows: Vec<Vec<String>>,
}

const STYLE: &str = "\
    :root{color-scheme:light dark;--text:#222;--back:#fff;--card:#f6f3f0;--line:#ddd6d0}\
    @media (prefers-color-scheme:dark){:root{--text:#eee;--back:#181614;--card:#262220;--line:#443e3a}}\
    body{font:16px/1.5 system-ui,sans-serif;max-width:860px;margin:2em auto;padding:0 1em;color:var(--text);background:var(--back)}\
    .tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:.8em}\
    .tile{background:var(--card);border-radius:8px;padding:.8em 1em;display:flex;flex-direction:column}\
    .tile b{font-size:1.5em;font-variant-numeric:tabular-nums}\
    .wide{overflow-x:auto}table{border-collapse:collapse}th{text-align:left;padding:.2em 1.5em .2em 0;vertical-align:top}\
    td{padding:.2em 1.5em .2em 0;font-variant-numeric:tabular-nums}tbody tr{border-top:1px solid var(--line)}";

impl Page {
    /// The page as one file.
    pub(crate) fn html(&self) -> String {
        let tile = |[name, before, after]: &[String; 3]| {
            let [name, before, after] = [name, before, after].map(|text| escape(text));
            format!("<div class=\"tile\"><span>{name}</span><b>{after}</b><small>before: {before}</small></div>")
        };
        let fact =
            |(name, value): &(String, String)| format!("<tr><th>{}</th><td>{}</td></tr>", escape(name), escape(value));
        let tiles: String = self.figures.iter().map(tile).collect();
        let facts: String = self.facts.iter().map(fact).collect();
        let (title, layers) = (escape(&self.title), self.layers());
        format!(
            "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"><title>{title}</title>\
             <style>{STYLE}</style></head><body><h1>{title}</h1><div class=\"tiles\">{tiles}</div>\
             <h2>Settings</h2><div class=\"wide\"><table id=\"facts\"><tbody>{facts}</tbody></table></div>{layers}</body></html>\n"
        )
    }

    /// The table about the layers.
    fn layers(&self) -> String {
        if self.rows.is_empty() {
            return String::new();
        }
        let cells = |tag: &str, texts: &mut dyn Iterator<Item = &str>| {
            let cells: String = texts.map(|text| format!("<{tag}>{}</{tag}>", escape(text))).collect();
            format!("<tr>{cells}</tr>")
        };
        let head = cells("th", &mut self.columns.iter().copied());
        let body: String = self.rows.iter().map(|row| cells("td", &mut row.iter().map(String::as_str))).collect();
        format!(
            "<h2>Layers</h2><div class=\"wide\"><table id=\"layers\"><thead>{head}</thead><tbody>{body}</tbody></table></div>"
        )
    }
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
        let html = page.html();
        assert!(
            html.contains("<h1>a &amp; b</h1>") && html.contains("&lt;8&gt;") && html.contains("<td>fc.weight</td>")
        );
    }
}
