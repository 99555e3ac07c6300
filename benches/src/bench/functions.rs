//! Single functions, each in its process.

use std::hint::black_box;
use std::process::ExitCode;

use anyhow::{Result, ensure};
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Tensor};
use kiln_checkpointing::{ChainCost, Cost, Plan, solve};
use kiln_data::{ImageBatch, LoaderConfig, Order, TextBatch, Transform, open_images};
use kiln_memory::{BackendProfile, Recorder, StepOptions, UpdateChunks, record_step};
use kiln_models::{Decoder, DecoderConfig, GptConfig};
use kiln_recovery::Probe;

use super::case::Function;
use super::child::{Footprint, Turn, serve, timed};
use kiln_cli::pipelines::{Chained, NextToken};
use kiln_cli::process::{Resident, living_threads_seconds, processor_seconds};
use kiln_cli::{HEAP, fixtures};

/// Calls the function on request.
pub(crate) fn run(function: Function, device: &str) -> Result<ExitCode> {
    let device = kiln_cli::device::open(device)?;
    let mut resident = Resident::start();
    let (calls, mut call) = prepared(function, &device)?;
    call()?;
    resident.reset_peak();
    // Loader threads end with their epoch, and then only the process still has their time.
    let processor = if function == Function::Load { processor_seconds } else { living_threads_seconds };
    let turn = || {
        HEAP.reset_peak();
        let before = HEAP.live_bytes();
        let (done, seconds, used) = timed(processor, || (0..calls).try_for_each(|_| call()));
        done?;
        Ok(Turn {
            seconds: seconds / f64::from(calls),
            processor_seconds: used.map(|used| used / f64::from(calls)),
            peak_bytes: HEAP.peak_bytes().saturating_sub(before) as u64,
            counts: true,
            failures: 0,
            micro_batches: 1,
        })
    };
    serve(turn, || Footprint { resident_bytes: resident.above_start(), reserved_bytes: None })?;
    Ok(ExitCode::SUCCESS)
}

type Call = Box<dyn FnMut() -> Result<()>>;

/// The number of calls in a turn, and the function with its inputs.
fn prepared(function: Function, device: &Device) -> Result<(u32, Call)> {
    Ok(match function {
        Function::Load => (1, load()?),
        Function::Solve => (1, solving()),
        Function::Probe => (200, probe(device)),
        Function::Record => (1, recording()?),
    })
}

fn load() -> Result<Call> {
    let set = open_images(fixtures::directory()?.join("fashion-mnist"))?.train;
    let images = set.len();
    let config = LoaderConfig::new(64).with_order(Order::Shuffled { seed: 1 }).with_workers(2);
    let loader = ImageBatch::loader(set, Transform::training(28, 0.6), 1, config)?;
    let mut epoch = 0;
    Ok(Box::new(move || {
        epoch += 1;
        let mut loaded = 0;
        for batch in loader.epoch(epoch, 0) {
            loaded += batch?.len();
        }
        ensure!(loaded == images, "{loaded} of {images} images");
        Ok(())
    }))
}

/// A chain in which nearly all blocks differ.
fn chain() -> ChainCost {
    let block = |i: u64| Cost {
        input: (1 + i * 7919 % 13) << 18,
        saved: (8 + i * 104_729 % 37) << 19,
        workspace: (i * 31 % 5) << 18,
        gradients: (i * 17 % 9) << 16,
        forward: 1e-3 * (1 + i * 1_299_709 % 11) as f64,
        ..Cost::default()
    };
    ChainCost { blocks: (0..1000).map(block).collect(), ..ChainCost::default() }
}

fn solving() -> Call {
    let costs = chain();
    Box::new(move || {
        let plain = costs.simulate(&Plan::none(costs.blocks.len()))?.peak;
        let plan = solve(&costs, plain / 10 * 6)?;
        ensure!(plan.recomputed() > 0, "60 % of the peak need no plan");
        Ok(())
    })
}

fn probe(device: &Device) -> Call {
    let tensors: Vec<_> = (0..100).map(|_| Tensor::<2>::ones([256, 256], device)).collect();
    Box::new(move || {
        let mut probe = Probe::new();
        for tensor in &tensors {
            probe.add(tensor);
        }
        Ok(probe.finish()?)
    })
}

/// One recording of the step of the tiny decoder, with the options of a training step that clips.
fn recording() -> Result<Call> {
    let config = DecoderConfig::Gpt(GptConfig::tiny(256, 64));
    let (task, context) = (NextToken::unmeasured(), config.context());
    let options = StepOptions {
        scale_gradients: true,
        reads_norm: true,
        update_chunks: Some(UpdateChunks { parts: 8, least: 1 << 20 }),
        ..StepOptions::default()
    };
    let optimizer = AdamWConfig::new().build();
    Ok(Box::new(move || {
        let batch = |samples: usize| TextBatch {
            tokens: vec![0; samples * (context + 1)],
            shape: [samples, context + 1],
            ids: vec![0; samples],
        };
        let build = |device: &Device| config.init(device).unwrap_or_else(|e| panic!("{e}"));
        let loss = |model: &Decoder, recorder: &Recorder| {
            let (x, target) = task.begin(model, &batch(recorder.batch()).into(), recorder.device());
            recorder.cut();
            let x = task.blocks(model).iter().fold(x, |x, block| {
                let x = NextToken::forward(block, x);
                recorder.cut();
                x
            });
            task.end(model, x, target)
        };
        let trace = record_step(build, loss, &optimizer, options)?;
        let prediction = black_box(trace.predict(8, &BackendProfile::flex())?);
        ensure!(prediction.peak_bytes > 0, "a step that takes nothing");
        Ok(())
    }))
}
