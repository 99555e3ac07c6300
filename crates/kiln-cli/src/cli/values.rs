//! Values of options: the accepted ones, and other words that people type for them.

use std::ffi::OsStr;
use std::path::PathBuf;

use clap::builder::{PathBufValueParser, PossibleValue, TypedValueParser};
use clap::{Arg, Command, Error};

use crate::{device_name, size};

/// One of some words. Each stands beside others that mean the same.
#[derive(Clone, Copy)]
pub(crate) struct Word(&'static [(&'static str, &'static [&'static str])]);

/// `--precision`. PyTorch's automatic mixed precision computes in f16 with a loss scale.
pub(super) const PRECISION: Word =
    Word(&[("f32", &["fp32", "float32"]), ("f16", &["fp16", "float16", "half", "amp"]), ("bf16", &["bfloat16"])]);
/// `--optimizer`, as `OptimizerConfig::NAMES` has them.
pub(super) const OPTIMIZER: Word = Word(&[
    ("adamw", &[]),
    ("adamw8bit", &[]),
    ("adamw4bit", &[]),
    ("adafactor", &[]),
    ("lion", &[]),
    ("muon", &[]),
    ("sgd", &[]),
    ("sgd8bit", &[]),
]);
/// `--schedule`.
pub(super) const SCHEDULE: Word = Word(&[("1f1b", &[]), ("gpipe", &[]), ("sequential", &[])]);
/// `--batch-rule`.
pub(super) const BATCH_RULE: Word = Word(&[("linear", &[]), ("sqrt", &[])]);
/// `--decode`.
pub(super) const DECODE: Word = Word(&[("fast", &[]), ("exact", &[])]);
/// `--damaged-images`.
pub(super) const DAMAGED: Word = Word(&[("repair", &[]), ("refuse", &[])]);
/// `--transform`.
pub(super) const TRANSFORM: Word = Word(&[("whole", &[]), ("evaluation", &["eval"]), ("training", &["train"])]);
/// `--channels`.
pub(super) const CHANNELS: Word = Word(&[("1", &["gray", "grey"]), ("3", &["rgb"])]);
/// `--stem`.
pub(super) const STEM: Word = Word(&[("imagenet", &[]), ("cifar", &[])]);
/// `--device` of `plan`.
pub(super) const PLANNED_DEVICE: Word = Word(&[("cuda", &["gpu", "cuda:0"]), ("flex", &["cpu"])]);

impl Word {
    fn accepted(self) -> String {
        let names: Vec<&str> = self.0.iter().map(|(name, _)| *name).collect();
        match names.split_last() {
            Some((last, [])) => (*last).to_owned(),
            Some((last, others)) => format!("{} or {last}", others.join(", ")),
            None => String::new(),
        }
    }

    fn find(self, text: &str) -> Result<String, String> {
        let lower = text.to_lowercase();
        let found = self.0.iter().find(|(name, aliases)| *name == lower || aliases.contains(&lower.as_str()));
        found.map(|(name, _)| (*name).to_owned()).ok_or_else(|| format!("expected {}", self.accepted()))
    }
}

impl TypedValueParser for Word {
    type Value = String;

    fn parse_ref(&self, command: &Command, arg: Option<&Arg>, value: &OsStr) -> Result<String, Error> {
        let word = *self;
        (move |text: &str| word.find(text)).parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let value = |(name, aliases): &(&'static str, &'static [&'static str])| {
            PossibleValue::new(*name).aliases(aliases.iter().copied())
        };
        Some(Box::new(self.0.iter().map(value)))
    }
}

/// A path of a run, whose settings and results have it: they are UTF-8.
pub(super) fn utf8_path() -> impl TypedValueParser<Value = PathBuf> {
    let refuse = "it is not UTF-8, expected a path that files of settings and results can hold";
    PathBufValueParser::new().try_map(move |path| if path.to_str().is_some() { Ok(path) } else { Err(refuse) })
}

/// A device by any of its names.
pub(super) fn device(text: &str) -> Result<String, std::convert::Infallible> {
    Ok(device_name::canonical(text))
}

/// Devices by any of their names, or a number of them.
pub(super) fn devices(text: &str) -> Result<String, std::convert::Infallible> {
    Ok(device_name::canonical_list(text))
}

/// A size with its unit.
pub(super) fn a_size(text: &str) -> Result<String, String> {
    size::bytes(text).map(|_| text.to_owned())
}

/// A size with its unit, or `auto`.
pub(super) fn size_or_auto(text: &str) -> Result<String, String> {
    if text == "auto" { Ok(text.to_owned()) } else { a_size(text).map_err(|error| format!("{error}, or auto")) }
}

#[cfg(test)]
mod tests {
    use kiln_precision::Precision;
    use kiln_training::OptimizerConfig;

    use super::{OPTIMIZER, PRECISION, Word, size_or_auto};

    #[test]
    fn words_are_those_of_the_libraries() {
        let names = |word: Word| word.0.iter().map(|(name, _)| *name).collect::<Vec<_>>();
        assert_eq!(names(OPTIMIZER), OptimizerConfig::NAMES);
        assert_eq!(names(PRECISION), Precision::ALL.map(|precision| precision.to_string()));
    }

    #[test]
    fn other_words_mean_the_same_and_unknown_ones_are_refused_with_the_known() {
        for (typed, name) in [("fp16", "f16"), ("AMP", "f16"), ("float32", "f32"), ("bfloat16", "bf16")] {
            assert_eq!(PRECISION.find(typed).unwrap(), name);
        }
        assert_eq!(PRECISION.find("f8").unwrap_err(), "expected f32, f16 or bf16");
        assert_eq!(size_or_auto("300").unwrap_err(), "300 has no unit, expected e.g. 300MiB, or auto");
        assert_eq!(size_or_auto("auto").unwrap(), "auto");
    }
}
