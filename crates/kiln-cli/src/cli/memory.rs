//! `kiln memory`: of the options of `train`, those that change what a step takes.

use std::path::PathBuf;

use clap::{Arg, ArgGroup, ArgMatches, Args, Command, Error, FromArgMatches, Subcommand, value_parser};

use super::examples;
use super::train::{TrainClassify, TrainGpt, TrainSegment};

/// Takes three steps and writes a page that shows every buffer of the last one. No run directory is made.
#[derive(Subcommand)]
pub enum Memory {
    /// An image classifier on labelled images; also called `resnet`
    #[command(alias = "resnet", after_help = examples::MEMORY_CLASSIFY)]
    Classify(OfStep<TrainClassify>),
    /// Semantic segmentation with a U-Net, on images of any size
    #[command(after_help = examples::MEMORY_SEGMENT)]
    Segment(OfStep<TrainSegment>),
    /// A decoder on text; also called `llm`
    #[command(alias = "llm", after_help = examples::MEMORY_GPT)]
    Gpt(OfStep<TrainGpt>),
}

/// The options of `train` that are those of a whole run, or of several of them.
const OF_RUNS: [&str; 20] = [
    "resume",
    "from",
    "init",
    "freeze",
    "epochs",
    "max_steps",
    "learning_rate",
    "schedule",
    "warmup",
    "base_batch",
    "batch_rule",
    "evaluate_every",
    "patience",
    "reduce_after",
    "save_every",
    "keep",
    "wait_for_memory",
    "inject_oom",
    "replicas",
    "shard_optimizer",
];

/// The options of a command of `train`, without those of whole runs.
pub struct OfStep<T>(pub(crate) T);

impl<T: Args> Args for OfStep<T> {
    fn augment_args(command: Command) -> Command {
        let all = T::augment_args(Command::new("train"));
        let page = |arg: Arg| {
            let help = "Directory for the page memory-MODEL.html [default: the current one]";
            arg.help(help).value_parser(value_parser!(PathBuf))
        };
        all.get_arguments().cloned().fold(command, |command, arg| match arg.get_id().as_str() {
            // An empty group is known, and never given.
            id if OF_RUNS.contains(&id) => command.group(ArgGroup::new(arg.get_id().clone())),
            "out" => command.arg(page(arg)),
            _ => command.arg(arg),
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<T: FromArgMatches> FromArgMatches for OfStep<T> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        T::from_arg_matches(matches).map(Self)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        self.0.update_from_arg_matches(matches)
    }
}
