//! What is attached to the parameters of a model before it is trained.

use burn::module::{Module, Reparameterizer};
use burn::optim::ModuleOptimizer;
use kiln_compression::Nest;
use kiln_precision::Policy;

use crate::error::Error;

/// Puts a plain model under a policy, and attaches what the run asks for below the policy's cast.
pub(super) type Attach<M> = Box<dyn Fn(M, &Policy) -> Result<M, Error>>;

/// Changes a model and its optimizer before a step, given the number of steps that were taken; none leaves both as they are.
pub(super) type Edit<M> = Box<dyn FnMut(u64, &M, &ModuleOptimizer) -> Result<Option<(M, ModuleOptimizer)>, Error>>;

/// A policy's cast alone.
pub(super) fn autocast<M: Module>() -> Attach<M> {
    Box::new(|model, policy| Ok(policy.autocast(model)?))
}

/// What `make` returns, below a policy's cast.
pub(super) fn below_the_cast<M, R, E>(make: impl Fn(&M) -> Result<R, E> + 'static) -> Attach<M>
where
    M: Module,
    R: Reparameterizer,
    E: std::error::Error + Send + Sync + 'static,
{
    Box::new(move |model, policy| {
        let first = make(&model).map_err(|error| Error::Model(Box::new(error)))?;
        let cast = policy.reparameterizer(&model)?;
        Ok(model.apply_reparameterization(Nest::new(first, cast)))
    })
}
