//! Walks over the parameters of a model.

use std::collections::BTreeSet;

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::tensor::Tensor;

/// A function of parameters of any rank.
pub(super) trait EachParameter {
    /// Called for each float parameter once, in the order of the fields. `index` counts them.
    fn parameter<const D: usize>(&mut self, index: usize, param: &Param<Tensor<D>>);
}

/// Calls `each` for the float parameters of `model`. A parameter that two fields share is met once. Of a reparameterized parameter, `each`
/// meets the stored value, then the parameters of the reparameterization.
pub(super) fn for_each(model: &impl Module, each: &mut impl EachParameter) {
    struct Walk<'a, E> {
        met: BTreeSet<ParamId>,
        each: &'a mut E,
    }
    impl<E: EachParameter> ModuleVisitor for Walk<'_, E> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if self.met.insert(param.id) {
                self.each.parameter(self.met.len() - 1, param);
            }
        }
    }
    model.visit(&mut Walk { met: BTreeSet::new(), each });
}

/// The number of elements of a parameter's stored value.
pub(super) fn elements<const D: usize>(param: &Param<Tensor<D>>) -> usize {
    param.base().shape().num_elements()
}
