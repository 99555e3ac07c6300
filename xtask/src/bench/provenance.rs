//! Where figures come from.

use std::fs;
use std::process::Command;

use serde::{Deserialize, Serialize};

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
        let card = device.strip_prefix("cuda").map(|rest| card(rest.trim_start_matches(':')));
        let (device, driver) = match card {
            Some(Some((name, driver))) => (name, Some(driver)),
            _ => (device.to_owned(), None),
        };
        Self {
            processor: processor(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            system: system(),
            device,
            driver,
            revision: said("git", &["rev-parse", "--short", "HEAD"]).unwrap_or_else(unknown),
            dirty: said("git", &["status", "--porcelain", "--untracked-files=no"]).is_some_and(|text| !text.is_empty()),
            burn: locked("burn", include_str!("../../../Cargo.lock")).unwrap_or_else(unknown),
            rustc: said("rustc", &["--version"]).unwrap_or_else(unknown),
            build: build(),
            date: said("date", &["-u", "+%Y-%m-%d"]).unwrap_or_else(unknown),
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

fn unknown() -> String {
    "unknown".into()
}

/// What a program that does not fail prints.
fn said(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn processor() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("model name"));
    let name = line.map(|rest| rest.trim_start_matches([' ', '\t', ':']).to_owned());
    name.or_else(|| said("sysctl", &["-n", "machdep.cpu.brand_string"])).unwrap_or_else(unknown)
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

/// Name and driver of an NVIDIA card.
fn card(index: &str) -> Option<(String, String)> {
    let index = if index.is_empty() { "0" } else { index };
    let text = said("nvidia-smi", &["-i", index, "--query-gpu=name,driver_version", "--format=csv,noheader"])?;
    let (name, driver) = text.split_once(", ")?;
    Some((name.to_owned(), driver.to_owned()))
}

/// The version of a package in a lock file.
fn locked(package: &str, lock: &str) -> Option<String> {
    let lock: toml::Table = lock.parse().ok()?;
    let found =
        lock.get("package")?.as_array()?.iter().find(|p| p.get("name").and_then(|n| n.as_str()) == Some(package));
    Some(found?.get("version")?.as_str()?.to_owned())
}

fn build() -> String {
    let profile = if cfg!(debug_assertions) { "dev" } else { "release" };
    let features = [(cfg!(feature = "cuda"), " cuda"), (cfg!(feature = "turbo"), " turbo")];
    let features: String = features.into_iter().filter_map(|(there, name)| there.then_some(name)).collect();
    let flags = std::env::var("RUSTFLAGS").map_or(String::new(), |flags| format!(" RUSTFLAGS={flags}"));
    format!("{profile}{features}{flags}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lock_file_says_which_burn_it_is() {
        assert_eq!(locked("burn", include_str!("../../../Cargo.lock")).unwrap(), "0.22.1");
        assert_eq!(locked("burn", "[[package]]\nname = \"burnt\"\nversion = \"1\"\n"), None);
        assert_eq!(locked("burn", "no = lock = file"), None);
    }

    #[test]
    fn a_machine_is_the_same_when_processor_and_build_are() {
        let here = Provenance::collect("flex");
        assert!(here.cores > 0 && here.is_same_machine(&Provenance { revision: "other".into(), ..here.clone() }));
        assert!(!here.is_same_machine(&Provenance { build: "other".into(), ..here.clone() }));
        assert!(here.line().contains("burn 0.22.1"), "{}", here.line());
    }
}
