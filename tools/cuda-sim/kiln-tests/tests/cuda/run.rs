//! Steps under refused pages, each from the same checkpoint.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use burn::module::Module;
use burn::tensor::Device;
use kiln_precision::ScalerState;
use kiln_recovery::{
    FailedAttempt, Failure, Ladder, MicroBatchSearch, MicroBatchSearchConfig, Patience, Reclaim, Recovery, Remedy,
    RetryPolicy, Shrink, reclaim,
};
use kiln_training::{Batch, Checkpoints, Error, OptimizerConfig, RunState, ScheduleConfig, StepReport};
use tempfile::TempDir;

use crate::sim::{Card, Count, Refuse, gpu};
use crate::support::{Settings, Snapshot, Watched, builder, numbers, settings};
use crate::tasks::Case;

/// Relative tolerance for a step that was cut differently: sums are in another order.
const TOLERANCE: f64 = 1e-5;

pub(crate) fn device() -> Device {
    gpu().autodiff()
}

/// Bytes of live tensors, after the device has finished its work.
pub(crate) fn in_use() -> u64 {
    let device = device().inner();
    reclaim(&device);
    device.memory_pool_usage().expect("CubeCL reports its pools").bytes_in_use
}

/// The response to a failure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Then {
    /// Tries again with equal micro-batches.
    Again,
    /// The standard ladder: one equal attempt, then smaller micro-batches.
    Standard,
}

/// The failures that a run has met.
type Failures = Arc<Mutex<Vec<Failure>>>;

/// The first retry policy, which records the failures.
#[derive(Debug, Clone)]
struct Witness {
    then: Then,
    failures: Failures,
}

impl RetryPolicy for Witness {
    fn remedy(&self, situation: &FailedAttempt<'_>) -> Option<Remedy> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner).push(situation.failure.clone());
        (self.then == Then::Again).then_some(Remedy::Reclaim)
    }
}

/// Takes two steps of a run, and then the third one repeatedly.
pub(crate) struct Third<'a, C: Case> {
    card: &'a Card,
    case: &'a C,
    net: C::Model,
    optimizer: OptimizerConfig,
    start: TempDir,
}

/// The results of the third step.
pub(crate) struct Done {
    pub(crate) report: StepReport,
    pub(crate) count: Count,
    /// Failures of forward and backward passes. Any further ones in the report are failures of the update.
    pub(crate) failures: Vec<Failure>,
    after: Snapshot,
    state: RunState,
    scaler: ScalerState,
    /// Bytes of live tensors when only the run exists.
    in_use: u64,
}

/// Work for the device's own allocation mode, which takes only closures that can be sent. A trainer cannot be sent.
type Work = Box<dyn FnOnce()>;

thread_local!(static WORK: RefCell<Option<Work>> = const { RefCell::new(None) });

impl<'a, C: Case> Third<'a, C> {
    pub(crate) fn new(card: &'a Card, case: &'a C, optimizer: OptimizerConfig) -> Self {
        let third = Self { card, case, net: case.model(&device()), optimizer, start: tempfile::tempdir().unwrap() };
        // They allocate the optimizer's state and compile the kernels.
        let (trainer, _) = third.trainer(Then::Again);
        for _ in 0..2 {
            let (report, _) = third.watched(&trainer, Refuse::Pages(&[]));
            assert_eq!(report.failures, 0);
        }
        trainer.borrow().save_to(&Checkpoints::new(third.start.path(), 1).unwrap()).unwrap();
        third
    }

    /// Takes the step with limited memory.
    pub(crate) fn step(&self, then: Then, refuse: Refuse<'_>) -> Done {
        let (trainer, failures) = self.trainer(then);
        trainer.borrow_mut().set_checkpoints(Checkpoints::new(self.start.path(), 1).unwrap());
        assert!(trainer.borrow_mut().resume().unwrap().is_some());
        self.done(&trainer, &failures, refuse)
    }

    fn trainer(&self, then: Then) -> (Rc<RefCell<Watched<C>>>, Failures) {
        let schedule = ScheduleConfig::cosine(0.05).with_floor(0.1).into();
        let settings = Settings { schedule, steps: 100, ..settings(self.optimizer) };
        let sample = self.case.batch(0);
        let builder = builder(self.case.clone(), |_| self.net.valid().train(), &settings);
        let mut trainer = Watched::build_on(builder, &device(), &sample);
        let failures: Failures = Arc::default();
        let witness = Witness { then, failures: failures.clone() };
        let ladder = Ladder::new().with(witness).with(Reclaim { times: 1 }).with(Shrink);
        let sizes = MicroBatchSearch::new(MicroBatchSearchConfig::new(sample.len())).unwrap();
        let recovery = Recovery::new(device().inner(), sizes, ladder);
        trainer.set_recovery(Some(recovery.with_patience(Patience::new(Duration::ZERO))));
        (Rc::new(RefCell::new(trainer)), failures)
    }

    /// Loads the checkpoint with limited memory. If that fails, loads it again with all memory. Then takes the step.
    pub(crate) fn resumed(&self, refuse: Refuse<'_>) -> (Result<(), Error>, Count, Done) {
        let (trainer, failures) = self.trainer(Then::Again);
        trainer.borrow_mut().set_checkpoints(Checkpoints::new(self.start.path(), 1).unwrap());
        let (before, resuming) = (trainer.borrow().state(), trainer.clone());
        let (resumed, resume_count) = with_pages(self.card, refuse, move || resuming.borrow_mut().resume());
        if resumed.is_err() {
            assert_eq!(trainer.borrow().state(), before, "a failed resume changed the run");
            assert!(trainer.borrow_mut().resume().unwrap().is_some());
        }
        (resumed.map(|_| ()), resume_count, self.done(&trainer, &failures, Refuse::Pages(&[])))
    }

    fn done(&self, trainer: &Rc<RefCell<Watched<C>>>, failures: &Failures, refuse: Refuse<'_>) -> Done {
        let (report, count) = self.watched(trainer, refuse);
        let trainer = trainer.borrow();
        let failures = failures.lock().unwrap().clone();
        let (after, in_use) = (Snapshot::of(&trainer), in_use());
        Done { report, count, failures, after, state: trainer.state(), scaler: trainer.scaler(), in_use }
    }

    fn watched(&self, trainer: &Rc<RefCell<Watched<C>>>, refuse: Refuse<'_>) -> (StepReport, Count) {
        let batch = self.case.batch(trainer.borrow().state().step);
        let trainer = trainer.clone();
        let (report, count) = with_pages(self.card, refuse, move || trainer.borrow_mut().step(&batch));
        (report.unwrap(), count)
    }
}

/// Runs `work` on a device without free pages, where each tensor has pages of its own.
fn with_pages<R: 'static>(card: &Card, refuse: Refuse<'_>, work: impl FnOnce() -> R + 'static) -> (R, Count) {
    let device = device().inner();
    reclaim(&device);
    card.refusing(refuse, || with_own_pages(&device, work))
}

/// Runs `work` while every tensor on `device` has a page of its own, unless a page of its size is free. Nearly every operation then
/// allocates one.
pub(crate) fn with_own_pages<R: 'static>(device: &Device, work: impl FnOnce() -> R + 'static) -> R {
    let result = Rc::new(RefCell::new(None));
    let place = result.clone();
    WORK.set(Some(Box::new(move || *place.borrow_mut() = Some(work()))));
    device.memory_persistent_allocations((), |()| WORK.take().expect("it runs on this thread, once")());
    result.borrow_mut().take().expect("the work has ended")
}

impl Done {
    /// Whether the step was cut as one without failures: neither were the micro-batches smaller, nor were groups of parameters that are
    /// updated together halved.
    pub(crate) fn cut_alike(&self) -> bool {
        self.report.micro_batches == 1 && self.report.failures == self.failures.len()
    }

    /// The distance of the results from those of the `undisturbed` step.
    pub(crate) fn distance(&self, undisturbed: &Self) -> f64 {
        self.after.distance(&undisturbed.after)
    }

    /// Whether the whole run has the same bits.
    pub(crate) fn same_bits(&self, undisturbed: &Self) -> bool {
        self.after == undisturbed.after
    }

    /// Equal to the `undisturbed` step, to the bit or up to some roundings.
    pub(crate) fn assert_as(&self, undisturbed: &Self, context: &str) {
        if self.cut_alike() && self.same_bits(undisturbed) {
            assert_eq!(numbers(&self.report), numbers(&undisturbed.report), "{context}");
        } else {
            let far = self.after.distance(&undisturbed.after);
            assert!(far < TOLERANCE, "{context}: parameters, statistics or optimizer are {far:e} off");
            let near = |a: f64, b: f64| (a - b).abs() < TOLERANCE * b.abs();
            let norm = |done: &Self| done.report.gradient_norm.unwrap();
            assert!(near(self.report.loss, undisturbed.report.loss), "{context}: {:?}", self.report);
            assert!(near(norm(self), norm(undisturbed)), "{context}: {:?}", self.report);
        }
        assert_eq!((self.state, self.scaler), (undisturbed.state, undisturbed.scaler), "{context}");
        assert_eq!(self.in_use, undisturbed.in_use, "{context}: live bytes");
    }
}
