//! Colours, and the names and texts of a drawing in HTML and SVG.

use crate::category::Category;

use super::figures::printable;

/// Each use of a colour, with its colour on a light page and on a dark page.
pub(super) const COLORS: [(&str, &str, &str); 16] = [
    ("parameter", "#3f5f80", "#5d83ab"),
    ("optimizer-state", "#93abbd", "#8fa9bf"),
    ("gradient", "#3d8f86", "#4aa398"),
    ("input", "#d6a536", "#d9b04f"),
    ("data-loader", "#8a6fa8", "#a48bc0"),
    ("activation", "#b44b1e", "#cf6a3b"),
    ("transient", "#e6b297", "#e3ac90"),
    ("workspace", "#aaa39b", "#837d77"),
    ("paper", "#ffffff", "#1b1918"),
    ("panel", "#f7f5f2", "#242120"),
    ("ink", "#222222", "#ebe6e1"),
    ("quiet", "#655f5a", "#aaa29b"),
    ("line", "#dfd9d3", "#3d3936"),
    ("curve", "#111111", "#ffffff"),
    ("limit", "#b3261e", "#ff8a80"),
    ("good", "#1f7a4d", "#6fcf97"),
];

/// Name of a category in the drawing, which is its name in JSON.
pub(super) fn slug(category: Category) -> &'static str {
    match category {
        Category::Parameter => "parameter",
        Category::Gradient => "gradient",
        Category::OptimizerState => "optimizer-state",
        Category::Input => "input",
        Category::DataLoader => "data-loader",
        Category::Activation => "activation",
        Category::Transient => "transient",
        Category::Workspace => "workspace",
    }
}

/// The description of a category, in one sentence.
pub(super) fn about(category: Category) -> &'static str {
    match category {
        Category::Parameter => "Weights and biases, and buffers such as running statistics.",
        Category::Gradient => "Gradients of the parameters, and their sums over micro-batches.",
        Category::OptimizerState => "Momentum and other values that the optimizer keeps between steps.",
        Category::Input => "The batch.",
        Category::DataLoader => "Batches that the data loader prepares, where they share the device's memory.",
        Category::Activation => {
            "Results of the forward pass that are kept for the backward pass. Recomputing makes them fewer."
        }
        Category::Transient => "Temporary tensors that live within one phase.",
        Category::Workspace => "Scratch memory of kernels, and memory of the device runtime and the autodiff graph.",
    }
}

/// Escapes text for HTML and SVG, in elements and in quoted attributes.
pub(super) fn escape(text: &str) -> String {
    let text = printable(text).replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    text.replace('"', "&quot;").replace('\'', "&#39;")
}

/// Fill attributes: a class for style sheets, and the light colour for readers without style sheets.
pub(super) fn fill(name: &str) -> String {
    format!("class=\"f-{name}\" fill=\"{}\"", light(name))
}

/// Stroke attributes: a class for style sheets, and the light colour for readers without style sheets.
pub(super) fn stroke(name: &str) -> String {
    format!("class=\"s-{name}\" stroke=\"{}\"", light(name))
}

/// A colour on a light page.
pub(super) fn light(name: &str) -> &'static str {
    COLORS.iter().find(|color| color.0 == name).map_or("#222222", |color| color.1)
}

/// A square in a category's colour.
pub(super) fn swatch(name: &str) -> String {
    format!("<span class=\"swatch\" style=\"background:var(--{name})\"></span>")
}
