//! Options of `cargo xtask gpu`.

use std::path::PathBuf;

use clap::Args;

use crate::provenance::Size;
use kiln_cli::gpu::gpu_index;

fn patience(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number| (0.1..=100.0).contains(number));
    number.ok_or_else(|| "expected a number from 0.1 to 100".into())
}

/// All items take less than 9 minutes with a patience of 1. The findings of each are on disk before the next begins.
#[derive(Args)]
pub struct GpuArguments {
    /// Numbers of items [default: all]
    #[arg(value_name = "ITEM")]
    pub items: Vec<usize>,
    /// List the items, and do nothing
    #[arg(long)]
    pub list: bool,
    /// A GPU as `train --device` names it, or cpu, at smaller sizes, to try the list itself
    #[arg(long, default_value = "cuda:0", value_parser = kiln_cli::device::parse)]
    pub device: String,
    /// Where results go; items that are there already and are not chosen stay
    /// [default: benches/results/gpu/CARD-DATE; runs/gpu otherwise, and with --warm]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// The smallest sizes, to see that everything runs
    #[arg(long)]
    pub quick: bool,
    /// Times as long for every item, as for a first run, which compiles and tunes all kernels
    #[arg(long, value_name = "N", default_value_t = 1.0, value_parser = patience)]
    pub patience: f64,
    /// Run only the parts of an item whose names contain this, such as "gpt2 (124M), 1024 tokens, bf16"
    #[arg(long, value_name = "TEXT")]
    pub only: Option<String>,
    /// Only compile and tune the kernels of the steps that item 10 measures. All that is done is kept, also when it is interrupted:
    /// repeat it until it passes
    #[arg(long)]
    pub warm: bool,
    /// Keep all results in this one .tar.gz as well, written anew after each item
    #[arg(long, value_name = "FILE")]
    pub archive: Option<PathBuf>,
    /// Python that has PyTorch, to compare with
    #[arg(long, value_name = "PATH", default_value = "python3")]
    pub python: PathBuf,
    /// Only write docs/results.md anew from the results in benches/results/gpu
    #[arg(long)]
    pub page: bool,
    /// Run the one item within this process
    #[arg(long, hide = true)]
    pub child: bool,
    /// Train one curve within this process
    #[arg(long, hide = true, value_name = "JSON")]
    pub curve: Option<String>,
}

impl GpuArguments {
    /// The sizes for this device.
    pub(crate) fn size(&self) -> Size {
        match (self.quick, gpu_index(&self.device)) {
            (true, _) => Size::Quick,
            (false, Some(_)) => Size::Full,
            (false, None) => Size::Small,
        }
    }
}
