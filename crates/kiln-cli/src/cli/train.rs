//! Options of `kiln train`. Those that are settings of a run stand with the settings.

use std::path::PathBuf;

use clap::Args;
use kiln_models::{DecoderConfig, Stem};
use kiln_training::{BatchRule, Decay, Warmup};
use serde::Serialize;

use super::defaults;
use crate::given::{Given, GivenNames};
use crate::pipelines::classify::ImageSettings;
use crate::pipelines::segment::IgnoredClass;
use crate::pipelines::{ParallelSettings, RunSettings};
use crate::usage::Usage;
use crate::values::{BATCH_RULE, CHANNELS, DECAY, OPTIMIZER, STEM, absolute_path, base_bits, number, utf8_path};

/// Options of a call that no settings file has, or has in another form.
#[derive(Args, Default)]
pub(crate) struct CallArgs {
    /// The names of all options that are given.
    #[command(flatten)]
    pub(crate) given: GivenNames,
    /// Settings as a TOML file; options on the command line win over it
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Go on with the run in this directory, under its own settings
    ///
    /// Its length, its learning rate, when it evaluates, saves and ends, and how it uses memory may be changed by their
    /// options. Its history.jsonl notes each change.
    #[arg(long, value_name = "DIR", help_heading = "Checkpoints")]
    pub(crate) resume: Option<PathBuf>,
    /// The optimizer, with its usual settings
    ///
    /// Without --learning-rate the recipe's rate is converted. State: adamw 8 bytes a parameter, adamw8bit 2, adamw4bit 1,
    /// sgd and lion 4, sgd8bit 1.
    #[arg(long, value_parser = OPTIMIZER, value_name = "NAME", help_heading = "Training")]
    pub(crate) optimizer: Option<&'static str>,
    /// Weight decay of the optimizer; norms and biases have none [default: the optimizer's]
    ///
    /// That is 0.1 of adamw, adafactor and muon, 0.5 of lion, and 0.0005 of sgd.
    #[arg(long, visible_alias = "wd", value_name = "X", help_heading = "Training")]
    pub(crate) weight_decay: Option<f64>,
    /// Highest learning rate
    #[arg(long, visible_alias = "lr", value_name = "RATE", allow_negative_numbers = true, help_heading = "Training")]
    pub(crate) learning_rate: Option<f64>,
    /// How the learning rate falls after the warm-up [default: cosine]
    #[arg(long, value_parser = DECAY, value_name = "NAME", help_heading = "Training")]
    pub(crate) schedule: Option<Decay>,
    /// Steps, or a fraction of all steps as 0.1, in which the learning rate rises
    #[arg(long, value_name = "STEPS", help_heading = "Training")]
    pub(crate) warmup: Option<Warmup>,
    /// The learning rate is that of batches of N samples: scale it to --batch-size
    ///
    /// Linearly for sgd, with the square root for other optimizers; --batch-rule says otherwise.
    #[arg(long, value_name = "N", value_parser = number::<usize>, help_heading = "Training")]
    pub(crate) base_batch: Option<usize>,
    /// With --base-batch: how the rate follows the batch [default: linear for sgd, else sqrt]
    #[arg(long, value_parser = BATCH_RULE, value_name = "RULE", requires = "base_batch", help_heading = "Training")]
    pub(crate) batch_rule: Option<BatchRule>,
    /// Use burn's own layers, which keep more memory, to compare
    #[arg(long, help_heading = "Model")]
    pub(crate) stock_layers: bool,
    /// With --memory: compute in bf16 if the run does not fit in its own precision
    #[arg(long, help_heading = "Memory")]
    pub(crate) allow_bf16: bool,
    /// With --memory: keep optimizer state in 8 bits if the run does not fit otherwise
    #[arg(long, requires = "memory", help_heading = "Memory")]
    pub(crate) allow_8bit_optimizer: bool,
    /// Seconds that a batch waits for memory that another program holds [default: 300]
    ///
    /// They count for all its attempts together; after them the run ends.
    #[arg(long, value_name = "SECONDS", help_heading = "Memory")]
    pub(crate) wait_for_memory: Option<u64>,
    /// Simulate running out of memory with this probability (testing) [default: 0]
    ///
    /// It runs out at each boundary of a step.
    #[arg(long, value_name = "P", help_heading = "Memory")]
    pub(crate) inject_oom: Option<f64>,
    /// Directory of the run, which must be new or empty [default: runs/MODEL-NNN]
    #[arg(long, value_name = "DIR", value_parser = utf8_path(), help_heading = "Output")]
    pub(crate) out: Option<PathBuf>,
    /// End stdout with one JSON object of results
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,
}

#[derive(Args)]
#[command(mut_args(defaults::classify))]
pub struct TrainClassify {
    #[command(flatten)]
    pub(crate) run: Given<RunSettings>,
    #[command(flatten)]
    pub(crate) call: CallArgs,
    #[command(flatten)]
    pub(crate) network: NetworkArgs,
    #[command(flatten)]
    pub(crate) images: Given<ImageSettings>,
    #[command(flatten)]
    pub(crate) teacher: TeacherArgs,
    #[command(flatten)]
    pub(crate) parallel: Given<ParallelSettings>,
}

/// The network of a classifier, as its table in a settings file.
#[derive(Args, Serialize)]
pub(crate) struct NetworkArgs {
    /// The network, by torchvision's or timm's name [default: resnet18]
    ///
    /// resnet18, 34, 50 or 101; mobilenet_v2 or v3_large; shufflenet_v2_x0_5, x1_0, x1_5 or x2_0; vit_tiny, small or base.
    #[arg(long, value_name = "NAME", help_heading = "Model")]
    #[serde(rename = "name")]
    pub(crate) model: Option<String>,
    /// Channels of a ResNet's first stage, or factor of a MobileNet's [default: 64 or 1]
    ///
    /// A ResNet on the small data set of the project has 16.
    #[arg(long, value_name = "N", help_heading = "Model")]
    #[serde(skip)]
    pub(crate) width: Option<f64>,
    /// For images of about 224 pixels (imagenet) or 32 (cifar) [default: as the images]
    ///
    /// A network with the stem cifar halves its input less often. Vision transformers have no stem.
    #[arg(long, value_parser = STEM, value_name = "NAME", help_heading = "Model")]
    pub(crate) stem: Option<Stem>,
    /// Train on gray images (1) or on RGB (3) [default: 3; 1 of IDX files]
    ///
    /// Files of either kind are decoded to what is said.
    #[arg(long, value_name = "N", value_parser = CHANNELS, help_heading = "Data")]
    pub(crate) channels: Option<usize>,
    /// Probability of leaving out a branch of a vision transformer's last block [default: 0]
    ///
    /// Each sample leaves out branches by itself, fewer in the blocks before. DeiT's is 0.1.
    #[arg(long, value_name = "P", help_heading = "Regularization")]
    pub(crate) drop_path: Option<f64>,
}

#[derive(Args)]
#[command(mut_args(defaults::segment))]
pub struct TrainSegment {
    #[command(flatten)]
    pub(crate) run: Given<RunSettings>,
    #[command(flatten)]
    pub(crate) call: CallArgs,
    #[command(flatten)]
    pub(crate) segment: SegmentArgs,
}

/// The model of a segmentation, its tiles and its loss.
#[derive(Args)]
pub(crate) struct SegmentArgs {
    /// Whose blocks are the encoder [default: resnet18]
    ///
    /// resnet18, 34, 50 or 101, or mobilenet_v2.
    #[arg(long, value_name = "NAME", help_heading = "Model")]
    pub(crate) encoder: Option<String>,
    /// Factor of the encoder's numbers of channels [default: 1, without --data 0.25]
    #[arg(long, value_name = "X", help_heading = "Model")]
    pub(crate) width: Option<f64>,
    /// Number of classes, for a data set without classes.txt
    #[arg(long, value_name = "N", value_parser = number::<usize>, help_heading = "Data")]
    pub(crate) classes: Option<usize>,
    /// Rows and columns of a tile, a multiple of 32 [default: 128]
    #[arg(long, value_name = "N", value_parser = number::<usize>, help_heading = "Data")]
    pub(crate) tile: Option<usize>,
    /// Rows and columns that neighbouring tiles of training share [default: half a tile]
    #[arg(long, value_name = "N", value_parser = number::<usize>, help_heading = "Data")]
    pub(crate) overlap: Option<usize>,
    /// Class id of pixels that do not count, or none [default: 255]
    #[arg(long, value_name = "ID", help_heading = "Data")]
    pub(crate) ignore: Option<IgnoredClass>,
    /// Weights of the classes in the cross-entropy [default: all 1]
    ///
    /// balanced (all classes have the same share), or a number for each, as in 1,2.5,1.
    #[arg(long, value_name = "WEIGHTS", help_heading = "Training")]
    pub(crate) class_weights: Option<String>,
    /// Factor of the Dice loss, which is added to the cross-entropy [default: 1]
    #[arg(long, value_name = "X", help_heading = "Training")]
    pub(crate) dice: Option<f64>,
}

#[derive(Args)]
#[command(mut_args(defaults::gpt))]
pub struct TrainGpt {
    #[command(flatten)]
    pub(crate) run: Given<RunSettings>,
    #[command(flatten)]
    pub(crate) call: CallArgs,
    #[command(flatten)]
    pub(crate) gpt: GptArgs,
    #[command(flatten)]
    pub(crate) lora: LoraArgs,
    #[command(flatten)]
    pub(crate) teacher: TeacherArgs,
    #[command(flatten)]
    pub(crate) parallel: Given<ParallelSettings>,
}

/// The model of a decoder and its text.
#[derive(Args)]
pub(crate) struct GptArgs {
    /// gpt-tiny, gpt-mini, gpt2, gpt2-medium, gpt2-large or gpt2-xl, or the folder of a model [default: gpt-tiny]
    ///
    /// A Hugging Face folder of a GPT-2, Llama, Mistral, Qwen2 or Qwen3 has config.json, weights and a tokenizer, with which the run begins.
    #[arg(long, value_name = "NAME|DIR", help_heading = "Model")]
    pub(crate) model: Option<String>,
    #[command(flatten)]
    pub(crate) sizes: SizeArgs,
    /// Tokens per sequence [default: 64; of a folder at most 512]
    ///
    /// The folder of a GPT-2 has all positions of its file.
    #[arg(long, value_name = "N", value_parser = number::<usize>, help_heading = "Data")]
    pub(crate) context: Option<usize>,
    /// Folder with vocab.json and merges.txt of a GPT-2 BPE [default: a token per byte]
    #[arg(long, value_name = "DIR", value_parser = absolute_path(), help_heading = "Data")]
    pub(crate) tokenizer: Option<PathBuf>,
    /// Records to evaluate on, beside --data with records [default: a part of --data]
    ///
    /// The part is the last twentieth of the records.
    #[arg(long, value_name = "PATH", value_parser = absolute_path(), help_heading = "Data")]
    pub(crate) validation: Option<PathBuf>,
    /// Dropout probability [default: 0]
    #[arg(long, value_name = "P", help_heading = "Regularization")]
    pub(crate) dropout: Option<f64>,
}

/// Sizes of a GPT that differ from those of its name.
#[derive(Args, Clone, Copy)]
pub(crate) struct SizeArgs {
    /// Blocks of a GPT [default: those of --model]
    #[arg(long, value_name = "N", value_parser = number::<usize>, help_heading = "Model")]
    layers: Option<usize>,
    /// Attention heads of each block, which divide the width [default: those of --model]
    #[arg(long, value_name = "N", value_parser = number::<usize>, help_heading = "Model")]
    heads: Option<usize>,
    /// Numbers that stand for a token between blocks [default: that of --model]
    #[arg(long, value_name = "N", value_parser = number::<usize>, help_heading = "Model")]
    width: Option<usize>,
}

impl SizeArgs {
    /// The options that are given, and their values.
    fn given(self) -> impl Iterator<Item = (&'static str, usize)> {
        let Self { layers, heads, width } = self;
        [("--layers", layers), ("--heads", heads), ("--width", width)]
            .into_iter()
            .filter_map(|(option, value)| Some((option, value?)))
    }

    /// Gives `model` these sizes.
    ///
    /// # Errors
    /// [`Usage`] for a model whose folder has its sizes.
    pub(crate) fn apply(self, model: &mut DecoderConfig, of_folder: bool) -> Result<(), Usage> {
        match (model, self.given().next()) {
            (DecoderConfig::Gpt(gpt), _) if !of_folder => {
                gpt.layers = self.layers.unwrap_or(gpt.layers);
                gpt.heads = self.heads.unwrap_or(gpt.heads);
                gpt.width = self.width.unwrap_or(gpt.width);
                Ok(())
            }
            (_, Some((option, value))) => {
                Err(Usage(format!("{option} is {value}, expected none: the model of a folder has its own sizes")))
            }
            (_, None) => Ok(()),
        }
    }

    /// The options as words of a command.
    pub(crate) fn words(self) -> impl Iterator<Item = String> {
        self.given().flat_map(|(option, value)| [option.to_owned(), value.to_string()])
    }
}

/// A model that a run learns from.
#[derive(Args)]
pub(crate) struct TeacherArgs {
    /// Learn from the outputs of this model as well: a run, or one of its checkpoints
    #[arg(long, value_name = "CHECKPOINT", value_parser = absolute_path(), help_heading = "Teacher")]
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

/// Low-rank adapters: new ones, or those of a folder.
#[derive(Args)]
pub(crate) struct LoraArgs {
    /// Train the adapters in a folder of peft further, in place of the weights [default: new ones]
    ///
    /// Rank, alpha, layers and kind are those of its adapter_config.json.
    #[arg(id = "adapters", long, value_name = "DIR", value_parser = absolute_path(), group = "LowRank", help_heading = "Adapters")]
    pub(crate) given: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) adapters: AdapterArgs,
}

/// Low-rank adapters.
#[derive(Args)]
pub(crate) struct AdapterArgs {
    /// Train adapters of this rank in place of the weights (LoRA)
    #[arg(long, value_name = "RANK", value_parser = number::<usize>, group = "LowRank", help_heading = "Adapters")]
    pub(crate) lora: Option<usize>,
    /// With --lora: an adapter counts ALPHA / RANK times [default: twice the rank]
    #[arg(long, value_name = "ALPHA", requires = "lora", help_heading = "Adapters")]
    pub(crate) lora_alpha: Option<f64>,
    /// With --lora: layers that have adapters, ends of their paths [default: all of the blocks]
    ///
    /// Those of a GPT are c_attn,c_proj,c_fc, of a Llama q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', requires = "lora", help_heading = "Adapters")]
    pub(crate) lora_targets: Vec<String>,
    /// With --lora: train the magnitude of each output by itself (DoRA)
    #[arg(long, requires = "lora", help_heading = "Adapters")]
    pub(crate) dora: bool,
    /// With adapters: keep the weights of the blocks' linear layers in 4 bits (QLoRA) [default: as they are]
    ///
    /// Embeddings and the head stay as they are; in 16 bits (--precision) they are stored in 16 bits.
    #[arg(long, value_name = "BITS", value_parser = base_bits, requires = "LowRank", help_heading = "Adapters")]
    pub(crate) base_bits: Option<u8>,
}
