use std::any::Any;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::backend::capture::TensorId;
use burn::backend::{Autodiff, AutodiffBackend, Capture};
use burn::module::Module;
use burn::optim::{GradientsParams, Optimizer};
use burn::tensor::{Device, Tensor};

mod update;
mod walk;

use update::Update;
use walk::{FirstGradients, Norm, Parameters, Sums, Take, Untrack};

use crate::program::{Program, Recorded};
use crate::{Error, StepTrace};

type Tracked = Autodiff<Capture>;

const NO_GRADIENT: &str = "the loss does not depend on a parameter that learns";

/// How a step is taken, beside what model and optimizer say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepOptions {
    /// Gradients are added up over several micro-batches: the sum is there while forward and backward run.
    pub accumulate: bool,
    /// All old parameters are held until all new ones are made, as when `optimizer.step` gets a clone of the model.
    pub keep_parameters: bool,
    /// Gradients are multiplied by a number before the update: clipping, or a loss scale that is taken off.
    pub scale_gradients: bool,
    /// The global norm of the gradients is computed before the update.
    pub reads_norm: bool,
    /// Parameters are updated in chunks, and nothing old of a chunk (parameters, gradients, optimizer state) is given up before all of
    /// it is new. So does an update that can be repaired.
    pub update_chunks: Option<UpdateChunks>,
    /// The two batch sizes that are recorded. Any other is inferred from how the shapes differ between them.
    pub batches: [usize; 2],
}

impl Default for StepOptions {
    /// burn's plain loop: `loss.backward()`, then `optimizer.step(rate, model, gradients)`.
    fn default() -> Self {
        Self {
            accumulate: false,
            keep_parameters: false,
            scale_gradients: false,
            reads_norm: false,
            update_chunks: None,
            batches: [2, 3],
        }
    }
}

/// How parameters are cut into chunks that are updated together: in the order of the fields, in runs of at most
/// [`bytes`](Self::bytes), and at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpdateChunks {
    /// A chunk is about this part of all parameters.
    pub parts: u64,
    /// A chunk is not made smaller than so many bytes.
    pub least: u64,
}

impl UpdateChunks {
    /// The most bytes of a chunk, for parameters of these sizes: at least the largest of them.
    pub fn bytes(&self, parameters: &[u64]) -> u64 {
        let largest = parameters.iter().copied().max().unwrap_or(0);
        largest.max(parameters.iter().sum::<u64>() / self.parts.max(1)).max(self.least)
    }
}

/// What the forward pass of a recording gets beside the model.
#[derive(Debug)]
pub struct Recorder {
    device: Device,
    batch: usize,
    cuts: std::cell::RefCell<Vec<TensorId>>,
}

impl Recorder {
    /// The device to make the input on: zeros of the right shape will do, as nothing is computed.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Number of samples in this recording.
    pub fn batch(&self) -> usize {
        self.batch
    }

    /// Notes a place between two blocks of a chain, as [`StepTrace::with_plan`] needs: once before the first block, and after
    /// every block.
    pub fn cut(&self) {
        self.mark(&mut self.cuts.borrow_mut());
    }

    /// A position is the place of an operation that means nothing else.
    fn mark(&self, marks: &mut Vec<TensorId>) {
        mark(&self.device.clone().inner(), marks);
    }
}

fn mark(device: &Device, marks: &mut Vec<TensorId>) {
    if let Ok(primitive) = Tensor::<1>::zeros([1], device).try_into_primitive::<Capture>() {
        marks.push(primitive.id());
    }
}

/// Records one training step on burn's capture device: nothing is computed, and no memory is taken for data.
///
/// `build` makes the model on the device it gets (under a precision policy, when it is trained under one); `forward` runs it to
/// the mean loss over [`Recorder::batch`] samples; `optimizer` is one of burn's, built but not initialised, as from
/// `AdamWConfig::new().build()`. The step that is recorded is not the first: the optimizer has its state.
///
/// Nothing may be read back (`into_data`, `into_scalar`), random numbers may be drawn but not seeded, and a tensor may not leave
/// the device. Checkpointed segments cannot be recorded as such: record the plain model with
/// [`cuts`](Recorder::cut) between its blocks, and put a plan on the trace.
///
/// ```
/// use burn::nn::{Linear, LinearConfig};
/// use burn::optim::AdamWConfig;
/// use burn::tensor::Tensor;
/// use kiln_memory::{BackendProfile, StepOptions, record_step};
///
/// let trace = record_step(
///     |device| LinearConfig::new(1024, 1024).init(device),
///     |model: &Linear, step| model.forward(Tensor::<2>::zeros([step.batch(), 1024], step.device())).square().mean(),
///     &AdamWConfig::new().build(),
///     StepOptions::default(),
/// )?;
/// let small = trace.predict(16, &BackendProfile::flex())?;
/// let large = trace.predict(4096, &BackendProfile::flex())?;
/// assert!(small.peak_bytes > 4 * 1024 * 1024 * 4 && large.peak_bytes > small.peak_bytes);
/// # Ok::<(), kiln_memory::Error>(())
/// ```
///
/// # Errors
/// [`Error::Batch`] for recordings of no or the same batch size, [`Error::Record`] for a program that cannot be recorded, with
/// the operation and the layer that came last, and [`Error::Shape`] for one whose operations depend on the batch size.
pub fn record_step<M: Module + 'static, O: Optimizer>(
    build: impl Fn(&Device) -> M,
    forward: impl Fn(&M, &Recorder) -> Tensor<1>,
    optimizer: &O,
    options: StepOptions,
) -> Result<StepTrace, Error> {
    let [first, second] = options.batches;
    if first == 0 || first >= second {
        return Err(Error::Batch { batches: options.batches });
    }
    let once = |batch| record_once(batch, &build, &forward, optimizer, options);
    StepTrace::merge([once(first)?, once(second)?], options.batches)
}

/// What became of one recording.
pub(crate) struct Recording {
    pub(crate) program: Program,
    /// Indices of the first operation of the step, of the backward pass, of the update, and of what follows it.
    pub(crate) phases: [usize; 4],
    pub(crate) cuts: Vec<usize>,
    /// Where old parameters and optimizer state are given up.
    pub(crate) releases: Vec<usize>,
    pub(crate) roles: HashMap<usize, Role>,
}

/// What a tensor is known to be.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Role {
    Parameter(String),
    Gradient(String),
    Updated(String),
}

fn record_once<M: Module + 'static, O: Optimizer>(
    batch: usize,
    build: impl Fn(&Device) -> M,
    forward: impl Fn(&M, &Recorder) -> Tensor<1>,
    optimizer: &O,
    options: StepOptions,
) -> Result<Recording, Error> {
    let plain = Device::capture();
    let recorder = Recorder { device: plain.clone().autodiff(), batch, cuts: Default::default() };
    let mut marks = vec![];
    let mut releases = vec![];
    let mut roles = vec![];
    let mut failure = None;
    let captured = plain.capture_scope(|scope| {
        let run = || step(&recorder, &build, &forward, optimizer, options, [&mut marks, &mut releases], &mut roles);
        // What is still held must not be dropped before the end of the recording, or it would look unused.
        match catch_unwind(AssertUnwindSafe(run)) {
            Ok(Ok(held)) => std::mem::forget(held),
            Ok(Err(reason)) => failure = Some(reason),
            Err(panic) => failure = Some(message_of(panic)),
        }
        scope.complete([], [])
    });
    let graph = captured.map_err(|e| Error::Record {
        operation: "the end of the recording".into(),
        path: "the model".into(),
        reason: e.to_string(),
    });
    let graph = match (graph, &failure) {
        (Ok(graph), _) => graph,
        (Err(Error::Record { operation, path, .. }), Some(reason)) => {
            return Err(Error::Record { operation, path, reason: reason.clone() });
        }
        (Err(error), _) => return Err(error),
    };
    let Recorded { program, ids } = Recorded::of(&graph);
    let roles: HashMap<usize, Role> = roles.into_iter().filter_map(|(id, role)| Some((*ids.get(&id)?, role))).collect();
    let place = |id: &TensorId| {
        let tensor = ids.get(id)?;
        program.operations.iter().position(|op| op.outputs.contains(tensor))
    };
    if let Some(reason) = failure {
        let step = marks.first().and_then(place);
        let (operation, path) = program.last_place(&roles, step);
        return Err(Error::Record { operation, path, reason });
    }
    let phases: Vec<usize> = marks.iter().filter_map(place).collect();
    let cuts = recorder.cuts.borrow().iter().filter_map(place).collect();
    let releases = releases.iter().filter_map(place).collect();
    let Ok(phases) = phases.try_into() else {
        return Err(Error::Record {
            operation: "a marker".into(),
            path: "the recording".into(),
            reason: "it was not recorded".into(),
        });
    };
    Ok(Recording { program, phases, cuts, releases, roles })
}

fn message_of(panic: Box<dyn Any + Send>) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
    let text = text.unwrap_or_else(|| "it panicked".to_owned());
    if text.contains("has no concrete value") {
        return "a tensor is read back (into_data, into_scalar), and has no values while a step is recorded".into();
    }
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The step itself. What is returned is what is still held after it.
fn step<M: Module + 'static, O: Optimizer>(
    recorder: &Recorder,
    build: impl Fn(&Device) -> M,
    forward: impl Fn(&M, &Recorder) -> Tensor<1>,
    optimizer: &O,
    options: StepOptions,
    [marks, releases]: [&mut Vec<TensorId>; 2],
    roles: &mut Vec<(TensorId, Role)>,
) -> Result<Box<dyn Any>, String> {
    let model = build(recorder.device());
    let mut parameters = Parameters::default();
    model.visit(&mut parameters);
    let model = model.map(&mut Untrack);
    let mut parameters = Parameters::default();
    model.visit(&mut parameters);
    if parameters.learned.is_empty() {
        return Err("the model has no parameter that learns".into());
    }
    roles.append(&mut parameters.found);

    let mut update = Update {
        optimizer,
        options,
        gradients: GradientsParams::new(),
        states: HashMap::new(),
        held: vec![],
        held_bytes: 0,
        releases: vec![],
        device: recorder.device.clone().inner(),
        chunk_bytes: options.update_chunks.map(|chunks| chunks.bytes(&parameters.learned)),
        found: vec![],
        path: vec![],
    };
    let mut sums =
        Sums { options, gradients: GradientsParams::new(), sum: GradientsParams::new(), found: vec![], path: vec![] };
    // The first step makes the optimizer's state; its parameters are of no interest.
    model.visit(&mut FirstGradients(&mut update.gradients));
    drop(model.clone().map(&mut update));
    update.found.clear();
    update.release();
    update.releases.clear();
    if options.accumulate {
        model.visit(&mut FirstGradients(&mut sums.sum));
    }

    recorder.mark(marks);
    let loss = forward(&model, recorder);
    let dims = loss.dims();
    if dims != [1] {
        return Err(format!("the loss has {} elements, expected 1", dims[0]));
    }
    recorder.mark(marks);
    let Ok(loss) = loss.try_into_primitive::<Tracked>() else {
        return Err(NO_GRADIENT.into());
    };
    let gradients = Tracked::backward(loss);
    let mut take = Take { gradients, taken: GradientsParams::new() };
    model.visit(&mut take);
    if take.taken.is_empty() {
        return Err(NO_GRADIENT.into());
    }
    sums.gradients = take.taken;
    drop(take.gradients);
    model.visit(&mut sums);
    roles.append(&mut sums.found);
    recorder.mark(marks);
    let Sums { gradients, .. } = sums;
    if options.reads_norm {
        model.visit(&mut Norm(&gradients));
    }
    update.gradients = gradients;
    let kept = options.keep_parameters.then(|| model.clone());
    let model = model.map(&mut update);
    drop(kept);
    update.release();
    releases.append(&mut update.releases);
    roles.append(&mut update.found);
    recorder.mark(marks);
    Ok(Box::new((model, update.states)))
}
