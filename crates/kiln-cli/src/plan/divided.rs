//! The predicted load of each device of a divided step, as a table.

use std::fmt::Write as _;
use std::io::Write;

use crate::output::print_json;
use crate::usage::Usage;
use anyhow::{Result, bail};
use bytesize::ByteSize;
use kiln_training::{DeviceLayout, PlannedOptimizer, Planner, StageLoad, StagePlan};
use serde_json::json;

use super::command;
use crate::cli::PlanArgs;
use crate::device::gpu;
use kiln_report::counted;

/// The division that the options ask for, if any.
pub(super) fn layout(arguments: &PlanArgs) -> Result<Option<DeviceLayout>> {
    let PlanArgs { stages, pipeline_schedule: schedule, replicas, shard_optimizer, .. } = arguments;
    if stages.is_none() && replicas.is_none() {
        if *shard_optimizer {
            bail!(Usage("--shard-optimizer divides the optimizer's state, expected --replicas beside it".into()));
        }
        if let Some(schedule) = schedule {
            bail!(Usage(format!("--pipeline-schedule is {schedule}, expected --stages beside it")));
        }
        return Ok(None);
    }
    let (stages, replicas) = (stages.unwrap_or(1) as usize, replicas.unwrap_or(1) as usize);
    if *shard_optimizer && replicas == 1 {
        bail!(Usage("--shard-optimizer divides the optimizer's state, expected 2 or more --replicas".into()));
    }
    let batch = arguments.batch_size as usize;
    if !batch.is_multiple_of(replicas) {
        bail!(Usage(format!(
            "--batch-size is {batch}, expected a multiple of the {replicas} replicas, which divide it"
        )));
    }
    let layout =
        DeviceLayout::new(stages).with_schedule(schedule.unwrap_or_default()).with_replicas(replicas, *shard_optimizer);
    // The CPU has one memory for all.
    Ok(Some(if arguments.device == "flex" { layout.on_one_device() } else { layout }))
}

/// Prints the fastest plan that fits into `limit` bytes on each device.
pub(super) fn print(
    (name, what): (&str, &[String]),
    arguments: &PlanArgs,
    planner: &Planner,
    layout: &DeviceLayout,
    limit: u64,
) -> Result<()> {
    let shared = arguments.device == "flex";
    let share = if shared { limit / layout.replicas as u64 } else { limit };
    let plan = planner.stage_plan(layout, share)?;
    let train = command::words(what, arguments, &plan);
    if arguments.json {
        let value = serde_json::to_value(&plan)?;
        return print_json(
            &json!({ "model": name, "batch": arguments.batch_size, "limit_bytes": limit, "plan": value, "command": train }),
        );
    }
    let each = if shared { "for all" } else { "on each device" };
    let mut out = std::io::stdout().lock();
    let kind = gpu(&arguments.device).map_or("flex", |(runtime, _)| runtime.word);
    writeln!(out, "{name}\nbatches of {}, {} {each} ({kind})\n", arguments.batch_size, ByteSize(limit))?;
    write!(out, "{}\n{}", heading(&plan), devices(&plan))?;
    writeln!(out, "\n{}", command::shown(&train))?;
    Ok(())
}

/// The division and the settings of the step, one fact in each line.
pub(crate) fn heading(plan: &StagePlan) -> String {
    let layout = &plan.layout;
    let mut text = String::new();
    if layout.replicas > 1 {
        let state = if layout.shards_optimizer { "optimizer state divided" } else { "each with all optimizer state" };
        let _ = writeln!(text, "replicas      {}, {state}, {} each", layout.replicas, counted(plan.batch, "sample"));
    }
    if layout.stages() > 1 {
        let (bubble, seconds) = (100.0 * plan.bubble, plan.seconds);
        let _ = writeln!(text, "stages        {}, {}, bubble {bubble:.1} %", layout.stages(), layout.schedule);
        let _ = writeln!(text, "step          {seconds:.3} s");
    }
    let _ = writeln!(text, "micro-batches {} of {}, {}", plan.micro_batches(), plan.micro_batch, plan.precision);
    if plan.optimizer != PlannedOptimizer::Own {
        let _ = writeln!(text, "optimizer     {}", plan.optimizer);
    }
    if plan.checkpoints.recomputed() > 0 {
        let _ = writeln!(text, "recomputed    {}", plan.checkpoints);
    }
    text
}

/// One row for each stage, at most 80 columns wide for fewer than 100 blocks.
pub(crate) fn devices(plan: &StagePlan) -> String {
    let (unit, bytes) = match plan.loads.iter().map(|load| load.peak_bytes).max() {
        Some(most) if most >= 1 << 30 => ("GiB", (1u64 << 30) as f64),
        _ => ("MiB", (1u64 << 20) as f64),
    };
    let size = |of: u64| match of as f64 / bytes {
        large if large >= 100.0 => format!("{large:.0}"),
        small => format!("{small:.2}"),
    };
    let mut text = format!(
        "{:<5}  {:<6}  {:>7}  {:>9}  {:>9}  {:>11}  {:>6}  {:>7}  {:>4}\n",
        unit, "blocks", "params", "gradients", "optimizer", "activations", "peak", "seconds", "idle"
    );
    for (stage, load) in plan.loads.iter().enumerate() {
        let StageLoad { blocks, in_flight, estimate, peak_bytes, idle, .. } = load;
        let passes = estimate.forward_seconds + estimate.backward_seconds;
        let seconds = passes * plan.micro_batches() as f64 + estimate.update_seconds;
        let _ = writeln!(
            text,
            "{stage:<5}  {:<6}  {:>7}  {:>9}  {:>9}  {:>11}  {:>6}  {seconds:>7.3}  {:>3.0}%",
            format!("{}-{}", blocks.start, blocks.end.saturating_sub(1)),
            size(estimate.parameter_bytes),
            size(estimate.gradient_bytes),
            size(estimate.optimizer_bytes),
            format!("{in_flight} x {}", size(estimate.activation_bytes)),
            size(*peak_bytes),
            100.0 * idle,
        );
    }
    text
}
