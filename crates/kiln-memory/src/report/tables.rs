//! The tables of the page: peaks of the phases, the predicted peak by category and by module, and the meaning of the words.

use std::fmt::Write;

use crate::category::Category;
use crate::predict::Prediction;

use super::figures::{self, STACK, percent, signed_percent, size};
use super::grouping::{Kind, Layer, Module, Part, modules};
use super::memory_report::{MemoryReport, relative_error};
use super::paint::{about, escape, slug, swatch};

/// The largest number of modules that are listed one by one, and of layers in each.
const MODULES: usize = 40;
const LAYERS: usize = 24;
/// The largest number of paths that are named for buffers of one kind.
const PATHS: usize = 24;

/// Predicted and measured peak of each phase.
pub(super) fn phases(report: &MemoryReport) -> String {
    let rows = figures::phases(report);
    if rows.is_empty() {
        return String::new();
    }
    let cell = |kind: &str, bytes: Option<u64>| match bytes {
        Some(bytes) => format!("<td class=\"number {kind}\" data-bytes=\"{bytes}\">{}</td>", size(bytes)),
        None => "<td class=\"number\">–</td>".to_owned(),
    };
    let mut body = String::new();
    for row in rows {
        let measured = row.measured.map(|(bytes, ..)| bytes);
        let off = relative_error(row.predicted, measured).map_or("–".to_owned(), signed_percent);
        let cells = cell("predicted", row.predicted) + &cell("measured", measured);
        let _ = writeln!(body, "<tr><th scope=\"row\">{}</th>{cells}<td class=\"number\">{off}</td></tr>", row.phase);
    }
    section("phases", "Peak of each phase", &["phase", "#predicted", "#measured", "#error"], &body)
}

/// The predicted peak by category.
pub(super) fn breakdown(prediction: &Prediction) -> String {
    let mut body = String::new();
    for (category, bytes) in figures::largest(&prediction.breakdown) {
        let name = slug(category);
        let _ = writeln!(
            body,
            "<tr data-category=\"{name}\"><th scope=\"row\" title=\"{}\">{}{category}</th>{}{}</tr>",
            about(category),
            swatch(name),
            sized(bytes),
            share(bytes, prediction),
        );
    }
    if body.is_empty() {
        return String::new();
    }
    section("breakdown", "The predicted peak by purpose", &["purpose", "#size", "#of the peak"], &body)
}

/// The predicted peak by module, then by layer and category, then by operation, as lists that can be opened.
pub(super) fn largest(prediction: &Prediction) -> String {
    let alive = prediction.alive_at(prediction.peak_at);
    let modules = modules(&alive);
    let Some(most) = modules.first().map(|module| module.bytes.max(1)) else {
        return "<section><h2>The predicted peak by module</h2><p>No buffers are alive at the predicted peak.</p></section>\n"
            .to_owned();
    };
    let mut list = String::new();
    for (index, of) in modules.iter().take(MODULES).enumerate() {
        module(&mut list, of, most, prediction, index == 0);
    }
    let rest: u64 = modules.iter().skip(MODULES).map(|module| module.bytes).sum();
    if rest > 0 {
        let _ =
            writeln!(list, "<p class=\"rest\">and {} smaller modules with {}</p>", modules.len() - MODULES, size(rest));
    }
    format!(
        "<section id=\"largest\" aria-labelledby=\"largest-title\">\n<h2 id=\"largest-title\">The predicted peak by module</h2>\n<p>{} \
         buffers are alive at the peak. A star stands for the numbers of blocks that are alike. Open a row for its layers, operations and \
         tensors.</p>\n{list}</section>\n",
        alive.len()
    )
}

fn module(list: &mut String, module: &Module, most: u64, prediction: &Prediction, open: bool) {
    let open = if open { " open" } else { "" };
    let _ = writeln!(
        list,
        "<details class=\"module\"{open}>{}",
        summary(&module.name, &module.categories, module.bytes, most, prediction)
    );
    for of in module.layers.iter().take(LAYERS) {
        layer(list, of, most, prediction);
    }
    let rest: u64 = module.layers.iter().skip(LAYERS).map(|layer| layer.bytes).sum();
    if rest > 0 {
        let count = module.layers.len() - LAYERS;
        let _ = writeln!(list, "<p class=\"rest\">and {count} smaller layers with {}</p>", size(rest));
    }
    list.push_str("</details>\n");
}

fn layer(list: &mut String, layer: &Layer, most: u64, prediction: &Prediction) {
    let head = summary(&layer.name, &layer.categories, layer.bytes, most, prediction);
    let _ = writeln!(list, "<details class=\"layer\">{head}<ul>");
    for part in &layer.parts {
        for of in &part.kinds {
            let _ = writeln!(list, "<li>{}</li>", kind(part, of));
        }
    }
    list.push_str("</ul></details>\n");
}

/// A line that can be opened: name, bytes by category as a strip that is `most` bytes wide, size and share of the peak.
fn summary(name: &str, categories: &[(Category, u64)], bytes: u64, most: u64, prediction: &Prediction) -> String {
    let strip = categories.iter().map(|(category, bytes)| {
        let width = 100.0 * *bytes as f64 / most as f64;
        let (slug, size) = (slug(*category), size(*bytes));
        format!("<i style=\"width:{width:.2}%;background:var(--{slug})\" title=\"{category} {size}\"></i>")
    });
    format!(
        "<summary><span class=\"name\">{}</span><span class=\"strip\">{}</span><span class=\"number\" data-bytes=\"{bytes}\">{}</span>\
         <span class=\"number share\">{} %</span></summary>",
        escape(name),
        strip.collect::<String>(),
        size(bytes),
        percent(bytes, prediction.peak_bytes),
    )
}

/// The line of a kind, such as `saved activations: 4 x F32 8x64x512 from Matmul, 1.0 MiB`, and the paths of its buffers.
fn kind(part: &Part, kind: &Kind) -> String {
    let what = match part.parameter() {
        Some(parameter) => format!("{} of {}", part.category, escape(parameter)),
        None => part.category.to_string(),
    };
    let tensors = match kind.shape.as_str() {
        "" => counted(kind.buffers),
        _ => kind.tensors(),
    };
    let from = match kind.operation.as_str() {
        "before the step" => "made before the step".to_owned(),
        operation => format!("from {}", escape(operation)),
    };
    let swatch = swatch(slug(part.category));
    let mut text = format!("{swatch}{what}: <b>{}</b> {from}, {}", escape(&tensors), size(kind.bytes));
    if kind.paths.len() > 1 {
        let paths: Vec<_> = kind.paths.iter().take(PATHS).map(|path| escape(path)).collect();
        let _ = write!(text, "<small class=\"name\">{}", paths.join(", "));
        if kind.paths.len() > PATHS {
            let _ = write!(text, " and {} more", kind.paths.len() - PATHS);
        }
        text.push_str("</small>");
    }
    text
}

fn counted(buffers: usize) -> String {
    if buffers == 1 { "1 buffer".to_owned() } else { format!("{buffers} buffers") }
}

/// The descriptions of the categories.
pub(super) fn words() -> String {
    let rows: String = STACK
        .iter()
        .map(|category| format!("<dt>{}{category}</dt><dd>{}</dd>\n", swatch(slug(*category)), about(*category)))
        .collect();
    format!("<details class=\"words\"><summary>What the words mean</summary><dl>\n{rows}</dl></details>\n")
}

fn sized(bytes: u64) -> String {
    format!("<td class=\"number\" data-bytes=\"{bytes}\">{}</td>", size(bytes))
}

fn share(bytes: u64, prediction: &Prediction) -> String {
    format!("<td class=\"number\">{} %</td>", percent(bytes, prediction.peak_bytes))
}

/// A table with a title. Columns of numbers have names that begin with `#`.
fn section(id: &str, title: &str, heads: &[&str], body: &str) -> String {
    let heads = heads.iter().map(|head| match head.strip_prefix('#') {
        Some(head) => format!("<th scope=\"col\" class=\"number\">{head}</th>"),
        None => format!("<th scope=\"col\">{head}</th>"),
    });
    format!(
        "<section aria-labelledby=\"{id}-title\"><h2 id=\"{id}-title\">{title}</h2><div class=\"wide\"><table id=\"{id}\"><thead><tr>{}</tr>\
         </thead><tbody>\n{body}</tbody></table></div></section>\n",
        heads.collect::<String>()
    )
}
