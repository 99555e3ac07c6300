//! Steps made by hand, as large as real ones.

use std::collections::BTreeMap;

use kiln_report::{Category, MeasuredStep, PredictedStep};
use serde_json::{Value, json};

/// A network of convolutions, with `operations` operations in a step.
pub(crate) fn prediction(operations: usize) -> PredictedStep {
    let forward = operations * 4 / 10;
    let backward = operations * 95 / 100;
    let mut random = Random(7);
    let mut buffers = vec![];
    let mut put = |bytes: u64, shape: Value, category: &str, path: &str, operation: &str, born: usize, dies: usize| {
        buffers.push(json!({
            "bytes": bytes, "shape": shape, "dtype": "F32", "category": category, "path": path,
            "operation": operation, "born": born, "dies": dies.min(operations - 1),
        }));
    };
    let last = operations - 1;
    put(32 * 3 * 224 * 224 * 4, json!([32, 3, 224, 224]), "input", "", "FromData", 0, backward);
    let blocks = (forward / 12).max(1);
    for block in 0..blocks {
        let stage = 4 * block / blocks;
        let (channels, side) = (64 << stage, 56 >> stage);
        let path = format!("layer{}.{block}.conv{}", stage + 1, block % 3 + 1);
        let weight = (channels * channels * 9 * 4) as u64;
        let kernel = json!([channels, channels, 3, 3]);
        put(weight, kernel.clone(), "parameter", &format!("{path}.weight"), "FromData", 0, last);
        put(weight, kernel.clone(), "optimizer-state", &format!("{path}.weight"), "Add", 0, last);
        let (begins, size) = (block * 12, (32 * channels * side * side * 4) as u64);
        let mirrored = backward - (backward - forward) * block / blocks;
        put(weight, kernel, "gradient", &format!("{path}.weight"), "Conv2d", mirrored, last);
        let image = json!([32, channels, side, side]);
        for kept in 0..3 {
            let name = ["Conv2d", "BatchNorm", "Relu"][kept];
            put(size, image.clone(), "activation", &path, name, begins + 3 * kept, mirrored);
        }
        for short in 0..28 + random.below(8) {
            let at = if short % 2 == 0 { begins } else { mirrored.saturating_sub(8) } + random.below(12);
            put(
                size / (1 + random.below(30)) as u64,
                image.clone(),
                "transient",
                &path,
                "Mul",
                at,
                at + random.below(3),
            );
        }
    }
    let names = ["Conv2d", "BatchNorm", "Relu", "Add", "Reshape", "Mul"];
    let mut live = vec![0u64; operations];
    for buffer in &buffers {
        let (born, dies) = (buffer["born"].as_u64().unwrap_or(0), buffer["dies"].as_u64().unwrap_or(0));
        for at in born..=dies {
            live[at as usize] += buffer["bytes"].as_u64().unwrap_or(0);
        }
    }
    let list: Vec<_> = (0..operations)
        .map(|at| {
            let name = names[at % names.len()];
            if name == "Conv2d" {
                // Workspace, which is not a buffer.
                live[at] += 12 << 20;
            }
            // The seconds have a denominator with which they are exact as a decimal.
            let seconds = if name == "Reshape" { 0.0 } else { (1 + random.below(20)) as f64 / 16384.0 };
            json!({"name": name, "live_bytes": live[at], "seconds": seconds})
        })
        .collect();
    let peak = |from: usize, to: usize| live[from..to].iter().copied().max().unwrap_or(0);
    let peak_at = (0..operations).max_by_key(|at| live[*at]).unwrap_or(0);
    let phases: Vec<_> = [
        ("forward", 0, forward),
        ("backward", forward, backward),
        ("optimizer", backward, operations),
    ]
    .map(|(phase, first, end)| json!({"phase": phase, "first": first, "end": end, "peak_bytes": peak(first, end)}))
    .into();
    let prediction = json!({
        "peak_bytes": live[peak_at], "peak_at": peak_at, "breakdown": {}, "phases": phases, "operations": list,
        "buffers": buffers,
    });
    let mut prediction: PredictedStep = read(prediction);
    prediction.breakdown = breakdown_at(&prediction, peak_at);
    prediction
}

/// Bytes by category at an operation. What is alive beyond the buffers is workspace.
pub(crate) fn breakdown_at(prediction: &PredictedStep, at: usize) -> BTreeMap<Category, u64> {
    let mut breakdown = BTreeMap::new();
    for buffer in prediction.alive_at(at) {
        *breakdown.entry(buffer.category).or_default() += buffer.bytes;
    }
    let rest = prediction.operations[at].live_bytes - breakdown.values().sum::<u64>();
    *breakdown.entry(Category::Workspace).or_default() += rest;
    breakdown
}

/// A measurement of the step on a device that takes somewhat more memory, and more time in the backward pass.
pub(crate) fn measured(prediction: &PredictedStep) -> MeasuredStep {
    let mut random = Random(11);
    let (mut now, mut samples, mut phases) = (128.0 / 16384.0, vec![], vec![]);
    let slower = [1.0, 2.0, 1.0];
    for (phase, slower) in prediction.phases.iter().zip(slower) {
        let (start, mut peak) = (now, 0);
        for operation in &prediction.operations[phase.first..phase.end] {
            let bytes = operation.live_bytes + operation.live_bytes / 80 + random.below(4 << 20) as u64;
            peak = peak.max(bytes);
            samples.push(json!({"seconds": now, "bytes": bytes}));
            now += slower * operation.seconds;
        }
        phases.push(json!({"phase": phase.phase, "start": start, "end": now, "peak_bytes": peak}));
    }
    let peak = phases.iter().filter_map(|phase| phase["peak_bytes"].as_u64()).max();
    read(json!({"peak_bytes": peak, "phases": phases, "samples": samples}))
}

/// Reads a value whose type cannot be built from outside.
pub(crate) fn read<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).expect("the value has the fields of the type")
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.0 >> 33) as usize) % bound
    }
}
