//! Attachments to the parameters of a model, such as masks and adapters, that are made before training.

use std::collections::BTreeSet;
use std::fmt::Debug;

use burn::module::{Module, Param, ParamId, Reparameterizer};
use burn::optim::ModuleOptimizer;
use burn::tensor::{DType, Tensor};
use kiln_compression::{Nest, Nested};
use kiln_precision::{Autocast, CastTo, Policy};

use crate::error::Error;
use crate::optimizer::Kinds;

/// Puts a plain model under a policy, and makes the run's attachments below the policy's cast. Also returns the settings of the
/// attachments, as checkpoints note them.
pub(super) type Attach<M> = Box<dyn Fn(M, &Policy) -> Result<(M, String), Error>>;

/// The note in checkpoints if nothing is attached.
const NOTHING: &str = "nothing";

/// Changes a model and its optimizer before a step, given the number of steps taken so far. `None` leaves both unchanged.
pub(super) type Edit<M> = Box<dyn FnMut(u64, &M, &ModuleOptimizer) -> Result<Option<(M, ModuleOptimizer)>, Error>>;

/// Attaches only a policy's cast, or stores parameters as the policy says.
pub(super) fn policy_alone<M: Module>() -> Attach<M> {
    Box::new(|model, policy| {
        let note = match policy.stores() {
            true => format!("storage in {:?}", policy.stored_dtypes(&model)?),
            false => NOTHING.to_owned(),
        };
        Ok((policy.apply(model)?, note))
    })
}

/// Attaches the result of `make` below a policy's cast. `narrows`: other frozen matrices are stored in the dtype that layers compute in.
pub(super) fn below_the_cast<M, R, E>(make: impl Fn(&M) -> Result<R, E> + 'static, narrows: bool) -> Attach<M>
where
    M: Module,
    R: Reparameterizer + Debug,
    E: std::error::Error + Send + Sync + 'static,
{
    Box::new(move |model, policy| {
        let first = make(&model).map_err(|error| Error::Model(Box::new(error)))?;
        let settings = format!("{first:?}");
        if policy.stores() {
            let (name, value) = ("attachment to the parameters", "set".into());
            let expected = "none in a run whose parameters are stored in bf16";
            return Err(Error::InvalidSetting { name, value, expected });
        }
        let cast = policy.reparameterizer(&model)?;
        let both = Nest::new(first, cast);
        let model = match narrows {
            true => {
                let tables = Kinds::of(&model).no_matrices.into_iter().collect();
                model.apply_reparameterization(Narrow { both, dtype: policy.compute().dtype(), tables })
            }
            false => model.apply_reparameterization(both),
        };
        Ok((model, settings))
    })
}

/// Attaches both. A frozen matrix that has nothing or only the cast is stored in the dtype that layers compute in, as embeddings and the head
/// beside weights of four bits.
struct Narrow<R> {
    both: Nest<R, Autocast>,
    dtype: DType,
    /// Tables of embeddings, among others.
    tables: BTreeSet<ParamId>,
}

impl<R: Reparameterizer> Reparameterizer for Narrow<R> {
    type Reparam = Nested<R::Reparam, CastTo>;

    fn reparameterize<const D: usize>(
        &mut self,
        path: &str,
        param: Param<Tensor<D>>,
    ) -> (Param<Tensor<D>>, Option<Self::Reparam>) {
        let (param, attached) = self.both.reparameterize(path, param);
        let is_plain = attached.as_ref().is_none_or(|attached| attached.first.is_none());
        if D != 2 || !is_plain || self.dtype == DType::F32 || param.is_require_grad() {
            return (param, attached);
        }
        let is_cast = attached
            .as_ref()
            .and_then(|attached| attached.then.as_ref())
            .is_some_and(|cast| cast.dtype() == self.dtype);
        // A policy reads tables in f32. The rows of one in 16 bits are what layers then compute with.
        let is_table = self.tables.contains(&param.id);
        if !(is_cast || is_table) {
            return (param, attached);
        }
        let param = param.map(|value| value.cast(self.dtype).detach());
        (param, attached.filter(|_| !is_table))
    }
}

/// Why a run with the attachments `is` cannot continue one with `was`. `None` if they are equal.
pub(super) fn other_attachment(was: &str, is: &str) -> Option<String> {
    /// Characters of settings that a message shows.
    const SHOWN: usize = 120;
    if was == is {
        return None;
    }
    // Settings may name every parameter of a model. The message shows the difference and a little of the text before it.
    let same = was.chars().zip(is.chars()).take_while(|(was, is)| was == is).count();
    let from = same.saturating_sub(SHOWN / 3);
    let part = |text: &str| -> String {
        let shown: String = text.chars().skip(from).take(SHOWN).collect();
        let [before, after] = [from > 0, text.chars().count() > from + SHOWN].map(|more| if more { ".." } else { "" });
        format!("{before}{shown}{after}")
    };
    Some(format!(
        "it has {} attached to its parameters, and this run has {}: the settings have changed",
        part(was),
        part(is)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_shows_what_differs() {
        assert_eq!(other_attachment("Half", "Half"), None);
        assert_eq!(
            other_attachment("Half", NOTHING).unwrap(),
            "it has Half attached to its parameters, and this run has nothing: the settings have changed"
        );
        let long = |bits| format!("{} bits: {bits}, {}", "ä".repeat(300), "b".repeat(300));
        let text = other_attachment(&long(4), &long(8)).unwrap();
        assert!(text.contains("bits: 4") && text.contains("bits: 8") && text.len() < 500, "{text}");
    }
}
