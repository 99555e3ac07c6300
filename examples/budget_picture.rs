//! Draws `docs/budget.svg`, the memory of one step of GPT-2 (124M) on a GPU, on burn's layers, on Kiln's, and within 3 GiB, and
//! `docs/streaming.svg`, that of a step on the CPU whose blocks are in a store. It trains nothing.
//!
//! `cargo run --example budget_picture > docs/budget.svg`
//! `cargo run --example budget_picture streamed > docs/streaming.svg`

use std::error::Error;

use burn::tensor::{Int, Tensor, TensorData};
use kiln_memory::MemoryReport;
use kiln_models::{Gpt, GptBlock, GptConfig, GptHalf};
use kiln_report::MemoryPage;
use kiln_training::{
    BackendProfile, LossFn, OptimizerConfig, Pass, Plan, Planner, Precision, Prediction, StepPlan, StoreConfig, Trainer,
};

const VOCAB: usize = 50_257;
const CONTEXT: usize = 1024;
const BATCH: usize = 8;
const LIMIT: u64 = 3 << 30;

/// The picture; nothing in it depends on the machine.
pub(crate) fn draw() -> Result<String, Box<dyn Error>> {
    let gpu = BackendProfile::cuda();
    let (stock, lean) = (planner(false, &gpu, BATCH)?, planner(true, &gpu, BATCH)?);
    let plain = |planner: &Planner| planner.evaluate(Precision::F32, &Plan::none(planner.blocks()), BATCH, LIMIT);
    let panels = [
        ("burn's layers", plain(&stock)?, &stock),
        ("Kiln's layers", plain(&lean)?, &lean),
        ("within 3 GiB", lean.choose(LIMIT)?, &lean),
    ];
    let mut drawn = vec![];
    for (name, plan, planner) in panels {
        drawn.push((name, planner.predict(&plan)?, plan));
    }
    Ok(picture(&drawn))
}

/// The picture of a step on one text whose blocks are all streamed, on a processor of two cores with AVX-512 and 1 MiB of cache each.
pub(crate) fn draw_streamed() -> Result<String, Box<dyn Error>> {
    let cpu = BackendProfile { threads: 2, cache_bytes: 1 << 20, lanes: 16, ..BackendProfile::flex() };
    let planner = planner(true, &cpu, 1)?;
    let plan = planner.evaluate(Precision::F32, &Plan::stream(planner.blocks_in_store(), 1)?, 1, LIMIT)?;
    let memory = planner.evaluate(Precision::F32, &Plan::every(planner.blocks(), 1)?, 1, LIMIT)?.peak_bytes;
    let title = format!(
        "One step of GPT-2 124M (1 x {CONTEXT} tokens, f32, AdamW) with its blocks in a store; in memory: {:.1} GiB",
        memory as f64 / f64::from(1 << 30)
    );
    let report = MemoryReport::new(title).with_prediction(planner.predict(&plan)?);
    Ok(serde_json::from_str::<MemoryPage>(&report.json())?.svg())
}

#[allow(dead_code, clippy::print_stdout, reason = "the picture goes to stdout, and a test draws it too")]
fn main() -> Result<(), Box<dyn Error>> {
    let streamed = std::env::args().nth(1).is_some_and(|which| which == "streamed");
    println!("{}", if streamed { draw_streamed()? } else { draw()? });
    Ok(())
}

/// Plans of a step, on Kiln's layers or on burn's own. Nothing is written to the store.
fn planner(lean: bool, device: &BackendProfile, batch: usize) -> Result<Planner, Box<dyn Error>> {
    let config = GptConfig::named("gpt2", VOCAB, CONTEXT)?.with_lean(lean);
    let task = LossFn::new(|pass: &Pass<'_, Gpt>, tokens: &TensorData| {
        let tokens: Tensor<2, Int> = pass.input(tokens);
        let (model, rows) = (pass.model(), pass.model().words().and_then(|words| pass.rows(words)));
        let x = model.embed_by_rows(rows.clone(), tokens.clone());
        let x = match model.halves().filter(|_| pass.streams()) {
            Some(halves) => pass.chain(&halves, x, GptHalf::forward),
            None => pass.chain(&model.blocks(), x, GptBlock::forward),
        };
        model.loss_by_rows(rows, x, tokens)
    });
    let sample = TensorData::zeros::<i64, _>([3, CONTEXT]);
    let planner = Trainer::try_builder(task, |device| config.init(device))
        .with_optimizer(|model| OptimizerConfig::adamw().groups(model))
        .with_clip_norm(1.0)
        .with(|settings| settings.memory.store = Some(StoreConfig::Directory("store".into())))
        .planner(device, &sample, batch)?;
    Ok(planner)
}

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 64.0;
const TOP: f64 = 44.0;
const COLORS: [&str; 3] = ["#c8764a", "#7aa35a", "#4a8ac8"];

/// Live bytes over the estimated time of the step. The panels are side by side, with one scale.
fn picture(panels: &[(&str, Prediction, StepPlan)]) -> String {
    let most = panels.iter().map(|(.., plan)| plan.peak_bytes).max().unwrap_or(1) as f64 * 1.05;
    let y = |bytes: f64| TOP + HEIGHT * (1.0 - bytes / most);
    let gap = 24.0;
    let panel = (WIDTH - LEFT - gap * (panels.len() - 1) as f64) / panels.len() as f64;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {}\" font-family=\"system-ui,sans-serif\" \
         font-size=\"13\">\n<title>Memory of one step of GPT-2 124M</title>\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
        TOP + HEIGHT + 40.0
    );
    for (index, (name, prediction, plan)) in panels.iter().enumerate() {
        let start = LEFT + index as f64 * (panel + gap);
        let total: f64 = prediction.operations.iter().map(|operation| operation.seconds).sum();
        let (mut path, mut time) = (format!("M{start:.1},{:.1}", y(0.0)), 0.0);
        let (mut last, mut high) = (start, 0.0f64);
        for operation in &prediction.operations {
            time += operation.seconds;
            high = high.max(operation.live_bytes as f64);
            let x = start + panel * time / total;
            if x - last >= 0.5 {
                path += &format!("L{x:.1},{:.1}", y(high));
                (last, high) = (x, 0.0);
            }
        }
        path += &format!("L{:.1},{:.1}Z", start + panel, y(0.0));
        let peak = plan.peak_bytes as f64 / f64::from(1 << 30);
        svg += &format!("<path d=\"{path}\" fill=\"{}\"/>\n", COLORS[index % COLORS.len()]);
        svg += &format!("<text x=\"{start:.1}\" y=\"20\" font-weight=\"600\">{name}</text>\n");
        svg += &format!("<text x=\"{start:.1}\" y=\"37\">peak {peak:.1} GiB (predicted)</text>\n");
        let how = match (plan.micro_batch < plan.batch, plan.checkpoints.recomputed()) {
            (false, 0) => "nothing recomputed".to_owned(),
            (false, blocks) => format!("{blocks} of {} blocks recomputed", plan.checkpoints.blocks()),
            (true, 0) => format!("micro-batches of {}", plan.micro_batch),
            (true, blocks) => format!("micro-batches of {}, {blocks} blocks recomputed", plan.micro_batch),
        };
        let at = y(0.0) + 16.0;
        svg += &format!("<text x=\"{start:.1}\" y=\"{at:.1}\" font-size=\"11\" fill=\"#555\">{how}</text>\n");
    }
    let limit = y(LIMIT as f64);
    svg += &format!(
        "<line x1=\"{LEFT}\" x2=\"{WIDTH}\" y1=\"{limit:.1}\" y2=\"{limit:.1}\" stroke=\"#222\" stroke-dasharray=\"5 4\"/>\n"
    );
    svg += &format!("<text x=\"4\" y=\"{:.1}\">3 GiB</text>\n", limit + 4.0);
    svg += &format!("<text x=\"4\" y=\"{:.1}\">0</text>\n", y(0.0));
    svg += &format!(
        "<text x=\"{LEFT}\" y=\"{:.1}\">one step of GPT-2 124M on a card: batch of {BATCH} x {CONTEXT} tokens, f32, AdamW</text>\n</svg>",
        TOP + HEIGHT + 36.0
    );
    svg
}
