//! Values of options and of settings files: words, numbers, sizes and paths.

use std::ffi::OsStr;
use std::num::ParseIntError;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use bytesize::ByteSize;
use clap::builder::{PathBufValueParser, PossibleValue, TypedValueParser};
use clap::{Arg, Command, Error};
use kiln_data::{Damage, Quality, printable};
use kiln_models::Stem;
use kiln_parallel::Schedule;
use kiln_precision::Precision;
use kiln_training::{BatchRule, Decay, Exact, MemoryBudget};
use serde::{Deserialize, Serialize};

/// A value for each of some words. Each word stands beside others that mean the same.
#[derive(Clone, Copy)]
pub(crate) struct Words<T: 'static>(&'static [(&'static str, &'static [&'static str], T)]);

/// `--precision`. PyTorch's automatic mixed precision computes in f16 with a loss scale.
pub(crate) const PRECISION: Words<Precision> = Words(&[
    ("f32", &["fp32", "float32"], Precision::F32),
    ("f16", &["fp16", "float16", "half", "amp"], Precision::F16),
    ("bf16", &["bfloat16"], Precision::BF16),
]);
/// `--parameters`.
pub(crate) const PARAMETERS: Words<Precision> =
    Words(&[("f32", &["fp32", "float32"], Precision::F32), ("bf16", &["bfloat16"], Precision::BF16)]);
/// `--optimizer`, as `OptimizerConfig::NAMES` has them.
pub(crate) const OPTIMIZER: Words<&str> = Words(&[
    ("adamw", &[], "adamw"),
    ("adamw8bit", &[], "adamw8bit"),
    ("adamw4bit", &[], "adamw4bit"),
    ("adafactor", &[], "adafactor"),
    ("lion", &[], "lion"),
    ("muon", &[], "muon"),
    ("sgd", &[], "sgd"),
    ("sgd8bit", &[], "sgd8bit"),
]);
/// `--schedule`, with transformers' names.
pub(crate) const DECAY: Words<Decay> = Words(&[
    ("cosine", &[], Decay::Cosine),
    ("linear", &[], Decay::Linear),
    ("constant", &["constant_with_warmup"], Decay::Constant),
]);
/// `--exact`.
pub(crate) const EXACT: Words<Exact> = Words(&[
    ("always", &["true"], Exact::Always),
    ("where-possible", &[], Exact::WherePossible),
    ("never", &["false"], Exact::Never),
]);
/// `--pipeline-schedule`.
pub(crate) const PIPELINE_SCHEDULE: Words<Schedule> = Words(&[
    ("1f1b", &[], Schedule::OneForwardOneBackward),
    ("gpipe", &[], Schedule::GPipe),
    ("sequential", &[], Schedule::Sequential),
]);
/// `--batch-rule`.
pub(crate) const BATCH_RULE: Words<BatchRule> =
    Words(&[("linear", &[], BatchRule::Linear), ("sqrt", &[], BatchRule::Sqrt)]);
/// `--decode`.
pub(crate) const DECODE: Words<Quality> = Words(&[("fast", &[], Quality::Fast), ("exact", &[], Quality::Exact)]);
/// `--damaged-images`.
pub(crate) const DAMAGED: Words<Damage> = Words(&[("repair", &[], Damage::Repair), ("refuse", &[], Damage::Refuse)]);
/// `--transform`.
pub(crate) const TRANSFORM: Words<&str> =
    Words(&[("whole", &[], "whole"), ("evaluation", &["eval"], "evaluation"), ("training", &["train"], "training")]);
/// `--channels`.
pub(crate) const CHANNELS: Words<usize> = Words(&[("1", &["gray", "grey"], 1), ("3", &["rgb"], 3)]);
/// `--stem`.
pub(crate) const STEM: Words<Stem> = Words(&[("imagenet", &[], Stem::ImageNet), ("cifar", &[], Stem::Cifar)]);

impl<T: Clone> Words<T> {
    fn find(&self, text: &str) -> Result<T, String> {
        let lower = text.to_lowercase();
        let found = self.0.iter().find(|(name, aliases, _)| *name == lower || aliases.contains(&lower.as_str()));
        let names = self.0.iter().map(|(name, ..)| (*name).to_owned());
        found.map(|(.., value)| value.clone()).ok_or_else(|| format!("expected {}", alternatives(names)))
    }
}

impl<T: Clone + Send + Sync + 'static> TypedValueParser for Words<T> {
    type Value = T;

    fn parse_ref(&self, command: &Command, arg: Option<&Arg>, value: &OsStr) -> Result<T, Error> {
        let words = self.clone();
        (move |text: &str| words.find(text)).parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(
            self.0.iter().map(|(name, aliases, _)| PossibleValue::new(*name).aliases(aliases.iter().copied())),
        ))
    }
}

/// `a, b or c`.
pub(crate) fn alternatives(names: impl Iterator<Item = String>) -> String {
    let names: Vec<String> = names.collect();
    match names.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, others)) => format!("{} or {last}", others.join(", ")),
        None => String::new(),
    }
}

/// Bits of the weights beside adapters.
pub(crate) fn base_bits(text: &str) -> Result<u8, String> {
    if text == "4" { Ok(4) } else { Err("expected 4".into()) }
}

/// A number of things, below 2^32.
pub(crate) fn number<N: TryFrom<u32>>(text: &str) -> Result<N, String> {
    let number: u32 = text.parse().map_err(|error: ParseIntError| error.to_string())?;
    number.try_into().map_err(|_| format!("{text} is too large"))
}

/// A path of a run, whose settings and results have it: they are UTF-8.
pub(crate) fn utf8_path() -> impl TypedValueParser<Value = PathBuf> {
    let refuse = "it is not UTF-8, expected a path that files of settings and results can hold";
    PathBufValueParser::new().try_map(move |path| if path.to_str().is_some() { Ok(path) } else { Err(refuse) })
}

/// A path of a settings file, made absolute.
pub(crate) fn absolute_path() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(|path| absolute(&path).map(PathBuf::from))
}

/// Makes a path absolute, because a run is resumed and evaluated from any directory.
///
/// # Errors
/// Describes a path that is not UTF-8: settings files are UTF-8.
pub(crate) fn absolute(path: &Path) -> Result<String, String> {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let refuse = |path| format!("'{}' is not UTF-8, expected a path that a settings file can hold", printable(&path));
    path.into_os_string().into_string().map_err(refuse)
}

/// Larger sizes are typing errors.
const MOST: u64 = 1 << 60;

/// Parses `500MB` or `1.5GiB` to bytes, at least one.
///
/// # Errors
/// Describes the error in the text, and the accepted format. A number without a unit is refused: 300 may mean 300 MiB.
pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    let text = text.trim();
    if !text.is_empty() && text.parse::<f64>().is_ok() {
        return Err(format!("{text} has no unit, expected e.g. {text}MiB"));
    }
    match text.parse::<ByteSize>() {
        Ok(ByteSize(bytes)) if (1..MOST).contains(&bytes) => Ok(bytes),
        Ok(_) => Err(format!("'{text}' is no size that memory can have, expected e.g. 300MiB or 24GiB")),
        Err(_) => Err(format!("'{text}' is not a size, expected e.g. 300MiB or 24GiB")),
    }
}

/// A size with the text that says it, without spaces.
#[derive(Clone, Debug)]
pub(crate) struct Size {
    pub(crate) text: String,
    pub(crate) bytes: u64,
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(Self { text: text.replace(' ', ""), bytes: bytes(text)? })
    }
}

/// A size in a settings file: a text with its unit. A number has no unit and is refused.
#[derive(Deserialize)]
#[serde(untagged)]
enum WrittenSize {
    Text(String),
    Integer(i64),
    Float(f64),
}

impl WrittenSize {
    /// The size that the text of the setting `name` says.
    fn parse<T: FromStr<Err = String>>(self, name: &str) -> Result<T, String> {
        let text = match self {
            Self::Text(text) => text,
            Self::Integer(number) => number.to_string(),
            Self::Float(number) => number.to_string(),
        };
        text.parse().map_err(|error| format!("{name}: {error}"))
    }
}

/// A memory budget: `auto`, bytes, or `step:` and bytes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "WrittenSize", into = "String")]
pub enum MemorySetting {
    /// A number of bytes: of the process on the CPU device, of the device on a GPU.
    Bytes(u64),
    /// A number of bytes of a step, to which the process adds its own.
    Step(u64),
    /// Nine tenths of the memory that is free when the run starts.
    Auto,
}

impl MemorySetting {
    /// The budget for the trainer.
    pub fn budget(self) -> MemoryBudget {
        match self {
            Self::Bytes(bytes) | Self::Step(bytes) => MemoryBudget::Bytes(bytes),
            Self::Auto => MemoryBudget::FractionOfFree(0.9),
        }
    }
}

impl FromStr for MemorySetting {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            _ => match text.strip_prefix("step:") {
                Some(step) => bytes(step).map(Self::Step).map_err(|error| format!("{text}: {error}")),
                None => bytes(text).map(Self::Bytes).map_err(|error| format!("{error}, or auto")),
            },
        }
    }
}

impl TryFrom<WrittenSize> for MemorySetting {
    type Error = String;

    fn try_from(size: WrittenSize) -> Result<Self, String> {
        size.parse("memory")
    }
}

impl From<MemorySetting> for String {
    fn from(memory: MemorySetting) -> Self {
        match memory {
            MemorySetting::Bytes(bytes) => format!("{bytes}B"),
            MemorySetting::Step(bytes) => format!("step:{bytes}B"),
            MemorySetting::Auto => "auto".into(),
        }
    }
}

/// The host memory of the loader, as in 256MiB.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "WrittenSize", into = "String")]
pub struct LoaderMemory(pub u64);

impl Default for LoaderMemory {
    fn default() -> Self {
        Self(1 << 30)
    }
}

impl FromStr for LoaderMemory {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        bytes(text).map(Self)
    }
}

impl TryFrom<WrittenSize> for LoaderMemory {
    type Error = String;

    fn try_from(size: WrittenSize) -> Result<Self, String> {
        size.parse("loader memory")
    }
}

impl From<LoaderMemory> for String {
    fn from(memory: LoaderMemory) -> Self {
        format!("{}B", memory.0)
    }
}

#[cfg(test)]
mod tests {
    use kiln_training::OptimizerConfig;

    use super::*;

    #[test]
    fn words_are_those_of_the_libraries() {
        let names: Vec<&str> = OPTIMIZER.0.iter().map(|(name, ..)| *name).collect();
        assert_eq!(names, OptimizerConfig::NAMES);
        assert!(PRECISION.0.iter().all(|(name, _, precision)| precision.to_string() == *name));
        assert_eq!(PRECISION.0.len(), Precision::ALL.len());
        assert!(PIPELINE_SCHEDULE.0.iter().all(|(name, _, schedule)| schedule.to_string() == *name));
    }

    #[test]
    fn other_words_mean_the_same_and_unknown_ones_are_refused_with_the_known() {
        for (typed, precision) in [
            ("fp16", Precision::F16),
            ("AMP", Precision::F16),
            ("float32", Precision::F32),
            ("bfloat16", Precision::BF16),
        ] {
            assert_eq!(PRECISION.find(typed), Ok(precision));
        }
        assert_eq!(PRECISION.find("f8").unwrap_err(), "expected f32, f16 or bf16");
    }

    #[test]
    fn a_size_needs_a_unit_and_is_read_as_it_is_written() {
        assert_eq!((bytes("1.5GiB"), bytes("500 MB"), bytes("1B")), (Ok(3 << 29), Ok(500_000_000), Ok(1)));
        for (text, expected) in
            [("300", "300 has no unit, expected e.g. 300MiB"), ("1.5", "1.5 has no unit, expected e.g. 1.5MiB")]
        {
            assert_eq!(bytes(text).unwrap_err(), expected);
        }
        for text in ["much", "-1", "", "0B", "9999999EiB", "MiB", "3 apples"] {
            assert!(bytes(text).unwrap_err().contains("MiB"), "{text}");
        }
        for text in ["auto", "1024B", "step:1024B"] {
            assert_eq!(String::from(text.parse::<MemorySetting>().unwrap()), text);
        }
        assert_eq!("300".parse::<MemorySetting>().unwrap_err(), "300 has no unit, expected e.g. 300MiB, or auto");
        for text in ["much", "0", "-1", "", "0B", "1024", "step:much", "step:7"] {
            assert!(text.parse::<MemorySetting>().unwrap_err().contains(text));
        }
    }
}
