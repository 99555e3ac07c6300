//! The reason why a step does not fit, and changes that would help.

use crate::steps::{adamw, cifar, flex, gpt, mlp, models, resnet, sgd, tiny};
use burn::optim::SgdConfig;
use kiln_memory::{BackendProfile, Category, Explanation, Recomputed, StepOptions, StepTrace, Suggestion};
use kiln_precision::Precision::{BF16, F16, F32};

fn peak(trace: &StepTrace, batch: usize) -> u64 {
    trace.predict(batch, &flex()).unwrap().peak_bytes
}

#[track_caller]
fn suggestion<'a>(explanation: &'a Explanation, name: &str) -> &'a Suggestion {
    explanation.suggestions.iter().find(|suggestion| suggestion.name.starts_with(name)).unwrap()
}

/// The difference between an estimate and the recorded value, in percent.
fn off(estimate: u64, recorded: u64) -> f64 {
    100.0 * (estimate as f64 / recorded as f64 - 1.0)
}

#[test]
fn it_adds_up_and_is_in_order() {
    for (name, trace) in models(F32, &adamw(), StepOptions::default()) {
        let prediction = trace.predict(24, &flex()).unwrap();
        for limit in [0, prediction.peak_bytes / 2, prediction.peak_bytes - 1, prediction.peak_bytes, u64::MAX] {
            let explanation = trace.explain(24, limit, &flex()).unwrap();
            assert_eq!(explanation.peak_bytes, prediction.peak_bytes, "{name}");
            assert_eq!(explanation.breakdown, prediction.breakdown, "{name}");
            assert_eq!(explanation.over_bytes, prediction.peak_bytes.saturating_sub(limit), "{name}");
            assert_eq!(explanation.operation, prediction.operations[prediction.peak_at].name, "{name}");

            let alive = prediction.alive_at(prediction.peak_at);
            for group in explanation.groups.iter().filter(|group| group.path.is_some()) {
                let of = alive.iter().filter(|b| b.path == group.path && b.category == group.category);
                assert_eq!(group.bytes, of.clone().map(|buffer| buffer.bytes).sum::<u64>(), "{name}");
                assert_eq!(group.buffers, of.count(), "{name}");
            }
            assert!(explanation.groups.is_sorted_by_key(|group| std::cmp::Reverse(group.bytes)), "{name}");
            assert_eq!(explanation.groups.len(), 12, "{name}");

            for suggestion in &explanation.suggestions {
                assert!(suggestion.saved_bytes > 0, "{name}: {suggestion:?}");
                assert_eq!(
                    suggestion.peak_bytes + suggestion.saved_bytes,
                    explanation.peak_bytes,
                    "{name}: {suggestion:?}"
                );
                assert_eq!(suggestion.fits, suggestion.peak_bytes <= limit, "{name}: {suggestion:?}");
                assert!(suggestion.exact || suggestion.note.is_some(), "{name}: {suggestion:?}");
            }
            let order = |suggestion: &Suggestion| (!suggestion.fits, std::cmp::Reverse(suggestion.saved_bytes));
            assert!(explanation.suggestions.is_sorted_by_key(order), "{name}");
            assert!(explanation.suggestions.len() >= 5, "{name}: {:?}", explanation.suggestions);

            let gone: u64 = explanation.must_go.iter().map(|group| group.bytes).sum();
            assert!(explanation.fits_without || limit == 0, "{name}");
            assert!(gone >= explanation.over_bytes || !explanation.fits_without, "{name}");
            assert_eq!(explanation.must_go.is_empty(), explanation.over_bytes == 0, "{name}");
            assert!(explanation.must_go.iter().all(|group| group.category != Category::Workspace), "{name}");
        }
    }
}

#[test]
fn a_micro_batch_is_the_largest_that_fits_with_the_sum_of_gradients() {
    let accumulate = StepOptions { accumulate: true, ..StepOptions::default() };
    let pairs = models(F32, &adamw(), StepOptions::default()).into_iter().zip(models(F32, &adamw(), accumulate));
    for ((name, plain), (_, summed)) in pairs {
        let limit = peak(&summed, 20) + 100;
        let largest = summed.largest_batch(limit, 10_000, &flex()).unwrap().unwrap();
        // A trace that has the sum already does not get another.
        for trace in [&plain, &summed] {
            let explanation = trace.explain(100 * largest, limit, &flex()).unwrap();
            let found = suggestion(&explanation, "micro-batches");
            assert_eq!(found.name, format!("micro-batches of {largest}"), "{name}");
            assert!(found.exact && found.fits, "{name}");
            assert_eq!(found.peak_bytes, peak(&summed, largest), "{name}");
        }
        // A step that fits needs no micro-batches. If nothing fits, it is one sample.
        let fits = plain.explain(20, u64::MAX, &flex()).unwrap();
        assert!(fits.suggestions.iter().all(|suggestion| !suggestion.name.starts_with("micro")), "{name}");
        let hopeless = plain.explain(200_000, 1000, &flex()).unwrap();
        assert!(suggestion(&hopeless, "micro-batches").name.ends_with(" 1"), "{name}");
    }
}

#[test]
fn plans_are_those_of_the_trace() {
    let trace = gpt(tiny(), F32, &adamw(), StepOptions::default());
    // On the CPU device, inputs in host memory are where they were.
    for (profile, in_host_memory) in [(flex(), 0), (BackendProfile { fixed_bytes: 0, ..BackendProfile::cuda() }, 1)] {
        let explanation = trace.explain(32, 1 << 20, &profile).unwrap();
        let planned = |length: usize, offloaded| {
            let segment = |start| Recomputed { blocks: start..start + length, offloaded, streamed: false };
            let plan: Vec<_> = (0..4 - length).step_by(length).map(segment).collect();
            trace.with_plan(&plan).unwrap().predict(32, &profile).unwrap().peak_bytes
        };
        for (name, expected, count) in [
            ("checkpointing every block", planned(1, false), 1),
            ("checkpointing every block, inputs in host memory", planned(1, true), in_host_memory),
            ("checkpointing every 2 blocks", planned(2, false), 1),
        ] {
            let found: Vec<_> = explanation.suggestions.iter().filter(|suggestion| suggestion.name == name).collect();
            assert_eq!(found.len(), count, "{name} on {}", profile.name);
            assert!(found.iter().all(|found| found.exact && found.peak_bytes == expected), "{name}");
        }
    }
}

#[test]
fn another_optimizer_is_as_if_it_were_recorded() {
    let options = StepOptions::default();
    let plain = SgdConfig::new().build();
    let traces = models(F32, &adamw(), options).into_iter().zip(models(F32, &sgd(), options));
    for (((name, adamw), (_, momentum)), (_, plain)) in traces.zip(models(F32, &plain, options)) {
        for batch in [1, 16, 64] {
            let explanation = adamw.explain(batch, 0, &flex()).unwrap();
            let half = suggestion(&explanation, "SGD with momentum").peak_bytes;
            assert!(off(half, peak(&momentum, batch)).abs() < 1.0, "{name} {batch}");
            let none = suggestion(&explanation, "SGD without momentum").peak_bytes;
            assert!(off(none, peak(&plain, batch)).abs() < 8.0, "{name} {batch} {none} {}", peak(&plain, batch));
            let bits = suggestion(&explanation, "8-bit").peak_bytes;
            assert!(none < bits && bits < half, "{name} {batch}");
        }
        let names = |trace: &StepTrace| {
            let explanation = trace.explain(16, 0, &flex()).unwrap();
            explanation.suggestions.into_iter().map(|suggestion| suggestion.name).collect::<Vec<_>>()
        };
        assert!(!names(&momentum).contains(&"SGD with momentum".to_owned()), "{name}");
        assert!(names(&momentum).contains(&"SGD without momentum".to_owned()), "{name}");
        assert!(
            names(&plain).iter().all(|suggestion| !suggestion.starts_with("SGD") && !suggestion.starts_with("8-bit")),
            "{name}"
        );
    }
}

#[test]
fn sixteen_bits_are_estimated() {
    let options = StepOptions::default();
    for precision in [BF16, F16] {
        let pairs = models(F32, &adamw(), options).into_iter().zip(models(precision, &adamw(), options));
        for ((name, plain), (_, half)) in pairs {
            // The device's kernels compute in 16 bits.
            let cuda = BackendProfile { fixed_bytes: 0, ..BackendProfile::cuda() };
            let explanation = plain.explain(64, 0, &cuda).unwrap();
            let estimate = suggestion(&explanation, "16-bit");
            let recorded = half.predict(64, &cuda).unwrap().peak_bytes;
            let off = off(estimate.peak_bytes, recorded);
            assert!(!estimate.exact && off.abs() < 20.0, "{name} {precision}: {off:+.1} %");
        }
    }
}

#[test]
fn groups_of_optimizer_state_are_named_by_their_parameter() {
    let trace = resnet((cifar(), 32), F32, &adamw(), StepOptions::default());
    let prediction = trace.predict(4, &flex()).unwrap();
    let parameters: Vec<_> = prediction.buffers.iter().filter(|b| b.category == Category::Parameter).collect();
    // One of the marks of a recording, a single number, is counted with the state.
    let is_state = |shape: &[usize], category| category == Category::OptimizerState && shape != [1];
    let state = prediction.buffers.iter().filter(|buffer| is_state(&buffer.shape, buffer.category));
    for buffer in state.clone() {
        let owner = parameters.iter().find(|parameter| parameter.path == buffer.path);
        let owner = owner.unwrap_or_else(|| panic!("{buffer:?}"));
        assert_eq!(owner.shape, buffer.shape, "{:?}", buffer.path);
    }
    let of = |path: &str| state.clone().filter(|buffer| buffer.path.as_deref() == Some(path)).count();
    assert_eq!([of("conv1.weight"), of("layer4.1.conv2.weight"), of("fc.bias")], [2; 3]);
}

#[test]
fn it_is_read_by_people_and_by_programs() {
    let trace = mlp((64, 4), F32, &adamw(), StepOptions::default());
    let explanation = trace.explain(512, 1 << 20, &flex()).unwrap();
    let text = explanation.to_string();
    assert!(text.starts_with("A batch of 512 takes ") && text.contains("over the limit of 1.0 MiB"), "{text}");
    assert!(explanation.suggestions.iter().all(|suggestion| text.contains(&suggestion.name)), "{text}");
    let value = serde_json::to_value(&explanation).unwrap();
    assert_eq!(value["peak_bytes"], explanation.peak_bytes);
    assert_eq!(value["phase"], "backward");
    assert_eq!(value["suggestions"][0]["saved_bytes"], explanation.suggestions[0].saved_bytes);
    assert_eq!(value["groups"][0]["category"], "activation");
}
