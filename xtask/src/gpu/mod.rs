//! `cargo xtask gpu`: what is true on a card, as a numbered list. Each item runs in a process of its own, ends in pass or
//! fail with figures, and stops none of the others.
//!
//! [`runner`] starts the items, an item writes [`findings`] as it goes, and [`page`] makes `docs/results.md` of what is
//! committed.

mod archive;
mod context;
mod findings;
mod measure;
mod models;
mod nvidia;
mod page;
mod provenance;
mod runner;

mod arithmetic;
mod ballast;
mod beside;
mod curves;
mod facts;
mod messages;
mod out_of_memory;
mod overhead;
mod plans;
mod prediction;
mod reference;
mod speed;
mod torch;
mod uploads;

use std::process::ExitCode;

use anyhow::{Result, bail};

use crate::cli::Gpu;
use crate::usage::Usage;
use context::Context;

pub(crate) use nvidia::Card;
pub(crate) use provenance::card_index;

/// One entry of the list.
pub(crate) struct Item {
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    /// It is ended after so many, times the patience that was asked for.
    pub(crate) seconds: u64,
    run: fn(&mut Context) -> Result<()>,
}

/// In the order of their numbers, which begin with 1.
pub(crate) const ITEMS: [Item; 10] = [
    Item { name: "facts", title: "What the device is, and which formats it computes in", seconds: 15, run: facts::run },
    Item { name: "arithmetic", title: "Operations in f32, f16 and bf16", seconds: 40, run: arithmetic::run },
    Item { name: "torch", title: "PyTorch's speed, memory and largest batch", seconds: 85, run: torch::run },
    Item { name: "curves", title: "Both pipelines: losses beside the CPU's", seconds: 70, run: curves::run },
    Item { name: "plans", title: "Checkpoint plans: gradients, memory, time", seconds: 45, run: plans::run },
    Item { name: "prediction", title: "Predicted and measured memory", seconds: 45, run: prediction::run },
    Item { name: "out-of-memory", title: "Memory that runs out, for real", seconds: 50, run: out_of_memory::run },
    Item { name: "uploads", title: "Uploads beside the step", seconds: 20, run: uploads::run },
    Item { name: "overhead", title: "Kiln's step beside burn's loop", seconds: 50, run: overhead::run },
    Item { name: "speed", title: "Kiln's speed, memory and largest batch", seconds: 85, run: speed::run },
];

pub(crate) fn run(arguments: &Gpu) -> Result<ExitCode> {
    if let Some(request) = &arguments.curve {
        return curves::child(&arguments.device, request);
    }
    let chosen = chosen(&arguments.items)?;
    if arguments.child {
        for number in chosen {
            context::child(arguments, number)?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    if arguments.list {
        return list().map(|()| ExitCode::SUCCESS);
    }
    if arguments.page {
        return page::write().map(|()| ExitCode::SUCCESS);
    }
    runner::run(arguments, &chosen)
}

/// The numbers that were asked for, in order; all when none was.
fn chosen(items: &[usize]) -> Result<Vec<usize>> {
    if let Some(number) = items.iter().find(|number| !(1..=ITEMS.len()).contains(*number)) {
        bail!(Usage(format!("there is no item {number}, expected 1 to {}; see --list", ITEMS.len())));
    }
    let mut chosen = if items.is_empty() { (1..=ITEMS.len()).collect() } else { items.to_vec() };
    chosen.sort_unstable();
    chosen.dedup();
    Ok(chosen)
}

fn list() -> Result<()> {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    for (index, item) in ITEMS.iter().enumerate() {
        writeln!(out, "{:>2}  {:<14} {:<52} at most {:>3} s", index + 1, item.name, item.title, item.seconds)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_fits_into_nine_minutes() {
        assert!(ITEMS.iter().map(|item| item.seconds + runner::GRACE).sum::<u64>() <= 540);
    }

    #[test]
    fn items_are_chosen_by_number() {
        assert_eq!(chosen(&[]).unwrap(), Vec::from_iter(1..=10));
        assert_eq!(chosen(&[4, 2, 4]).unwrap(), [2, 4]);
        for wrong in [0, 11] {
            assert!(chosen(&[1, wrong]).unwrap_err().to_string().contains("expected 1 to 10"));
        }
    }
}
