//! Merges the recordings of a step at two batch sizes into one trace.

use std::collections::{BTreeMap, HashMap};

use crate::error::Error;

use super::modules::{self, Paths};
use super::recorder::{Recording, Role};
use super::step_trace::{StepTrace, TraceRole, TraceTensor};

/// The trace of a step that was recorded at two batch sizes.
pub(crate) fn merge(recordings: [Recording; 2], batches: [usize; 2]) -> Result<StepTrace, Error> {
    let [first, second] = recordings;
    let (a, b) = (&first.graph, &second.graph);
    let operations = a.operations.len().max(b.operations.len());
    if let Some(index) = (0..operations).find(|index| !a.same_at(b, *index)) {
        // The longer recording has an operation that the other one lacks.
        let more = if b.operations.len() > a.operations.len() { &second } else { &first };
        return Err(differs(more, index, batches));
    }
    let mut paths = Paths::default();
    let of_operation = modules::of_operations(a, &first.roles, first.phases[0], &mut paths);
    let mut made_in = vec![None; first.tensors.len()];
    for (operation, module) in a.operations.iter().zip(&of_operation) {
        for output in a.outputs(*operation) {
            made_in[*output as usize] = *module;
        }
    }
    let is_input = modules::inputs(&first);
    let owners = modules::owners(&first, &mut paths);
    let (mut shapes, mut known) = (vec![], HashMap::new());
    let mut tensors = Vec::with_capacity(first.tensors.len());
    for (index, (a, b)) in first.tensors.iter().zip(&second.tensors).enumerate() {
        let (role, path) = match &first.roles[index] {
            Some(Role::Parameter(path)) => (TraceRole::Parameter, Some(paths.number(path))),
            Some(Role::Gradient(path)) => (TraceRole::Gradient, Some(paths.number(path))),
            Some(Role::Updated(path)) => (TraceRole::Updated, Some(paths.number(path))),
            None if is_input[index] => (TraceRole::Input, None),
            None => (TraceRole::Other, owners[index].or(made_in[index])),
        };
        let shape = *known.entry((a.shape, b.shape)).or_insert_with(|| {
            let dims = first.shapes[a.shape as usize].iter().zip(&second.shapes[b.shape as usize]);
            shapes.push(dims.map(|(a, b)| [*a, *b]).collect());
            shapes.len() as u32 - 1
        });
        tensors.push(TraceTensor { shape, dtype: a.dtype, role, path });
    }
    let Recording { mut graph, phases, cuts, releases, learned, shared, apart, .. } = first;
    let learned = learned.iter().map(|path| paths.number(path)).collect();
    graph.shrink(); // traces are kept as long as a run
    Ok(StepTrace {
        graph,
        tensors,
        shapes,
        paths: paths.texts,
        learned,
        phases,
        cuts,
        releases,
        batches,
        recomputed: 0,
        copied: 0,
        stored: None,
        parts: BTreeMap::new(),
        shared,
        apart,
        by_rows: BTreeMap::new(),
    })
}

fn differs(recording: &Recording, index: usize, batches: [usize; 2]) -> Error {
    let graph = &recording.graph;
    let mut paths = Paths::default();
    let of_operation = modules::of_operations(graph, &recording.roles, recording.phases[0], &mut paths);
    let path = of_operation.get(index).copied().flatten();
    Error::Shape {
        operation: graph.operations.get(index).map_or_else(String::new, |op| graph.kind(*op).short().to_owned()),
        path: path.map_or_else(String::new, |path| paths.texts[path as usize].clone()),
        batches,
    }
}
