//! Options of runs that learn from another model, or go on from its weights.

use std::path::PathBuf;

use clap::Args;

/// A model that a run learns from.
#[derive(Args)]
pub(crate) struct TeacherArgs {
    /// Learn from the outputs of this model as well: a run, or one of its checkpoints
    #[arg(long, value_name = "CHECKPOINT", help_heading = "Teacher")]
    pub(crate) teacher: Option<PathBuf>,
    /// With --teacher: divides the logits of both models [default: 1.5]
    #[arg(long, value_name = "T", requires = "teacher", help_heading = "Teacher")]
    pub(crate) temperature: Option<f64>,
    /// With --teacher: share of the loss that compares with the teacher [default: 0.7]
    ///
    /// The rest compares with the data.
    #[arg(long, value_name = "SHARE", requires = "teacher", help_heading = "Teacher")]
    pub(crate) teacher_share: Option<f64>,
}

/// Low-rank adapters.
#[derive(Args)]
pub(crate) struct LoraArgs {
    /// Begin with these weights: a run, a checkpoint, or a .safetensors file [default: random]
    ///
    /// The tensors of a .safetensors file have the names of transformers.
    #[arg(long, value_name = "PATH", help_heading = "Model")]
    pub(crate) weights: Option<PathBuf>,
    /// Train adapters of this rank in place of the weights (LoRA)
    #[arg(long, value_name = "RANK", help_heading = "Adapters")]
    pub(crate) lora: Option<u32>,
    /// With --lora: an adapter counts ALPHA / RANK times [default: twice the rank]
    #[arg(long, value_name = "ALPHA", requires = "lora", help_heading = "Adapters")]
    pub(crate) lora_alpha: Option<f64>,
    /// With --lora: layers that have adapters, ends of their paths [default: c_attn,c_proj,c_fc]
    #[arg(long, value_name = "NAMES", value_delimiter = ',', requires = "lora", help_heading = "Adapters")]
    pub(crate) lora_targets: Vec<String>,
    /// With --lora: train the magnitude of each output by itself (DoRA)
    #[arg(long, requires = "lora", help_heading = "Adapters")]
    pub(crate) dora: bool,
}
