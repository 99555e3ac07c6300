//! Results as Markdown tables, aligned so that they are readable as text too.

use super::case::{Group, REFERENCE};
use super::compare::{Compared, Quantity};
use super::results::{Measured, Peer, Results};
use super::statistics::Spread;
use kiln_cli::units::MIB;

/// A table. All columns but the first one are numbers.
pub(crate) fn markdown(headings: &[&str], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
        cells.chain([headings[column].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..headings.len()).map(width).collect();
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let padded = cells.zip(&widths).enumerate().map(|(column, (cell, width))| match column {
            0 => format!("{cell:<width$}"),
            _ => format!("{cell:>width$}"),
        });
        format!("| {} |\n", padded.collect::<Vec<_>>().join(" | "))
    };
    let rule = |(column, width): (usize, &usize)| match column {
        0 => "-".repeat(*width),
        _ => format!("{}:", "-".repeat(width.saturating_sub(1))),
    };
    let rule: Vec<String> = widths.iter().enumerate().map(rule).collect();
    let mut text = line(&mut headings.iter().copied());
    text += &format!("| {} |\n", rule.join(" | "));
    for row in rows {
        text += &line(&mut row.iter().map(String::as_str));
    }
    text
}

/// A median with its quartiles, in units of `unit`.
fn spread(found: Option<Spread>, unit: f64, digits: usize) -> String {
    found.map_or("-".into(), |Spread { low, median, high }| {
        format!("{:.digits$} ({:.digits$} to {:.digits$})", median / unit, low / unit, high / unit)
    })
}

fn mib(bytes: Option<u64>) -> String {
    bytes.map_or("-".into(), |bytes| format!("{:.1}", bytes as f64 / MIB))
}

/// Steps of a pipeline in full.
fn steps(results: &Results, group: Group) -> String {
    let cases: Vec<&Measured> = results.group(group.name()).collect();
    let reference = results.case(&format!("{}/{REFERENCE}", group.name()));
    let pooled = cases.iter().any(|case| case.reserved_bytes.is_some());
    let mut headings = vec![
        "Step",
        "Options",
        "Time, ms",
        "to burn's loop",
        "Processor time",
        "Peak, MiB",
        "to burn's loop",
        "Resident, MiB",
    ];
    if pooled {
        headings.push("Reserved, MiB");
    }
    let rows: Vec<Vec<String>> = cases
        .iter()
        .map(|case| {
            let peak = reference.map(|reference| case.peak_bytes as f64 / reference.peak_bytes.max(1) as f64);
            let mut row = vec![
                case.what.clone(),
                if case.options.is_empty() { String::new() } else { format!("`{}`", case.options) },
                spread(Some(case.seconds), 1e-3, 0),
                spread(case.ratio, 1.0, 2),
                spread(case.processor_ratio, 1.0, 2),
                mib(Some(case.peak_bytes)),
                peak.map_or("-".into(), |peak| format!("{peak:.2}")),
                mib(case.resident_bytes),
            ];
            if pooled {
                row.push(mib(case.reserved_bytes));
            }
            row
        })
        .collect();
    markdown(&headings, &rows)
}

fn functions(results: &Results) -> String {
    let row = |case: &Measured| {
        let [clock, processor] = [Some(case.seconds), case.processor_seconds].map(|found| spread(found, 1e-3, 3));
        vec![case.what.clone(), clock, processor, mib(Some(case.peak_bytes))]
    };
    let rows: Vec<Vec<String>> = results.group(Group::Function.name()).map(row).collect();
    markdown(&["Function", "Time, ms", "Processor time, ms", "Peak heap, MiB"], &rows)
}

/// The table of a group. `None` if none of its cases was measured.
pub(crate) fn group(results: &Results, group: Group) -> Option<String> {
    results.group(group.name()).next()?;
    Some(match group {
        Group::Function => functions(results),
        pipeline => steps(results, pipeline),
    })
}

/// Both pipelines in a few columns.
pub(crate) fn summary(results: &Results) -> String {
    let [resnet, gpt] = [Group::Resnet, Group::Gpt].map(Group::name);
    let rows: Vec<Vec<String>> = results
        .group(resnet)
        .filter_map(|case| {
            let twin = results.case(&format!("{gpt}/{}", case.name.split('/').nth(1)?))?;
            let ratio = |case: &Measured| case.ratio.map_or("-".into(), |ratio| format!("{:.2}", ratio.median));
            let of = |case: &Measured| [ratio(case), mib(Some(case.peak_bytes))];
            Some([vec![case.what.clone()], of(case).into(), of(twin).into()].concat())
        })
        .collect();
    markdown(&["Step", "ResNet: time", "peak, MiB", "GPT: time", "peak, MiB"], &rows)
}

pub(crate) fn peers(peers: &[Peer]) -> String {
    let row = |peer: &Peer| {
        vec![
            peer.case.clone(),
            peer.program.clone(),
            spread(Some(peer.seconds), 1e-3, 0),
            spread(Some(peer.ratio), 1.0, 2),
            spread(Some(peer.processor_ratio), 1.0, 2),
            mib(peer.peak_bytes),
            mib(Some(peer.kiln_peak_bytes)),
        ]
    };
    let headings = [
        "Case",
        "Peer",
        "Peer's time, ms",
        "Kiln's to it",
        "Kiln's processor time to it",
        "Peer's peak, MiB",
        "Kiln's peak, MiB",
    ];
    markdown(&headings, &peers.iter().map(row).collect::<Vec<_>>())
}

pub(crate) fn compared(all: &[Compared]) -> String {
    let row = |one: &Compared| {
        let unit = match one.quantity {
            Quantity::Ratio => 1.0,
            Quantity::Seconds => 1e-3,
            Quantity::Peak => MIB,
        };
        let shown = |found: Spread| match one.quantity {
            Quantity::Peak => format!("{:.1}", found.median / unit),
            _ => spread(Some(found), unit, 3),
        };
        let change = 100.0 * (one.now.median / one.before.median - 1.0);
        vec![
            one.case.clone(),
            one.quantity.name().into(),
            shown(one.before),
            shown(one.now),
            format!("{change:+.1} %"),
            one.verdict.name().into(),
        ]
    };
    markdown(&["Case", "Figure", "Baseline", "Now", "Change", "Verdict"], &all.iter().map(row).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::super::compare::compare;
    use super::super::results::tests::{measured, results};
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [vec!["a".into(), "1".into()], vec!["long".into(), "22.5".into()]];
        let expected =
            "| Name | No |\n".replace("No", "  No") + "| ---- | ---: |\n" + "| a    |    1 |\n" + "| long | 22.5 |\n";
        assert_eq!(markdown(&["Name", "No"], &rows), expected);
    }

    #[test]
    fn a_summary_has_what_both_pipelines_have() {
        let results = results(vec![
            measured("resnet/burn", Some(1.0), 10 << 20),
            measured("resnet/only", Some(1.0), 10 << 20),
            measured("gpt/burn", Some(1.25), 20 << 20),
        ]);
        let text = summary(&results);
        assert_eq!(text.lines().count(), 3, "{text}");
        assert!(text.lines().nth(2).unwrap().contains("1.25 |      20.0 |"), "{text}");
    }

    #[test]
    fn steps_say_what_they_take_to_burns_loop() {
        let results = results(vec![measured("gpt/burn", Some(1.0), 4 << 20), measured("gpt/step", Some(1.5), 3 << 20)]);
        let text = group(&results, Group::Gpt).unwrap();
        let step = text.lines().nth(3).unwrap();
        assert!(step.contains("250 (234 to 266)") && step.contains("1.50 (1.48 to 1.52)"), "{text}");
        assert!(step.contains("0.75"), "{text}");
        assert!(!text.contains("Reserved"), "{text}");
        assert_eq!(group(&results, Group::Function), None);
    }

    #[test]
    fn a_comparison_names_what_got_worse() {
        let before = results(vec![measured("gpt/step", Some(1.0), 100 << 20)]);
        let now = results(vec![measured("gpt/step", Some(1.2), 100 << 20)]);
        let text = compared(&compare(&before, &now, 0.05));
        let line = text.lines().nth(2).unwrap();
        assert!(line.contains("+20.0 %") && line.contains("WORSE"), "{text}");
        assert!(text.lines().nth(3).unwrap().contains("same"), "{text}");
    }
}
