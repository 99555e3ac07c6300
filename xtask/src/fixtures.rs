//! `cargo xtask fixtures`: makes the small data sets in fixtures/ from the full ones.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use kiln_cli::fixtures::directory;
use kiln_data::{ImageSet, open_images};

use crate::cli::Fixtures;
use kiln_cli::fetch::{FASHION_CLASSES, write_half};

/// Per class: the first 400 images for training and the first 100 for testing.
pub(crate) fn run(arguments: &Fixtures) -> Result<()> {
    let full = open_images(&arguments.data).context("run `cargo xtask fetch fashion-mnist` first, or give --data")?;
    let out = match &arguments.out {
        Some(out) => out.clone(),
        None => directory()?.join("fashion-mnist"),
    };
    fs::create_dir_all(&out).with_context(|| format!("cannot make '{}'", out.display()))?;
    write(&full.train, 400, &out, "train")?;
    write(&full.test, 100, &out, "t10k")?;
    fs::write(out.join("classes.txt"), FASHION_CLASSES)?;
    tracing::info!("wrote {}", out.display());
    Ok(())
}

fn write(set: &ImageSet, per_class: usize, out: &Path, name: &str) -> Result<()> {
    let mut taken = vec![0; set.classes().len()];
    let mut samples = vec![];
    for id in 0..set.len() {
        let label = set.label(id);
        if taken[label] < per_class {
            taken[label] += 1;
            samples.push((label as u8, set.load(id)?.image.pixels));
        }
    }
    ensure!(taken.iter().all(|n| *n == per_class), "the data set has too few images of a class");
    let samples: Vec<(u8, &[u8])> = samples.iter().map(|(label, pixels)| (*label, pixels.as_slice())).collect();
    write_half(out, name, &samples)
}
