//! Runs one item within this process.

use anyhow::{Context as _, Result};

use super::arguments::GpuArguments;
use super::context::{Context, Skip};
use super::failures::{caught, one_line};
use super::findings::{Findings, Outcome, Record};
use super::{arithmetic, curves, facts, out_of_memory, overhead, plans, prediction, speed, torch, uploads};
use crate::provenance::Provenance;

/// The items in the order of the list.
const RUN: [fn(&mut Context) -> Result<()>; 10] = [
    facts::run,
    arithmetic::run,
    torch::run,
    curves::run,
    plans::run,
    prediction::run,
    out_of_memory::run,
    uploads::run,
    overhead::run,
    speed::run,
];

/// Runs item `number`. The parent reads the outcome from the item's file.
pub(crate) fn run(arguments: &GpuArguments, number: usize) -> Result<()> {
    let folder = arguments.out.as_ref().context("--child needs --out")?;
    let size = arguments.size();
    let provenance = Provenance::collect(&arguments.device).with_sizes(size);
    let record = Record::begin(folder, Findings::new(number, provenance))?;
    let mut context = Context::new(arguments, number, record)?;
    let (outcome, reason) = match caught(|| RUN[number - 1](&mut context)) {
        Ok(()) => match context.asked_in_vain() {
            Some(only) => (Outcome::Error, Some(format!("no part's name contains '{only}'"))),
            None => (context.record.findings.verdict(), None),
        },
        Err(error) if error.is::<Skip>() => (Outcome::Skipped, Some(error.to_string())),
        Err(error) => (Outcome::Error, Some(one_line(&format!("{error:#}")))),
    };
    context.record.end(outcome, reason)
}
