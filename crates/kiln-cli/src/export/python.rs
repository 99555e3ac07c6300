//! The lines of Python that build an architecture from parts of torchvision, timm or segmentation_models_pytorch.

use kiln_models::{
    ClassifierConfig, MobileNetV2Config, MobileNetV3Config, ResNetConfig, ShuffleNetV2Config, Stem, UnetConfig,
    UnetEncoder,
};

/// How Python gets the model.
pub(super) enum Loading {
    /// Lines that make a model without weights, called `model`. One line needs no file of its own.
    Built { imports: Vec<&'static str>, lines: Vec<String> },
    /// A library reads config.json: imports, and the expression.
    FromConfig { imports: Vec<&'static str>, expression: &'static str },
}

/// The lines for a classifier. `None` if no library has its parts.
pub(super) fn classifier(config: &ClassifierConfig) -> Option<Loading> {
    let torchvision = vec!["import torch", "import torchvision"];
    let lines = match config {
        ClassifierConfig::ResNet(config) => resnet(config),
        ClassifierConfig::MobileNetV2(config) => mobilenet_v2(config),
        ClassifierConfig::MobileNetV3(config) => mobilenet_v3(config),
        ClassifierConfig::ShuffleNetV2(config) => shufflenet_v2(config),
        ClassifierConfig::Vit(_) => {
            let expression = "timm.create_model(\"local-dir:.\", pretrained=True)";
            return Some(Loading::FromConfig { imports: vec!["import timm"], expression });
        }
        _ => return None,
    };
    Some(Loading::Built { imports: torchvision, lines })
}

/// Blocks of the stages of a ResNet, their class in torchvision, and how much wider their output is.
struct Depth {
    stages: [usize; 4],
    block: &'static str,
    expansion: usize,
}

fn depth(name: &str) -> Depth {
    let (stages, block, expansion) = match name {
        "resnet18" => ([2, 2, 2, 2], "BasicBlock", 1),
        "resnet34" => ([3, 4, 6, 3], "BasicBlock", 1),
        "resnet50" => ([3, 4, 6, 3], "Bottleneck", 4),
        _ => ([3, 4, 23, 3], "Bottleneck", 4),
    };
    Depth { stages, block, expansion }
}

/// The first convolution and norm, and the stages, for a width that torchvision does not have. `module` is the module's name.
fn residual_stages(module: &str, name: &str, width: usize) -> Vec<String> {
    let Depth { stages, block, .. } = depth(name);
    let mut lines = vec![
        format!("{module}.bn1 = torch.nn.BatchNorm2d({width})"),
        format!("{module}.inplanes = {width}"),
        format!("block = torchvision.models.resnet.{block}"),
    ];
    for (stage, blocks) in stages.iter().enumerate() {
        let (number, channels) = (stage + 1, width << stage);
        let stride = if stage == 0 { "" } else { ", stride=2" };
        lines.push(format!("{module}.layer{number} = {module}._make_layer(block, {channels}, {blocks}{stride})"));
    }
    lines
}

fn resnet(config: &ResNetConfig) -> Vec<String> {
    let (name, width, classes) = (config.name(), config.width, config.classes);
    let mut lines = vec![format!("model = torchvision.models.{name}(num_classes={classes})")];
    let small = config.stem == Stem::Cifar;
    if width != 64 || small || config.channels != 3 {
        let kernel = if small { "3, 1, 1" } else { "7, 2, 3" };
        lines.push(format!("model.conv1 = torch.nn.Conv2d({}, {width}, {kernel}, bias=False)", config.channels));
    }
    if small {
        lines.push("model.maxpool = torch.nn.Identity()".into());
    }
    if width != 64 {
        lines.extend(residual_stages("model", name, width));
        let features = 8 * width * depth(name).expansion;
        lines.push(format!("model.fc = torch.nn.Linear({features}, {classes})"));
    }
    lines
}

/// The first convolution of a network, at `place`, for images that torchvision's network does not take.
fn first_convolution(place: &str, channels: usize, small: bool) -> Vec<String> {
    let mut lines = vec![];
    if channels != 3 {
        let stride = if small { 1 } else { 2 };
        lines.push(format!("{place} = torch.nn.Conv2d({channels}, {place}.out_channels, 3, {stride}, 1, bias=False)"));
    } else if small {
        lines.push(format!("{place}.stride = (1, 1)"));
    }
    lines
}

fn mobilenet_v2(config: &MobileNetV2Config) -> Vec<String> {
    let (classes, width, small) = (config.classes, config.width, config.stem == Stem::Cifar);
    let mut lines = vec![format!("model = torchvision.models.mobilenet_v2(num_classes={classes}, width_mult={width})")];
    lines.extend(first_convolution("model.features[0][0]", config.channels, small));
    if small {
        lines.push("model.features[2].conv[1][0].stride = (1, 1)".into());
    }
    lines
}

fn mobilenet_v3(config: &MobileNetV3Config) -> Vec<String> {
    let (classes, width, small) = (config.classes, config.width, config.stem == Stem::Cifar);
    let of = format!("num_classes={classes}, width_mult={width}");
    let mut lines = vec![format!("model = torchvision.models.mobilenet_v3_large({of})")];
    lines.extend(first_convolution("model.features[0][0]", config.channels, small));
    if small {
        lines.push("model.features[2].block[1][0].stride = (1, 1)".into());
    }
    lines
}

fn shufflenet_v2(config: &ShuffleNetV2Config) -> Vec<String> {
    let ([a, b, c, last], classes) = (config.widths, config.classes);
    let small = config.stem == Stem::Cifar;
    let of = format!("[4, 8, 4], [24, {a}, {b}, {c}, {last}], num_classes={classes}");
    let mut lines = vec![format!("model = torchvision.models.ShuffleNetV2({of})")];
    lines.extend(first_convolution("model.conv1[0]", config.channels, small));
    if small {
        lines.push("model.maxpool = torch.nn.Identity()".into());
    }
    lines
}

/// The lines for a U-Net. If the encoder has its full width, segmentation_models_pytorch reads config.json.
pub(super) fn unet(config: &UnetConfig) -> Loading {
    if is_full_width(config) {
        let imports = vec!["import segmentation_models_pytorch as smp"];
        return Loading::FromConfig { imports, expression: "smp.from_pretrained(\".\")" };
    }
    let (name, channels, decoder) = (config.encoder.name(), config.channels, list(&config.decoder));
    let width = (64.0 * config.width).round() as usize;
    let mut lines = vec![
        format!(
            "model = smp.Unet(\"{name}\", encoder_weights=None, in_channels={channels}, classes={},",
            config.classes
        ),
        format!("                 decoder_channels={decoder})"),
    ];
    let of_encoder = if config.encoder == UnetEncoder::MobileNetV2 {
        lines.extend([
            "from segmentation_models_pytorch.encoders.mobilenet import MobileNetV2Encoder".into(),
            format!("model.encoder = MobileNetV2Encoder(out_channels=[], width_mult={})", config.width),
        ]);
        if channels != 3 {
            let place = "model.encoder.features[0][0]";
            let of = format!("{channels}, {place}.out_channels, 3, 2, 1, bias=False");
            lines.push(format!("{place} = torch.nn.Conv2d({of})"));
        }
        lines.push("wide = [model.encoder.features[i] for i in (1, 3, 6, 13)]".into());
        "[block.out_channels for block in wide] + [model.encoder.last_channel]".to_owned()
    } else {
        lines.extend([format!("model.encoder.conv1 = torch.nn.Conv2d({channels}, {width}, 7, 2, 3, bias=False)")]);
        lines.extend(residual_stages("model.encoder", name, width));
        let expansion = depth(name).expansion;
        let stages = [0, 1, 2, 3].map(|stage| (width << stage) * expansion);
        list(&[&[width], &stages[..]].concat())
    };
    lines.extend([
        "from segmentation_models_pytorch.decoders.unet.decoder import UnetDecoder".into(),
        format!("model.decoder = UnetDecoder([{channels}] + {of_encoder}, {decoder})"),
    ]);
    let imports = vec!["import torch", "import torchvision", "import segmentation_models_pytorch as smp"];
    Loading::Built { imports, lines }
}

/// Whether segmentation_models_pytorch has the encoder under a name.
pub(super) fn is_full_width(config: &UnetConfig) -> bool {
    config.width == 1.0
}

fn list(numbers: &[usize]) -> String {
    format!("{numbers:?}")
}

/// Lines that give the layers of `model` the shapes of the weights in the file, for a network that has lost channels.
pub(super) fn with_shapes_of_the_file(loading: Loading) -> Loading {
    match loading {
        Loading::Built { mut imports, mut lines } => {
            imports.push("from safetensors.torch import load_file");
            lines.extend(
                [
                    "# Channels were removed: each layer gets the shape of its weights.",
                    "for name, tensor in load_file(\"model.safetensors\").items():",
                    "    path, _, field = name.rpartition(\".\")",
                    "    layer = model.get_submodule(path)",
                    "    if isinstance(layer, torch.nn.Conv2d) and layer.groups > 1:",
                    "        layer.groups = tensor.shape[0]",
                    "    is_weight = field in layer._parameters",
                    "    setattr(layer, field, torch.nn.Parameter(tensor) if is_weight else tensor)",
                ]
                .map(str::to_owned),
            );
            Loading::Built { imports, lines }
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(loading: Loading) -> Vec<String> {
        match loading {
            Loading::Built { lines, .. } => lines,
            Loading::FromConfig { expression, .. } => vec![expression.to_owned()],
        }
    }

    #[test]
    fn what_a_library_has_by_name_is_one_line() {
        for name in ClassifierConfig::NAMES.split(", ") {
            let config = ClassifierConfig::named(name, 10).unwrap();
            let lines = lines(classifier(&config).unwrap());
            assert_eq!(lines.len(), 1, "{lines:?}");
        }
        assert_eq!(lines(unet(&UnetConfig::new(3))).len(), 1);
    }

    #[test]
    fn other_widths_and_images_change_what_differs() {
        let narrow = ClassifierConfig::ResNet(ResNetConfig::resnet18(10).with_width(16).with_channels(1));
        let text = lines(classifier(&narrow).unwrap()).join("\n");
        for part in ["Conv2d(1, 16, 7, 2, 3", "_make_layer(block, 128, 2, stride=2)", "Linear(128, 10)"] {
            assert!(text.contains(part), "{part} in {text}");
        }
        let small = ClassifierConfig::named("mobilenet_v2", 10).unwrap().for_images(32, 3);
        let text = lines(classifier(&small).unwrap()).join("\n");
        assert!(text.contains("features[0][0].stride = (1, 1)") && text.contains("conv[1][0].stride"), "{text}");
    }
}
