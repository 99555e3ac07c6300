//! A U-Net for segmentation_models_pytorch.

use anyhow::Result;
use kiln_models::SafetensorsModel;
use serde_json::json;

use super::classify::write;
use super::folder::{Folder, WEIGHTS};
use super::images::{labels, rounded};
use super::python::{is_full_width, unet};
use super::readme::Readme;
use crate::cli::TrainedArgs;
use crate::device;
use crate::pipelines::{SegmentSettings, load_any};
use crate::run_directory::classes;
use crate::trained::weights;

pub(super) fn export(folder: &Folder, trained: &TrainedArgs, settings: &SegmentSettings) -> Result<()> {
    let (config, tiles) = (&settings.model, &settings.data.tiles);
    let names = classes(&trained.run, config.classes)?;
    let device = device::open(&settings.run.device)?;
    let model = load_any(config.init(&device)?, &weights(trained)?)?;
    model.save_safetensors(folder.file(WEIGHTS))?;

    let (mean, std) = (rounded(&tiles.normalize.mean), rounded(&tiles.normalize.std));
    folder.json("labels.json", &labels(names.as_deref(), config.classes))?;
    folder.json(
        "preprocessor_config.json",
        &json!({
            "do_resize": false,
            "do_rescale": tiles.eight_bit,
            "rescale_factor": 1.0 / 255.0,
            "do_normalize": true,
            "image_mean": mean,
            "image_std": std,
            "tile_size": tiles.size,
            "tile_overlap": tiles.overlap[1],
        }),
    )?;
    if is_full_width(config) {
        folder.json(
            "config.json",
            &json!({
                "_model_class": "Unet",
                "encoder_name": config.encoder.name(),
                "encoder_depth": 5,
                "encoder_weights": null,
                "decoder_channels": config.decoder,
                "in_channels": config.channels,
                "classes": config.classes,
                "activation": null,
            }),
        )?;
    }
    let (channels, size) = (config.channels, tiles.size);
    let scale = if tiles.eight_bit { " / 255" } else { "" };
    let input = vec![
        "import torch".to_owned(),
        format!(
            "tile = torch.zeros(1, {channels}, {size}, {size})  # the bands as they are stored, sides a multiple of 32"
        ),
        format!("mean, std = (torch.tensor(x).view(1, -1, 1, 1) for x in ({mean:?}, {std:?}))"),
        format!("images = (tile{scale} - mean) / std"),
    ];
    let readme = Readme {
        title: format!("U-Net on {}", config.encoder.name()),
        loading: unet(config),
        packages: "torchvision segmentation-models-pytorch",
        input,
        call: "classes = model(images).argmax(1)".into(),
        notes: vec![format!(
            "`labels.json` has the classes, `preprocessor_config.json` the numbers above. Kiln cuts larger images into tiles of \
             {size}x{size} that share {} rows and columns, and blends the logits where they overlap.",
            tiles.overlap[1]
        )],
        onnx: vec![
            "import torch".into(),
            format!("images = torch.zeros(1, {channels}, {size}, {size})"),
            "torch.onnx.export(model, (images,), \"model.onnx\", input_names=[\"images\"], output_names=[\"logits\"])"
                .into(),
        ],
    };
    write(folder, &readme)
}
