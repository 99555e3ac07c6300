//! Parameters in a store, and the blocks that are left without them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::tensor::{DType, Shape, Tensor, TensorData};
use serde::{Deserialize, Serialize};

use super::bytes::{missing, read_into, zeros};
use super::creation::{Creation, InitialValues};
use super::layout::{Entry, Layout};
use super::store::{Blob, Content, Store};
use super::uses::Uses;
use super::values::{Fill, empty};
use crate::Error;

/// Parameters that live in a [`Store`], with their gradients and the optimizer's state.
///
/// The blocks that they were taken from keep ids and shapes of their parameters, but not the values: each value is a single NaN, so that a
/// block which runs outside of a [streamed](crate::Mode::Stream) segment gives NaN. A streamed segment brings the values of its blocks in for
/// each of its two passes and drops them afterwards. Gradients go to sums in the store. [`update`](Self::update) changes one parameter after
/// the other, and [`commit`](Self::commit) makes all changes current at once.
///
/// ```
/// use burn::nn::{Linear, LinearConfig};
/// use burn::optim::{AdamWConfig, ModuleOptimizer};
/// use burn::tensor::activation::gelu;
/// use burn::tensor::{Device, Distribution, Tensor};
/// use kiln_checkpointing::{Chain, HostStore, Plan, Streamed};
///
/// let device = Device::flex().autodiff();
/// let layers: Vec<Linear> = (0..8).map(|_| LinearConfig::new(16, 16).init(&device)).collect();
/// let (streamed, layers) = Streamed::create(HostStore::new(), layers)?;
/// let optimizer: ModuleOptimizer = AdamWConfig::new().init();
///
/// for step in 1..=3 {
///     let x = Tensor::<2>::random([4, 16], Distribution::Default, &device);
///     let chain = Chain::new(&layers).streamed(&streamed);
///     let y = chain.run(&Plan::stream(8, 1)?, x, |layer, x| gelu(layer.forward(x)))?;
///     let _ = y.mean().backward(); // the gradients go to the store
///     streamed.update(&layers, &optimizer, 1e-3, 1.0)?;
///     streamed.commit(&format!("step {step}"))?;
/// }
/// assert_eq!(streamed.note(), "step 3");
/// # Ok::<(), kiln_checkpointing::Error>(())
/// ```
#[derive(Clone)]
pub struct Streamed(Arc<Shared>);

/// Where a segment's parameters are.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    pub(crate) parameters: Streamed,
    /// The values that are read next, after those of the first pass and after those of the second.
    pub(crate) neighbours: [Vec<Blob>; 2],
}

impl Source {
    /// Tells the store the values that are read after the first pass (0) or the second (1).
    pub(crate) fn read_ahead(&self, pass: usize) {
        self.parameters.0.store.read_ahead(&self.neighbours[pass]);
    }
}

struct Shared {
    store: Arc<dyn Store>,
    layout: Layout,
    state: Mutex<State>,
}

/// The blobs of a parameter.
fn blobs(number: usize, entry: &Entry, content: Content) -> impl Iterator<Item = Blob> + use<> {
    (0..entry.parts()).map(move |part| Blob::new(number, content, part))
}

/// What has happened since the last commit, and what is in memory.
#[derive(Debug, Default)]
pub(super) struct State {
    /// Parameters whose gradients have a sum.
    pub(super) summed: BTreeSet<usize>,
    /// Blobs that the update has written.
    written: BTreeSet<Blob>,
    /// The micro-batches, by their first samples, that the sums of parameters were added to last.
    pub(super) added: BTreeMap<usize, usize>,
    /// What the sums of the operations that use parameters by rows are to be multiplied by, where rows are added in their order.
    pub(super) factors: BTreeMap<(usize, Content), f32>,
    note: String,
    /// Parameters whose state an optimizer of this process has read or written.
    read: BTreeSet<usize>,
    /// Parameters whose values are in memory as well.
    resident: BTreeSet<usize>,
    /// The numbers of the inputs that segments keep.
    inputs: BTreeSet<usize>,
    /// The operations that use parameters by rows, in the micro-batch that is under way.
    pub(super) uses: BTreeMap<usize, Uses>,
    /// The first error in a segment since the last step began.
    failure: Option<Error>,
}

impl State {
    fn forget_gradients(&mut self) {
        self.summed.clear();
        self.added.clear();
        self.factors.clear();
        self.uses.clear();
    }
}

/// The note of a store.
#[derive(Serialize, Deserialize)]
struct Note {
    parameters: Vec<Entry>,
    note: String,
}

impl Note {
    fn read(text: &str) -> Result<Self, Error> {
        let unread = |e| Error::StoreMismatch { reason: format!("its note is not that of streamed parameters: {e}") };
        serde_json::from_str(text).map_err(unread)
    }
}

impl fmt::Debug for Streamed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} parameters in a store", self.0.layout.entries.len())
    }
}

impl Streamed {
    /// Moves the parameters of `module` that require gradients into an empty store, one after the other. A parameter that burn has not
    /// initialised yet is initialised when its turn comes, so that the whole module never is in memory. Returns the module without their
    /// values.
    ///
    /// # Errors
    /// [`Error::StoreMismatch`] for a store that is not empty and for parameters that are neither f32 nor bf16, and [`Error::Store`].
    pub fn create<M: Module>(store: impl Store + 'static, module: M) -> Result<(Self, M), Error> {
        Self::create_with(store, module, &Creation::default())
    }

    /// Works as [`create`](Self::create), in the way that `how` says.
    ///
    /// # Errors
    /// Those of [`create`](Self::create).
    pub fn create_with<M: Module>(store: impl Store + 'static, module: M, how: &Creation) -> Result<(Self, M), Error> {
        if !how.replaces && store.note()?.is_some() {
            return Err(Error::StoreMismatch { reason: "it has parameters already, expected an empty one".into() });
        }
        let store = Arc::new(store);
        let (layout, module) = empty(module, Some(&*store), how, &[])?;
        let streamed = Self::new(store, layout, String::new());
        let entries = streamed.0.layout.entries.iter().enumerate();
        let blobs = entries.flat_map(|(number, entry)| blobs(number, entry, Content::Value));
        streamed.lock().written = blobs.collect();
        let ids = streamed.ids().into_iter();
        for (id, part) in ids.flat_map(|id| (0..streamed.parts(id).len()).map(move |part| (id, part))) {
            if streamed.state(id, part)?.is_some() {
                streamed.write_state(id, part, &[])?;
            }
        }
        streamed.commit("")?;
        Ok((streamed, module))
    }

    /// Goes on with the parameters of a store, which are those of its last commit. Those of `module` are dropped, and get the ids of the
    /// stored ones.
    ///
    /// # Errors
    /// [`Error::StoreMismatch`] for an empty store and for that of another model, and [`Error::Store`].
    pub fn open<M: Module>(store: impl Store + 'static, module: M) -> Result<(Self, M), Error> {
        Self::open_with(store, module, &InitialValues::default())
    }

    /// Works as [`open`](Self::open), with the values that the store was [created](Self::create_with) with: these parameters are not in memory
    /// before they are dropped.
    ///
    /// # Errors
    /// Those of [`open`](Self::open).
    pub fn open_with<M: Module>(
        store: impl Store + 'static,
        module: M,
        values: &InitialValues,
    ) -> Result<(Self, M), Error> {
        let Some(text) = store.note()? else {
            return Err(Error::StoreMismatch { reason: "it is empty, expected the parameters of the model".into() });
        };
        let note = Note::read(&text)?;
        let store = Arc::new(store);
        let how = Creation { values: values.clone(), ..Creation::default() };
        let (layout, module) = empty::<M>(module, None, &how, &note.parameters)?;
        match layout.difference(&note.parameters) {
            Some(reason) => Err(Error::StoreMismatch { reason }),
            None => Ok((Self::new(store, layout, note.note), module)),
        }
    }

    fn new(store: Arc<dyn Store>, layout: Layout, note: String) -> Self {
        let state = Mutex::new(State { note, ..State::default() });
        Self(Arc::new(Shared { store, layout, state }))
    }

    /// The note of the last commit of streamed parameters to `store`. `None` for an empty store.
    ///
    /// # Errors
    /// [`Error::Store`], and [`Error::StoreMismatch`] for a store of something else.
    pub fn note_in(store: &(impl Store + ?Sized)) -> Result<Option<String>, Error> {
        Ok(store.note()?.map(|text| Note::read(&text)).transpose()?.map(|note| note.note))
    }

    /// The note of the last commit.
    pub fn note(&self) -> String {
        self.lock().note.clone()
    }

    /// Makes the update current, all of it or nothing, with a note about it: what a run needs to go on. Drops the sums of gradients.
    ///
    /// # Errors
    /// [`Error::Store`]; nothing has changed then, and the call may be repeated.
    pub fn commit(&self, note: &str) -> Result<(), Error> {
        let parameters = self.0.layout.entries.clone();
        let text = serde_json::to_string(&Note { parameters, note: note.to_owned() });
        let text = text.map_err(|e| Error::Store { path: "the note".into(), reason: e.to_string() })?;
        let mut state = self.lock();
        let written: Vec<Blob> = state.written.iter().copied().collect();
        self.0.store.commit(&written, &text)?;
        state.note = note.to_owned();
        state.forget_gradients();
        state.written.clear();
        Ok(())
    }

    /// Drops the sums of gradients, and an update that was not committed: before a step is repeated that has failed in its backward pass.
    pub fn discard(&self) {
        let mut state = self.lock();
        state.forget_gradients();
        state.written.clear();
        state.failure = None;
    }

    /// The first error in a streamed segment since the last call of [`discard`](Self::discard), once: burn's backward pass can only panic.
    pub fn take_failure(&self) -> Option<Error> {
        self.lock().failure.take()
    }

    /// Notes the error of a segment.
    pub(crate) fn note_failure(&self, error: &Error) {
        self.lock().failure.get_or_insert(error.clone());
    }

    /// Begins an update: one that was not committed does not count.
    pub(super) fn begin_update(&self) {
        self.lock().written.clear();
    }

    /// `module` with the values of its parameters.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub fn filled<M: Module>(&self, module: M) -> Result<M, Error> {
        self.filled_with(module, None, |_| true)
    }

    /// `module` with the values of the parameters whose numbers `which` accepts, or with one part of them as the parameter.
    pub(super) fn filled_with<M: Module>(
        &self,
        module: M,
        part: Option<usize>,
        which: impl Fn(usize) -> bool,
    ) -> Result<M, Error> {
        let mut fill = Fill { layout: &self.0.layout, store: &*self.0.store, which, part, failure: None };
        let module = module.map(&mut fill);
        fill.failure.map_or(Ok(module), Err)
    }

    /// Brings in the values of the parameters of `module` whose paths `which` accepts, to stay: those that are used outside of streamed
    /// segments. Their gradients are burn's, and must be [added](Self::add_gradients) to the sums; their values after a commit are
    /// [brought in](Self::refreshed) again.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub fn with_resident<M: Module>(&self, module: M, which: impl Fn(&str) -> bool) -> Result<M, Error> {
        let entries = self.0.layout.entries.iter().enumerate();
        self.lock().resident = entries.filter(|(_, entry)| which(&entry.path)).map(|(number, _)| number).collect();
        self.refreshed(module)
    }

    /// `module` with the values that its [resident](Self::with_resident) parameters have since the last commit.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub fn refreshed<M: Module>(&self, module: M) -> Result<M, Error> {
        let resident = self.lock().resident.clone();
        self.filled_with(module, None, |number| resident.contains(&number))
    }

    /// The values of the parameters of `blocks` that are in the store alone.
    pub(crate) fn values_of(&self, blocks: &[impl Module]) -> Vec<Blob> {
        struct Values<'a>(&'a Streamed, Vec<Blob>);
        impl ModuleVisitor for Values<'_> {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                let layout = &self.0.0.layout;
                let number = layout.numbers.get(&param.id).copied().filter(|_| self.0.has(param.id));
                self.1.extend(
                    number.into_iter().flat_map(|number| blobs(number, &layout.entries[number], Content::Value)),
                );
            }
        }
        let mut values = Values(self, vec![]);
        blocks.iter().for_each(|block| block.visit(&mut values));
        values.1
    }

    /// Whether a parameter's value is in the store alone.
    pub(crate) fn has(&self, id: ParamId) -> bool {
        self.0.layout.numbers.get(&id).is_some_and(|number| !self.lock().resident.contains(number))
    }

    /// The numbers of the parameters whose gradients have a sum.
    pub(super) fn summed(&self) -> Vec<usize> {
        self.lock().summed.iter().copied().collect()
    }

    pub(super) fn is_summed(&self, number: usize) -> bool {
        self.lock().summed.contains(&number)
    }

    pub(super) fn note_sum(&self, number: usize) {
        self.lock().summed.insert(number);
    }

    /// Whether an optimizer of this process has read or written a parameter's state before.
    pub(super) fn has_read(&self, number: usize) -> bool {
        self.lock().read.contains(&number)
    }

    pub(super) fn note_read(&self, number: usize, read: bool) {
        let numbers = &mut self.lock().read;
        if read {
            numbers.insert(number)
        } else {
            numbers.remove(&number)
        };
    }

    pub(super) fn layout(&self) -> &Layout {
        &self.0.layout
    }

    pub(super) fn read(&self, blob: Blob) -> Result<Option<Vec<u8>>, Error> {
        let mut bytes = vec![];
        let is_there = self.0.store.read(blob, &mut |piece, rest| {
            bytes.reserve_exact(piece.len() + rest);
            bytes.extend_from_slice(piece);
        })?;
        Ok(is_there.then_some(bytes))
    }

    /// Reads a blob into `bytes`, which it must fill. Returns whether there is one.
    pub(super) fn read_into(&self, blob: Blob, bytes: &mut [u8]) -> Result<bool, Error> {
        read_into(&*self.0.store, blob, bytes)
    }

    /// The values of a blob that must be there.
    pub(super) fn data(&self, blob: Blob, shape: impl Into<Shape>, dtype: DType) -> Result<TensorData, Error> {
        let shape = shape.into();
        let mut bytes = zeros(shape.num_elements() * dtype.size(), dtype);
        match self.read_into(blob, &mut bytes)? {
            true => Ok(TensorData::from_bytes(bytes, shape, dtype)),
            false => Err(missing(blob)),
        }
    }

    /// Writes the next version of a blob, for the next commit.
    pub(super) fn write(&self, blob: Blob, bytes: &[u8]) -> Result<(), Error> {
        self.0.store.write(blob, bytes)?;
        self.lock().written.insert(blob);
        Ok(())
    }

    /// Writes a blob of the step that is under way.
    pub(super) fn put(&self, blob: Blob, bytes: &[u8]) -> Result<(), Error> {
        self.0.store.write(blob, bytes)
    }

    /// The first number that no input has.
    pub(super) fn place_of_input(&self) -> usize {
        let inputs = &mut self.lock().inputs;
        let number = (0..).find(|number| !inputs.contains(number)).unwrap_or_default();
        inputs.insert(number);
        number
    }

    pub(super) fn free_input(&self, number: usize) {
        self.lock().inputs.remove(&number);
    }

    /// The lock, also after a panic of another holder: the state is changed as a whole.
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
