//! The provenance of figures: machine, device, revision, build and date.

use std::fs;
use std::process::Command;

use serde::{Deserialize, Serialize};

use kiln_cli::gpu::{Gpu, gpu_index};
use kiln_cli::host::{self, Revision};

use crate::locked::locked;

/// The sizes of the GPU list's problems.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Size {
    /// For a GPU.
    Full,
    /// For the CPU.
    Small,
    /// The smallest, for a trial of the list itself.
    Quick,
}

/// The facts that figures depend on besides the code that is measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Provenance {
    pub(crate) processor: String,
    pub(crate) cores: usize,
    pub(crate) system: String,
    /// The device's name on the command line.
    pub(crate) device: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(rename = "card")]
    pub(crate) gpu: Option<Gpu>,
    /// The sizes of the GPU list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) sizes: Option<Size>,
    pub(crate) revision: String,
    /// Whether files differ from the revision.
    pub(crate) dirty: bool,
    pub(crate) burn: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) cubecl: String,
    pub(crate) rustc: String,
    /// Cargo's profile, features and flags.
    pub(crate) build: String,
    /// UTC, as in 2026-11-21.
    pub(crate) date: String,
    /// Running and waiting processes, averaged over a minute, at the beginning and at the end of the measurement.
    pub(crate) load: [Option<f64>; 2],
}

impl Provenance {
    /// The facts of this program on this machine, now. A fact that cannot be determined is `unknown`.
    pub(crate) fn collect(device: &str) -> Self {
        let Revision { commit, changed } = Revision::of_program();
        Self {
            processor: host::processor(),
            cores: host::processors(),
            system: system(),
            device: device.to_owned(),
            gpu: gpu_index(device).and_then(Gpu::of),
            sizes: None,
            revision: commit,
            dirty: changed,
            burn: locked("burn"),
            cubecl: locked("cubecl"),
            rustc: host::output_of(Command::new("rustc").arg("--version")).unwrap_or_else(host::unknown),
            build: build(),
            date: host::today(),
            load: [load(), None],
        }
    }

    /// Sets the sizes of the GPU list, which only that list has.
    pub(crate) fn with_sizes(self, sizes: Size) -> Self {
        Self { sizes: Some(sizes), ..self }
    }

    /// Notes the end of the measurement.
    pub(crate) fn end(&mut self) {
        self.load[1] = load();
    }

    /// The GPU's name, or the device's name on the command line.
    fn device_name(&self) -> &str {
        self.gpu.as_ref().map_or(self.device.as_str(), |gpu| gpu.name.as_str())
    }

    /// The revision, followed by + if files were changed.
    pub(crate) fn revision_word(&self) -> String {
        Revision { commit: self.revision.clone(), changed: self.dirty }.word()
    }

    /// The name of the machine for a folder of results.
    pub(crate) fn machine(&self) -> String {
        let name = self.device_name().to_lowercase();
        let words = name.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
        words.collect::<Vec<_>>().join("-")
    }

    /// Whether times of both are directly comparable.
    pub(crate) fn is_same_machine(&self, other: &Self) -> bool {
        let of = |p: &Self| (p.processor.clone(), p.cores, p.device_name().to_owned(), p.build.clone());
        of(self) == of(other)
    }

    /// The facts in one readable line.
    pub(crate) fn line(&self) -> String {
        let dirty = if self.dirty { ", with changes" } else { "" };
        let load = match self.load {
            [Some(start), Some(end)] => format!("; load {start:.1} to {end:.1}"),
            _ => String::new(),
        };
        let driver = self.gpu.as_ref().map_or(String::new(), |gpu| format!(", driver {}", gpu.driver));
        format!(
            "{}, {} cores, {}; device {}{driver}; revision {}{dirty}, burn {}, {}, profile {}; {}{load}",
            self.processor,
            self.cores,
            self.system,
            self.device_name(),
            self.revision,
            self.burn,
            self.rustc,
            self.build,
            self.date
        )
    }

    #[cfg(test)]
    pub(crate) fn example() -> Self {
        Self {
            processor: "Example CPU".into(),
            cores: 16,
            system: "Example OS, x86_64".into(),
            device: "cuda:0".into(),
            gpu: Some(Gpu {
                name: "Example GX (80 GB)".into(),
                driver: "600.1".into(),
                cuda: "13.1".into(),
                compute: "9.0".into(),
                total_bytes: 80 << 30,
                free_bytes: 79 << 30,
                power_limit_w: Some(700.0),
                max_sm_mhz: Some(1980),
            }),
            sizes: Some(Size::Full),
            revision: "0123456".into(),
            dirty: false,
            burn: "0.22.1".into(),
            cubecl: "0.11.3".into(),
            rustc: "rustc 1.95.0".into(),
            build: "release".into(),
            date: "2026-11-21".into(),
            load: [Some(0.1), None],
        }
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
    let features = [
        (cfg!(feature = "cuda"), " cuda"),
        (cfg!(feature = "rocm"), " rocm"),
        (cfg!(feature = "metal"), " metal"),
        (cfg!(feature = "vulkan"), " vulkan"),
        (cfg!(feature = "webgpu"), " webgpu"),
        (cfg!(feature = "turbo"), " turbo"),
    ];
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

    #[test]
    fn a_machine_with_a_gpu_is_named_after_it() {
        let example = Provenance::example();
        assert_eq!(example.machine(), "example-gx-80-gb");
        assert!(example.line().contains("device Example GX (80 GB), driver 600.1;"), "{}", example.line());
        assert_eq!(Provenance { gpu: None, device: "flex".into(), ..example }.machine(), "flex");
    }

    #[test]
    fn a_revision_with_changes_is_marked() {
        let example = Provenance::example();
        assert_eq!(example.revision_word(), "0123456");
        assert_eq!(Provenance { dirty: true, ..example }.revision_word(), "0123456+");
    }
}
