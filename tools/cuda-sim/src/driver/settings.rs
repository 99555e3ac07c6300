//! Settings, read from environment variables whose names begin with `KILN_SIM_`.

use std::path::PathBuf;

use serde::Deserialize;

use super::fault::{Fault, FaultError, parse_faults};
use super::size::parse_bytes;

/// Why a setting is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// A value that cannot be read.
    #[error("KILN_SIM_{name}={value}: expected {expected}")]
    Value {
        /// Name without the prefix.
        name: &'static str,
        /// The value as given.
        value: String,
        /// The values that are accepted.
        expected: &'static str,
    },
    /// A fault that cannot be read.
    #[error("KILN_SIM_FAULTS: {0}")]
    Fault(#[from] FaultError),
}

/// How a launch is handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Execution {
    /// Kernels run in the interpreter.
    Run,
    /// Kernels are checked and counted but do nothing; results are whatever the memory held.
    Skip,
    /// As `Skip`, and the bytes that each launch moves are counted, from a few of its blocks.
    Measure,
}

/// Where the assembler is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AssemblerSetting {
    /// At this path; without it no module loads.
    At(PathBuf),
    /// `bin/ptxas` under `CUDA_PATH` or `CUDA_HOME`, or `ptxas` on `PATH`; where there is none, nothing is checked.
    Find,
}

/// One simulated GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CardSettings {
    /// Memory in bytes.
    pub total: u64,
    /// Bytes that something else holds from the start.
    pub taken: u64,
    /// Compute capability, as 10 x major + minor.
    pub capability: u32,
}

/// Everything that can be chosen; see the table in the README.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The GPUs, by ordinal.
    pub cards: Vec<CardSettings>,
    /// Each allocation of device memory is charged in multiples of this many bytes.
    pub granule: u64,
    /// Driver version as CUDA writes it: 12080 is 12.8.
    pub driver: u32,
    /// Whether kernels run.
    pub execution: Execution,
    /// Warp instructions after which a launch is stopped with a timeout (702).
    pub max_instructions: u64,
    /// Host threads of the interpreter; 0 takes one a core.
    pub threads: usize,
    /// Byte that fills new device memory; zero pages of the host where absent.
    pub fill: Option<u8>,
    /// Whether a launch fails when accesses of the same byte race.
    pub races: bool,
    /// Decides a random order of the warps of each block.
    pub order: Option<u64>,
    /// Kernels whose name contains one of these are replaced by a sleep of their last argument in microseconds.
    pub sleepers: Vec<String>,
    /// Faults on order from the start.
    pub faults: Vec<Fault>,
    /// File for the log; `%p` is the process id.
    pub log: Option<PathBuf>,
    /// Whether launches, copies and synchronisations are logged too.
    pub trace: bool,
    /// Folder that keeps the PTX of each module.
    pub ptx_folder: Option<PathBuf>,
    /// NVIDIA's assembler, which then checks each module.
    pub assembler: Option<AssemblerSetting>,
    /// Path of the control socket; `%p` is the process id.
    pub control: Option<PathBuf>,
}

impl Settings {
    /// Reads the settings through `lookup`, which gives the value of a name without its prefix.
    ///
    /// # Errors
    /// [`SettingsError`] for the first value that cannot be read.
    pub fn read(lookup: impl Fn(&str) -> Option<String>) -> Result<Self, SettingsError> {
        let text =
            |name: &'static str| lookup(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty());
        let count = bounded(text("DEVICES"), "DEVICES", "a number of devices from 0 to 64", |value| {
            value.parse().ok().filter(|count| *count <= 64_usize)
        })?;
        let count = count.unwrap_or(1);
        let sizes = "sizes in bytes such as 512M or 80G, one for each device separated by commas";
        let totals = list(text("TOTAL"), "TOTAL", sizes, parse_bytes)?;
        let taken = list(text("TAKEN"), "TAKEN", sizes, parse_bytes)?;
        let capability = "compute capabilities such as 90 or 8.6, one for each device separated by commas";
        let capabilities = list(text("SM"), "SM", capability, parse_capability)?;
        let cards = (0..count)
            .map(|at| CardSettings {
                total: nth(&totals, at, 80 << 30),
                taken: nth(&taken, at, 0),
                capability: nth(&capabilities, at, 90),
            })
            .collect();
        let expected = "run, skip or measure";
        let execution = bounded(text("EXECUTE"), "EXECUTE", expected, |value| match value {
            "run" => Some(Execution::Run),
            "skip" => Some(Execution::Skip),
            "measure" => Some(Execution::Measure),
            _ => None,
        })?;
        let number = |name, expected| bounded(text(name), name, expected, |value: &str| value.parse::<u64>().ok());
        let granule = bounded(text("GRANULE"), "GRANULE", "a size in bytes from 1, such as 2M", |value| {
            parse_bytes(value).filter(|bytes| *bytes > 0)
        })?;
        let fill = bounded(text("FILL"), "FILL", "a byte as two hexadecimal digits, such as ff", |value| {
            u8::from_str_radix(value, 16).ok()
        })?;
        let driver = bounded(text("DRIVER"), "DRIVER", "a driver version such as 12080 or 12.8", parse_driver)?;
        let sleepers = text("SLEEP").unwrap_or_else(|| "throughput,prime_buffer".to_owned());
        let path = |name| text(name).map(PathBuf::from);
        Ok(Self {
            cards,
            granule: granule.unwrap_or(512),
            driver: driver.unwrap_or(12_080),
            execution: execution.unwrap_or(Execution::Run),
            max_instructions: number("MAX_INSTRUCTIONS", "a number of warp instructions")?.unwrap_or(u64::MAX),
            threads: number("THREADS", "a number of threads")?.unwrap_or(0) as usize,
            fill,
            races: text("RACES").is_some_and(|value| value != "0"),
            order: number("ORDER", "a number")?,
            sleepers: sleepers
                .split(',')
                .map(str::trim)
                .filter(|part| !matches!(*part, "" | "none"))
                .map(str::to_owned)
                .collect(),
            faults: parse_faults(&text("FAULTS").unwrap_or_default())?,
            log: path("LOG"),
            trace: text("TRACE").is_some_and(|value| value != "0"),
            ptx_folder: path("PTX"),
            assembler: text("PTXAS").map(|value| match value.as_str() {
                "find" => AssemblerSetting::Find,
                _ => AssemblerSetting::At(value.into()),
            }),
            control: path("CONTROL"),
        })
    }

    /// Reads the settings from the environment.
    ///
    /// # Errors
    /// As [`Settings::read`].
    pub fn from_environment() -> Result<Self, SettingsError> {
        Self::read(|name| std::env::var(format!("KILN_SIM_{name}")).ok())
    }
}

fn bounded<T>(
    value: Option<String>,
    name: &'static str,
    expected: &'static str,
    parse: impl Fn(&str) -> Option<T>,
) -> Result<Option<T>, SettingsError> {
    let Some(value) = value else { return Ok(None) };
    let parsed = parse(&value);
    parsed.map(Some).ok_or(SettingsError::Value { name, value, expected })
}

fn list<T>(
    value: Option<String>,
    name: &'static str,
    expected: &'static str,
    parse: impl Fn(&str) -> Option<T>,
) -> Result<Vec<T>, SettingsError> {
    let parsed = bounded(value, name, expected, |value| value.split(',').map(|part| parse(part.trim())).collect())?;
    Ok(parsed.unwrap_or_default())
}

/// The value for device `at`; the last one stands for the devices after it.
fn nth<T: Copy>(values: &[T], at: usize, default: T) -> T {
    values.get(at).or(values.last()).copied().unwrap_or(default)
}

/// `90`, `9.0`, `8.6` or `sm_86`, as 10 x major + minor.
fn parse_capability(text: &str) -> Option<u32> {
    let text = text.strip_prefix("sm_").unwrap_or(text);
    let number = match text.split_once('.') {
        Some((major, minor)) if minor.len() == 1 => major.parse::<u32>().ok()? * 10 + minor.parse::<u32>().ok()?,
        Some(_) => return None,
        None => text.parse().ok()?,
    };
    (70..=200).contains(&number).then_some(number)
}

/// `12080`, `12.8`.
fn parse_driver(text: &str) -> Option<u32> {
    let number = match text.split_once('.') {
        Some((major, minor)) => major.parse::<u32>().ok()? * 1000 + minor.parse::<u32>().ok()? * 10,
        None => text.parse().ok()?,
    };
    (11_000..=99_990).contains(&number).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Result<Settings, SettingsError> {
        Settings::read(|name| pairs.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned()))
    }

    #[test]
    fn nothing_set_is_one_card_that_runs_kernels() {
        let settings = read(&[]).expect("defaults");
        assert_eq!(settings.cards, [CardSettings { total: 80 << 30, taken: 0, capability: 90 }]);
        assert_eq!(settings.execution, Execution::Run);
        assert_eq!((settings.driver, settings.granule, settings.max_instructions), (12_080, 512, u64::MAX));
        assert_eq!(settings.sleepers, ["throughput", "prime_buffer"]);
        assert!(settings.faults.is_empty() && settings.log.is_none() && !settings.trace);
    }

    #[test]
    fn the_last_value_of_a_list_stands_for_the_devices_after_it() {
        let pairs = [("DEVICES", "3"), ("TOTAL", "6G, 8G"), ("SM", "8.6"), ("TAKEN", "0,1G")];
        let cards = read(&pairs).expect("settings").cards;
        assert_eq!(cards.iter().map(|card| card.total >> 30).collect::<Vec<_>>(), [6, 8, 8]);
        assert_eq!(cards.iter().map(|card| card.taken >> 30).collect::<Vec<_>>(), [0, 1, 1]);
        assert!(cards.iter().all(|card| card.capability == 86));
    }

    #[test]
    fn a_bad_value_is_named_with_what_would_be_accepted() {
        for (name, value) in [
            ("DEVICES", "many"),
            ("TOTAL", "8G,eight"),
            ("SM", "3"),
            ("DRIVER", "new"),
            ("EXECUTE", "yes"),
            ("GRANULE", "0"),
            ("FILL", "xyz"),
            ("FAULTS", "alloc"),
            ("MAX_INSTRUCTIONS", "-1"),
        ] {
            let error = read(&[(name, value)]).expect_err(name).to_string();
            assert!(error.contains(&format!("KILN_SIM_{name}")), "{error}");
        }
    }

    #[test]
    fn versions_and_capabilities_as_people_write_them() {
        assert_eq!(parse_capability("sm_75"), Some(75));
        assert_eq!(parse_capability("12.0"), Some(120));
        assert_eq!(parse_driver("13.1"), Some(13_010));
        assert_eq!(read(&[("PTXAS", "find")]).expect("find").assembler, Some(AssemblerSetting::Find));
        assert_eq!(read(&[("SLEEP", "none")]).expect("none").sleepers, Vec::<String>::new());
    }
}
