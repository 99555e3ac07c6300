//! Steps that cannot be recorded, predicted or planned, and their messages.

use std::ops::Range;

use crate::steps::{adamw, flex, gpt, models, sgd, tiny};
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Int, Tensor};
use kiln_memory::{BackendProfile, Error, Recomputed, Recorder, StepOptions, StepTrace, record_step};
use kiln_models::{ResNet, ResNetConfig};
use kiln_precision::Precision;

#[derive(Module, Debug)]
struct Net {
    layers: Vec<Linear>,
}

impl Net {
    fn new(device: &Device) -> Self {
        Self { layers: (0..3).map(|_| LinearConfig::new(8, 8).init(device)).collect() }
    }
}

fn input(step: &Recorder) -> Tensor<2> {
    Tensor::zeros([step.batch(), 8], step.device())
}

fn step(forward: impl Fn(&Net, &Recorder) -> Tensor<1>) -> Result<StepTrace, Error> {
    record_step(Net::new, forward, &adamw(), StepOptions::default())
}

/// A step that does something between the second layer and the third.
fn with(between: impl Fn(Tensor<2>, &Recorder) -> Tensor<2>) -> Result<StepTrace, Error> {
    step(|net, recorder| {
        let x = net.layers[1].forward(net.layers[0].forward(input(recorder)));
        net.layers[2].forward(between(x, recorder)).mean()
    })
}

#[track_caller]
fn message<T>(result: Result<T, Error>) -> String {
    result.map(|_| ()).unwrap_err().to_string()
}

/// The parts of the error of a step that cannot be recorded: the operation, the module path, and the reason.
#[track_caller]
fn said(result: Result<StepTrace, Error>) -> (String, String, String) {
    match result.unwrap_err() {
        Error::Record { operation, path, reason } => (operation, path, reason),
        other => panic!("{other}"),
    }
}

#[test]
fn values_that_are_read_back_are_named_by_the_layer_they_came_from() {
    let reason = "a tensor is read back (into_data, into_scalar), and has no values while a step is recorded";
    let data = with(|x, _| {
        let _ = x.clone().into_data();
        x
    });
    assert_eq!(
        message(data),
        "the step cannot be recorded: after Add in 'layers.1': a tensor is read back (into_data, into_scalar), and has \
         no values while a step is recorded"
    );
    let scalar = with(|x, _| {
        let mean: f32 = x.clone().mean().into_scalar();
        x * mean
    });
    assert_eq!(said(scalar), ("after Mean".into(), "layers.1".into(), reason.into()));
    let integers = with(|x, _| {
        let _ = x.clone().argmax(1).into_data();
        x
    });
    assert_eq!(said(integers), ("after ArgMax".into(), "layers.1".into(), reason.into()));
    let early = step(|net, recorder| {
        let _ = input(recorder).into_data();
        net.layers[0].forward(input(recorder)).mean()
    });
    assert_eq!(said(early), ("the first operation".into(), "(before the first layer)".into(), reason.into()));
}

#[test]
fn an_input_on_another_device_is_named_with_the_way_to_make_it() {
    let reason =
        "an input is on another device than the step: make it with `Pass::input`, or copy it to the recorder's device";
    for device in [Device::flex(), Device::flex().autodiff()] {
        let elsewhere = device.clone();
        let other = step(move |net, _| net.layers[0].forward(Tensor::<2>::ones([16, 8], &elsewhere)).mean());
        assert_eq!(said(other).2, reason, "{device:?}");
        let other = with(move |x, _| x.clone() + Tensor::<2>::ones(x.shape(), &device));
        assert_eq!(said(other).2, reason);
        let indices = with(|x, _| x.select(0, Tensor::<1, Int>::from_data([0, 1], &Device::flex())));
        assert_eq!(said(indices).2, reason);
    }
}

#[test]
fn seeding_is_refused() {
    let seeded = with(|x, step| {
        step.device().seed(3);
        x
    });
    let (operation, path, reason) = said(seeded);
    assert_eq!((operation.as_str(), path.as_str()), ("after Add", "layers.1"));
    assert!(reason.contains("seeding"), "{reason}");
}

#[test]
fn what_a_panic_says_is_kept() {
    let text = with(|_, _| panic!("labels.csv\n  is missing"));
    assert_eq!(said(text), ("after Add".into(), "layers.1".into(), "labels.csv is missing".into()));
    let formatted = with(|x, step| {
        assert!(step.batch() > 100, "a batch of {}", step.batch());
        x
    });
    assert_eq!(said(formatted).2, "a batch of 2");
    let shape = with(|x, step| x.reshape([2 * step.batch(), 7]));
    let (_, path, reason) = said(shape);
    assert!(path == "layers.1" && reason.contains("Reshape") && reason.contains("[2, 8]"), "{path} {reason}");
    let built = record_step(
        |_| -> Net { panic!("no such model") },
        |net, step| net.layers[0].forward(input(step)).mean(),
        &sgd(),
        StepOptions::default(),
    );
    assert_eq!(said(built), ("before the step".into(), "(the model)".into(), "no such model".into()));
    // A panic leaves nothing behind that would fail the next recording.
    assert!(with(|x, _| x).is_ok());
}

#[test]
fn a_loss_is_one_number_that_depends_on_the_model() {
    let several = step(|net, step| net.layers[0].forward(input(step)).flatten(0, 1));
    assert_eq!(
        said(several),
        ("after Reshape".into(), "layers.0".into(), "the loss has 16 elements, expected 1".into())
    );
    let reason = "the loss does not depend on a parameter that learns";
    let without = step(|_, step| input(step).mean());
    assert_eq!(said(without), ("after Mean".into(), "(before the first layer)".into(), reason.into()));
}

#[test]
fn a_model_learns_something() {
    let frozen = record_step(
        |device| Net::new(device).no_grad(),
        |net: &Net, step| net.layers[0].forward(input(step)).mean(),
        &sgd(),
        StepOptions::default(),
    );
    assert_eq!(said(frozen).2, "the model has no parameter that learns");
}

#[test]
fn operations_are_the_same_at_any_size() {
    let more = with(|x, step| if step.batch() > 2 { x.exp() } else { x });
    let expected =
        "Exp in 'layers.1' is another operation at a batch of 2 than at 3, expected the same operations at any size";
    assert_eq!(message(more), expected);
    let fewer = with(|x, step| if step.batch() == 2 { x.exp() } else { x });
    assert_eq!(message(fewer), expected);
    let repeated = with(|x, step| (0..step.batch()).fold(x, |x, _| x.exp()));
    assert!(message(repeated).starts_with("Exp in 'layers.1'"));
    let other = with(|x, step| if step.batch() == 2 { x.exp() } else { x.sqrt() });
    assert!(message(other).contains("in 'layers.1'"));
}

#[test]
fn batches_to_record_are_two_that_grow() {
    for batches in [[0, 1], [3, 3], [5, 2]] {
        let options = StepOptions { batches, ..StepOptions::default() };
        let forward = |net: &Net, step: &Recorder| net.layers[0].forward(input(step)).mean();
        let [first, second] = batches;
        assert_eq!(
            message(record_step(Net::new, forward, &sgd(), options)),
            format!(
                "recorded at batch sizes {first} and {second}, expected two different ones, the smaller first, of at least 1"
            )
        );
    }
}

#[test]
fn a_batch_is_a_number_of_samples_that_can_be_counted() {
    let trace = with(|x, _| x).unwrap();
    for batch in [0, 1 << 40, 1 << 60, usize::MAX] {
        let expected =
            format!("a batch of {batch} samples, expected at least 1, and less than 2^42 bytes in each tensor");
        assert_eq!(message(trace.predict(batch, &flex())), expected);
        assert_eq!(message(trace.explain(batch, 1 << 30, &flex())), expected);
    }
    assert!(message(trace.largest_batch(1 << 30, 0, &flex())).starts_with("a batch of 0 samples"));
    assert!(trace.largest_batch(1 << 30, usize::MAX, &flex()).unwrap().unwrap() > 1 << 20);
}

/// Every batch size gives an error or a prediction: nothing overflows on the way.
#[test]
fn no_batch_is_too_large_to_be_refused() {
    for precision in [Precision::F32, Precision::BF16, Precision::F16] {
        for (name, trace) in models(precision, &adamw(), StepOptions::default()) {
            let cpu = BackendProfile { threads: 1 << 10, ..flex() };
            for profile in [cpu, BackendProfile::cuda(), BackendProfile::wgpu()] {
                let predict = |shift: u32| trace.predict(1 << shift, &profile).map(|prediction| prediction.peak_bytes);
                let peaks: Vec<_> = (0..64).map_while(|shift| predict(shift).ok()).collect();
                assert!(peaks.len() > 10 && peaks.is_sorted() && peaks.last() > Some(&(1 << 40)), "{name}");
                assert!((peaks.len() as u32..64).all(|shift| predict(shift).is_err()), "{name}");
            }
        }
    }
}

#[test]
fn plans_are_segments_of_the_chain_in_order() {
    let trace = gpt(tiny(), Precision::F32, &adamw(), StepOptions::default());
    let plan = |segments: &[Range<usize>]| {
        let segments =
            segments.iter().map(|blocks| Recomputed { blocks: blocks.clone(), offloaded: false, streamed: false });
        trace.with_plan(&segments.collect::<Vec<_>>()).map_err(|error| error.to_string())
    };
    let refused =
        |blocks: &str, why: &str| Err(format!("blocks {blocks} of a chain of 4 cannot be checkpointed: {why}"));
    assert!(plan(&[0..2, 2..3]).is_ok());
    assert_eq!(plan(&[0..2, 1..3]), refused("1..3", "expected segments one after the other"));
    assert_eq!(plan(&[2..3, 0..1]), refused("0..1", "expected segments one after the other"));
    assert_eq!(plan(&[0..5]), refused("0..5", "expected blocks of the chain"));
    assert_eq!(plan(&[4..5]), refused("4..5", "expected blocks of the chain"));
    assert_eq!(plan(&[2..2]), refused("2..2", "expected blocks of the chain"));

    let plain = with(|x, _| x).unwrap();
    assert_eq!(
        message(plain.with_plan(&[Recomputed { blocks: 0..1, offloaded: false, streamed: false }])),
        "blocks 0..1 of a chain of 0 cannot be checkpointed: the step was recorded without cuts between its blocks"
    );
    assert_eq!(plain.with_plan(&[]).unwrap(), plain);
}

/// An image without pixels is refused by burn's shape arithmetic, which panics.
#[test]
fn sizes_of_zero_are_errors() {
    let options = StepOptions::default();
    let images = |side: usize| {
        record_step(
            |device| ResNetConfig::resnet18(10).with_lean(false).init(device).unwrap(),
            |model: &ResNet, step| {
                let x = Tensor::zeros([step.batch(), 3, side, side], step.device());
                model.forward(x).square().mean()
            },
            &sgd(),
            options,
        )
    };
    assert!(images(32).is_ok());
    let (operation, path, reason) = said(images(0));
    assert!(!operation.is_empty() && !path.is_empty() && reason.contains("overflow"), "{operation} {path} {reason}");
    // A step over empty tensors that can be recorded can be predicted.
    let empty = step(|net, step| {
        let x = Tensor::<2>::zeros([step.batch(), 8], step.device());
        let none = x.clone().slice([0..step.batch(), 0..0]).sum();
        net.layers[0].forward(x).mean() + none
    });
    if let Ok(trace) = empty {
        for profile in [flex(), BackendProfile::cuda(), BackendProfile::wgpu()] {
            assert!(trace.predict(4, &profile).unwrap().peak_bytes > 0);
            assert!(trace.estimate(4, &profile).unwrap().peak_bytes > 0);
        }
    }
    let trace = with(|x, _| x).unwrap();
    for message in [
        message(trace.predict(0, &flex())),
        message(trace.estimate(0, &flex())),
        message(trace.explain(0, 1 << 30, &flex())),
        message(trace.largest_batch(1 << 30, 0, &flex())),
    ] {
        assert!(message.starts_with("a batch of 0 samples, expected at least 1"), "{message}");
    }
    let cut = gpt(tiny(), Precision::F32, &adamw(), options);
    assert!(message(cut.chain_costs(0, &flex())).starts_with("a batch of 0 samples"));
    assert_eq!(
        message(trace.chain_costs(4, &flex())),
        "blocks 0..0 of a chain of 0 cannot be checkpointed: the step was recorded without cuts between its blocks"
    );
}
