//! Where figures come from.

use std::fs;
use std::process::Command;

use serde::{Deserialize, Serialize};

use crate::gpu::{Card, card_index};
use crate::host::{self, Revision};

/// What figures depend on beside the code that is measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Provenance {
    pub(crate) processor: String,
    pub(crate) cores: usize,
    pub(crate) system: String,
    /// As on the command line, or the card's name.
    pub(crate) device: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) driver: Option<String>,
    pub(crate) revision: String,
    /// Whether files differ from the revision's.
    pub(crate) dirty: bool,
    pub(crate) burn: String,
    pub(crate) rustc: String,
    /// Cargo's profile and what else the program was compiled with.
    pub(crate) build: String,
    pub(crate) date: String,
    /// Processes that ran or waited to run, over a minute, when measuring began and when it ended.
    pub(crate) load: [Option<f64>; 2],
}

impl Provenance {
    /// Of this program on this machine, now. What cannot be found out is `unknown`.
    pub(crate) fn collect(device: &str) -> Self {
        let card = card_index(device).and_then(Card::of);
        let (device, driver) = match card {
            Some(card) => (card.name, Some(card.driver)),
            None => (device.to_owned(), None),
        };
        let Revision { commit, changed } = Revision::of_program();
        Self {
            processor: host::processor(),
            cores: host::processors(),
            system: system(),
            device,
            driver,
            revision: commit,
            dirty: changed,
            burn: host::locked("burn"),
            rustc: host::said(Command::new("rustc").arg("--version")).unwrap_or_else(host::unknown),
            build: build(),
            date: host::today(),
            load: [load(), None],
        }
    }

    /// Measuring is over.
    pub(crate) fn end(&mut self) {
        self.load[1] = load();
    }

    /// Whether times of both may be compared as they are.
    pub(crate) fn is_same_machine(&self, other: &Self) -> bool {
        let of = |p: &Self| (p.processor.clone(), p.cores, p.device.clone(), p.build.clone());
        of(self) == of(other)
    }

    /// One line for people.
    pub(crate) fn line(&self) -> String {
        let dirty = if self.dirty { ", with changes" } else { "" };
        let load = match self.load {
            [Some(start), Some(end)] => format!("; load {start:.1} to {end:.1}"),
            _ => String::new(),
        };
        let driver = self.driver.as_ref().map_or(String::new(), |driver| format!(", driver {driver}"));
        format!(
            "{}, {} cores, {}; device {}{driver}; revision {}{dirty}, burn {}, {}, profile {}; {}{load}",
            self.processor,
            self.cores,
            self.system,
            self.device,
            self.revision,
            self.burn,
            self.rustc,
            self.build,
            self.date
        )
    }
}

fn system() -> String {
    let text = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let name = text.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    let name = name.map_or(std::env::consts::OS.to_owned(), |name| name.trim_matches('"').to_owned());
    format!("{name}, {}", std::env::consts::ARCH)
}

fn load() -> Option<f64> {
    fs::read_to_string("/proc/loadavg").ok()?.split(' ').next()?.parse().ok()
}

fn build() -> String {
    let profile = host::profile();
    let features = [(cfg!(feature = "cuda"), " cuda"), (cfg!(feature = "turbo"), " turbo")];
    let features: String = features.into_iter().filter_map(|(there, name)| there.then_some(name)).collect();
    let flags = std::env::var("RUSTFLAGS").map_or(String::new(), |flags| format!(" RUSTFLAGS={flags}"));
    format!("{profile}{features}{flags}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_the_same_when_processor_and_build_are() {
        let here = Provenance::collect("flex");
        assert!(here.cores > 0 && here.is_same_machine(&Provenance { revision: "other".into(), ..here.clone() }));
        assert!(!here.is_same_machine(&Provenance { build: "other".into(), ..here.clone() }));
        assert!(here.line().contains("burn 0.22.1"), "{}", here.line());
    }
}
