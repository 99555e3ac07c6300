//! Sizes of memory in the format of a settings file.

use kiln_training::MemoryBudget;
use serde::{Deserialize, Serialize};

use crate::size::bytes;

/// A size in a settings file: a text with its unit. A number has no unit and is refused.
#[derive(Deserialize)]
#[serde(untagged)]
enum WrittenSize {
    Text(String),
    Integer(i64),
    Float(f64),
}

impl From<WrittenSize> for String {
    fn from(size: WrittenSize) -> Self {
        match size {
            WrittenSize::Text(text) => text,
            WrittenSize::Integer(number) => number.to_string(),
            WrittenSize::Float(number) => number.to_string(),
        }
    }
}

/// A memory budget in a settings file: `auto` or bytes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "WrittenSize", into = "String")]
pub enum MemorySetting {
    /// A number of bytes.
    Bytes(u64),
    /// Nine tenths of the memory that is free when the run starts.
    Auto,
}

impl MemorySetting {
    /// The budget for the trainer.
    pub fn budget(self) -> MemoryBudget {
        match self {
            Self::Bytes(bytes) => MemoryBudget::Bytes(bytes),
            Self::Auto => MemoryBudget::FractionOfFree(0.9),
        }
    }
}

impl TryFrom<WrittenSize> for MemorySetting {
    type Error = String;

    fn try_from(size: WrittenSize) -> Result<Self, String> {
        String::from(size).try_into()
    }
}

impl TryFrom<String> for MemorySetting {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match text.as_str() {
            "auto" => Ok(Self::Auto),
            _ => bytes(&text).map(Self::Bytes).map_err(|error| format!("memory: {error}, or auto")),
        }
    }
}

impl From<MemorySetting> for String {
    fn from(memory: MemorySetting) -> Self {
        match memory {
            MemorySetting::Bytes(bytes) => format!("{bytes}B"),
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

impl TryFrom<WrittenSize> for LoaderMemory {
    type Error = String;

    fn try_from(size: WrittenSize) -> Result<Self, String> {
        bytes(&String::from(size)).map(Self).map_err(|error| format!("loader memory: {error}"))
    }
}

impl From<LoaderMemory> for String {
    fn from(memory: LoaderMemory) -> Self {
        format!("{}B", memory.0)
    }
}

#[cfg(test)]
mod tests {
    use super::super::settings::RunSettings;
    use super::*;

    #[test]
    fn a_budget_is_read_as_it_is_printed() {
        for text in ["auto", "1024B"] {
            assert_eq!(String::from(MemorySetting::try_from(text.to_owned()).unwrap()), text);
        }
        assert_eq!(MemorySetting::try_from("1.5GiB".to_owned()), Ok(MemorySetting::Bytes(3 << 29)));
        for text in ["much", "0", "-1", "", "0B", "1024"] {
            assert!(MemorySetting::try_from(text.to_owned()).unwrap_err().contains(text));
        }
        let of = |text: &str| toml::from_str::<RunSettings>(text).unwrap_err().to_string();
        let run = "device = 'gpu'\nseed = 1\nepochs = 1\nbatch_size = 1\nworkers = 1\nevaluate_every = 0\nsave_every = 0\nkeep = 1\n";
        assert_eq!(toml::from_str::<RunSettings>(run).unwrap().device, "cuda:0");
        assert!(of(&format!("{run}memory = 300\n")).contains("300 has no unit, expected e.g. 300MiB"));
        assert!(of(&format!("{run}loader_memory = '300'\n")).contains("300 has no unit"));
    }
}
