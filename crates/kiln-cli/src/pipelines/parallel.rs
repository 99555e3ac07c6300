//! How a run is divided among devices.

use std::str::FromStr;

use anyhow::{Result, bail};
use clap::Args;
use kiln_parallel::Schedule;
use serde::{Deserialize, Serialize};

use crate::usage::Usage;
use crate::values::PIPELINE_SCHEDULE;

/// The most replicas in the threads of one process, and the most stages.
const MOST: usize = 64;

/// How a run is divided among devices. A run goes on with other ones than it was started with.
#[derive(Args, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ParallelSettings {
    /// Copies of the model that compute a part of every batch each [default: 1]
    ///
    /// A number (in threads, on --device), one for each of some devices, as in gpu:0,gpu:1, mpi (one in each process that
    /// mpirun starts), or mpi:2 and mpi:gpu:0,gpu:1 (several in each).
    #[arg(long, value_name = "N", help_heading = "Several devices")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<Replicas>,
    /// Divide the optimizer's state among the replicas (ZeRO stage 1)
    #[arg(long, help_heading = "Several devices")]
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shard_optimizer: bool,
    /// Divide the model's blocks: a number of stages, or a device for each [default: 1]
    ///
    /// A number of stages is on --device; devices are named as in gpu:0,gpu:1.
    #[arg(long, value_name = "N", help_heading = "Several devices")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stages: Option<Places>,
    /// The order in which stages work on micro-batches [default: 1f1b]
    #[arg(long, value_parser = PIPELINE_SCHEDULE, value_name = "NAME", help_heading = "Several devices")]
    #[serde(default, alias = "schedule", skip_serializing_if = "is_default")]
    pub pipeline_schedule: Schedule,
}

fn is_default(schedule: &Schedule) -> bool {
    *schedule == Schedule::default()
}

/// Where replicas run: in threads of this process, or of each process that mpirun started.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Replicas {
    /// Whether there are other processes.
    pub mpi: bool,
    /// The replicas of a process.
    pub here: Places,
}

/// Stages or replicas: a number of them on the run's device, or one on each named device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Places {
    /// This many on the run's device.
    Count(usize),
    /// One on each device, by name.
    Devices(Vec<String>),
}

impl Places {
    /// The number of them.
    pub fn count(&self) -> usize {
        match self {
            Self::Count(count) => *count,
            Self::Devices(names) => names.len(),
        }
    }

    /// The name of the device number `index`, in a run on `device`.
    pub fn device<'a>(&'a self, index: usize, device: &'a str) -> &'a str {
        match self {
            Self::Count(_) => device,
            Self::Devices(names) => names.get(index).map_or(device, String::as_str),
        }
    }
}

impl ParallelSettings {
    /// Whether the run is not divided.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// Checks that the settings fit together.
    ///
    /// # Errors
    /// [`Usage`].
    pub fn check(&self) -> Result<()> {
        if self.shard_optimizer && self.replicas.is_none() {
            bail!(Usage(
                "--shard-optimizer divides the optimizer's state among replicas, expected --replicas beside it".into()
            ));
        }
        if self.pipeline_schedule != Schedule::default() && self.stages.is_none() {
            bail!(Usage(format!("--pipeline-schedule is {}, expected --stages beside it", self.pipeline_schedule)));
        }
        match (&self.stages, &self.replicas) {
            (Some(Places::Devices(_)), Some(_)) => {
                bail!(Usage("--stages names devices, expected a number of stages beside --replicas".into()))
            }
            _ => Ok(()),
        }
    }
}

impl FromStr for Places {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let refused =
            || format!("'{text}' names no places, expected a number from 1 to {MOST} or devices, as in cuda:0,cuda:1");
        if text.starts_with(|first: char| first.is_ascii_digit()) {
            let count = text.parse().ok().filter(|count| (1..=MOST).contains(count));
            return count.map(Self::Count).ok_or_else(refused);
        }
        let names: Vec<String> = text.split(',').map(crate::device::canonical).collect();
        let named = |name: &String| name.starts_with(|first: char| first.is_ascii_alphabetic());
        if names.iter().all(named) && names.len() <= MOST { Ok(Self::Devices(names)) } else { Err(refused()) }
    }
}

impl TryFrom<String> for Places {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Places> for String {
    fn from(places: Places) -> Self {
        match places {
            Places::Count(count) => count.to_string(),
            Places::Devices(names) => names.join(","),
        }
    }
}

impl Replicas {
    /// This many replicas in the threads of this process.
    pub fn threads(here: Places) -> Self {
        Self { mpi: false, here }
    }
}

impl FromStr for Replicas {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let places = |text: &str| {
            let wrong = |error| format!("{error}, mpi, or mpi: and such places in each process");
            text.parse::<Places>().map_err(wrong)
        };
        match text.strip_prefix("mpi") {
            Some("") => Ok(Self { mpi: true, here: Places::Count(1) }),
            Some(here) if here.starts_with(':') => Ok(Self { mpi: true, here: places(&here[1..])? }),
            _ => places(text).map(Self::threads),
        }
    }
}

impl TryFrom<String> for Replicas {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Replicas> for String {
    fn from(replicas: Replicas) -> Self {
        match replicas {
            Replicas { mpi: true, here: Places::Count(1) } => "mpi".into(),
            Replicas { mpi: true, here } => format!("mpi:{}", Self::from(here)),
            Replicas { mpi: false, here } => here.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read_as_they_are_written() {
        for text in ["2", "cuda:0,cuda:1", "flex", "mpi", "mpi:2", "mpi:cuda:0,cuda:1"] {
            let replicas: Replicas = text.parse().unwrap();
            assert_eq!(replicas.mpi, text.starts_with("mpi"));
            assert_eq!(String::from(replicas), text);
        }
        let places: Places = "hip:0, CUDA:1".parse().unwrap();
        assert_eq!((places.device(0, "flex"), places.device(1, "flex")), ("rocm:0", "cuda:1"));
        for text in ["0", "65", "", "2,3", "cuda:0,", "-1", "2x"] {
            assert!(text.parse::<Places>().is_err() && text.parse::<Replicas>().unwrap_err().contains("mpi"), "{text}");
        }
    }

    #[test]
    fn settings_that_do_not_go_together_are_refused() {
        let two = || Some(Places::Count(2));
        let refused = |settings: ParallelSettings| settings.check().unwrap_err().to_string();
        let plain = ParallelSettings::default;
        assert!(refused(ParallelSettings { shard_optimizer: true, ..plain() }).contains("--replicas"));
        assert!(refused(ParallelSettings { pipeline_schedule: Schedule::GPipe, ..plain() }).contains("--stages"));
        let devices = Some(Places::Devices(vec!["cuda:0".into()]));
        let both = ParallelSettings { stages: devices, replicas: two().map(Replicas::threads), ..plain() };
        assert!(refused(both).contains("--stages"));
        let text = "replicas = 'mpi'\nstages = '2'\nshard_optimizer = true\nschedule = 'gpipe'";
        let settings: ParallelSettings = toml::from_str(text).unwrap();
        assert!(settings.check().is_ok() && settings.stages == two());
        assert_eq!(toml::from_str::<ParallelSettings>(&toml::to_string(&settings).unwrap()).unwrap(), settings);
    }
}
