//! An optimizer with an f32 copy of parameters that are stored in 16 bits.

use burn::optim::{LearningRate, Optimizer, RecordState, StateSink, StateSource, join_path};
use burn::tensor::{DType, Device, Tensor};

/// Any burn optimizer, over an f32 master copy of parameters that are stored in 16 bits ([`Policy::store`]).
///
/// An update smaller than half the spacing of bf16 numbers (1/256 of the parameter) would be lost by rounding; the master copy
/// accumulates it. Parameters in f32 have no copy and are updated by the inner optimizer directly.
///
/// The other layout, [`Policy::autocast`], stores f32 and casts when a layer reads: 2 bytes per parameter more while a
/// step runs, with gradients in f32. `StochasticBf16` of kiln-optimizers needs no copy: it rounds at random, with the exact mean.
/// `docs/mixed-precision.md` compares their memory.
///
/// ```
/// use burn::module::Module;
/// use burn::nn::LinearConfig;
/// use burn::optim::{AdamWConfig, GradientsParams, ModuleOptimizer};
/// use burn::tensor::{DType, Device, Distribution, Tensor};
/// use kiln_precision::{MasterWeights, Policy, Precision};
///
/// let device = Device::flex().autodiff();
/// let mut model = Policy::new(Precision::BF16).store(LinearConfig::new(8, 4).init(&device))?;
/// let mut optimizer = ModuleOptimizer::from(MasterWeights::new(AdamWConfig::new().build()));
///
/// let x = Tensor::<2>::random([16, 8], Distribution::Default, &device).cast(DType::BF16);
/// let loss = model.forward(x).cast(DType::F32).square().mean();
/// let gradients = GradientsParams::from_grads(loss.backward(), &model);
/// model = optimizer.step(1e-3, model, gradients);
/// assert_eq!(model.weight.val().dtype(), DType::BF16);
/// # Ok::<(), kiln_precision::Error>(())
/// ```
///
/// [`Policy::store`]: crate::Policy::store
/// [`Policy::autocast`]: crate::Policy::autocast
#[derive(Clone, Debug)]
pub struct MasterWeights<O> {
    inner: O,
}

impl<O: Optimizer> MasterWeights<O> {
    /// `inner` over master weights.
    pub fn new(inner: O) -> Self {
        Self { inner }
    }
}

/// State of [`MasterWeights`] for one parameter. Its record keeps the master copy in f32 for every default dtype of the device.
/// burn reads the inner optimizer's state in that default dtype, so leave the default at f32: with another one, the first step
/// after a resumption would mix dtypes.
#[derive(Clone, Debug)]
pub struct MasterState<S, const D: usize> {
    /// The parameter in f32, if the model's own has another dtype.
    master: Option<Tensor<D>>,
    inner: Option<S>,
}

impl<O: Optimizer> Optimizer for MasterWeights<O> {
    type State<const D: usize> = MasterState<O::State<D>, D>;

    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<D>,
        grad: Tensor<D>,
        state: Option<Self::State<D>>,
    ) -> (Tensor<D>, Option<Self::State<D>>) {
        let dtype = tensor.dtype();
        let (master, inner) = state.map_or((None, None), |state| (state.master, state.inner));
        let master = master.unwrap_or_else(|| tensor.cast(DType::F32));
        let (master, inner) = self.inner.step(lr, master, grad.cast(DType::F32), inner);
        if dtype == DType::F32 {
            return (master, Some(MasterState { master: None, inner }));
        }
        (master.clone().cast(dtype), Some(MasterState { master: Some(master), inner }))
    }

    fn to_device<const D: usize>(state: Self::State<D>, device: &Device) -> Self::State<D> {
        MasterState {
            master: state.master.map(|master| master.to_device(device)),
            inner: state.inner.map(|inner| O::to_device(inner, device)),
        }
    }
}

impl<S: RecordState, const D: usize> RecordState for MasterState<S, D> {
    fn state_flatten(&self, prefix: &str, out: &mut StateSink) {
        if let Some(master) = &self.master {
            out.push_tensor(prefix, "master", master.to_data());
        }
        if let Some(inner) = &self.inner {
            inner.state_flatten(&join_path(prefix, "inner"), out);
        }
    }

    fn state_unflatten(prefix: &str, source: &mut StateSource, device: &Device) -> Option<Self> {
        let master = source.take_tensor(prefix, "master");
        let master = master.map(|data| Tensor::from_data(data, (device, DType::F32)));
        let path = join_path(prefix, "inner");
        let inner = if source.has_under(&path) { Some(S::state_unflatten(&path, source, device)?) } else { None };
        Some(Self { master, inner })
    }
}
