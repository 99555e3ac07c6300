//! Which stages use which parameters and running statistics.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::tensor::{Bool, Int, Tensor};
use kiln_parallel::Stages;

use crate::error::Error;

/// The stages that use each parameter and buffer, by path, from the recording of a step. No stage uses a tensor whose path is missing.
#[derive(Clone, Debug)]
pub(crate) struct Readers(HashMap<String, BTreeSet<usize>>);

/// The stages that use each tensor of one model, by the tensor's id.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Uses(HashMap<ParamId, BTreeSet<usize>>);

impl Readers {
    /// Finds the stages of each tensor from the blocks that read it.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] for running statistics that several stages update: each stage is at another micro-batch.
    pub(crate) fn new(blocks: &BTreeMap<&str, BTreeSet<usize>>, stages: &Stages) -> Result<Self, Error> {
        let stage_of = |block: &usize| stages.ranges().iter().position(|range| range.contains(block));
        let mut readers = HashMap::new();
        for (path, blocks) in blocks {
            let used: BTreeSet<usize> = blocks.iter().filter_map(stage_of).collect();
            let is_statistic = path.rsplit('.').next().is_some_and(|name| name.starts_with("running_"));
            if is_statistic && used.len() > 1 {
                let value = format!("{path} in stages {used:?}");
                return Err(Error::InvalidSetting { name: "running statistics", value, expected: "each in one stage" });
            }
            readers.insert((*path).to_owned(), used);
        }
        Ok(Self(readers))
    }

    /// The stages that use the tensors of `model`.
    pub(crate) fn in_model(&self, model: &impl Module) -> Uses {
        struct Visit<'a> {
            readers: &'a Readers,
            path: Vec<String>,
            uses: Uses,
        }
        impl Visit<'_> {
            fn visit(&mut self, id: ParamId) {
                let stages = self.readers.0.get(&self.path.join(".")).into_iter().flatten();
                self.uses.0.entry(id).or_default().extend(stages);
            }
        }
        impl ModuleVisitor for Visit<'_> {
            fn enter_module(&mut self, name: &str, _: &str) {
                self.path.push(name.to_owned());
            }
            fn exit_module(&mut self, _: &str, _: &str) {
                self.path.pop();
            }
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                self.visit(param.id);
            }
            fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
                self.visit(param.id);
            }
            fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
                self.visit(param.id);
            }
        }
        let mut visit = Visit { readers: self, path: vec![], uses: Uses::default() };
        model.visit(&mut visit);
        visit.uses
    }
}

impl Uses {
    /// The first stage that uses a tensor. A tensor without a stage counts as the first stage's.
    pub(crate) fn first(&self, id: ParamId) -> usize {
        self.0.get(&id).and_then(|stages| stages.first().copied()).unwrap_or(0)
    }

    /// Whether a stage may use a tensor. A tensor that the recording does not know may be in any stage.
    pub(crate) fn may_be_in(&self, id: ParamId, stage: usize) -> bool {
        self.0.get(&id).is_none_or(|stages| stages.is_empty() || stages.contains(&stage))
    }

    /// Whether several stages use a tensor.
    pub(crate) fn is_shared(&self, id: ParamId) -> bool {
        self.0.get(&id).is_some_and(|stages| stages.len() > 1)
    }
}

#[cfg(test)]
mod tests {
    use burn::nn::{Linear, LinearConfig};
    use burn::tensor::Device;

    use super::*;

    #[test]
    fn tensors_belong_to_the_stages_of_the_blocks_that_read_them() {
        let blocks = |path, blocks: &[usize]| (path, blocks.iter().copied().collect::<BTreeSet<_>>());
        let stages = Stages::at(4, &[1, 2]).unwrap();
        let recorded = BTreeMap::from([blocks("0.weight", &[2, 3]), blocks("1.weight", &[3, 0])]);
        let model: Vec<Linear> = (0..2).map(|_| LinearConfig::new(2, 2).init(&Device::flex())).collect();
        let uses = Readers::new(&recorded, &stages).unwrap().in_model(&model);
        let found = |linear: &Linear| {
            [linear.weight.id, linear.bias.as_ref().unwrap().id].map(|id| (uses.first(id), uses.is_shared(id)))
        };
        assert_eq!(found(&model[0]), [(2, false), (0, false)]);
        assert_eq!(found(&model[1]), [(0, true), (0, false)]);
        let may_be = |linear: &Linear| (0..3).map(|stage| uses.may_be_in(linear.weight.id, stage)).collect::<Vec<_>>();
        assert_eq!(may_be(&model[1]), [true, false, true]);

        let statistics = BTreeMap::from([blocks("norm.running_mean", &[1, 2])]);
        let refused = Readers::new(&statistics, &stages).unwrap_err().to_string();
        assert_eq!(refused, "running statistics is norm.running_mean in stages {1, 2}, expected each in one stage");
    }
}
