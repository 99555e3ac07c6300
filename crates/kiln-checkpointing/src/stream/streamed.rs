//! Parameters in a store, and the blocks that are left without them.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::{Bytes, DType, Device, Tensor, TensorData};
use serde::{Deserialize, Serialize};

use super::layout::{Entry, Layout};
use super::prefetch::Prefetch;
use super::store::{Blob, Content, Store};
use crate::Error;

/// Parameters that live in a [`Store`], with their gradients and the optimizer's state.
///
/// The blocks that they were taken from keep ids, shapes and dtypes of their parameters, but not the values: a block's value is a single NaN,
/// so that a block which is run outside of a [streamed](crate::Mode::Stream) segment gives NaN. A streamed segment brings the values of its
/// blocks in for each of its two passes and drops them afterwards. Gradients go to sums in the store. [`update`](Self::update) changes one
/// parameter after the other, and [`commit`](Self::commit) makes all changes current at once.
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
    written: Vec<Blob>,
    note: String,
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
    /// Moves the parameters of `module` that learn into an empty store, one after the other. A parameter that burn has not initialised yet is
    /// initialised when its turn comes, so that the whole module never is in memory. Returns the module without their values.
    ///
    /// # Errors
    /// [`Error::OtherStore`] for a store that is not empty, and [`Error::Store`].
    pub fn create<M: Module>(store: impl Store + 'static, module: M) -> Result<(Self, M), Error> {
        if store.note()?.is_some() {
            return Err(Error::OtherStore { reason: "it has parameters already, expected an empty one".into() });
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
    /// [`Error::OtherStore`] for an empty store and for that of another model, and [`Error::Store`].
    pub fn open<M: Module>(store: impl Store + 'static, module: M) -> Result<(Self, M), Error> {
        let Some(text) = store.note()? else {
            return Err(Error::OtherStore { reason: "it is empty, expected the parameters of the model".into() });
        };
        let note: Note = serde_json::from_str(&text)
            .map_err(|e| Error::OtherStore { reason: format!("its note is not that of streamed parameters: {e}") })?;
        let store = Arc::new(store);
        let (layout, module) = empty::<M>(module, None, &note.parameters)?;
        match layout.difference(&note.parameters) {
            Some(reason) => Err(Error::OtherStore { reason }),
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
        self.0.store.commit(&state.written, &text)?;
        self.0.prefetch.forget();
        *state = State { note: note.to_owned(), ..State::default() };
        Ok(())
    }

    /// Drops sums of gradients, and an update that was not committed.
    pub fn discard(&self) {
        let mut state = self.lock();
        state.summed.clear();
        state.written.clear();
    }

    /// `module` with the values of its parameters.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub fn filled<M: Module>(&self, module: M) -> Result<M, Error> {
        let mut fill = Fill { streamed: self, only: None, failure: None };
        let module = module.map(&mut fill);
        fill.failure.map_or(Ok(module), Err)
    }

    /// `module` with the value of one parameter.
    pub(super) fn filled_with<M: Module>(&self, module: M, only: usize) -> Result<M, Error> {
        let mut fill = Fill { streamed: self, only: Some(only), failure: None };
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
            Some(number) if self.lock().summed.contains(number) => self.sum_of(*number, device),
            _ => Ok(None),
        }
    }

    pub(super) fn sum_of<const D: usize>(&self, number: usize, device: &Device) -> Result<Option<Tensor<D>>, Error> {
        let bytes = self.0.store.read(Blob { parameter: number, content: Content::Gradient })?;
        Ok(bytes.map(|bytes| tensor(bytes, &self.0.layout.entries[number].shape, DType::F32, device)))
    }

    /// Takes the gradient of a parameter. In f32 it is the new sum: the backward pass went on with the [old one](Self::sum). In another dtype
    /// it is added to the sum.
    pub(crate) fn add<const D: usize>(&self, id: ParamId, gradient: Tensor<D>) -> Result<(), Error> {
        let Some(number) = self.0.layout.numbers.get(&id).copied() else { return Ok(()) };
        let sum = match gradient.dtype() {
            DType::F32 => gradient,
            _ => {
                let gradient = gradient.cast(DType::F32);
                match self.sum::<D>(id, &gradient.device())? {
                    Some(sum) => sum + gradient,
                    None => gradient,
                }
            }
        };
        self.0.store.write(Blob { parameter: number, content: Content::Gradient }, &bytes_of(sum)?)?;
        self.lock().summed.insert(number);
        Ok(())
    }

    /// The numbers of the parameters whose gradients have a sum.
    pub(super) fn summed(&self) -> Vec<usize> {
        self.lock().summed.iter().copied().collect()
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
        let mut state = self.lock();
        if !state.written.contains(&blob) {
            state.written.push(blob);
        }
        Ok(())
    }

    /// The lock, also after a panic of another holder: the state is changed as a whole.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes the values out of the parameters that learn, and writes them to `store`. The first parameters get the ids of `known` ones.
fn empty<M: Module>(module: M, store: Option<&dyn Store>, known: &[Entry]) -> Result<(Layout, M), Error> {
    struct Empty<'a> {
        store: Option<&'a dyn Store>,
        known: &'a [Entry],
        /// The new id of each parameter.
        ids: HashMap<ParamId, ParamId>,
        layout: Layout,
        path: Vec<String>,
        failure: Option<Error>,
    }
    impl ModuleMapper for Empty<'_> {
        fn enter_module(&mut self, name: &str, _: &str) {
            self.path.push(name.to_owned());
        }

        fn exit_module(&mut self, _: &str, _: &str) {
            self.path.pop();
        }

        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            if !param.is_require_grad() || self.failure.is_some() {
                return param;
            }
            let (old, tensor, mapper) = param.consume();
            let id = match self.ids.get(&old) {
                Some(id) => *id,
                None => {
                    let known = self.known.get(self.layout.entries.len());
                    let id = known.map_or(old, |known| known.id.into());
                    self.ids.insert(old, id);
                    let parameter = self.layout.add(Entry::of(id, &self.path, &tensor));
                    let blob = Blob { parameter, content: Content::Value };
                    let bytes = self.store.map(|store| (store, bytes_of(tensor.clone().inner())));
                    let written = bytes.map(|(store, bytes)| store.write(blob, &bytes?));
                    self.failure = written.and_then(Result::err);
                    id
                }
            };
            let hollow = Tensor::<D>::full([1; D], f32::NAN, (&tensor.device().inner(), tensor.dtype()));
            Param::from_mapped_value(id, like(hollow.expand::<D, _>(tensor.shape()), &tensor), mapper)
        }
    }
    let (layout, ids) = (Layout::default(), HashMap::new());
    let mut empty = Empty { store, known, ids, layout, path: vec![], failure: None };
    let module = module.map(&mut empty);
    match empty.failure {
        Some(error) => Err(error),
        None => Ok((empty.layout, module)),
    }
}

/// Gives parameters their values.
struct Fill<'a> {
    streamed: &'a Streamed,
    only: Option<usize>,
    failure: Option<Error>,
}

impl ModuleMapper for Fill<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let shared = &self.streamed.0;
        let Some(number) = shared.layout.numbers.get(&param.id).copied() else { return param };
        if self.failure.is_some() || self.only.is_some_and(|only| only != number) {
            return param;
        }
        match shared.prefetch.take(Blob { parameter: number, content: Content::Value }) {
            Ok(Some(bytes)) => {
                let Entry { shape, dtype, .. } = &shared.layout.entries[number];
                param.map(|hollow| like(tensor(bytes, shape, *dtype, &hollow.device().inner()), &hollow))
            }
            Ok(None) => {
                let path = shared.layout.entries[number].path.clone();
                self.failure = Some(Error::Store { path, reason: "its value is missing".into() });
                param
            }
            Err(error) => {
                self.failure = Some(error);
                param
            }
        }
    }
}

/// A tensor without a graph as a parameter like another: on its device, and a leaf that learns if the other one does.
fn like<const D: usize>(tensor: Tensor<D>, other: &Tensor<D>) -> Tensor<D> {
    let Some(strategy) = other.gradient_checkpointing_strategy() else { return tensor };
    let tensor = tensor.autodiff().with_gradient_checkpointing_strategy(strategy);
    tensor.set_require_grad(other.is_require_grad())
}

pub(super) fn tensor<const D: usize>(bytes: Vec<u8>, shape: &[usize], dtype: DType, device: &Device) -> Tensor<D> {
    Tensor::from_data(TensorData::from_bytes_vec(bytes, shape, dtype), (device, dtype))
}

/// The values of a tensor without a graph.
pub(super) fn bytes_of<const D: usize>(tensor: Tensor<D>) -> Result<Bytes, Error> {
    let data = tensor.try_into_data().map_err(|e| Error::Store { path: "a tensor".into(), reason: e.to_string() })?;
    Ok(data.into_bytes())
}
