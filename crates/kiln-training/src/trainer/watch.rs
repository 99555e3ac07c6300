//! What happens at every boundary of a step: the heap, or the pages of a GPU's pools, are held to the memory budget, and the step's peak is
//! measured.

use std::sync::{Arc, Mutex, PoisonError};

use burn::tensor::Device;
use kiln_memory::{Growth, GrowthAlarm, Measured, Meter, Phase, Span, StepMeter};
use kiln_recovery::{Failure, Kind};

use crate::transaction::{Boundary, Guard};

/// Shared between the trainer and the guard of its steps.
pub(super) struct Watch {
    device: Device,
    meter: Option<Meter>,
    /// Bytes that a step may take: on the heap, or from the driver for the pages of the device's pools. No device enforces such a limit
    /// by itself.
    limit: Option<u64>,
    /// The guard of the user.
    guard: Option<Guard>,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    /// The current attempt.
    attempt: Option<Span>,
    /// The highest peak of all replicas in the attempt, once it has succeeded on all.
    highest_peak: Option<u64>,
    /// The current step, if it is measured over time.
    step: Option<StepMeter>,
    /// Steps until the one to be measured.
    measured_in: Option<u64>,
    measured: Option<Measured>,
    alarm: GrowthAlarm,
}

impl Watch {
    pub(super) fn new(device: Device, meter: Option<Meter>, limit: Option<u64>, guard: Option<Guard>) -> Arc<Self> {
        Arc::new(Self { device, meter, limit, guard, seen: Mutex::default() })
    }

    /// The meter of the device's memory, if there is one.
    pub(super) fn meter(&self) -> Option<&Meter> {
        self.meter.as_ref()
    }

    /// The guard that a step calls. It holds the lock only for a moment, and calls the user's guard without it.
    pub(super) fn guard(self: &Arc<Self>) -> Guard {
        let watch = self.clone();
        Box::new(move |boundary| watch.at(boundary))
    }

    /// Begins an attempt: peaks count from here.
    pub(super) fn begin_attempt(&self) {
        let span = self.meter.as_ref().map(Meter::span);
        let mut seen = self.seen();
        (seen.attempt, seen.highest_peak) = (span, None);
    }

    /// Notes the highest peak of all replicas in the attempt.
    pub(super) fn note_highest_peak(&self, peak: Option<u64>) {
        self.seen().highest_peak = peak;
    }

    /// The peak of the attempt that determines the next size. It is equal on all replicas.
    pub(super) fn highest_peak(&self) -> Option<u64> {
        let noted = self.seen().highest_peak;
        noted.or_else(|| self.peak_bytes())
    }

    /// The most bytes at once since the last attempt began, if the meter counts them.
    pub(super) fn peak_bytes(&self) -> Option<u64> {
        self.seen().attempt.as_ref().map(Span::peak_bytes)
    }

    /// Begins a step.
    pub(super) fn begin_step(&self) {
        let begins = {
            let mut seen = self.seen();
            // If the step to be measured failed, the next one is measured.
            let begins = seen.step.take().is_some() || seen.measured_in == Some(0);
            seen.measured_in = seen.measured_in.and_then(|steps| steps.checked_sub(1));
            begins
        };
        if begins {
            let step = self.meter.as_ref().map(StepMeter::start);
            self.seen().step = step;
        }
    }

    /// Ends a step. Returns the growth that it shows, if the meter counts every byte.
    pub(super) fn end_step(&self) -> Option<Growth> {
        let step = self.seen().step.take();
        if let Some(step) = step {
            let measured = step.finish();
            self.seen().measured = Some(measured);
        }
        let live_bytes = self.meter.as_ref().filter(|meter| meter.is_exact())?.live_bytes();
        self.seen().alarm.note(live_bytes)
    }

    /// Measures one step over time, after `steps` other steps.
    pub(super) fn measure(&self, steps: u64) {
        self.seen().measured_in = Some(steps);
    }

    /// The measurement of a step, if one was measured.
    pub(super) fn measured(&self) -> Option<Measured> {
        self.seen().measured.take()
    }

    fn seen(&self) -> std::sync::MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn at(&self, boundary: Boundary) -> Result<(), Failure> {
        if let Some(guard) = &self.guard {
            guard(boundary)?;
        }
        self.within_limit(boundary)?;
        if let Some(step) = &mut self.seen().step {
            match boundary {
                Boundary::CopyIn => step.enter(Phase::Forward),
                Boundary::Forward => step.enter(Phase::Backward),
                Boundary::Probe => step.enter(Phase::Optimizer),
                Boundary::Backward | Boundary::Accumulate | Boundary::Update | Boundary::HandOut => {}
            }
        }
        Ok(())
    }

    fn within_limit(&self, boundary: Boundary) -> Result<(), Failure> {
        let Some(limit) = self.limit else { return Ok(()) };
        // Pages stay with a pool, so that the present pages are the most since the pool was cleaned.
        let taken = || self.meter.as_ref().and_then(Meter::reserved_bytes).or_else(|| self.peak_bytes()).unwrap_or(0);
        match taken() {
            taken if taken <= limit => Ok(()),
            // A smaller micro-batch does not make the update smaller, whose memory is planned. The update needs no pages for activations.
            _ if matches!(boundary, Boundary::Update | Boundary::HandOut) => {
                self.device.memory_cleanup();
                Ok(())
            }
            taken => Err(Failure::new(Kind::OutOfMemory, format!("{} took {taken} of {limit} bytes", boundary.name()))),
        }
    }
}
