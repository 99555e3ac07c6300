//! Batch norms folded into the convolutions before them.

use std::collections::{BTreeMap, BTreeSet};

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{DType, FloatDType, Tensor, TensorData};

use crate::Error;
use crate::place::Place;

/// One batch norm as a factor and a summand of each channel.
#[derive(Default)]
struct Norm {
    gamma: Vec<f32>,
    beta: Vec<f32>,
    mean: Vec<f32>,
    variance: Vec<f32>,
}

impl Norm {
    fn part(&mut self, field: &str) -> Option<&mut Vec<f32>> {
        match field {
            "gamma" => Some(&mut self.gamma),
            "beta" => Some(&mut self.beta),
            "running_mean" => Some(&mut self.mean),
            "running_var" => Some(&mut self.variance),
            _ => None,
        }
    }

    fn factors(&self, epsilon: f64) -> Vec<f32> {
        let deviation = |variance: f32| (f64::from(variance) + epsilon).sqrt();
        self.gamma.iter().zip(&self.variance).map(|(gamma, var)| (f64::from(*gamma) / deviation(*var)) as f32).collect()
    }
}

/// `model`, for inference, with batch norms folded into the convolutions before them. `pairs` are paths: of the convolution, and of the
/// norm that reads its output and nothing else does. `epsilon` is that of the norms, 1e-5 unless a model sets another. The weight of each
/// output channel, and its bias, is multiplied by `gamma / √(variance + epsilon)`; the norm keeps the summand that is left and changes
/// nothing else, so that records still fit the model.
///
/// Outputs change by rounding only. Weights that are quantised by channel or block keep their codes, up to the sign of a channel's factor:
/// the factor goes into the scales. A quotient that lies between two codes may be rounded to the other one.
///
/// # Errors
/// [`Error::UnknownParameter`] for a path without a convolution (transposed ones do not count) or a batch norm,
/// [`Error::InvalidSetting`] for a convolution or a norm that is in two pairs and for a convolution whose output channels are not those of
/// its norm, [`Error::Reparameterized`] for one whose layer does not read the stored weight.
pub fn fold_batch_norm<M: Module, P: AsRef<str>>(model: M, pairs: &[(P, P)], epsilon: f64) -> Result<M, Error> {
    // The statistics are shared by clones of a module; `valid` makes new ones.
    let model = model.valid();
    let mut layers = Layers::default();
    model.visit(&mut layers);
    let unknown = |path: &str, known: String| Err(Error::UnknownParameter { path: path.to_owned(), known });
    let invalid = |what, value: String, expected| Err(Error::InvalidSetting { what, value, expected });
    let mut write = Write { place: Place::default(), factors: BTreeMap::new(), norms: BTreeMap::new(), epsilon };
    for (convolution, path) in pairs {
        let (convolution, path) = (convolution.as_ref(), path.as_ref());
        let Some(norm) = layers.norms.get(path) else {
            return unknown(path, layers.norms.into_keys().collect::<Vec<_>>().join(", "));
        };
        let Some(outputs) = layers.convolutions.get(convolution) else {
            return unknown(convolution, layers.convolutions.into_keys().collect::<Vec<_>>().join(", "));
        };
        let factors = norm.factors(epsilon);
        if *outputs != factors.len() {
            return invalid("the number of output channels", outputs.to_string(), "as many as the norm has");
        }
        for parameter in ["weight", "bias"].map(|field| format!("{convolution}.{field}")) {
            if layers.changed.contains(&parameter) {
                return Err(Error::Reparameterized { path: parameter });
            }
            write.factors.insert(parameter, factors.clone());
        }
        write.norms.insert(path.to_owned(), (norm, factors));
    }
    if write.norms.len() != pairs.len() || write.factors.len() != 2 * pairs.len() {
        return invalid("the pairs", format!("{} with a layer that is in two", pairs.len()), "each layer in one");
    }
    Ok(model.map(&mut write))
}

/// The layers of a model by path.
#[derive(Default)]
struct Layers {
    place: Place,
    norms: BTreeMap<String, Norm>,
    /// The output channels of each convolution.
    convolutions: BTreeMap<String, usize>,
    /// Parameters that have a reparameterization.
    changed: BTreeSet<String>,
}

impl ModuleVisitor for Layers {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.place.enter(name, container);
        if self.place.is_inner() {
            self.changed.insert(self.place.parameter());
        }
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.place.leave();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let path = self.place.parameter();
        let Some((layer, field)) = path.rsplit_once('.').filter(|_| !self.place.is_inner()) else { return };
        match self.place.kind() {
            "BatchNorm" => {
                if let Some(part) = self.norms.entry(layer.to_owned()).or_default().part(field) {
                    *part = param.val().into_data().iter::<f32>().collect();
                }
            }
            // Their weights begin with the output channel.
            "Conv1d" | "Conv2d" | "Conv3d" | "DeformConv2d" if field == "weight" => {
                self.convolutions.insert(layer.to_owned(), param.lazy_shape()[0]);
            }
            _ => {}
        }
    }
}

struct Write<'a> {
    place: Place,
    /// By the path of a convolution's weight or bias.
    factors: BTreeMap<String, Vec<f32>>,
    /// By the path of a norm.
    norms: BTreeMap<String, (&'a Norm, Vec<f32>)>,
    epsilon: f64,
}

impl ModuleMapper for Write<'_> {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.place.enter(name, container);
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.place.leave();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let path = self.place.parameter();
        if let Some(factors) = self.factors.get(&path) {
            return param.map(|values| {
                let mut shape = [1; D];
                shape[0] = factors.len();
                let factors = vector(factors.clone(), &values).reshape(shape);
                let dtype = FloatDType::from(values.dtype());
                (values.cast(DType::F32) * factors).cast(dtype)
            });
        }
        let Some((norm, field)) = path.rsplit_once('.') else { return param };
        let Some((norm, factors)) = self.norms.get(norm) else { return param };
        let channels = factors.len();
        let values: Vec<f32> = match field {
            "gamma" => vec![1.0; channels],
            "running_mean" => vec![0.0; channels],
            "running_var" => vec![(1.0 - self.epsilon) as f32; channels],
            "beta" => norm
                .beta
                .iter()
                .zip(&norm.mean)
                .zip(factors)
                .map(|((beta, mean), factor)| beta - mean * factor)
                .collect(),
            _ => return param,
        };
        param.map(|old| vector(values, &old).reshape(old.shape()).cast(FloatDType::from(old.dtype())))
    }
}

/// A vector in f32 on the device of `like`.
fn vector<const D: usize>(values: Vec<f32>, like: &Tensor<D>) -> Tensor<1> {
    let count = values.len();
    Tensor::from_data(TensorData::new(values, [count]), (&like.device(), DType::F32))
}
