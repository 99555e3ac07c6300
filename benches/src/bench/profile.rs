//! `bench --profile`: the time and the bytes of a step, by part, block and operation.

use std::collections::BTreeMap;
use std::io::Write;
use std::process::{Command, ExitCode};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use burn::module::Module;
use burn::tensor::Device;
use kiln_checkpointing::{Chain, Cost, Plan, measure_blocks};
use kiln_memory::{Kernels, Phase, Prediction};
use kiln_training::{Batch, Boundary};

use super::case::{Case, Group, Loop};
use super::statistics::Spread;
use super::steps::{batches, gpt, prepare, resnet};
use super::table::markdown;
use kiln_cli::heap::heap_use;
use kiln_cli::pipelines::{Chained, Pipeline, Run};
use kiln_cli::units::MIB;

/// Steps that are timed, after some that are not.
const STEPS: usize = 10;
const WARMUP: usize = 3;
/// The number of kinds of operations in the table.
const KINDS: usize = 12;
/// The pipelines' cases that are profiled by default.
const DEFAULT: [&str; 2] = ["resnet/step", "gpt/step"];

/// Profiles cases, each in a process of its own.
pub(crate) fn run(cases: &[Case], named: bool, device: &str) -> Result<()> {
    let wanted = |case: &&Case| match named {
        true => !case.is_reference(),
        false => DEFAULT.contains(&case.to_string().as_str()),
    };
    for case in cases.iter().filter(wanted) {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["bench", "--profile", "--case", &case.to_string(), "--device", device]);
        let status = command.status().with_context(|| format!("cannot start {case}"))?;
        ensure!(status.success(), "{case}: {status}");
    }
    Ok(())
}

/// Profiles a case in this process.
pub(crate) fn show(case: &Case, device: &str) -> Result<ExitCode> {
    if case.group == Group::Resnet {
        let (run, device) = resnet(case, device, 0)?;
        return profile(run, &device, case);
    }
    let (run, device) = gpt(case, device, 0)?;
    profile(run, &device, case)
}

fn profile<P: Chained + Pipeline>(run: Run<P>, plain: &Device, case: &Case) -> Result<ExitCode> {
    let device = plain.clone().autodiff();
    let batches = batches(&run)?;
    let backend = run.setup.profile(&device)?;
    let on_heap = backend.kernels == Kernels::Flex;
    let (builder, sample, setup) = prepare(run, backend.clone(), Loop::Kiln)?;
    let settings = &setup.settings.run;
    let (batch_size, micro_batch) = (settings.batch_size, settings.micro_batch.unwrap_or(settings.batch_size));
    let micro_batch = micro_batch.min(batch_size);
    let planner = builder.planner(&backend, &sample, batch_size)?;
    let plain_step = planner.evaluate(settings.precision, &Plan::none(planner.blocks()), micro_batch, u64::MAX)?;
    let prediction = planner.predict(&plain_step)?;
    drop(planner);

    let marks: Arc<Mutex<Vec<(Boundary, Instant)>>> = Arc::default();
    let (seen, fence) = (marks.clone(), plain.clone());
    let builder = builder.with_guard(move |boundary| {
        let _ = fence.sync(); // work that was submitted before the boundary belongs before it
        seen.lock().unwrap_or_else(PoisonError::into_inner).push((boundary, Instant::now()));
        Ok(())
    });
    let mut trainer = builder.build(&device, &sample)?;
    let mut steps: Vec<BTreeMap<usize, f64>> = vec![];
    for batch in batches.iter().cycle().take(WARMUP + STEPS) {
        let begun = Instant::now();
        let _ = trainer.step(batch)?;
        device.sync()?;
        let marks = std::mem::take(&mut *marks.lock().unwrap_or_else(PoisonError::into_inner));
        steps.push(parts(begun, &marks, Instant::now()));
    }
    let steps = &steps[WARMUP..];

    let mut text = format!("{case}: {} on {}\n\n", case.what, backend.name);
    text += &phases(steps, &prediction, batch_size.div_ceil(micro_batch));
    if on_heap {
        let (task, batch) = (trainer.task(), batches[0].slice(0..micro_batch));
        let copy = trainer.model().valid().train(); // running statistics move while blocks are measured
        let measure = |_| {
            let (x, _) = task.begin(&copy, &batch, &device);
            measure_blocks(&Chain::new(&task.blocks(&copy)).deterministic(), x, P::forward, &heap_use)
        };
        let measured: Vec<Vec<Cost>> = (0..STEPS).map(measure).collect();
        text += &format!("\n{}", blocks(&measured));
    }
    text += &format!("\n{}", kinds(&operations(&prediction)));
    writeln!(std::io::stdout().lock(), "{text}")?;
    Ok(ExitCode::SUCCESS)
}

/// The part of a step after each boundary, and the part before the first.
const PARTS: [&str; 6] = [
    "waiting for the device",
    "copying in, forward",
    "backward",
    "adding up, statistics",
    "norm, loss, proof",
    "update",
];

/// Seconds of each of [`PARTS`].
fn parts(begun: Instant, marks: &[(Boundary, Instant)], ended: Instant) -> BTreeMap<usize, f64> {
    let mut parts = BTreeMap::new();
    let (mut part, mut from) = (0, begun);
    let last = [(None, ended)];
    for (next, at) in marks.iter().map(|(boundary, at)| (Some(*boundary), *at)).chain(last) {
        *parts.entry(part).or_insert(0.0) += at.duration_since(from).as_secs_f64();
        from = at;
        part = match next {
            Some(Boundary::CopyIn) => 1,
            Some(Boundary::Forward) => 2,
            Some(Boundary::Backward | Boundary::Accumulate) => 3,
            Some(Boundary::Probe) => 4,
            Some(Boundary::Update | Boundary::HandOut) | None => 5,
        };
    }
    parts
}

/// Measured parts of a step, beside the estimated time of the operations of its phases.
fn phases(steps: &[BTreeMap<usize, f64>], prediction: &Prediction, micro_batches: usize) -> String {
    let whole: f64 = median(steps.iter().map(|step| step.values().sum()));
    let estimated = |phase: Phase| {
        let spans = prediction.phases.iter().filter(|span| span.phase == phase);
        let seconds: f64 =
            spans.flat_map(|span| &prediction.operations[span.first..span.end]).map(|op| op.seconds).sum();
        seconds * if phase == Phase::Optimizer { 1.0 } else { micro_batches as f64 }
    };
    let rows: Vec<Vec<String>> = PARTS
        .iter()
        .enumerate()
        .map(|(part, name)| {
            let measured = median(steps.iter().map(|step| step.get(&part).copied().unwrap_or(0.0)));
            let phase = match part {
                1 => Some(Phase::Forward),
                2 => Some(Phase::Backward),
                5 => Some(Phase::Optimizer),
                _ => None,
            };
            vec![
                name.to_string(),
                format!("{:.2}", 1e3 * measured),
                format!("{:.1} %", 100.0 * measured / whole),
                phase.map_or(String::new(), |phase| format!("{:.2}", 1e3 * estimated(phase))),
            ]
        })
        .collect();
    markdown(&["Part of a step", "measured, ms", "of it", "operations estimated, ms"], &rows)
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    Spread::of(values).map_or(0.0, |spread| spread.median)
}

/// Blocks of the chain, measured alone.
fn blocks(measured: &[Vec<Cost>]) -> String {
    let Some(first) = measured.first() else { return String::new() };
    let rows: Vec<Vec<String>> = first
        .iter()
        .enumerate()
        .map(|(block, cost)| {
            let forward = median(measured.iter().filter_map(|costs| Some(costs.get(block)?.forward)));
            let mib = |bytes: u64| format!("{:.2}", bytes as f64 / MIB);
            vec![block.to_string(), format!("{:.2}", 1e3 * forward), mib(cost.saved), mib(cost.workspace)]
        })
        .collect();
    markdown(&["Block", "forward alone, ms", "kept for backward, MiB", "besides while it runs, MiB"], &rows)
}

/// All operations of one name.
#[derive(Clone, Debug, Default, PartialEq)]
struct Kind {
    name: String,
    calls: usize,
    /// Estimated.
    seconds: f64,
    /// Bytes of the buffers that it made during the step.
    made: u64,
    /// Bytes of these buffers that are live at the peak.
    at_peak: u64,
}

/// Operations by name. Those with the longest estimated time are first.
fn operations(prediction: &Prediction) -> Vec<Kind> {
    let mut kinds: BTreeMap<&str, Kind> = BTreeMap::new();
    for operation in &prediction.operations {
        let kind = kinds.entry(&operation.name).or_default();
        kind.calls += 1;
        kind.seconds += operation.seconds;
    }
    for buffer in &prediction.buffers {
        let kind = kinds.entry(&buffer.operation).or_default();
        kind.made += buffer.bytes;
        if (buffer.born..=buffer.dies).contains(&prediction.peak_at) {
            kind.at_peak += buffer.bytes;
        }
    }
    let mut kinds: Vec<Kind> = kinds.into_iter().map(|(name, kind)| Kind { name: name.into(), ..kind }).collect();
    kinds.sort_by(|a, b| b.seconds.total_cmp(&a.seconds).then(b.made.cmp(&a.made)));
    kinds
}

fn kinds(kinds: &[Kind]) -> String {
    let whole: f64 = kinds.iter().map(|kind| kind.seconds).sum();
    let row = |kind: &Kind| {
        let mib = |bytes: u64| format!("{:.2}", bytes as f64 / MIB);
        vec![
            kind.name.clone(),
            kind.calls.to_string(),
            format!("{:.2}", 1e3 * kind.seconds),
            format!("{:.1} %", 100.0 * kind.seconds / whole),
            mib(kind.made),
            mib(kind.at_peak),
        ]
    };
    let mut rows: Vec<Vec<String>> = kinds.iter().take(KINDS).map(row).collect();
    if let Some(rest) = kinds.get(KINDS..).filter(|rest| !rest.is_empty()) {
        let all =
            rest.iter().fold(Kind { name: format!("{} others", rest.len()), ..Kind::default() }, |sum, kind| Kind {
                calls: sum.calls + kind.calls,
                seconds: sum.seconds + kind.seconds,
                made: sum.made + kind.made,
                at_peak: sum.at_peak + kind.at_peak,
                ..sum
            });
        rows.push(row(&all));
    }
    markdown(&["Operation", "calls", "estimated, ms", "of it", "made, MiB", "alive at the peak, MiB"], &rows)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use burn::nn::{Linear, LinearConfig};
    use burn::optim::SgdConfig;
    use burn::tensor::Tensor;
    use kiln_memory::{BackendProfile, StepOptions, record_step};

    use super::*;

    #[test]
    fn time_belongs_to_the_boundary_before_it() {
        let begun = Instant::now();
        let at = |ms| begun + Duration::from_millis(ms);
        let marks = [
            (Boundary::CopyIn, at(1)),
            (Boundary::Forward, at(11)),
            (Boundary::Backward, at(31)),
            (Boundary::Accumulate, at(32)),
            (Boundary::CopyIn, at(33)),
            (Boundary::Forward, at(43)),
            (Boundary::Backward, at(63)),
            (Boundary::Accumulate, at(64)),
            (Boundary::Probe, at(65)),
            (Boundary::Update, at(70)),
            (Boundary::Update, at(75)),
        ];
        let found: Vec<u64> = parts(begun, &marks, at(80)).values().map(|s| (s * 1e3).round() as u64).collect();
        assert_eq!(found, [1, 20, 40, 4, 5, 10]);
    }

    #[test]
    fn operations_add_up_to_the_step() {
        let trace = record_step(
            |device| LinearConfig::new(64, 64).init(device),
            |model: &Linear, step| model.forward(Tensor::<2>::zeros([step.batch(), 64], step.device())).square().mean(),
            &SgdConfig::new().build(),
            StepOptions::default(),
        )
        .unwrap();
        let prediction = trace.predict(16, &BackendProfile::flex()).unwrap();
        let kinds = operations(&prediction);
        assert_eq!(kinds.iter().map(|kind| kind.calls).sum::<usize>(), prediction.operations.len());
        assert_eq!(kinds.iter().map(|kind| kind.at_peak).sum::<u64>(), prediction.peak_bytes);
        assert!(kinds.iter().any(|kind| kind.name == "Matmul" && kind.calls >= 2 && kind.made > 0));
        assert!(kinds.windows(2).all(|pair| pair[0].seconds >= pair[1].seconds));
    }

    #[test]
    fn operations_beyond_the_table_are_summed_up() {
        let kind = |n: usize| Kind { name: format!("Op{n}"), calls: 1, seconds: 1.0, made: 0, at_peak: 0 };
        let text = kinds(&(0..KINDS + 3).map(kind).collect::<Vec<_>>());
        let last = text.lines().last().unwrap();
        assert!(last.starts_with("| 3 others") && last.contains(" 3000.00 |"), "{text}");
    }
}
