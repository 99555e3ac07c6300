//! `train segment` and `eval segment`: a run and its predictions, data that cannot be used, and an image larger than memory.

use std::fs;
use std::path::Path;

use tiff::decoder::Decoder;
use tiff::encoder::TiffEncoder;
use tiff::encoder::colortype::{Gray8, RGB8};
use tiff::tags::Tag;

use super::support::{config, done, fixture, kiln, output, refused, segmentation, stderr, weights};

#[test]
fn a_run_is_trained_resumed_evaluated_and_predicts() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    segmentation(at, &["--class-weights", "balanced", "--save-every", "1", "--json"]);
    let settings = config(&at.join("run"));
    for part in ["encoder = \"mobilenet_v2\"", "size = 96", "class_weights = [", "ignore = 255"] {
        assert!(settings.contains(part), "{settings}");
    }
    let report = fs::read_to_string(at.join("run/report.html")).unwrap();
    assert_eq!(report.matches("data:image/png;base64,").count(), 2, "a picture of each image that is held out");
    // Without its last checkpoint, the run takes its second step again, with the same numbers.
    let model = weights(&at.join("run"));
    let checkpoints = fs::read_dir(at.join("run/checkpoints")).unwrap().map(|entry| entry.unwrap().path());
    let last = checkpoints.max().unwrap();
    fs::remove_dir_all(&last).unwrap();
    fs::remove_file(at.join("run/model.safetensors")).unwrap();
    let resumed = output(at, &["train", "segment", "--resume", "run"]);
    assert!(resumed.status.success() && stderr(&resumed).contains("going on from"), "{}", stderr(&resumed));
    assert!(weights(&at.join("run")) == model, "another model");
    refused(at, &["train", "segment", "--resume", "run", "--tile", "64"], 2, &["--tile cannot change"]);

    let arguments = ["eval", "segment", "--checkpoint", "run", "--predict", "classes", "--json"];
    // Input files are not replaced, and no file is written twice.
    let masks = fixture("segmentation/test/masks");
    for (folder, images, expected) in [
        (masks.to_str().unwrap(), &[][..], "is an image or a mask that is read"),
        ("out", &["--image", "run/a/x.tif", "run/b/x.png"], "would both be written to 'out/x.tif'"),
    ] {
        refused(
            at,
            &[&["eval", "segment", "--checkpoint", "run", "--predict", folder], images].concat(),
            2,
            &[expected],
        );
    }
    let evaluated = done(at, &arguments);
    let results: serde_json::Value = serde_json::from_slice(&evaluated.stdout).unwrap();
    let of_run = fs::read_to_string(at.join("run/metrics.jsonl")).unwrap();
    let last: serde_json::Value = serde_json::from_str(of_run.lines().last().unwrap()).unwrap();
    assert_eq!(results["test_miou"], last["val_miou"], "the figures of the run");
    assert!(results["iou_water"].is_number(), "{results}");
    let open = |path: &Path| Decoder::new(fs::File::open(path).unwrap()).unwrap();
    for name in ["europe", "south-america"] {
        let mut image = open(&fixture("segmentation/test/images").join(name).with_extension("tif"));
        let mut classes = open(&at.join("classes").join(name).with_extension("tif"));
        assert_eq!(classes.dimensions().unwrap(), image.dimensions().unwrap());
        for tag in [Tag::ModelPixelScaleTag, Tag::ModelTiepointTag, Tag::GeoKeyDirectoryTag] {
            let [of_image, of_classes] = [&mut image, &mut classes].map(|file| file.get_tag(tag).unwrap());
            assert_eq!(of_classes, of_image, "{name}");
        }
    }
}

/// Two images to train and two to evaluate on, each with its mask.
fn data(folder: &Path) {
    for (part, names) in [("train", &["a", "b"][..]), ("test", &["c", "d"])] {
        for kind in ["images", "masks"] {
            fs::create_dir_all(folder.join(part).join(kind)).unwrap();
        }
        for name in names {
            image(&folder.join(part).join("images").join(name).with_extension("tif"), 3, 64, 0);
            image(&folder.join(part).join("masks").join(name).with_extension("tif"), 1, 64, 1);
        }
    }
    fs::write(folder.join("classes.txt"), "land\nwater\n").unwrap();
}

/// A square image of one value.
fn image(path: &Path, bands: usize, side: u32, value: u8) {
    let mut encoder = TiffEncoder::new(fs::File::create(path).unwrap()).unwrap();
    let pixels = vec![value; (side * side) as usize * bands];
    match bands {
        1 => encoder.write_image::<Gray8>(side, side, &pixels).unwrap(),
        _ => encoder.write_image::<RGB8>(side, side, &pixels).unwrap(),
    }
}

#[test]
fn data_that_cannot_be_used_is_named_or_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let small = ["--overlap", "0", "--batch-size", "1", "--max-steps", "1", "--width", "0.0625"];
    let train = |options: &[&str]| output(at, &[&["train", "segment", "--data", "data"], &small[..], options].concat());
    type Damage = fn(&Path);
    let cases: [(Damage, &[&str]); 7] = [
        (|data| fs::remove_file(data.join("train/masks/b.tif")).unwrap(), &["masks/b.tif", "mask of", "missing"]),
        (|data| image(&data.join("train/masks/b.tif"), 1, 48, 0), &["masks/b.tif", "48x48 pixels, expected 64x64"]),
        (|data| image(&data.join("train/masks/b.tif"), 1, 64, 7), &["masks/b.tif", "class 7", "below 2 or 255"]),
        (|data| image(&data.join("train/images/b.tif"), 1, 64, 7), &["images/b.tif", "1 bands", "expected 3"]),
        (|data| fs::write(data.join("train/images/b.tif"), "text").unwrap(), &["images/b.tif"]),
        (|data| image(&data.join("test/masks/d.tif"), 1, 64, 7), &["masks/d.tif", "class 7", "below 2 or 255"]),
        (|data| fs::remove_file(data.join("test/masks/d.tif")).unwrap(), &["masks/d.tif", "missing"]),
    ];
    for (damage, expected) in cases {
        let data_folder = at.join("data");
        let _ = fs::remove_dir_all(&data_folder);
        data(&data_folder);
        damage(&data_folder);
        let refused = train(&["--tile", "32", "--out", "refused"]);
        let text = stderr(&refused);
        assert!(!refused.status.success() && expected.iter().all(|part| text.contains(part)), "{text}");
        // Wrong ids are met while the run is under way, which has a directory then.
        let _ = fs::remove_dir_all(at.join("refused"));
        let skipped = train(&["--tile", "32", "--bad-samples", "skip:9", "--out", "skipped"]);
        let text = stderr(&skipped);
        assert!(skipped.status.success() && expected[..1].iter().all(|part| text.contains(part)), "{text}");
        fs::remove_dir_all(at.join("skipped")).unwrap();
    }
    fs::remove_file(at.join("data/classes.txt")).unwrap();
    for (options, expected) in [
        (&["--tile", "32"][..], &["no classes.txt", "--classes N"][..]),
        (&["--tile", "40", "--classes", "2"], &["--tile is 40", "a multiple of 32"]),
        (&["--tile", "32", "--classes", "2", "--encoder", "vgg16"], &["vgg16", "mobilenet_v2"]),
        (&["--tile", "32", "--classes", "2", "--class-weights", "1,x"], &["--class-weights is '1,x'", "balanced"]),
        (&["--tile", "32", "--classes", "2", "--class-weights", "1,2,3"], &["3 class weights", "expected 2"]),
        (&["--tile", "32", "--classes", "2", "--ignore", "many"], &["the ignored class is 'many'", "none"]),
        (&["--tile", "32", "--classes", "2", "--dice=-1"], &["-1", "at least 0"]),
    ] {
        let _ = fs::remove_dir_all(at.join("data"));
        data(&at.join("data"));
        fs::remove_file(at.join("data/classes.txt")).unwrap();
        let refused = train(options);
        let text = stderr(&refused);
        assert!(!refused.status.success() && expected.iter().all(|part| text.contains(part)), "{options:?}: {text}");
        assert!(!at.join("runs").exists(), "{options:?}: something was written");
    }
}

/// An RGB image in tiles of 512. All tiles have the same pixels, which the file holds once.
fn large(path: &Path, height: u32, width: u32) {
    use std::io::Write;
    const TILE: u32 = 512;
    let mut packed = flate2::write::ZlibEncoder::new(vec![], flate2::Compression::default());
    let pixels: Vec<u8> = (0..TILE * TILE * 3).map(|at| (at / 97 % 251) as u8).collect();
    packed.write_all(&pixels).unwrap();
    let packed = packed.finish().unwrap();
    let mut encoder = TiffEncoder::new(fs::File::create(path).unwrap()).unwrap();
    let mut directory = encoder.image_directory().unwrap();
    let offset = directory.write_data(packed.as_slice()).unwrap() as u32;
    let tiles = (height.div_ceil(TILE) * width.div_ceil(TILE)) as usize;
    for (tag, value) in
        [(Tag::ImageWidth, width), (Tag::ImageLength, height), (Tag::TileWidth, TILE), (Tag::TileLength, TILE)]
    {
        directory.write_tag(tag, value).unwrap();
    }
    directory.write_tag(Tag::BitsPerSample, &[8u16; 3][..]).unwrap();
    directory.write_tag(Tag::Compression, 8u16).unwrap();
    directory.write_tag(Tag::PhotometricInterpretation, 2u16).unwrap();
    directory.write_tag(Tag::SamplesPerPixel, 3u16).unwrap();
    directory.write_tag(Tag::TileOffsets, &vec![offset; tiles][..]).unwrap();
    directory.write_tag(Tag::TileByteCounts, &vec![packed.len() as u32; tiles][..]).unwrap();
    directory.finish().unwrap();
}

/// A row of tiles is held in memory, so that memory depends on the width.
#[cfg(target_os = "linux")]
#[test]
fn an_image_30_000_pixels_wide_is_predicted_in_512_mib() {
    predicted_in_512_mib(2_000, 30_000);
}

/// 2.7 GB of pixels, and 0.9 GB of classes.
#[cfg(target_os = "linux")]
#[test]
#[ignore = "takes five minutes: cargo test --test cli -- --ignored megapixels"]
fn an_image_of_900_megapixels_is_predicted_in_512_mib() {
    predicted_in_512_mib(30_000, 30_000);
}

#[cfg(target_os = "linux")]
fn predicted_in_512_mib(height: u32, width: u32) {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    segmentation(at, &[]);
    large(&at.join("large.tif"), height, width);
    let arguments = ["eval", "segment", "--checkpoint", "run", "--image", "large.tif", "--predict", "classes"];
    let tiles = ["--tile", "512", "--overlap", "32", "--batch-size", "1"];
    let mut child = kiln(at, &[&arguments[..], &tiles].concat()).spawn().unwrap();
    // The largest resident size so far, which the system counts.
    let status = format!("/proc/{}/status", child.id());
    let mut peak = 0;
    let ended = loop {
        let text = fs::read_to_string(&status).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        peak = kib.unwrap_or(0).max(peak);
        if let Some(ended) = child.try_wait().unwrap() {
            break ended;
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    };
    assert!(ended.success());
    eprintln!("{height} x {width}: {} MiB resident", peak >> 10);
    assert!(peak > 0 && peak < 512 << 10, "{peak} KiB");
    let classes = Decoder::new(fs::File::open(at.join("classes/large.tif")).unwrap()).unwrap().dimensions().unwrap();
    assert_eq!(classes, (width, height));
}
