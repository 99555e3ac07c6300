//! Plans of a step as a table of at most 80 columns.

use std::fmt::Write;

use kiln_checkpointing::Plan as Checkpoints;
use kiln_memory::largest_within;
use kiln_training::StepPlan;

/// The longest checkpoint plan that is written in full: without, and with a column for missing memory.
const WIDEST: [usize; 2] = [19, 10];

/// Facts that a table depends on.
pub(super) struct Facts<'a> {
    /// The name of the recipe's optimizer.
    pub(super) optimizer: &'a str,
    /// Seconds of the fastest of all plans.
    pub(super) quickest: f64,
    /// Bytes that a step may take.
    pub(super) limit: u64,
}

/// The rows of `plans`. If one does not fit, a column says how much memory is missing.
pub(super) fn table(plans: &[StepPlan], chosen: Option<&StepPlan>, facts: &Facts<'_>) -> String {
    let unit = Unit::of(plans.iter().map(|plan| plan.peak_bytes).max().unwrap_or(0));
    let lacking = plans.iter().any(|plan| !plan.fits);
    let lacks = if lacking { format!("{:>7}  ", "lacks") } else { String::new() };
    let mut text = format!(
        "  {:<9}  {:>11}  {:>9}  {lacks}{:>5}  {:<12}  checkpointing\n",
        "precision",
        "micro-batch",
        format!("peak, {}", unit.name),
        "time",
        "optimizer",
    );
    for plan in plans {
        let lacks = match (lacking, plan.fits) {
            (false, _) => String::new(),
            (true, true) => format!("{:>7}  ", "-"),
            (true, false) => {
                let lacks = plan.peak_bytes.saturating_sub(largest_within(facts.limit));
                format!("{:>7}  ", unit.show(lacks))
            }
        };
        let _ = writeln!(
            text,
            "{} {:<9}  {:>11}  {:>9}  {lacks}{:>5.2}  {:<12}  {}",
            if chosen == Some(plan) { '>' } else { ' ' },
            plan.precision.to_string(),
            format!("{}{}", plan.micro_batch, if plan.same_bits { "=" } else { "" }),
            unit.show(plan.peak_bytes),
            plan.seconds / facts.quickest,
            optimizer(plan, facts.optimizer),
            checkpointing(&plan.checkpoints, widest(plans)),
        );
    }
    text
}

/// Explains the columns and their words.
pub(super) fn legend(plans: &[StepPlan], is_one_chosen: bool) -> String {
    let shown: Vec<String> = plans.iter().map(|plan| checkpointing(&plan.checkpoints, widest(plans))).collect();
    let lines = [
        (is_one_chosen, ">         the way that is chosen"),
        (plans.iter().any(|plan| plan.same_bits), "N=        any other micro-batch gives the same bits"),
        (true, "peak      predicted bytes of a step; the limit has room for 2 % more"),
        (true, "time      estimated, relative to the fastest way of all, which may not fit"),
        (plans.iter().any(|plan| plan.optimizer.is_on_host()), "host      the optimizer's state is in host memory"),
        (
            shown.iter().any(|text| text.contains("every:")),
            "every:N   each segment of N blocks keeps its input and is recomputed",
        ),
        (shown.iter().any(|text| text.contains(" of ")), "N of M    N of the M blocks are recomputed"),
        (shown.iter().any(|text| text.contains("..")), "A..B      the blocks from A to B - 1"),
        (
            shown.iter().any(|text| text.contains("stream")),
            "stream    parameters of such blocks are read from the store for each pass",
        ),
        (shown.iter().any(|text| text.contains("offload")), "offload   what segments keep is in host memory"),
    ];
    lines.into_iter().filter(|(is_shown, _)| *is_shown).map(|(_, line)| format!("{line}\n")).collect()
}

/// The longest checkpoint plan that fits beside the other columns.
fn widest(plans: &[StepPlan]) -> usize {
    WIDEST[usize::from(plans.iter().any(|plan| !plan.fits))]
}

fn optimizer(plan: &StepPlan, own: &str) -> String {
    let host = if plan.optimizer.is_on_host() { ", host" } else { "" };
    format!("{}{host}", plan.optimizer.name(own))
}

/// The plan if it is short, else the number of blocks that it recomputes.
fn checkpointing(plan: &Checkpoints, widest: usize) -> String {
    match plan.recomputed() {
        0 => "none".into(),
        recomputed => {
            let text = plan.to_string();
            match plan.streams() {
                _ if text.chars().count() <= widest => text,
                true => format!("{} streamed", plan.streamed()),
                false => format!("{recomputed} of {}", plan.blocks()),
            }
        }
    }
}

/// The unit of a column.
struct Unit {
    name: &'static str,
    bytes: f64,
}

impl Unit {
    /// The unit in which `largest` is easy to read.
    fn of(largest: u64) -> Self {
        match largest {
            0..0x4000_0000 => Self { name: "MiB", bytes: f64::from(1 << 20) },
            _ => Self { name: "GiB", bytes: f64::from(1 << 30) },
        }
    }

    fn show(&self, bytes: u64) -> String {
        match bytes as f64 / self.bytes {
            large if large >= 100.0 => format!("{large:.0}"),
            small if small >= 10.0 => format!("{small:.1}"),
            small => format!("{small:.2}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Unit, checkpointing};
    use kiln_checkpointing::Plan;

    #[test]
    fn sizes_have_three_digits() {
        let shown = |bytes: u64| (Unit::of(bytes).name, Unit::of(bytes).show(bytes));
        assert_eq!(shown(3 << 29), ("GiB", "1.50".into()));
        assert_eq!(shown(24 << 30), ("GiB", "24.0".into()));
        assert_eq!(shown(300 << 20), ("MiB", "300".into()));
    }

    #[test]
    fn lines_of_the_legend_fit() {
        assert!(super::legend(&[], true).lines().all(|line| line.chars().count() <= 80));
    }

    #[test]
    fn a_long_plan_is_a_count() {
        assert_eq!(checkpointing(&Plan::none(16), 19), "none");
        assert!(checkpointing(&Plan::every(16, 4).unwrap(), 19).len() <= 19);
        assert!(checkpointing(&Plan::every(16, 3).unwrap(), 5).contains(" of 16"));
    }
}
