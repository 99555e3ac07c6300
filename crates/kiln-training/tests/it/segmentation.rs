//! A U-Net whose levels are recomputed, and predictions of images that are put together from tiles.

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Device, Int, Tensor, TensorData};
use kiln_checkpointing::{Mode, Plan, PlanSegment};
use kiln_data::{Blend, LoaderConfig, Normalize, TileBatch, TileConfig, TileSet, write_classes};
use kiln_layers::SegmentationLoss;
use kiln_memory::BackendProfile;
use kiln_models::{Unet, UnetConfig, UnetEncoder};
use kiln_precision::Precision;
use kiln_training::{
    Error, LossFn, OptimizerConfig, Pass, Predicted, Recompute, Task, TilePredictor, Trainer, TrainerBuilder,
};

use crate::HEAP;
use crate::support::{beside, device, temporary, turn};

const CLASSES: usize = 5;
type Batch = (TensorData, TensorData);

fn loss(pass: &Pass<'_, Unet>, (images, classes): &Batch) -> Tensor<1> {
    let (x, classes): (Tensor<4>, Tensor<3, Int>) = (pass.input(images), pass.input(classes));
    let weights = Tensor::ones(classes.shape(), pass.device());
    let (logits, _) = pass.chain(&pass.model().blocks(), (x, vec![]), |block, x| block.forward(x));
    SegmentationLoss::new().forward(logits, classes, weights).unwrap()
}

fn batch(samples: usize, side: usize) -> Batch {
    let pixels = samples * side * side;
    let image = (0..3 * pixels).map(|at| (at * 7919 % 1009) as f32 / 500.0 - 1.0).collect();
    let classes = (0..pixels).map(|at| (at / 17 % CLASSES) as i64).collect();
    (
        TensorData::new::<f32, _>(image, [samples, 3, side, side]),
        TensorData::new::<i64, _>(classes, [samples, side, side]),
    )
}

fn builder(config: &UnetConfig) -> TrainerBuilder<'_, impl Task<Model = Unet, Batch = Batch>> {
    let sgd = OptimizerConfig::sgd();
    Trainer::builder(LossFn::new(loss), |device| config.init(device).unwrap())
        .with_optimizer(move |model: &Unet| sgd.groups(model))
        .with_steps(8)
}

/// Each level of the encoder and the decoder is a segment; the last one is plain.
fn by_levels(config: &UnetConfig) -> Plan {
    let blocks = config.init(&Device::flex()).unwrap().blocks();
    let ends = blocks.windows(2).enumerate().filter(|(_, pair)| pair[0].ends_level(&pair[1])).map(|(at, _)| at + 1);
    let (mut segments, mut start) = (vec![], 0);
    for end in ends.chain([blocks.len()]) {
        let mode = if end == blocks.len() { Mode::Plain } else { Mode::Recompute };
        segments.push(PlanSegment { blocks: start..end, mode });
        start = end;
    }
    Plan::try_from(segments).unwrap()
}

/// All numbers of a model.
fn numbers(model: &Unet) -> Vec<u32> {
    struct All(Vec<u32>);
    impl ModuleVisitor for All {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.0.extend(param.val().into_data().iter::<f32>().map(f32::to_bits));
        }
    }
    let mut all = All(vec![]);
    model.visit(&mut all);
    all.0
}

#[test]
fn a_unet_recomputed_by_levels_has_the_same_bits_and_a_third_of_the_peak() {
    let _turn = turn();
    // As it is: predicted at 1024 x 1024 pixels, which nothing computes.
    let config = UnetConfig::new(CLASSES).with_encoder(UnetEncoder::MobileNetV2);
    let sample = batch(3, 1024);
    let planner = builder(&config).planner(&BackendProfile::flex(), &sample, 4).unwrap();
    let peak = |plan: &Plan| planner.evaluate(Precision::F32, plan, 4, u64::MAX).unwrap().peak_bytes as f64;
    let plan = by_levels(&config);
    assert_eq!(plan.segments().len(), 10);
    let share = peak(&plan) / peak(&Plan::none(plan.blocks()));
    assert!(share < 0.35, "{share}");

    // Narrow and on smaller images: the same numbers, and a lower measured peak.
    let config = config.with_width(0.25).with_decoder([32, 24, 16, 12, 8]);
    let (plan, batch) = (by_levels(&config), batch(3, 192));
    let mut runs = vec![];
    for checkpointing in [Recompute::None, Recompute::Plan(plan)] {
        let mut trainer = builder(&config).with_recompute(checkpointing).build(&device(), &batch).unwrap();
        let losses = [trainer.step(&batch).unwrap().loss, trainer.step(&batch).unwrap().loss];
        HEAP.reset_peak();
        let before = HEAP.live_bytes();
        let _ = trainer.step(&batch).unwrap();
        runs.push((losses.map(f64::to_bits), numbers(trainer.model()), HEAP.peak_bytes() - before));
    }
    assert_eq!(runs[0].0, runs[1].0);
    assert!(runs[0].1 == runs[1].1, "other weights");
    assert!((runs[1].2 as f64) < 0.55 * runs[0].2 as f64, "{} of {}", runs[1].2, runs[0].2);
}

/// With margins of the receptive field, and tiles that lie on the strides of the network, each pixel has the prediction that it has in the
/// whole image.
#[test]
fn tiles_make_the_prediction_of_the_whole_image() {
    let _turn = turn();
    // The receptive field of a U-Net on ResNet-18 reaches 217 pixels through the encoder and up to 94 through the decoder.
    let ([height, width], tile, margin) = ([832, 704], 704, 320);
    let folder = temporary();
    let path = folder.path().join("image.tif");
    let row = |y: usize| (0..width).map(|x| (x * x / 7 + 3 * y + y * x / 50) as u16 % 256).collect::<Vec<_>>();
    write_classes::<Error>(&path, [height, width], 256, None, |rows| {
        (0..height).try_for_each(|y| Ok(rows.row(&row(y))?))
    })
    .unwrap();
    let device = Device::flex();
    device.seed(3);
    let config = UnetConfig::new(2).with_channels(1).with_width(0.0625).with_decoder([8, 8, 8, 8, 4]);
    let model = config.init(&device).unwrap();
    let normalize = Normalize { mean: vec![0.5], std: vec![0.25] };
    let predicted = |tile: usize, overlap: usize, blend| {
        let set = TileSet::new([&path], TileConfig::new(tile).with_overlap(overlap)).unwrap();
        let predictor = TilePredictor { set: &set, classes: 2, blend, device: &device, at_once: 1 };
        let batches = TileBatch::loader(set.clone(), None, LoaderConfig::new(1)).unwrap().epoch(0, 0);
        let forward = |batch: &TileBatch| {
            let [.., bottom, right] = batch.shape;
            let images = batch.to_device(&normalize, &device)?.images;
            // The whole image is a tile that is higher than the image is wide.
            let images = if tile > 704 { images.narrow(3, 0, width) } else { images };
            let logits = model.forward(images);
            let [b, c, h, w] = logits.dims();
            let wide = Tensor::zeros([b, c, bottom, right], &device);
            Ok(if w < right { wide.slice_assign([0..b, 0..c, 0..h, 0..w], logits) } else { logits })
        };
        let mut rows = vec![];
        let tell = |event: Predicted<'_>| {
            if let Predicted::Row { y, values, .. } = event {
                assert_eq!(y * 2 * width, rows.len());
                rows.extend(values.iter().map(|value| value.to_bits()));
            }
            Ok(())
        };
        predictor.run(batches.map(|batch| Ok(batch?)), forward, tell).unwrap();
        rows
    };
    let whole = predicted(832, 0, Blend::Linear);
    assert_eq!(whole.len(), 2 * height * width);
    let tiled = predicted(tile, 640, Blend::Crop { margin });
    assert!(tiled == whole, "other bits");
    // Without margins they differ.
    assert!(predicted(tile, 640, Blend::Linear) != whole);
}

/// A loader that leaves out what it cannot read leaves out whole images, and says which.
#[test]
fn images_with_a_tile_that_cannot_be_read_are_left_out() {
    let _turn = beside();
    let folder = temporary();
    let paths = ["a", "b", "c"].map(|name| folder.path().join(name).with_extension("tif"));
    for path in &paths {
        let write =
            write_classes::<Error>(path, [600, 40], 2, None, |rows| (0..600).try_for_each(|_| Ok(rows.row(&[1; 40])?)));
        write.unwrap();
    }
    let set = TileSet::new(&paths, TileConfig::new(64)).unwrap();
    // The last tiles of the second image are gone after the set was made.
    let bytes = std::fs::read(&paths[1]).unwrap();
    let half = bytes.iter().position(|byte| *byte == 0x78).unwrap() + 40;
    let mut damaged = bytes.clone();
    damaged[half..half + 60].fill(0xff);
    std::fs::write(&paths[1], damaged).unwrap();
    let device = Device::flex();
    let normalize = Normalize { mean: vec![0.0], std: vec![1.0] };
    let skipping = LoaderConfig::new(3).with_bad_samples(kiln_data::BadSamples::skip(100));
    let batches = TileBatch::loader(set.clone(), None, skipping).unwrap().epoch(0, 0);
    let predictor = TilePredictor { set: &set, classes: 1, blend: Blend::Linear, device: &device, at_once: 2 };
    let (mut complete, mut left_out) = (vec![], vec![]);
    predictor
        .run(
            batches.map(|batch| Ok(batch?)),
            |batch| Ok(batch.to_device(&normalize, &device)?.images),
            |event| {
                match event {
                    Predicted::Complete { image } => complete.push(image),
                    Predicted::LeftOut { image } => left_out.push(image),
                    _ => {}
                }
                Ok(())
            },
        )
        .unwrap();
    assert_eq!((complete, left_out), (vec![0, 2], vec![1]));
}
