//! Properties that hold for every prediction.

use crate::steps::{adamw, cifar, flex, gpt, mlp, models, resnet, sgd, tiny};
use kiln_memory::{BackendProfile, Category, Prediction, Recomputed, StepOptions, StepTrace};
use kiln_models::{GptConfig, ResNetConfig};
use kiln_precision::Precision::{self, BF16, F16, F32};
use proptest::prelude::*;

/// The models under SGD with momentum and under AdamW.
fn both(precision: Precision) -> Vec<(String, StepTrace)> {
    let options = StepOptions::default();
    let (sgd, adamw) = (models(precision, &sgd(), options), models(precision, &adamw(), options));
    let named = |optimizer: &'static str| {
        move |(model, trace): (&str, StepTrace)| (format!("{model} {precision} {optimizer}"), trace)
    };
    sgd.into_iter().map(named("sgd")).chain(adamw.into_iter().map(named("adamw"))).collect()
}

/// The peak of tensors alone, without the scratch memory of kernels.
fn tensor_peak(prediction: &Prediction) -> u64 {
    let mut change = vec![0i64; prediction.operations.len() + 1];
    for buffer in prediction.buffers.iter().filter(|buffer| buffer.category != Category::Workspace) {
        change[buffer.born] += buffer.bytes as i64;
        change[buffer.dies + 1] -= buffer.bytes as i64;
    }
    let live = change.iter().scan(0, |live, change| {
        *live += change;
        Some(*live)
    });
    live.max().unwrap() as u64
}

fn assert_grows(name: &str, trace: &StepTrace, profile: &BackendProfile, peak: impl Fn(&Prediction) -> u64) {
    let batches = (1..=17).chain([24, 31, 32, 33, 48, 64, 65, 100, 128, 256, 512]);
    let peaks: Vec<_> = batches.map(|batch| (batch, peak(&trace.predict(batch, profile).unwrap()))).collect();
    for pair in peaks.windows(2) {
        assert!(pair[0].1 <= pair[1].1, "{name} on {}: (batch, peak) {:?}, then {:?}", profile.name, pair[0], pair[1]);
    }
    assert!(peaks[0].1 < peaks[peaks.len() - 1].1, "{name}: the batch makes no difference");
}

#[test]
fn a_larger_batch_never_has_a_lower_peak() {
    for (name, trace) in both(F32).iter().chain(&both(BF16)) {
        for profile in [flex(), BackendProfile::cuda(), BackendProfile::wgpu()] {
            assert_grows(name, trace, &profile, |prediction| prediction.peak_bytes);
        }
    }
}

#[test]
fn nor_do_its_tensors_take_less_in_f16() {
    for (name, trace) in &both(F16) {
        assert_grows(name, trace, &flex(), tensor_peak);
        assert_grows(name, trace, &BackendProfile::cuda(), |prediction| prediction.peak_bytes);
    }
}

/// The only case in which memory shrinks when a batch grows. A product packs an operand in panels of at most 512 of its depth, all of the
/// same depth. A depth of 512 is one panel, a depth of 513 is two panels of half the size. f16 is always packed, into f32.
#[test]
fn a_product_packs_less_when_its_depth_passes_a_multiple_of_512() {
    let trace = mlp((512, 1), F16, &sgd(), StepOptions::default());
    let [one, two] = [512, 513].map(|batch| trace.predict(batch, &flex()).unwrap());
    assert!(one.peak_bytes > two.peak_bytes && one.peak_bytes < two.peak_bytes * 108 / 100);
    assert!(tensor_peak(&one) < tensor_peak(&two));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn the_peak_grows_with_the_batch_of_any_mlp(
        width in 2usize..300, depth in 1usize..5, half in any::<bool>(), threads in 1usize..64,
        small in 1usize..512, more in 1usize..512, most in 1usize..100_000,
    ) {
        let trace = mlp((width, depth), if half { BF16 } else { F32 }, &sgd(), StepOptions::default());
        let profile = BackendProfile { threads, ..flex() };
        let peak = |batch| trace.predict(batch, &profile).unwrap().peak_bytes;
        let large = (small + more).min(512);
        prop_assert!(peak(small) <= peak(large));
        // Beyond one panel, see above, only the tensors grow with every batch.
        let tensors = |batch| tensor_peak(&trace.predict(batch, &profile).unwrap());
        prop_assert!(tensors(small) <= tensors(small + most));
    }

    #[test]
    fn what_is_found_fits_and_one_more_does_not(batch in 1usize..3000, most in 1usize..3000, slack in 0u64..10_000) {
        let trace = mlp((32, 2), F32, &adamw(), StepOptions::default());
        let peak = |batch| trace.predict(batch, &flex()).unwrap().peak_bytes;
        let limit = peak(batch) + slack;
        let found = trace.largest_batch(limit, most, &flex()).unwrap().unwrap();
        prop_assert!(found <= most && peak(found) <= limit);
        prop_assert!(found == most || peak(found + 1) > limit);
        prop_assert_eq!(trace.largest_batch(peak(1) - 1, most, &flex()).unwrap(), None);
    }
}

fn assert_sums(name: &str, prediction: &Prediction) {
    assert_eq!(prediction.breakdown.total(), prediction.peak_bytes, "{name}");
    let live = |at: usize| prediction.alive_at(at).iter().map(|buffer| buffer.bytes).sum::<u64>();
    for (at, operation) in prediction.operations.iter().enumerate() {
        assert_eq!(operation.live_bytes, live(at), "{name} at {at}, {}", operation.name);
    }
    assert_eq!(prediction.peak_bytes, prediction.operations[prediction.peak_at].live_bytes, "{name}");
    let mut end = 0;
    for phase in &prediction.phases {
        assert!(phase.first == end && phase.end > end, "{name}: {:?}", prediction.phases);
        let peak = prediction.operations[phase.first..phase.end].iter().map(|operation| operation.live_bytes).max();
        assert_eq!(peak, Some(phase.peak_bytes), "{name}");
        end = phase.end;
    }
    assert_eq!(end, prediction.operations.len(), "{name}");
    assert_eq!(prediction.phases.iter().map(|phase| phase.peak_bytes).max(), Some(prediction.peak_bytes), "{name}");
}

#[test]
fn parts_add_up() {
    for (name, trace) in both(F32).iter().chain(&both(BF16)) {
        let plan: Vec<_> = (0..trace.blocks()).step_by(2).map(|block| recomputed(block..block + 1)).collect();
        for profile in [flex(), BackendProfile::cuda(), BackendProfile::wgpu()] {
            assert_sums(name, &trace.predict(7, &profile).unwrap());
            assert_sums(name, &trace.with_plan(&plan).unwrap().predict(7, &profile).unwrap());
        }
    }
}

#[test]
fn what_was_not_recorded_is_as_if_it_had_been() {
    let elsewhere = StepOptions { batches: [5, 8], ..StepOptions::default() };
    for precision in [F32, BF16] {
        let (here, there) =
            (models(precision, &adamw(), StepOptions::default()), models(precision, &adamw(), elsewhere));
        for ((name, here), (_, there)) in here.iter().zip(&there) {
            for batch in [2, 5, 16, 100] {
                assert_eq!(
                    here.predict(batch, &flex()).unwrap(),
                    there.predict(batch, &flex()).unwrap(),
                    "{name} {batch}"
                );
            }
        }
    }
}

#[test]
fn it_is_the_same_every_time_and_from_a_file() {
    for (name, trace) in both(F32) {
        let prediction = trace.predict(6, &flex()).unwrap();
        assert_eq!(prediction, trace.predict(6, &flex()).unwrap(), "{name}");
        let read: StepTrace = serde_json::from_str(&serde_json::to_string(&trace).unwrap()).unwrap();
        assert_eq!(read, trace, "{name}");
        let mut read: Prediction = serde_json::from_str(&serde_json::to_string(&prediction).unwrap()).unwrap();
        for (read, operation) in read.operations.iter_mut().zip(&prediction.operations) {
            // The last digit of a decimal may differ.
            assert!((read.seconds / operation.seconds - 1.0).abs() < 1e-12, "{name}");
            read.seconds = operation.seconds;
        }
        assert_eq!(read, prediction, "{name}");
    }
}

fn recomputed(blocks: std::ops::Range<usize>) -> Recomputed {
    Recomputed { blocks, offloaded: false, streamed: false }
}

/// Bytes that are saved when the backward pass begins.
fn saved(prediction: &Prediction) -> u64 {
    let backward = prediction.phases[1].first;
    let is_saved = |born: usize, dies: usize| born < backward && dies >= backward;
    prediction.buffers.iter().filter(|buffer| is_saved(buffer.born, buffer.dies)).map(|buffer| buffer.bytes).sum()
}

/// Saved bytes and peak of every way to recompute some of the segments of `length` blocks. Bit i of a plan's index says whether segment i
/// is recomputed.
fn every_plan(trace: &StepTrace, length: usize, batch: usize, profile: &BackendProfile) -> Vec<(u64, u64)> {
    let blocks = trace.blocks();
    let segments: Vec<_> = (0..blocks).step_by(length).map(|from| from..blocks.min(from + length)).collect();
    let of = |plan: usize| {
        let chosen = segments.iter().enumerate().filter(|(index, _)| plan >> index & 1 == 1);
        let chosen: Vec<_> = chosen.map(|(_, segment)| recomputed(segment.clone())).collect();
        let prediction = trace.with_plan(&chosen).unwrap().predict(batch, profile).unwrap();
        (saved(&prediction), prediction.peak_bytes)
    };
    (0..1 << segments.len()).map(of).collect()
}

/// The profile of the CPU device without the copy of its blocks that each recomputed segment keeps: tiny blocks have more of it than of tensors.
fn without_copies() -> BackendProfile {
    BackendProfile { leaf_bytes: 0, ..flex() }
}

/// Pairs of plans of which the second recomputes one segment more.
fn one_more(plans: usize) -> impl Iterator<Item = (usize, usize)> {
    let segments = plans.ilog2();
    (0..plans).flat_map(move |plan| {
        (0..segments).filter(move |bit| plan >> bit & 1 == 0).map(move |bit| (plan, plan | 1 << bit))
    })
}

#[test]
fn recomputing_more_never_keeps_more() {
    let options = StepOptions::default();
    for precision in [F32, BF16] {
        for trace in [
            mlp((64, 6), precision, &sgd(), options),
            gpt(tiny(), precision, &sgd(), options),
            resnet((cifar(), 32), precision, &sgd(), options),
        ] {
            let plans = every_plan(&trace, 1, 8, &without_copies());
            for (less, more) in one_more(plans.len()) {
                assert!(plans[more].0 <= plans[less].0, "{precision} {less:b} {more:b}");
            }
            assert!(plans[plans.len() - 1].0 < plans[0].0, "{precision}: no plan makes a difference");
        }
    }
}

/// If blocks are alike, gradients have the dtype of the arithmetic, and the last segment is plain, recomputing one more segment never
/// raises the peak: when a block is replayed, the saved tensors of the next block are already dropped. (The last block is replayed while
/// all of its outputs to the head exist, so recomputing it saves nothing and costs a little.)
#[test]
fn recomputing_more_of_a_chain_of_alike_blocks_never_raises_the_peak() {
    let options = StepOptions::default();
    let six = GptConfig { layers: 6, ..tiny() };
    let large = GptConfig { vocab: 4096, ..six.clone() };
    for (trace, name) in [
        (mlp((256, 6), F32, &sgd(), options), "mlp"),
        (gpt(six.clone(), F32, &sgd(), options), "gpt"),
        (gpt(six, F32, &adamw(), options), "gpt adamw"),
        (gpt(large, F32, &sgd(), options), "gpt of a large vocabulary"),
    ] {
        let cpu = without_copies;
        for (profile, length, batch) in
            [(cpu(), 1, 4), (cpu(), 1, 32), (cpu(), 2, 32), (cpu(), 3, 8), (BackendProfile::cuda(), 1, 16)]
        {
            let plans = every_plan(&trace, length, batch, &profile);
            for (less, more) in one_more(plans.len()).filter(|(_, more)| *more < plans.len() / 2) {
                assert!(
                    plans[more].1 <= plans[less].1,
                    "{name} {} {length} {batch}: {less:b} {} {more:b} {}",
                    profile.name,
                    plans[less].1,
                    plans[more].1
                );
            }
        }
    }
}

/// A replay needs memory of its own, in addition to the gradients that exist by then. So one segment more can raise the peak a little:
/// - if blocks differ: in a small batch of a ResNet, the workspace of a replayed convolution is larger than its saved tensors;
/// - under autocast: a replayed segment makes its gradients in f32 at its end, while the plain backward pass makes all of them at the
///   very end.
#[test]
fn a_replay_needs_room_of_its_own() {
    let options = StepOptions::default();
    for (trace, batch) in [
        (resnet((cifar(), 32), F32, &sgd(), options), 4),
        (resnet((cifar(), 32), BF16, &sgd(), options), 32),
        (mlp((256, 6), BF16, &sgd(), options), 32),
        (gpt(GptConfig { layers: 6, ..tiny() }, BF16, &adamw(), options), 4),
    ] {
        let plans = every_plan(&trace, 1, batch, &flex());
        let rises = one_more(plans.len()).map(|(less, more)| plans[more].1 as f64 / plans[less].1 as f64 - 1.0);
        let most = rises.fold(0.0, f64::max);
        assert!(most > 0.001 && most < 0.06, "{most}");
    }
}

#[test]
fn offloading_never_keeps_more_than_recomputing() {
    let trace = resnet((ResNetConfig::resnet50(1000).with_lean(false), 64), F32, &sgd(), StepOptions::default());
    let plan = |offloaded| {
        let plan: Vec<_> = (0..trace.blocks() - 1)
            .map(|block| Recomputed { blocks: block..block + 1, offloaded, streamed: false })
            .collect();
        trace.with_plan(&plan).unwrap().predict(8, &flex()).unwrap()
    };
    let (recomputed, offloaded) = (plan(false), plan(true));
    assert!(saved(&offloaded) < saved(&recomputed) && offloaded.peak_bytes <= recomputed.peak_bytes);
}

#[test]
fn a_sample_takes_what_the_fit_says() {
    for (name, trace) in both(F32) {
        let fit = trace.bytes_per_sample(&flex()).unwrap();
        let [near, far] = fit.batches;
        for batch in [near, (near + far) / 2, far, 2 * far] {
            let fitted = fit.fixed_bytes + fit.sample_bytes * batch as f64;
            let peak = trace.predict(batch, &flex()).unwrap().peak_bytes;
            assert!((fitted / peak as f64 - 1.0).abs() < 0.03, "{name} {batch} of {fit:?}: {fitted} {peak}");
        }
    }
}
