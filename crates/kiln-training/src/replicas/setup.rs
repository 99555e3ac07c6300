//! What must be equal on all replicas before a run begins: settings, and the ids of the parameters.

use std::collections::{BTreeSet, HashMap};

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::{Bool, Int, Tensor};
use kiln_compression::placeholders;

use super::group::Group;
use crate::error::Error;

/// A name in plain words, and a value as text.
pub(crate) type Fact = (&'static str, String);

impl Group {
    /// Checks that `facts` are equal on all replicas.
    ///
    /// # Errors
    /// [`Error::Replica`] on all replicas. It names the first replica that differs from replica 0, and how. [`Error::Parallel`].
    pub(crate) fn check_equal(&self, facts: &[Fact]) -> Result<(), Error> {
        let Some(communicator) = self.communicator() else { return Ok(()) };
        let unreadable = |e: serde_json::Error| {
            Error::Parallel(kiln_parallel::Error::Transfer { operation: "exchange", reason: e.to_string() })
        };
        let message = serde_json::to_vec(facts).map_err(unreadable)?;
        let all = communicator.exchange(&message)?;
        let read = |message: &Vec<u8>| serde_json::from_slice::<Vec<(String, String)>>(message).map_err(unreadable);
        let all: Vec<_> = all.iter().map(read).collect::<Result<_, _>>()?;
        match different(&all) {
            Some((rank, reason)) => Err(Error::Replica { rank, reason }),
            None => Ok(()),
        }
    }

    /// Returns `model` with the parameter ids of the first replica. Ids are drawn when a model is made, and a checkpoint of the optimizer
    /// refers to them. With equal ids, saved state of one replica fits the others.
    ///
    /// # Errors
    /// [`Error::Parallel`]; [`Error::Replica`] for a replica whose model has another number of parameters.
    pub(crate) fn share_ids<M: Module>(&self, model: M) -> Result<M, Error> {
        let Some(communicator) = self.communicator() else { return Ok(model) };
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
}

/// The first replica that differs from the first one, and how.
fn different(all: &[Vec<(String, String)>]) -> Option<(usize, String)> {
    let first = all.first()?;
    all.iter().enumerate().find_map(|(rank, own)| {
        let pair = own.iter().zip(first).find(|(own, first)| own != first);
        match pair {
            Some(((name, found), (of_first, expected))) if name == of_first => {
                Some((rank, format!("its {name} is {found}, expected {expected} as on replica 0")))
            }
            None if own.len() == first.len() => None,
            // The replica is at another point of the program.
            _ => Some((rank, "it compares other settings than replica 0: another program, or another call".into())),
        }
    })
}

/// A checksum of a model's parameters and running statistics, in the order of the fields: CRC-32 of the bytes of floats and integers.
pub(crate) fn checksum(model: &impl Module) -> u32 {
    struct Values {
        hasher: crc32fast::Hasher,
        /// Parameters without values.
        without: BTreeSet<ParamId>,
    }
    impl ModuleVisitor for Values {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            // The stored value, because a reparameterization has parameters of its own.
            if !self.without.contains(&param.id) {
                self.hasher.update(param.base().inner().into_data().as_bytes());
            }
        }
        fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
            self.hasher.update(param.base().inner().into_data().as_bytes());
        }
    }
    let mut values = Values { hasher: crc32fast::Hasher::new(), without: placeholders(model) };
    model.visit(&mut values);
    values.hasher.finalize()
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
    use burn::nn::{Linear, LinearConfig};
    use burn::tensor::Device;

    use super::super::group::tests::each;
    use super::*;

    fn facts(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn the_first_difference_from_the_first_replica_is_named() {
        let (a, b) = (facts(&[("seed", "1"), ("clip norm", "2")]), facts(&[("seed", "1"), ("clip norm", "3")]));
        assert_eq!(different(&[a.clone(), a.clone()]), None);
        assert_eq!(different(&[]), None);
        let found = different(&[a.clone(), a.clone(), b.clone(), b]);
        assert_eq!(found, Some((2, "its clip norm is 3, expected 2 as on replica 0".into())));
        for other in [facts(&[("seed", "1")]), facts(&[("step", "1"), ("clip norm", "2")])] {
            assert!(different(&[a.clone(), other]).unwrap().1.contains("another call"));
        }
    }

    #[test]
    fn all_replicas_get_the_same_answer() {
        let errors = each(|rank, group| {
            group.check_equal(&[("seed", "7".into())]).unwrap();
            group.check_equal(&[("seed", (rank / 2).to_string())]).unwrap_err().to_string()
        });
        assert_eq!(errors, ["replica 2 failed: its seed is 1, expected 0 as on replica 0"; 3]);
    }

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
        let shared = each(|_, group| {
            let model = Tied::new();
            let (before, values) = (ids(&model), checksum(&model));
            let model = group.share_ids(model).unwrap();
            assert_eq!(checksum(&model), values, "the values stay");
            assert!(model.first.weight.is_require_grad());
            (before, ids(&model))
        });
        for (_, after) in &shared {
            assert_eq!(after, &shared[0].0);
            assert_eq!((after[0], after[1]), (after[2], after[3]));
        }
        assert_ne!(shared[1].0, shared[0].0);
    }

    #[test]
    fn another_number_of_parameters_is_an_error_on_all() {
        let errors = each(|rank, group| {
            let config = LinearConfig::new(2, 2).with_bias(rank != 1);
            group.share_ids(config.init(&Device::flex())).unwrap_err().to_string()
        });
        assert_eq!(errors, ["replica 1 failed: its model has 1 parameters, expected 2 as on replica 0"; 3]);
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
