//! Rounds in which cases alternate.

use anyhow::{Context, Result};

use super::case::{Case, Group, REFERENCE};
use super::child::{Footprint, Process, Turn};
use super::results::Measured;
use super::statistics::{Spread, ratios};

/// Measures cases. Those of a group are compared with each other.
pub(crate) fn measure(cases: &[Case], device: &str, rounds: usize) -> Result<Vec<Measured>> {
    let mut measured = vec![];
    for group in Group::ALL {
        let cases: Vec<&Case> = cases.iter().filter(|case| case.group == group).collect();
        if cases.is_empty() {
            continue;
        }
        tracing::info!("{}: {} cases, {rounds} rounds", group.name(), cases.len());
        let mut processes = cases.iter().map(|case| Process::start(case, device)).collect::<Result<Vec<_>>>()?;
        let mut turns: Vec<Vec<Turn>> = vec![vec![]; cases.len()];
        for round in 0..rounds {
            for place in 0..cases.len() {
                let index = (round + place) % cases.len(); // nobody is always behind the same one
                turns[index].push(processes[index].turn()?);
            }
        }
        let footprints = processes.into_iter().map(Process::finish).collect::<Result<Vec<_>>>()?;
        let reference = cases.iter().position(|case| case.name == REFERENCE).map(|index| turns[index].clone());
        for ((case, turns), footprint) in cases.iter().zip(&turns).zip(footprints) {
            let one = summary(case, turns, reference.as_deref(), footprint);
            measured.push(one.with_context(|| format!("{case}: not one step was taken, all were skipped"))?);
        }
    }
    Ok(measured)
}

/// `None` if no turn counts.
fn summary(case: &Case, turns: &[Turn], reference: Option<&[Turn]>, footprint: Footprint) -> Option<Measured> {
    type Of = fn(&Turn) -> Option<f64>;
    let clock: Of = |turn| turn.counts.then_some(turn.seconds);
    let processor: Of = |turn| turn.processor_seconds.filter(|_| turn.counts);
    let all = |turns: &[Turn], of: Of| turns.iter().map(of).collect::<Vec<_>>();
    let spread = |of: Of| Spread::of(turns.iter().filter_map(of));
    let ratio = |of: Of| Spread::of(ratios(&all(turns, of), &all(reference?, of)));
    Some(Measured {
        name: case.to_string(),
        what: case.what.into(),
        options: case.options(),
        rounds: turns.len(),
        seconds: spread(clock)?,
        processor_seconds: spread(processor),
        ratio: ratio(clock),
        processor_ratio: ratio(processor),
        peak_bytes: turns.iter().map(|turn| turn.peak_bytes).max()?,
        resident_bytes: footprint.resident_bytes,
        reserved_bytes: footprint.reserved_bytes,
        micro_batches: turns.last()?.micro_batches,
        skipped: turns.iter().filter(|turn| !turn.counts).count(),
        failures: turns.iter().map(|turn| turn.failures).sum(),
    })
}

#[cfg(test)]
mod tests {
    use super::super::case::all;
    use super::*;

    fn turn(seconds: f64, counts: bool) -> Turn {
        let processor_seconds = Some(2.0 * seconds);
        Turn { seconds, processor_seconds, peak_bytes: 10, counts, failures: 1, micro_batches: 4 }
    }

    #[test]
    fn rounds_are_compared_one_by_one_and_skipped_steps_left_out() {
        let case = &all()[4];
        let reference = [turn(1.0, true), turn(10.0, true), turn(2.0, true)];
        let turns = [turn(1.5, true), turn(0.1, false), turn(3.0, true)];
        let found = summary(case, &turns, Some(&reference), Footprint::default()).unwrap();
        assert_eq!(found.ratio, Some(Spread::exactly(1.5)));
        assert_eq!(found.processor_ratio, Some(Spread::exactly(1.5)));
        assert_eq!((found.seconds.median, found.skipped, found.failures, found.rounds), (2.25, 1, 3, 3));
        assert_eq!((found.peak_bytes, found.micro_batches), (10, 4));
        assert_eq!(summary(case, &turns, None, Footprint::default()).unwrap().ratio, None);
        assert_eq!(summary(case, &turns[1..2], None, Footprint::default()), None);
    }
}
