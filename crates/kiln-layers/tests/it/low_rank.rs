//! Layers whose weights have a low-rank change, compared with layers that read the sum.

use std::marker::PhantomData;

use burn::module::{Module, ModuleMapper, Param, Reparameterization, Reparameterizer};
use burn::nn::{LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::tensor::{DType, Device, Tensor};
use kiln_layers::{Activation, AttentionOptions, Mask, activation_linear, linear, norm_linear, norm_self_attention};
use kiln_operations::{LOW_RANK, weight_parts};

use crate::compare::{distance, tensor, tolerance};
use crate::decoder_block::{Attention, FeedForward, WIDTH, run};

macro_rules! change {
    ($type:ident, $name:expr) => {
        #[derive(Module, Debug)]
        pub(crate) struct $type {
            a: Param<Tensor<2>>,
            b: Param<Tensor<2>>,
            scale: Param<Tensor<1>>,
            magnitude: Option<Param<Tensor<1>>>,
        }

        impl From<Parts> for $type {
            fn from(Parts { a, b, scale, magnitude }: Parts) -> Self {
                Self { a, b, scale, magnitude }
            }
        }

        impl Reparameterization for $type {
            const NAME: &'static str = $name;

            fn apply<const D: usize>(&self, base: Tensor<D>) -> Tensor<D> {
                let (shape, dtype) = (base.shape(), base.dtype());
                let change = self.a.val().matmul(self.b.val()) * self.scale.val().unsqueeze();
                let sum = base.cast(change.dtype()).reshape(change.shape()) + change;
                let sum = match &self.magnitude {
                    Some(magnitude) => {
                        let norms = sum.clone().detach().square().sum_dim(0).sqrt();
                        sum * (magnitude.val().unsqueeze() / norms)
                    }
                    None => sum,
                };
                sum.reshape(shape).cast(dtype)
            }
        }
    };
}
// Layers look through the first name and read the sum under the second.
change!(Apart, LOW_RANK);
change!(Summed, "summed");

/// A, B, s and m of a change.
pub(crate) struct Parts {
    a: Param<Tensor<2>>,
    b: Param<Tensor<2>>,
    scale: Param<Tensor<1>>,
    magnitude: Option<Param<Tensor<1>>>,
}

/// Attaches changes of rank 3 to the weights that it is asked about, which are frozen.
struct Attach<R> {
    to: fn(&str) -> bool,
    dora: bool,
    kind: PhantomData<R>,
}

pub(crate) fn attach<M: Module, R: Reparameterization + From<Parts>>(model: M, dora: bool, to: fn(&str) -> bool) -> M {
    model.apply_reparameterization(Attach::<R> { to, dora, kind: PhantomData })
}

impl<R: Reparameterization + From<Parts>> Reparameterizer for Attach<R> {
    type Reparam = R;

    fn reparameterize<const D: usize>(&mut self, path: &str, param: Param<Tensor<D>>) -> (Param<Tensor<D>>, Option<R>) {
        if D != 2 || !(self.to)(path) {
            return (param, None);
        }
        let (param, device) = (param.set_require_grad(false), Device::flex().autodiff());
        let [inputs, outputs] = [0, 1].map(|dim| param.dims()[dim]);
        let seed = path.bytes().map(u64::from).sum::<u64>();
        let factor = |shape, seed| Param::from_tensor(tensor(shape, seed, 0.6, DType::F32, &device));
        let scale = Tensor::<1>::from_data([0.7f32], (&device, DType::F32));
        let scale = Param::from_tensor(scale).set_require_grad(false);
        let magnitude = || Param::from_tensor(tensor([outputs], seed + 2, 1.0, DType::F32, &device) + 1.5);
        let magnitude = self.dora.then(magnitude);
        let parts = Parts { a: factor([inputs, 3], seed), b: factor([3, outputs], seed + 1), scale, magnitude };
        (param, Some(parts.into()))
    }
}

/// Layers of GPT.
#[derive(Module, Debug)]
struct Layers {
    norm: LayerNorm,
    qkv: Linear,
    up: Linear,
    down: Linear,
}

impl Layers {
    fn new(dtype: DType, device: &Device) -> Self {
        let layer = |from, to| LinearConfig::new(from, to).init(device);
        let norm = LayerNormConfig::new(WIDTH).init(device);
        let layers = Self { norm, qkv: layer(WIDTH, 3 * WIDTH), up: layer(WIDTH, 20), down: layer(20, WIDTH) };
        layers.map(&mut crate::decoder_block::Numbers(dtype, 0))
    }

    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let x = x.clone() + norm_self_attention(&self.norm, &self.qkv, x, 2, Mask::Causal).unwrap();
        let hidden = norm_linear(&self.norm, &self.up, x).unwrap();
        let plain = linear(&self.down, hidden.clone()).unwrap();
        plain + activation_linear(Activation::GeluTanh, &self.down, hidden).unwrap()
    }
}

fn assert_as_sums<M: Module>(model: &M, dtype: DType, what: &str, forward: impl Fn(&M, Tensor<3>) -> Tensor<3>) {
    let x = tensor([3, 7, WIDTH], 1, 2.0, dtype, &Device::flex().autodiff());
    let everywhere: fn(&str) -> bool = |_| true;
    for (name, dora, to) in [
        ("all", false, everywhere),
        ("all, DoRA", true, everywhere),
        ("some", false, |path| ["up.weight", "key.weight", "down.weight"].contains(&path)),
        ("others, DoRA", true, |path| ["gate.weight", "value.weight", "query.weight", "qkv.weight"].contains(&path)),
    ] {
        let apart = run(&attach::<M, Apart>(model.clone(), dora, to), &x, &forward);
        let summed = run(&attach::<M, Summed>(model.clone(), dora, to), &x, &forward);
        // The sum is rounded to the dtype of the weight, and the parts are not.
        let most = 4.0 * tolerance(dtype);
        let far = distance(&apart.0, &summed.0);
        assert!(far <= most, "the output of {what} with {name} is off by {far}");
        assert_eq!(apart.1.len(), summed.1.len());
        for (number, (gradient, expected)) in apart.1.iter().zip(&summed.1).enumerate() {
            let far = distance(gradient, expected);
            assert!(far <= most, "gradient {number} of {what} with {name} is off by {far}");
        }
    }
}

#[test]
fn parts_have_the_output_and_the_gradients_of_the_sum() {
    let device = Device::flex().autodiff();
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let what = format!("{dtype:?}");
        assert_as_sums(&Layers::new(dtype, &device), dtype, &what, Layers::forward);
        for bias in [true, false] {
            let what = format!("{what} {bias}");
            assert_as_sums(&FeedForward::new(bias, dtype, &device), dtype, &what, FeedForward::one);
            let model = Attention::new([4, 2, 6], bias, !bias, dtype, &device);
            let options = || AttentionOptions::from(Mask::Causal).with_key_lengths(vec![7, 2, 5]);
            assert_as_sums(&model, dtype, &what, |model, x| model.one(x, options()));
        }
    }
}

/// Casts vectors, as a policy casts what is not a weight with an adapter.
struct CastVectors(DType);

impl ModuleMapper for CastVectors {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let dtype = if D == 1 { self.0 } else { DType::F32 };
        param.map(|value| value.cast(dtype).detach().require_grad())
    }
}

#[test]
fn a_frozen_weight_in_f32_is_read_beside_a_bias_in_16_bits() {
    let device = Device::flex().autodiff();
    for dtype in [DType::F16, DType::BF16] {
        let mixed = Layers::new(DType::F32, &device).map(&mut CastVectors(dtype));
        let in_f32 = mixed.clone().map(&mut CastVectors(DType::F32));
        let x = tensor([3, 7, WIDTH], 1, 2.0, dtype, &device);
        let apart = run(&attach::<_, Apart>(mixed.clone(), false, |_| true), &x, Layers::forward);
        let exact = run(&attach::<_, Apart>(in_f32, false, |_| true), &x.cast(DType::F32), Layers::forward);
        let far = distance(&apart.0, &exact.0);
        assert!(far <= 4.0 * tolerance(dtype), "{dtype:?}: off by {far}");
    }
}

#[test]
fn a_weight_is_read_in_parts_only_if_nothing_else_is_attached_and_it_is_frozen() {
    let device = Device::flex().autodiff();
    let layer = || LinearConfig::new(4, 5).init(&device);
    let everywhere: fn(&str) -> bool = |_| true;
    assert!(weight_parts(&layer().weight).is_none());
    assert!(weight_parts(&attach::<_, Summed>(layer(), false, everywhere).weight).is_none());
    let apart = attach::<_, Apart>(layer(), true, everywhere);
    let parts = weight_parts(&apart.weight).unwrap();
    let change = parts.change.unwrap();
    assert_eq!((parts.weight.dims(), change.a.dims(), change.b.dims()), ([4, 5], [4, 3], [3, 5]));
    assert_eq!(change.magnitude.map(|magnitude| magnitude.dims()), Some([5]));
    assert!(parts.codes.is_none());
    assert!(weight_parts(&apart.clone().valid().weight).is_some());
    let trained = Linear { weight: apart.weight.clone().set_require_grad(true), ..apart };
    assert!(weight_parts(&trained.weight).is_none());
}
