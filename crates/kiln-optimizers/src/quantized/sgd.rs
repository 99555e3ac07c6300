//! SGD with an 8-bit velocity.

use burn::optim::{LearningRate, Optimizer, RecordState, SgdConfig, StateSink, StateSource, join_path};
use burn::tensor::{Device, Tensor};

use super::moment::{Header, QuantizedMoment, check_shape, flatten_header, unflatten_header};
use super::options::MomentumRule;
use super::options::{Options, setters};
use super::update::{in_f32, is_quantized, update};
use crate::blocks::CodeBook;
use crate::error::Error;
use crate::fused::{FusedSgd, FusedSgdState, Settings};
use crate::record::StateFormat;

/// SGD with momentum whose velocity is blocks of 8-bit codes with one scale each: 1.02 bytes of state for each parameter instead of 4
/// (Dettmers et al. 2022).
///
/// Momentum, dampening, Nesterov's momentum and weight decay are burn's. Without momentum there is no state, and [`FusedSgd`] does the
/// updates. Small parameters, dtypes, gradients that are not finite and state of other formats are handled as in
/// [`QuantizedAdamW`](crate::QuantizedAdamW).
///
/// ```
/// use burn::optim::momentum::MomentumConfig;
/// use burn::optim::{ModuleOptimizer, SgdConfig};
/// use kiln_optimizers::Sgd8bit;
///
/// let momentum = MomentumConfig::new().with_momentum(0.9).with_dampening(0.0);
/// let optimizer = ModuleOptimizer::from(Sgd8bit::new(&SgdConfig::new().with_momentum(Some(momentum)))?);
/// # Ok::<(), kiln_optimizers::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Sgd8bit {
    full: FusedSgd,
    penalty: Option<f32>,
    momentum: Option<Momentum>,
    options: Options,
}

#[derive(Clone, Copy, Debug)]
struct Momentum {
    factor: f32,
    share: f32,
    nesterov: bool,
}

/// State of [`Sgd8bit`] for one parameter.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant, reason = "one value for each parameter, and every large one is quantised")]
pub enum Sgd8bitState<const D: usize> {
    /// The state of burn's SGD, for small parameters and without momentum.
    Full(FusedSgdState<D>),
    /// The velocity as codes.
    Quantized {
        /// The number of steps so far.
        time: usize,
        /// The shape of the parameter.
        shape: [usize; D],
        /// The running gradient.
        velocity: QuantizedMoment,
    },
}

/// The code book of the velocity.
const BOOK: CodeBook = CodeBook::Dynamic;

impl Sgd8bit {
    /// An optimizer with burn's settings. Like burn's `build`, it leaves gradient clipping to
    /// [`ModuleOptimizer`](burn::optim::ModuleOptimizer).
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] for a momentum, dampening or weight decay that is not finite.
    pub fn new(config: &SgdConfig) -> Result<Self, Error> {
        let settings = Settings::of(config);
        let momentum = match settings.group("momentum") {
            None => None,
            Some(momentum) => {
                momentum.check("momentum", "a finite number", f64::is_finite)?;
                momentum.check("dampening", "a finite number", f64::is_finite)?;
                Some(Momentum {
                    factor: momentum.number("momentum") as f32,
                    share: (1.0 - momentum.number("dampening")) as f32,
                    nesterov: momentum.flag("nesterov"),
                })
            }
        };
        let penalty = match settings.group("weight_decay") {
            None => None,
            Some(decay) => {
                decay.check("penalty", "a finite number", f64::is_finite)?;
                Some(decay.number("penalty") as f32)
            }
        };
        Ok(Self { full: FusedSgd::from(config.clone()), penalty, momentum, options: Options::default() })
    }

    setters!();

    /// The code book of the velocity.
    pub fn book(&self) -> CodeBook {
        BOOK
    }

    /// The format of the state that the optimizer keeps for large parameters.
    pub fn format(&self) -> StateFormat {
        StateFormat::sgd(self.momentum.map(|_| BOOK), self.options.min_elements)
    }

    /// The step of a small parameter, or of any parameter without momentum.
    fn step_full<const D: usize>(
        &self,
        lr: LearningRate,
        parameter: Tensor<D>,
        gradient: Tensor<D>,
        state: Option<Sgd8bitState<D>>,
    ) -> (Tensor<D>, Option<Sgd8bitState<D>>) {
        let state = state.map(|state| match state {
            Sgd8bitState::Full(state) => state,
            Sgd8bitState::Quantized { shape, velocity, .. } => {
                check_shape(shape, &parameter);
                FusedSgdState::new(Some(velocity.to_tensor(shape)))
            }
        });
        let full = |parameter, gradient| {
            let (parameter, state) = self.full.step(lr, parameter, gradient, state);
            (parameter, state.map(Sgd8bitState::Full))
        };
        in_f32(parameter, gradient, full)
    }
}

impl Optimizer for Sgd8bit {
    type State<const D: usize> = Sgd8bitState<D>;

    /// # Panics
    /// If the state is that of a parameter of another shape, and on a device that [`check_codes`](crate::check_codes) refuses.
    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<D>,
        grad: Tensor<D>,
        state: Option<Self::State<D>>,
    ) -> (Tensor<D>, Option<Self::State<D>>) {
        let Some(momentum) = self.momentum.filter(|_| is_quantized(&tensor, self.options.min_elements)) else {
            return self.step_full(lr, tensor, grad, state);
        };
        let (time, velocity) = match state {
            Some(Sgd8bitState::Quantized { time, shape, velocity }) => {
                check_shape(shape, &tensor);
                (time, Some(velocity.translated(BOOK, shape.iter().product())))
            }
            // The number of steps matters only for the noise.
            Some(Sgd8bitState::Full(state)) => {
                (0, state.into_velocity().map(|velocity| QuantizedMoment::of_tensor(BOOK, velocity)))
            }
            None => (0, None),
        };
        // The first velocity is the gradient.
        let (share, velocity) = match velocity {
            Some(velocity) => (momentum.share, velocity),
            None => (1.0, QuantizedMoment::zeros(BOOK, &tensor)),
        };
        let (time, shape) = (time + 1, tensor.dims());
        let rule = MomentumRule {
            penalty: self.penalty,
            factor: momentum.factor,
            share,
            nesterov: momentum.nesterov,
            rate: lr as f32,
        };
        let (tensor, [velocity]) = update(rule, tensor, grad, [velocity], self.options.noise(time));
        (tensor, Some(Sgd8bitState::Quantized { time, shape, velocity }))
    }

    fn to_device<const D: usize>(state: Self::State<D>, device: &Device) -> Self::State<D> {
        match state {
            Sgd8bitState::Full(state) => Sgd8bitState::Full(FusedSgd::to_device(state, device)),
            Sgd8bitState::Quantized { time, shape, velocity } => {
                Sgd8bitState::Quantized { time, shape, velocity: velocity.moved(device) }
            }
        }
    }
}

/// The name of the velocity in records.
const VELOCITY: &str = "velocity";

impl<const D: usize> RecordState for Sgd8bitState<D> {
    fn state_flatten(&self, prefix: &str, out: &mut StateSink) {
        match self {
            Self::Full(state) => state.state_flatten(prefix, out),
            Self::Quantized { time, shape, velocity } => {
                flatten_header(*time, shape, prefix, out);
                velocity.flatten(prefix, VELOCITY, out);
            }
        }
    }

    fn state_unflatten(prefix: &str, source: &mut StateSource, device: &Device) -> Option<Self> {
        match unflatten_header(prefix, source) {
            Some(Header { time, shape, count }) => {
                let velocity = QuantizedMoment::unflatten(prefix, VELOCITY, count, source, device)?;
                Some(Self::Quantized { time, shape, velocity })
            }
            // The codes are there, but their header cannot be read. Without momentum there is nothing to read.
            None if source.has_under(&join_path(prefix, VELOCITY)) => None,
            None => FusedSgdState::state_unflatten(prefix, source, device).map(Self::Full),
        }
    }
}
