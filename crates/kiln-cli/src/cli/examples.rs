//! Examples: at the end of the help of each command, and what the program prints without a command.

use std::io::Write;
use std::process::ExitCode;

use anyhow::Result;

pub(super) const TRAIN_CLASSIFY: &str = "\
Examples:
  kiln train classify                                  # 4,000 images of clothes
  kiln train classify --data photos/ --model resnet50  # photos/CLASS/*.jpg
  kiln train classify --data photos/ --memory 4GiB     # picks what fits
  kiln train classify --resume runs/resnet-001";

pub(super) const TRAIN_SEGMENT: &str = "\
Examples:
  kiln train segment                            # land cover from the air
  kiln train segment --data scenes/ --tile 256  # scenes/images/, scenes/masks/
  kiln train segment --data scenes/ --class-weights balanced --memory 8GiB";

pub(super) const TRAIN_GPT: &str = "\
Examples:
  kiln train gpt                                # a thousand steps on Moby-Dick
  kiln train gpt --data book.txt --context 256
  kiln train gpt --data book.txt --batch-size 64 --memory 300MiB
  kiln train gpt --data book.txt --init gpt2.safetensors --freeze wte
  kiln train gpt --data book.txt --init runs/gpt-001 --lora 8
  kiln train llm --model data/smollm2 --data chats.jsonl --lora 16";

pub(super) const EVAL: &str = "\
Examples:
  kiln eval runs/resnet-001 --best
  kiln eval runs/gpt-001 --data book.txt --json
  kiln eval segment --checkpoint runs/unet-001 --predict classes/";

pub(super) const EVAL_CLASSIFY: &str = "\
Examples:
  kiln eval classify --checkpoint runs/resnet-001
  kiln eval classify --checkpoint runs/resnet-001 --data photos/ --json";

pub(super) const EVAL_SEGMENT: &str = "\
Examples:
  kiln eval segment --checkpoint runs/unet-001
  kiln eval segment --checkpoint runs/unet-001 --image a.tif --predict classes/";

pub(super) const EVAL_GPT: &str = "\
Examples:
  kiln eval gpt --checkpoint runs/gpt-001
  kiln eval gpt --checkpoint runs/gpt-001 --data book.txt";

pub(super) const QUANTIZE: &str = "\
Examples:
  kiln compress quantize runs/resnet-001 --inputs
  kiln compress quantize runs/resnet-001 --bits 4 --block 64 --epochs 3";

pub(super) const PRUNE: &str = "\
Examples:
  kiln compress prune runs/resnet-001 --sparsity 0.9
  kiln compress prune runs/gpt-001 --pattern 2:4";

pub(super) const SHRINK: &str = "\
Example:
  kiln compress shrink runs/resnet-001 --multiply-adds 0.5";

pub(super) const DISTILL: &str = "\
Examples:
  kiln compress distill runs/resnet-001 --width 8
  kiln compress distill runs/resnet-001 --model mobilenet_v2 --width 0.5";

pub(super) const MEMORY_CLASSIFY: &str = "\
Examples:
  kiln memory classify --batch-size 256
  kiln memory classify --data photos/ --model resnet50 --checkpointing sqrt";

pub(super) const MEMORY_SEGMENT: &str = "\
Example:
  kiln memory segment --tile 256 --batch-size 4";

pub(super) const MEMORY_GPT: &str = "\
Examples:
  kiln memory gpt --precision bf16
  kiln memory gpt --model gpt2 --batch-size 4 --stages 2";

pub(super) const PLAN_CLASSIFY: &str = "\
Examples:
  kiln plan classify --memory 16GiB --batch-size 256
  kiln plan classify --memory 8GiB --model vit_small --image-size 384 --all";

pub(super) const PLAN_SEGMENT: &str = "\
Example:
  kiln plan segment --memory 24GiB --tile 1024 --classes 5 --batch-size 8";

pub(super) const PLAN_GPT: &str = "\
Examples:
  kiln plan gpt --memory 24GiB --model gpt2-medium
  kiln plan gpt --memory 24GiB --model gpt2-medium --stages 2";

pub(super) const MODELS: &str = "\
Examples:
  kiln models
  kiln models --only resnet --json";

pub(super) const FETCH: &str = "\
Example:
  kiln fetch fashion-mnist && kiln train classify --data data/fashion-mnist";

pub(super) const LOAD: &str = "\
Example:
  kiln load photos/ --image-size 224 --workers 4";

pub(super) const SAMPLE: &str = "\
Examples:
  kiln sample runs/gpt-001
  kiln sample runs/gpt-001 --prompt Call --tokens 300 --temperature 0.7 --seed 1
  kiln sample data/smollm2 --chat";

pub(super) const PREDICT: &str = "\
Examples:
  kiln predict runs/resnet-001 photos/ --top 3
  kiln predict runs/unet-001 scene.tif --out pictures/";

pub(super) const EXPORT: &str = "\
Examples:
  kiln export runs/resnet-001 --out for-pytorch/
  kiln export runs/gpt-001 --format peft --out adapters/";

pub(super) const DOCTOR: &str = "\
Examples:
  kiln doctor train.log
  kiln doctor runs/gpt-001
  python train.py 2>&1 | kiln doctor";

pub(super) const RUNS: &str = "\
Examples:
  kiln runs
  kiln runs --sort best --json";

pub(super) const COMPARE: &str = "\
Example:
  kiln compare runs/gpt-001 runs/gpt-002 --out compare.html";

pub(super) const COMPLETIONS: &str = "\
Example:
  kiln completions bash  # into a file that the shell reads when it starts";

const OVERVIEW: &str = "\
Train models inside a memory budget.

Usage: kiln COMMAND [OPTIONS]

  kiln train classify --data photos/               an image classifier
  kiln train gpt --data book.txt --memory 300MiB   a language model in 300 MiB
  kiln plan classify --memory 16GiB                what fits into a GPU
  kiln memory gpt                                  what the memory is used for
  kiln sample runs/gpt-001                         text of a trained model

Without --data, train takes a small data set of the project. kiln --help lists
all commands, and kiln COMMAND --help the options of one.
";

/// Prints the commands that a newcomer wants first.
///
/// # Errors
/// When stdout is closed.
pub fn overview() -> Result<ExitCode> {
    std::io::stdout().lock().write_all(OVERVIEW.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}
