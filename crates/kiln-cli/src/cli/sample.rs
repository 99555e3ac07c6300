//! Options of `sample`.

use std::path::PathBuf;

use clap::Args;

use super::trained::TrainedArgs;

#[derive(Args)]
#[command(after_help = super::examples::SAMPLE)]
pub struct Sample {
    #[command(flatten)]
    pub(crate) trained: TrainedArgs,
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
    /// What all randomness is derived from [default: a new one, which is printed]
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
