//! Models, a task over sample numbers, and everything that a step may change, for the proofs of the transactional step.
#![allow(dead_code, reason = "each file of tests uses some of it")]
#![allow(clippy::unwrap_used, reason = "a test ends at what goes wrong")]

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use burn::module::Module;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{BatchNorm, BatchNormConfig, Dropout, DropoutConfig, Linear, LinearConfig};
use burn::tensor::activation::tanh;
use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use burn_pack::Reader;
use kiln_accumulation::Weight;
use kiln_precision::ScalerState;
use kiln_recovery::{Injector, Ladder, MicroBatch, MicroBatchConfig, Reclaim, Recovery};
use kiln_training::{Checkpoints, OptimizerConfig, RunState, ScheduleConfig, StepReport, StepSettings, Task, Trainer};

pub(crate) const CLASSES: usize = 4;

static TURN: Mutex<()> = Mutex::new(());

/// The device's random numbers belong to the process, so that tests take turns.
pub(crate) fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn device() -> Device {
    Device::flex().autodiff()
}

pub(crate) fn settings(optimizer: OptimizerConfig) -> StepSettings {
    let schedule = ScheduleConfig { peak: 0.02, warmup: 0.0, floor: 0.1 };
    StepSettings { max_norm: Some(1.0), ..StepSettings::new(optimizer, schedule, 20, device()) }
}

/// Feature `i` of sample `id`.
fn feature(id: usize, i: usize) -> f32 {
    ((id * 7 + i * 13 + id * i) % 17) as f32 / 8.0 - 1.0
}

/// The samples `ids` in `shape`, the first dimension left out.
pub(crate) fn inputs<const D: usize>(ids: &[usize], shape: [usize; D], device: &Device) -> Tensor<D> {
    let each: usize = shape[1..].iter().product();
    let values: Vec<f32> = ids.iter().flat_map(|id| (0..each).map(move |i| feature(*id, i))).collect();
    Tensor::from_data(TensorData::new(values, shape), device)
}

/// Which of its first features is the largest.
pub(crate) fn classes(ids: &[usize], device: &Device) -> Tensor<1, Int> {
    let largest = |id: usize| (0..CLASSES).max_by(|a, b| feature(id, *a).total_cmp(&feature(id, *b))).unwrap();
    let values: Vec<i64> = ids.iter().map(|id| largest(*id) as i64).collect();
    Tensor::from_data(TensorData::new(values, [ids.len()]), device)
}

pub(crate) fn entropy(logits: Tensor<2>, targets: Tensor<1, Int>) -> Tensor<1> {
    let logits = logits.cast(DType::F32);
    CrossEntropyLossConfig::new().init(&logits.device()).forward(logits, targets)
}

/// Linear layers, with batch-norm and dropout behind the first if wanted.
#[derive(Module, Debug)]
pub(crate) struct Net {
    layers: Vec<Linear>,
    norm: Option<BatchNorm>,
    drop: Dropout,
    last: Linear,
}

impl Net {
    pub(crate) fn new(widths: &[usize], batch_norm: bool, dropout: f64) -> Self {
        let device = device();
        Self {
            layers: widths.windows(2).map(|pair| LinearConfig::new(pair[0], pair[1]).init(&device)).collect(),
            norm: batch_norm.then(|| BatchNormConfig::new(widths[1]).init(&device)),
            drop: DropoutConfig::new(dropout).init(),
            last: LinearConfig::new(*widths.last().unwrap(), CLASSES).init(&device),
        }
    }

    pub(crate) fn loss(&self, ids: &[usize], device: &Device) -> Tensor<1> {
        let width = self.layers[0].weight.dims()[0];
        let mut x = inputs(ids, [ids.len(), width], device);
        for (index, layer) in self.layers.iter().enumerate() {
            x = layer.forward(x);
            if let Some(norm) = self.norm.as_ref().filter(|_| index == 0) {
                x = norm.forward(x);
            }
            x = tanh(x);
            if index == 0 {
                x = self.drop.forward(x);
            }
        }
        entropy(self.last.forward(x), classes(ids, device))
    }
}

pub(crate) type Loss<M> = Box<dyn Fn(&M, &[usize], &Device) -> Tensor<1>>;

/// A task whose batches are the numbers of their samples.
pub(crate) struct Ids<M>(pub(crate) Loss<M>);

impl Ids<Net> {
    pub(crate) fn net() -> Self {
        Self(Box::new(Net::loss))
    }
}

impl<M: Module> Task for Ids<M> {
    type Model = M;
    type Batch = Vec<usize>;

    fn samples(&self, batch: &Vec<usize>) -> usize {
        batch.len()
    }

    fn weight(&self, batch: &Vec<usize>) -> Weight {
        Weight::Samples(batch.len())
    }

    fn slice(&self, batch: &Vec<usize>, samples: Range<usize>) -> Vec<usize> {
        batch[samples].to_vec()
    }

    fn loss(&self, model: &M, batch: &Vec<usize>, device: &Device) -> Tensor<1> {
        (self.0)(model, batch, device)
    }

    fn measure(&self, _: &M, batch: &Vec<usize>, device: &Device) -> Tensor<1> {
        Tensor::from_floats([batch.len() as f32], device)
    }

    fn figures(&self, sums: &[f64]) -> Vec<(&'static str, f64)> {
        vec![("samples", sums[0])]
    }
}

/// A trainer of the numbers of `net`, in tensors of its own.
pub(crate) fn trainer<M: Module>(net: &M, settings: &StepSettings) -> Trainer<M> {
    Trainer::new(net.valid().train(), 3, settings.clone()).unwrap()
}

/// Batch number `step`, of `size` samples.
pub(crate) fn batch(step: u64, size: usize) -> Vec<usize> {
    let first = step as usize * size;
    (first..first + size).collect()
}

/// Micro-batches of `start` samples, that do not grow.
pub(crate) fn recovery(batch: usize, start: usize, ladder: Ladder) -> Recovery {
    let config = MicroBatchConfig { start: Some(start), calm: u32::MAX, ..MicroBatchConfig::new(batch) };
    Recovery::new(device(), MicroBatch::new(config).unwrap(), ladder)
}

/// Tries again as it was.
pub(crate) fn reclaim() -> Ladder {
    Ladder::new().with(Reclaim { times: usize::MAX })
}

/// Has the boundaries of `trainer` fail as `faults` says.
pub(crate) fn inject<M: Module>(trainer: &mut Trainer<M>, faults: Injector) -> Arc<Injector> {
    let faults = Arc::new(faults);
    let shared = faults.clone();
    trainer.watch(Box::new(move |boundary| shared.check(boundary.name())));
    faults
}

/// All that a step may change, as it is saved: parameters, running statistics and optimizer state by name.
#[derive(Clone, PartialEq)]
pub(crate) struct Snapshot {
    tensors: BTreeMap<String, Vec<u8>>,
    scalars: String,
    state: RunState,
    scaler: ScalerState,
}

impl Snapshot {
    pub(crate) fn of<M: Module>(trainer: &Trainer<M>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = Checkpoints::new(folder.path(), 1).unwrap().save(trainer).unwrap();
        let (mut tensors, mut scalars) = (BTreeMap::new(), String::new());
        for file in ["model", "optimizer"] {
            let reader = Reader::from_file(path.join(file).with_extension("bpk")).unwrap();
            scalars += &format!("{:?}", reader.scalars());
            for tensor in reader.into_tensors().unwrap() {
                let (name, dtype, shape, _, bytes) = tensor.into_parts().unwrap();
                tensors.insert(format!("{file}: {name} {dtype:?} {shape:?}"), bytes.to_vec());
            }
        }
        Self { tensors, scalars, state: trainer.state(), scaler: trainer.scaler() }
    }

    /// Equal bit for bit, or a panic that names what differs.
    pub(crate) fn assert_same(&self, expected: &Self, context: &str) {
        let names: Vec<_> = self.tensors.keys().chain(expected.tensors.keys()).collect();
        let differs = names.iter().find(|name| self.tensors.get(**name) != expected.tensors.get(**name));
        assert!(differs.is_none(), "{context}: {} differs", differs.unwrap());
        assert!(self.scalars == expected.scalars, "{context}: scalars of the optimizer differ");
        assert_eq!((self.state, self.scaler), (expected.state, expected.scaler), "{context}");
    }

    /// The larger relative L2 distance, of the model's floats and of the optimizer's.
    pub(crate) fn distance(&self, expected: &Self) -> f64 {
        let floats = |snapshot: &Self, file: &str| -> Vec<f64> {
            let of_file = snapshot.tensors.iter().filter(|(name, _)| name.starts_with(file));
            let float = |bytes: &[u8]| f64::from(f32::from_le_bytes(bytes.try_into().unwrap()));
            of_file.flat_map(|(_, bytes)| bytes.chunks_exact(4).map(float)).collect()
        };
        let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>().sqrt();
        let far = ["model", "optimizer"].map(|file| {
            let (got, expected) = (floats(self, file), floats(expected, file));
            assert_eq!(got.len(), expected.len());
            norm(&mut got.iter().zip(&expected).map(|(a, b)| a - b)) / norm(&mut expected.iter().copied())
        });
        far[0].max(far[1])
    }
}

/// What a step reports but for failures and time, bit for bit.
pub(crate) fn numbers(report: &StepReport) -> String {
    let StepReport { step, epoch, loss, gradient_norm, learning_rate, skipped, loss_scale, micro_batches, .. } =
        *report;
    let bits = [loss.to_bits(), gradient_norm.map_or(0, f64::to_bits), learning_rate.to_bits(), loss_scale.to_bits()];
    format!("{step} {epoch} {bits:?} {skipped} {micro_batches}")
}
