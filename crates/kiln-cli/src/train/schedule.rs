//! The schedule of a run with pipeline stages: as data of its report, and as figures.

use kiln_parallel::{Action, Timeline};
use kiln_report::{Schedule, Stage, StagePass};
use kiln_training::StagePlan;
use serde_json::{Value, json};

/// The passes of each stage in the last step.
pub(crate) fn schedule(timeline: &Timeline, plan: Option<&StagePlan>) -> Schedule {
    let stage = |stage: usize| {
        let load = plan.and_then(|plan| plan.loads.get(stage));
        Stage {
            blocks: load.map(|load| [load.blocks.start, load.blocks.end - 1]),
            predicted_busy: load.map(|load| 1.0 - load.idle),
            held: timeline.most_held(stage),
        }
    };
    let passes = timeline.work.iter().map(|work| StagePass {
        stage: work.stage,
        micro_batch: work.action.micro_batch(),
        is_backward: matches!(work.action, Action::Backward(_)),
        begin: work.begin,
        end: work.end,
    });
    Schedule {
        stages: (0..timeline.stages).map(stage).collect(),
        passes: passes.collect(),
        predicted_bubble: plan.map(|plan| plan.bubble),
    }
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

#[cfg(test)]
mod tests {
    use kiln_parallel::{Schedule, StageCost, simulate};

    use super::{figures, schedule};

    #[test]
    fn the_report_has_every_pass_and_says_how_much_is_idle() {
        let cost = StageCost { forward: 1.0, backward: 2.0, transfer: 0.0 };
        let timeline = simulate(Schedule::OneForwardOneBackward, 4, &[cost; 3]).unwrap();
        let drawn = schedule(&timeline, None);
        assert_eq!((drawn.stages.len(), drawn.passes.len()), (3, 24));
        assert_eq!(drawn.passes.iter().filter(|pass| pass.is_backward).count(), 12);
        let [(_, bubble), (_, predicted), (_, busy)] = figures(&timeline, None);
        assert!((bubble.as_f64().unwrap() - 1.0 / 3.0).abs() < 1e-12 && predicted.is_null());
        assert_eq!(busy.as_array().map(Vec::len), Some(3));
    }
}
