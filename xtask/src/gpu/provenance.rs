//! Where figures come from.

use serde::{Deserialize, Serialize};

use super::context::Size;
use super::nvidia::Card;
use crate::host::{self, Revision};

/// What an item ran on, with what, and when.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Provenance {
    /// UTC, as in 2026-11-21.
    pub(crate) date: String,
    /// The commit, with a + behind it when files were changed.
    pub(crate) revision: String,
    /// release or dev.
    pub(crate) build: String,
    /// As on the command line.
    pub(crate) device: String,
    pub(crate) sizes: Size,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) card: Option<Card>,
    pub(crate) processor: String,
    pub(crate) processors: usize,
    pub(crate) burn: String,
    pub(crate) cubecl: String,
}

impl Provenance {
    pub(crate) fn of(device: &str, sizes: Size) -> Self {
        Self {
            date: host::today(),
            revision: Revision::of_program().word(),
            build: host::profile().into(),
            device: device.into(),
            sizes,
            card: card_index(device).and_then(Card::of),
            processor: host::processor(),
            processors: host::processors(),
            burn: host::locked("burn"),
            cubecl: host::locked("cubecl"),
        }
    }

    /// What a directory of such results is called, without the date.
    pub(crate) fn machine(&self) -> String {
        let name = self.card.as_ref().map_or(self.device.as_str(), |card| card.name.as_str()).to_lowercase();
        let words = name.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
        words.collect::<Vec<_>>().join("-")
    }

    #[cfg(test)]
    pub(crate) fn example() -> Self {
        Self {
            date: "2026-11-21".into(),
            revision: "0123456".into(),
            build: "release".into(),
            device: "cuda:0".into(),
            sizes: Size::Full,
            card: Some(Card {
                name: "Example GX (80 GB)".into(),
                driver: "600.1".into(),
                cuda: "13.1".into(),
                compute: "9.0".into(),
                total_bytes: 80 << 30,
                free_bytes: 79 << 30,
                power_limit_w: Some(700.0),
                max_sm_mhz: Some(1980),
            }),
            processor: "Example CPU".into(),
            processors: 16,
            burn: "0.22.1".into(),
            cubecl: "0.11.3".into(),
        }
    }
}

/// Number of an NVIDIA card as `--device` names it.
pub(crate) fn card_index(device: &str) -> Option<u32> {
    device.strip_prefix("cuda").map(|rest| rest.trim_start_matches(':').parse().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_machines_and_numbers_of_cards() {
        assert_eq!(Provenance::example().machine(), "example-gx-80-gb");
        assert_eq!((card_index("cuda:3"), card_index("cuda"), card_index("flex")), (Some(3), Some(0), None));
    }
}
