//! Where figures come from.

use std::path::Path;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::context::Size;
use super::nvidia::Card;

const LOCK: &str = include_str!("../../../Cargo.lock");

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
            date: today(),
            revision: revision(),
            build: if cfg!(debug_assertions) { "dev" } else { "release" }.into(),
            device: device.into(),
            sizes,
            card: index(device).and_then(Card::of),
            processor: processor(),
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            burn: version_of(LOCK, "burn").unwrap_or("unknown").into(),
            cubecl: version_of(LOCK, "cubecl").unwrap_or("unknown").into(),
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
pub(crate) fn index(device: &str) -> Option<u32> {
    device.strip_prefix("cuda").map(|rest| rest.trim_start_matches(':').parse().unwrap_or(0))
}

fn version_of<'a>(lock: &'a str, package: &str) -> Option<&'a str> {
    let head = format!("name = \"{package}\"\nversion = \"");
    lock.split_once(&head)?.1.split('"').next()
}

/// Of a bundle the commit it was built from, of a program in the workspace that of the workspace.
fn revision() -> String {
    if let Some(revision) = option_env!("KILN_REVISION") {
        return revision.into();
    }
    workspace_revision().unwrap_or_else(|| "unknown".into())
}

/// The commit that is checked out in the workspace.
pub(crate) fn workspace_revision() -> Option<String> {
    let git = |arguments: &[&str]| {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let output = Command::new("git").args(arguments).current_dir(root).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let commit = git(&["rev-parse", "--short=12", "HEAD"])?;
    let changed = git(&["status", "--porcelain", "--untracked-files=no"]).is_some_and(|text| !text.is_empty());
    Some(if changed { commit + "+" } else { commit })
}

fn processor() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    name.map_or_else(|| std::env::consts::ARCH.into(), |(_, name)| name.trim().into())
}

fn today() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (year, month, day) = civil(seconds / 86_400);
    format!("{year:04}-{month:02}-{day:02}")
}

/// Year, month and day of a day counted from 1970-01-01. Source: Hinnant, chrono-compatible low-level date algorithms.
fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let first = (153 * month + 2) / 5;
    let (month, shift) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    (era * 400 + year + shift, month, day - first + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_dates() {
        assert_eq!(civil(0), (1970, 1, 1));
        assert_eq!(civil(11_016), (2000, 2, 29));
        assert_eq!(civil(11_017), (2000, 3, 1));
        assert_eq!(civil(20_778), (2026, 11, 21));
    }

    #[test]
    fn names_and_versions() {
        assert_eq!(Provenance::example().machine(), "example-gx-80-gb");
        assert_eq!(version_of(LOCK, "burn"), Some("0.22.1"));
        assert_eq!(version_of(LOCK, "no such package"), None);
        assert_eq!((index("cuda:3"), index("cuda"), index("flex")), (Some(3), Some(0), None));
    }
}
