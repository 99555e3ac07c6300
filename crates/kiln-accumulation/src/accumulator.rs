use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::{DType, Tensor};

use crate::Error;

/// A sum of gradients in f32, whatever their own dtype: bf16 has 8 bits of precision, so that a sum of many small
/// gradients would stop growing.
#[derive(Debug, Default)]
pub struct Accumulator {
    sum: GradientsParams,
}

impl Accumulator {
    /// A sum of nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the gradients of `model`'s parameters; shapes stay as they are, the dtype becomes f32.
    ///
    /// # Errors
    /// [`Error::NoGradients`] when no parameter of `model` has one.
    pub fn add(&mut self, model: &impl Module, gradients: GradientsParams) -> Result<(), Error> {
        struct Add<'a>(&'a mut GradientsParams, GradientsParams, usize);
        impl ModuleVisitor for Add<'_> {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                if let Some(gradient) = self.1.remove::<D>(param.id) {
                    let gradient = gradient.cast(DType::F32);
                    let sum = match self.0.remove::<D>(param.id) {
                        Some(sum) => sum + gradient,
                        None => gradient,
                    };
                    self.0.register(param.id, sum);
                    self.2 += 1;
                }
            }
        }
        let mut add = Add(&mut self.sum, gradients, 0);
        model.visit(&mut add);
        if add.2 == 0 { Err(Error::NoGradients) } else { Ok(()) }
    }

    /// The sum, for the parameters that received a gradient at least once.
    pub fn finish(self) -> GradientsParams {
        self.sum
    }
}
