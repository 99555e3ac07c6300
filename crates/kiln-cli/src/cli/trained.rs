//! Options of the commands that use a trained model.

use std::path::PathBuf;

use clap::Args;

use super::examples;
use crate::device;
use crate::values::number;

/// What the model was trained with is read from the run directory, or from --config.
#[derive(Args)]
pub(crate) struct TrainedArgs {
    /// A run directory, one of its checkpoints, or a .safetensors file
    #[arg(value_name = "RUN")]
    pub(crate) run: PathBuf,
    /// A run's config.toml, for a .safetensors file outside of a run directory
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// The best checkpoint of the run instead of the newest
    #[arg(long)]
    pub(crate) best: bool,
    #[arg(long, value_parser = device::parse, help = device::help())]
    pub(crate) device: Option<String>,
}

/// What the checkpoint was trained with is read from the run directory it lies in, or from --config.
#[derive(Args)]
pub(crate) struct EvalArgs {
    /// A run directory, one of its checkpoints, or a .safetensors file
    #[arg(long, value_name = "PATH")]
    pub(crate) checkpoint: PathBuf,
    #[command(flatten)]
    pub(crate) options: EvalOptions,
}

/// What every evaluation takes beside the model.
#[derive(Args, Default, PartialEq)]
pub(crate) struct EvalOptions {
    /// Of a run directory take the best checkpoint, not the newest
    #[arg(long)]
    pub(crate) best: bool,
    /// Data set [default: the one the model was trained on]
    #[arg(long, value_name = "PATH", help_heading = "Data")]
    pub(crate) data: Option<PathBuf>,
    /// A run's config.toml, for a .safetensors file outside of a run directory
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    #[arg(long, value_parser = device::parse, help = device::help())]
    pub(crate) device: Option<String>,
    /// Samples per batch [default: as in training]
    #[arg(long, visible_alias = "bs", alias = "batch", value_name = "N", value_parser = number::<usize>)]
    pub(crate) batch_size: Option<usize>,
    /// End stdout with one JSON object of results
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,
}

/// What the checkpoint was trained with is read from the run directory it lies in, or from --config.
#[derive(Args)]
pub(crate) struct EvalSegment {
    #[command(flatten)]
    pub(crate) eval: EvalArgs,
    /// Write the class of each pixel to DIR/NAME.tif [default: only scores]
    ///
    /// The file of a GeoTIFF lies on the map where its image does.
    #[arg(long, value_name = "DIR", help_heading = "Output")]
    pub(crate) predict: Option<PathBuf>,
    /// With --predict: images of any size, without masks [default: those of the data set]
    #[arg(long, value_name = "FILE", num_args = 1.., requires = "predict", help_heading = "Data")]
    pub(crate) image: Vec<PathBuf>,
    /// Rows and columns of a tile, a multiple of 32 [default: as in training]
    #[arg(long, value_name = "N", value_parser = number::<usize>)]
    pub(crate) tile: Option<usize>,
    /// Rows and columns that neighbouring tiles share [default: a quarter of a tile]
    ///
    /// Their predictions are blended there.
    #[arg(long, value_name = "N", value_parser = number::<usize>)]
    pub(crate) overlap: Option<usize>,
}

impl EvalSegment {
    /// The scores alone, with the tiles of the training.
    pub(crate) fn new(eval: EvalArgs) -> Self {
        Self { eval, predict: None, image: vec![], tile: None, overlap: None }
    }
}

/// The model of a Hugging Face folder may take the place of a run.
#[derive(Args)]
#[command(after_help = examples::SAMPLE)]
#[command(mut_arg("run", |run| run.help("A run directory, one of its checkpoints, a .safetensors file, or a model's folder")))]
pub struct Sample {
    #[command(flatten)]
    pub(crate) trained: TrainedArgs,
    /// Answer messages: one on each line of stdin, or --prompt alone
    ///
    /// The model's folder has a chat template, by which each answer is asked for with all of the conversation before it.
    #[arg(long, conflicts_with = "samples")]
    pub(crate) chat: bool,
    /// Of a model's folder: add the adapters in a folder of peft to its weights [default: none]
    #[arg(long, value_name = "DIR")]
    pub(crate) adapters: Option<PathBuf>,
    /// Complete each record of this .jsonl, on stdout with a field `generated` [default: none]
    ///
    /// Records have `prompt`, `text`, or `messages`, of which the last one of the user is answered. A field `generated` that is there is replaced.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["chat", "prompt", "prompt_file", "samples"])]
    pub(crate) records: Option<PathBuf>,
    /// The text to go on from; - reads it from stdin [default: a line break]
    #[arg(long, value_name = "TEXT", conflicts_with = "prompt_file", allow_hyphen_values = true)]
    pub(crate) prompt: Option<String>,
    /// A file with the text to go on from; - is stdin [default: --prompt]
    #[arg(long, value_name = "FILE")]
    pub(crate) prompt_file: Option<PathBuf>,
    /// Tokens to generate; of a run without --tokenizer they are bytes
    #[arg(long, value_name = "N", default_value_t = 500)]
    pub(crate) tokens: usize,
    /// Divides the logits; 0 always takes the likeliest token
    ///
    /// Less makes likely tokens likelier.
    #[arg(long, value_name = "T", default_value_t = 0.8, allow_negative_numbers = true)]
    pub(crate) temperature: f64,
    /// Draw only from the K likeliest tokens [default: all]
    #[arg(long, value_name = "K")]
    pub(crate) top_k: Option<usize>,
    /// Draw only from the fewest tokens whose probabilities reach P [default: 1]
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub(crate) top_p: Option<f64>,
    /// Random seed [default: a new one, which is printed]
    ///
    /// The same seed generates the same text.
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// Texts to generate from the prompt
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) samples: usize,
    /// Compute all tokens in sight again for each token
    ///
    /// That is slower, but the model always sees its whole context.
    #[arg(long)]
    pub(crate) no_cache: bool,
    /// One line of JSON for each text in place of the text
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
#[command(after_help = examples::PREDICT)]
pub struct Predict {
    #[command(flatten)]
    pub(crate) trained: TrainedArgs,
    /// Image files, and folders of them, with the folders in them
    #[arg(value_name = "IMAGE", required = true)]
    pub(crate) images: Vec<PathBuf>,
    /// Classes to print for an image, the likeliest first
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub(crate) top: usize,
    /// Of a segmentation: draw classes over images, DIR/NAME.png [default: none]
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Images, or tiles of a segmentation, on the device at once
    #[arg(long, visible_alias = "bs", alias = "batch", value_name = "N", default_value_t = 32)]
    pub(crate) batch_size: usize,
    /// One line of JSON for each image
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
#[command(after_help = examples::EXPORT)]
pub struct Export {
    #[command(flatten)]
    pub(crate) trained: TrainedArgs,
    /// Directory for the model, which must be new or empty [default: RUN/export]
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Safetensors, or peft for the adapters of a run with --lora
    #[arg(long, default_value = "safetensors")]
    pub(crate) format: String,
}
