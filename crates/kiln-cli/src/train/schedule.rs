//! The schedule of a run with stages, as a picture and a table in its report.

use std::fmt::Write;

use kiln_parallel::{Action, Timeline};
use kiln_training::StagePlan;
use serde_json::{Value, json};

const WIDTH: f64 = 760.0;
/// Where the bars of a stage begin, and their height.
const LEFT: f64 = 64.0;
const ROW: f64 = 30.0;
const BAR: f64 = 22.0;
/// Bars of at least this width show their number.
const READABLE: f64 = 14.0;

/// The styles of the section, for light and for dark pages.
pub(crate) const STYLE: &str = "\
.schedule{overflow-x:auto}.schedule svg{min-width:560px;display:block;font:12px system-ui,sans-serif}\
.schedule text{fill:var(--ink)}.schedule .idle{fill:var(--idle)}\
.forward{fill:var(--forward)}.backward{fill:var(--backward)}.schedule text.in{fill:#fff}";

/// A section with the actions of each stage over time in the last step.
pub(crate) fn section(timeline: &Timeline, plan: Option<&StagePlan>) -> String {
    let measured = 100.0 * timeline.bubble();
    let predicted = plan.map_or(String::new(), |plan| format!(", predicted {:.1} %", 100.0 * plan.bubble));
    let summary = format!(
        "{} stages, {:.3} s. Idle: {measured:.1} % of the time of all stages (the bubble){predicted}.",
        timeline.stages,
        timeline.seconds()
    );
    format!(
        "<section aria-labelledby=\"schedule\"><h2 id=\"schedule\">Schedule of the last step</h2><p>{summary} \
         <span class=\"key\"><svg viewBox=\"0 0 12 12\" aria-hidden=\"true\"><rect width=\"12\" height=\"12\" class=\"forward\"/></svg> \
         forward pass</span> <span class=\"key\"><svg viewBox=\"0 0 12 12\" aria-hidden=\"true\"><rect width=\"12\" height=\"12\" \
         class=\"backward\"/></svg> backward pass</span>; numbers are micro-batches.</p>\
         <div class=\"schedule\" tabindex=\"0\">{}</div><div class=\"schedule\">{}</div></section>",
        picture(timeline, &summary),
        table(timeline, plan)
    )
}

/// The schedule as values for JSON: the bubble, measured and predicted, and the measured busy share of each stage.
pub(crate) fn figures(timeline: &Timeline, plan: Option<&StagePlan>) -> [(&'static str, Value); 3] {
    let busy: Vec<f64> = (0..timeline.stages).map(|stage| busy(timeline, stage)).collect();
    [
        ("bubble", json!(timeline.bubble())),
        ("predicted_bubble", json!(plan.map(|plan| plan.bubble))),
        ("stages_busy", json!(busy)),
    ]
}

fn busy(timeline: &Timeline, stage: usize) -> f64 {
    let seconds = timeline.seconds();
    if seconds > 0.0 { timeline.busy(stage) / seconds } else { 0.0 }
}

fn picture(timeline: &Timeline, summary: &str) -> String {
    let begin = timeline.work.iter().map(|work| work.begin).fold(f64::INFINITY, f64::min);
    let seconds = timeline.seconds().max(f64::MIN_POSITIVE);
    let x = |time: f64| LEFT + (time - begin) / seconds * (WIDTH - LEFT - 8.0);
    let height = ROW * timeline.stages as f64 + 24.0;
    let mut svg = format!(
        "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-labelledby=\"schedule-title schedule-desc\">\
         <title id=\"schedule-title\">Which stage did what when</title><desc id=\"schedule-desc\">{summary}</desc>"
    );
    for stage in 0..timeline.stages {
        let y = ROW * stage as f64 + 4.0;
        let (text, width) = (y + BAR / 2.0 + 4.0, WIDTH - LEFT - 8.0);
        let _ = write!(
            svg,
            "<text x=\"0\" y=\"{text}\">stage {stage}</text>\
             <rect class=\"idle\" x=\"{LEFT}\" y=\"{y}\" width=\"{width}\" height=\"{BAR}\"/>"
        );
    }
    for work in &timeline.work {
        let y = ROW * work.stage as f64 + 4.0;
        let (from, width) = (x(work.begin), (x(work.end) - x(work.begin)).max(0.5));
        let (class, name) = match work.action {
            Action::Forward(_) => ("forward", "forward"),
            Action::Backward(_) => ("backward", "backward"),
        };
        let number = work.action.micro_batch();
        let milliseconds = 1e3 * (work.end - work.begin);
        let _ = write!(
            svg,
            "<rect class=\"{class}\" x=\"{from:.2}\" y=\"{y}\" width=\"{width:.2}\" height=\"{BAR}\">\
             <title>stage {}, {name} pass of micro-batch {number}: {milliseconds:.2} ms</title></rect>",
            work.stage
        );
        if width >= READABLE {
            let (middle, text) = (from + width / 2.0, y + BAR / 2.0 + 4.0);
            let _ = write!(
                svg,
                "<text class=\"in\" x=\"{middle:.2}\" y=\"{text}\" text-anchor=\"middle\" aria-hidden=\"true\">{number}</text>"
            );
        }
    }
    let foot = height - 4.0;
    let _ = write!(
        svg,
        "<text x=\"{LEFT}\" y=\"{foot}\">0 s</text><text x=\"{}\" y=\"{foot}\" text-anchor=\"end\">{seconds:.3} s</text></svg>",
        WIDTH - 8.0
    );
    svg
}

fn table(timeline: &Timeline, plan: Option<&StagePlan>) -> String {
    let mut rows = String::new();
    for stage in 0..timeline.stages {
        let load = plan.and_then(|plan| plan.loads.get(stage));
        let blocks = load.map_or("-".into(), |load| format!("{} to {}", load.blocks.start, load.blocks.end - 1));
        let predicted = load.map_or("-".into(), |load| format!("{:.1} %", 100.0 * (1.0 - load.idle)));
        let sum = |forward: bool| -> f64 {
            let own = timeline.work.iter().filter(|work| work.stage == stage);
            let own = own.filter(|work| matches!(work.action, Action::Forward(_)) == forward);
            own.map(|work| work.end - work.begin).sum()
        };
        let _ = write!(
            rows,
            "<tr><th scope=\"row\">{stage}</th><td>{blocks}</td><td>{:.3} s</td><td>{:.3} s</td><td>{:.1} %</td>\
             <td>{predicted}</td><td>{}</td></tr>",
            sum(true),
            sum(false),
            100.0 * busy(timeline, stage),
            timeline.most_held(stage)
        );
    }
    format!(
        "<table class=\"stages\"><thead><tr><th scope=\"col\">stage</th><th scope=\"col\">blocks</th><th scope=\"col\">forward</th>\
         <th scope=\"col\">backward</th><th scope=\"col\">busy</th><th scope=\"col\">predicted</th>\
         <th scope=\"col\">micro-batches held</th></tr></thead><tbody>{rows}</tbody></table>"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use kiln_parallel::{Schedule, StageCost, simulate};

    #[test]
    fn the_section_shows_every_action_and_says_how_much_is_idle() {
        let cost = StageCost { forward: 1.0, backward: 2.0, transfer: 0.0 };
        let timeline = simulate(Schedule::OneForwardOneBackward, 4, &[cost; 3]).unwrap();
        let html = section(&timeline, None);
        assert_eq!(html.matches("<rect class=\"forward\"").count(), 12);
        assert_eq!(html.matches("<rect class=\"backward\"").count(), 12);
        assert!(html.contains("33.3 %") && html.contains("stage 2, backward pass of micro-batch 3: 2000.00 ms"));
        assert!(html.contains("role=\"img\"") && html.contains("<desc"));
        let [(_, bubble), (_, predicted), (_, busy)] = figures(&timeline, None);
        assert!((bubble.as_f64().unwrap() - 1.0 / 3.0).abs() < 1e-12 && predicted.is_null());
        assert_eq!(busy.as_array().map(Vec::len), Some(3));
    }

    #[test]
    fn a_step_without_work_is_drawn_too() {
        let html = section(&Timeline { stages: 2, work: vec![] }, None);
        assert!(html.contains("stage 1") && !html.contains("NaN") && !html.contains("inf"), "{html}");
    }
}
