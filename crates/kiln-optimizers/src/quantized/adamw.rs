//! AdamW with 8-bit or 4-bit moments.

use burn::optim::{
    AdamWConfig, AdamWState, AdaptiveMomentumState, LearningRate, Optimizer, RecordState, StateSink, StateSource,
    join_path,
};
use burn::tensor::{Device, Tensor};

use super::moment::{Header, QuantizedMoment, TIME, check_shape, flatten_header, unflatten_header};
use super::options::AdamWRule;
use super::options::{Options, SecondMoment, setters};
use super::update::{in_f32, is_quantized, update};
use crate::blocks::CodeBook;
use crate::error::Error;
use crate::fused::{Betas, FusedAdamW, Settings};
use crate::record::StateFormat;

/// AdamW with moments of 8 bits: 2.03 bytes of state a parameter in place of 8 (Dettmers et al. 2022, "8-bit Optimizers via Block-wise
/// Quantization"). See [`QuantizedAdamW`].
pub type AdamW8bit = QuantizedAdamW<8>;

/// AdamW with moments of 4 bits: 1.06 bytes of state a parameter in place of 8 (Li et al. 2023, "Memory Efficient Optimizers with 4-bit
/// States", with the maps of torchao). See [`QuantizedAdamW`].
pub type AdamW4bit = QuantizedAdamW<4>;

/// AdamW whose moments are blocks of codes with one scale each. Use it as [`AdamW8bit`] or [`AdamW4bit`].
///
/// A step decodes the moments of a block, updates them and the parameter in f32, and encodes them again. No tensor of f32 values is made.
/// Parameters may be f32, f16 or bf16. f16 and bf16 parameters are computed in f32 and rounded back. Parameters with fewer than 4,096
/// elements, and those of other dtypes, are updated by [`FusedAdamW`] with moments that are not quantised: biases and norms are few and
/// sensitive.
///
/// A gradient with infinity or NaN makes the scales of its blocks infinite or NaN, just as it makes burn's moments, and they stay so.
/// Refuse such gradients before the step. [`check_finite`](crate::check_finite) on [`scales`](QuantizedMoment::scales) detects them.
///
/// State of another format is converted at the next step: f32 moments of burn's AdamW are quantised, codes of other maps are translated.
/// [`check_record`](crate::check_record) refuses such records instead.
///
/// ```
/// use burn::nn::LinearConfig;
/// use burn::optim::{AdamWConfig, GradientsParams, ModuleOptimizer};
/// use burn::tensor::{Device, Distribution, Tensor};
/// use kiln_optimizers::AdamW8bit;
///
/// let device = Device::flex().autodiff();
/// let mut model = LinearConfig::new(64, 64).init(&device);
/// let mut optimizer = ModuleOptimizer::from(AdamW8bit::new(&AdamWConfig::new().with_weight_decay(0.1))?);
///
/// let x = Tensor::<2>::random([16, 64], Distribution::Default, &device);
/// let gradients = GradientsParams::from_grads(model.forward(x).square().mean().backward(), &model);
/// model = optimizer.step(1e-3, model, gradients);
/// # Ok::<(), kiln_optimizers::Error>(())
/// ```
#[derive(Clone)]
pub struct QuantizedAdamW<const BITS: u32> {
    full: FusedAdamW,
    betas: Betas,
    epsilon: f32,
    weight_decay: f32,
    options: Options,
}

/// State of [`QuantizedAdamW`] for one parameter.
#[derive(Clone)]
#[allow(clippy::large_enum_variant, reason = "one value for each parameter, and every large one is quantised")]
pub enum QuantizedAdamWState<const D: usize> {
    /// The state of burn's AdamW, for small parameters.
    Full(AdamWState<D>),
    /// Moments as codes.
    Quantized {
        /// The number of steps so far.
        time: usize,
        /// The shape of the parameter.
        shape: [usize; D],
        /// The first and the second moment.
        moments: [QuantizedMoment; 2],
    },
}

impl QuantizedAdamW<8> {
    /// Sets how the second moment is kept.
    #[must_use]
    pub fn with_second_moment(mut self, second: SecondMoment) -> Self {
        self.options.second = second;
        self
    }
}

impl<const BITS: u32> QuantizedAdamW<BITS> {
    /// An optimizer with burn's settings. Like burn's `build`, it leaves gradient clipping to
    /// [`ModuleOptimizer`](burn::optim::ModuleOptimizer).
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] for betas outside of [0, 1), an epsilon that is not above 0, AMSGrad and cautious weight decay.
    pub fn new(config: &AdamWConfig) -> Result<Self, Error> {
        const { assert!(BITS == 4 || BITS == 8, "moments have 4 or 8 bits") };
        let settings = Settings::of(config);
        for name in ["beta_1", "beta_2"] {
            settings.check(name, "a number in [0, 1)", |beta| (0.0..1.0).contains(&beta))?;
        }
        settings.check("epsilon", "a number above 0", |epsilon| epsilon > 0.0 && epsilon as f32 > 0.0)?;
        settings.check("weight_decay", "a finite number", f64::is_finite)?;
        for name in ["amsgrad", "cautious_weight_decay"] {
            if settings.flag(name) {
                return Err(Error::InvalidSetting { name, value: "true".into(), expected: "false" });
            }
        }
        Ok(Self {
            full: FusedAdamW::from(config.clone()),
            betas: Betas { first: settings.number("beta_1") as f32, second: settings.number("beta_2") as f32 },
            epsilon: settings.number("epsilon") as f32,
            weight_decay: settings.number("weight_decay") as f32,
            options: Options::default(),
        })
    }

    setters!();

    /// The code books of the first and the second moment.
    pub fn books(&self) -> [CodeBook; 2] {
        self.options.books(BITS)
    }

    /// The format of the state that the optimizer keeps for large parameters.
    pub fn format(&self) -> StateFormat {
        StateFormat::adamw(self.books(), self.options.min_elements)
    }

    /// The number of steps so far and the moments of a large parameter, in the optimizer's format.
    fn quantized<const D: usize>(
        &self,
        state: Option<QuantizedAdamWState<D>>,
        parameter: &Tensor<D>,
    ) -> (usize, [QuantizedMoment; 2]) {
        let [book_1, book_2] = self.books();
        match state {
            None => {
                let zeros = |book| QuantizedMoment::zeros(book, parameter);
                (0, [zeros(book_1), zeros(book_2)])
            }
            Some(QuantizedAdamWState::Quantized { time, shape, moments: [first, second] }) => {
                check_shape(shape, parameter);
                let count = shape.iter().product();
                (time, [first.translated(book_1, count), second.translated(book_2, count)])
            }
            Some(QuantizedAdamWState::Full(AdamWState { momentum })) => {
                let first = QuantizedMoment::of_tensor(book_1, momentum.moment_1);
                (momentum.time, [first, QuantizedMoment::of_tensor(book_2, momentum.moment_2)])
            }
        }
    }

    /// The step of a small parameter.
    fn step_full<const D: usize>(
        &self,
        lr: LearningRate,
        parameter: Tensor<D>,
        gradient: Tensor<D>,
        state: Option<QuantizedAdamWState<D>>,
    ) -> (Tensor<D>, Option<QuantizedAdamWState<D>>) {
        let state = state.map(|state| match state {
            QuantizedAdamWState::Full(state) => state,
            QuantizedAdamWState::Quantized { time, shape, moments } => {
                check_shape(shape, &parameter);
                let [first, second] = moments.map(|moment| moment.to_tensor(shape));
                AdamWState::new(AdaptiveMomentumState::new(time, first, second))
            }
        });
        let full = |parameter, gradient| {
            let (parameter, state) = self.full.step(lr, parameter, gradient, state);
            (parameter, state.map(QuantizedAdamWState::Full))
        };
        in_f32(parameter, gradient, full)
    }
}

impl<const BITS: u32> Optimizer for QuantizedAdamW<BITS> {
    type State<const D: usize> = QuantizedAdamWState<D>;

    /// # Panics
    /// If the state is that of a parameter of another shape, and on a device that [`check_codes`](crate::check_codes) refuses.
    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<D>,
        grad: Tensor<D>,
        state: Option<Self::State<D>>,
    ) -> (Tensor<D>, Option<Self::State<D>>) {
        if !is_quantized(&tensor, self.options.min_elements) {
            return self.step_full(lr, tensor, grad, state);
        }
        let (time, moments) = self.quantized(state, &tensor);
        let (time, shape) = (time + 1, tensor.dims());
        let (first, second) = self.betas.corrections(time as i32);
        let rule = AdamWRule {
            betas: self.betas,
            epsilon: self.epsilon,
            keep: (1.0 - lr * f64::from(self.weight_decay)) as f32,
            rate: lr as f32 / first,
            root: 1.0 / second.sqrt(),
        };
        let (tensor, moments) = update(rule, tensor, grad, moments, self.options.noise(time));
        (tensor, Some(QuantizedAdamWState::Quantized { time, shape, moments }))
    }

    fn to_device<const D: usize>(state: Self::State<D>, device: &Device) -> Self::State<D> {
        match state {
            QuantizedAdamWState::Full(state) => QuantizedAdamWState::Full(FusedAdamW::to_device(state, device)),
            QuantizedAdamWState::Quantized { time, shape, moments } => {
                let moments = moments.map(|moment| moment.moved(device));
                QuantizedAdamWState::Quantized { time, shape, moments }
            }
        }
    }
}

/// The names in records.
const FIRST: &str = "moment_1";
const SECOND: &str = "moment_2";
/// The name of the group in burn's record with the moments and the number of steps.
const MOMENTUM: &str = "momentum";

impl<const D: usize> RecordState for QuantizedAdamWState<D> {
    fn state_flatten(&self, prefix: &str, out: &mut StateSink) {
        match self {
            Self::Full(state) => state.state_flatten(prefix, out),
            Self::Quantized { time, shape, moments: [first, second] } => {
                flatten_header(*time, shape, prefix, out);
                first.flatten(prefix, FIRST, out);
                second.flatten(prefix, SECOND, out);
            }
        }
    }

    fn state_unflatten(prefix: &str, source: &mut StateSource, device: &Device) -> Option<Self> {
        if let Some(Header { time, shape, count }) = unflatten_header(prefix, source) {
            let mut moment = |name| QuantizedMoment::unflatten(prefix, name, count, source, device);
            let moments = [moment(FIRST)?, moment(SECOND)?];
            return Some(Self::Quantized { time, shape, moments });
        }
        // burn's own optimizer would read the tensors in the device's default dtype.
        let path = join_path(prefix, MOMENTUM);
        let time = usize::try_from(source.take_scalar(&path, TIME)?).ok()?;
        let mut moment = |name| {
            let data = source.take_tensor(&path, name)?;
            let dtype = data.dtype();
            Some(Tensor::from_data(data, (device, dtype)))
        };
        Some(Self::Full(AdamWState::new(AdaptiveMomentumState::new(time, moment(FIRST)?, moment(SECOND)?))))
    }
}
