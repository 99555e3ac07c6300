//! Models, a task over sample numbers, and everything that a step may change, for the proofs of the transactional step.
#![allow(dead_code, reason = "each binary of tests uses some of it")]

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::{ControlFlow, Deref, DerefMut};
use std::path::Path;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use burn::module::{Module, ModuleVisitor, Param};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{BatchNorm, BatchNormConfig, Dropout, DropoutConfig, Linear, LinearConfig};
use burn::tensor::activation::tanh;
use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use burn_pack::Reader;
use kiln_precision::{Policy, ScalerState, Scaling};
use kiln_recovery::{Failure, Injector, Ladder, MicroBatchSearch, MicroBatchSearchConfig, Patience, Reclaim, Recovery};
use kiln_training::{
    Boundary, Checkpoints, Event, Exact, Guard, Intervals, Metric, Metrics, OptimizerConfig, Pass, RunState, Schedule,
    ScheduleConfig, StepReport, Task, Trainer, TrainerBuilder,
};
use tempfile::TempDir;

pub(crate) const CLASSES: usize = 4;

static TURN: RwLock<()> = RwLock::new(());

/// The device's random numbers and the bytes of the heap belong to the process: a test that measures the heap, or whose result depends on
/// random numbers, runs alone.
pub(crate) fn turn() -> RwLockWriteGuard<'static, ()> {
    TURN.write().unwrap_or_else(PoisonError::into_inner)
}

/// A test that does neither runs beside others that do neither.
pub(crate) fn beside() -> RwLockReadGuard<'static, ()> {
    TURN.read().unwrap_or_else(PoisonError::into_inner)
}

/// A folder in memory, where there is one: a checkpoint waits for its disk.
pub(crate) fn temporary() -> TempDir {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { tempfile::tempdir_in(memory).unwrap() } else { tempfile::tempdir().unwrap() }
}

pub(crate) fn device() -> Device {
    Device::flex().autodiff()
}

/// The settings of a run in tests.
#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) optimizer: OptimizerConfig,
    pub(crate) schedule: Schedule,
    pub(crate) steps: u64,
    pub(crate) max_norm: Option<f64>,
    pub(crate) policy: Policy,
    pub(crate) scaling: Option<Scaling>,
    pub(crate) micro_batch: Option<usize>,
    pub(crate) every: Intervals,
    pub(crate) exact: Exact,
}

pub(crate) fn settings(optimizer: OptimizerConfig) -> Settings {
    Settings {
        optimizer,
        schedule: ScheduleConfig::cosine(0.02).with_floor(0.1).into(),
        steps: 20,
        max_norm: Some(1.0),
        policy: Policy::default(),
        scaling: None,
        micro_batch: None,
        every: Intervals::default(),
        exact: Exact::default(),
    }
}

/// A builder with these settings, without prediction and without recovery.
pub(crate) fn builder<'a, T: Task>(
    task: T,
    init: impl Fn(&Device) -> T::Model + 'a,
    settings: &Settings,
) -> TrainerBuilder<'a, T> {
    planned(task, init, settings).with_prediction(false)
}

/// A builder with these settings, without recovery.
pub(crate) fn planned<'a, T: Task>(
    task: T,
    init: impl Fn(&Device) -> T::Model + 'a,
    settings: &Settings,
) -> TrainerBuilder<'a, T> {
    let Settings { optimizer, schedule, steps, max_norm, policy, scaling, micro_batch, every, exact } =
        settings.clone();
    Trainer::builder(task, init)
        .with_optimizer(move |model: &T::Model| optimizer.groups(model))
        .with_schedule(schedule)
        .with_steps(steps)
        .with_clip_norm(max_norm)
        .with_precision(policy)
        .with(|settings| settings.run.loss_scaling = scaling)
        .with_micro_batch(micro_batch)
        .with(|settings| settings.checkpoints.intervals = every)
        .with(|settings| settings.memory.exact = exact)
        .with_seed(3)
        .with_recovery(false)
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
    pub(crate) last: Linear,
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

impl<M: Module + 'static> Task for Ids<M> {
    type Model = M;
    type Batch = Vec<usize>;

    fn loss(&self, pass: &Pass<'_, M>, batch: &Vec<usize>) -> Tensor<1> {
        (self.0)(pass.model(), batch, pass.device())
    }

    /// The number of samples: cheap, and without the loss, which some tests count.
    fn metrics(&self, pass: &Pass<'_, M>, batch: &Vec<usize>) -> Metrics {
        let samples = Tensor::from_floats([batch.len() as f32], pass.device());
        Metrics::new().with("samples", Metric::mean(samples, 1))
    }
}

/// A trainer whose guard can be changed.
pub(crate) struct Watched<T: Task> {
    trainer: Trainer<T>,
    guard: Arc<Mutex<Option<Guard>>>,
}

impl<T: Task> Watched<T> {
    /// Builds the trainer on the host's device. `sample` counts the samples of a batch.
    pub(crate) fn build(builder: TrainerBuilder<'_, T>, sample: &T::Batch) -> Self {
        Self::build_on(builder, &device(), sample)
    }

    pub(crate) fn build_on(builder: TrainerBuilder<'_, T>, device: &Device, sample: &T::Batch) -> Self {
        let guard: Arc<Mutex<Option<Guard>>> = Arc::default();
        let shared = guard.clone();
        let builder = builder.with_guard(move |boundary| {
            // A guard that panicked is still the guard.
            let guard = shared.lock().unwrap_or_else(PoisonError::into_inner);
            guard.as_ref().map_or(Ok(()), |guard| guard(boundary))
        });
        Self { trainer: builder.build(device, sample).unwrap(), guard }
    }

    /// Calls `guard` at every boundary from now on, and no other.
    pub(crate) fn watch(&mut self, guard: impl Fn(Boundary) -> Result<(), Failure> + Send + Sync + 'static) {
        *self.guard.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(guard));
    }
}

impl<T: Task> Deref for Watched<T> {
    type Target = Trainer<T>;

    fn deref(&self) -> &Trainer<T> {
        &self.trainer
    }
}

impl<T: Task> DerefMut for Watched<T> {
    fn deref_mut(&mut self) -> &mut Trainer<T> {
        &mut self.trainer
    }
}

/// A trainer with the numbers of `net`, in separate tensors, without recovery.
pub(crate) fn trainer<T>(net: &T::Model, task: T, settings: &Settings) -> Watched<T>
where
    T: Task<Batch = Vec<usize>>,
{
    Watched::build(builder(task, |_| net.valid().train(), settings), &batch(0, 8))
}

/// What `note` reads from the events of `trainer` from now on; a run stops where `stops` says so.
pub(crate) fn noted<T: Task, N: 'static>(
    trainer: &mut Trainer<T>,
    mut note: impl FnMut(&Event) -> Option<N> + 'static,
    mut stops: impl FnMut(&StepReport) -> bool + 'static,
) -> Rc<RefCell<Vec<N>>> {
    let notes = Rc::new(RefCell::new(vec![]));
    let shared = notes.clone();
    trainer.observe(move |event| {
        shared.borrow_mut().extend(note(event));
        match event {
            Event::Step(report) if stops(report) => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        }
    });
    notes
}

/// The numbers of a step and of an evaluation.
pub(crate) fn told(event: &Event) -> Option<String> {
    match event {
        Event::Step(report) => Some(numbers(report)),
        Event::Evaluated(evaluation) => Some(format!("{evaluation:?}")),
        _ => None,
    }
}

/// Batch number `step`, of `size` samples.
pub(crate) fn batch(step: u64, size: usize) -> Vec<usize> {
    let first = step as usize * size;
    (first..first + size).collect()
}

/// Micro-batches of `start` samples, that do not grow. It never waits: a failure counts as lack of capacity.
pub(crate) fn recovery(batch: usize, start: usize, ladder: Ladder) -> Recovery {
    let config = MicroBatchSearchConfig::new(batch).with_start(start).with_success_interval(u32::MAX);
    let search = MicroBatchSearch::new(config).unwrap();
    Recovery::new(device(), search, ladder).with_patience(Patience::new(Duration::ZERO))
}

/// A ladder with equal attempts only.
pub(crate) fn reclaim() -> Ladder {
    Ladder::new().with(Reclaim { times: usize::MAX })
}

/// Makes the boundaries of `trainer` fail as `faults` says.
pub(crate) fn inject<T: Task>(trainer: &mut Watched<T>, faults: Injector) -> Arc<Injector> {
    let faults = Arc::new(faults);
    let shared = faults.clone();
    trainer.watch(move |boundary| shared.check(boundary.name()));
    faults
}

/// All state that a step may change, as saved: parameters, running statistics and optimizer state by name.
#[derive(Clone, PartialEq)]
pub(crate) struct Snapshot {
    tensors: BTreeMap<String, Vec<u8>>,
    scalars: String,
    state: RunState,
    scaler: ScalerState,
}

impl Snapshot {
    pub(crate) fn of<T: Task>(trainer: &Trainer<T>) -> Self {
        Self::on_first(trainer).unwrap()
    }

    /// Takes the snapshot of one of several replicas. `None` if another replica saves for all.
    pub(crate) fn on_first<T: Task>(trainer: &Trainer<T>) -> Option<Self> {
        let folder = temporary();
        let path = trainer.save_to(&Checkpoints::new(folder.path(), 1).unwrap()).unwrap();
        path.exists().then(|| Self::read(trainer, &path))
    }

    fn read<T: Task>(trainer: &Trainer<T>, path: &Path) -> Self {
        let (mut tensors, mut scalars) = (BTreeMap::new(), String::new());
        let ids = ids(trainer.model());
        // Ids differ between two models that are made alike; the position of a parameter does not.
        let named = |name: &str| match name.split_once('.').and_then(|(id, rest)| Some((ids.get(id)?, rest))) {
            Some((position, rest)) => format!("parameter {position:03}.{rest}"),
            None => name.to_owned(),
        };
        for file in ["model", "optimizer"] {
            let reader = Reader::from_file(path.join(file).with_extension("bpk")).unwrap();
            let of_file: BTreeMap<String, String> =
                reader.scalars().iter().map(|(name, value)| (named(name), format!("{value:?}"))).collect();
            scalars += &format!("{of_file:?}");
            for tensor in reader.into_tensors().unwrap() {
                let (name, dtype, shape, _, bytes) = tensor.into_parts().unwrap();
                tensors.insert(format!("{file}: {} {dtype:?} {shape:?}", named(&name)), bytes.to_vec());
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

/// The numbers of a step's report, without failures and time, bit for bit.
pub(crate) fn numbers(report: &StepReport) -> String {
    let StepReport { step, epoch, loss, gradient_norm, learning_rate, skipped, loss_scale, micro_batches, .. } =
        *report;
    let bits = [loss.to_bits(), gradient_norm.map_or(0, f64::to_bits), learning_rate.to_bits(), loss_scale.to_bits()];
    format!("{step} {epoch} {bits:?} {skipped} {micro_batches}")
}

/// A float tensor of a model, as it is stored.
pub(crate) struct Stored {
    pub(crate) bits: Vec<u32>,
    /// Whether it takes gradients.
    pub(crate) learns: bool,
    pub(crate) id: u64,
}

/// The float tensors of `model` by path, those of what is attached to its parameters included.
pub(crate) fn stored(model: &impl Module) -> BTreeMap<String, Stored> {
    #[derive(Default)]
    struct Read(Vec<String>, BTreeMap<String, Stored>);
    impl ModuleVisitor for Read {
        fn enter_module(&mut self, name: &str, _: &str) {
            self.0.push(name.to_owned());
        }
        fn exit_module(&mut self, _: &str, _: &str) {
            self.0.pop();
        }
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let bits = param.val().into_data().iter::<f32>().map(f32::to_bits).collect();
            let stored = Stored { bits, learns: param.is_require_grad(), id: param.id.val() };
            self.1.insert(self.0.join("."), stored);
        }
    }
    let mut read = Read::default();
    model.visit(&mut read);
    read.1
}

/// The position of each parameter of `model`, by its id.
fn ids(model: &impl Module) -> BTreeMap<String, usize> {
    struct Ids(BTreeMap<String, usize>);
    impl ModuleVisitor for Ids {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let position = self.0.len();
            self.0.entry(param.id.val().to_string()).or_insert(position);
        }
    }
    let mut ids = Ids(BTreeMap::new());
    model.visit(&mut ids);
    ids.0
}
