//! The schedule of a run with pipeline stages: the passes of each stage over time, as a picture and a table.

use maud::{Markup, html};
use serde::{Deserialize, Serialize};

use crate::figure::percent;
use crate::html::{section, table};

const WIDTH: f64 = 760.0;
/// Where the bars of a stage begin, and their height.
const LEFT: f64 = 64.0;
const ROW: f64 = 30.0;
const BAR: f64 = 22.0;
/// Bars of at least this width show their number.
const READABLE: f64 = 14.0;

/// The passes of one step over its stages.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Schedule {
    /// The stages in order.
    pub stages: Vec<Stage>,
    /// All passes.
    pub passes: Vec<StagePass>,
    /// The predicted share of time in which stages are idle.
    pub predicted_bubble: Option<f64>,
}

/// A stage of a pipeline.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Stage {
    /// Its first and its last block.
    pub blocks: Option<[usize; 2]>,
    /// The predicted share of the time in which it works.
    pub predicted_busy: Option<f64>,
    /// The most micro-batches whose activations it holds at once.
    pub held: usize,
}

/// A forward or backward pass of a micro-batch through a stage.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StagePass {
    /// The index of the stage.
    pub stage: usize,
    /// The index of the micro-batch.
    pub micro_batch: usize,
    /// Whether it is the backward pass.
    pub is_backward: bool,
    /// The beginning in seconds.
    pub begin: f64,
    /// The end in seconds.
    pub end: f64,
}

impl StagePass {
    fn seconds(&self) -> f64 {
        self.end - self.begin
    }

    fn name(&self) -> &'static str {
        if self.is_backward { "backward" } else { "forward" }
    }
}

impl Schedule {
    fn begin(&self) -> f64 {
        self.passes.iter().map(|pass| pass.begin).reduce(f64::min).unwrap_or(0.0)
    }

    fn seconds(&self) -> f64 {
        self.passes.iter().map(|pass| pass.end).reduce(f64::max).unwrap_or(0.0) - self.begin()
    }

    /// The section of a page.
    pub(crate) fn html(&self) -> Markup {
        let whole = self.stages.len() as f64 * self.seconds();
        let busy: f64 = self.passes.iter().map(StagePass::seconds).sum();
        let bubble = if whole > 0.0 { 1.0 - busy / whole } else { 0.0 };
        let predicted =
            self.predicted_bubble.map_or(String::new(), |bubble| format!(", predicted {}", percent(bubble)));
        let summary = format!(
            "{} stages, {:.3} s. Idle: {} of the time of all stages (the bubble){predicted}.",
            self.stages.len(),
            self.seconds(),
            percent(bubble)
        );
        let rows: Vec<Vec<String>> = (0..self.stages.len()).map(|stage| self.row(stage)).collect();
        let columns = ["stage", "blocks", "forward", "backward", "busy", "predicted", "micro-batches held"];
        let content = html! {
            p {
                (summary) " "
                @for name in ["forward", "backward"] { span class="key" { i class={"b-" (name)} {} (name) " pass" } " " }
                "Numbers are micro-batches."
            }
            div class="wide" tabindex="0" { (self.picture(&summary)) }
            (table("stages", &columns, &rows))
        };
        section("schedule", "Schedule of the last step", &content)
    }

    fn row(&self, stage: usize) -> Vec<String> {
        let Stage { blocks, predicted_busy, held } = &self.stages[stage];
        let passes = || self.passes.iter().filter(|pass| pass.stage == stage);
        let [forward, backward]: [f64; 2] = [false, true]
            .map(|is_backward| passes().filter(|pass| pass.is_backward == is_backward).map(StagePass::seconds).sum());
        let busy = if self.seconds() > 0.0 { (forward + backward) / self.seconds() } else { 0.0 };
        vec![
            stage.to_string(),
            blocks.map_or("-".into(), |[first, last]| format!("{first} to {last}")),
            format!("{forward:.3} s"),
            format!("{backward:.3} s"),
            percent(busy),
            predicted_busy.map_or("-".into(), percent),
            held.to_string(),
        ]
    }

    fn picture(&self, summary: &str) -> Markup {
        let (begin, seconds) = (self.begin(), self.seconds().max(f64::MIN_POSITIVE));
        let (right, height) = (WIDTH - 8.0, ROW * self.stages.len() as f64 + 24.0);
        let x = |time: f64| LEFT + (time - begin) / seconds * (right - LEFT);
        let top = |stage: usize| ROW * stage as f64 + 4.0;
        let middle = |stage: usize| top(stage) + BAR / 2.0 + 4.0;
        html! {
            svg class="schedule" viewBox={"0 0 " (WIDTH) " " (height)} role="img" aria-label=(summary) {
                @for stage in 0..self.stages.len() {
                    text x="0" y=(middle(stage)) { "stage " (stage) }
                    rect class="f-line" x=(LEFT) y=(top(stage)) width=(right - LEFT) height=(BAR) {}
                }
                @for pass in &self.passes {
                    @let width = (x(pass.end) - x(pass.begin)).max(0.5);
                    rect class={"f-" (pass.name())} x=(format_args!("{:.2}", x(pass.begin))) y=(top(pass.stage))
                        width=(format_args!("{width:.2}")) height=(BAR) {
                        title {
                            "stage " (pass.stage) ", " (pass.name()) " pass of micro-batch " (pass.micro_batch) ": "
                            (format_args!("{:.2} ms", 1e3 * pass.seconds()))
                        }
                    }
                    @if width >= READABLE {
                        text class="in" x=(format_args!("{:.2}", x(pass.begin) + width / 2.0)) y=(middle(pass.stage))
                            text-anchor="middle" aria-hidden="true" { (pass.micro_batch) }
                    }
                }
                text x=(LEFT) y=(height - 4.0) { "0 s" }
                text x=(right) y=(height - 4.0) text-anchor="end" { (format_args!("{seconds:.3} s")) }
            }
        }
    }
}
