//! Options of runs that learn from another model, or go on from its weights.

use std::path::PathBuf;

use clap::Args;

/// A model that a run learns from.
#[derive(Args)]
pub(crate) struct TeacherArgs {
    /// Learn from the outputs of this model as well: a run directory, or one of its checkpoints
    #[arg(long, value_name = "CHECKPOINT")]
    pub(crate) teacher: Option<PathBuf>,
    /// With --teacher: divides the logits of both models before they are compared [default: 1.5]
    #[arg(long, value_name = "T", requires = "teacher")]
    pub(crate) temperature: Option<f64>,
    /// With --teacher: share of the loss that compares with the teacher; the rest compares with the data [default: 0.7]
    #[arg(long, value_name = "SHARE", requires = "teacher")]
    pub(crate) teacher_share: Option<f64>,
}

/// Low-rank adapters.
#[derive(Args)]
pub(crate) struct LoraArgs {
    /// Begin with these weights: a run directory, a checkpoint, or a .safetensors file with the names of transformers
    #[arg(long, value_name = "PATH")]
    pub(crate) weights: Option<PathBuf>,
    /// Train adapters of this rank in place of the weights (LoRA)
    #[arg(long, value_name = "RANK")]
    pub(crate) lora: Option<u32>,
    /// With --lora: the product of an adapter's factors counts ALPHA / RANK times [default: twice the rank]
    #[arg(long, value_name = "ALPHA", requires = "lora")]
    pub(crate) lora_alpha: Option<f64>,
    /// With --lora: layers that have adapters, ends of their paths [default: c_attn,c_proj,c_fc]
    #[arg(long, value_name = "NAMES", value_delimiter = ',', requires = "lora")]
    pub(crate) lora_targets: Vec<String>,
    /// With --lora: train the magnitude of each output by itself (DoRA)
    #[arg(long, requires = "lora")]
    pub(crate) dora: bool,
}
