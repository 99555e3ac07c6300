//! One segment of a network: it runs without keeping activations, and again in the backward pass.

mod devices;
mod forward;
mod graph;
mod offload;
mod replay;
mod seeds;
mod segment;
mod tensors;

use std::panic::Location;

#[cfg(feature = "cube")]
use burn::backend::Cube;
#[cfg(feature = "flex")]
use burn::backend::Flex;
use burn::backend::GradientCheckpointingStrategy as Strategy;
use burn::backend::autodiff::checkpoint::strategy::{BalancedCheckpointing, NoCheckpointing};
use burn::module::Module;

use crate::Error;
use crate::stream::Source;

use devices::{Find, Kind};
use segment::{Segment, record};

pub use tensors::{TensorMap, Tensors};

pub(crate) use devices::devices_of;
pub(crate) use forward::Untracked;
pub(crate) use seeds::{derive, draw};

/// [`checkpoint`] with options.
///
/// ```
/// use burn::nn::LinearConfig;
/// use burn::tensor::{Device, Distribution, Tensor};
/// use kiln_checkpointing::Checkpoint;
///
/// let device = Device::flex().autodiff();
/// let layer = LinearConfig::new(4, 4).init(&device);
/// let x = Tensor::<2>::random([3, 4], Distribution::Default, &device);
/// let y = Checkpoint::new().named("encoder").deterministic().run(&layer, x, |layer, x| layer.forward(x))?;
/// assert!(y.is_tracked());
/// # Ok::<(), kiln_checkpointing::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Checkpoint {
    name: Option<String>,
    deterministic: bool,
    offload: bool,
    source: Option<Source>,
}

impl Checkpoint {
    /// A segment that may draw random numbers, with its inputs kept on their device.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the name that errors give the segment. By default it is the place in the source where the segment runs.
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Promises that the closure draws no random numbers: no dropout, no `Tensor::random`. Without this promise the device is
    /// seeded before both passes, so that they draw the same numbers; that reads a number back, and synchronises on fusion
    /// backends.
    pub fn deterministic(mut self) -> Self {
        self.deterministic = true;
        self
    }

    /// Keeps the segment's float inputs in host memory until the backward pass, instead of on their device. On the CPU device, whose memory is
    /// the host's, they stay where they are.
    pub fn offload(mut self) -> Self {
        self.offload = true;
        self
    }

    /// Reads the module's parameters from a store for each pass.
    pub(crate) fn streamed(mut self, source: Source) -> Self {
        self.source = Some(source);
        self
    }

    /// Runs `f` without keeping its activations, and once more in the backward pass.
    ///
    /// # Errors
    /// [`Error::Captures`], [`Error::NotALeaf`], [`Error::Backend`] and, with [`offload`](Self::offload),
    /// [`Error::Offload`].
    ///
    /// # Panics
    /// In the backward pass, with [`Error::Replay`] or [`Error::ReplayCount`] when the second run of the closure returns other
    /// tensors than the first.
    #[track_caller]
    pub fn run<M, I, O, F>(&self, module: &M, inputs: I, f: F) -> Result<O, Error>
    where
        M: Module + 'static,
        I: Tensors,
        O: Tensors,
        F: Fn(&M, I) -> O + Send + 'static,
    {
        let place = Location::caller();
        let name = self.name.clone().unwrap_or_else(|| format!("at {place}"));
        let found = Find::over(module, inputs.clone());
        if found.devices.is_empty() {
            return Ok(f(module, inputs));
        }
        let strategy = found.tracked.map_or(Strategy::Disabled, |(_, strategy)| strategy);
        let devices = found.devices;
        let source = self.source.clone();
        let segment =
            Segment { name, devices, strategy, deterministic: self.deterministic, offload: self.offload, source };
        if let Some(path) = found.not_a_leaf {
            return Err(Error::NotALeaf { segment: segment.name, path });
        }
        let Some((kind, strategy)) = found.tracked else {
            // Nothing needs a gradient, as in the first pass of a segment around this one. Its random numbers must still be
            // those of the second pass.
            let module = segment.first(module.clone())?;
            return Ok(segment.plain(|| f(&module, inputs)));
        };
        match (kind, strategy) {
            #[cfg(feature = "flex")]
            (Kind::Flex, Strategy::Disabled) => record::<Flex, NoCheckpointing, _, _, _, _>(segment, module, inputs, f),
            #[cfg(feature = "flex")]
            (Kind::Flex, Strategy::Balanced) => {
                record::<Flex, BalancedCheckpointing, _, _, _, _>(segment, module, inputs, f)
            }
            #[cfg(feature = "cube")]
            (Kind::Cube, Strategy::Disabled) => record::<Cube, NoCheckpointing, _, _, _, _>(segment, module, inputs, f),
            #[cfg(feature = "cube")]
            (Kind::Cube, Strategy::Balanced) => {
                record::<Cube, BalancedCheckpointing, _, _, _, _>(segment, module, inputs, f)
            }
            _ => Err(Error::Backend { device: format!("{:?}", segment.device()), segment: segment.name }),
        }
    }
}

/// Runs `f(module, inputs)` without keeping its activations; the backward pass runs it again to compute them. The outputs are
/// ordinary tracked tensors.
///
/// `f` must use the module and the inputs through its arguments only. **It must not compute with a captured tensor that needs
/// a gradient**: that is an error if the result depends on the tensor, and a deadlock in the backward pass if it does not (as
/// after `detach` or `into_scalar`). The closure may draw random numbers and contain batch-norm and further checkpoints.
/// [`Checkpoint`] has options.
///
/// ```
/// use burn::module::Module;
/// use burn::nn::{Linear, LinearConfig};
/// use burn::tensor::activation::gelu;
/// use burn::tensor::{Device, Distribution, Tensor};
/// use kiln_checkpointing::checkpoint;
///
/// let device = Device::flex().autodiff();
/// let layers: Vec<Linear> = (0..8).map(|_| LinearConfig::new(16, 16).init(&device)).collect();
/// let x = Tensor::<2>::random([4, 16], Distribution::Default, &device);
///
/// let forward = |layers: &Vec<Linear>, x| layers.iter().fold(x, |x, layer| gelu(layer.forward(x)));
/// let plain = forward(&layers, x.clone()).mean().backward();
/// let recomputed = checkpoint(&layers, x, forward).mean().backward();
/// for layer in &layers {
///     let [a, b] = [&plain, &recomputed].map(|gradients| layer.weight.val().grad(gradients).unwrap());
///     assert_eq!(a.into_data(), b.into_data()); // bit for bit
/// }
/// ```
///
/// # Panics
/// With the message of the [`Error`] that [`Checkpoint::run`] returns.
#[track_caller]
pub fn checkpoint<M, I, O, F>(module: &M, inputs: I, f: F) -> O
where
    M: Module + 'static,
    I: Tensors,
    O: Tensors,
    F: Fn(&M, I) -> O + Send + 'static,
{
    match Checkpoint::new().run(module, inputs, f) {
        Ok(outputs) => outputs,
        Err(error) => panic!("{error}"),
    }
}
