//! Steps with refused pages, and what they leave behind.

use std::sync::{Mutex, PoisonError};

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Device, Tensor};
use kiln_precision::ScalerState;
use kiln_recovery::{Failure, Ladder, MicroBatch, MicroBatchConfig, Recovery, Remedy, Rung, Situation, reclaim};
use kiln_training::{Error, OptimizerConfig, RunState, ScheduleConfig, StepReport, StepSettings, Trainer};

use crate::pages::{self, Count};
use crate::tasks::Case;

/// How the device hands out memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Layout {
    /// Tensors share pages of megabytes, as by default: a step needs few pages.
    Shared,
    /// Every tensor has a page of its own, unless one of its size is free: nearly every operation can fail.
    Own,
}

impl Layout {
    pub(crate) fn within<I: Send, O: Send>(self, device: &Device, input: I, work: impl Fn(I) -> O + Send) -> O {
        match self {
            Self::Shared => work(input),
            Self::Own => device.memory_persistent_allocations(input, work),
        }
    }
}

pub(crate) fn device() -> Device {
    Device::cpu().autodiff()
}

/// The same numbers in tensors of their own: clones share running statistics.
pub(crate) fn copy<M: Module>(model: &M) -> M {
    model.valid().train()
}

pub(crate) fn trainer<M: Module>(model: &M, optimizer: OptimizerConfig, recovery: Option<Recovery>) -> Trainer<M> {
    let schedule = ScheduleConfig { peak: 0.05, warmup: 0.0, floor: 0.1 };
    let settings = StepSettings { max_norm: Some(1.0), ..StepSettings::new(optimizer, schedule, 10_000, device()) };
    let mut trainer = Trainer::new(copy(model), 1, settings).expect("valid settings");
    if let Some(recovery) = recovery {
        trainer.recover(recovery);
    }
    trainer
}

/// Failures that ladders were asked about.
static SEEN: Mutex<Vec<Failure>> = Mutex::new(vec![]);

/// Tries again with the same micro-batches, also when the device calls a refused page a buffer that is too big, as CubeCL's
/// CPU runtime always does.
#[derive(Debug)]
struct Again;

impl Rung for Again {
    fn remedy(&self, situation: &Situation<'_>) -> Option<Remedy> {
        see(situation.failure);
        Some(Remedy::Reclaim)
    }
}

/// Only looks.
#[derive(Debug)]
struct Look;

impl Rung for Look {
    fn remedy(&self, situation: &Situation<'_>) -> Option<Remedy> {
        see(situation.failure);
        None
    }
}

fn see(failure: &Failure) {
    SEEN.lock().unwrap_or_else(PoisonError::into_inner).push(failure.clone());
}

/// The failures since the last call.
pub(crate) fn seen() -> Vec<Failure> {
    std::mem::take(&mut *SEEN.lock().unwrap_or_else(PoisonError::into_inner))
}

fn sizes(samples: usize) -> MicroBatch {
    MicroBatch::new(MicroBatchConfig::new(samples)).expect("a batch of samples")
}

pub(crate) fn in_the_same_split(samples: usize) -> Recovery {
    Recovery::new(device().inner(), sizes(samples), Ladder::new().with(Again).with_attempts(8))
}

pub(crate) fn as_by_default(samples: usize) -> Recovery {
    let ladder = Ladder::new().with(Look).with(kiln_recovery::Reclaim { times: 1 }).with(kiln_recovery::Shrink);
    Recovery::new(device().inner(), sizes(samples), ladder)
}

/// One step from a device without free pages, of which those of `numbers` are refused.
pub(crate) fn step<C: Case>(
    case: &C,
    trainer: &mut Trainer<C::Model>,
    layout: Layout,
    numbers: &[usize],
) -> (Result<StepReport, Error>, Count)
where
    C::Model: Send,
    C::Batch: Sync,
{
    let device = device().inner();
    reclaim(&device);
    let batch = case.batch(trainer.state().step);
    pages::refusing(numbers, || layout.within(&device, trainer, |trainer| kiln_training::step(case, trainer, &batch)))
}

/// All that a step changes.
#[derive(Clone, Debug)]
pub(crate) struct After {
    /// Parameters and running statistics.
    pub(crate) floats: Vec<f32>,
    pub(crate) scaler: ScalerState,
    pub(crate) state: RunState,
    pub(crate) loss: f64,
    pub(crate) norm: Option<f64>,
}

impl After {
    pub(crate) fn of<M: Module>(trainer: &Trainer<M>, report: &StepReport) -> Self {
        Self {
            floats: floats(trainer.model()),
            scaler: trainer.scaler(),
            state: trainer.state(),
            loss: report.loss,
            norm: report.gradient_norm,
        }
    }

    /// Whether every bit is the same.
    pub(crate) fn is(&self, other: &Self) -> bool {
        let bits = |after: &Self| after.floats.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        let rest = |after: &Self| (after.scaler, after.state, after.loss.to_bits(), after.norm.map(f64::to_bits));
        bits(self) == bits(other) && rest(self) == rest(other)
    }

    /// The relative L2 distance of the floats.
    pub(crate) fn distance(&self, other: &Self) -> f64 {
        assert_eq!(self.floats.len(), other.floats.len());
        let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>().sqrt();
        let differences = &mut self.floats.iter().zip(&other.floats).map(|(a, b)| f64::from(*a) - f64::from(*b));
        norm(differences) / norm(&mut other.floats.iter().map(|value| f64::from(*value)))
    }
}

/// Every float of a model, running statistics included.
pub(crate) fn floats(model: &impl Module) -> Vec<f32> {
    struct Floats(Vec<f32>);
    impl ModuleVisitor for Floats {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.0.extend(param.base().into_data().iter::<f32>());
        }
    }
    // Running statistics are folded in when somebody asks.
    let _ = model.valid();
    let mut floats = Floats(vec![]);
    model.visit(&mut floats);
    floats.0
}

/// Bytes of live tensors, once the device has done everything.
pub(crate) fn in_use() -> u64 {
    let device = device().inner();
    reclaim(&device);
    device.memory_pool_usage().expect("CubeCL reports its pools").bytes_in_use
}
