//! The options of a training step, drawn at random.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// The options of `kiln memory` for the step with this number. A number has the same options in every run with the same seed.
///
/// U-Nets are left out: a prediction counts the most bytes that their data loader can take, and how many it takes differs from run to run.
pub(super) fn options(seed: u64, number: u64) -> Vec<String> {
    let mut draw = Draw(StdRng::seed_from_u64(seed.rotate_left(32) ^ number));
    let batch = if draw.chance(0.5) { draw.text() } else { draw.images() };
    draw.step(batch)
}

struct Draw(StdRng);

impl Draw {
    fn chance(&mut self, chance: f64) -> bool {
        self.0.random_bool(chance)
    }

    fn pick<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[self.0.random_range(0..of.len())]
    }

    /// A number between two others; all sizes are drawn as often.
    fn size(&mut self, least: f64, most: f64) -> usize {
        (least * (most / least).powf(self.0.random())).round() as usize
    }

    /// A GPT and its data, and the largest batch of a step of about 500 MiB.
    fn text(&mut self) -> (String, usize) {
        let (model, tokens) = if self.chance(0.6) { ("gpt-tiny", 24_000.0) } else { ("gpt-mini", 6_000.0) };
        let context = self.size(24.0, 300.0);
        let more = self.pick(&["", "", "", " --dropout 0.1", " --lora 4"]);
        (format!("gpt --model {model} --context {context}{more}"), (tokens / context as f64) as usize)
    }

    /// A network for images, and the largest batch.
    fn images(&mut self) -> (String, usize) {
        let (model, size, most) = match self.0.random_range(0..7) {
            0 => ("resnet18 --width 32", 56, 400),
            1 => ("resnet34 --width 16", 56, 400),
            2 => ("resnet50 --width 16", 64, 200),
            3 => ("mobilenet_v2 --width 0.5", 64, 200),
            4 => ("shufflenet_v2_x0_5", 96, 300),
            5 => ("vit_tiny", 64, 60),
            _ => ("resnet18 --width 16", 80, 400),
        };
        let more = if self.chance(0.3) { " --mixup 0.2" } else { "" };
        (format!("classify --model {model} --image-size {size}{more}"), most)
    }

    /// How the step is taken: batch, micro-batch, precision, optimizer, plan and stages.
    fn step(&mut self, (model, most): (String, usize)) -> Vec<String> {
        let batch = self.size((most as f64 / 5.0).max(2.0), (most as f64).max(4.0));
        let micro_batch = batch.div_ceil(self.0.random_range(1..=6));
        let precision = self.pick(&["f32", "f32", "bf16", "f16"]);
        let optimizer = self.pick(&["adamw", "adamw", "sgd", "lion", "adamw8bit", "adamw4bit", "sgd8bit"]);
        let plan = self.pick(&["none", "none", "every:1", "every:2", "every:3", "sqrt", "offload"]);
        let stages = if self.chance(0.15) { self.0.random_range(2..=3) } else { 1 };
        let schedule = self.pick(&["1f1b", "gpipe"]);
        let mut options: Vec<String> = model.split(' ').map(str::to_owned).collect();
        let mut with = |name: &str, value: String| options.extend([name.to_owned(), value]);
        with("--batch-size", batch.to_string());
        with("--micro-batch", micro_batch.to_string());
        with("--precision", precision.to_owned());
        with("--optimizer", optimizer.to_owned());
        with("--checkpointing", plan.to_owned());
        if stages > 1 {
            with("--stages", stages.to_string());
            with("--pipeline-schedule", schedule.to_owned());
        }
        let own = [("--stock-layers", 0.15), ("--optimizer-offload", if stages > 1 { 0.0 } else { 0.1 })];
        for (name, chance) in own {
            if self.chance(chance) {
                options.push(name.to_owned());
            }
        }
        options
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_has_the_same_options_and_another_has_others() {
        let drawn = |seed| (0..50).map(|number| options(seed, number)).collect::<Vec<_>>();
        assert_eq!(drawn(1), drawn(1));
        let (first, second) = (drawn(1), drawn(2));
        assert!(first.iter().zip(&second).filter(|(a, b)| a == b).count() < 3);
        assert!(
            first.iter().any(|options| options[0] == "gpt") && first.iter().any(|options| options[0] == "classify")
        );
    }
}
