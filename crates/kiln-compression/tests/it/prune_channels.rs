//! Channels: found, chosen, masked, removed.

use std::collections::{BTreeMap, BTreeSet};

use burn::module::{Module, ModuleMapper, Param};
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamWConfig, GradientsParams};
use burn::store::ModuleRecord;
use burn::tensor::activation::{gelu, sigmoid, softmax};
use burn::tensor::{Device, Distribution, Tensor, TensorData};
use kiln_compression::{
    ChannelPruning, Channels, Error, Kept, Masks, Shapes, mask_channels, mask_moments, reshape_like, shrink,
    shrink_moments,
};
use kiln_models::{
    MobileNet, MobileNetV2Config, MobileNetV3Config, ResNet, ResNetConfig, ShuffleNetV2Config, Stem, UnetConfig,
    VitConfig,
};
use serde::Deserialize;

/// What `fixtures/compression/record_prune.py` records of Torch-Pruning and torchvision's ResNet-18.
#[derive(Deserialize)]
struct Recorded {
    groups: Vec<RecordedGroup>,
    layer_multiply_adds: [u64; 2],
    shapes_after: BTreeMap<String, Vec<usize>>,
}

#[derive(Deserialize)]
struct RecordedGroup {
    size: usize,
    members: BTreeSet<(String, usize)>,
    importance: Vec<f32>,
}

fn recorded() -> Result<Recorded, Error> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/compression/prune_groups.json");
    let load = |reason: String| Error::Load { path: path.into(), reason };
    let text = std::fs::read_to_string(path).map_err(|e| load(e.to_string()))?;
    serde_json::from_str(&text).map_err(|e| load(e.to_string()))
}

fn resnet(config: &ResNetConfig, device: &Device) -> ResNet {
    config.clone().with_lean(false).init(device).unwrap_or_else(|error| panic!("{error}"))
}

fn resnet_channels(config: &ResNetConfig, size: usize) -> Result<Channels, Error> {
    Channels::of(
        |device| resnet(config, device),
        |model, device| model.forward(Tensor::zeros([1, 3, size, size], device)),
    )
}

fn mobilenet(config: &MobileNetV2Config, device: &Device) -> MobileNet {
    config.clone().with_lean(false).init(device).unwrap_or_else(|error| panic!("{error}"))
}

fn mobilenet_channels(config: &MobileNetV2Config) -> Result<Channels, Error> {
    Channels::of(
        |device| mobilenet(config, device),
        |model, device| model.forward(Tensor::zeros([1, 3, 32, 32], device)),
    )
}

/// The script's weights: sin of a number of the parameter and the element.
#[derive(Default)]
struct Wave {
    path: Vec<String>,
    numbers: BTreeMap<String, usize>,
    counting: bool,
}

impl ModuleMapper for Wave {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.push(name.to_owned());
    }
    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let path = self.path.join(".");
        if path.contains("running_") {
            return param;
        }
        if self.counting {
            self.numbers.insert(path, 0);
            return param;
        }
        let number = self.numbers[&path] as f64 * 1.7;
        param.map(|tensor| {
            let shape = tensor.shape();
            let count = shape.num_elements();
            // The linear layer's weight has torch's order.
            let order: Vec<usize> = match path.as_str() {
                "fc.weight" => (0..count).map(|i| i % shape[1] * shape[0] + i / shape[1]).collect(),
                _ => (0..count).collect(),
            };
            let values: Vec<f32> = order.into_iter().map(|i| (i as f64 * 0.37 + number).sin() as f32 * 0.1).collect();
            Tensor::from_data(TensorData::new(values, shape), &tensor.device())
        })
    }
}

#[test]
fn groups_importance_and_costs_are_those_of_torch_pruning() -> Result<(), Error> {
    let recorded = recorded()?;
    let config = ResNetConfig::resnet18(1000);
    let channels = resnet_channels(&config, 224)?;
    let ours: BTreeMap<BTreeSet<(String, usize)>, usize> = channels
        .groups
        .iter()
        .map(|group| (group.members.iter().map(|member| (member.path.clone(), member.axis)).collect(), group.size))
        .collect();
    let theirs: BTreeMap<_, _> = recorded.groups.iter().map(|group| (group.members.clone(), group.size)).collect();
    assert_eq!(ours, theirs);

    let model = resnet(&config, &Device::flex());
    let mut wave = Wave { counting: true, ..Wave::default() };
    let model = model.map(&mut wave);
    wave.counting = false;
    wave.numbers.values_mut().zip(0..).for_each(|(number, index)| *number = index);
    let model = model.map(&mut wave);
    let importance = channels.importance(&model)?;
    for group in &recorded.groups {
        let first = group.members.first();
        let index = channels.groups.iter().position(|own| {
            own.size == group.size && own.members.iter().any(|m| first == Some(&(m.path.clone(), m.axis)))
        });
        let ours = &importance[index.unwrap_or(usize::MAX)];
        for (own, reference) in ours.iter().zip(&group.importance) {
            // Theirs is the square.
            assert!((own * own - reference).abs() < 1e-3 * reference, "{own} squared, expected {reference}");
        }
    }

    assert_eq!(channels.multiply_adds(&channels.all()), recorded.layer_multiply_adds[0]);
    let kept = channels.choose(&model, &ChannelPruning::uniform(0.5))?;
    assert_eq!(channels.multiply_adds(&kept), recorded.layer_multiply_adds[1]);
    let shapes = Shapes::of(&shrink(model, &kept)?);
    let convolutions: BTreeMap<_, _> = shapes.0.into_iter().filter(|(_, shape)| shape.len() == 4).collect();
    assert_eq!(convolutions, recorded.shapes_after);
    Ok(())
}

/// Outputs of the masked and the shrunk model, each relative to the largest output.
fn difference<M: Module>(
    model: M,
    channels: &Channels,
    kept: &Kept,
    forward: impl Fn(&M) -> Tensor<2>,
) -> Result<f32, Error> {
    let full = forward(&model);
    let masked = mask_channels(model.clone().apply_reparameterization(Masks::of_channels(channels)), kept)?;
    let expected = forward(&masked);
    let largest = expected.clone().abs().max().into_scalar::<f32>();
    assert!((full - expected.clone()).abs().max().into_scalar::<f32>() > 1e-3 * largest, "masks change the output");
    let small = shrink(model.clone(), kept)?;
    assert!(small.num_params() < model.num_params());
    let cut_masks = shrink(masked, kept)?;
    let [small, cut_masks] = [&small, &cut_masks.materialize()].map(&forward);
    assert_eq!(small.to_data(), cut_masks.to_data());
    Ok((small - expected).abs().max().into_scalar::<f32>() / largest)
}

fn image(batch: usize, device: &Device) -> Tensor<4> {
    Tensor::random([batch, 3, 32, 32], Distribution::Normal(0.0, 1.0), device)
}

/// Training batches give the running statistics values of their own.
fn trained<M: Module>(model: M, forward: impl Fn(&M, Tensor<4>) -> Tensor<2>) -> M {
    let device = Device::flex().autodiff();
    let model = model.train();
    drop(forward(&model, image(4, &device)));
    model.valid()
}

#[test]
fn a_shrunk_network_computes_what_the_masked_one_does() -> Result<(), Error> {
    let device = Device::flex();
    let x = image(2, &device);
    for config in [ResNetConfig::resnet18(7), ResNetConfig::resnet50(7)] {
        let config = config.with_stem(Stem::Cifar).with_width(16);
        let channels = resnet_channels(&config, 32)?;
        let model = trained(resnet(&config, &device), |model, x| model.forward(x));
        for how in [ChannelPruning::uniform(0.4), ChannelPruning::MultiplyAdds { left: 0.3, round_to: 4 }] {
            let kept = channels.choose(&model, &how)?;
            let difference = difference(model.clone(), &channels, &kept, |model| model.forward(x.clone()))?;
            assert!(difference < 1e-5, "{} {how:?}: {difference}", config.name());
        }
    }
    let config = MobileNetV2Config::new(7).with_width(0.5).with_stem(Stem::Cifar);
    let channels = mobilenet_channels(&config)?;
    let model = trained(mobilenet(&config, &device), |model, x| model.forward(x));
    for how in [ChannelPruning::uniform(0.4), ChannelPruning::MultiplyAdds { left: 0.3, round_to: 4 }] {
        let kept = channels.choose(&model, &how)?;
        let difference = difference(model.clone(), &channels, &kept, |model| model.forward(x.clone()))?;
        assert!(difference < 1e-5, "MobileNetV2 {how:?}: {difference}");
    }
    Ok(())
}

/// Squeeze-and-excitation, concatenation, shuffled channels, attention: what can be removed is removed, and the rest stays.
#[test]
fn other_architectures_shrink_where_they_can() -> Result<(), Error> {
    fn check<M: Module>(
        build: impl Fn(&Device) -> Result<M, kiln_models::Error>,
        forward: impl Fn(&M, Tensor<4>) -> Tensor<2>,
    ) -> Result<usize, Error> {
        let device = Device::flex();
        let build = |device: &Device| build(device).unwrap_or_else(|error| panic!("{error}"));
        let channels = Channels::of(build, |model, device| forward(model, Tensor::zeros([1, 3, 32, 32], device)))?;
        let model = trained(build(&device), &forward);
        let kept = channels.choose(&model, &ChannelPruning::uniform(0.5))?;
        let x = image(2, &device);
        let difference = difference(model, &channels, &kept, |model| forward(model, x.clone()))?;
        assert!(difference < 1e-5, "{difference}");
        Ok(channels.groups.len())
    }
    let v3 = MobileNetV3Config::large(5).with_width(0.25).with_lean(false);
    let v3 = check(|device| v3.init(device), |model, x| model.forward(x))?;
    let unet = UnetConfig::new(2).with_width(0.125).with_lean(false);
    let unet = check(|device| unet.init(device), |model, x| model.forward(x).flatten(1, 3))?;
    let shuffle = ShuffleNetV2Config::named("shufflenet_v2_x0_5", 5).map(|config| config.with_lean(false));
    let shuffle = shuffle.unwrap_or_else(|error| panic!("{error}"));
    let shuffle = check(|device| shuffle.init(device), |model, x| model.forward(x))?;
    let vit = VitConfig::named("vit_tiny", 5).map(|c| c.with_image(32).with_patch(8).with_blocks(2).with_lean(false));
    let vit = vit.unwrap_or_else(|error| panic!("{error}"));
    let vit = check(|device| vit.init(device), |model, x| model.forward(x))?;
    // Of the vision transformer, what is inside of the two feed-forward layers: its heads are sizes in its code.
    assert_eq!([v3, unet, shuffle, vit], [30, 15, 18, 2]);
    Ok(())
}

#[test]
fn multiply_adds_reach_the_target_and_not_far_below() -> Result<(), Error> {
    let config = MobileNetV2Config::new(10);
    let channels = mobilenet_channels(&config)?;
    let model = mobilenet(&config, &Device::flex());
    let all = channels.multiply_adds(&channels.all());
    for (left, round_to) in [(0.7, 1), (0.5, 8)] {
        let kept = channels.choose(&model, &ChannelPruning::MultiplyAdds { left, round_to })?;
        let part = channels.multiply_adds(&kept) as f64 / all as f64;
        assert!(part <= left && part > left - 0.03, "{part} of {left}");
        assert!(
            kept.groups
                .iter()
                .all(|own| own.channels.len().is_multiple_of(round_to) || own.channels.len() == own.group.size)
        );
    }
    let too_much = channels.choose(&model, &ChannelPruning::multiply_adds(1e-6));
    assert!(matches!(too_much, Err(Error::InvalidSetting { name: "left", .. })));
    for wrong in [
        ChannelPruning::uniform(1.0),
        ChannelPruning::multiply_adds(0.0),
        ChannelPruning::Uniform { ratio: 0.5, round_to: 0 },
    ] {
        assert!(matches!(channels.choose(&model, &wrong), Err(Error::InvalidSetting { .. })), "{wrong:?}");
    }
    Ok(())
}

#[test]
fn a_record_of_a_shrunk_model_loads_into_a_model_of_its_shapes() -> Result<(), Error> {
    let device = Device::flex();
    let config = MobileNetV2Config::new(7).with_width(0.25);
    let channels = mobilenet_channels(&config)?;
    let model = trained(mobilenet(&config, &device), |model, x| model.forward(x));
    let kept = channels.choose(&model, &ChannelPruning::uniform(0.5))?;
    let other = model.clone();
    let before = other.forward(image(1, &device));
    let small = shrink(model, &kept)?;
    assert_eq!(other.forward(image(1, &device)).dims(), before.dims(), "a clone keeps its statistics");

    let shapes = serde_json::to_string(&Shapes::of(&small)).map_err(|e| Error::Record(e.to_string()))?;
    let kept_text = serde_json::to_string(&kept).map_err(|e| Error::Record(e.to_string()))?;
    assert_eq!(serde_json::from_str::<Kept>(&kept_text).ok(), Some(kept));
    let bytes = small.clone().into_record().into_bytes().map_err(|e| Error::Record(e.to_string()))?;
    let shapes: Shapes = serde_json::from_str(&shapes).map_err(|e| Error::Record(e.to_string()))?;
    let fresh = reshape_like(mobilenet(&config, &device), &shapes)?;
    let loaded = fresh.load_record(ModuleRecord::from_bytes(bytes).map_err(|e| Error::Record(e.to_string()))?);
    let x = image(2, &device);
    assert_eq!(loaded.forward(x.clone()).into_data(), small.forward(x).into_data());

    let larger = Shapes(BTreeMap::from([("classifier.weight".to_owned(), vec![9999, 7])]));
    assert!(matches!(reshape_like(small.clone(), &larger), Err(Error::InvalidSetting { .. })));
    let unknown = Shapes(BTreeMap::from([("nothing".to_owned(), vec![1])]));
    assert!(matches!(reshape_like(small, &unknown), Err(Error::UnknownParameter { .. })));
    Ok(())
}

#[test]
fn training_goes_on_with_the_moments_of_what_is_left() -> Result<(), Error> {
    let device = Device::flex().autodiff();
    let config = ResNetConfig::resnet18(5).with_stem(Stem::Cifar).with_width(4);
    let channels = resnet_channels(&config, 32)?;
    let mut model = resnet(&config, &device).apply_reparameterization(Masks::of_channels(&channels));
    let kept = channels.choose(&model, &ChannelPruning::uniform(0.5))?;
    model = mask_channels(model, &kept)?;
    let mut optimizer = AdamWConfig::new().with_weight_decay(0.0).init();
    let x = image(4, &device);
    let step = |optimizer: &mut burn::optim::ModuleOptimizer, model: ResNet| {
        let loss = model.forward(x.clone()).square().mean();
        let value = loss.clone().into_scalar::<f32>();
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        (optimizer.step(1e-3, model, gradients), value)
    };
    for _ in 0..2 {
        model = step(&mut optimizer, model).0;
    }
    optimizer = mask_moments(optimizer, &model)?;
    let mut small = shrink(model.clone(), &kept)?;
    let mut small_optimizer = shrink_moments(optimizer.clone(), &model, &kept)?;
    for _ in 0..3 {
        let (masked, expected) = step(&mut optimizer, model);
        let (shrunk, own) = step(&mut small_optimizer, small);
        // Adam divides by roots of small moments, which enlarges differences of rounding.
        assert!((own - expected).abs() < 1e-3 * expected, "{own} and {expected}");
        (model, small) = (masked, shrunk);
    }
    Ok(())
}

#[derive(Module, Debug)]
struct Flat {
    conv: Conv2d,
    fc: Linear,
}

impl Flat {
    fn new(device: &Device) -> Self {
        Self {
            conv: Conv2dConfig::new([3, 6], [3, 3]).init(device),
            fc: LinearConfig::new(6 * 30 * 30, 4).init(device),
        }
    }

    fn forward(&self, x: Tensor<4>) -> Tensor<2> {
        self.fc.forward(sigmoid(self.conv.forward(x)).flatten(1, 3))
    }
}

#[test]
fn flattened_maps_are_cut_in_blocks() -> Result<(), Error> {
    let device = Device::flex();
    let channels = Channels::of(Flat::new, |net, device| net.forward(Tensor::zeros([1, 3, 32, 32], device)))?;
    let blocks: Vec<_> = channels.groups[0].members.iter().map(|m| (m.path.as_str(), m.axis, m.block)).collect();
    assert_eq!(blocks, [("conv.weight", 0, 1), ("conv.bias", 0, 1), ("fc.weight", 0, 900)]);
    let net = Flat::new(&device);
    let kept = channels.choose(&net, &ChannelPruning::uniform(0.5))?;
    assert_eq!(channels.multiply_adds(&kept), 900 * 3 * 27 + 2700 * 4);
    let x = image(2, &device);
    // A sigmoid of nothing is one half: the layer that reads it is masked too.
    let difference = difference(net, &channels, &kept, |net| net.forward(x.clone()))?;
    assert!(difference < 1e-5, "{difference}");
    Ok(())
}

#[derive(Module, Debug)]
struct Attention {
    query: Linear,
    key: Linear,
    up: Linear,
    down: Linear,
}

#[test]
fn channels_that_are_mixed_are_no_group() -> Result<(), Error> {
    let build = |device: &Device| Attention {
        query: LinearConfig::new(8, 6).init(device),
        key: LinearConfig::new(8, 6).init(device),
        up: LinearConfig::new(8, 12).init(device),
        down: LinearConfig::new(12, 8).init(device),
    };
    let forward = |net: &Attention, device: &Device| {
        let x = Tensor::<3>::zeros([2, 5, 8], device);
        let weights = softmax(net.query.forward(x.clone()).matmul(net.key.forward(x.clone()).swap_dims(1, 2)), 2);
        let x = weights.matmul(x);
        x.clone() + net.down.forward(gelu(net.up.forward(x)))
    };
    let channels = Channels::of(build, forward)?;
    let members: Vec<Vec<String>> = channels
        .groups
        .iter()
        .map(|group| group.members.iter().map(|member| format!("{} {}", member.path, member.axis)).collect())
        .collect();
    let queries = ["query.weight 1", "query.bias 0", "key.weight 1", "key.bias 0"];
    assert_eq!(members, [queries.to_vec(), vec!["up.weight 1", "up.bias 0", "down.weight 0"]]);
    assert_eq!(channels.layers.len(), 4);

    let soft = Channels::of(build, |net, device| {
        let x = Tensor::<3>::zeros([2, 5, 8], device);
        net.down.forward(softmax(net.up.forward(x), 2))
    })?;
    assert!(soft.groups.is_empty(), "{:?}", soft.groups);
    let panics = Channels::of(build, |_, _| -> () { panic!("no forward pass") });
    assert_eq!(panics, Err(Error::Record("no forward pass".into())));
    let model = build(&Device::flex());
    let foreign = resnet_channels(&ResNetConfig::resnet18(5).with_width(4), 32)?.all();
    assert!(matches!(shrink(model.clone(), &foreign), Err(Error::UnknownParameter { .. })));
    assert!(matches!(mask_channels(model, &channels.all()), Err(Error::UnknownParameter { .. })));
    Ok(())
}
