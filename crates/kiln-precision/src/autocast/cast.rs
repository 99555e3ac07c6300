//! The cast of parameters when a layer reads them.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use burn::backend::Capture;
use burn::backend::capture::TensorId;
use burn::module::{Module, Param, Reparameterization, Reparameterizer};
use burn::tensor::{DType, Tensor};

thread_local! {
    static ISLANDS: Cell<usize> = const { Cell::new(0) };
    static LAST_USED: RefCell<Option<Arc<str>>> = const { RefCell::new(None) };
    /// The tensors of the program in recording that are parameters or their casts, with their paths. `None` while nothing is recorded.
    static RECORDED: RefCell<Option<HashMap<TensorId, Arc<str>>>> = const { RefCell::new(None) };
}

/// Runs `f` on `x` in f32 and returns its result in the dtype of `x`: for operations that lose too much precision in 16 bits
/// (sums, norms, exponentials) and for layers that mix dtypes (batch-norm, LSTM, rotary encodings).
///
/// Inside `f`, parameters under a [`Policy`](crate::Policy) are read in f32, as with torch's `autocast(enabled=False)`. Calls may
/// be nested.
///
/// ```
/// use burn::nn::LayerNormConfig;
/// use burn::tensor::{DType, Device, Tensor};
/// use kiln_precision::{Policy, Precision, in_f32};
///
/// let device = Device::flex();
/// let norm = Policy::new(Precision::BF16).autocast(LayerNormConfig::new(4).init(&device))?;
/// let x = Tensor::<2>::ones([2, 4], &device).cast(DType::BF16);
/// let y = in_f32(x, |x| norm.forward(x)); // computed in f32, returned in bf16
/// assert_eq!(y.dtype(), DType::BF16);
/// # Ok::<(), kiln_precision::Error>(())
/// ```
pub fn in_f32<const D: usize, const E: usize>(x: Tensor<D>, f: impl FnOnce(Tensor<D>) -> Tensor<E>) -> Tensor<E> {
    let dtype = x.dtype();
    uncast(|| f(x.cast(DType::F32))).cast(dtype)
}

/// Runs `f` with parameters under a [`Policy`](crate::Policy) read as they are stored, those that are stored in 16 bits
/// as f32. A model that is merged inside of `f`
/// (`model.materialize()`) keeps the precision of its stored parameters.
///
/// ```
/// use burn::module::Module;
/// use burn::nn::LinearConfig;
/// use burn::tensor::{DType, Device};
/// use kiln_precision::{Policy, Precision, uncast};
///
/// let plain = LinearConfig::new(4, 2).init(&Device::flex());
/// let model = Policy::new(Precision::BF16).autocast(plain.clone())?;
/// let merged = uncast(|| model.materialize());
/// assert_eq!(merged.weight.val().dtype(), DType::F32);
/// assert_eq!(merged.weight.val().into_data(), plain.weight.val().into_data());
/// # Ok::<(), kiln_precision::Error>(())
/// ```
pub fn uncast<R>(f: impl FnOnce() -> R) -> R {
    /// Decreases the count of nested calls when the call ends, even by a panic.
    struct Island;
    impl Drop for Island {
        fn drop(&mut self) {
            ISLANDS.set(ISLANDS.get() - 1);
        }
    }
    ISLANDS.set(ISLANDS.get() + 1);
    let _island = Island;
    f()
}

/// The reparameterization that [`Autocast`] attaches: it casts a parameter whenever a layer reads it. The stored parameter, its gradient
/// and its record stay f32, unless it was stored in 16 bits before.
#[derive(Module, Debug)]
pub struct CastTo {
    #[module(skip)]
    dtype: DType,
    #[module(skip)]
    path: Arc<str>,
}

impl CastTo {
    /// The dtype in which layers read the parameter.
    pub fn dtype(&self) -> DType {
        self.dtype
    }
}

impl Reparameterization for CastTo {
    const NAME: &'static str = kiln_operations::CAST;

    fn apply<const D: usize>(&self, base: Tensor<D>) -> Tensor<D> {
        LAST_USED.set(Some(self.path.clone()));
        let value = match (ISLANDS.get() > 0, base.dtype()) {
            (false, _) => cast(base, self.dtype),
            // A frozen parameter may be stored in 16 bits.
            (true, DType::F16 | DType::BF16) => cast(base, DType::F32),
            (true, _) => base,
        };
        RECORDED.with_borrow_mut(|recorded| {
            if let (Some(recorded), Ok(primitive)) = (recorded, value.clone().try_into_primitive::<Capture>()) {
                recorded.insert(primitive.id(), self.path.clone());
            }
        });
        value
    }
}

/// The tensor in `dtype`. On a GPU burn pads the rows of what it casts to 16 bytes, and those of a 3x3 convolution's weight have 6: in one
/// row they take no more than their bytes.
fn cast<const D: usize>(tensor: Tensor<D>, dtype: DType) -> Tensor<D> {
    #[cfg(feature = "cube")]
    if D > 2 && kiln_operations::cube::is_cube(&tensor.device()) {
        let shape = tensor.shape();
        return tensor.reshape([shape.num_elements()]).cast(dtype).reshape(shape);
    }
    kiln_operations::read_parameter(tensor, dtype)
}

/// Attaches [`CastTo`] to the parameters of one model. Made by [`Policy::reparameterizer`](crate::Policy::reparameterizer).
#[derive(Clone, Debug)]
pub struct Autocast {
    /// The dtype in which the parameter at each path is read. Buffers have no entry.
    pub(super) dtypes: BTreeMap<String, DType>,
}

impl Reparameterizer for Autocast {
    type Reparam = CastTo;

    fn reparameterize<const D: usize>(
        &mut self,
        path: &str,
        param: Param<Tensor<D>>,
    ) -> (Param<Tensor<D>>, Option<CastTo>) {
        let cast = self.dtypes.get(path).map(|dtype| CastTo { dtype: *dtype, path: path.into() });
        (param, cast)
    }
}

/// Runs `f` and returns the tensors of its recording that are parameters under a policy, with their paths.
pub(crate) fn recording<R>(f: impl FnOnce() -> R) -> (R, HashMap<TensorId, Arc<str>>) {
    RECORDED.set(Some(HashMap::new()));
    let result = f();
    (result, RECORDED.take().unwrap_or_default())
}

/// The path of the parameter under a policy that this thread read last.
pub(crate) fn last_used() -> Option<Arc<str>> {
    LAST_USED.with_borrow(Clone::clone)
}

pub(crate) fn forget_last_used() {
    LAST_USED.set(None);
    RECORDED.set(None);
}
