//! A sum of gradients in f32.

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::{DType, Tensor};

use crate::error::Error;

/// A sum of gradients in f32, for gradients of any dtype: bf16 has 8 bits of precision, and a sum of many small gradients in it
/// would stop growing.
#[derive(Debug, Default)]
pub struct Accumulator {
    sum: GradientsParams,
}

impl Accumulator {
    /// An empty sum.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the gradients of `model`'s parameters, cast to f32.
    ///
    /// # Errors
    /// [`Error::NoGradients`] when no parameter of `model` has a gradient.
    pub fn add(&mut self, model: &impl Module, gradients: GradientsParams) -> Result<(), Error> {
        struct Add<'a> {
            sum: &'a mut GradientsParams,
            gradients: GradientsParams,
            added: usize,
        }
        impl ModuleVisitor for Add<'_> {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                if let Some(gradient) = self.gradients.remove::<D>(param.id) {
                    let gradient = gradient.cast(DType::F32);
                    let sum = match self.sum.remove::<D>(param.id) {
                        Some(sum) => sum + gradient,
                        None => gradient,
                    };
                    self.sum.register(param.id, sum);
                    self.added += 1;
                }
            }
        }
        let mut add = Add { sum: &mut self.sum, gradients, added: 0 };
        model.visit(&mut add);
        if add.added == 0 { Err(Error::NoGradients) } else { Ok(()) }
    }

    /// The sum, for the parameters that received a gradient at least once.
    pub fn finish(self) -> GradientsParams {
        self.sum
    }
}
