//! A model that counts its updates, and a task that scores each count as a table says.

use std::rc::Rc;

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor};
use kiln_training::{BestConfig, Intervals, Metric, Metrics, OptimizerConfig, Pass, Task, Trainer};

use crate::support::batch;

#[derive(Module, Debug)]
pub(crate) struct Count {
    pub(crate) updates: Param<Tensor<1>>,
}

impl Count {
    pub(crate) fn new(device: &Device) -> Self {
        Self { updates: Param::from_tensor(Tensor::zeros([1], device)) }
    }
}

/// Each update adds 1. The score after `n` evaluations is number `n` of the table.
pub(crate) struct Counting {
    scores: Rc<Vec<f64>>,
    /// Updates between two evaluations.
    each: usize,
}

impl Task for Counting {
    type Model = Count;
    type Batch = Vec<usize>;

    fn loss(&self, pass: &Pass<'_, Count>, _: &Vec<usize>) -> Tensor<1> {
        -pass.model().updates.val()
    }

    fn metrics(&self, pass: &Pass<'_, Count>, _: &Vec<usize>) -> Metrics {
        let updates: f32 = pass.model().updates.val().into_scalar();
        let score = self.scores[updates as usize / self.each] as f32;
        Metrics::new().with("score", Metric::mean(Tensor::from_floats([score], pass.device()), 1))
    }
}

/// A trainer of `steps` steps, evaluated after every `each` of them.
pub(crate) fn counting(
    scores: &[f64],
    each: u64,
    best: BestConfig,
    steps: u64,
    every: impl FnOnce(Intervals) -> Intervals,
) -> Trainer<Counting> {
    let sgd = OptimizerConfig::Sgd { momentum: 0.0, weight_decay: 0.0, nesterov: false };
    Trainer::builder(Counting { scores: Rc::new(scores.to_vec()), each: each as usize }, Count::new)
        .with_optimizer(move |model: &Count| sgd.groups(model))
        .with_schedule(1.0)
        .with_steps(steps)
        .with(|settings| settings.checkpoints.intervals = every(Intervals::default().with_evaluation(each)))
        .with(|settings| settings.checkpoints.best = Some(best))
        .with(|settings| settings.checkpoints.other_length = true)
        .with_prediction(false)
        .with_recovery(false)
        .build(&Device::flex(), &batch(0, 4))
        .unwrap()
}
