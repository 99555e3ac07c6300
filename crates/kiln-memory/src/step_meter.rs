use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::{Measured, MeasuredPhase, Meter, Phase, Sample};

/// Points that a timeline has at most; a longer one is thinned out.
const POINTS: usize = 4096;
/// How often the heap is looked at in the beginning.
const INTERVAL: Duration = Duration::from_micros(200);

/// Watches one training step: peaks of its phases, and live bytes over time.
///
/// On the heap a thread reads the count some thousand times a second, which costs the step nothing; phases' peaks are exact. A
/// pool is read when a phase begins and ends.
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
pub struct StepMeter<'a> {
    meter: &'a Meter,
    started: Instant,
    phases: Vec<MeasuredPhase>,
    /// The most bytes within micro-batches before the one that is watched.
    before: u64,
    /// Readings at the beginnings and ends of phases.
    samples: Vec<Sample>,
    sampler: Option<Sampler>,
}

#[derive(Debug)]
struct Sampler {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Vec<(Instant, u64)>>,
}

impl<'a> StepMeter<'a> {
    /// Begins to watch.
    pub fn start(meter: &'a Meter) -> Self {
        let sampler = meter.heap().map(|(heap, baseline)| {
            let stop = Arc::new(AtomicBool::new(false));
            let stopped = stop.clone();
            let thread = std::thread::spawn(move || {
                let (mut samples, mut interval) = (Vec::with_capacity(POINTS), INTERVAL);
                while !stopped.load(Relaxed) {
                    samples.push((Instant::now(), (heap.live_bytes() as u64).saturating_sub(baseline)));
                    if samples.len() == POINTS {
                        samples = thin(&samples);
                        samples.reserve_exact(POINTS);
                        interval *= 2;
                    }
                    std::thread::sleep(interval);
                }
                samples
            });
            Sampler { stop, thread }
        });
        Self { meter, started: Instant::now(), phases: vec![], before: 0, samples: vec![], sampler }
    }

    /// A phase begins, the one before it ends. A forward pass after a backward pass is that of the next micro-batch: the
    /// watch begins anew, so that the last one is what is shown; the peak is that of all.
    pub fn enter(&mut self, phase: Phase) {
        self.close();
        if phase == Phase::Forward && !self.phases.is_empty() {
            self.before = self.phases.iter().map(|phase| phase.peak_bytes).fold(self.before, u64::max);
            self.phases.clear();
            self.samples.clear();
            self.started = Instant::now();
        }
        self.meter.reset_peak();
        let (start, bytes) = (self.started.elapsed().as_secs_f64(), self.meter.live_bytes());
        self.samples.push(Sample { seconds: start, bytes });
        self.phases.push(MeasuredPhase { phase, start, end: start, peak_bytes: bytes });
    }

    fn close(&mut self) {
        let (end, bytes) = (self.started.elapsed().as_secs_f64(), self.meter.live_bytes());
        if let Some(phase) = self.phases.last_mut() {
            (phase.end, phase.peak_bytes) = (end, self.meter.peak_bytes());
            self.samples.push(Sample { seconds: end, bytes });
        }
    }

    /// The step is over.
    pub fn finish(mut self) -> Measured {
        self.close();
        let end = self.phases.last().map_or(0.0, |phase| phase.end);
        let mut samples = std::mem::take(&mut self.samples);
        if let Some(Sampler { stop, thread }) = self.sampler.take() {
            stop.store(true, Relaxed);
            let seen = thread.join().unwrap_or_default().into_iter().filter_map(|(at, bytes)| {
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

/// Half of the points: of two the higher one, so that no peak is lost.
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
