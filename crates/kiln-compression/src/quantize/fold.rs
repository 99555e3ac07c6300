//! Batch norms folded into the convolutions before them.

use std::collections::BTreeMap;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{Tensor, TensorData};

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
/// norm that reads its output and nothing else does. The weight of each output channel is multiplied by `gamma / √(variance + epsilon)`;
/// the norm keeps the summand that is left and changes nothing else, so that records still fit the model.
///
/// Outputs change by rounding only. Weights that are quantised by channel or block keep their codes, up to the sign of a channel's factor:
/// the factor goes into the scales.
///
/// # Errors
/// [`Error::UnknownParameter`] for a path without a convolution's weight or a batch norm, [`Error::InvalidSetting`] for a convolution whose
/// output channels are not those of its norm.
pub fn fold_batch_norm<M: Module, P: AsRef<str>>(model: M, pairs: &[(P, P)], epsilon: f64) -> Result<M, Error> {
    let norms = read(&model);
    let mut folds = BTreeMap::new();
    for (convolution, norm) in pairs {
        let Some(found) = norms.get(norm.as_ref()) else {
            let known = norms.keys().cloned().collect::<Vec<_>>().join(", ");
            return Err(Error::UnknownParameter { path: norm.as_ref().to_owned(), known });
        };
        folds.insert(format!("{}.weight", convolution.as_ref()), (norm.as_ref().to_owned(), found.factors(epsilon)));
    }
    let folded = folds.values().map(|(norm, factors)| (norm.clone(), (&norms[norm], factors.clone()))).collect();
    let mut write = Write { place: Place::default(), folds: &folds, folded, epsilon, found: vec![], refused: None };
    // The statistics are shared by clones of a module; `valid` makes new ones.
    let model = model.valid().map(&mut write);
    if let Some(error) = write.refused {
        return Err(error);
    }
    match folds.keys().find(|path| !write.found.contains(*path)) {
        Some(path) => Err(Error::UnknownParameter { path: path.clone(), known: "the weights of convolutions".into() }),
        None => Ok(model),
    }
}

fn read(model: &impl Module) -> BTreeMap<String, Norm> {
    #[derive(Default)]
    struct Read {
        place: Place,
        norms: BTreeMap<String, Norm>,
    }
    impl ModuleVisitor for Read {
        fn enter_module(&mut self, name: &str, container: &str) {
            self.place.enter(name, container);
        }
        fn exit_module(&mut self, _: &str, _: &str) {
            self.place.leave();
        }
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if self.place.kind() != "BatchNorm" {
                return;
            }
            let path = self.place.parameter();
            let Some((norm, field)) = path.rsplit_once('.') else { return };
            if let Some(part) = self.norms.entry(norm.to_owned()).or_default().part(field) {
                *part = param.val().into_data().iter::<f32>().collect();
            }
        }
    }
    let mut read = Read::default();
    model.valid().visit(&mut read);
    read.norms
}

struct Write<'a> {
    place: Place,
    /// By the path of a convolution's weight.
    folds: &'a BTreeMap<String, (String, Vec<f32>)>,
    /// By the path of a norm.
    folded: BTreeMap<String, (&'a Norm, Vec<f32>)>,
    epsilon: f64,
    found: Vec<String>,
    refused: Option<Error>,
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
        if let Some((_, factors)) = self.folds.get(&path) {
            let outputs = param.lazy_shape().first().copied().unwrap_or_default();
            if outputs != factors.len() || D == 0 {
                self.refused.get_or_insert(Error::InvalidSetting {
                    what: "the number of output channels",
                    value: outputs.to_string(),
                    expected: "as many as the norm has",
                });
                return param;
            }
            self.found.push(path);
            return param.map(|weight| {
                let mut shape = [1; D];
                shape[0] = outputs;
                let factors = TensorData::new(factors.clone(), [outputs]);
                weight.clone() * Tensor::<1>::from_data(factors, &weight.device()).reshape(shape)
            });
        }
        let Some((norm, field)) = path.rsplit_once('.') else { return param };
        let Some((norm, factors)) = self.folded.get(norm) else { return param };
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
        param.map(|tensor| {
            let shape = tensor.shape();
            Tensor::<1>::from_data(TensorData::new(values, [channels]), &tensor.device()).reshape(shape)
        })
    }
}
