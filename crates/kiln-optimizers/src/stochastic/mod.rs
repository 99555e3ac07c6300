//! Any optimizer on parameters in bf16, which are rounded stochastically.

#[cfg_attr(not(feature = "flex"), allow(dead_code, reason = "rounding itself is a kernel of the CPU device"))]
mod bits;
mod composed;
#[cfg(feature = "flex")]
mod flex;
mod noise;
mod round;

use burn::optim::{LearningRate, Optimizer, RecordState, StateSink, StateSource, join_path};
use burn::tensor::{DType, Device, Tensor};

use crate::chunks::{Chunks, by_chunks, positive};
use crate::elementwise::Elementwise;
use crate::error::Error;
use crate::parts::Parts;
use crate::place::Place;
use kiln_operations::{UpdatedPart, updated_part};
use noise::{Key, mixed};
use round::{round, widened};

/// Any burn optimizer on parameters in bf16 without a master copy: the update is computed in f32, and the result is rounded to bf16
/// stochastically (Gupta et al. 2015; for bf16: Zamirai et al. 2020, "Revisiting BFloat16 Training"; torchao's `bf16_stochastic_round`).
///
/// bf16 has 8 bits: numbers between 1 and 2 are 1/128 apart. Rounding to the nearest number loses an update of less than half that
/// distance, in every step anew. Stochastic rounding rounds up with the probability that makes the mean the exact result:
/// `E[round(x)] = x`. Updates of any size then survive on average over the steps.
///
/// # When it works
/// - The mean is exact for numbers from 1.2e-38, the smallest normal one, to 3.39e38, the largest of bf16, and for 0. All others are
///   rounded to the nearest number: smaller ones; larger ones, which may become infinite; infinities and NaN, which stay what they are.
/// - Each step adds noise to each parameter, with a standard deviation of at most half the distance of bf16's numbers: 0.4 % of the
///   parameter. Where even that matters, keep parameters in f32. A parameter whose update is 0 stays as it is: numbers of bf16 are not rounded.
/// - The state of the inner optimizer is in f32. Gradients are cast to f32.
/// - Parameters in other dtypes are updated by the inner optimizer alone.
///
/// # The same bits
/// The noise depends on (seed, salt, step, element). The salt is made from the parameter's first values when its state is made. It is
/// part of the state's record, as is the step: a run that is resumed has the same bits as one without interruption. Chunks do not change
/// the bits of an elementwise optimizer, and neither do [parts](kiln_operations::UpdatedPart) that are updated by themselves. All devices round alike, except for numbers below 2^-126, which some devices replace by 0.
///
/// ```
/// use burn::module::{Module, ModuleMapper, Param};
/// use burn::nn::LinearConfig;
/// use burn::optim::{AdamWConfig, GradientsParams, ModuleOptimizer};
/// use burn::tensor::{DType, Device, Distribution, Tensor};
/// use kiln_optimizers::StochasticBf16;
///
/// struct ToBf16;
/// impl ModuleMapper for ToBf16 {
///     fn map_float<const D: usize>(&mut self, parameter: Param<Tensor<D>>) -> Param<Tensor<D>> {
///         parameter.map(|values| values.cast(DType::BF16).detach().require_grad())
///     }
/// }
///
/// let device = Device::flex().autodiff();
/// let mut model = LinearConfig::new(8, 4).init(&device).map(&mut ToBf16);
/// let mut optimizer = ModuleOptimizer::from(StochasticBf16::new(AdamWConfig::new().build(), 1));
///
/// let x = Tensor::<2>::random([16, 8], Distribution::Default, &device).cast(DType::BF16);
/// let loss = model.forward(x).cast(DType::F32).square().mean();
/// let gradients = GradientsParams::from_grads(loss.backward(), &model);
/// model = optimizer.step(1e-3, model, gradients);
/// assert_eq!(model.weight.val().dtype(), DType::BF16);
/// ```
#[derive(Clone, Debug)]
pub struct StochasticBf16<O> {
    optimizer: O,
    seed: u64,
    /// Elements of a chunk.
    elements: usize,
}

impl<O: Optimizer> StochasticBf16<O> {
    /// `optimizer`, with noise of `seed`. A step needs 12 bytes for each element of the parameter that it updates, besides what
    /// `optimizer` needs: parameter, gradient and result in f32.
    pub fn new(optimizer: O, seed: u64) -> Self {
        Self { optimizer, seed, elements: usize::MAX }
    }

    /// [`new`](Self::new) for an update in chunks of a parameter, of at least `elements` and less than twice as many elements. The
    /// temporary tensors of a step are then those of one chunk.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] when `elements` is 0.
    pub fn by_chunks(optimizer: O, seed: u64, elements: usize) -> Result<Self, Error>
    where
        O: Elementwise,
    {
        Ok(Self { optimizer, seed, elements: positive(elements)? })
    }
}

impl<O: Optimizer> Optimizer for StochasticBf16<O> {
    type State<const D: usize> = StochasticState<O::State<D>>;

    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<D>,
        grad: Tensor<D>,
        state: Option<Self::State<D>>,
    ) -> (Tensor<D>, Option<Self::State<D>>) {
        let is_rounded = tensor.dtype() == DType::BF16;
        let (dims, device) = (tensor.dims(), tensor.device());
        let elements = if is_rounded { self.elements } else { usize::MAX };
        let part = updated_part();
        let chunks = Chunks::of(tensor.shape().num_elements(), elements);
        let state = state.unwrap_or_else(|| StochasticState {
            step: 0,
            salt: if is_rounded { salt(&tensor, part.as_ref()) } else { 0 },
            inner: None,
        });
        let StochasticState { step, salt, inner } = state;
        let (chunks, parts) = match inner {
            Some(inner) => inner.divide(chunks, &dims, &device),
            None => (chunks, vec![]),
        };
        let key = Key::new(self.seed, salt, step);
        let before = part.map_or(0, |part| part.first_element);
        let mut parts = parts.into_iter();
        let mut next = Vec::with_capacity(chunks.count());
        let tensor = by_chunks(chunks, tensor, grad, |first, tensor, grad| {
            if !is_rounded {
                let (tensor, state) = self.optimizer.step(lr, tensor, grad, parts.next());
                next.extend(state);
                return tensor;
            }
            let (tensor, grad) = (widened(tensor), widened(grad));
            let (tensor, state) = self.optimizer.step(lr, tensor, grad, parts.next());
            next.extend(state);
            round(tensor, before + first, key)
        });
        let inner = Parts::of(chunks, &dims, next);
        (tensor, Some(StochasticState { step: step + 1, salt, inner }))
    }

    fn to_device<const D: usize>(state: Self::State<D>, device: &Device) -> Self::State<D> {
        let inner = state.inner.map(|inner| inner.map(|part| O::to_device(part, device)));
        StochasticState { inner, ..state }
    }
}

/// A number made of a parameter's shape and first values, also for a part of it.
fn salt<const D: usize>(parameter: &Tensor<D>, part: Option<&UpdatedPart>) -> u64 {
    let of_shape = |shape: &[usize]| shape.iter().fold(0, |salt, size| mixed(salt ^ *size as u64));
    let of_bytes = |shape, bytes: &[u8]| bytes.iter().fold(shape, |salt, byte| mixed(salt ^ u64::from(*byte)));
    if let Some(UpdatedPart { shape, beginning: Some(beginning), .. }) = part {
        return of_bytes(of_shape(shape), beginning);
    }
    let shape = of_shape(&parameter.dims());
    let count = parameter.shape().num_elements().min(64);
    if count == 0 || Place::of(&parameter.device()) == Place::Recording {
        return shape;
    }
    let first: Tensor<1> = parameter.clone().reshape([-1]).slice(0..count);
    match first.try_into_data() {
        Ok(first) => of_bytes(shape, first.as_bytes()),
        Err(error) => panic!("a parameter could not be read: {error}"),
    }
}

/// State of [`StochasticBf16`](super::StochasticBf16) for one parameter: the inner optimizer's state, and the numbers that determine the
/// noise.
#[derive(Clone, Debug)]
pub struct StochasticState<S> {
    /// Number of steps so far.
    step: u64,
    /// Makes this parameter's noise different from the noise of others.
    salt: u64,
    inner: Option<Parts<S>>,
}

impl<S: RecordState> RecordState for StochasticState<S> {
    fn state_flatten(&self, prefix: &str, out: &mut StateSink) {
        out.push_scalar(prefix, "step", self.step.into());
        out.push_scalar(prefix, "salt", self.salt.into());
        if let Some(inner) = &self.inner {
            inner.state_flatten(&join_path(prefix, "inner"), out);
        }
    }

    fn state_unflatten(prefix: &str, source: &mut StateSource, device: &Device) -> Option<Self> {
        let mut number = |leaf| u64::try_from(source.take_scalar(prefix, leaf)?).ok();
        let (step, salt) = (number("step")?, number("salt")?);
        let path = join_path(prefix, "inner");
        let inner = if source.has_under(&path) { Some(Parts::state_unflatten(&path, source, device)?) } else { None };
        Some(Self { step, salt, inner })
    }
}
