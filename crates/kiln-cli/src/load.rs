//! `kiln load`: how fast a data set of images loads, and which resources that takes.

use std::path::Path;
use std::time::Instant;

use anyhow::{Result, ensure};
use bytesize::ByteSize;
use kiln_data::{DecodeOptions, ImageBatch, ImageSet, LoaderConfig, Order, Transform, open_images};
use kiln_report::counted;
use serde_json::json;

use crate::HEAP;
use crate::advice::advised_on_loading;
use crate::cli::Load;
use crate::log::RESULT;
use crate::output::print_json;
use crate::process::{Resident, processor_seconds};
use crate::usage::Usage;

pub(crate) fn run(arguments: &Load) -> Result<()> {
    let size = arguments.image_size as usize;
    let transform = match arguments.transform {
        "whole" => Transform::new(size),
        "evaluation" => Transform::evaluation(size),
        _ => Transform::training(size, 0.25), // there are three
    };
    ensure!(arguments.epochs > 0, Usage("--epochs is 0, expected at least 1".into()));
    let decoding = DecodeOptions::new().with_quality(arguments.decode).with_damage(arguments.damaged_images);
    let set = open(&arguments.data)?.with_decode_options(decoding);
    let (workers, batch_size) = (arguments.workers as usize, (arguments.batch_size as usize).min(set.len()));
    let order = Order::Shuffled { seed: 0 };
    let config = LoaderConfig::new(batch_size)
        .with_order(order)
        .with_workers(workers)
        .with_budget(arguments.loader_memory.0)
        .with_bad_samples(arguments.bad_samples);
    let images = set.len();
    let loader = ImageBatch::loader(set, transform, 0, config)?;

    let resident = Resident::start();
    HEAP.reset_peak();
    let (heap, processor) = (HEAP.live_bytes(), processor_seconds());
    let mut seconds = vec![];
    for epoch in 0..u64::from(arguments.epochs) {
        let begun = Instant::now();
        for batch in loader.epoch(epoch, 0) {
            match batch {
                Ok(_) | Err(kiln_data::Error::NothingLeft { .. }) => {}
                Err(error) => return Err(advised_on_loading(error)),
            }
        }
        seconds.push(begun.elapsed().as_secs_f64());
    }
    let used = processor.zip(processor_seconds()).map(|(before, after)| after - before);
    let heap = HEAP.peak_bytes().saturating_sub(heap) as u64;
    let (stats, bad) = (loader.stats(), loader.bad_samples());

    let timed = if seconds.len() > 1 { &mut seconds[1..] } else { &mut seconds[..] };
    timed.sort_by(f64::total_cmp);
    let median = images as f64 / timed[timed.len() / 2];
    let per_processor = used.filter(|used| *used > 0.0).map(|used| stats.samples as f64 / used);
    let resident = resident.above_start();
    tracing::info!(target: RESULT, "{}, {median:.1} images/s; {stats}", counted(images, "image"));
    if let Some(rate) = per_processor {
        tracing::info!("{rate:.1} images per second of processor time");
    }
    let above = resident.map_or(String::new(), |bytes| format!(", resident {} above the start", ByteSize(bytes)));
    tracing::info!("peak: heap {}{above}", ByteSize(heap));
    if arguments.json {
        print_json(&json!({
            "images": images, "epochs": arguments.epochs, "workers": workers, "decode": arguments.decode,
            "transform": arguments.transform, "image_size": size, "turbo": cfg!(feature = "turbo"),
            "images_per_s": { "median": median }, "images_per_cpu_s": per_processor,
            "peak_bytes": { "heap": heap, "budgeted": stats.peak_bytes, "rss_above_start": resident },
            "seconds": {
                "read": stats.read_seconds, "decode": stats.decode_seconds, "resize": stats.resize_seconds,
                "assemble": stats.assemble_seconds, "room": stats.room_seconds, "waited": stats.waited_seconds,
            },
            "bad_samples": bad.len(), "repairable_samples": stats.repairable_samples,
        }))?;
    }
    Ok(())
}

/// Opens all images of a folder of classes, or the training half if the folder has two halves.
fn open(path: &Path) -> Result<ImageSet, kiln_data::Error> {
    let halves = || open_images(path).map(|data| data.train);
    let is_split = |train: std::fs::ReadDir| train.flatten().any(|entry| entry.path().is_dir());
    match path.join("train").read_dir().is_ok_and(is_split) {
        true => halves(),
        false => ImageSet::folder(path).or_else(|_| halves()),
    }
}
