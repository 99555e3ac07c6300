//! Records one training step on burn's capture device.

use std::any::Any;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use burn::backend::capture::TensorId;
use burn::backend::{Autodiff, AutodiffBackend, Capture};
use burn::module::{Module, ParamGroup};
use burn::optim::{DynOptimizer, GradientsParams, Optimizer};
use burn::tensor::{Device, Tensor};
use kiln_operations::{RunningSums, SumUses, accumulate_into};

use crate::error::Error;

use super::capture::Captured;
use super::merge::merge;
use super::modules::last_place;
use super::options::StepOptions;
use super::recorder::Recorder;
use super::recorder::{Recording, Role};
use super::step_trace::StepTrace;
use super::update::Update;
use super::walk::{DropBegun, FirstGradients, Join, Norm, NoteSums, Parameters, Shared, Sums, Take, Untrack};

type Tracked = Autodiff<Capture>;

const NO_GRADIENT: &str = "the loss does not depend on a parameter that learns";

/// Records one training step on burn's capture device: nothing is computed, and no memory is taken for data.
///
/// `build` makes the model on the given device, under a precision policy if it is trained under one. `forward` computes the mean loss
/// over [`Recorder::batch`] samples. `optimizer` is one of burn's, built but not initialised, such as `AdamWConfig::new().build()`. The
/// recorded step is not the first one of a run: the optimizer already has its state.
///
/// A step that is recorded must not read values back (`into_data`, `into_scalar`), seed random numbers, or move tensors to another
/// device. A step that recomputes segments cannot be recorded: record the plain model with [`cuts`](Recorder::cut) between its blocks,
/// and apply a plan to the trace ([`StepTrace::with_plan`]).
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
/// [`Error::Batch`] for batch sizes that are zero or not increasing, [`Error::Record`] for a step that cannot be recorded or
/// panics, with the last operation and layer, and [`Error::Shape`] for a step whose operations depend on the batch size.
pub fn record_step<M: Module + 'static, O: Optimizer>(
    build: impl Fn(&Device) -> M,
    forward: impl Fn(&M, &Recorder) -> Tensor<1>,
    optimizer: &O,
    options: StepOptions,
) -> Result<StepTrace, Error> {
    let optimizers = |_: &M| Optimizers {
        groups: vec![(ParamGroup::all(), Arc::new(optimizer.clone()) as Arc<dyn DynOptimizer>)],
        scales_in_update: false,
    };
    record_step_with(build, forward, optimizers, options)
}

/// The optimizers of a step that is recorded.
pub struct Optimizers {
    /// Groups of parameters with their optimizers. A parameter in several groups belongs to the last one. The first group must have all
    /// parameters.
    pub groups: Vec<(ParamGroup, Arc<dyn DynOptimizer>)>,
    /// Whether the optimizers multiply the gradients themselves, so that [`StepOptions::scale_gradients`] records nothing.
    pub scales_in_update: bool,
}

/// Records one training step as [`record_step`] does, with several optimizers for groups of parameters. `optimizers` is called once for
/// each recording, with the model that is recorded.
///
/// # Errors
/// Those of [`record_step`].
pub fn record_step_with<M: Module + 'static>(
    build: impl Fn(&Device) -> M,
    forward: impl Fn(&M, &Recorder) -> Tensor<1>,
    optimizers: impl Fn(&M) -> Optimizers,
    options: StepOptions,
) -> Result<StepTrace, Error> {
    let [first, second] = options.batches;
    if first == 0 || first >= second {
        return Err(Error::Batch { batches: options.batches });
    }
    let once = |batch, options, begun| record_once(batch, &build, &forward, &optimizers, options, begun);
    let nothing = Begun::default();
    let begun = match options.accumulate {
        true => {
            let recording = once(first, StepOptions { accumulate: false, ..options }, &nothing)?;
            Begun { read_once: recording.read_once(), uses: recording.uses }
        }
        false => Begun::default(),
    };
    merge([once(first, options, &begun)?, once(second, options, &begun)?], options.batches)
}

/// What is known of the sums that a step with sums begins with, from a recording without them.
#[derive(Default)]
struct Begun {
    /// A backward pass adds the gradient of a parameter to its sum where it makes it, if that is the only use of the parameter.
    read_once: BTreeSet<String>,
    /// The uses that have sums of their own.
    uses: SumUses,
}

fn record_once<M: Module + 'static>(
    batch: usize,
    build: impl Fn(&Device) -> M,
    forward: impl Fn(&M, &Recorder) -> Tensor<1>,
    optimizers: impl Fn(&M) -> Optimizers,
    options: StepOptions,
    begun: &Begun,
) -> Result<Recording, Error> {
    let plain = Device::capture();
    let recorder = Recorder { device: plain.clone().autodiff(), batch, cuts: Default::default() };
    let mut marks = vec![];
    let mut releases = vec![];
    let (mut roles, mut found) = (vec![], Found::default());
    let (mut failure, mut held) = (None, None);
    let captured = plain.capture_scope(|scope| {
        let positions = [&mut marks, &mut releases];
        let noted = (&mut roles, &mut found);
        let run = || step(&recorder, &build, &forward, &optimizers, (options, begun), positions, noted);
        match catch_unwind(AssertUnwindSafe(run)) {
            Ok(Ok(values)) => held = Some(values),
            Ok(Err(reason)) => failure = Some(reason),
            Err(panic) => failure = Some(message_of(panic)),
        }
        scope.complete([], [])
    });
    // Tensors that are dropped before the end of the recording would look unused.
    drop(held);
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
    let captured = Captured::of(&graph);
    let mut of_tensor = vec![None; captured.tensors.len()];
    for (id, role) in roles {
        if let Some(tensor) = captured.tensor(&id) {
            of_tensor[tensor] = Some(role);
        }
    }
    let place = |id: &TensorId| captured.made_at(id);
    if let Some(reason) = failure {
        let step = marks.first().and_then(place);
        let (operation, path) = last_place(&captured.graph, &of_tensor, step);
        return Err(Error::Record { operation, path, reason });
    }
    // A size below zero has wrapped around if the code that subtracts is compiled without overflow checks.
    let wrapped = |output: &u32| {
        let shape = &captured.shapes[captured.tensors[*output as usize].shape as usize];
        shape.iter().any(|size| *size >= 1 << 48)
    };
    let operations = captured.graph.operations.iter();
    let at = operations.clone().position(|operation| captured.graph.outputs(*operation).iter().any(wrapped));
    if let Some(at) = at {
        let (_, path) = last_place(&captured.graph, &of_tensor, marks.first().and_then(place));
        let operation = captured.graph.kinds[captured.graph.operations[at].kind as usize].name.clone();
        let reason = "the size of a tensor is below zero (an overflow): its input is too small for the layer".into();
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
    let Captured { graph, tensors, shapes, .. } = captured;
    let Found { learned, uses, shared, apart } = found;
    Ok(Recording { graph, tensors, shapes, phases, cuts, releases, roles: of_tensor, learned, uses, shared, apart })
}

fn message_of(panic: Box<dyn Any + Send>) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
    let text = text.unwrap_or_else(|| "it panicked".to_owned());
    if text.contains("has no concrete value") {
        return "a tensor is read back (into_data, into_scalar), and has no values while a step is recorded".into();
    }
    if text.contains("on the wrong backend") || text.contains("tensors are not on the same device") {
        return "an input is on another device than the step: make it with `Pass::input`, or copy it to the recorder's device"
            .into();
    }
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// What is found out about the parameters of a step.
#[derive(Default)]
struct Found {
    /// Paths of those that learn.
    learned: Vec<String>,
    uses: SumUses,
    /// Paths of the parameters that several operations use.
    shared: BTreeSet<String>,
    /// Paths of the parameters whose gradients are not in [running sums](RunningSums).
    apart: BTreeSet<String>,
}

/// Runs the step. Returns the values that are still held after it.
fn step<M: Module + 'static>(
    recorder: &Recorder,
    build: impl Fn(&Device) -> M,
    forward: impl Fn(&M, &Recorder) -> Tensor<1>,
    optimizers: impl Fn(&M) -> Optimizers,
    (options, begun): (StepOptions, &Begun),
    [marks, releases]: [&mut Vec<TensorId>; 2],
    (roles, found): (&mut Vec<(TensorId, Role)>, &mut Found),
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
    found.learned = parameters.learned;

    let Optimizers { groups, scales_in_update } = optimizers(&model);
    let options = StepOptions { scale_gradients: options.scale_gradients && !scales_in_update, ..options };
    let mut update = Update {
        groups,
        options,
        gradients: GradientsParams::new(),
        states: HashMap::new(),
        chunk: None,
        held: vec![],
        releases: vec![],
        device: recorder.device.clone().inner(),
        found: vec![],
        path: vec![],
    };
    let mut sums =
        Sums { options, gradients: GradientsParams::new(), sum: GradientsParams::new(), found: vec![], path: vec![] };
    let in_f32 = options.gradients_in_f32;
    // The first step makes the optimizer's state; its parameters are of no interest.
    model.visit(&mut FirstGradients { gradients: &mut update.gradients, in_f32 });
    drop(update.of(model.clone()));
    update.found.clear();
    update.releases.clear();
    let mut ids = HashSet::new();
    let mut running = options.in_order.then(|| match options.in_parts {
        true => RunningSums::default().with_sequences_in_parts(),
        false => RunningSums::default(),
    });
    if options.accumulate {
        model.visit(&mut FirstGradients { gradients: &mut sums.sum, in_f32 });
        if let Some(running) = &mut running {
            *running = begun.uses.zeros(&model);
            model.visit(&mut DropBegun { running, sums: &mut sums.sum });
        }
        model.visit(&mut NoteSums { sums: &mut sums, in_place: &begun.read_once, ids: &mut ids });
    }

    let mut pass = || {
        recorder.mark(marks);
        let loss = forward(&model, recorder);
        let dims = loss.dims();
        if dims != [1] {
            return Err(format!("the loss has {} elements, expected 1", dims[0]));
        }
        recorder.mark(marks);
        let loss = accumulate_into(loss, &model, &mut sums.sum, |id| ids.contains(&id));
        let Ok(loss) = loss.try_into_primitive::<Tracked>() else {
            return Err(NO_GRADIENT.into());
        };
        Ok(Tracked::backward(loss))
    };
    let gradients = match &running {
        Some(running) => running.pass(&model, 0).during(pass)?,
        None => pass()?,
    };
    let mut take = Take { gradients, taken: GradientsParams::new(), path: vec![], apart: BTreeSet::new() };
    model.visit(&mut take);
    let mut apart = take.taken;
    drop(take.gradients);
    if let Some(running) = running {
        found.uses = running.uses(&model);
        let mut shared = Shared { running: &running, path: vec![], found: BTreeSet::new() };
        model.visit(&mut shared);
        found.shared = shared.found;
        let gradients = running.finish(&model).map_err(|error| error.to_string())?;
        model.visit(&mut Join { from: gradients, to: &mut apart });
    }
    found.apart = take.apart;
    if apart.is_empty() {
        return Err(NO_GRADIENT.into());
    }
    sums.gradients = apart;
    model.visit(&mut sums);
    roles.append(&mut sums.found);
    recorder.mark(marks);
    let Sums { gradients, .. } = sums;
    if options.reads_norm {
        model.visit(&mut Norm(&gradients));
    }
    update.gradients = gradients;
    let kept = options.keep_parameters.then(|| model.clone());
    let model = update.of(model);
    drop(kept);
    releases.append(&mut update.releases);
    roles.append(&mut update.found);
    recorder.mark(marks);
    Ok(Box::new((model, update.states)))
}
