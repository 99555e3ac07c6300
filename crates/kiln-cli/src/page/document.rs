//! The frame of a page, and its parts: tiles, tables, folded sections.

use std::fmt::Write;

use serde_json::Value;

/// Escapes text for HTML, in elements and in quoted attributes.
pub(crate) fn escape(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    text.replace('"', "&quot;").replace('\'', "&#39;")
}

/// A figure that readers look for first.
pub(super) struct Tile {
    pub(super) id: &'static str,
    pub(super) name: String,
    pub(super) value: String,
    /// Small text below the figure.
    pub(super) note: String,
    /// A fraction that is drawn as a bar.
    pub(super) part: Option<f64>,
}

/// The tiles of a page.
pub(super) fn tiles(tiles: &[Tile]) -> String {
    let mut html = String::from("<div class=\"tiles\">");
    for Tile { id, name, value, note, part } in tiles {
        let (name, value, note) = (escape(name), escape(value), escape(note));
        let _ = write!(html, "<div class=\"tile\" id=\"{id}\"><span>{name}</span><b>{value}</b>");
        if let Some(part) = part {
            let full = if *part > 1.0 { " class=\"over\"" } else { "" };
            let _ =
                write!(html, "<i class=\"bar\"><i{full} style=\"width:{:.1}%\"></i></i>", 100.0 * part.clamp(0.0, 1.0));
        }
        let _ = write!(html, "<small>{note}</small></div>");
    }
    html + "</div>"
}

/// A table whose first column names its rows. It has no head if there are no column names.
pub(super) fn table(id: &str, columns: &[&str], rows: &[Vec<String>]) -> String {
    let mut html = format!("<div class=\"wide\"><table id=\"{id}\">");
    if !columns.is_empty() {
        let cells: String = columns.iter().map(|name| format!("<th scope=\"col\">{}</th>", escape(name))).collect();
        let _ = write!(html, "<thead><tr>{cells}</tr></thead>");
    }
    html += "<tbody>";
    for row in rows {
        html += "<tr>";
        for (index, cell) in row.iter().enumerate() {
            let cell = escape(cell);
            let _ = match index {
                0 => write!(html, "<th scope=\"row\">{cell}</th>"),
                _ => write!(html, "<td>{cell}</td>"),
            };
        }
        html += "</tr>";
    }
    html + "</tbody></table></div>"
}

/// A section with a title; empty when it has no content.
pub(super) fn section(id: &str, title: &str, content: &str) -> String {
    match content {
        "" => String::new(),
        _ => format!("<section aria-labelledby=\"{id}\"><h2 id=\"{id}\">{}</h2>{content}</section>", escape(title)),
    }
}

/// A section that is collapsed until it is opened.
pub(super) fn folded(id: &str, title: &str, content: &str) -> String {
    format!("<details id=\"{id}\"><summary>{}</summary>{content}</details>", escape(title))
}

/// The charts beside each other, and the data for the script. Charts that are `None` are left out.
pub(super) fn charts(drawn: impl IntoIterator<Item = Option<(String, Value)>>) -> (String, Vec<Value>) {
    let (figures, data): (Vec<String>, Vec<Value>) = drawn.into_iter().flatten().unzip();
    match figures.is_empty() {
        true => (String::new(), data),
        false => (format!("<div class=\"charts\">{}</div>", figures.concat()), data),
    }
}

/// A whole page. `style` follows the styles that all pages share.
pub(super) fn document(title: &str, style: &str, body: &str, charts: &[Value]) -> String {
    let title = escape(title);
    // No text in the data can end the script.
    let data = Value::from(charts).to_string().replace('<', "\\u003c");
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; \
         script-src 'unsafe-inline'; img-src data:\">\n\
         <link rel=\"icon\" href=\"data:,\">\n<title>{title}</title>\n<style>\n{}{style}</style>\n</head>\n<body>\n{body}\n\
         <script type=\"application/json\" id=\"charts\">{data}</script>\n<script>\n{}</script>\n</body>\n</html>\n",
        include_str!("page.css"),
        include_str!("page.js"),
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn texts_cannot_end_an_element() {
        let row = vec!["</td><script>".to_owned(), "\"'&".to_owned()];
        let html = table("t", &["a"], &[row]);
        assert!(html.contains("&lt;/td&gt;&lt;script&gt;") && html.contains("&quot;&#39;&amp;"), "{html}");
        let page = document("<title>", "", "", &[json!({"id": "</script>"})]);
        assert!(page.contains("<title>&lt;title&gt;</title>") && page.contains("\\u003c/script>"), "{page}");
    }

    #[test]
    fn a_section_without_content_is_left_out() {
        assert_eq!(section("a", "A", ""), "");
        assert_eq!(charts([None, None]).0, "");
    }
}
