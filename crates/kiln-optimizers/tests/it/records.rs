//! Records of optimizers: they resume, are recognised, and become those of other formats.

use burn::module::Param;
use burn::nn::Linear;
use burn::optim::momentum::MomentumConfig;
use burn::optim::{AdamWConfig, GradientsParams, LionConfig, ModuleOptimizer, OptimizerRecord, SgdConfig};
use burn::tensor::{DType, Device};
use kiln_optimizers::{
    AdamW4bit, AdamW8bit, Error, FusedAdamW, SecondMoment, Sgd8bit, check_record, to_f32, to_quantized,
};

use crate::compare::{bits, tensor};

const RATE: f64 = 1e-2;

fn model() -> Linear {
    let device = Device::flex().autodiff();
    Linear {
        weight: Param::from_tensor(tensor([80, 70], 1, 0.3, DType::F32, &device)),
        bias: Some(Param::from_tensor(tensor([70], 2, 0.3, DType::F32, &device))),
    }
}

fn gradients(model: &Linear, seed: u64) -> GradientsParams {
    let x = tensor([5, 80], seed, 1.0, DType::F32, &Device::flex().autodiff());
    GradientsParams::from_grads(model.forward(x).square().mean().backward(), model)
}

fn steps(optimizer: &mut ModuleOptimizer, model: Linear, seeds: std::ops::Range<u64>) -> Linear {
    seeds.fold(model, |model, seed| {
        let gradients = gradients(&model, seed);
        optimizer.step(RATE, model, gradients)
    })
}

fn weights(model: &Linear) -> [Vec<u8>; 2] {
    [bits(&model.weight.val()), bits(&model.bias.as_ref().unwrap().val())]
}

fn copy(record: OptimizerRecord) -> [OptimizerRecord; 2] {
    let bytes = record.into_bytes().unwrap();
    [bytes.clone(), bytes].map(|bytes| OptimizerRecord::from_bytes(bytes).unwrap())
}

fn config() -> AdamWConfig {
    AdamWConfig::new().with_weight_decay(0.01)
}

fn eight() -> AdamW8bit {
    AdamW8bit::new(&config()).unwrap()
}

fn sgd() -> SgdConfig {
    SgdConfig::new().with_momentum(Some(MomentumConfig::new()))
}

#[test]
fn a_run_that_is_interrupted_after_any_step_has_the_same_bits() {
    let optimizers: [ModuleOptimizer; 5] = [
        eight().into(),
        eight().with_second_moment(SecondMoment::Dynamic).into(),
        eight().with_stochastic_rounding(5).into(),
        AdamW4bit::new(&config()).unwrap().into(),
        Sgd8bit::new(&sgd()).unwrap().with_stochastic_rounding(5).into(),
    ];
    for fresh in optimizers {
        let expected = weights(&steps(&mut fresh.clone(), model(), 0..6));
        for interrupted in 0..=6 {
            let mut first = fresh.clone();
            let half = steps(&mut first, model(), 0..interrupted);
            let mut second = fresh.clone().from_bytes(first.into_bytes().unwrap()).unwrap();
            assert!(weights(&steps(&mut second, half, interrupted..6)) == expected, "after {interrupted} steps");
        }
    }
}

/// Of a run with an optimizer: the record, and the model.
fn record_of(optimizer: impl Into<ModuleOptimizer>) -> (OptimizerRecord, Linear) {
    let mut optimizer = optimizer.into();
    let model = steps(&mut optimizer, model(), 0..3);
    (optimizer.to_record(), model)
}

fn refused(result: Result<OptimizerRecord, Error>) -> (String, String) {
    match result.unwrap_err() {
        Error::StateFormat { found, advice, .. } => (found, advice.to_owned()),
        error => panic!("{error}"),
    }
}

#[test]
fn records_of_other_formats_are_recognised() {
    let (own, other) = (eight().format(), eight().with_second_moment(SecondMoment::Dynamic));
    assert!(check_record(record_of(eight()).0, &own).is_ok());
    assert!(check_record(record_of(eight().with_min_elements(1 << 20)).0, &own).is_err());
    let translates = "`to_quantized` translates the record".to_owned();
    let found = refused(check_record(record_of(FusedAdamW::from(config())).0, &own));
    assert_eq!(found, ("moment_1 in f32".into(), translates.clone()));
    let found = refused(check_record(record_of(other).0, &own));
    assert_eq!(found, ("moment_2 as 8 bits in blocks of 256 (DynamicUnsigned)".into(), translates.clone()));
    let found = refused(check_record(record_of(AdamW4bit::new(&config()).unwrap()).0, &own));
    assert_eq!(found, ("moment_1 as 4 bits in blocks of 128 (Dynamic4)".into(), translates));
    let others = || [record_of(Sgd8bit::new(&sgd()).unwrap()).0, record_of(LionConfig::new().build()).0];
    for read in [check_record, to_quantized, to_f32] {
        for record in others() {
            assert_eq!(refused(read(record, &own)).0, "other or incomplete state");
        }
    }
    let plain = || Sgd8bit::new(&SgdConfig::new()).unwrap();
    assert!(check_record(record_of(plain()).0, &plain().format()).is_ok());
    let found = refused(check_record(record_of(eight()).0, &plain().format()));
    assert_eq!(found.0, "other or incomplete state");
    let text = own.to_string();
    assert_eq!(text, "moment_1 as 8 bits in blocks of 256 (Dynamic), moment_2 as 8 bits in blocks of 256 (Root)");
}

/// burn's AdamW resumes from the translated record with exactly the moments that the codes stand for: the translated record, quantised
/// again, has the same codes.
#[test]
fn records_become_those_of_full_moments_and_back() {
    for optimizer in [eight(), eight().with_second_moment(SecondMoment::Dynamic)] {
        let format = optimizer.format();
        let (record, model) = record_of(optimizer.clone());
        let [record, original] = copy(record);
        let [full, again] = copy(to_f32(record, &format).unwrap());
        assert!(check_record(to_quantized(again, &format).unwrap(), &format).is_ok());

        // One more step with each: the moments of both are the same, up to what 8 bits leave of them afterwards.
        let mut burns = config().init().load_record(full);
        let mut ours = ModuleOptimizer::from(optimizer).load_record(original);
        let (left, right) = (steps(&mut burns, model.clone(), 3..4), steps(&mut ours, model, 3..4));
        let (left, right) = (left.weight.val().into_data(), right.weight.val().into_data());
        for (left, right) in left.iter::<f64>().zip(right.iter::<f64>()) {
            assert!((left - right).abs() < 1e-7, "{left} {right}");
        }
    }
}

#[test]
fn a_run_of_burns_adamw_goes_on_with_8_bits() {
    let (record, model) = record_of(FusedAdamW::from(config()));
    let [record, untranslated] = copy(record);
    let format = eight().format();
    let mut full = config().init();
    let expected = {
        let model = steps(&mut full, self::model(), 0..3);
        steps(&mut full, model, 3..4).weight.val().into_data()
    };
    let translated = to_quantized(record, &format).unwrap();
    let runs = [translated, untranslated].map(|record| {
        let mut optimizer = ModuleOptimizer::from(eight()).load_record(record);
        let model = steps(&mut optimizer, model.clone(), 3..4);
        assert!(check_record(optimizer.to_record(), &format).is_ok());
        model
    });
    // A record that was not translated is translated by the first step.
    assert!(weights(&runs[0]) == weights(&runs[1]));
    // The update is at most about the rate; the error of the moments is a few parts in a hundred of it.
    for (got, expected) in runs[0].weight.val().into_data().iter::<f64>().zip(expected.iter::<f64>()) {
        assert!((got - expected).abs() < 0.1 * RATE, "{got} {expected}");
    }
}

#[test]
fn records_of_sgd_become_those_of_burns_and_back() {
    let optimizer = Sgd8bit::new(&sgd()).unwrap();
    let format = optimizer.format();
    let (record, model) = record_of(optimizer.clone());
    let [record, original] = copy(record);
    let [full, again] = copy(to_f32(record, &format).unwrap());
    let mut burns = sgd().init().load_record(full);
    let mut ours = ModuleOptimizer::from(optimizer.clone()).load_record(original);
    let mut translated = ModuleOptimizer::from(optimizer).load_record(to_quantized(again, &format).unwrap());
    let [left, right, again] =
        [&mut burns, &mut ours, &mut translated].map(|optimizer| steps(optimizer, model.clone(), 3..4));
    assert!(weights(&right) == weights(&again));
    let (left, right) = (left.weight.val().into_data(), right.weight.val().into_data());
    for (left, right) in left.iter::<f64>().zip(right.iter::<f64>()) {
        assert!((left - right).abs() < 1e-7, "{left} {right}");
    }
}
