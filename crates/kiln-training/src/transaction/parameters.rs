//! Iterates over the parameters of a model that an update works on.

use std::collections::BTreeSet;

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::tensor::Tensor;
use kiln_memory::UpdateChunks;

/// A function of parameters of any rank.
pub(super) trait EachParameter {
    /// Called once for each parameter, in the order of the fields.
    fn parameter<const D: usize>(&mut self, param: &Param<Tensor<D>>);
}

/// Calls `each` for the float parameters of `model`, or only for those in `only`. A parameter that two fields share is visited once.
pub(super) fn for_each(model: &impl Module, only: Option<&[ParamId]>, each: &mut impl EachParameter) {
    struct Walk<'a, E> {
        only: Option<&'a [ParamId]>,
        met: BTreeSet<ParamId>,
        each: &'a mut E,
    }
    impl<E: EachParameter> ModuleVisitor for Walk<'_, E> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if self.only.is_none_or(|only| only.contains(&param.id)) && self.met.insert(param.id) {
                self.each.parameter(param);
            }
        }
    }
    model.visit(&mut Walk { only, met: BTreeSet::new(), each });
}

/// Initialises the parameters that burn would initialise when they are first read.
pub(crate) fn initialize(model: &impl Module) {
    struct Read;
    impl EachParameter for Read {
        fn parameter<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let _ = param.val();
        }
    }
    for_each(model, None, &mut Read);
}

/// The most bytes of parameters that `chunks` updates together.
pub(crate) fn chunk_bytes(model: &impl Module, chunks: UpdateChunks) -> u64 {
    #[derive(Default)]
    struct Sizes(Vec<u64>);
    impl EachParameter for Sizes {
        fn parameter<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if param.is_require_grad() {
                self.0.push(bytes_of(param));
            }
        }
    }
    let mut sizes = Sizes::default();
    for_each(model, None, &mut sizes);
    chunks.bytes(&sizes.0)
}

/// Bytes of a parameter's value.
pub(super) fn bytes_of<const D: usize>(param: &Param<Tensor<D>>) -> u64 {
    let value = param.val();
    (value.shape().num_elements() * value.dtype().size()) as u64
}
