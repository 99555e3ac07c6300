//! A plain burn loop that needs too much memory, and the same training within a byte budget: the steps of
//! `docs/tutorial-own-loop.md`.
//!
//! `cargo run --example own_loop`, or `cargo run --example own_loop -- 16` for a budget of 16 MiB.

mod budgeted;
mod data;
mod measured;
mod net;
mod plain;

use std::error::Error;
use std::process::ExitCode;

use measured::Outcome;

fn main() -> ExitCode {
    match compare() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn compare() -> Result<(), Box<dyn Error>> {
    let budget = std::env::args().nth(1).map_or(Ok(64), |mebibytes| mebibytes.parse::<u64>())? << 20;
    let batches = data::batches()?;
    let plain = plain::train(&batches)?;
    say("plain loop", &plain);
    let budgeted = budgeted::train(&batches, budget)?;
    say("with Kiln ", &budgeted);

    // What the tutorial says about these two runs.
    if plain.peak_bytes <= budget || budgeted.peak_bytes > budget {
        return Err(format!("peaks of {} and {} bytes, for {budget}", plain.peak_bytes, budgeted.peak_bytes).into());
    }
    if (plain.loss - budgeted.loss).abs() > 0.05 {
        return Err(format!("losses of {} and {}, which differ by more than 0.05", plain.loss, budgeted.loss).into());
    }
    Ok(())
}

#[allow(clippy::print_stdout, reason = "an example shows what it does")]
fn say(name: &str, outcome: &Outcome) {
    println!("{name}: loss {:.3}, peak {:.1} MiB", outcome.loss, outcome.peak_bytes as f64 / f64::from(1 << 20));
}
