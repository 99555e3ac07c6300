//! Buffers grouped by module, category and operation: the same layer of all blocks is one group.

use std::cmp::Reverse;
use std::collections::HashSet;

use crate::category::Category;
use crate::predict::Buffer;

use super::figures::{printable, shape};

/// The name under which buffers without a module are listed.
const NO_MODULE: &str = "no module";

/// A module of the model with all of its buffers.
#[derive(Debug, PartialEq)]
pub(super) struct Module {
    /// `layer1`, or `h.*` for blocks with a number.
    pub name: String,
    pub bytes: u64,
    /// Bytes by category, most first.
    pub categories: Vec<(Category, u64)>,
    pub layers: Vec<Layer>,
}

/// A layer, or the same layer of several blocks, with its parameters, their gradients and state, and its activations.
#[derive(Debug, PartialEq)]
pub(super) struct Layer {
    /// The layer's path, with a star for numbers that differ. For buffers without a module it is the operation in parentheses.
    pub name: String,
    pub bytes: u64,
    /// Bytes by category, most first.
    pub categories: Vec<(Category, u64)>,
    pub parts: Vec<Part>,
}

/// Buffers of one category in one layer, or in the same layer of several blocks.
#[derive(Debug, PartialEq)]
pub(super) struct Part {
    /// The module's path, with a star for numbers that differ. For buffers without a module it is the operation in parentheses.
    pub name: String,
    pub category: Category,
    pub bytes: u64,
    pub buffers: usize,
    pub kinds: Vec<Kind>,
    /// The path with a star for each number, which is the name if several paths share it.
    pattern: String,
    /// The layer that it is in. If it belongs to a parameter, this is the path without the parameter's name.
    layer: String,
    module: String,
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

/// Buffers that one kind of operation made, with the same shape.
#[derive(Debug, PartialEq)]
pub(super) struct Kind {
    pub operation: String,
    pub dtype: String,
    /// Such as `8x64x512`; empty if the buffer is not a tensor.
    pub shape: String,
    pub bytes: u64,
    pub buffers: usize,
    /// The paths of the buffers, each once.
    pub paths: Vec<String>,
}

impl Kind {
    /// `4 x F32 8x64x512`.
    pub(super) fn tensors(&self) -> String {
        match self.shape.as_str() {
            "" => self.buffers.to_string(),
            shape => format!("{} x {} {shape}", self.buffers, self.dtype),
        }
    }

    /// `4 x 8x64x512`.
    pub(super) fn shapes(&self) -> String {
        match self.shape.as_str() {
            "" => self.buffers.to_string(),
            shape => format!("{} x {shape}", self.buffers),
        }
    }
}

/// Modules, with their layers and parts, each largest first.
pub(super) fn modules(buffers: &[&Buffer]) -> Vec<Module> {
    let mut modules: Vec<Module> = vec![];
    for part in parts(buffers) {
        let at = modules.iter().position(|module| module.name == part.module).unwrap_or_else(|| {
            let (name, categories, layers) = (part.module.clone(), vec![], vec![]);
            modules.push(Module { name, bytes: 0, categories, layers });
            modules.len() - 1
        });
        let module = &mut modules[at];
        module.bytes += part.bytes;
        count(&mut module.categories, part.category, part.bytes);
        let at = module.layers.iter().position(|layer| layer.name == part.layer).unwrap_or_else(|| {
            let (name, categories, parts) = (part.layer.clone(), vec![], vec![]);
            module.layers.push(Layer { name, bytes: 0, categories, parts });
            module.layers.len() - 1
        });
        let layer = &mut module.layers[at];
        layer.bytes += part.bytes;
        count(&mut layer.categories, part.category, part.bytes);
        layer.parts.push(part);
    }
    for module in &mut modules {
        module.categories.sort_by_key(|(_, bytes)| Reverse(*bytes));
        module.layers.sort_by_key(|layer| Reverse(layer.bytes));
        for layer in &mut module.layers {
            layer.categories.sort_by_key(|(_, bytes)| Reverse(*bytes));
        }
    }
    modules.sort_by_key(|module| Reverse(module.bytes));
    modules
}

fn count(categories: &mut Vec<(Category, u64)>, category: Category, bytes: u64) {
    match categories.iter_mut().find(|(known, _)| *known == category) {
        Some((_, sum)) => *sum += bytes,
        None => categories.push((category, bytes)),
    }
}

/// Parts, largest first.
pub(super) fn parts(buffers: &[&Buffer]) -> Vec<Part> {
    let mut parts: Vec<Part> = vec![];
    let mut paths: Vec<Vec<String>> = vec![];
    for buffer in buffers {
        let path = buffer.path.as_deref().filter(|path| !path.is_empty()).map(printable);
        let (name, module) = match &path {
            Some(path) => (pattern(path), head(path)),
            None => (format!("({})", printable(&buffer.operation)), NO_MODULE.to_owned()),
        };
        let same = |part: &Part| part.pattern == name && part.category == buffer.category && part.module == module;
        let at = parts.iter().position(same).unwrap_or_else(|| {
            parts.push(Part {
                name: name.clone(),
                category: buffer.category,
                bytes: 0,
                buffers: 0,
                kinds: vec![],
                pattern: name.clone(),
                layer: name.clone(),
                module: module.clone(),
            });
            paths.push(vec![]);
            parts.len() - 1
        });
        parts[at].bytes += buffer.bytes;
        parts[at].buffers += 1;
        let place = path.clone().unwrap_or_default();
        if !paths[at].contains(&place) {
            paths[at].push(place);
        }
        add(&mut parts[at].kinds, buffer, path);
    }
    for (part, mut paths) in parts.iter_mut().zip(paths) {
        part.kinds.sort_by_key(|kind| Reverse(kind.bytes));
        // A layer that is the only one in its group has its own name.
        if let (1, Some(path)) = (paths.len(), paths.pop().filter(|path| !path.is_empty())) {
            part.name = path;
        }
    }
    // Tensors that are made in the update of a parameter have the parameter's path too.
    let parameters: HashSet<String> =
        parts.iter().filter(|part| part.is_of_parameter()).map(|part| part.pattern.clone()).collect();
    for part in parts.iter_mut().filter(|part| parameters.contains(&part.pattern)) {
        if let Some((layer, _)) = part.pattern.rsplit_once('.') {
            part.layer = layer.to_owned();
        }
    }
    parts.sort_by_key(|part| Reverse(part.bytes));
    parts
}

fn add(kinds: &mut Vec<Kind>, buffer: &Buffer, path: Option<String>) {
    let (operation, dtype) = (printable(&buffer.operation), printable(&buffer.dtype));
    // Bytes that are not a tensor have neither sides nor elements.
    let is_tensor = !(buffer.shape.is_empty() && buffer.dtype == "U8");
    let shape = if is_tensor { shape(buffer) } else { String::new() };
    let same = |kind: &Kind| kind.operation == operation && kind.dtype == dtype && kind.shape == shape;
    let at = kinds.iter().position(same).unwrap_or_else(|| {
        kinds.push(Kind { operation, dtype, shape, bytes: 0, buffers: 0, paths: vec![] });
        kinds.len() - 1
    });
    let kind = &mut kinds[at];
    kind.bytes += buffer.bytes;
    kind.buffers += 1;
    if let Some(path) = path.filter(|path| !kind.paths.contains(path)) {
        kind.paths.push(path);
    }
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

    fn buffer(bytes: u64, category: &str, path: Option<&str>, operation: &str) -> Buffer {
        let value = json!({"bytes": bytes, "shape": [bytes], "dtype": "F32", "category": category, "path": path,
                           "operation": operation, "born": 0, "dies": 1});
        serde_json::from_value(value).unwrap()
    }

    fn step() -> Vec<Buffer> {
        vec![
            buffer(8, "activation", Some("h.0.ln"), "LayerNorm"),
            buffer(8, "activation", Some("h.1.ln"), "LayerNorm"),
            buffer(5, "activation", Some("h.1.ln"), "Mean"),
            buffer(4, "parameter", Some("h.0.ln.weight"), "before the step"),
            buffer(30, "parameter", Some("wte.weight"), "before the step"),
            buffer(1, "transient", Some("wte.weight"), "Mul"),
            buffer(2, "transient", None, "Add"),
            buffer(3, "workspace", Some(""), "Matmul"),
        ]
    }

    #[test]
    fn the_same_layer_of_all_blocks_is_one_group() {
        let step = step();
        let parts = parts(&step.iter().collect::<Vec<_>>());
        let rows: Vec<_> = parts.iter().map(|part| (part.name.as_str(), part.bytes, part.buffers)).collect();
        let expected = [
            ("wte.weight", 30, 1),
            ("h.*.ln", 21, 3),
            ("h.0.ln.weight", 4, 1),
            ("(Matmul)", 3, 1),
            ("(Add)", 2, 1),
            ("wte.weight", 1, 1),
        ];
        assert_eq!(rows, expected);
        let kinds: Vec<_> = parts[1].kinds.iter().map(|kind| (kind.operation.as_str(), kind.tensors())).collect();
        assert_eq!(kinds, [("LayerNorm", "2 x F32 8".to_owned()), ("Mean", "1 x F32 5".to_owned())]);
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
        let all = modules.iter().flat_map(|module| &module.layers).flat_map(|layer| &layer.parts);
        assert_eq!(all.map(|part| part.buffers).sum::<usize>(), step.len());
    }

    #[test]
    fn numbers_become_stars() {
        assert_eq!(pattern("layer1.0.conv2.weight"), "layer1.*.conv2.weight");
        assert_eq!(
            [head("layer1.0.conv2"), head("fc.weight"), head("3.weight"), head("x")],
            ["layer1.*", "fc", "*", "x"]
        );
    }
}
