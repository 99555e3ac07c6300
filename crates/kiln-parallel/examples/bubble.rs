//! The measured bubble of equal stages on the CPU, beside the calculated one.
//!
//! A matrix product takes one thread here, so that each stage keeps one core busy:
//! `cargo run --example bubble`, on a machine with as many idle cores as stages. `-- 4 16` asks for 4 stages and 16 micro-batches.

use std::error::Error;
use std::io::{Write, stdout};
use std::sync::Mutex;
use std::time::Instant;

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::activation::tanh;
use burn::tensor::{Device, Distribution, Tensor};
use kiln_parallel::{Pipeline, Schedule, Timeline};

/// Rounds of each schedule, taken in turn. The first ones warm up.
const ROUNDS: usize = 15;
const WARM_UP: usize = 3;
/// Layers of a stage.
const LAYERS: usize = 48;
/// Columns of a layer.
const WIDTH: usize = 256;
/// Rows of a micro-batch.
const ROWS: usize = 256;

#[derive(Module, Debug)]
struct Stage {
    layers: Vec<Linear>,
}

impl Stage {
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        self.layers.iter().fold(x, |x, layer| tanh(layer.forward(x)))
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut numbers = std::env::args().skip(1).map(|number| number.parse::<usize>());
    rayon::ThreadPoolBuilder::new().num_threads(1).build_global()?;
    let (stages, micro_batches) = (numbers.next().unwrap_or(Ok(2))?, numbers.next().unwrap_or(Ok(8))?);
    let device = Device::flex().autodiff();
    let layer = || LinearConfig::new(WIDTH, WIDTH).init(&device);
    let model: Vec<Stage> = (0..stages).map(|_| Stage { layers: (0..LAYERS).map(|_| layer()).collect() }).collect();
    let input = Tensor::<2>::random([ROWS, WIDTH], Distribution::Default, &device);
    let forward = |boundary: &kiln_parallel::StageBoundary<'_>| {
        let (last, first) = model.split_last().ok_or(kiln_parallel::Error::InvalidSetting {
            name: "stages",
            value: "0".into(),
            expected: "1 or more",
        })?;
        let mut x = input.clone();
        for stage in first {
            x = boundary.next(stage.forward(x), &device)?;
        }
        Ok::<_, kiln_parallel::Error>(last.forward(x).square().mean())
    };

    let schedules = [Schedule::Sequential, Schedule::GPipe, Schedule::OneForwardOneBackward];
    let mut measured: Vec<Vec<(f64, Timeline)>> = vec![vec![]; schedules.len()];
    for round in 0..ROUNDS {
        for (schedule, measured) in schedules.iter().zip(&mut measured) {
            let kept = Mutex::new(0);
            let begun = Instant::now();
            let ran = Pipeline::new(*schedule, stages, micro_batches)?.run(
                |_, boundary| forward(boundary),
                |_, _, _| {
                    *kept.lock().unwrap_or_else(std::sync::PoisonError::into_inner) += 1;
                    Ok(())
                },
            )?;
            if round >= WARM_UP {
                measured.push((begun.elapsed().as_secs_f64(), ran.timeline));
            }
        }
    }

    let ideal = |schedule| match schedule {
        Schedule::Sequential => 1.0 - 1.0 / stages as f64,
        _ => (stages - 1) as f64 / (micro_batches + stages - 1) as f64,
    };
    let mut out = stdout().lock();
    writeln!(
        out,
        "{stages} equal stages, {micro_batches} micro-batches, the middle one of {} rounds\n",
        ROUNDS - WARM_UP
    )?;
    writeln!(out, "| schedule | seconds | bubble | lowest to highest | calculated |\n|---|---|---|---|---|")?;
    for (schedule, measured) in schedules.iter().zip(&mut measured) {
        measured.sort_by(|a, b| a.1.bubble().total_cmp(&b.1.bubble()));
        let bubble = |index: usize| 100.0 * measured[index].1.bubble();
        let middle = measured.len() / 2;
        writeln!(
            out,
            "| {schedule} | {:.3} | {:.1} % | {:.1} to {:.1} % | {:.1} % |",
            measured[middle].0,
            bubble(middle),
            bubble(0),
            bubble(measured.len() - 1),
            100.0 * ideal(*schedule)
        )?;
    }
    let (_, timeline) = &measured[schedules.len() - 1][(ROUNDS - WARM_UP) / 2];
    writeln!(out, "\n{}:\n{timeline}", schedules[schedules.len() - 1])?;
    Ok(())
}
