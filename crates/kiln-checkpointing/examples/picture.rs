//! Draws `docs/checkpointing.svg`: one chain under five plans, by the model that the solver uses.
//!
//! `cargo run --example picture > docs/checkpointing.svg`

use std::fmt::Write;

use kiln_checkpointing::{ChainCost, Cost, Error, Mode, Plan, solve};

/// A network in four stages with ever smaller images and more channels.
fn chain() -> ChainCost {
    let block = |index: u64| {
        let stage = index / 4;
        let input = 64 >> stage;
        Cost { input, saved: 6 * input, gradients: 1 << stage, forward: 1.0, ..Cost::default() }
    };
    ChainCost::new((0..16).map(block).collect())
}

fn color(mode: Mode) -> &'static str {
    match mode {
        Mode::Plain => "#b44b1e",
        Mode::Recompute => "#ebcdb9",
        Mode::Offload => "#8fa3ad",
        Mode::Stream => "#4a6572",
    }
}

/// The picture as SVG.
pub(crate) fn draw() -> Result<String, Error> {
    let costs = chain();
    let blocks = costs.blocks.len();
    let plain = costs.simulate(&Plan::none(blocks))?;
    let plans = [
        ("none", Plan::none(blocks)),
        ("every:1", Plan::every(blocks, 1)?),
        ("every:4", Plan::every(blocks, 4)?),
        ("solve, 60 %", solve(&costs, plain.peak * 6 / 10)?),
        ("solve, 40 %", solve(&costs, plain.peak * 4 / 10)?),
    ];
    let (left, top, row, height) = (110.0, 34.0, 44.0, 24.0);
    let unit = 400.0 / costs.blocks.iter().map(|cost| cost.saved).sum::<u64>() as f64;
    let mut svg = String::from(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 780 270\" font-family=\"system-ui, sans-serif\" \
         font-size=\"13\">\n<rect width=\"780\" height=\"270\" fill=\"white\"/>\n\
         <text x=\"110\" y=\"20\">blocks, as wide as what they keep</text>\n<text x=\"535\" y=\"20\">peak</text>\n\
         <text x=\"700\" y=\"20\">run again</text>\n",
    );
    let mut put = |text: String| svg.push_str(&text);
    for (index, (name, plan)) in plans.iter().enumerate() {
        let (y, outcome) = (top + row * index as f64, costs.simulate(plan)?);
        put(format!("<text x=\"8\" y=\"{:.0}\">{name}</text>\n", y + 17.0));
        let mut x = left;
        for segment in plan.segments() {
            let from = x;
            for block in segment.blocks.clone() {
                let width = costs.blocks[block].saved as f64 * unit;
                put(format!(
                    "<rect x=\"{x:.1}\" y=\"{y:.0}\" width=\"{width:.1}\" height=\"{height}\" fill=\"{}\" stroke=\"white\"/>\n",
                    color(segment.mode)
                ));
                x += width;
            }
            if segment.mode != Mode::Plain {
                // A line under the blocks of a segment.
                put(format!(
                    "<rect x=\"{:.1}\" y=\"{:.0}\" width=\"{:.1}\" height=\"3\" fill=\"#b44b1e\"/>\n",
                    from + 1.0,
                    y + height + 2.0,
                    x - from - 2.0
                ));
            }
        }
        let share = outcome.peak as f64 / plain.peak as f64;
        put(format!(
            "<rect x=\"535\" y=\"{y:.0}\" width=\"{:.1}\" height=\"{height}\" fill=\"#444\"/>\n\
             <text x=\"{:.1}\" y=\"{:.0}\">{:.0} %</text>\n<text x=\"700\" y=\"{:.0}\">{:.0} blocks</text>\n",
            100.0 * share,
            540.0 + 100.0 * share,
            y + 17.0,
            100.0 * share,
            y + 17.0,
            outcome.extra
        ));
    }
    let _ = writeln!(
        svg,
        "<text x=\"110\" y=\"262\"><tspan fill=\"#b44b1e\">■</tspan> plain  <tspan fill=\"#ebcdb9\">■</tspan> recomputed, \
         a line under what is recomputed together</text>\n</svg>"
    );
    Ok(svg)
}

#[allow(dead_code, reason = "the test of the picture includes this file")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    use std::io::Write;
    Ok(std::io::stdout().write_all(draw()?.as_bytes())?)
}
