//! One optimizer step against the formulas of torch, parameter group by parameter group.

use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig};
use burn::tensor::{Device, Tensor};
use kiln_training::{LossFn, OptimizerConfig, Pass};

use crate::support::{Settings, Watched, beside, builder, settings};

const RATE: f64 = 0.1;

/// Weight and bias after `steps` steps on the loss `weight + 2 * bias`, whose gradients are 1 and 2.
fn train(optimizer: OptimizerConfig, max_norm: Option<f64>, steps: u64) -> (f64, f64) {
    let init = |device: &Device| {
        let mut model = LinearConfig::new(1, 1).init(device);
        model.weight = model.weight.map(|t| (t.zeros_like() + 3.0).detach().require_grad());
        model.bias = model.bias.map(|bias| bias.map(|t| (t.zeros_like() + 5.0).detach().require_grad()));
        model
    };
    let value = |bias: &Option<burn::module::Param<Tensor<1>>>| bias.as_ref().unwrap().val();
    let task = LossFn::new(move |pass: &Pass<'_, Linear>, _: &Vec<usize>| {
        let model = pass.model();
        model.weight.val().reshape([1]) + value(&model.bias) * 2.0
    });
    let settings = Settings { max_norm, steps, schedule: RATE.into(), ..settings(optimizer) };
    let sample = vec![0, 1];
    let mut trainer = Watched::build(builder(task, init, &settings), &sample);
    for _ in 0..steps {
        let _ = trainer.step(&sample).unwrap();
    }
    let model = trainer.model();
    (model.weight.val().into_scalar::<f32>().into(), value(&model.bias).into_scalar::<f32>().into())
}

#[track_caller]
fn assert_near((weight, bias): (f64, f64), expected: (f64, f64)) {
    let near = |a: f64, b: f64| (a - b).abs() < 1e-5;
    assert!(near(weight, expected.0) && near(bias, expected.1), "({weight}, {bias}), expected {expected:?}");
}

#[test]
fn sgd_decays_weights_and_not_biases() {
    let _turn = beside();
    let sgd = OptimizerConfig::Sgd { momentum: 0.0, weight_decay: 0.5, nesterov: false };
    assert_near(train(sgd, None, 1), (3.0 - RATE * (1.0 + 0.5 * 3.0), 5.0 - RATE * 2.0));
}

#[test]
fn momentum_follows_torch_without_dampening() {
    let _turn = beside();
    // v1 = g, v2 = 0.9 g + g; Nesterov steps along g + 0.9 v.
    let sgd = |nesterov| OptimizerConfig::Sgd { momentum: 0.9, weight_decay: 0.0, nesterov };
    assert_near(train(sgd(false), None, 2), (3.0 - RATE * (1.0 + 1.9), 5.0 - RATE * 2.0 * (1.0 + 1.9)));
    let nesterov = 1.9 + (1.0 + 0.9 * 1.9);
    assert_near(train(sgd(true), None, 2), (3.0 - RATE * nesterov, 5.0 - RATE * 2.0 * nesterov));
}

#[test]
fn adamw_steps_by_the_rate_and_decays_weights_apart_from_the_gradient() {
    let _turn = beside();
    let adamw = OptimizerConfig::AdamW { beta1: 0.9, beta2: 0.95, epsilon: 1e-8, weight_decay: 0.5 };
    assert_near(train(adamw, None, 1), (3.0 * (1.0 - RATE * 0.5) - RATE, 5.0 - RATE));
}

#[test]
fn the_weight_decay_of_muon_is_that_of_embeddings_too() {
    let _turn = beside();
    let moved = |weight_decay| {
        let init = |device: &Device| EmbeddingConfig::new(4, 1).init(device);
        let task = LossFn::new(|pass: &Pass<'_, Embedding>, _: &Vec<usize>| pass.model().weight.val().sum() * 0.0);
        let optimizer = OptimizerConfig::Muon { momentum: 0.9, weight_decay };
        let settings = Settings { max_norm: None, schedule: RATE.into(), ..settings(optimizer) };
        let sample = vec![0, 1];
        let mut trainer = Watched::build(builder(task, init, &settings), &sample);
        let weights = |trainer: &Watched<_>| -> Vec<f64> {
            let model: &Embedding = trainer.model();
            model.weight.val().into_data().iter::<f64>().collect()
        };
        let before = weights(&trainer);
        let _ = trainer.step(&sample).unwrap();
        let factors = weights(&trainer).into_iter().zip(before).map(|(now, before)| now / before);
        factors.fold(0.0, |sum, factor| sum + factor / 4.0)
    };
    for decay in [0.0, 0.5] {
        let factor = moved(decay);
        assert!((factor - (1.0 - RATE * decay)).abs() < 1e-6, "{decay}: {factor}");
    }
}

#[test]
fn clipping_goes_by_the_norm_of_all_gradients_together() {
    let _turn = beside();
    let sgd = OptimizerConfig::Sgd { momentum: 0.0, weight_decay: 0.0, nesterov: false };
    let norm = 5f64.sqrt(); // of (1, 2)
    assert_near(train(sgd, Some(1.0), 1), (3.0 - RATE / norm, 5.0 - RATE * 2.0 / norm));
    assert_near(train(sgd, Some(3.0), 1), (3.0 - RATE, 5.0 - RATE * 2.0));
}
