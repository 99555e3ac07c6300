use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use crate::Error;
use crate::program::{Op, Program, TensorInfo};
use crate::record::{Recording, Role};

/// A training step as a graph of operations, from which its memory follows for any batch size and backend.
///
/// Made by [`record_step`](crate::record_step). Shapes are kept as functions of the batch size: a dimension that differs
/// between the two recordings grows with the batch, any other is constant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepTrace {
    pub(crate) operations: Vec<Op>,
    pub(crate) tensors: Vec<TraceTensor>,
    /// Indices of the first operation of the step, of the backward pass, of the update, and of what follows it. What is before the
    /// first is how parameters and optimizer state came about.
    pub(crate) phases: [usize; 4],
    /// Places between the blocks of a chain.
    pub(crate) cuts: Vec<usize>,
    /// Where what is old of a chunk of the parameters is given up.
    pub(crate) releases: Vec<usize>,
    pub(crate) batches: [usize; 2],
}

/// A tensor of a trace.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct TraceTensor {
    /// Each dimension at the two batch sizes.
    pub(crate) dims: Vec<[usize; 2]>,
    pub(crate) dtype: String,
    /// Bytes of one element.
    pub(crate) size: usize,
    pub(crate) role: TraceRole,
    /// The parameter, or the module it was made in.
    pub(crate) path: Option<String>,
}

/// What a tensor of a trace is known to be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum TraceRole {
    #[default]
    Other,
    Parameter,
    Gradient,
    /// A parameter after the update.
    Updated,
    Input,
}

impl StepTrace {
    /// Number of operations of the step.
    pub fn len(&self) -> usize {
        self.phases[3] - self.phases[0]
    }

    /// Whether nothing was recorded.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of blocks between the [`cuts`](crate::Recorder::cut).
    pub fn blocks(&self) -> usize {
        self.cuts.len().saturating_sub(1)
    }

    pub(crate) fn merge(recordings: [Recording; 2], batches: [usize; 2]) -> Result<Self, Error> {
        let [first, second] = recordings;
        let (a, b) = (&first.program, &second.program);
        let differs = |index: usize| match (a.operations.get(index), b.operations.get(index)) {
            (Some(a), Some(b)) => a != b,
            _ => true,
        };
        let operations = a.operations.len().max(b.operations.len());
        if let Some(index) = (0..operations).find(|index| differs(*index)) {
            // The one that has more operations has one that the other lacks.
            let more = if b.operations.len() > a.operations.len() { &second } else { &first };
            return Err(Error::Shape {
                operation: more.program.operations.get(index).map_or_else(String::new, |op| op.kind().to_owned()),
                path: more.program.paths(&more.roles, more.phases[0]).get(index).cloned().flatten().unwrap_or_default(),
                batches,
            });
        }
        let paths = a.paths(&first.roles, first.phases[0]);
        let mut made_by = vec![None; a.tensors.len()];
        for (index, op) in a.operations.iter().enumerate() {
            for output in &op.outputs {
                made_by[*output] = Some(index);
            }
        }
        let inputs = inputs(a, &first);
        let owners = owners(a, &first);
        let tensors = a.tensors.iter().zip(&b.tensors).enumerate().map(|(index, (a, b))| {
            let (role, path) = match first.roles.get(&index) {
                Some(Role::Parameter(path)) => (TraceRole::Parameter, Some(path.clone())),
                Some(Role::Gradient(path)) => (TraceRole::Gradient, Some(path.clone())),
                Some(Role::Updated(path)) => (TraceRole::Updated, Some(path.clone())),
                None if inputs.contains(&index) => (TraceRole::Input, None),
                None => {
                    let made_in = || made_by[index].and_then(|op| paths[op].clone());
                    (TraceRole::Other, owners.get(&index).cloned().or_else(made_in))
                }
            };
            let dims = a.shape.iter().zip(&b.shape).map(|(a, b)| [*a, *b]).collect();
            TraceTensor { dims, dtype: a.dtype.clone(), size: a.size, role, path }
        });
        let tensors = tensors.collect();
        let Recording { program, phases, cuts, releases, .. } = first;
        Ok(Self { operations: program.operations, tensors, phases, cuts, releases, batches })
    }

    /// The step at a batch size.
    pub(crate) fn at(&self, batch: usize) -> Result<Program, Error> {
        let [first, second] = self.batches;
        let dim = |[a, b]: [usize; 2]| {
            // Exact for dimensions that are a multiple of the batch size plus a constant.
            let (a, b) = (a as i128, b as i128);
            let value = a + (b - a) * (batch as i128 - first as i128) / (second - first) as i128;
            usize::try_from(value).ok()
        };
        let tensor = |tensor: &TraceTensor| {
            let shape: Option<Vec<usize>> = tensor.dims.iter().map(|dims| dim(*dims)).collect();
            let bytes =
                shape.as_ref()?.iter().try_fold(tensor.size as u64, |bytes, dim| bytes.checked_mul(*dim as u64))?;
            // Sums of these, and the work of their products, can be counted in 64 bits.
            (bytes < 1 << 42).then_some(())?;
            Some(TensorInfo { shape: shape?, dtype: tensor.dtype.clone(), size: tensor.size })
        };
        let tensors: Option<Vec<_>> = self.tensors.iter().map(tensor).collect();
        match tensors {
            Some(tensors) if batch > 0 => Ok(Program { operations: self.operations.clone(), tensors }),
            _ => Err(Error::BatchSize { batch }),
        }
    }
}

/// Data that comes from the host, and what is made from nothing before the first parameter is read.
fn inputs(program: &Program, recording: &Recording) -> Vec<usize> {
    let is_parameter = |tensor: usize| matches!(recording.roles.get(&tensor), Some(Role::Parameter(_)));
    let mut began = false;
    let mut inputs = vec![];
    for op in &program.operations[recording.phases[0]..recording.phases[1]] {
        began |= op.inputs.iter().any(|input| is_parameter(input.tensor));
        if op.inputs.is_empty() && (!began || op.name == "Init") {
            inputs.extend(&op.outputs);
        }
    }
    inputs
}

/// The parameters that optimizer state belongs to: an update works on one after the other, and makes the new one last.
fn owners(program: &Program, recording: &Recording) -> HashMap<usize, String> {
    let mut owners = HashMap::new();
    let mut current = None;
    for op in program.operations[recording.phases[2]..recording.phases[3]].iter().rev() {
        for output in &op.outputs {
            if let Some(Role::Updated(path)) = recording.roles.get(output) {
                current = Some(path);
            }
        }
        let used = op.inputs.iter().map(|input| &input.tensor).chain(&op.outputs);
        owners.extend(used.filter_map(|tensor| Some((*tensor, current?.clone()))));
    }
    owners
}

impl Program {
    /// The module that each operation belongs to, as far as parameters tell: that of the last parameter that was read,
    /// going forward; that of the activation or parameter it reads, going backward.
    pub(crate) fn paths(&self, roles: &HashMap<usize, Role>, step: usize) -> Vec<Option<String>> {
        let mut of_tensor: Vec<Option<String>> = vec![None; self.tensors.len()];
        let mut current: Option<String> = None;
        let mut paths = Vec::with_capacity(self.operations.len());
        for (index, op) in self.operations.iter().enumerate() {
            if index == step {
                current = None;
            }
            let own = op.inputs.iter().find_map(|input| match roles.get(&input.tensor)? {
                Role::Parameter(path) => {
                    Some(path.rsplit_once('.').map_or(path.as_str(), |(module, _)| module).to_owned())
                }
                Role::Gradient(_) | Role::Updated(_) => None,
            });
            // What is made of nothing belongs to nobody yet.
            if let Some(own) = own {
                current = Some(own);
            } else if let Some(inherited) =
                op.inputs.iter().filter_map(|input| of_tensor[input.tensor].clone()).next_back()
                && current.is_none()
            {
                current = Some(inherited);
            }
            for output in &op.outputs {
                of_tensor[*output] = current.clone();
            }
            paths.push(current.clone());
        }
        paths
    }

    /// The operation and the module that a recording ended in; `step` is where the step begins, if it was reached.
    pub(crate) fn last_place(&self, roles: &HashMap<usize, Role>, step: Option<usize>) -> (String, String) {
        let Some(step) = step else { return ("before the step".into(), "(the model)".into()) };
        // What reads nothing says nothing of a layer: it is a marker, or data that was about to be used.
        let last = (step..self.operations.len()).rfind(|index| !self.operations[*index].inputs.is_empty());
        let path = last.and_then(|last| self.paths(roles, step)[last].clone());
        (
            last.map_or_else(|| "the first operation".into(), |last| format!("after {}", self.operations[last].kind())),
            path.unwrap_or_else(|| "(before the first layer)".into()),
        )
    }
}
