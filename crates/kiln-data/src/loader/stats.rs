//! The throughput of a loader, the time of each stage, and the bytes in flight.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use bytesize::ByteSize;

use super::budget::InFlight;

/// The stages of making a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Reading files and their headers.
    Read,
    /// Decoding.
    Decode,
    /// Cropping, resizing, applying the orientation.
    Resize,
    /// Packing samples into the batch.
    Assemble,
    /// Waiting for room in the byte budget.
    Room,
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Decode => "decode",
            Self::Resize => "resize",
            Self::Assemble => "assemble",
            Self::Room => "room",
        })
    }
}

/// A snapshot of the counters of a loader since it was made, over all epochs.
///
/// The seconds of the workers are sums over threads.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LoaderStats {
    /// Samples delivered.
    pub samples: u64,
    /// Batches delivered.
    pub batches: u64,
    /// Number of different samples that could not be read.
    pub bad_samples: u64,
    /// Number of different samples that are damaged and could be read. [`Damage`](crate::Damage) decides whether they are delivered or are
    /// bad samples too.
    pub repairable_samples: u64,
    /// Bytes of batches and images in flight now.
    pub bytes_in_flight: u64,
    /// The peak of these bytes.
    pub peak_bytes: u64,
    /// The peak of the bytes of images alone.
    pub peak_image_bytes: u64,
    /// Workers: reading files.
    pub read_seconds: f64,
    /// Workers: decoding.
    pub decode_seconds: f64,
    /// Workers: cropping, resizing, applying the orientation.
    pub resize_seconds: f64,
    /// Workers: packing.
    pub assemble_seconds: f64,
    /// Workers: waiting for room in the byte budget.
    pub room_seconds: f64,
    /// The consumer: waiting for a batch.
    pub waited_seconds: f64,
    /// The consumer: working between two batches.
    pub used_seconds: f64,
}

/// The side that the other one waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bottleneck {
    /// Batches wait for the consumer.
    Consumer,
    /// The consumer waits for batches more than a tenth of its time. More workers, cheaper decoding or smaller files help.
    Loader,
}

impl LoaderStats {
    /// The difference from `earlier` to this snapshot; bytes in flight and their peaks are those of this one.
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            samples: self.samples - earlier.samples,
            batches: self.batches - earlier.batches,
            bad_samples: self.bad_samples - earlier.bad_samples,
            repairable_samples: self.repairable_samples - earlier.repairable_samples,
            read_seconds: self.read_seconds - earlier.read_seconds,
            decode_seconds: self.decode_seconds - earlier.decode_seconds,
            resize_seconds: self.resize_seconds - earlier.resize_seconds,
            assemble_seconds: self.assemble_seconds - earlier.assemble_seconds,
            room_seconds: self.room_seconds - earlier.room_seconds,
            waited_seconds: self.waited_seconds - earlier.waited_seconds,
            used_seconds: self.used_seconds - earlier.used_seconds,
            ..*self
        }
    }

    /// The fraction of its time that the consumer waited, in [0, 1].
    pub fn waiting(&self) -> f64 {
        let total = self.waited_seconds + self.used_seconds;
        if total > 0.0 { self.waited_seconds / total } else { 0.0 }
    }

    /// Samples per second of the consumer's time.
    pub fn samples_per_second(&self) -> f64 {
        let total = self.waited_seconds + self.used_seconds;
        if total > 0.0 { self.samples as f64 / total } else { 0.0 }
    }

    /// Seconds of the workers in each stage.
    pub fn stages(&self) -> [(Stage, f64); 5] {
        [
            (Stage::Read, self.read_seconds),
            (Stage::Decode, self.decode_seconds),
            (Stage::Resize, self.resize_seconds),
            (Stage::Assemble, self.assemble_seconds),
            (Stage::Room, self.room_seconds),
        ]
    }

    /// The stage that takes most of the workers' time.
    pub fn longest_stage(&self) -> Stage {
        let longest = self.stages().into_iter().max_by(|(_, a), (_, b)| a.total_cmp(b));
        longest.map_or(Stage::Read, |(stage, _)| stage)
    }

    /// The side that the other one waits for.
    pub fn bottleneck(&self) -> Bottleneck {
        if self.waiting() > 0.1 { Bottleneck::Loader } else { Bottleneck::Consumer }
    }
}

impl fmt::Display for LoaderStats {
    /// One line: throughput, waiting, the stages of the workers, the peak.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let workers: f64 = self.stages().iter().map(|(_, seconds)| seconds).sum();
        let part = |seconds: f64| if workers > 0.0 { 100.0 * seconds / workers } else { 0.0 };
        write!(
            f,
            "{:.0} samples/s, {:.0} % waiting for data; workers: read {:.0} %, decode {:.0} %, resize {:.0} %, \
             assemble {:.0} %, room {:.0} %; peak {}",
            self.samples_per_second(),
            100.0 * self.waiting(),
            part(self.read_seconds),
            part(self.decode_seconds),
            part(self.resize_seconds),
            part(self.assemble_seconds),
            part(self.room_seconds),
            ByteSize(self.peak_bytes).display().iec(),
        )?;
        if self.bad_samples > 0 {
            write!(f, "; {} bad samples", self.bad_samples)?;
        }
        match self.repairable_samples {
            0 => Ok(()),
            damaged => write!(f, "; {damaged} with damage that can be repaired"),
        }
    }
}

/// Nanoseconds and counts that threads add to.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    samples: AtomicU64,
    batches: AtomicU64,
    stages: [AtomicU64; 5],
    waited: AtomicU64,
    used: AtomicU64,
}

impl Counters {
    /// Runs `work` and adds its time to `stage`.
    pub(crate) fn timed<T>(&self, stage: Stage, work: impl FnOnce() -> T) -> T {
        let begun = Instant::now();
        let value = work();
        self.spent(stage, begun.elapsed());
        value
    }

    pub(crate) fn spent(&self, stage: Stage, time: Duration) {
        self.stages[stage as usize].fetch_add(time.as_nanos() as u64, Relaxed);
    }

    pub(crate) fn delivered(&self, samples: usize) {
        self.samples.fetch_add(samples as u64, Relaxed);
        self.batches.fetch_add(1, Relaxed);
    }

    pub(crate) fn waited(&self, time: Duration) {
        self.waited.fetch_add(time.as_nanos() as u64, Relaxed);
    }

    pub(crate) fn used(&self, time: Duration) {
        self.used.fetch_add(time.as_nanos() as u64, Relaxed);
    }

    pub(crate) fn snapshot(&self, [bad, repairable]: [usize; 2], in_flight: InFlight) -> LoaderStats {
        let seconds = |nanos: &AtomicU64| nanos.load(Relaxed) as f64 / 1e9;
        let stage = |stage: Stage| seconds(&self.stages[stage as usize]);
        LoaderStats {
            samples: self.samples.load(Relaxed),
            batches: self.batches.load(Relaxed),
            bad_samples: bad as u64,
            repairable_samples: repairable as u64,
            bytes_in_flight: in_flight.bytes,
            peak_bytes: in_flight.peak,
            peak_image_bytes: in_flight.image_peak,
            read_seconds: stage(Stage::Read),
            decode_seconds: stage(Stage::Decode),
            resize_seconds: stage(Stage::Resize),
            assemble_seconds: stage(Stage::Assemble),
            room_seconds: stage(Stage::Room),
            waited_seconds: seconds(&self.waited),
            used_seconds: seconds(&self.used),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_consumer_that_waits_makes_the_loader_the_bottleneck() {
        let counters = Counters::default();
        let before = counters.snapshot([0, 0], InFlight::default());
        assert_eq!((before.samples_per_second(), before.waiting()), (0.0, 0.0));
        counters.delivered(30);
        counters.waited(Duration::from_millis(500));
        counters.used(Duration::from_millis(1000));
        counters.timed(Stage::Decode, || std::thread::sleep(Duration::from_millis(2)));
        let now = counters.snapshot([1, 2], InFlight { bytes: 5, peak: 1 << 20, image_peak: 0 }).since(&before);
        assert_eq!((now.bottleneck(), now.longest_stage().to_string().as_str()), (Bottleneck::Loader, "decode"));
        assert_eq!((now.samples, now.batches, now.bytes_in_flight), (30, 1, 5));
        let text = now.to_string();
        assert!(text.starts_with("20 samples/s, 33 % waiting for data; workers: read 0 %, decode 100 %"), "{text}");
        assert!(text.ends_with("peak 1.0 MiB; 1 bad samples; 2 with damage that can be repaired"), "{text}");
        assert_eq!(now.since(&now).bottleneck(), Bottleneck::Consumer);
    }
}
