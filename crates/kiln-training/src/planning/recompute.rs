//! Which blocks a run recomputes, as a user chooses it.

use std::fmt;
use std::str::FromStr;

use bytesize::ByteSize;
use kiln_checkpointing::Plan;
use serde::{Deserialize, Serialize};

/// Selects the blocks of the model's chains that are recomputed in the backward pass. The others keep their activations.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
#[non_exhaustive]
pub enum Recompute {
    /// No block is recomputed, unless a memory budget asks for it.
    #[default]
    None,
    /// Recomputes segments of this many blocks.
    Every(usize),
    /// Recomputes segments of the length that needs the least memory if all blocks are alike (Chen et al. 2016).
    Sqrt,
    /// Uses the fastest plan whose step is predicted to stay within this many bytes.
    Within(u64),
    /// Recomputes every block, and keeps the blocks' inputs in host memory.
    Offload,
    /// Streams every block: its parameters, gradients and optimizer state are in a store.
    Stream,
    /// Uses a given plan.
    Plan(Plan),
}

const EXPECTED: &str = "none, every:K, sqrt, auto:BYTES (as in auto:24GiB), offload, stream or segments (as in 0..2 recompute, 2..4 plain)";

impl FromStr for Recompute {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let unknown = || format!("checkpointing is '{text}', expected {EXPECTED}");
        Ok(match text.split_once(':') {
            Some(("every", length)) => {
                Self::Every(length.parse().ok().filter(|length| *length > 0).ok_or_else(unknown)?)
            }
            Some(("auto", number)) if number.parse::<f64>().is_ok_and(|number| number > 0.0) => {
                return Err(format!("checkpointing is '{text}': {number} has no unit, expected e.g. auto:{number}MiB"));
            }
            Some(("auto", bytes)) => {
                let bytes = bytes.parse::<ByteSize>().map_err(|_| unknown())?.0;
                Self::Within(Some(bytes).filter(|bytes| *bytes > 0).ok_or_else(unknown)?)
            }
            _ => match text {
                "none" => Self::None,
                "sqrt" => Self::Sqrt,
                "offload" => Self::Offload,
                "stream" => Self::Stream,
                segments => {
                    // A list of segments says itself how many blocks there are.
                    let end = segments.rsplit("..").next().and_then(|end| end.split(' ').next()?.parse().ok());
                    Self::Plan(Plan::parse(segments, end.ok_or_else(unknown)?).map_err(|_| unknown())?)
                }
            },
        })
    }
}

impl TryFrom<String> for Recompute {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Recompute> for String {
    fn from(checkpointing: Recompute) -> Self {
        checkpointing.to_string()
    }
}

impl fmt::Display for Recompute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Every(length) => write!(f, "every:{length}"),
            Self::Sqrt => f.write_str("sqrt"),
            Self::Within(bytes) => write!(f, "auto:{bytes}B"),
            Self::Offload => f.write_str("offload"),
            Self::Stream => f.write_str("stream"),
            Self::Plan(plan) => write!(f, "{plan}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_printed_text_is_read_back() {
        for text in
            ["none", "every:3", "sqrt", "auto:1024B", "offload", "stream", "0..2 recompute, 2..3 offload, 3..4 plain"]
        {
            assert_eq!(text.parse::<Recompute>().unwrap().to_string(), text);
        }
        assert_eq!("auto:1.5GiB".parse(), Ok(Recompute::Within(3 << 29)));
        assert_eq!("auto:500MB".parse(), Ok(Recompute::Within(500_000_000)));
        let refused = "auto:300".parse::<Recompute>().unwrap_err();
        assert_eq!(refused, "checkpointing is 'auto:300': 300 has no unit, expected e.g. auto:300MiB");
        for text in ["", "every", "every:0", "every:x", "auto:", "auto:-1", "auto:many", "all", "sqrt:2", "1..2 plain"]
        {
            let refused = text.parse::<Recompute>().unwrap_err();
            assert!(refused.contains(text) && refused.contains("every:K"), "{refused}");
        }
    }
}
