//! Batch norms folded into convolutions.

use burn::module::{Module, ModuleMapper, Param};
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use burn::tensor::{Device, Distribution, Tensor};
use kiln_compression::{Error, Masks, Quantization, fold_batch_norm, quantize};
use kiln_models::ResNetConfig;

/// Random gains of both signs, summands and statistics.
#[derive(Default)]
struct Trained(Vec<String>);

impl ModuleMapper for Trained {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.0.push(name.to_owned());
    }
    fn exit_module(&mut self, _: &str, _: &str) {
        self.0.pop();
    }
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (low, high) = match self.0.last().map_or("", String::as_str) {
            "gamma" => (-1.5, 1.5),
            "beta" | "running_mean" | "bias" => (-0.5, 0.5),
            "running_var" => (0.2, 3.0),
            _ => return param,
        };
        param.map(|old| Tensor::random(old.shape(), Distribution::Uniform(low, high), &old.device()))
    }
}

fn off(found: Tensor<2>, expected: Tensor<2>) -> f32 {
    ((found - expected.clone()).abs().max() / expected.abs().max()).into_scalar()
}

#[test]
fn a_folded_resnet_computes_the_same_and_has_the_same_codes() {
    let device = Device::flex();
    device.seed(5);
    let mut pairs = vec![("conv1".to_owned(), "bn1".to_owned())];
    for (stage, block) in (1..=4).flat_map(|stage| [(stage, 0), (stage, 1)]) {
        let path = format!("layer{stage}.{block}");
        pairs.extend([1, 2].map(|layer| (format!("{path}.conv{layer}"), format!("{path}.bn{layer}"))));
        if block == 0 && stage > 1 {
            pairs.push((format!("{path}.downsample.conv"), format!("{path}.downsample.norm")));
        }
    }
    let images = Tensor::<4>::random([2, 3, 64, 64], Distribution::Normal(0.0, 1.0), &device);
    for lean in [false, true] {
        let config = ResNetConfig::resnet18(10).with_width(8).with_lean(lean);
        let model = config.init(&device).unwrap().map(&mut Trained::default());
        let folded = fold_batch_norm(model.clone(), &pairs, 1e-5).unwrap();
        let off = off(folded.forward(images.clone()), model.forward(images.clone()));
        assert!(off < 1e-5, "lean {lean}: {off}");

        let settings = Quantization::bits(8);
        let [before, after] = [quantize(&model, &settings).unwrap(), quantize(&folded, &settings).unwrap()];
        let mut ties = 0;
        for (convolution, _) in &pairs {
            let [before, after] = [&before, &after].map(|model| &model.weights()[&format!("{convolution}.weight")]);
            let length = before.blocks().length;
            for (before, after) in before.codes().chunks(length).zip(after.codes().chunks(length)) {
                let same: i32 = before.iter().zip(after).map(|(b, a)| i32::from(*b) * i32::from(*a)).sum();
                for (before, after) in before.iter().zip(after) {
                    let after = i32::from(*after) * same.signum();
                    ties += usize::from(after != i32::from(*before));
                    assert!((after - i32::from(*before)).abs() <= 1, "{convolution}: {before} {after}");
                }
            }
        }
        // Of 175,000 codes.
        assert!(ties < 20, "{ties} codes differ");
    }
}

#[derive(Module, Debug)]
struct Net {
    conv: Conv2d,
    norm: BatchNorm,
    square: Linear,
}

#[test]
fn a_bias_is_folded_too_and_what_cannot_be_folded_is_an_error() {
    let device = Device::flex();
    let net = Net {
        conv: Conv2dConfig::new([3, 4], [3, 3]).init(&device),
        norm: BatchNormConfig::new(4).init(&device),
        square: LinearConfig::new(4, 4).init(&device),
    };
    let net = net.map(&mut Trained::default());
    assert!(net.conv.bias.is_some());
    let forward = |net: &Net, x| net.norm.forward(net.conv.forward(x)).flatten::<2>(1, 3);
    let x = Tensor::<4>::random([2, 3, 5, 5], Distribution::Default, &device);
    let folded = fold_batch_norm(net.clone(), &[("conv", "norm")], 1e-5).unwrap();
    assert!(off(forward(&folded, x.clone()), forward(&net, x)) < 1e-6);

    let error = |pairs: &[(&str, &str)]| fold_batch_norm(net.clone(), pairs, 1e-5).map(drop).unwrap_err();
    assert!(matches!(error(&[("square", "norm")]), Error::UnknownParameter { path, .. } if path == "square"));
    assert!(matches!(error(&[("conv", "conv")]), Error::UnknownParameter { path, .. } if path == "conv"));
    assert!(matches!(error(&[("conv", "norm"), ("conv", "norm")]), Error::InvalidSetting { .. }));
    let masks = Masks::of(&net);
    let masked = net.apply_reparameterization(masks);
    let error = fold_batch_norm(masked, &[("conv", "norm")], 1e-5).map(drop).unwrap_err();
    assert!(matches!(error, Error::Reparameterized { path } if path == "conv.weight"));
}
