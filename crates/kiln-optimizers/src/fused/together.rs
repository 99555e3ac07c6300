//! Updates of many parameters at once.

use std::cell::RefCell;

use burn::tensor::{DType, Device, Tensor};

#[cfg(feature = "cube")]
use super::cube::{Join, Joined};
#[cfg(feature = "cube")]
use burn::backend::{Cube, tensor::FloatTensor};

thread_local! {
    static OPEN: RefCell<Option<Together>> = const { RefCell::new(None) };
}

/// The updates between the start and the end of [`update_together`].
struct Together {
    factor: f64,
    /// Whether each update so far was joined with others.
    all_joined: bool,
    #[cfg(feature = "cube")]
    join: Join,
}

/// The result of [`update_together`].
#[derive(Clone, Debug)]
pub struct Updated<R> {
    /// What the step returned.
    pub result: R,
    /// Tensors of one element that are written only if all new parameters and states are: reading them shows that memory sufficed. `None`
    /// if the step has other updates than joined ones; then read its parameters.
    pub written: Option<Vec<Tensor<1>>>,
}

/// Runs `step`, which updates parameters with [`FusedAdamW`](crate::FusedAdamW), [`FusedAdam`](crate::FusedAdam),
/// [`FusedSgd`](crate::FusedSgd), [`QuantizedAdamW`](crate::QuantizedAdamW) or [`Sgd8bit`](crate::Sgd8bit), and returns its result. The
/// optimizers multiply each gradient by `factor` first, which unscales and clips it; a factor of 1 changes nothing.
///
/// On the CPU device, the update multiplies a gradient where it reads it.
///
/// On CubeCL devices a kernel of a fused optimizer updates up to sixteen parameters at once, as many as it can read, where burn launches one
/// or two for each. Parameters and state are new tensors, which have the bits of the CPU device on CUDA. For that, `step` runs twice: the
/// first time nothing is computed, and the result is dropped. `step` must do the same both times, on clones of the model and of the
/// optimizer, and must read no result. On other devices it runs once.
///
/// Other optimizers do not see the factor, and compute twice if `step` runs twice.
///
/// ```
/// use burn::nn::LinearConfig;
/// use burn::optim::{AdamWConfig, GradientsParams, ModuleOptimizer};
/// use burn::tensor::{Device, Distribution, Tensor};
/// use kiln_optimizers::{FusedAdamW, update_together};
///
/// let device = Device::flex().autodiff();
/// let (model, optimizer) = (LinearConfig::new(8, 4).init(&device), ModuleOptimizer::from(FusedAdamW::from(AdamWConfig::new())));
/// let x = Tensor::<2>::random([16, 8], Distribution::Default, &device);
/// let gradients = GradientsParams::from_grads(model.forward(x).square().mean().backward(), &model);
/// let weight = gradients.get::<2>(model.weight.id).unwrap();
///
/// let updated = update_together(0.5, || {
///     let mut gradients = GradientsParams::new();
///     gradients.register(model.weight.id, weight.clone());
///     let mut optimizer = optimizer.clone();
///     (optimizer.step(1e-3, model.clone(), gradients), optimizer)
/// });
/// let (model, optimizer) = updated.result;
/// ```
pub fn update_together<R>(factor: f64, step: impl Fn() -> R) -> Updated<R> {
    /// Ends the scope, also after a panic.
    struct Scope;
    impl Drop for Scope {
        fn drop(&mut self) {
            let _closed = OPEN.take();
        }
    }
    OPEN.set(Some(Together {
        factor,
        all_joined: true,
        #[cfg(feature = "cube")]
        join: Join::default(),
    }));
    let _scope = Scope;
    let result = step();
    #[cfg(feature = "cube")]
    if let Some(written) = with(|open| open.join.compute()).flatten() {
        drop(result);
        let all_joined = with(|open| open.all_joined) == Some(true);
        let written = all_joined.then(|| written.into_iter().map(Tensor::from_primitive::<Cube>).collect());
        return Updated { result: step(), written };
    }
    Updated { result, written: None }
}

/// Whether [`update_together`] multiplies gradients without a scaled copy of each on a device: on the CPU device, and on CubeCL devices but
/// those whose kernels read few tensors, as with the least that WebGPU guarantees.
pub fn scales_in_update(device: &Device) -> bool {
    match device.clone().inner().as_dispatch() {
        #[cfg(feature = "flex")]
        burn::backend::DispatchDevice::Flex(_) => true,
        _ => joins_updates(device),
    }
}

/// Whether a device has kernels that update many parameters at once: CubeCL devices, but those whose kernels read few tensors.
pub(super) fn joins_updates(device: &Device) -> bool {
    match device.clone().inner().as_dispatch() {
        #[cfg(feature = "cube")]
        burn::backend::DispatchDevice::Cube(device) => super::cube::has_kernel(device),
        _ => false,
    }
}

fn with<R>(f: impl FnOnce(&mut Together) -> R) -> Option<R> {
    OPEN.with_borrow_mut(|open| open.as_mut().map(f))
}

/// Notes that not all values are written by joined updates.
pub(crate) fn not_all_joined() {
    with(|open| open.all_joined = false);
}

/// The factor of an update that is not joined with others, if updates are open.
pub(crate) fn factor() -> Option<f64> {
    not_all_joined();
    with(|open| open.factor)
}

/// The gradient multiplied by the factor, for an update that is not joined with others.
pub(super) fn scaled<const D: usize>(gradient: Tensor<D>) -> Tensor<D> {
    match factor() {
        Some(factor) if factor != 1.0 => gradient.cast(DType::F32) * factor,
        _ => gradient,
    }
}

/// Whether updates on `device` are joined now.
pub(super) fn joins_now(device: &Device) -> bool {
    OPEN.with_borrow(Option::is_some) && joins_updates(device)
}

/// Whether an update on `device` that is not joined with others is left for the second run of the step, and gives the values from before it.
pub(crate) fn is_left(device: &Device) -> bool {
    #[cfg(feature = "cube")]
    if joins_now(device) {
        not_all_joined();
        return with(|open| open.join.leaves()) == Some(true);
    }
    let _ = device;
    false
}

/// Adds an update to the others, or takes its result. The values of the first run are those from before the update.
#[cfg(feature = "cube")]
pub(super) fn join(make: impl FnOnce(f32) -> Joined) -> Vec<FloatTensor<Cube>> {
    with(|open| {
        let update = make(open.factor as f32);
        open.join.next(update)
    })
    .unwrap_or_else(|| unreachable!("an update is joined while updates are open"))
}

#[cfg(test)]
mod tests {
    use burn::nn::{Linear, LinearConfig};
    use burn::optim::momentum::MomentumConfig;
    use burn::optim::{AdamWConfig, GradientsParams, ModuleOptimizer, SgdConfig};
    use burn::tensor::Distribution;

    use super::*;
    use crate::{AdamW8bit, FusedAdamW, FusedSgd, Sgd8bit};

    /// The parameters' values after two steps on gradients that were multiplied by `factor`: by the optimizer, or before it.
    fn trained(optimizer: &ModuleOptimizer, factor: f64, inside: bool) -> Vec<f32> {
        let device = Device::flex();
        device.seed(1);
        let mut model: Linear = LinearConfig::new(8, 4).init(&device.clone().autodiff());
        let mut optimizer = optimizer.clone();
        for _ in 0..2 {
            let weight = Tensor::<2>::random([8, 4], Distribution::Default, &device);
            let bias = Tensor::<1>::random([4], Distribution::Default, &device);
            let step = |factor: f64| {
                let mut gradients = GradientsParams::new();
                gradients.register(model.weight.id, weight.clone() * factor);
                if let Some(parameter) = &model.bias {
                    gradients.register(parameter.id, bias.clone() * factor);
                }
                let mut optimizer = optimizer.clone();
                let model = optimizer.step(0.1, model.clone(), gradients);
                (optimizer, model)
            };
            (optimizer, model) = if inside { update_together(factor, || step(1.0)).result } else { step(factor) };
        }
        let weight = model.weight.val().into_data();
        let bias = model.bias.map(|bias| bias.val().into_data());
        weight.iter::<f32>().chain(bias.iter().flat_map(|bias| bias.iter::<f32>())).collect()
    }

    #[test]
    fn the_factor_is_that_of_the_gradients() {
        let adamw = ModuleOptimizer::from(FusedAdamW::from(AdamWConfig::new()));
        let amsgrad = ModuleOptimizer::from(FusedAdamW::from(AdamWConfig::new().with_amsgrad(true)));
        let sgd = ModuleOptimizer::from(FusedSgd::from(SgdConfig::new()));
        let codes = AdamW8bit::new(&AdamWConfig::new()).unwrap();
        let some_codes = ModuleOptimizer::from(codes.clone().with_min_elements(10)); // and a bias in f32
        let codes = ModuleOptimizer::from(codes.with_min_elements(1));
        let momentum = SgdConfig::new().with_momentum(Some(MomentumConfig::new()));
        let velocity = ModuleOptimizer::from(Sgd8bit::new(&momentum).unwrap().with_min_elements(1));
        for optimizer in [adamw, amsgrad, sgd, some_codes, codes, velocity] {
            for factor in [1.0, 0.3] {
                assert_eq!(trained(&optimizer, factor, true), trained(&optimizer, factor, false), "{factor}");
            }
        }
    }

    #[test]
    fn a_panic_ends_the_scope() {
        let caught = std::panic::catch_unwind(|| update_together(0.5, || panic!("out of memory")));
        assert!(caught.is_err());
        let gradient = Tensor::<1>::ones([1], &Device::flex());
        assert_eq!(scaled(gradient).into_scalar::<f32>(), 1.0);
    }
}
