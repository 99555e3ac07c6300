//! Buffers grouped by module, layer, category and operation: the same layer of all blocks is one group.

use std::cmp::Reverse;
use std::collections::HashSet;

use super::figures::shape;
use super::{Category, PredictedBuffer};

/// The name under which buffers without a module are listed.
const NO_MODULE: &str = "no module";

/// A module of the model with all of its buffers, or one of its layers.
#[derive(Debug, PartialEq)]
pub(super) struct Group {
    /// `layer1`, or `h.*` for blocks with a number. A layer has its path; without a module it is the operation in parentheses.
    pub(super) name: String,
    pub(super) bytes: u64,
    /// Bytes by category, most first.
    pub(super) categories: Vec<(Category, u64)>,
    /// The layers of a module.
    pub(super) layers: Vec<Group>,
    /// The parts of a layer.
    pub(super) parts: Vec<Part>,
}

/// Buffers of one category in one layer, or in the same layer of several blocks.
#[derive(Debug, PartialEq)]
pub(super) struct Part {
    /// The path, with a star for numbers that differ. For buffers without a module it is the operation in parentheses.
    pub(super) name: String,
    pub(super) category: Category,
    pub(super) bytes: u64,
    pub(super) kinds: Vec<Kind>,
    /// The path with a star for each number, which is the name if several paths share it.
    pattern: String,
    /// The layer that it is in. If it belongs to a parameter, this is the path without the parameter's name.
    layer: String,
    module: String,
}

/// Buffers that one kind of operation made, with the same shape.
#[derive(Debug, PartialEq)]
pub(super) struct Kind {
    pub(super) operation: String,
    pub(super) dtype: String,
    /// Such as `8x64x512`; empty if the buffer is not a tensor.
    pub(super) shape: String,
    pub(super) bytes: u64,
    pub(super) buffers: usize,
    /// The paths of the buffers, each once.
    pub(super) paths: Vec<String>,
}

impl Part {
    fn is_of_parameter(&self) -> bool {
        matches!(self.category, Category::Parameter | Category::Gradient | Category::OptimizerState)
    }

    /// The name of the parameter that it belongs to, if it belongs to one.
    pub(super) fn parameter(&self) -> Option<&str> {
        self.pattern.strip_prefix(&self.layer)?.strip_prefix('.')
    }
}

impl Group {
    fn new(name: &str) -> Self {
        Self { name: name.to_owned(), bytes: 0, categories: vec![], layers: vec![], parts: vec![] }
    }

    fn count(&mut self, part: &Part) {
        self.bytes += part.bytes;
        entry(&mut self.categories, |(known, _)| *known == part.category, || (part.category, 0)).1 += part.bytes;
        self.categories.sort_by_key(|(_, bytes)| Reverse(*bytes));
    }
}

/// The first element that is `wanted`, or a new one.
fn entry<T>(list: &mut Vec<T>, wanted: impl Fn(&T) -> bool, new: impl FnOnce() -> T) -> &mut T {
    let at = list.iter().position(wanted).unwrap_or(list.len());
    if at == list.len() {
        list.push(new());
    }
    &mut list[at]
}

/// Modules, with their layers and parts, each largest first.
pub(super) fn modules(buffers: &[&PredictedBuffer]) -> Vec<Group> {
    let mut modules: Vec<Group> = vec![];
    for part in parts(buffers) {
        let module = entry(&mut modules, |module| module.name == part.module, || Group::new(&part.module));
        module.count(&part);
        let layer = entry(&mut module.layers, |layer| layer.name == part.layer, || Group::new(&part.layer));
        layer.count(&part);
        layer.parts.push(part);
    }
    for module in &mut modules {
        module.layers.sort_by_key(|layer| Reverse(layer.bytes));
    }
    modules.sort_by_key(|module| Reverse(module.bytes));
    modules
}

/// Parts, largest first.
pub(super) fn parts(buffers: &[&PredictedBuffer]) -> Vec<Part> {
    let mut parts: Vec<Part> = vec![];
    for buffer in buffers {
        let path = buffer.path.as_deref().filter(|path| !path.is_empty());
        let (pattern, module) = match path {
            Some(path) => (pattern(path), head(path)),
            None => (format!("({})", buffer.operation), NO_MODULE.to_owned()),
        };
        let category = buffer.category;
        let same = |part: &Part| part.pattern == pattern && part.category == category && part.module == module;
        let new = || {
            let (name, layer) = (pattern.clone(), pattern.clone());
            Part { name, category, bytes: 0, kinds: vec![], pattern: pattern.clone(), layer, module: module.clone() }
        };
        let part = entry(&mut parts, same, new);
        part.bytes += buffer.bytes;
        let (operation, dtype, shape) = (buffer.operation.clone(), buffer.dtype.clone(), shape(buffer));
        let same = |kind: &Kind| (&kind.operation, &kind.dtype, &kind.shape) == (&operation, &dtype, &shape);
        let new = || {
            let (operation, dtype, shape) = (operation.clone(), dtype.clone(), shape.clone());
            Kind { operation, dtype, shape, bytes: 0, buffers: 0, paths: vec![] }
        };
        let kind = entry(&mut part.kinds, same, new);
        kind.bytes += buffer.bytes;
        kind.buffers += 1;
        if let Some(path) = path {
            entry(&mut kind.paths, |known| known == path, || path.to_owned());
        }
    }
    // Tensors that are made in the update of a parameter have the parameter's path too.
    let parameters: HashSet<String> =
        parts.iter().filter(|part| part.is_of_parameter()).map(|part| part.pattern.clone()).collect();
    for part in &mut parts {
        part.kinds.sort_by_key(|kind| Reverse(kind.bytes));
        // A layer that is the only one in its group has its own name.
        let paths: HashSet<&String> = part.kinds.iter().flat_map(|kind| &kind.paths).collect();
        if let (1, Some(path)) = (paths.len(), paths.into_iter().next()) {
            part.name = path.clone();
        }
        if let Some((layer, _)) = part.pattern.rsplit_once('.').filter(|_| parameters.contains(&part.pattern)) {
            part.layer = layer.to_owned();
        }
    }
    parts.sort_by_key(|part| Reverse(part.bytes));
    parts
}

fn is_number(segment: &str) -> bool {
    !segment.is_empty() && segment.bytes().all(|byte| byte.is_ascii_digit())
}

/// The path with a star for each number: `h.*.mlp.c_fc`.
fn pattern(path: &str) -> String {
    let segments: Vec<_> = path.split('.').map(|segment| if is_number(segment) { "*" } else { segment }).collect();
    segments.join(".")
}

/// The part of the model that a path is in: its first segment, and a star for a number after it.
fn head(path: &str) -> String {
    let mut segments = path.split('.');
    let first = segments.next().unwrap_or(path);
    match (is_number(first), segments.next()) {
        (true, _) => "*".to_owned(),
        (false, Some(second)) if is_number(second) => format!("{first}.*"),
        (false, _) => first.to_owned(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test ends at what goes wrong")]
mod tests {
    use serde_json::json;

    use super::*;

    fn step() -> Vec<PredictedBuffer> {
        let buffers = [
            (8, "activation", Some("h.0.ln"), "LayerNorm"),
            (8, "activation", Some("h.1.ln"), "LayerNorm"),
            (5, "activation", Some("h.1.ln"), "Mean"),
            (4, "parameter", Some("h.0.ln.weight"), "before the step"),
            (30, "parameter", Some("wte.weight"), "before the step"),
            (1, "transient", Some("wte.weight"), "Mul"),
            (2, "transient", None, "Add"),
            (3, "workspace", Some(""), "Matmul"),
        ];
        let buffer = |(bytes, category, path, operation)| {
            json!({"bytes": bytes, "shape": [bytes], "dtype": "F32", "category": category, "path": path,
                   "operation": operation, "born": 0, "dies": 1})
        };
        buffers.map(|of: (u64, &str, Option<&str>, &str)| serde_json::from_value(buffer(of)).unwrap()).into()
    }

    #[test]
    fn the_same_layer_of_all_blocks_is_one_group() {
        let step = step();
        let parts = parts(&step.iter().collect::<Vec<_>>());
        let rows: Vec<_> = parts.iter().map(|part| (part.name.as_str(), part.bytes)).collect();
        let expected = [
            ("wte.weight", 30),
            ("h.*.ln", 21),
            ("h.0.ln.weight", 4),
            ("(Matmul)", 3),
            ("(Add)", 2),
            ("wte.weight", 1),
        ];
        assert_eq!(rows, expected);
        let kinds: Vec<_> = parts[1].kinds.iter().map(|kind| (kind.operation.as_str(), kind.buffers)).collect();
        assert_eq!(kinds, [("LayerNorm", 2), ("Mean", 1)]);
        assert_eq!(parts[1].kinds[0].paths, ["h.0.ln", "h.1.ln"]);
    }

    #[test]
    fn modules_hold_all_bytes() {
        let step = step();
        let modules = modules(&step.iter().collect::<Vec<_>>());
        let rows: Vec<_> = modules.iter().map(|module| (module.name.as_str(), module.bytes)).collect();
        assert_eq!(rows, [("wte", 31), ("h.*", 25), ("no module", 5)]);
        assert_eq!(modules[1].categories, [(Category::Activation, 21), (Category::Parameter, 4)]);
        let layers: Vec<_> = modules[1].layers.iter().map(|layer| (layer.name.as_str(), layer.bytes)).collect();
        assert_eq!(layers, [("h.*.ln", 25)], "a parameter is in its layer");
        assert_eq!(modules[0].layers.len(), 1, "what is made in an update too");
        let parts = &modules[1].layers[0].parts;
        assert_eq!(parts.iter().map(Part::parameter).collect::<Vec<_>>(), [None, Some("weight")]);
        let kinds = modules.iter().flat_map(|module| &module.layers).flat_map(|layer| &layer.parts);
        assert_eq!(kinds.flat_map(|part| &part.kinds).map(|kind| kind.buffers).sum::<usize>(), step.len());
    }

    #[test]
    fn numbers_become_stars() {
        assert_eq!(pattern("layer1.0.conv2.weight"), "layer1.*.conv2.weight");
        assert_eq!(["layer1.0.conv2", "fc.weight", "3.weight", "x"].map(head), ["layer1.*", "fc", "*", "x"]);
    }
}
