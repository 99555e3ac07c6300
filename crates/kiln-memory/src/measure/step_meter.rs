//! Measures one training step: the peak of each phase, and live bytes over time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::category::Phase;

use super::measured::{Measured, MeasuredPhase, Sample};
use super::meter::{Meter, Span};

/// The largest number of points of a timeline. A longer timeline is thinned out. They are in memory while the step is measured: 24 KiB.
const POINTS: usize = 1024;
/// Time between two readings of the heap at the beginning of a step.
const INTERVAL: Duration = Duration::from_micros(200);

/// Measures one training step: the peak of each phase, and live bytes over time.
///
/// On the heap the peaks of phases are exact. A thread reads the live bytes some thousand times a second, which does not slow the step
/// down. The thread ends with the meter, also if the step fails and the meter is dropped. A pool is read when a phase begins and ends.
/// The heap is read in the same way if the system cannot start a thread.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use kiln_memory::{CountingAllocator, Meter, Phase, StepMeter};
///
/// #[global_allocator]
/// static HEAP: CountingAllocator = CountingAllocator::new();
///
/// let device = Device::flex();
/// let meter = Meter::of(&device, &HEAP);
/// let mut step = StepMeter::start(&meter);
/// step.enter(Phase::Forward);
/// let x = Tensor::<2>::ones([256, 256], &device);
/// step.enter(Phase::Backward);
/// drop(x);
/// let measured = step.finish();
/// assert_eq!(measured.phases.len(), 2);
/// assert!(measured.phases[0].peak_bytes >= 256 * 256 * 4);
/// ```
#[derive(Debug)]
pub struct StepMeter {
    meter: Meter,
    /// The phase that is being measured.
    span: Option<Span>,
    started: Instant,
    phases: Vec<MeasuredPhase>,
    /// The peak of the micro-batches before the one in progress.
    before: u64,
    /// Readings at the beginnings and ends of phases.
    samples: Vec<Sample>,
    sampler: Option<Sampler>,
}

/// A thread that reads the live bytes, until it is stopped or dropped.
#[derive(Debug)]
struct Sampler {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Vec<(Instant, u64)>>>,
}

impl Sampler {
    /// Starts the thread. `None` if the system cannot start one.
    fn start(meter: Meter) -> Option<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let sample = move || {
            let (mut samples, mut interval) = (Vec::with_capacity(POINTS), INTERVAL);
            while !stopped.load(Relaxed) {
                samples.extend(meter.sampled_bytes().map(|bytes| (Instant::now(), bytes)));
                if samples.len() == POINTS {
                    samples = thin(&samples);
                    samples.reserve_exact(POINTS);
                    interval *= 2;
                }
                std::thread::park_timeout(interval);
            }
            samples
        };
        let thread = std::thread::Builder::new().name("kiln-step-meter".into()).spawn(sample).ok()?;
        Some(Self { stop, thread: Some(thread) })
    }

    /// Ends the thread, and returns its readings.
    fn stop(&mut self) -> Vec<(Instant, u64)> {
        let Some(thread) = self.thread.take() else { return vec![] };
        self.stop.store(true, Relaxed);
        thread.thread().unpark();
        thread.join().unwrap_or_default()
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.stop();
    }
}

impl StepMeter {
    /// Begins the measurement.
    pub fn start(meter: &Meter) -> Self {
        Self {
            meter: meter.clone(),
            span: None,
            started: Instant::now(),
            phases: vec![],
            before: 0,
            samples: vec![],
            sampler: meter.is_exact().then(|| Sampler::start(meter.clone())).flatten(),
        }
    }

    /// Begins a phase and ends the one before. A forward pass after a backward pass belongs to the next micro-batch: phases and samples
    /// begin anew, so that those of the last micro-batch are reported. The peak is the highest of all micro-batches.
    pub fn enter(&mut self, phase: Phase) {
        self.close();
        if phase == Phase::Forward && !self.phases.is_empty() {
            self.before = self.phases.iter().map(|phase| phase.peak_bytes).fold(self.before, u64::max);
            self.phases.clear();
            self.samples.clear();
            self.started = Instant::now();
        }
        self.span = Some(self.meter.span());
        let (start, bytes) = (self.started.elapsed().as_secs_f64(), self.meter.live_bytes());
        self.samples.push(Sample { seconds: start, bytes });
        self.phases.push(MeasuredPhase { phase, start, end: start, peak_bytes: bytes });
    }

    fn close(&mut self) {
        let (end, bytes) = (self.started.elapsed().as_secs_f64(), self.meter.live_bytes());
        if let Some(phase) = self.phases.last_mut() {
            let peak_bytes = self.span.take().map_or(bytes, |span| span.peak_bytes());
            (phase.end, phase.peak_bytes) = (end, peak_bytes);
            self.samples.push(Sample { seconds: end, bytes });
        }
    }

    /// Ends the last phase and returns the measurement.
    pub fn finish(mut self) -> Measured {
        self.close();
        let end = self.phases.last().map_or(0.0, |phase| phase.end);
        let mut samples = std::mem::take(&mut self.samples);
        if let Some(mut sampler) = self.sampler.take() {
            let seen = sampler.stop().into_iter().filter_map(|(at, bytes)| {
                let seconds = at.checked_duration_since(self.started)?.as_secs_f64();
                (seconds <= end).then_some(Sample { seconds, bytes })
            });
            samples.extend(seen);
            samples.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
        }
        let peak_bytes = self.phases.iter().map(|phase| phase.peak_bytes).fold(self.before, u64::max);
        Measured { peak_bytes, phases: self.phases, samples }
    }
}

/// Drops half of the points. Of two points the higher one stays, so that no peak is lost.
fn thin(samples: &[(Instant, u64)]) -> Vec<(Instant, u64)> {
    samples.chunks(2).filter_map(|pair| pair.iter().max_by_key(|sample| sample.1).copied()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thinning_keeps_the_peak_and_the_order() {
        let start = Instant::now();
        let at = |ms: u64, bytes| (start + Duration::from_millis(ms), bytes);
        let samples = [at(0, 1), at(1, 9), at(2, 3), at(3, 2), at(4, 5)];
        assert_eq!(thin(&samples), [at(1, 9), at(2, 3), at(4, 5)]);
    }
}
