//! Parameters in a store, and the blocks that are left without them.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::tensor::{Device, Tensor};
use serde::{Deserialize, Serialize};

use super::bytes::{bytes_of, missing, tensor};
use super::layout::{Entry, Layout};
use super::prefetch::Prefetch;
use super::store::{Blob, Content, Store};
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
    /// The values that are read next, after those of the first pass and after those of the second. They are read ahead.
    pub(crate) neighbours: [Vec<Blob>; 2],
}

impl Source {
    /// `module` with the values of its parameters, for its first pass (0) or its second (1).
    pub(crate) fn filled<M: Module>(&self, module: M, pass: usize) -> Result<M, Error> {
        let module = self.parameters.filled(module)?;
        self.parameters.0.prefetch.begin(self.neighbours[pass].clone());
        Ok(module)
    }
}

struct Shared {
    store: Arc<dyn Store>,
    layout: Layout,
    prefetch: Prefetch,
    state: Mutex<State>,
}

/// What has happened since the last commit.
#[derive(Debug, Default)]
struct State {
    /// Parameters whose gradients have a sum.
    summed: BTreeSet<usize>,
    /// Blobs that the update has written.
    written: BTreeSet<Blob>,
    note: String,
    /// Parameters whose state an optimizer of this process has read or written.
    read: BTreeSet<usize>,
}

/// The note of a store.
#[derive(Serialize, Deserialize)]
struct Note {
    parameters: Vec<Entry>,
    note: String,
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
    /// [`Error::StoreMismatch`] for a store that is not empty and for parameters that are not f32, and [`Error::Store`].
    pub fn create<M: Module>(store: impl Store + 'static, module: M) -> Result<(Self, M), Error> {
        if store.note()?.is_some() {
            return Err(Error::StoreMismatch { reason: "it has parameters already, expected an empty one".into() });
        }
        let store = Arc::new(store);
        let (layout, module) = empty(module, Some(&*store), &[])?;
        let streamed = Self::new(store, layout, String::new());
        let numbers = 0..streamed.0.layout.entries.len();
        streamed.lock().written = numbers.map(|parameter| Blob { parameter, content: Content::Value }).collect();
        streamed.commit("")?;
        Ok((streamed, module))
    }

    /// Goes on with the parameters of a store, which are those of its last commit. Those of `module` are dropped, and get the ids of the
    /// stored ones.
    ///
    /// # Errors
    /// [`Error::StoreMismatch`] for an empty store and for that of another model, and [`Error::Store`].
    pub fn open<M: Module>(store: impl Store + 'static, module: M) -> Result<(Self, M), Error> {
        let Some(text) = store.note()? else {
            return Err(Error::StoreMismatch { reason: "it is empty, expected the parameters of the model".into() });
        };
        let note: Note = serde_json::from_str(&text).map_err(|e| Error::StoreMismatch {
            reason: format!("its note is not that of streamed parameters: {e}"),
        })?;
        let store = Arc::new(store);
        let (layout, module) = empty::<M>(module, None, &note.parameters)?;
        match layout.difference(&note.parameters) {
            Some(reason) => Err(Error::StoreMismatch { reason }),
            None => Ok((Self::new(store, layout, note.note), module)),
        }
    }

    fn new(store: Arc<dyn Store>, layout: Layout, note: String) -> Self {
        let state = Mutex::new(State { note, ..State::default() });
        Self(Arc::new(Shared { prefetch: Prefetch::new(store.clone()), store, layout, state }))
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
        self.0.prefetch.forget();
        let read = std::mem::take(&mut state.read);
        *state = State { note: note.to_owned(), read, ..State::default() };
        Ok(())
    }

    /// Drops the sums of gradients, and an update that was not committed: before a step is repeated that has failed in its backward pass.
    pub fn discard(&self) {
        let mut state = self.lock();
        state.summed.clear();
        state.written.clear();
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
        self.filled_with(module, None)
    }

    /// `module` with the values of all parameters, or of one.
    pub(super) fn filled_with<M: Module>(&self, module: M, only: Option<usize>) -> Result<M, Error> {
        let mut fill = Fill { layout: &self.0.layout, prefetch: &self.0.prefetch, only, failure: None };
        let module = module.map(&mut fill);
        fill.failure.map_or(Ok(module), Err)
    }

    /// The values of the parameters of `blocks`.
    pub(crate) fn values_of(&self, blocks: &[impl Module]) -> Vec<Blob> {
        struct Values<'a>(&'a Layout, Vec<Blob>);
        impl ModuleVisitor for Values<'_> {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                let number = self.0.numbers.get(&param.id);
                self.1.extend(number.map(|number| Blob { parameter: *number, content: Content::Value }));
            }
        }
        let mut values = Values(&self.0.layout, vec![]);
        blocks.iter().for_each(|block| block.visit(&mut values));
        values.1
    }

    /// Whether a parameter lives in the store.
    pub(crate) fn has(&self, id: ParamId) -> bool {
        self.0.layout.numbers.contains_key(&id)
    }

    /// The sum of a parameter's gradients, in f32.
    pub(crate) fn sum<const D: usize>(&self, id: ParamId, device: &Device) -> Result<Option<Tensor<D>>, Error> {
        match self.0.layout.numbers.get(&id) {
            Some(number) if self.lock().summed.contains(number) => self.sum_of(*number, device).map(Some),
            _ => Ok(None),
        }
    }

    /// The sum of a parameter's gradients, which exists.
    pub(super) fn sum_of<const D: usize>(&self, number: usize, device: &Device) -> Result<Tensor<D>, Error> {
        let blob = Blob { parameter: number, content: Content::Gradient };
        let bytes = self.0.store.read(blob)?.ok_or_else(|| missing(blob))?;
        tensor(blob, bytes, &self.0.layout.entries[number].shape, device)
    }

    /// Adds a gradient to the sum of a parameter's gradients.
    pub(crate) fn add_to_sum<const D: usize>(&self, id: ParamId, gradient: Tensor<D>) -> Result<(), Error> {
        let sum = match self.sum::<D>(id, &gradient.device())? {
            Some(sum) => sum + gradient,
            None => gradient,
        };
        self.put_sum(id, sum)
    }

    /// Puts the sum of a parameter's gradients, in f32, in the place of the one before.
    pub(crate) fn put_sum<const D: usize>(&self, id: ParamId, sum: Tensor<D>) -> Result<(), Error> {
        let Some(number) = self.0.layout.numbers.get(&id).copied() else { return Ok(()) };
        self.0.store.write(Blob { parameter: number, content: Content::Gradient }, &bytes_of(sum)?)?;
        self.lock().summed.insert(number);
        Ok(())
    }

    /// The numbers of the parameters whose gradients have a sum.
    pub(super) fn summed(&self) -> Vec<usize> {
        self.lock().summed.iter().copied().collect()
    }

    /// Whether an optimizer of this process has read or written a parameter's state before.
    pub(super) fn has_read(&self, number: usize) -> bool {
        self.lock().read.contains(&number)
    }

    pub(super) fn note_read(&self, number: usize) {
        self.lock().read.insert(number);
    }

    pub(super) fn layout(&self) -> &Layout {
        &self.0.layout
    }

    pub(super) fn read(&self, blob: Blob) -> Result<Option<Vec<u8>>, Error> {
        self.0.store.read(blob)
    }

    /// Writes the next version of a blob, for the next commit.
    pub(super) fn write(&self, blob: Blob, bytes: &[u8]) -> Result<(), Error> {
        self.0.store.write(blob, bytes)?;
        self.lock().written.insert(blob);
        Ok(())
    }

    /// The lock, also after a panic of another holder: the state is changed as a whole.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
