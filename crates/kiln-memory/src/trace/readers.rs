//! The blocks of a chain that read each parameter.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::recorder::{Recording, Role};
use super::step_trace::{StepTrace, TraceRole};

impl StepTrace {
    /// The blocks whose forward passes read each parameter or buffer, by its path. Operations before the first block count as a part of
    /// that block, and operations after the last block as a part of that one. A tensor that two fields share has one of their paths. A
    /// parameter that nothing reads is left out.
    pub fn readers(&self) -> BTreeMap<&str, BTreeSet<usize>> {
        let [start, backward, ..] = self.phases;
        let last = self.blocks().saturating_sub(1);
        let mut readers: BTreeMap<&str, BTreeSet<usize>> = BTreeMap::new();
        for index in start..backward {
            let block = self.cuts.iter().filter(|cut| **cut <= index).count().saturating_sub(1).min(last);
            for input in self.graph.inputs_at(index) {
                if let (TraceRole::Parameter, Some(path)) =
                    (self.tensors[input.tensor as usize].role, self.path_of(input.tensor as usize))
                {
                    readers.entry(path).or_default().insert(block);
                }
            }
        }
        readers
    }
}

impl StepTrace {
    /// The paths of the trained parameters that operations of `blocks` read, and no other operation.
    pub fn trained_only_by(&self, blocks: &[Range<usize>]) -> BTreeSet<&str> {
        let [start, backward, ..] = self.phases;
        let spans: Vec<Range<usize>> =
            blocks.iter().map(|blocks| self.cuts[blocks.start]..self.cuts[blocks.end]).collect();
        let is_inside = |index: &usize| spans.iter().any(|span| span.contains(index));
        let mut inside = self.read_at((start..backward).filter(is_inside));
        let outside = self.read_at((start..backward).filter(|index| !is_inside(index)));
        let trained: BTreeSet<&str> = self.learned_parameters().into_iter().map(|(path, _)| path).collect();
        inside.retain(|path| trained.contains(path) && !outside.contains(path));
        inside
    }

    /// The paths of the parameters that operations read.
    fn read_at(&self, operations: impl Iterator<Item = usize>) -> BTreeSet<&str> {
        let tensors = operations.flat_map(|index| self.graph.inputs_at(index)).map(|input| input.tensor as usize);
        let parameters = tensors.filter(|tensor| self.tensors[*tensor].role == TraceRole::Parameter);
        parameters.filter_map(|tensor| self.path_of(tensor)).collect()
    }

    /// The paths of the parameters that one operation of the forward pass reads: the gradient of each is made at once.
    pub fn read_once(&self) -> BTreeSet<&str> {
        let [start, backward, ..] = self.phases;
        let path = |tensor: u32| match self.tensors[tensor as usize].role {
            TraceRole::Parameter => self.path_of(tensor as usize),
            _ => None,
        };
        once((start..backward).flat_map(|index| self.graph.inputs_at(index)).filter_map(|input| path(input.tensor)))
    }
}

impl Recording {
    /// See [`StepTrace::read_once`].
    pub(super) fn read_once(&self) -> BTreeSet<String> {
        let [start, backward, ..] = self.phases;
        let path = |tensor: u32| match &self.roles[tensor as usize] {
            Some(Role::Parameter(path)) => Some(path.as_str()),
            _ => None,
        };
        let inputs = (start..backward).flat_map(|index| self.graph.inputs_at(index));
        once(inputs.filter_map(|input| path(input.tensor))).into_iter().map(str::to_owned).collect()
    }
}

/// Those of `paths` that occur once.
fn once<'a>(paths: impl Iterator<Item = &'a str>) -> BTreeSet<&'a str> {
    let mut counts = BTreeMap::new();
    paths.for_each(|path| *counts.entry(path).or_insert(0) += 1);
    counts.into_iter().filter(|(_, count)| *count == 1).map(|(path, _)| path).collect()
}

#[cfg(test)]
mod tests {
    use burn::module::Module;
    use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
    use burn::optim::AdamWConfig;
    use burn::tensor::{Device, Tensor};

    use crate::trace::{Recorder, StepOptions, record_step};

    #[derive(Module, Debug)]
    struct Net {
        first: Linear,
        norm: BatchNorm,
        blocks: Vec<Linear>,
        unused: Linear,
    }

    #[test]
    fn each_parameter_is_read_where_the_forward_pass_reads_it() {
        let linear = |device: &Device| LinearConfig::new(4, 4).with_bias(false).init(device);
        let build = |device: &Device| Net {
            first: linear(device),
            norm: BatchNormConfig::new(4).init(device),
            blocks: (0..3).map(|block| if block == 1 { linear(device).no_grad() } else { linear(device) }).collect(),
            unused: linear(device),
        };
        let forward = |net: &Net, recorder: &Recorder| {
            let mut x = net.first.forward(Tensor::<2>::zeros([recorder.batch(), 4], recorder.device()));
            recorder.cut();
            for (number, block) in net.blocks.iter().enumerate() {
                x = block.forward(x);
                if number == 1 {
                    x = net.norm.forward(x);
                }
                recorder.cut();
            }
            // The first layer is also the last one.
            x.matmul(net.first.weight.val()).square().mean()
        };
        let trace = record_step(build, forward, &AdamWConfig::new().build(), StepOptions::default()).unwrap();
        let readers = trace.readers();
        let found: Vec<(&str, Vec<usize>)> =
            readers.iter().map(|(path, blocks)| (*path, blocks.iter().copied().collect())).collect();
        let expected: [(&str, &[usize]); 8] = [
            ("blocks.0.weight", &[0]),
            ("blocks.1.weight", &[1]),
            ("blocks.2.weight", &[2]),
            ("first.weight", &[0, 2]),
            ("norm.beta", &[1]),
            ("norm.gamma", &[1]),
            ("norm.running_mean", &[1]),
            ("norm.running_var", &[1]),
        ];
        assert_eq!(found, expected.map(|(path, blocks)| (path, blocks.to_vec())));
        let once: Vec<&str> = trace.read_once().into_iter().filter(|path| path.ends_with("weight")).collect();
        assert_eq!(
            once,
            ["blocks.0.weight", "blocks.1.weight", "blocks.2.weight"],
            "not the first layer, which is also the last"
        );
    }
}
