//! What looks at every boundary of a step: the meter of one step, the memory budget, failures on purpose.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use kiln_memory::{Measured, Meter, Phase, StepMeter};
use kiln_recovery::{Failure, Injector, Kind};
use kiln_training::{Boundary, Guard};

/// Shared between the run and the guard of its steps.
pub(crate) struct Watch {
    meter: &'static Meter,
    /// The step that is measured over time.
    step: Mutex<Option<StepMeter<'static>>>,
    injector: Injector,
    /// Bytes that a step may take. The CPU device enforces no limit by itself: here it is counted.
    limit: Option<u64>,
    failed: AtomicBool,
}

impl Watch {
    pub(crate) fn new(meter: &'static Meter, injector: Injector, limit: Option<u64>) -> Arc<Self> {
        Arc::new(Self { meter, step: Mutex::new(None), injector, limit, failed: AtomicBool::new(false) })
    }

    /// The next step is measured over time.
    pub(crate) fn begin(&self) {
        *self.step() = Some(StepMeter::start(self.meter));
    }

    /// What was measured, when the step is over.
    pub(crate) fn end(&self) -> Option<Measured> {
        self.step().take().map(StepMeter::finish)
    }

    pub(crate) fn guard(self: &Arc<Self>) -> Guard {
        let watch = self.clone();
        Box::new(move |boundary| watch.at(boundary))
    }

    fn step(&self) -> std::sync::MutexGuard<'_, Option<StepMeter<'static>>> {
        self.step.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn at(&self, boundary: Boundary) -> Result<(), Failure> {
        if self.failed.swap(false, Relaxed) {
            self.meter.reset_peak(); // that of the attempt that failed
        }
        let checked = self.injector.check(boundary.name()).and_then(|()| self.within_limit(boundary));
        self.failed.store(checked.is_err(), Relaxed);
        if let Some(step) = &mut *self.step() {
            match boundary {
                Boundary::CopyIn => step.enter(Phase::Forward),
                Boundary::Forward => step.enter(Phase::Backward),
                Boundary::Probe => step.enter(Phase::Optimizer),
                Boundary::Backward | Boundary::Accumulate | Boundary::Update => {}
            }
        }
        checked
    }

    fn within_limit(&self, boundary: Boundary) -> Result<(), Failure> {
        let Some(limit) = self.limit else { return Ok(()) };
        let peak = self.meter.peak_bytes();
        // An update cannot be made smaller by a smaller micro-batch: what it takes was foreseen.
        if peak <= limit || boundary == Boundary::Update {
            return Ok(());
        }
        Err(Failure::new(Kind::OutOfMemory, format!("{} took {peak} of {limit} bytes", boundary.name())))
    }
}
