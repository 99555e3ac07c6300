use std::panic::Location;

#[cfg(feature = "cuda")]
use burn::backend::Cube;
#[cfg(feature = "flex")]
use burn::backend::Flex;
use burn::backend::autodiff::checkpoint::strategy::{BalancedCheckpointing, NoCheckpointing};
use burn::backend::{DispatchTensorKind, GradientCheckpointingStrategy as Strategy};
use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Device, Tensor};

use crate::segment::{Segment, record};
use crate::{Error, TensorMap, Tensors};

/// How a segment is run: [`checkpoint`] with choices.
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
}

impl Checkpoint {
    /// A segment that may draw random numbers, with its inputs kept on their device.
    pub fn new() -> Self {
        Self::default()
    }

    /// The name that errors call it by; without one the place in the source where it runs.
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Promises that the closure draws no random numbers: no dropout, no `Tensor::random`. Otherwise the device is seeded
    /// before both passes, so that they draw the same, which reads a number back and on fusion backends synchronises.
    pub fn deterministic(mut self) -> Self {
        self.deterministic = true;
        self
    }

    /// Keeps the segment's float inputs in host memory until the replay, instead of on their device.
    pub fn offload(mut self) -> Self {
        self.offload = true;
        self
    }

    /// Runs `f` without keeping activations, and again in the backward pass.
    ///
    /// # Errors
    /// [`Error::Captures`], [`Error::NotALeaf`], [`Error::Backend`] and, with [`offload`](Self::offload),
    /// [`Error::Offload`].
    ///
    /// # Panics
    /// In the backward pass, with [`Error::Replay`] or [`Error::ReplayCount`] when the closure does not do the same again.
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
        let segment = Segment { name, devices, strategy, deterministic: self.deterministic, offload: self.offload };
        if let Some(path) = found.not_a_leaf {
            return Err(Error::NotALeaf { segment: segment.name, path });
        }
        let Some((kind, strategy)) = found.tracked else {
            // Nothing needs a gradient, as in the first pass of a segment around this one: random numbers alone must be
            // the same as in the replay.
            return Ok(segment.plain(|| f(module, inputs)));
        };
        match (kind, strategy) {
            #[cfg(feature = "flex")]
            (Kind::Flex, Strategy::Disabled) => record::<Flex, NoCheckpointing, _, _, _, _>(segment, module, inputs, f),
            #[cfg(feature = "flex")]
            (Kind::Flex, Strategy::Balanced) => {
                record::<Flex, BalancedCheckpointing, _, _, _, _>(segment, module, inputs, f)
            }
            #[cfg(feature = "cuda")]
            (Kind::Cube, Strategy::Disabled) => record::<Cube, NoCheckpointing, _, _, _, _>(segment, module, inputs, f),
            #[cfg(feature = "cuda")]
            (Kind::Cube, Strategy::Balanced) => {
                record::<Cube, BalancedCheckpointing, _, _, _, _>(segment, module, inputs, f)
            }
            _ => Err(Error::Backend { device: format!("{:?}", segment.device()), segment: segment.name }),
        }
    }
}

/// Runs `f(module, inputs)` without keeping its activations; the backward pass runs it again to have them. What comes out is an
/// ordinary tracked tensor (or several).
///
/// `f` sees the module and the inputs only through its arguments. **It must not compute with a captured tensor that needs a
/// gradient**: where the result depends on it that is an error, and where it does not (as after `detach` or `into_scalar`) the
/// backward pass would wait for itself forever. It may draw
/// random numbers and contain batch-norm and further checkpoints. See [`Checkpoint`] for choices.
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

/// The devices that a segment's floats are on.
pub(crate) fn devices_of(module: &impl Module, inputs: impl Tensors) -> Vec<Device> {
    Find::over(module, inputs).devices
}

/// The backends that a custom backward pass is written for.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    #[cfg(feature = "flex")]
    Flex,
    #[cfg(feature = "cuda")]
    Cube,
    Other,
}

/// Where a segment's tensors are, and whether any of them needs a gradient.
#[derive(Default)]
struct Find {
    path: Vec<String>,
    devices: Vec<Device>,
    tracked: Option<(Kind, Strategy)>,
    not_a_leaf: Option<String>,
}

impl Find {
    fn over(module: &impl Module, inputs: impl Tensors) -> Self {
        let mut find = Self::default();
        let _ = inputs.map(&mut find);
        module.visit(&mut find);
        find
    }

    fn see<const D: usize>(&mut self, tensor: &Tensor<D>) {
        let device = tensor.device();
        if !self.devices.contains(&device) {
            self.devices.push(device);
        }
        if self.tracked.is_none()
            && tensor.is_tracked()
            && let Some(strategy) = tensor.gradient_checkpointing_strategy()
        {
            self.tracked = Some((kind(tensor), strategy));
        }
    }
}

fn kind<const D: usize>(tensor: &Tensor<D>) -> Kind {
    let DispatchTensorKind::Autodiff(inner) = tensor.clone().into_dispatch().kind else { return Kind::Other };
    match *inner {
        #[cfg(feature = "flex")]
        DispatchTensorKind::Flex(_) => Kind::Flex,
        #[cfg(feature = "cuda")]
        DispatchTensorKind::Cube(_) => Kind::Cube,
        _ => Kind::Other,
    }
}

impl TensorMap for Find {
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        self.see(&tensor);
        tensor
    }
}

impl ModuleVisitor for Find {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        // Reading a lazy parameter initialises it, before random numbers are counted.
        let tensor = param.val();
        self.see(&tensor);
        if tensor.is_tracked() && !tensor.is_require_grad() && self.not_a_leaf.is_none() {
            self.not_a_leaf = Some(self.path.join("."));
        }
    }
}
