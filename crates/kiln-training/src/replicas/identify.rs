//! The same ids for the parameters of all replicas.

use std::collections::HashMap;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::{Bool, Int, Tensor};
use kiln_parallel::Communicator;

use crate::error::Error;

/// `model` with the parameter ids of the first replica. Ids are drawn when a model is made, and a checkpoint of the optimizer refers to
/// them: with the same ids, what one replica has saved of the state fits on the others.
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
