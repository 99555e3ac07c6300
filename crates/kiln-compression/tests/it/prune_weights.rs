//! Masks on single weights: attached, changed, trained, saved, baked.

use std::collections::BTreeMap;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, Reparameterization, Reparameterizer};
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use burn::optim::momentum::MomentumConfig;
use burn::optim::{AdamWConfig, GradientsParams, ModuleOptimizer, SgdConfig};
use burn::store::ModuleRecord;
use burn::tensor::{Device, Distribution, Tensor};
use kiln_compression::{
    Error, Masks, Nest, Pruning, Scope, mask_moments, masks_of, prune, set_masks, sparsity, unprune, zero_pruned,
};

#[derive(Module, Debug)]
struct Net {
    conv: Conv2d,
    norm: BatchNorm,
    fc: Linear,
}

impl Net {
    fn new(device: &Device) -> Self {
        Self {
            conv: Conv2dConfig::new([8, 6], [3, 3]).init(device),
            norm: BatchNormConfig::new(6).init(device),
            fc: LinearConfig::new(6, 4).init(device),
        }
    }

    fn masked(device: &Device) -> Self {
        let net = Self::new(device);
        let masks = Masks::of(&net);
        net.apply_reparameterization(masks)
    }

    fn forward(&self, x: Tensor<4>) -> Tensor<2> {
        self.fc.forward(self.norm.forward(self.conv.forward(x)).mean_dims(&[2, 3]).flatten(1, 3))
    }

    fn loss(&self, device: &Device) -> Tensor<1> {
        self.forward(Tensor::random([5, 8, 4, 4], Distribution::Normal(0.0, 1.0), device)).square().mean()
    }
}

fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().iter().collect()
}

#[test]
fn masks_are_attached_to_weights_of_layers_only() {
    let net = Net::masked(&Device::flex());
    let masks = masks_of(&net);
    assert_eq!(masks.keys().collect::<Vec<_>>(), ["conv.weight", "fc.weight"]);
    assert!(masks.values().flatten().all(|kept| *kept));
    let plain = Net::new(&Device::flex());
    assert_eq!(
        Masks::of(&plain).skip("fc").map(|m| m.paths().map(str::to_owned).collect()),
        Ok(vec!["conv.weight".to_owned()])
    );
    assert_eq!(Masks::of(&plain).only("fc.weight").map(|m| m.paths().count()), Ok(1));
    assert!(matches!(Masks::of(&plain).only("f"), Err(Error::UnknownParameter { path, .. }) if path == "f"));
}

#[test]
fn pruned_weights_and_their_gradients_are_exact_zeros() -> Result<(), Error> {
    let device = Device::flex().autodiff();
    let net = prune(Net::masked(&device), &Pruning::Magnitude { sparsity: 0.5, scope: Scope::Layer })?;
    let report = sparsity(&net);
    assert_eq!(
        report.layers.iter().map(|layer| (layer.pruned, layer.total)).collect::<Vec<_>>(),
        [(216, 432), (12, 24)]
    );
    let gradients = net.loss(&device).backward();
    let masks = masks_of(&net);
    for (path, value, base, gradient) in [
        (
            "conv.weight",
            values(net.conv.weight.val()),
            values(net.conv.weight.base()),
            net.conv.weight.base().grad(&gradients).map(values),
        ),
        (
            "fc.weight",
            values(net.fc.weight.val()),
            values(net.fc.weight.base()),
            net.fc.weight.base().grad(&gradients).map(values),
        ),
    ] {
        let gradient = gradient.unwrap_or_default();
        assert_eq!(gradient.len(), value.len());
        for (index, kept) in masks[path].iter().enumerate() {
            assert!(base[index] != 0.0);
            // A filter of 72 weights has no gradient if the four weights that read its feature are pruned.
            let is_read = path == "fc.weight" || masks["fc.weight"][index / 72 * 4..][..4].iter().any(|kept| *kept);
            match kept {
                true => assert!(value[index] == base[index] && (gradient[index] != 0.0) == is_read),
                false => assert!(value[index] == 0.0 && gradient[index] == 0.0),
            }
        }
    }
    let zeroed = zero_pruned(net.clone());
    assert_eq!(values(zeroed.conv.weight.base()), values(net.conv.weight.val()));
    assert!(zeroed.conv.weight.base().is_require_grad());
    Ok(())
}

#[test]
fn masks_grow_and_are_kept_by_valid_train_records_and_baking() -> Result<(), Error> {
    let device = Device::flex().autodiff();
    let x = Tensor::<4>::random([2, 8, 4, 4], Distribution::Default, &Device::flex());
    let once = prune(Net::masked(&device), &Pruning::Random { sparsity: 0.3, scope: Scope::Global, seed: 7 })?;
    let net = prune(once.clone(), &Pruning::magnitude(0.6))?;
    let (before, after) = (masks_of(&once), masks_of(&net));
    assert!(before.iter().all(|(path, mask)| mask.iter().zip(&after[path]).all(|(before, after)| *before || !after)));
    assert_eq!(sparsity(&net).total(), 274.0 / 456.0);
    assert_eq!(masks_of(&prune(net.clone(), &Pruning::magnitude(0.1))?), after);

    let expected = values(net.valid().forward(x.clone()));
    assert_eq!(masks_of(&net.valid().train()), after);
    let bytes = net.clone().into_record().into_bytes().map_err(|e| Error::Optimizer(e.to_string()))?;
    let record = ModuleRecord::from_bytes(bytes).map_err(|e| Error::Optimizer(e.to_string()))?;
    let loaded = Net::masked(&device).load_record(record);
    assert_eq!(masks_of(&loaded), after);
    assert_eq!(values(loaded.valid().forward(x.clone())), expected);
    let baked = net.clone().materialize();
    assert!(masks_of(&baked).is_empty());
    assert_eq!(values(baked.valid().forward(x)), expected);
    assert_eq!(sparsity(&unprune(net)).total(), 0.0);
    Ok(())
}

#[test]
fn two_of_four_run_along_the_input() -> Result<(), Error> {
    let device = Device::flex();
    let net = prune(Net::masked(&device), &Pruning::two_of_four())?;
    let conv = &masks_of(&net)["conv.weight"];
    for (o, k) in (0..6).flat_map(|o| (0..9).map(move |k| (o, k))) {
        for group in 0..2 {
            let kept = (0..4).filter(|i| conv[(o * 8 + group * 4 + i) * 9 + k]).count();
            assert_eq!(kept, 2, "output {o}, place {k}, group {group}");
        }
    }
    // Six inputs: four of them are a group, two stay.
    let fc = &masks_of(&net)["fc.weight"];
    for o in 0..4 {
        assert_eq!((0..4).filter(|i| fc[i * 4 + o]).count(), 2);
        assert!(fc[4 * 4 + o] && fc[5 * 4 + o]);
    }
    Ok(())
}

#[derive(Module, Debug)]
struct Twice {
    factor: f64,
}

impl Reparameterization for Twice {
    const NAME: &'static str = "twice";
    fn apply<const D: usize>(&self, base: Tensor<D>) -> Tensor<D> {
        base * self.factor
    }
}

struct AttachTwice;

impl Reparameterizer for AttachTwice {
    type Reparam = Twice;
    fn reparameterize<const D: usize>(
        &mut self,
        _: &str,
        param: Param<Tensor<D>>,
    ) -> (Param<Tensor<D>>, Option<Twice>) {
        (param, Some(Twice { factor: 2.0 }))
    }
}

#[test]
fn masks_nest_with_other_reparameterizations() -> Result<(), Error> {
    let net = Net::new(&Device::flex());
    let nest = Nest::new(Masks::of(&net), AttachTwice);
    let net = prune(net.apply_reparameterization(nest), &Pruning::magnitude(0.5))?;
    assert_eq!(sparsity(&net).total(), 0.5);
    let masks = masks_of(&net);
    let expected = values(net.fc.weight.base())
        .into_iter()
        .zip(&masks["fc.weight"])
        .map(|(v, kept)| if *kept { v * 2.0 } else { 0.0 });
    assert_eq!(values(net.fc.weight.val()), expected.collect::<Vec<_>>());
    assert_eq!(
        values(net.fc.bias.clone().map(|b| b.val()).unwrap_or_else(|| Tensor::zeros([0], &Device::flex()))).len(),
        4
    );
    Ok(())
}

#[test]
fn what_does_not_fit_is_an_error() {
    let device = Device::flex();
    assert!(matches!(prune(Net::new(&device), &Pruning::magnitude(0.5)), Err(Error::NoMasks)));
    for wrong in [
        Pruning::magnitude(1.5),
        Pruning::magnitude(f64::NAN),
        Pruning::NOfM { n: 4, m: 4 },
        Pruning::NOfM { n: 0, m: 4 },
    ] {
        assert!(matches!(prune(Net::masked(&device), &wrong), Err(Error::InvalidSetting { .. })), "{wrong:?}");
    }
    let unknown = BTreeMap::from([("norm.gamma".to_owned(), vec![true; 6])]);
    assert!(matches!(set_masks(Net::masked(&device), unknown), Err(Error::UnknownParameter { .. })));
    let short = BTreeMap::from([("fc.weight".to_owned(), vec![true; 6])]);
    assert!(matches!(set_masks(Net::masked(&device), short), Err(Error::InvalidSetting { .. })));
}

/// What an optimizer does to the weights in a step with gradients of zero is its moments.
fn moments_after(mut optimizer: ModuleOptimizer, device: &Device) -> Result<(), Error> {
    let mut net = Net::masked(device);
    for _ in 0..2 {
        let gradients = GradientsParams::from_grads(net.loss(device).backward(), &net);
        net = optimizer.step(0.01, net, gradients);
    }
    let net = prune(net, &Pruning::Magnitude { sparsity: 0.5, scope: Scope::Layer })?;
    let masked = mask_moments(optimizer.clone(), &net)?;
    let [plain, masked] = [optimizer, masked].map(|mut optimizer| {
        let mut zeros = GradientsParams::new();
        struct Zeros<'a>(&'a mut GradientsParams);
        impl ModuleVisitor for Zeros<'_> {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                if param.is_require_grad() {
                    let value = param.val().inner();
                    self.0.register(param.id, value.zeros_like());
                }
            }
        }
        net.visit(&mut Zeros(&mut zeros));
        optimizer.step(0.01, net.clone(), zeros)
    });
    let masks = masks_of(&net);
    let (start, plain, masked) = (&net, &plain, &masked);
    let mut moved = 0;
    for (path, [start, plain, masked]) in [
        ("conv.weight", [start, plain, masked].map(|net| values(net.conv.weight.base()))),
        ("fc.weight", [start, plain, masked].map(|net| values(net.fc.weight.base()))),
    ] {
        for (index, kept) in masks[path].iter().enumerate() {
            match kept {
                true => assert_eq!(masked[index].to_bits(), plain[index].to_bits()),
                false => {
                    assert_eq!(masked[index].to_bits(), start[index].to_bits());
                    moved += usize::from(plain[index] != start[index]);
                }
            }
        }
    }
    assert!(moved > 200, "moments move pruned weights");
    // Without a mask, and the running state of the optimizer: nothing changes.
    assert_eq!(values(plain.norm.gamma.val()), values(masked.norm.gamma.val()));
    Ok(())
}

#[test]
fn momentum_of_pruned_weights_is_zero_and_the_rest_keeps_its_bits() -> Result<(), Error> {
    let device = Device::flex().autodiff();
    let momentum = MomentumConfig::new().with_momentum(0.9).with_dampening(0.0);
    moments_after(SgdConfig::new().with_momentum(Some(momentum)).init(), &device)?;
    moments_after(AdamWConfig::new().with_weight_decay(0.0).init(), &device)
}

/// Mappers of others see the masks, and the model goes on working.
#[test]
fn other_mappers_do_not_lose_masks() -> Result<(), Error> {
    struct Double;
    impl ModuleMapper for Double {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            param.map(|tensor| tensor * 2.0)
        }
    }
    let net = prune(Net::masked(&Device::flex()), &Pruning::magnitude(0.5))?;
    let doubled = net.clone().map(&mut Double);
    assert_eq!(masks_of(&doubled), masks_of(&net));
    assert_eq!(values(doubled.fc.weight.val()), values(net.fc.weight.val() * 2.0));
    Ok(())
}
