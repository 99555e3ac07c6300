//! Processor time and resident memory of this process, from Linux's /proc.

use std::fs;

use kiln_memory::{code_bytes, release_code};

use crate::HEAP;

/// Clock ticks per second in /proc/PID/stat, the same on every Linux that Rust supports.
const TICKS: f64 = 100.0;

/// User and system time of all threads, including ended ones, with a resolution of a hundredth of a second.
pub fn processor_seconds() -> Option<f64> {
    let text = fs::read_to_string("/proc/self/stat").ok()?;
    // The name in parentheses may contain anything; the state is the first field after it.
    let mut fields = text.rsplit_once(')')?.1.split_whitespace();
    let user: f64 = fields.nth(11)?.parse().ok()?;
    let system: f64 = fields.next()?.parse().ok()?;
    Some((user + system) / TICKS)
}

/// Processor time of the living threads, with a resolution of nanoseconds.
pub fn living_threads_seconds() -> Option<f64> {
    let mut nanoseconds = 0.0;
    for thread in fs::read_dir("/proc/self/task").ok()? {
        // A thread may end between the listing and the reading.
        let Ok(text) = fs::read_to_string(thread.ok()?.path().join("schedstat")) else { continue };
        nanoseconds += text.split(' ').next()?.parse::<f64>().ok()?;
    }
    (nanoseconds > 0.0).then_some(nanoseconds / 1e9)
}

/// Room for what the process takes later, beside a step: threads, libraries, and small blocks.
const LATER: u64 = 8 << 20;
/// The bytes beside a step are a multiple of this, so that most equal commands have equal plans: the system's own counts vary.
const STEP: u64 = 4 << 20;

/// The bytes that this process takes in memory beside a step: the memory that it has written, while there is no model; three quarters of its
/// code, the most of it that was seen in memory during steps; and room for what comes later. How much of its code is in memory at a moment is
/// the system's choice.
pub fn beside_a_step() -> Option<u64> {
    HEAP.inner().release();
    let seen = match (status("RssAnon"), code_bytes()) {
        (Some(written), Some(code)) => written + code / 4 * 3,
        _ => status("VmRSS")?,
    };
    Some((seen + LATER).next_multiple_of(STEP))
}

/// The most bytes that were resident since the start.
pub fn most_resident() -> Option<u64> {
    status("VmHWM")
}

/// Gives back what the next phase of the process does not need: the memory of freed blocks, and code.
pub fn give_back() {
    HEAP.inner().release();
    release_code();
}

/// The highest resident memory of the process since a starting point.
pub struct Resident {
    start: Option<u64>,
}

impl Resident {
    /// Starts the measurement.
    pub fn start() -> Self {
        Self { start: if reset() { status("VmRSS") } else { None } }
    }

    /// Resets the highest value. The starting point stays.
    pub fn reset_peak(&mut self) {
        if !reset() {
            self.start = None;
        }
    }

    /// The highest resident bytes above those at the start. `None` if they are not known.
    pub fn above_start(&self) -> Option<u64> {
        Some(status("VmHWM")?.saturating_sub(self.start?))
    }
}

fn reset() -> bool {
    fs::write("/proc/self/clear_refs", "5").is_ok()
}

fn status(field: &str) -> Option<u64> {
    let text = fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? << 10)
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use super::*;

    /// The block is the system's own, because the program's allocator keeps the memory of a freed one.
    #[test]
    fn resident_memory_is_seen_when_it_is_touched() {
        let mut resident = Resident::start();
        let mut block = memmap2::MmapMut::map_anon(64 << 20).unwrap();
        block.fill(1);
        assert!(resident.above_start().unwrap() >= 60 << 20);
        drop(block);
        resident.reset_peak();
        assert!(resident.above_start().unwrap() < 60 << 20);
    }

    /// Other tests' threads end meanwhile and take their time with them, so that the sum over living threads may also fall.
    #[test]
    fn work_takes_processor_time() {
        let (process, threads) = (processor_seconds().unwrap(), living_threads_seconds().unwrap());
        let begun = std::time::Instant::now();
        while living_threads_seconds().unwrap() < threads + 0.05 {
            assert!(begun.elapsed().as_secs() < 60, "a minute of work was not counted");
            std::hint::black_box((0..10_000u64).sum::<u64>());
        }
        while processor_seconds().unwrap() < process + 0.05 {
            assert!(begun.elapsed().as_secs() < 60, "a minute of work was not counted");
            std::hint::black_box((0..10_000u64).sum::<u64>());
        }
    }
}
