//! Gives the parameters of all replicas equal ids.

use std::collections::HashMap;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::{Bool, Int, Tensor};
use kiln_parallel::Communicator;

use crate::error::Error;

/// Returns `model` with the parameter ids of the first replica. Ids are drawn when a model is made, and a checkpoint of the optimizer
/// refers to them. With equal ids, saved state of one replica fits the others.
///
/// # Errors
/// [`Error::Parallel`]; [`Error::Replica`] for a replica whose model has another number of parameters.
pub(crate) fn share_ids<M: Module>(communicator: &dyn Communicator, model: M) -> Result<M, Error> {
    let mut own = Ids::default();
    model.visit(&mut own);
    let message: Vec<u8> = own.0.iter().flat_map(|id| id.val().to_le_bytes()).collect();
    let all = communicator.exchange(&message)?;
    if let Some(rank) = all.iter().position(|ids| ids.len() != all[0].len()) {
        let (found, expected) = (all[rank].len() / 8, all[0].len() / 8);
        let reason = format!("its model has {found} parameters, expected {expected} as on replica 0");
        return Err(Error::Replica { rank, reason });
    }
    let first = all[0].as_chunks().0.iter().map(|id| ParamId::from(u64::from_le_bytes(*id)));
    let mut rename = Rename(own.0.into_iter().zip(first).collect());
    Ok(model.map(&mut rename))
}

/// A checksum of a model's float parameters and running statistics, in the order of the fields: CRC-32 of their bytes.
pub(crate) fn checksum(model: &impl Module) -> u32 {
    struct Values(crc32fast::Hasher);
    impl ModuleVisitor for Values {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            // The stored value, because a reparameterization has parameters of its own.
            self.0.update(param.base().inner().into_data().as_bytes());
        }
    }
    let mut values = Values(crc32fast::Hasher::new());
    model.visit(&mut values);
    values.0.finalize()
}

#[derive(Default)]
struct Ids(Vec<ParamId>);

impl ModuleVisitor for Ids {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.0.push(param.id);
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
        self.0.push(param.id);
    }

    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
        self.0.push(param.id);
    }
}

/// New ids by old ids: a parameter that two fields share keeps one id.
struct Rename(HashMap<ParamId, ParamId>);

impl Rename {
    fn of(&self, id: ParamId) -> ParamId {
        self.0.get(&id).copied().unwrap_or(id)
    }
}

impl ModuleMapper for Rename {
    fn map_float<const D: usize>(&mut self, mut param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.id = self.of(param.id);
        param
    }

    fn map_int<const D: usize>(&mut self, mut param: Param<Tensor<D, Int>>) -> Param<Tensor<D, Int>> {
        param.id = self.of(param.id);
        param
    }

    fn map_bool<const D: usize>(&mut self, mut param: Param<Tensor<D, Bool>>) -> Param<Tensor<D, Bool>> {
        param.id = self.of(param.id);
        param
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use burn::nn::{Linear, LinearConfig};
    use burn::tensor::Device;
    use kiln_parallel::Local;

    use super::*;

    /// Two fields that share a parameter, and one that does not.
    #[derive(Module, Debug)]
    struct Tied {
        first: Linear,
        second: Linear,
        third: Linear,
    }

    impl Tied {
        fn new() -> Self {
            let linear = || LinearConfig::new(2, 3).init(&Device::flex().autodiff());
            let first = linear();
            Self { second: first.clone(), first, third: linear() }
        }
    }

    fn ids(model: &impl Module) -> Vec<u64> {
        let mut ids = Ids::default();
        model.visit(&mut ids);
        ids.0.iter().map(|id| id.val()).collect()
    }

    #[test]
    fn all_replicas_take_the_ids_of_the_first_and_keep_what_is_shared() {
        let shared: Vec<_> = thread::scope(|scope| {
            let replicas: Vec<_> = Local::group(3)
                .into_iter()
                .map(|replica| {
                    scope.spawn(move || {
                        let model = Tied::new();
                        let (before, values) = (ids(&model), checksum(&model));
                        let model = share_ids(&replica, model).unwrap();
                        assert_eq!(checksum(&model), values, "the values stay");
                        assert!(model.first.weight.is_require_grad());
                        (before, ids(&model))
                    })
                })
                .collect();
            replicas.into_iter().map(|replica| replica.join().unwrap()).collect()
        });
        for (_, after) in &shared {
            assert_eq!(after, &shared[0].0);
            assert_eq!((after[0], after[1]), (after[2], after[3]));
        }
        assert_ne!(shared[1].0, shared[0].0);
    }

    #[test]
    fn another_number_of_parameters_is_an_error_on_all() {
        let errors: Vec<String> = thread::scope(|scope| {
            let replicas: Vec<_> = Local::group(2)
                .into_iter()
                .map(|replica| {
                    scope.spawn(move || {
                        let config = LinearConfig::new(2, 2).with_bias(replica.rank() == 0);
                        share_ids(&replica, config.init(&Device::flex())).unwrap_err().to_string()
                    })
                })
                .collect();
            replicas.into_iter().map(|replica| replica.join().unwrap()).collect()
        });
        assert_eq!(errors, ["replica 1 failed: its model has 1 parameters, expected 2 as on replica 0"; 2]);
    }

    #[test]
    fn a_checksum_tells_one_bit() {
        let model = LinearConfig::new(2, 3).init(&Device::flex());
        let mut other = model.clone();
        assert_eq!(checksum(&model), checksum(&other));
        other.weight = other.weight.map(|weight| -weight);
        assert_ne!(checksum(&model), checksum(&other));
    }
}
