//! `kiln memory`: of the options of `train`, those that change what a step takes.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::classify::{ClassifyArgs, TrainClassify};
use super::gpt::{GptArgs, TrainGpt};
use super::parallel::{ParallelArgs, StagesArgs};
use super::run::{RunArgs, StepArgs};
use super::segment::{SegmentArgs, TrainSegment};
use super::{defaults, examples};

/// Takes three steps and writes a page that shows every buffer of the last one. No run directory is made.
#[derive(Subcommand)]
pub enum Memory {
    /// An image classifier on labelled images; also called `resnet`
    #[command(alias = "resnet", after_help = examples::MEMORY_CLASSIFY)]
    Classify(MemoryClassify),
    /// A U-Net that tells the class of each pixel, on images of any size
    #[command(after_help = examples::MEMORY_SEGMENT)]
    Segment(MemorySegment),
    /// A GPT-2-style decoder on text
    #[command(after_help = examples::MEMORY_GPT)]
    Gpt(MemoryGpt),
}

/// Options of every command.
#[derive(Args)]
pub(crate) struct MeasuredArgs {
    #[command(flatten)]
    step: StepArgs,
    /// Directory for the page memory-MODEL.html [default: the current one]
    #[arg(long, value_name = "DIR", help_heading = "Output")]
    out: Option<PathBuf>,
}

#[derive(Args)]
#[command(mut_args(defaults::classify))]
pub struct MemoryClassify {
    #[command(flatten)]
    measured: MeasuredArgs,
    #[command(flatten)]
    classify: ClassifyArgs,
    #[command(flatten)]
    stages: StagesArgs,
}

#[derive(Args)]
#[command(mut_args(defaults::segment))]
pub struct MemorySegment {
    #[command(flatten)]
    measured: MeasuredArgs,
    #[command(flatten)]
    segment: SegmentArgs,
}

#[derive(Args)]
#[command(mut_args(defaults::gpt))]
pub struct MemoryGpt {
    #[command(flatten)]
    measured: MeasuredArgs,
    #[command(flatten)]
    gpt: GptArgs,
    #[command(flatten)]
    stages: StagesArgs,
}

impl MeasuredArgs {
    /// The run whose first steps are measured.
    fn into_run(self) -> RunArgs {
        RunArgs { step: self.step, out: self.out, ..RunArgs::default() }
    }
}

fn in_stages(stages: StagesArgs) -> ParallelArgs {
    ParallelArgs { stages, ..ParallelArgs::default() }
}

impl From<MemoryClassify> for TrainClassify {
    fn from(MemoryClassify { measured, classify, stages }: MemoryClassify) -> Self {
        Self { run: measured.into_run(), classify, parallel: in_stages(stages) }
    }
}

impl From<MemorySegment> for TrainSegment {
    fn from(MemorySegment { measured, segment }: MemorySegment) -> Self {
        Self { run: measured.into_run(), segment }
    }
}

impl From<MemoryGpt> for TrainGpt {
    fn from(MemoryGpt { measured, gpt, stages }: MemoryGpt) -> Self {
        Self { run: measured.into_run(), gpt, parallel: in_stages(stages) }
    }
}
