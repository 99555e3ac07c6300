//! Losses and gradients that carry a scale, from the backward pass to the update.

use burn::module::{Module, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{DType, Tensor, TensorData, Transaction};

use super::gradients::Survey;
use super::rules::Scaling;
use crate::Error;

/// A loss that carries a scale.
#[derive(Debug)]
#[must_use]
pub struct ScaledLoss {
    pub(super) loss: Tensor<1>,
    pub(super) scale: f64,
}

/// Gradients that carry a loss scale.
#[derive(Debug)]
#[must_use]
pub struct ScaledGradients {
    pub(super) gradients: GradientsParams,
    pub(super) scale: f64,
}

/// Scaled gradients and their norm, which has been read back.
#[derive(Debug)]
#[must_use]
pub struct Probed {
    pub(super) gradients: GradientsParams,
    pub(super) scale: f64,
    pub(super) sum_of_squares: f64,
}

/// Finite gradients, and the factor that unscales and clips them.
#[derive(Debug)]
#[must_use]
pub struct Prepared {
    pub(super) gradients: GradientsParams,
    pub(super) factor: f64,
    pub(super) norm: f64,
}

impl Probed {
    /// Gradients that carry `scale` and are kept elsewhere: only their norm is known, as the sum of their squares.
    pub fn elsewhere(sum_of_squares: f64, scale: f64) -> Self {
        Self { gradients: GradientsParams::new(), scale, sum_of_squares }
    }
}

impl Prepared {
    /// The global norm before clipping, without the scale.
    pub fn norm(&self) -> f64 {
        self.norm
    }

    /// The gradient of a parameter, unscaled and clipped, in f32. The scaled gradient is kept until [`remove`](Self::remove).
    pub fn get<const D: usize>(&self, id: ParamId) -> Option<Tensor<D>> {
        let gradient = self.scaled(id)?;
        Some(if self.factor == 1.0 { gradient } else { gradient.cast(DType::F32) * self.factor })
    }

    /// The gradient of a parameter as it is: [`factor`](Self::factor) times it is what [`get`](Self::get) returns.
    pub fn scaled<const D: usize>(&self, id: ParamId) -> Option<Tensor<D>> {
        self.gradients.get::<D>(id)
    }

    /// The factor that unscales and clips the gradients.
    pub fn factor(&self) -> f64 {
        self.factor
    }

    /// Whether a parameter has a gradient.
    pub fn has<const D: usize>(&self, id: ParamId) -> bool {
        self.gradients.get::<D>(id).is_some()
    }

    /// Drops the gradient of a parameter.
    pub fn remove<const D: usize>(&mut self, id: ParamId) {
        drop(self.gradients.remove::<D>(id));
    }
}

impl ScaledLoss {
    /// Runs the backward pass.
    pub fn backward(self, model: &impl Module) -> ScaledGradients {
        let gradients = GradientsParams::from_grads(self.loss.backward(), model);
        ScaledGradients { gradients, scale: self.scale }
    }
}

impl ScaledGradients {
    /// Gradients of a loss that was multiplied by `scale` elsewhere, for example by an accumulation window.
    ///
    /// # Errors
    /// [`Error::InvalidScaler`] for a scale that is not a finite number above 0.
    pub fn new(gradients: GradientsParams, scale: f64) -> Result<Self, Error> {
        Scaling::Static(scale).check()?;
        Ok(Self { gradients, scale })
    }

    /// Reads back the sum of squares of all gradients of `model`. This number is their squared norm, and it is finite only if all
    /// gradients are finite.
    ///
    /// # Errors
    /// [`Error::NoGradients`], [`Error::OtherModel`], [`Error::F16Gradients`] for scaled gradients of parameters that are f16
    /// themselves, and [`Error::Device`].
    pub fn probe(self, model: &impl Module) -> Result<Probed, Error> {
        self.probe_with(model, vec![]).map(|(probed, _)| probed)
    }

    /// Does the work of [`probe`](Self::probe), and reads the tensors in `extra_scalars` as well, in their order. Reading them costs
    /// little, since the device's queue is empty at this point. Returns all their elements.
    ///
    /// # Errors
    /// Those of [`probe`](Self::probe).
    pub fn probe_with(self, model: &impl Module, extra_scalars: Vec<Tensor<1>>) -> Result<(Probed, Vec<f64>), Error> {
        let Self { gradients, scale } = self;
        let survey = Survey::of(model, &gradients);
        if scale != 1.0
            && let Some(path) = survey.f16.clone()
        {
            return Err(Error::F16Gradients { path });
        }
        let foreign = survey.foreign();
        let squares = survey.sum_of_squares().ok_or(Error::NoGradients)?;
        if foreign > 0 {
            return Err(Error::OtherModel { foreign });
        }
        // All tensors are read at once, so that the program waits for the device only once. They are not concatenated: a concatenation
        // could hide that one of them was never written.
        let device = squares.device();
        let extra_scalars = extra_scalars.into_iter().map(|extra| extra.to_device(&device));
        let all = std::iter::once(squares).chain(extra_scalars);
        let read = all.fold(Transaction::default(), |read, tensor| read.register(tensor.cast(DType::F32)));
        let data = read.try_execute().map_err(|e| Error::Device(e.to_string()))?;
        let mut data = data.into_iter().map(values).collect::<Result<Vec<_>, _>>()?.into_iter();
        let sum_of_squares = data.next().and_then(|sum| sum.first().copied()).ok_or(Error::NoGradients)?;
        let probed = Probed { gradients, scale, sum_of_squares };
        Ok((probed, data.flatten().collect()))
    }
}

/// The f32 values of `data`. CubeCL copies them from the device at this moment, which may fail.
fn values(data: TensorData) -> Result<Vec<f64>, Error> {
    data.bytes().read(Default::default()).map_err(|e| Error::Device(e.to_string()))?;
    Ok(data.iter::<f32>().map(f64::from).collect())
}

impl Probed {
    /// The scaled gradients.
    pub fn gradients(&self) -> &GradientsParams {
        &self.gradients
    }

    /// Whether every gradient is finite.
    pub fn is_finite(&self) -> bool {
        self.sum_of_squares.is_finite()
    }

    /// The global norm without the scale.
    pub fn norm(&self) -> f64 {
        self.sum_of_squares.sqrt() / self.scale
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::Bytes;

    use super::*;

    #[test]
    fn values_that_cannot_be_copied_from_where_they_are_give_an_error() {
        let elsewhere = Bytes::from_file("no such file", 4, 0);
        let data = TensorData::from_bytes(elsewhere, [1], DType::F32);
        assert!(matches!(values(data), Err(Error::Device(_))));
        assert_eq!(values(TensorData::new(vec![2.0f32], [1])).unwrap(), [2.0]);
    }
}
