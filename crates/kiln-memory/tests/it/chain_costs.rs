//! The costs of a chain's blocks predict the peaks of checkpoint plans.

use std::ops::Range;

use kiln_memory::{BackendProfile, Category, ChainCosts, Recomputed};
use proptest::prelude::*;

use crate::estimates::{all_traces, plan_of};
use crate::steps::flex;

/// The peak of a plan by the model that [`kiln_memory::StepTrace::chain_costs`] describes.
fn simulated(costs: &ChainCosts, plan: &[Recomputed]) -> u64 {
    enum Mode {
        Plain,
        Recompute,
        Offload,
    }
    let mut segments: Vec<(Range<usize>, Mode)> = vec![];
    let mut next = 0;
    for Recomputed { blocks, offloaded, .. } in plan {
        segments.extend((next..blocks.start).map(|block| (block..block + 1, Mode::Plain)));
        segments.push((blocks.clone(), if *offloaded { Mode::Offload } else { Mode::Recompute }));
        next = blocks.end;
    }
    segments.extend((next..costs.blocks.len()).map(|block| (block..block + 1, Mode::Plain)));
    let (mut held, mut peak) = (0, costs.floor_bytes);
    for (range, mode) in segments {
        let blocks = &costs.blocks[range.clone()];
        let workspace = blocks.iter().map(|block| block.workspace_bytes).max().unwrap();
        let saved: u64 = blocks.iter().map(|block| block.saved_bytes).sum();
        let gradients: u64 = costs.blocks[range.start..].iter().map(|block| block.gradient_bytes).sum();
        let around = costs.resident_bytes + gradients + workspace;
        let (input, unsummed) = (blocks[0].input_bytes, blocks.iter().map(|block| block.unsummed_bytes).sum::<u64>());
        let (holds, needs) = match mode {
            Mode::Plain => (saved, saved),
            Mode::Recompute => (input, input + saved + unsummed),
            Mode::Offload => (0, input + saved + unsummed),
        };
        peak = peak.max(held + around + needs);
        held += holds;
    }
    peak.max(held + costs.resident_bytes + costs.head_bytes)
}

/// The model adds the largest workspace of a segment to all of its activations, which do not exist at the same time. So it is mostly too
/// high: by up to 30 % for long segments in 16 bits, whose weights are copied, and by up to 50 % for kiln-layers' operations, whose
/// workspace is a large part of what a recomputed block takes. It is rarely too low.
#[test]
fn the_model_is_near_the_estimate_of_a_plan() {
    let (mut near, mut all) = (0, 0);
    for (name, trace) in all_traces() {
        for profile in [flex(), BackendProfile::cuda()] {
            for batch in [1, 7, 64] {
                let costs = trace.chain_costs(batch, &profile).unwrap();
                assert_eq!(costs.blocks.len(), trace.blocks(), "{name}");
                // No plan, every block, every second block, all offloaded, a mixture.
                for (length, bits) in
                    [(1, 0), (1, 0xAAAA_AAAA_AAAA_AAAA), (2, 0xAAAA_AAAA), (1, u64::MAX), (1, 0x2E2E_2E2E)]
                {
                    let plan = plan_of(trace, length, bits);
                    let peak = trace.with_plan(&plan).unwrap().estimate(batch, &profile).unwrap().peak_bytes;
                    let off = simulated(&costs, &plan) as f64 / peak as f64 - 1.0;
                    let most = match (plan.is_empty(), name.starts_with("lean")) {
                        (true, _) => 0.08,
                        (false, true) => 0.5,
                        (false, false) => 0.3,
                    };
                    assert!(off > -0.08 && off < most, "{name} {} {batch} {plan:?}: {off:+.3}", profile.name);
                    all += 1;
                    near += usize::from(off.abs() < 0.1);
                }
            }
        }
    }
    assert!(10 * near > 9 * all, "{near} of {all} plans within 10 %");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn the_model_is_near_the_estimate_of_any_plan(
        which in any::<prop::sample::Index>(), length in 1usize..5, bits in any::<u64>(), batch in 1usize..100,
    ) {
        let (name, trace) = which.get(all_traces());
        let plan = plan_of(trace, length, bits);
        let costs = trace.chain_costs(batch, &flex()).unwrap();
        let peak = trace.with_plan(&plan).unwrap().estimate(batch, &flex()).unwrap().peak_bytes;
        let off = simulated(&costs, &plan) as f64 / peak as f64 - 1.0;
        prop_assert!(off > -0.1 && off < 0.6, "{name} {batch} {plan:?}: {off:+.3}");
    }
}

#[test]
fn costs_add_up_to_the_plain_step() {
    for (name, trace) in all_traces() {
        let costs = trace.chain_costs(8, &flex()).unwrap();
        let estimate = trace.estimate(8, &flex()).unwrap();
        let seconds: f64 = costs.blocks.iter().map(|block| block.forward_seconds).sum();
        assert!(seconds > 0.0 && seconds < estimate.forward_seconds, "{name}");
        let saved: u64 = costs.blocks.iter().map(|block| block.saved_bytes).sum();
        assert!(costs.resident_bytes + saved < estimate.peak_bytes, "{name}");
        for block in &costs.blocks {
            assert!(block.input_bytes > 0 && block.saved_bytes > 0, "{name}: {block:?}");
            // Gradients that are added to sums take the place of these. In 16 bits, norms read their parameters several times.
            let (summed, most) =
                (name.contains("summed"), if name.contains("f32") { 0 } else { block.input_bytes / 50 });
            let fits = if summed { block.gradient_bytes <= most } else { block.gradient_bytes > 0 };
            assert!(fits, "{name}: {block:?}");
        }
        // One operation computes the gradients of a norm's input and of its parameters, which are small.
        let buffers = trace.predict(8, &flex()).unwrap().buffers;
        let parameters = buffers.iter().filter(|buffer| buffer.category == Category::Parameter);
        let parameters: u64 = parameters.map(|buffer| buffer.bytes).sum();
        let gradients: u64 = costs.blocks.iter().map(|block| block.gradient_bytes).sum();
        let fits = gradients <= parameters + parameters / 10;
        assert!(fits || !name.starts_with("lean"), "{name}: {gradients} of gradients, {parameters}");
        let loaded = trace.chain_costs(8, &flex().with_loader_bytes(1000)).unwrap();
        assert_eq!(loaded.resident_bytes, costs.resident_bytes + 1000, "{name}");
        assert_eq!(loaded.blocks, costs.blocks, "{name}");
    }
}
