//! Records of optimizers: they resume, are recognised, and are converted to other formats.

use burn::module::Param;
use burn::nn::Linear;
use burn::optim::momentum::MomentumConfig;
use burn::optim::{AdamWConfig, GradientsParams, LionConfig, ModuleOptimizer, OptimizerRecord, SgdConfig};
use burn::tensor::{DType, Device, Tensor, TensorData};
use burn_pack::{Reader, Scalar, Writer};
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

/// The record and the model after a run with an optimizer.
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

        // One more step with each optimizer: the moments of both are the same, up to the rounding to 8 bits afterwards.
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

/// Replaces the numbers of the record by `change`, which gets the name without the parameter's id.
fn changed(record: OptimizerRecord, change: impl Fn(&str, Scalar) -> Scalar) -> OptimizerRecord {
    let reader = Reader::from_bytes(record.into_bytes().unwrap()).unwrap();
    let (scalars, paths) = (reader.scalars().clone(), reader.metadata().clone());
    let mut writer = Writer::new(reader.into_tensors().unwrap());
    for (name, value) in scalars {
        let leaf = name.split_once('.').unwrap().1;
        writer = writer.with_scalar(&name, change(leaf, value));
    }
    let writer = paths.into_iter().fold(writer, |writer, (id, path)| writer.with_metadata(&id, &path));
    OptimizerRecord::from_bytes(writer.into_bytes().unwrap()).unwrap()
}

/// The number of parameters that have a state.
fn states(record: OptimizerRecord) -> usize {
    let reader = Reader::from_bytes(record.into_bytes().unwrap()).unwrap();
    reader.scalars().keys().filter(|name| name.ends_with(".__rank")).count()
}

#[test]
fn codes_of_another_block_size_or_impossible_shape_are_refused_with_advice_and_not_read() {
    let (adamw, sgd8bit) = (eight(), Sgd8bit::new(&sgd()).unwrap());
    let formats = [adamw.format(), AdamW4bit::new(&config()).unwrap().format(), sgd8bit.format()];
    let optimizers: [ModuleOptimizer; 3] = [adamw.into(), AdamW4bit::new(&config()).unwrap().into(), sgd8bit.into()];
    for (fresh, format) in optimizers.into_iter().zip(formats) {
        let changes: [fn(&str, Scalar) -> Scalar; 4] = [
            |leaf, value| if leaf.ends_with(".block") { Scalar::from(512u32) } else { value },
            |leaf, value| if leaf == "shape.0" { Scalar::from(81u32) } else { value },
            |leaf, value| if leaf.starts_with("shape.") { Scalar::from(u64::MAX) } else { value },
            |leaf, value| if leaf == "shape.0" { Scalar::from(u64::MAX / 4) } else { value },
        ];
        for change in changes {
            let record = || changed(record_of(fresh.clone()).0, change);
            for read in [check_record, to_quantized, to_f32] {
                let Error::StateFormat { found, advice, .. } = read(record(), &format).unwrap_err() else {
                    panic!("another error");
                };
                assert_eq!(found, "other or incomplete state");
                assert!(advice.contains("the optimizer that wrote the record"), "{advice}");
            }
            // The state of the large parameter is left out, that of the small one is read.
            assert_eq!(states(record()), 2);
            assert_eq!(states(fresh.clone().load_record(record()).to_record()), 1);
        }
    }
}

#[test]
fn a_record_of_an_empty_parameter_is_its_own() {
    let device = Device::flex().autodiff();
    let model = || Linear { weight: Param::from_tensor(tensor([0, 3], 1, 0.3, DType::F32, &device)), bias: None };
    for optimizer in [eight().with_min_elements(0), eight()] {
        let format = optimizer.format();
        let mut optimizer = ModuleOptimizer::from(optimizer);
        let model = model();
        let mut gradients = GradientsParams::new();
        gradients.register(model.weight.id, Tensor::<2>::zeros([0, 3], &Device::flex()));
        let _ = optimizer.step(RATE, model, gradients);
        let [record, other] = copy(optimizer.to_record());
        assert!(!record.is_empty());
        let record = check_record(record, &format).unwrap();
        assert_eq!(record.len(), to_quantized(other, &format).unwrap().len());
    }
}

#[test]
fn large_moments_of_16_bits_are_recognised_and_translated() {
    for (dtype, name) in [(DType::BF16, "bf16"), (DType::F16, "f16")] {
        let record = || {
            let reader = Reader::from_bytes(record_of(FusedAdamW::from(config())).0.into_bytes().unwrap()).unwrap();
            let scalars = reader.scalars().clone();
            let tensors = reader.into_tensors().unwrap().into_iter().map(|tensor| {
                let (name, from, shape, id, bytes) = tensor.into_parts().unwrap();
                let data = TensorData::from_bytes(bytes, shape.clone(), from).convert_dtype(dtype);
                burn_pack::Tensor::new(name, dtype, shape, id, data.into_bytes())
            });
            let writer = Writer::new(tensors.collect());
            let writer = scalars.iter().fold(writer, |writer, (name, value)| writer.with_scalar(name, *value));
            OptimizerRecord::from_bytes(writer.into_bytes().unwrap()).unwrap()
        };
        let format = eight().format();
        let found = refused(check_record(record(), &format));
        assert_eq!(found, (format!("moment_1 in {name}"), "`to_quantized` translates the record".into()));
        assert!(check_record(to_quantized(record(), &format).unwrap(), &format).is_ok());
        let full = to_f32(record(), &format).unwrap();
        let reader = Reader::from_bytes(full.into_bytes().unwrap()).unwrap();
        let dtypes: Vec<DType> =
            reader.into_tensors().unwrap().into_iter().map(|tensor| tensor.into_parts().unwrap().1).collect();
        assert_eq!(dtypes, [DType::F32; 4]);
    }
}

/// The moments of all parameters in f32, by their names.
fn moments(record: OptimizerRecord, name: &str) -> Vec<Vec<f32>> {
    let tensors = Reader::from_bytes(record.into_bytes().unwrap()).unwrap().into_tensors().unwrap();
    let parts = tensors.into_iter().map(|tensor| tensor.into_parts().unwrap());
    parts.filter(|part| part.0.ends_with(name)).map(|part| bytemuck::pod_collect_to_vec(&part.4)).collect()
}

/// The bounds that `to_quantized` states, as parts of the largest value of a block.
#[test]
fn quantised_moments_are_within_the_stated_bounds() {
    let (four, unsigned) = (AdamW4bit::new(&config()).unwrap(), eight().with_second_moment(SecondMoment::Dynamic));
    // (format, elements of a block, bound of the first moment, of the second, of the root of the second, of its smallest values)
    let cases = [
        (eight().format(), 256, 0.011, None, Some((0.002, 0.004))),
        (unsigned.format(), 256, 0.011, Some(0.011), None),
        (four.format(), 128, 0.12, Some(0.07), None),
    ];
    for (format, block, first, second, root) in cases {
        let [record, original] = copy(record_of(FusedAdamW::from(config())).0);
        let back = copy(to_f32(to_quantized(record, &format).unwrap(), &format).unwrap());
        let [original, again] = copy(original);
        let pairs = |record, back, name| moments(record, name).into_iter().zip(moments(back, name));
        let [back_1, back_2] = back;
        // Errors of values, each with its value, as parts of the largest value of its block.
        let errors = |left: &[f32], right: &[f32], root: bool| -> Vec<(f64, f64)> {
            let of = |x: f32| if root { f64::from(x).sqrt() } else { f64::from(x) };
            let blocks = left.chunks(block).zip(right.chunks(block));
            let of_block = |(left, right): (&[f32], &[f32])| {
                let largest = left.iter().map(|x| of(*x).abs()).fold(f64::MIN_POSITIVE, f64::max);
                let error = |(l, r): (&f32, &f32)| ((of(*l) - of(*r)).abs() / largest, of(*l) / largest);
                left.iter().zip(right).map(error).collect::<Vec<_>>()
            };
            blocks.flat_map(of_block).collect()
        };
        let mut seen = 0;
        for (left, right) in pairs(original, back_1, "moment_1") {
            let worst = errors(&left, &right, false).into_iter().map(|(error, _)| error).fold(0.0, f64::max);
            assert!(worst <= first, "{format}: {worst}");
            seen += usize::from(worst > 0.0);
        }
        for (left, right) in pairs(again, back_2, "moment_2") {
            if let Some(bound) = second {
                let worst = errors(&left, &right, false).into_iter().map(|(error, _)| error).fold(0.0, f64::max);
                assert!(worst <= bound, "{format}: {worst}");
                seen += usize::from(worst > 0.0);
            }
            if let Some((bound, of_smallest)) = root {
                for (error, value) in errors(&left, &right, true) {
                    let bound = if value < 1.5 / 255.0 { of_smallest } else { bound };
                    assert!(error <= bound, "{format}: {error} of {value}");
                }
                seen += usize::from(left != right);
            }
        }
        assert_eq!(seen, 2, "both moments of the weights, and no moment of the bias, are codes");
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
