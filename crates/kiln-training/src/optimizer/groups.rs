//! The optimizer of a run: any of burn's, with parameter groups.

use std::any::TypeId;
use std::sync::{Arc, Mutex, PoisonError};

use burn::module::{Module, ModuleVisitor, Param, ParamGroup};
use burn::optim::{DynOptimizer, DynState, ModuleOptimizer, Optimizer, SgdConfig, StateSink, StateSource};
use burn::tensor::kind::BridgeTensor;
use burn::tensor::{DType, Device, Tensor};
use kiln_compression::placeholders;
use kiln_optimizers::{
    AdamW4bit, AdamW8bit, FusedAdam, FusedAdamW, FusedSgd, OffloadedAny, Sgd8bit, StochasticBf16, update_together,
};

use crate::error::Error;

/// One of burn's optimizers for all parameters, and others for groups of them.
///
/// Every optimizer of burn converts into one group by itself: `AdamWConfig::new().build()`. Kiln takes the optimizers instead of burn's
/// `ModuleOptimizer`, because it also records their update to predict its memory.
///
/// ```
/// use burn::module::ParamGroup;
/// use burn::optim::{AdamWConfig, SgdConfig};
/// use kiln_training::OptimizerGroups;
///
/// let groups = OptimizerGroups::from(AdamWConfig::new().build())
///     .with_group(ParamGroup::from_predicate("head"), SgdConfig::new().build());
/// ```
#[derive(Clone)]
pub struct OptimizerGroups {
    groups: Vec<(ParamGroup, OneOptimizer)>,
    description: Option<String>,
    /// Whether each optimizer multiplies gradients by a factor itself.
    scales: bool,
    /// The elements of which each part of a parameter must have a multiple, if parts can be updated by themselves.
    pub(crate) elements_of_parts: Option<usize>,
    /// Whether parameters are in bf16.
    rounds: bool,
}

/// An optimizer, and the same for parameters in bf16.
#[derive(Clone)]
pub(super) struct OneOptimizer {
    pub(super) plain: Arc<dyn DynOptimizer>,
    pub(super) rounding: Arc<dyn DynOptimizer>,
    /// Whether its state has codes of 8 or 4 bits.
    pub(super) has_codes: bool,
}

/// The seed of the noise with which parameters in bf16 are rounded. Each parameter adds a number made of its first values.
pub(super) const NOISE: u64 = 0;

impl OneOptimizer {
    /// An optimizer that updates whole parameters.
    pub(super) fn whole<O: Optimizer>(optimizer: O) -> Self {
        Self {
            plain: Arc::new(optimizer.clone()),
            rounding: Arc::new(StochasticBf16::new(optimizer, NOISE)),
            has_codes: has_codes::<O>(),
        }
    }
}

impl<O: Optimizer> From<O> for OptimizerGroups {
    fn from(optimizer: O) -> Self {
        let groups = vec![(ParamGroup::all(), OneOptimizer::whole(optimizer))];
        let parts = is_fused::<O>().then_some(1);
        Self::of(groups, std::any::type_name::<O>().to_owned(), scales::<O>(), parts)
    }
}

impl OptimizerGroups {
    /// The first group must have all parameters.
    pub(super) fn of(
        groups: Vec<(ParamGroup, OneOptimizer)>,
        description: String,
        scales: bool,
        elements_of_parts: Option<usize>,
    ) -> Self {
        Self { groups, description: Some(description), scales, elements_of_parts, rounds: false }
    }

    /// The optimizers for the parameters of `model`: those in bf16 are rounded stochastically. Beside codes, frozen matrices may be in bf16.
    pub(crate) fn for_model(self, model: &impl Module) -> Self {
        struct FindBf16 {
            has_codes: bool,
            found: bool,
        }
        impl ModuleVisitor for FindBf16 {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                let counts = param.is_initialized() && (!self.has_codes || param.is_require_grad());
                self.found |= counts && param.dtype() == DType::BF16;
            }
        }
        let mut find = FindBf16 { has_codes: !placeholders(model).is_empty(), found: false };
        model.visit(&mut find);
        Self { rounds: find.found, ..self }
    }

    /// Checks that a device can store the state, also of one parameter at a time.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] for state in 8 or 4 bits on a device without integers of 8 bits.
    pub(crate) fn check(&self, device: &Device) -> Result<(), Error> {
        if !self.groups.iter().any(|(_, optimizer)| optimizer.has_codes) {
            return Ok(());
        }
        match kiln_optimizers::check_codes(device) {
            Err(kiln_optimizers::Error::InvalidSetting { name, value, expected }) => {
                Err(Error::InvalidSetting { name, value, expected })
            }
            _ => Ok(()),
        }
    }

    /// Whether the optimizers multiply gradients by a factor themselves.
    pub(crate) fn scales(&self) -> bool {
        self.scales && !self.rounds
    }

    /// The groups with the optimizers for this model.
    fn chosen(&self) -> impl Iterator<Item = (ParamGroup, Arc<dyn DynOptimizer>)> {
        let choose =
            |optimizer: &OneOptimizer| if self.rounds { &optimizer.rounding } else { &optimizer.plain }.clone();
        self.groups.iter().map(move |(group, optimizer)| (group.clone(), choose(optimizer)))
    }

    /// Uses `optimizer` for the parameters of `group`. A parameter in several groups belongs to the one that was added last.
    #[must_use]
    pub fn with_group<O: Optimizer>(mut self, group: ParamGroup, optimizer: O) -> Self {
        self.groups.push((group, OneOptimizer::whole(optimizer)));
        self.scales &= scales::<O>();
        self.elements_of_parts = self.elements_of_parts.filter(|_| is_fused::<O>());
        let description = self.description.take();
        self.description = description.map(|text| format!("{text}, {}", std::any::type_name::<O>()));
        self
    }

    /// Names the settings. A checkpoint notes the text, and a run with another text does not resume from it.
    #[must_use]
    pub fn described(self, settings: impl Into<String>) -> Self {
        Self { description: Some(settings.into()), ..self }
    }

    pub(crate) fn description(&self) -> Option<&str> {
        self.description.as_deref()
    }

    /// The groups to be recorded, the first of which has all parameters. Those that multiply gradients by a factor do so if `scaled`.
    pub(crate) fn recorded(&self, scaled: bool) -> Vec<(ParamGroup, Arc<dyn DynOptimizer>)> {
        let factor = (self.scales() && scaled).then_some(0.5);
        self.chosen()
            .map(|(group, optimizer)| (group, Arc::new(Shared { factor, ..Shared::from(optimizer) }) as _))
            .collect()
    }

    /// burn's optimizer of a whole module, without state.
    pub fn init(&self) -> ModuleOptimizer {
        self.with_each(Shared::from)
    }

    /// Returns burn's optimizer of a whole module, without state. State that is loaded later goes to `device`. With [`init`](Self::init)
    /// it goes to the default device.
    pub(crate) fn init_on(&self, device: &Device) -> ModuleOptimizer {
        self.empty_on(device, &Unread::default())
    }

    /// Works as [`init_on`](Self::init_on), and notes parameters whose loaded state it cannot read in `unread`.
    pub(super) fn empty_on(&self, device: &Device, unread: &Unread) -> ModuleOptimizer {
        self.with_each(|optimizer| Shared {
            device: Some(device.clone()),
            unread: unread.clone(),
            ..Shared::from(optimizer)
        })
    }

    /// Works as [`empty_on`](Self::empty_on), and keeps all state in host memory, whatever the optimizers.
    pub(super) fn empty_on_host(&self, device: &Device, unread: &Unread) -> ModuleOptimizer {
        self.with_each(|optimizer| Shared {
            device: Some(device.clone()),
            unread: unread.clone(),
            ..Shared::from(Arc::new(OffloadedAny::new(optimizer)) as Arc<dyn DynOptimizer>)
        })
    }

    fn with_each(&self, make: impl Fn(Arc<dyn DynOptimizer>) -> Shared) -> ModuleOptimizer {
        // burn needs a concrete optimizer to begin with; the first group then replaces it for all parameters.
        let start = ModuleOptimizer::from(SgdConfig::new().build());
        self.chosen().fold(start, |all, (group, optimizer)| all.with_group(group, make(optimizer), None))
    }
}

/// Whether an optimizer's state has codes of 8 or 4 bits.
pub(super) fn has_codes<O: 'static>() -> bool {
    [TypeId::of::<AdamW8bit>(), TypeId::of::<AdamW4bit>(), TypeId::of::<Sgd8bit>()].contains(&TypeId::of::<O>())
}

/// Whether an optimizer multiplies gradients by the factor of [`update_together`].
fn scales<O: 'static>() -> bool {
    is_fused::<O>() || has_codes::<O>()
}

/// Whether an optimizer is one of the fused ones.
fn is_fused<O: 'static>() -> bool {
    let optimizer = TypeId::of::<O>();
    [TypeId::of::<FusedAdamW>(), TypeId::of::<FusedAdam>(), TypeId::of::<FusedSgd>()].contains(&optimizer)
}

/// An optimizer behind a pointer, as an optimizer.
struct Shared {
    optimizer: Arc<dyn DynOptimizer>,
    /// The device that loaded state goes to.
    device: Option<Device>,
    /// Collects parameters whose state cannot be read.
    unread: Unread,
    /// The factor of the gradients, if each step is one of [`update_together`].
    factor: Option<f64>,
}

impl From<Arc<dyn DynOptimizer>> for Shared {
    fn from(optimizer: Arc<dyn DynOptimizer>) -> Self {
        Self { optimizer, device: None, unread: Unread::default(), factor: None }
    }
}

impl DynOptimizer for Shared {
    fn step_dyn(
        &self,
        rank: usize,
        lr: f64,
        tensor: BridgeTensor,
        grad: BridgeTensor,
        state: Option<DynState>,
    ) -> (BridgeTensor, Option<DynState>) {
        match self.factor {
            Some(factor) => {
                let step = || self.optimizer.step_dyn(rank, lr, tensor.clone(), grad.clone(), state.clone());
                update_together(factor, step).result
            }
            None => self.optimizer.step_dyn(rank, lr, tensor, grad, state),
        }
    }

    fn to_device_dyn(&self, state: DynState, device: &Device) -> DynState {
        self.optimizer.to_device_dyn(state, device)
    }

    fn state_flatten(&self, prefix: &str, state: &DynState, out: &mut StateSink) {
        self.optimizer.state_flatten(prefix, state, out);
    }

    fn state_unflatten(
        &self,
        rank: usize,
        prefix: &str,
        source: &mut StateSource,
        device: &Device,
    ) -> Option<DynState> {
        let state = self.optimizer.state_unflatten(rank, prefix, source, self.device.as_ref().unwrap_or(device));
        if state.is_none() {
            self.unread.note(prefix);
        }
        state
    }
}

/// The parameters whose state no optimizer could read, by their names in records. burn leaves them without state and reports nothing.
#[derive(Clone, Default)]
pub(super) struct Unread(Arc<Mutex<Vec<String>>>);

impl Unread {
    pub(super) fn note(&self, parameter: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(parameter.to_owned());
    }

    pub(super) fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
