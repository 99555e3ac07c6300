//! Loss scaling on real gradients.

use burn::module::{Module, ModuleVisitor, Param};
use burn::nn::{LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::optim::{GradientsParams, SgdConfig};
use burn::tensor::activation::relu;
use burn::tensor::{DType, Device, Distribution, Tensor};
use kiln_precision::{
    Error, LossScaler, Policy, Precision, ScaledGradients, ScalerConfig, ScalerOutcome, ScalerState, Scaling,
};

use crate::support::alone;

#[derive(Module, Debug)]
struct Net {
    first: Linear,
    norm: LayerNorm,
    last: Linear,
}

impl Net {
    fn new(device: &Device) -> Self {
        Self {
            first: LinearConfig::new(8, 32).init(device),
            norm: LayerNormConfig::new(32).init(device),
            last: LinearConfig::new(32, 1).init(device),
        }
    }

    fn loss(&self, x: Tensor<2>, y: Tensor<2>) -> Tensor<1> {
        let x = x.cast(self.first.weight.val().dtype());
        let out = self.last.forward(relu(self.norm.forward(self.first.forward(x))));
        (out.cast(DType::F32) - y).square().mean()
    }
}

fn data(device: &Device) -> (Tensor<2>, Tensor<2>) {
    let x = Tensor::<2>::random([64, 8], Distribution::Normal(0.0, 1.0), device);
    let y = x.clone().sum_dim(1).sin();
    (x, y)
}

fn flat(model: &impl Module, gradients: &GradientsParams) -> Vec<f64> {
    struct Flat<'a>(&'a GradientsParams, Vec<f64>);
    impl ModuleVisitor for Flat<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if let Some(gradient) = self.0.get::<D>(param.id) {
                assert_eq!(gradient.dtype(), DType::F32);
                self.1.extend(gradient.into_data().iter::<f64>());
            }
        }
    }
    let mut flat = Flat(gradients, vec![]);
    model.visit(&mut flat);
    flat.1
}

#[test]
fn unscaled_gradients_are_the_gradients_bit_for_bit_and_clipped_to_the_norm() {
    let _alone = alone();
    let device = Device::flex().autodiff();
    let model = Net::new(&device);
    let (x, y) = data(&device);
    let plain = flat(&model, &GradientsParams::from_grads(model.loss(x.clone(), y.clone()).backward(), &model));
    let norm = plain.iter().map(|g| g * g).sum::<f64>().sqrt();
    let unscaled = |max_norm| {
        let mut scaler = LossScaler::new(Scaling::Static(4096.0)).unwrap();
        let scaled = scaler.scale(model.loss(x.clone(), y.clone())).unwrap().backward(&model);
        let probed = scaled.probe(&model).unwrap();
        match scaler.update(&model, probed, max_norm).unwrap() {
            ScalerOutcome::Apply { gradients, norm } => (flat(&model, &gradients), norm),
            ScalerOutcome::Skip => panic!("there was no overflow"),
        }
    };
    let (gradients, measured) = unscaled(None);
    assert_eq!(gradients, plain);
    assert!((measured / norm - 1.0).abs() < 1e-6);
    let (clipped, measured) = unscaled(Some(norm / 3.0));
    assert!((measured / norm - 1.0).abs() < 1e-6, "the norm is the one before clipping");
    let after = clipped.iter().map(|g| g * g).sum::<f64>().sqrt();
    assert!((after / (norm / 3.0) - 1.0).abs() < 1e-5);
}

#[test]
fn a_scale_that_starts_at_two_to_the_thirty_recovers_by_itself() {
    let _alone = alone();
    let device = Device::flex().autodiff();
    device.seed(2);
    let mut model = Policy::new(Precision::F16).autocast(Net::new(&device)).unwrap();
    let mut optimizer = SgdConfig::new().init();
    let config = ScalerConfig::new().with_initial(2f64.powi(30));
    let mut scaler = LossScaler::new(Scaling::Dynamic(config)).unwrap();
    let (x, y) = data(&device);
    let (mut skips, mut losses) = (vec![], vec![]);
    for step in 0..60 {
        let loss = model.loss(x.clone(), y.clone());
        losses.push(f64::from(loss.clone().into_scalar::<f32>()));
        let probed = scaler.scale(loss).unwrap().backward(&model).probe(&model).unwrap();
        match scaler.update(&model, probed, None).unwrap() {
            ScalerOutcome::Apply { gradients, .. } => model = optimizer.step(0.1, model, gradients),
            ScalerOutcome::Skip => {
                skips.push(step);
                assert_eq!(losses[step], losses[0], "a skipped step changes nothing");
            }
        }
    }
    // Skips come first, without a gap, and then there are none: the scale has reached a size at which f16 holds the gradients.
    assert!(!skips.is_empty() && skips.len() < 30, "{skips:?}");
    assert_eq!(skips, (0..skips.len()).collect::<Vec<_>>());
    assert_eq!(
        scaler.state(),
        ScalerState { scale: 2f64.powi(30 - skips.len() as i32), streak: 60 - skips.len() as u32 }
    );
    assert!(losses[59] < 0.5 * losses[0], "it learns: {losses:?}");
}

#[test]
fn a_loss_scale_saves_gradients_that_f16_would_lose() {
    let _alone = alone();
    let device = Device::flex().autodiff();
    let model = Policy::new(Precision::F16).autocast(Net::new(&device)).unwrap();
    let (x, y) = data(&device);
    let zeros = |scale| {
        let scaler = LossScaler::new(Scaling::Static(scale)).unwrap();
        let scaled = scaler.scale(model.loss(x.clone(), y.clone()) * 1e-6).unwrap().backward(&model);
        let mut scaler = scaler;
        let probed = scaled.probe(&model).unwrap();
        let ScalerOutcome::Apply { gradients, .. } = scaler.update(&model, probed, None).unwrap() else {
            panic!("overflow")
        };
        flat(&model, &gradients).iter().filter(|g| **g == 0.0).count()
    };
    let (without, with) = (zeros(1.0), zeros(65536.0));
    assert!(without > 3 * (with + 1), "{without} vanish without a scale, {with} with one");
}

#[test]
fn an_overflow_at_the_least_scale_is_an_error_and_changes_nothing() {
    let _alone = alone();
    let device = Device::flex().autodiff();
    let model = Net::new(&device);
    let (x, y) = data(&device);
    let overflow = || model.loss(x.clone(), y.clone()) * f32::INFINITY;
    let floor = ScalerConfig::new().with_initial(4.0).with_floor(2.0);
    for (scaling, skips) in [(Scaling::None, 0), (Scaling::Static(8.0), 0), (Scaling::Dynamic(floor), 1)] {
        let mut scaler = LossScaler::new(scaling).unwrap();
        for _ in 0..skips {
            let probed = scaler.scale(overflow()).unwrap().backward(&model).probe(&model).unwrap();
            assert!(matches!(scaler.update(&model, probed, None), Ok(ScalerOutcome::Skip)));
        }
        let before = scaler.state();
        let probed = scaler.scale(overflow()).unwrap().backward(&model).probe(&model).unwrap();
        assert!(!probed.is_finite());
        let refused = scaler.update(&model, probed, None).map(|_| ()).unwrap_err();
        assert_eq!(refused, Error::NotFinite { scale: before.scale });
        assert_eq!(scaler.state(), before);
    }
}

#[test]
fn wrong_numbers_and_gradients_are_refused() {
    let _alone = alone();
    let device = Device::flex().autodiff();
    let (model, other) = (Net::new(&device), Net::new(&device));
    let (x, y) = data(&device);
    let scaler = LossScaler::for_precision(Precision::F16);
    // First gradients of another model, then no gradients.
    let strange = scaler.scale(other.loss(x.clone(), y.clone())).unwrap().backward(&model);
    assert_eq!(strange.probe(&model).map(|_| ()).unwrap_err(), Error::NoGradients);
    // Some of the gradients belong to another model: they would keep their scale.
    let both = scaler.scale(model.loss(x.clone(), y.clone())).unwrap().backward(&model);
    assert_eq!(both.probe(&model.first).map(|_| ()).unwrap_err(), Error::OtherModel { foreign: 4 });
    let several = scaler.scale(Tensor::ones([3], &device)).map(|_| ()).unwrap_err();
    assert_eq!(several, Error::NotAScalar(3));
    let empty = ScaledGradients::new(GradientsParams::new(), 2.0).unwrap();
    assert_eq!(empty.probe(&model).map(|_| ()).unwrap_err(), Error::NoGradients);
    for scale in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        assert!(matches!(ScaledGradients::new(GradientsParams::new(), scale), Err(Error::InvalidScaler { .. })));
        let state = ScalerState { scale, streak: 0 };
        assert!(LossScaler::for_precision(Precision::F16).restore(state).is_err(), "{scale}");
    }
    // A fixed scale is restored as itself only.
    let mut fixed = LossScaler::for_precision(Precision::F32);
    assert!(fixed.restore(ScalerState { scale: 65536.0, streak: 0 }).is_err());
    assert!(LossScaler::for_precision(Precision::F16).restore(ScalerState { scale: 0.5, streak: 0 }).is_err());
    for limit in [0.0, -1.0, f64::NAN] {
        let mut scaler = LossScaler::for_precision(Precision::F32);
        let probed = scaler.scale(model.loss(x.clone(), y.clone())).unwrap().backward(&model).probe(&model).unwrap();
        assert!(matches!(scaler.update(&model, probed, Some(limit)), Err(Error::InvalidNorm(_))), "{limit}");
    }
    // The tutorials' mistake: the model itself in f16 *and* a scaler.
    let halved = model.clone().first.map(&mut ToF16);
    let loss = halved.forward(x.cast(DType::F16)).cast(DType::F32).mean();
    let refused = scaler.scale(loss).unwrap().backward(&halved).probe(&halved).map(|_| ()).unwrap_err();
    assert_eq!(refused, Error::F16Gradients { path: "weight".into() });
    assert_eq!(Policy::new(Precision::F16).store(Net::new(&device)).map(|_| ()).unwrap_err(), Error::StoresF16);
    let stored = Policy::new(Precision::BF16).keep_path("norm").store(Net::new(&device)).unwrap();
    let dtypes = [stored.first.weight.val(), stored.last.weight.val()].map(|weight| weight.dtype());
    assert_eq!((dtypes, stored.norm.gamma.val().dtype()), ([DType::BF16; 2], DType::F32));
}

struct ToF16;
impl burn::module::ModuleMapper for ToF16 {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|tensor| Tensor::from_inner(tensor.inner().cast(DType::F16)).require_grad())
    }
}
