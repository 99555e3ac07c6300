//! The command of `train` that takes the planned steps.

use kiln_checkpointing::Plan as Checkpoints;
use kiln_precision::Precision;
use kiln_training::{PlannedOptimizer, StagePlan, StepPlan};

use crate::cli::{PlanArgs, program};
use crate::shell::quoted;

/// The widest line of a command.
const WIDTH: usize = 76;

/// The words of a command: those that say what is trained (`train`, the pipeline, its data and its model), followed by the options of the
/// plan.
pub(super) fn of_plan(what: &[String], arguments: &PlanArgs, plan: &StepPlan) -> Vec<String> {
    let mut words = begin(what, arguments);
    words.extend(["--micro-batch".into(), plan.micro_batch.to_string()]);
    words.extend(["--precision".into(), plan.precision.to_string()]);
    checkpointing(&mut words, &plan.checkpoints);
    optimizer(&mut words, &plan.optimizer, arguments);
    if arguments.device == "cuda" {
        words.extend(["--device".into(), "cuda:0".into()]);
    }
    words
}

/// The words of a command as in [`of_plan`], for a step that is divided among devices.
pub(super) fn of_stages(what: &[String], arguments: &PlanArgs, plan: &StagePlan) -> Vec<String> {
    let mut words = begin(what, arguments);
    words.extend(["--micro-batch".into(), plan.micro_batch.to_string()]);
    words.extend(["--precision".into(), plan.precision.to_string()]);
    checkpointing(&mut words, &plan.checkpoints);
    optimizer(&mut words, &plan.optimizer, arguments);
    let (stages, replicas, on_card) = (plan.layout.stages(), plan.layout.replicas, arguments.device == "cuda");
    let places = |count: usize, named: bool| match named {
        true => (0..count).map(|index| format!("cuda:{index}")).collect::<Vec<_>>().join(","),
        false => count.to_string(),
    };
    if stages > 1 {
        words.extend(["--stages".into(), places(stages, on_card && replicas == 1)]);
        words.extend(["--schedule".into(), plan.layout.schedule.to_string()]);
    }
    if replicas > 1 {
        words.extend(["--replicas".into(), places(replicas, on_card && stages == 1)]);
    }
    if plan.layout.shards_optimizer {
        words.push("--shard-optimizer".into());
    }
    if on_card {
        words.extend(["--device".into(), "cuda:0".into()]);
    }
    words
}

/// Notes on the differences between the command and `train` with only a memory limit.
pub(super) fn notes(arguments: &PlanArgs, plan: &StepPlan) -> Vec<String> {
    let memory = arguments.memory.replace(' ', "");
    let bits = (plan.precision != Precision::F32 && arguments.precision.is_none()).then_some("--allow-bf16");
    let small =
        (!plan.optimizer.has_same_numbers() && arguments.optimizer.is_none()).then_some("--allow-8bit-optimizer");
    let allowed: Vec<&str> = bits.into_iter().chain(small).collect();
    let mut notes = vec![];
    if !allowed.is_empty() {
        let allowed = allowed.join(" and ");
        notes.push(format!(
            "`train --memory {memory}` alone keeps f32 and the optimizer of the recipe.\n\
             With {allowed} it chooses among such ways too."
        ));
    }
    if arguments.device != "cuda" {
        notes.push(format!(
            "The command has no --memory: on the CPU the loader takes a part of it, which\n\
             depends on the data. `train --memory {memory}` plans with the data."
        ));
    }
    notes
}

fn begin(what: &[String], arguments: &PlanArgs) -> Vec<String> {
    let mut words: Vec<String> = program().split(' ').map(str::to_owned).collect();
    words.extend(what.iter().cloned());
    words.extend(["--batch-size".into(), arguments.batch_size.to_string()]);
    if arguments.device == "cuda" {
        // On the CPU the loader takes a part of the limit, which the plan does not include; see `notes`.
        words.extend(["--memory".into(), arguments.memory.replace(' ', "")]);
    }
    if arguments.stock_layers {
        words.push("--stock-layers".into());
    }
    words
}

fn optimizer(words: &mut Vec<String>, planned: &PlannedOptimizer, arguments: &PlanArgs) {
    match (planned, &arguments.optimizer) {
        (PlannedOptimizer::Other { name, .. }, _) | (_, Some(name)) => {
            words.extend(["--optimizer".into(), name.clone()])
        }
        _ => {}
    }
    if planned.is_on_host() {
        words.push("--optimizer-offload".into());
    }
}

fn checkpointing(words: &mut Vec<String>, plan: &Checkpoints) {
    if plan.recomputed() > 0 {
        words.extend(["--checkpointing".into(), plan.to_string()]);
    }
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
