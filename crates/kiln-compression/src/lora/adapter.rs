//! An adapter of one weight, and its values.
// I inputs, O outputs, R rank

use std::collections::BTreeMap;

use burn::module::{Module, Param, Reparameterization};
use burn::tensor::{DType, Device, Tensor, TensorData};
use kiln_operations::LOW_RANK;

use crate::Error;
use crate::parameters::{dense, sites_by_path};

/// The values of one [`Adapter`], in f32 on the host.
#[derive(Clone, Debug, PartialEq)]
pub struct Factors {
    /// A, `[I, R]`.
    pub a: TensorData,
    /// B, `[R, O]`.
    pub b: TensorData,
    /// The magnitudes `[O]` of a DoRA.
    pub magnitude: Option<TensorData>,
    /// The factor of the product A B.
    pub scale: f32,
}

impl Factors {
    /// I, R and O.
    pub(super) fn sizes(&self) -> [usize; 3] {
        [self.a.shape()[0], self.a.shape()[1], self.b.shape()[1]]
    }

    pub(super) fn adapter(&self, device: &Device) -> Adapter {
        fn param<const D: usize>(data: TensorData, device: &Device) -> Param<Tensor<D>> {
            Param::from_tensor(Tensor::from_data(data, (device, DType::F32)))
        }
        Adapter {
            a: param(self.a.clone(), device),
            b: param(self.b.clone(), device),
            magnitude: self.magnitude.clone().map(|data| param(data, device)),
            scale: param(TensorData::from([self.scale]), device).set_require_grad(false),
        }
    }
}

/// A low-rank change of a frozen weight: `V + s A B` (LoRA, Hu et al. 2022, arXiv 2106.09685), and with a magnitude
/// `m (V + s A B) / ||V + s A B||` for each output (DoRA, Liu et al. 2024, arXiv 2402.09353). [`LowRank`](crate::LowRank) attaches it.
///
/// burn ships LoRA as `Lora`. This crate has its own because burn's has another initialisation of A than peft, no DoRA, and a scale that
/// visitors do not see, so that adapters could not be taken out of a model.
///
/// A base that is quantised is dequantised. The sum is computed in the dtype of the factors and returned in the dtype of the base, if
/// that is one of floating point.
#[derive(Module, Debug)]
pub struct Adapter {
    /// A, `[I, R]`.
    pub a: Param<Tensor<2>>,
    /// B, `[R, O]`.
    pub b: Param<Tensor<2>>,
    /// The norm of each output's weights, `[O]`; without it the adapter is a LoRA.
    pub magnitude: Option<Param<Tensor<1>>>,
    /// The factor s of the product, `[1]`. It is not trained. It is a parameter so that a record of the model contains it.
    pub scale: Param<Tensor<1>>,
}

impl Reparameterization for Adapter {
    const NAME: &'static str = LOW_RANK;

    fn apply<const D: usize>(&self, base: Tensor<D>) -> Tensor<D> {
        let (shape, dtype) = (base.shape(), base.dtype());
        let a_ir = self.a.val();
        let [inputs, outputs] = [a_ir.dims()[0], self.b.dims()[1]];
        let base_io = dense(base).cast(a_ir.dtype()).reshape([inputs, outputs]);
        let changed = base_io + a_ir.matmul(self.b.val()) * self.scale.val().unsqueeze();
        let changed = match &self.magnitude {
            // The norm is a constant of the backward pass: section 4.3 of the paper.
            Some(magnitude) => {
                let norm = norms(changed.clone().detach());
                changed * (magnitude.val() / norm).unsqueeze()
            }
            None => changed,
        };
        let changed = changed.reshape(shape);
        if dtype.is_float() { changed.cast(dtype) } else { changed }
    }
}

/// The norm of each output's weights: `[I, O]` to `[O]`. An output whose weights are all 0 has the least positive norm, so that a
/// division by it gives 0.
pub(super) fn norms(weight_io: Tensor<2>) -> Tensor<1> {
    let outputs = weight_io.dims()[1];
    weight_io.square().sum_dim(0).sqrt().reshape([outputs]).clamp_min(f32::MIN_POSITIVE)
}

/// Checks that `model` is plain, and has a weight for each of these values.
pub(super) fn check_bases<M: Module>(by_path: &BTreeMap<String, Factors>, model: &M) -> Result<(), Error> {
    let sites = sites_by_path(model);
    if let Some(site) = sites.values().find(|site| site.parts.iter().any(|part| part == Adapter::NAME)) {
        return Err(mismatch(&site.path, "the model has adapters attached, expected a plain model"));
    }
    for (path, factors) in by_path {
        let [inputs, _, outputs] = factors.sizes();
        let site = sites.get(path).ok_or_else(|| Error::unknown(path, sites.keys()))?;
        if site.shape != [inputs, outputs] {
            let reason = format!("made for [{inputs}, {outputs}], the weight is {:?}", site.shape);
            return Err(mismatch(path, reason));
        }
        site.expect_plain()?;
    }
    Ok(())
}

pub(super) fn mismatch(path: &str, reason: impl Into<String>) -> Error {
    Error::Adapter { path: path.to_owned(), reason: reason.into() }
}
