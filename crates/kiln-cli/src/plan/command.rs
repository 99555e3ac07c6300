//! The command of `train` that takes the planned steps.

use kiln_checkpointing::Plan as Checkpoints;
use kiln_precision::Precision;
use kiln_training::{DeviceLayout, PlannedOptimizer, StagePlan, StepPlan};

use crate::cli::{PlanArgs, program};
use crate::device::gpu;
use crate::shell::quoted;

/// The widest line of a command.
const WIDTH: usize = 76;

/// How a planned step is taken.
pub(super) struct Steps<'a> {
    micro_batch: usize,
    precision: Precision,
    checkpoints: &'a Checkpoints,
    optimizer: &'a PlannedOptimizer,
    /// How it is divided among devices.
    layout: Option<&'a DeviceLayout>,
}

impl<'a> From<&'a StepPlan> for Steps<'a> {
    fn from(StepPlan { micro_batch, precision, checkpoints, optimizer, .. }: &'a StepPlan) -> Self {
        Self { micro_batch: *micro_batch, precision: *precision, checkpoints, optimizer, layout: None }
    }
}

impl<'a> From<&'a StagePlan> for Steps<'a> {
    fn from(plan: &'a StagePlan) -> Self {
        Self { layout: Some(&plan.layout), ..Self::from(&plan.step) }
    }
}

/// The words of a command: those that say what is trained (`train`, the pipeline, its data and its model), followed by the options of the
/// planned steps.
pub(super) fn words<'a>(what: &[String], arguments: &PlanArgs, steps: impl Into<Steps<'a>>) -> Vec<String> {
    let steps = steps.into();
    let mut words = begin(what, arguments);
    words.extend(["--micro-batch".into(), steps.micro_batch.to_string()]);
    if arguments.exact {
        words.push("--exact".into());
    }
    words.extend(["--precision".into(), steps.precision.to_string()]);
    if let Some(stored) = arguments.parameters {
        words.extend(["--parameters".into(), stored.to_string()]);
    }
    if steps.checkpoints.recomputed() > 0 {
        words.extend(["--checkpointing".into(), steps.checkpoints.to_string()]);
    }
    if let (Some(store), true) = (&arguments.store, steps.checkpoints.streams()) {
        words.extend(["--store".into(), store.display().to_string()]);
    }
    let optimizer = match steps.optimizer {
        PlannedOptimizer::Other { name, .. } => Some(name.clone()),
        _ => arguments.optimizer.map(str::to_owned),
    };
    words.extend(optimizer.into_iter().flat_map(|name| ["--optimizer".into(), name]));
    if steps.optimizer.is_on_host() {
        words.push("--optimizer-offload".into());
    }
    if let Some(layout) = steps.layout {
        division(&mut words, layout, gpu(&arguments.device).map(|(runtime, _)| runtime.word));
    }
    if is_on_gpu(arguments) {
        words.extend(["--device".into(), arguments.device.clone()]);
    }
    words
}

fn is_on_gpu(arguments: &PlanArgs) -> bool {
    arguments.device != "flex"
}

/// Adds the options that divide a step among devices, which on GPUs are of this kind.
fn division(words: &mut Vec<String>, layout: &DeviceLayout, kind: Option<&str>) {
    let (stages, replicas) = (layout.stages(), layout.replicas);
    let places = |count: usize, named: bool| match kind.filter(|_| named) {
        Some(kind) => (0..count).map(|index| format!("{kind}:{index}")).collect::<Vec<_>>().join(","),
        None => count.to_string(),
    };
    if stages > 1 {
        words.extend(["--stages".into(), places(stages, replicas == 1)]);
        words.extend(["--pipeline-schedule".into(), layout.schedule.to_string()]);
    }
    if replicas > 1 {
        words.extend(["--replicas".into(), places(replicas, stages == 1)]);
    }
    if layout.shards_optimizer {
        words.push("--shard-optimizer".into());
    }
}

/// Notes on the differences between the command and `train` with only a memory limit.
pub(super) fn notes(arguments: &PlanArgs, plan: &StepPlan) -> Vec<String> {
    let memory = &arguments.memory.text;
    let bits = (plan.precision != Precision::F32 && arguments.precision.or(arguments.parameters).is_none())
        .then_some("--allow-bf16");
    let small =
        (!plan.optimizer.has_same_numbers() && arguments.optimizer.is_none()).then_some("--allow-8bit-optimizer");
    let allowed: Vec<&str> = bits.into_iter().chain(small).collect();
    let mut notes = vec![];
    if !allowed.is_empty() {
        let allowed = allowed.join(" and ");
        notes.push(format!(
            "`train --memory {}{memory}` alone keeps f32 and the optimizer of the recipe.\n\
             With {allowed} it chooses among such ways too.",
            if is_on_gpu(arguments) { "" } else { "step:" }
        ));
    }
    if !is_on_gpu(arguments) {
        notes.push(format!(
            "The command has no --memory: on the CPU that is the whole process, and the loader\n\
             takes a part too. `train --memory step:{memory}` plans with the data."
        ));
    }
    notes
}

fn begin(what: &[String], arguments: &PlanArgs) -> Vec<String> {
    let mut words: Vec<String> = program().split(' ').map(str::to_owned).collect();
    words.extend(what.iter().cloned());
    words.extend(["--batch-size".into(), arguments.batch_size.to_string()]);
    if is_on_gpu(arguments) {
        // On the CPU process and loader take a part of the limit, which the plan does not include; see `notes`.
        words.extend(["--memory".into(), arguments.memory.text.clone()]);
    }
    if arguments.stock_layers {
        words.push("--stock-layers".into());
    }
    words
}

/// The command in a shell's notation. If it is too long, its lines end in a backslash.
pub(super) fn shown(words: &[String]) -> String {
    let (mut text, mut column) = ("  ".to_owned(), 2);
    let mut words = words.iter().peekable();
    let mut first = true;
    while let Some(word) = words.next() {
        let mut part = quoted(word);
        // An option and its value stay on one line.
        if word.starts_with("--")
            && let Some(value) = words.next_if(|next| !next.starts_with("--"))
        {
            part = format!("{part} {}", quoted(value));
        }
        let width = part.chars().count();
        if !first && column + 1 + width > WIDTH {
            text.push_str(" \\\n     ");
            column = 5;
        }
        if !first {
            text.push(' ');
            column += 1;
        }
        first = false;
        text.push_str(&part);
        column += width;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::shown;

    #[test]
    fn a_long_command_has_lines_that_a_shell_joins() {
        let words: Vec<String> =
            ["kiln", "train", "gpt", "--data", "my book.txt", "--checkpointing", "0..2 recompute, 2..4 plain"]
                .iter()
                .chain(&["--model", "gpt2-medium", "--batch-size", "512", "--optimizer-offload"])
                .map(|word| (*word).to_owned())
                .collect();
        let text = shown(&words);
        assert!(text.lines().count() > 1 && text.lines().all(|line| line.chars().count() <= 80), "{text}");
        let (last, others) =
            text.lines().collect::<Vec<_>>().split_last().map(|(l, o)| (l.to_string(), o.to_vec())).unwrap();
        assert!(!last.ends_with('\\') && others.iter().all(|line| line.ends_with('\\')), "{text}");
        assert!(text.contains("--data 'my book.txt'") && text.contains("'0..2 recompute, 2..4 plain'"), "{text}");
    }
}
