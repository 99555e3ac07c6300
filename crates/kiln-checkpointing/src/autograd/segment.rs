//! Records a segment: the first pass, and the closure that the backward pass runs.

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, DispatchKindConversion, DispatchTensor, GradientCheckpointingStrategy};
use burn::module::Module;
use burn::tensor::{Device, Tensor};

use super::forward::{Attach, Outputs, Sources, Untracked};
use super::graph::hub;
use super::offload::{Place, Saved};
use super::replay::{Leaves, Push, Restrategize, Roots, backward, stand_for};
use super::seeds::{draw, seeded};
use super::tensors::Tensors;
use crate::Error;
use crate::stream::Source;

/// A segment's settings and devices.
pub(crate) struct Segment {
    pub(crate) name: String,
    /// The devices of all floats, at least one.
    pub(crate) devices: Vec<Device>,
    /// burn's own checkpointing strategy within the segment.
    pub(crate) strategy: GradientCheckpointingStrategy,
    pub(crate) deterministic: bool,
    pub(crate) offload: bool,
    /// The store of the module's parameters, if they are in one.
    pub(crate) source: Option<Source>,
}

impl Segment {
    /// Runs `f` with the random numbers of a segment's first pass, without recording a segment.
    pub(crate) fn plain<R>(&self, f: impl FnOnce() -> R) -> R {
        let seed = self.draw();
        self.seeded(seed, 0, f)
    }

    /// `module` with the values of parameters that are in a store.
    fn filled<M: Module>(&self, module: M) -> Result<M, Error> {
        match &self.source {
            Some(Source { parameters, .. }) => parameters.filled(module).inspect_err(|error| self.note_failure(error)),
            None => Ok(module),
        }
    }

    /// A task or burn's backward pass may hide an error: the store's owner learns it from the store.
    fn note_failure(&self, error: &Error) {
        self.source.iter().for_each(|source| source.parameters.note_failure(error));
    }

    /// `module` with the values of parameters that are in a store, for its first pass.
    pub(crate) fn first<M: Module>(&self, module: M) -> Result<M, Error> {
        let module = self.filled(module)?;
        self.read_ahead(0);
        Ok(module)
    }

    fn read_ahead(&self, pass: usize) {
        self.source.iter().for_each(|source| source.read_ahead(pass));
    }

    pub(crate) fn device(&self) -> &Device {
        &self.devices[0]
    }

    fn draw(&self) -> u64 {
        if self.deterministic { 0 } else { draw(self.device()) }
    }

    fn seeded<R>(&self, seed: u64, after: u64, f: impl FnOnce() -> R) -> R {
        if self.deterministic { f() } else { seeded(&self.devices, seed, after, f) }
    }
}

/// Runs the first pass and adds an operation to the graph whose backward pass runs it again.
pub(crate) fn record<B, C, M, I, O, F>(segment: Segment, module: &M, inputs: I, f: F) -> Result<O, Error>
where
    B: Backend,
    C: CheckpointStrategy,
    M: Module + 'static,
    I: Tensors,
    O: Tensors,
    F: Fn(&M, I) -> O + Send + 'static,
    DispatchTensor: DispatchKindConversion<Autodiff<B, C>> + DispatchKindConversion<B>,
{
    let parameters = Sources::<B, C>::of_module(module);
    let tracked = Sources::<B, C>::of_inputs(inputs.clone());
    if let Some(device) = parameters.elsewhere.or(tracked.elsewhere) {
        return Err(Error::Backend { segment: segment.name, device });
    }

    // The copy shares storage with the parameters and refers to no graph. Its running statistics are its own, from before the first pass:
    // a layer may compute with them, as fake quantisation does with the range of its input.
    let snapshot = module.valid();
    let seed = segment.draw();
    let first = inputs.clone().map(&mut Untracked);
    let place = match &segment.source {
        Some(source) => Place::Store(&source.parameters),
        // On a device whose memory is the host's, they are there.
        None if segment.offload && segment.device().clone().inner().memory_pool_usage().is_some() => Place::Host,
        None => Place::Device,
    };
    // Inputs that are elsewhere leave memory before the first pass, which may drop its own.
    let saved = Saved::new(inputs, place, &segment.name).inspect_err(|error| segment.note_failure(error))?;
    let outputs = {
        let module = segment.first(module.clone())?.no_grad();
        segment.seeded(seed, 0, || f(&module, first))
    };
    let mut seen = Outputs::default();
    let outputs = outputs.map(&mut seen);
    if seen.tracked {
        return Err(Error::Captures { segment: segment.name });
    }

    sweep(segment.device());

    let (of_module, of_inputs, expected) = (parameters.all, tracked.all, seen.described);
    let (name, device, count) = (segment.name.clone(), segment.device().clone().inner(), expected.len());
    let stored = segment.source.as_ref().map(|source| source.parameters.clone());
    let replay = move |given: Vec<Option<FloatTensor<B>>>, outer: &mut Gradients| -> Result<(), Error> {
        let module = segment.filled(snapshot.train())?.map(&mut Restrategize(segment.strategy));
        let source = segment.source.as_ref().map(|source| &source.parameters);
        stand_for::<B, C>(&module, &of_module, source);
        let inputs = saved.restore(segment.device())?;
        let mut leaves = Leaves::<B, C>::of(of_inputs);
        let inputs = inputs.map(&mut leaves);
        let outputs = segment.seeded(seed, 1, || f(&module, inputs));

        let mut roots = Roots::<B, C>::given(given);
        let _ = outputs.map(&mut roots);
        compare(&segment.name, &roots.described, &expected)?;
        let mut inner = backward::<B, C>(roots, &module, source)?;
        leaves.register(inner.as_mut(), outer);
        let mut push = Push::<B, C>::new(inner, of_module, source.cloned());
        module.visit(&mut push);
        segment.read_ahead(1);
        drop(module);
        push.register(outer)
    };
    // burn's backward pass returns no error: the store's owner learns it here.
    let replay = move |given: Vec<Option<FloatTensor<B>>>, outer: &mut Gradients| {
        replay(given, outer).inspect_err(|error| stored.iter().for_each(|stored| stored.note_failure(error)))
    };
    let guards = tracked.guards.into_iter().chain(parameters.guards).collect();
    let Ok(token) = Tensor::<1>::zeros([1], &device).try_into_primitive::<B>() else {
        return Err(Error::Backend { segment: name, device: format!("{device:?}") });
    };
    let Some(hub) = hub::<B, C>(guards, count, token, Box::new(replay)) else { return Ok(outputs) };
    let mut attach = Attach::<B, C>::new(hub);
    let outputs = outputs.map(&mut attach);
    match attach.elsewhere {
        Some(device) => Err(Error::Backend { segment: name, device }),
        None => Ok(outputs),
    }
}

/// Makes burn drop the operations of the first pass. burn records every operation on an autodiff device, tracked or not, and
/// drops unused ones only at the end of a backward pass; this is the smallest backward pass. Without it a step would hold
/// about 2 KiB for every operation of every segment, and each replay's backward pass would walk over all of them. The cost of
/// this call grows with the number of live operations in the graph.
fn sweep(device: &Device) {
    drop(Tensor::<1>::zeros([1], &device.clone().inner()).autodiff().require_grad().backward());
}

/// Compares number, shapes, dtypes and devices of the outputs of both passes; values are not read.
fn compare(segment: &str, found: &[String], expected: &[String]) -> Result<(), Error> {
    if found.len() != expected.len() {
        let (found, expected) = (found.len(), expected.len());
        return Err(Error::ReplayCount { segment: segment.to_owned(), found, expected });
    }
    match found.iter().zip(expected).position(|(found, expected)| found != expected) {
        None => Ok(()),
        Some(index) => Err(Error::Replay {
            segment: segment.to_owned(),
            index,
            found: found[index].clone(),
            expected: expected[index].clone(),
        }),
    }
}
