//! The module to which each operation and tensor of a recording belongs.

use std::collections::HashMap;

use super::graph::Graph;
use super::recorder::{Recording, Role};

/// Distinct module and parameter paths, by number.
#[derive(Default)]
pub(crate) struct Paths {
    pub(crate) texts: Vec<String>,
    numbers: HashMap<String, u32>,
}

impl Paths {
    pub(crate) fn number(&mut self, path: &str) -> u32 {
        if let Some(number) = self.numbers.get(path) {
            return *number;
        }
        let number = self.texts.len() as u32;
        self.texts.push(path.to_owned());
        self.numbers.insert(path.to_owned(), number);
        number
    }
}

/// The module of each operation, as far as parameters determine it. In the forward pass this is the module of the last parameter that was
/// read. In the backward pass it is the module of the activation or parameter that the operation reads.
pub(crate) fn of_operations(graph: &Graph, roles: &[Option<Role>], step: usize, paths: &mut Paths) -> Vec<Option<u32>> {
    let module_of = |role: &Option<Role>, paths: &mut Paths| match role {
        Some(Role::Parameter(path)) => {
            Some(paths.number(path.rsplit_once('.').map_or(path.as_str(), |(module, _)| module)))
        }
        _ => None,
    };
    let modules: Vec<_> = roles.iter().map(|role| module_of(role, paths)).collect();
    let mut of_tensor: Vec<Option<u32>> = vec![None; roles.len()];
    let mut current: Option<u32> = None;
    let mut of_operation = Vec::with_capacity(graph.operations.len());
    for (index, operation) in graph.operations.iter().enumerate() {
        if index == step {
            current = None;
        }
        let inputs = graph.inputs(*operation);
        let own = inputs.iter().find_map(|input| modules[input.tensor as usize]);
        // A tensor that was made without inputs has no module yet.
        let inherited = || inputs.iter().rev().find_map(|input| of_tensor[input.tensor as usize]);
        current = own.or(current).or_else(inherited);
        for output in graph.outputs(*operation) {
            of_tensor[*output as usize] = current;
        }
        of_operation.push(current);
    }
    of_operation
}

/// The operation and the module at which a recording stopped. `step` is the first operation of the step, if it was reached.
pub(crate) fn last_place(graph: &Graph, roles: &[Option<Role>], step: Option<usize>) -> (String, String) {
    let Some(step) = step else { return ("before the step".into(), "(the model)".into()) };
    // An operation without inputs is a marker or new data and does not identify a layer.
    let last = (step..graph.operations.len()).rfind(|index| !graph.inputs_at(*index).is_empty());
    let mut paths = Paths::default();
    let of_operation = of_operations(graph, roles, step, &mut paths);
    let path = last.and_then(|last| of_operation[last]).map(|path| paths.texts[path as usize].clone());
    (
        last.map_or_else(|| "the first operation".into(), |last| format!("after {}", graph.kind_at(last).short())),
        path.unwrap_or_else(|| "(before the first layer)".into()),
    )
}

/// Whether each tensor is input data: it comes from the host, or it is made without inputs before the first parameter is read.
pub(crate) fn inputs(recording: &Recording) -> Vec<bool> {
    let graph = &recording.graph;
    let is_parameter = |tensor: u32| matches!(recording.roles[tensor as usize], Some(Role::Parameter(_)));
    let mut parameter_read = false;
    let mut is_input = vec![false; recording.tensors.len()];
    for index in recording.phases[0]..recording.phases[1] {
        let inputs = graph.inputs_at(index);
        parameter_read |= inputs.iter().any(|input| is_parameter(input.tensor));
        if inputs.is_empty() && (!parameter_read || graph.kind_at(index).name == "Init") {
            graph.outputs_at(index).iter().for_each(|output| is_input[*output as usize] = true);
        }
    }
    is_input
}

/// The parameter to which each tensor of the update belongs. The optimizer updates one parameter after the other, and the new parameter
/// is the last tensor that it makes for each.
pub(crate) fn owners(recording: &Recording, paths: &mut Paths) -> Vec<Option<u32>> {
    let graph = &recording.graph;
    let mut owners = vec![None; recording.tensors.len()];
    let mut current = None;
    for index in (recording.phases[2]..recording.phases[3]).rev() {
        for output in graph.outputs_at(index) {
            if let Some(Role::Updated(path)) = &recording.roles[*output as usize] {
                current = Some(paths.number(path));
            }
        }
        if current.is_none() {
            continue;
        }
        let inputs = graph.inputs_at(index).iter().map(|input| input.tensor);
        for tensor in inputs.chain(graph.outputs_at(index).iter().copied()) {
            owners[tensor as usize] = current;
        }
    }
    owners
}
