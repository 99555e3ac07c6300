//! An image classifier for torchvision or timm.

use anyhow::{Context, Result, anyhow};
use kiln_data::printable;
use kiln_models::{Classifier, ClassifierConfig, SafetensorsModel, Stem};
use serde_json::{Value, json};

use super::folder::{Folder, WEIGHTS};
use super::images::{Preprocessing, labels, rounded};
use super::python::{classifier, with_shapes_of_the_file};
use super::readme::{MODULE, Readme};
use crate::cli::TrainedArgs;
use crate::device;
use crate::pipelines::classify::normalization;
use crate::pipelines::{ClassifySettings, load_merged};
use crate::run_directory::classes;
use crate::trained::{simulates_inputs, weights};

pub(super) fn export(folder: &Folder, trained: &TrainedArgs, settings: &ClassifySettings) -> Result<()> {
    let (config, path) = (&settings.model.0, weights(trained)?);
    let compression = settings.compression.as_ref();
    let names = classes(&trained.run, config.classes())?;
    let device = device::open(&settings.run.device)?;
    let model: Classifier = load_merged(config.init(&device)?, compression, &path)
        .with_context(|| format!("cannot read the model of '{}'", printable(&trained.run)))?;
    model.save_safetensors(folder.file(WEIGHTS))?;

    let preprocessing = Preprocessing::new(settings.data.images.size, normalization(settings));
    folder.json("labels.json", &labels(names.as_deref(), config.classes()))?;
    folder.json("preprocessor_config.json", &preprocessing.json())?;
    let shapes = compression.and_then(|own| own.shapes.as_ref());
    if let Some(own) = timm(config, names.as_deref(), &preprocessing).filter(|_| shapes.is_none()) {
        folder.json("config.json", &own)?;
    }
    let loading = classifier(config).ok_or_else(|| anyhow!("no PyTorch implementation of {}", config.name()))?;
    let loading = if shapes.is_some() { with_shapes_of_the_file(loading) } else { loading };
    let (channels, size) = (config.channels(), preprocessing.size);
    let mut notes = vec![
        "`labels.json` has the classes, `preprocessor_config.json` the preprocessing above as transformers' `CLIPImageProcessor` reads \
         it. Kiln itself cuts out the middle and resizes that, which differs from the lines above by the rounding of sides."
            .to_owned(),
    ];
    if simulates_inputs(compression, &path) {
        notes.push(inputs_note());
    }
    let readme = Readme {
        title: config.name().to_owned(),
        loading,
        packages: if matches!(config, ClassifierConfig::Vit(_)) {
            "torchvision timm pillow"
        } else {
            "torchvision pillow"
        },
        input: preprocessing.python(),
        call: "probabilities = model(images).softmax(1)".into(),
        notes,
        onnx: vec![
            "import torch".into(),
            format!("images = torch.zeros(1, {channels}, {size}, {size})"),
            "torch.onnx.export(model, (images,), \"model.onnx\", input_names=[\"images\"], output_names=[\"logits\"])"
                .into(),
        ],
    };
    write(folder, &readme)
}

/// Writes README.md, and the Python file if there is one.
pub(super) fn write(folder: &Folder, readme: &Readme<'_>) -> Result<()> {
    let (text, module) = readme.texts();
    folder.text("README.md", &text)?;
    module.map_or(Ok(()), |module| folder.text(MODULE, &module))
}

/// The note on the loss of a model whose inputs were simulated.
pub(super) fn inputs_note() -> String {
    "In Kiln the inputs of this model's layers have the values of 8-bit integers. Here they have not: its outputs differ a little."
        .into()
}

/// timm's `config.json`, for networks that timm has under the same parameter names.
fn timm(config: &ClassifierConfig, names: Option<&[String]>, preprocessing: &Preprocessing) -> Option<Value> {
    let channels = config.channels();
    let (architecture, features, arguments) = match config {
        ClassifierConfig::Vit(config) => {
            let arguments = json!({
                "img_size": config.image,
                "patch_size": config.patch,
                "in_chans": channels,
                "embed_dim": config.width,
                "depth": config.blocks,
                "num_heads": config.heads,
            });
            let name = if config.name() == "vit" { "vit_tiny" } else { config.name() };
            (format!("{name}_patch16_224"), config.width, arguments)
        }
        ClassifierConfig::ResNet(own) if own.width == 64 && own.stem == Stem::ImageNet => {
            let features = if matches!(own.name(), "resnet18" | "resnet34") { 512 } else { 2048 };
            (own.name().to_owned(), features, json!({ "in_chans": channels }))
        }
        _ => return None,
    };
    let size = preprocessing.size;
    let mut value = json!({
        "architecture": architecture,
        "num_classes": config.classes(),
        "num_features": features,
        "model_args": arguments,
        "pretrained_cfg": {
            "input_size": [channels, size, size],
            "num_classes": config.classes(),
            "interpolation": "bilinear",
            "crop_pct": preprocessing.crop_share(),
            "crop_mode": "center",
            "mean": rounded(&preprocessing.normalize.mean),
            "std": rounded(&preprocessing.normalize.std),
            "classifier": if matches!(config, ClassifierConfig::Vit(_)) { "head" } else { "fc" },
        },
    });
    if let (Some(names), Value::Object(fields)) = (names, &mut value) {
        fields.insert("label_names".into(), json!(names));
    }
    Some(value)
}
