//! Memory that runs short on the machine while a run trains, since other processes take it (Linux).

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::planning::group_path;

/// The share of time that is lost from which memory counts as short, in percent.
const SHORT: f64 = 10.0;
/// The share below which it no longer does.
const ENOUGH: f64 = 1.0;
/// The time between two looks.
const INTERVAL: Duration = Duration::from_secs(1);

/// The time that the processes of the machine, or of the run's control group, have lost while all of them waited for memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct MemoryPressure {
    /// Percent of the last ten seconds: `full avg10` of the kernel's pressure stall information.
    pub(crate) lost_percent: f64,
}

/// Notices memory that runs short, once until there is enough again.
#[derive(Debug)]
pub(crate) struct PressureAlarm {
    root: PathBuf,
    looked: Option<Instant>,
    is_short: bool,
}

impl Default for PressureAlarm {
    fn default() -> Self {
        Self { root: PathBuf::from("/"), looked: None, is_short: false }
    }
}

impl PressureAlarm {
    /// Looks, unless it has in the last second. Returns the pressure when memory begins to be short.
    pub(crate) fn look(&mut self) -> Option<MemoryPressure> {
        if self.looked.is_some_and(|looked| looked.elapsed() < INTERVAL) {
            return None;
        }
        self.looked = Some(Instant::now());
        let lost_percent = lost_percent(&self.root)?;
        let was_short = self.is_short;
        self.is_short = lost_percent >= if was_short { ENOUGH } else { SHORT };
        (self.is_short && !was_short).then_some(MemoryPressure { lost_percent })
    }
}

/// The higher share of the machine and of the process's control group. `None` on systems without this information.
fn lost_percent(root: &Path) -> Option<f64> {
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let group = groups
        .lines()
        .find_map(|line| line.strip_prefix("0::"))
        .map(|path| root.join("sys/fs/cgroup").join(group_path(path)).join("memory.pressure"));
    let files = [Some(root.join("proc/pressure/memory")), group];
    let shares = files.into_iter().flatten().filter_map(|file| full(&fs::read_to_string(file).ok()?));
    shares.reduce(f64::max)
}

/// `avg10` of the line `full avg10=0.00 avg60=0.00 avg300=0.00 total=0`.
fn full(text: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix("full "))?;
    line.split_whitespace().find_map(|field| field.strip_prefix("avg10="))?.parse().ok()
}

impl fmt::Display for MemoryPressure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "memory is short on this machine: all processes waited for it {:.0} % of the last 10 s, and the system may end one",
            self.lost_percent
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pressed(avg10: &str) -> String {
        format!(
            "some avg10=90.00 avg60=0.00 avg300=0.00 total=23393\nfull avg10={avg10} avg60=0.00 avg300=0.00 total=2387\n"
        )
    }

    #[test]
    fn short_memory_is_noticed_once_until_there_is_enough() {
        let root = tempfile::tempdir().unwrap();
        for folder in ["proc/pressure", "proc/self", "sys/fs/cgroup/job"] {
            fs::create_dir_all(root.path().join(folder)).unwrap();
        }
        fs::write(root.path().join("proc/self/cgroup"), "4:memory:/old\n0::/../job\n").unwrap();
        let mut alarm = PressureAlarm { root: root.path().to_owned(), ..PressureAlarm::default() };
        fs::write(root.path().join("proc/pressure/memory"), pressed("0.00")).unwrap();
        assert_eq!(alarm.look(), None);
        fs::write(root.path().join("proc/pressure/memory"), pressed("50.00")).unwrap();
        assert_eq!(alarm.look(), None, "a second has not passed");
        let mut look = |machine: &str, group: &str| {
            fs::write(root.path().join("proc/pressure/memory"), pressed(machine)).unwrap();
            fs::write(root.path().join("sys/fs/cgroup/job/memory.pressure"), pressed(group)).unwrap();
            alarm.looked = None;
            let found = alarm.look();
            found.map(|found| found.lost_percent)
        };
        assert_eq!(look("9.99", "0.00"), None);
        assert_eq!(look("12.50", "0.00"), Some(12.5));
        assert_eq!(look("80.00", "0.00"), None, "it is known");
        assert_eq!(look("2.00", "3.00"), None);
        assert_eq!(look("0.50", "0.00"), None);
        assert_eq!(look("0.00", "45.10"), Some(45.1), "in the container alone");
    }

    #[test]
    fn systems_without_this_information_have_no_alarm() {
        let root = tempfile::tempdir().unwrap();
        let mut alarm = PressureAlarm { root: root.path().to_owned(), ..PressureAlarm::default() };
        assert_eq!(alarm.look(), None);
        for text in ["", "some avg10=50.00", "full avg10=much", "full"] {
            assert_eq!(full(text), None, "{text}");
        }
        let text = MemoryPressure { lost_percent: 12.5 }.to_string();
        assert!(text.starts_with("memory is short on this machine: all processes waited for it 12 % of"), "{text}");
    }
}
