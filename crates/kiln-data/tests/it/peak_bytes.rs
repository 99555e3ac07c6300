//! The bytes that a loader holds at a time: a bound that is known before it starts, and not far above the measured peak.

use std::fs;
use std::io::Cursor;
use std::path::PathBuf;
use std::sync::LazyLock;

use image::{ImageFormat, Rgb, RgbImage};
use kiln_data::{
    BadSamples, Crop, DecodeOptions, ImageBatch, ImageFile, ImageSet, Loader, LoaderConfig, Order, Oversized, Quality,
    TextBatch, TextTokens, Transform, sample_rng,
};
use proptest::prelude::*;
use tempfile::{TempDir, tempdir};

use crate::fixtures::fixture;

fn fixtures() -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = fs::read_dir(fixture("images")).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| ImageFile::open(path).is_ok());
    paths.sort();
    assert!(paths.len() > 40);
    paths
}

/// The fixtures, and larger images, which are reduced while they are decoded.
static FILES: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
    let mut files: Vec<Vec<u8>> = fixtures().iter().map(|path| fs::read(path).unwrap()).collect();
    for (width, height) in [(1200, 900), (900, 1200), (1500, 200), (800, 800)] {
        let image = RgbImage::from_fn(width, height, |x, y| Rgb([x as u8, y as u8, (x / 9 * y) as u8]));
        for format in [ImageFormat::Jpeg, ImageFormat::Png] {
            let mut bytes = Cursor::new(vec![]);
            image.write_to(&mut bytes, format).unwrap();
            files.push(bytes.into_inner());
        }
    }
    files
});

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]
    #[test]
    fn no_crop_takes_more_than_the_bound_of_its_transform(
        file in 0usize..1000, size in prop_oneof![1usize..40, 40usize..400], min_area in 0.02f64..=1.0, seed: u64,
        fast: bool, refuse: bool, limit in prop_oneof![Just(u64::MAX), 200_000u64..8_000_000], gray: bool, center: bool,
    ) {
        let file = ImageFile::from_bytes("image", &FILES[file % FILES.len()][..]).unwrap();
        let options = DecodeOptions::new()
            .with_quality(if fast { Quality::Fast } else { Quality::Exact })
            .with_oversized(if refuse { Oversized::Refuse } else { Oversized::Reduce })
            .with_limit(limit);
        let channels = if gray { 1 } else { 3 };
        let training = Transform::training(size, min_area);
        let transform = if center { training.with_crop(Crop::Center(min_area)) } else { training };
        let bound = transform.decode_bytes(&file, channels, &options).unwrap();
        prop_assert!(bound <= limit);
        let mut rng = sample_rng(seed, 0, 0);
        for _ in 0..8 {
            let view = transform.view(file.header().height, file.header().width, &mut rng);
            if let Ok(plan) = file.plan(&view, channels, &options) {
                prop_assert!(plan.bytes() <= bound, "{:?} takes {}, bound {bound}", plan.path(), plan.bytes());
            }
        }
    }
}

/// The fixtures as a directory of one class.
fn folder() -> TempDir {
    let root = tempdir().unwrap();
    let class = root.path().join("class");
    fs::create_dir(&class).unwrap();
    for path in fixtures() {
        fs::copy(&path, class.join(path.file_name().unwrap())).unwrap();
    }
    root
}

fn loader(root: &TempDir, transform: Transform, config: LoaderConfig) -> Loader<ImageBatch> {
    let set = ImageSet::folder(root.path()).unwrap();
    let largest = set.largest_decode_bytes(&transform).unwrap();
    ImageBatch::loader(set, transform, 7, config).unwrap().with_largest_image(largest)
}

#[test]
fn the_peak_of_a_folder_stays_below_the_bound_and_above_a_third_of_it() {
    let root = folder();
    for (workers, transform) in [
        (1, Transform::training(64, 0.25)),
        (2, Transform::training(64, 0.25)),
        (2, Transform::evaluation(96)),
        (2, Transform::new(32)),
    ] {
        let order = Order::Shuffled { seed: 1 };
        let config = LoaderConfig::new(8).with_order(order).with_workers(workers).with_bad_samples(BadSamples::skip(9));
        let loader = loader(&root, transform, config);
        let bound = loader.peak_bytes().unwrap();
        for epoch in 0..4 {
            for batch in loader.epoch(epoch, 0) {
                batch.unwrap();
                std::thread::sleep(std::time::Duration::from_millis(2)); // the workers are ahead
            }
        }
        let peak = loader.stats().peak_bytes;
        assert!(peak <= bound && bound < 3 * peak, "{workers} workers: peak {peak}, bound {bound}");
        // A small part of the budget, which was all that was known without the headers.
        assert!(bound < loader.config().budget / 50);
    }
}

#[test]
fn the_budget_caps_the_peak() {
    let root = folder();
    let config = LoaderConfig::new(8).with_budget(1 << 20).with_workers(8).with_bad_samples(BadSamples::skip(99));
    let loader = loader(&root, Transform::training(64, 0.25), config);
    assert!(loader.peak_bytes().unwrap() <= 1 << 20);
    loader.epoch(0, 0).for_each(|batch| drop(batch.unwrap()));
    assert!(loader.stats().peak_bytes <= loader.peak_bytes().unwrap());
}

#[test]
fn a_loader_without_images_holds_its_batches() {
    let text = TextTokens::new((0..1000).collect(), 9).unwrap();
    let batch = 10 * (4 * 10 + 8);
    let loader = TextBatch::loader(text.clone(), None, LoaderConfig::new(10).with_prefetch(3)).unwrap();
    assert_eq!(loader.peak_bytes(), Some(4 * batch));
    let whole = TextBatch::loader(text.clone(), None, LoaderConfig::new(text.len())).unwrap();
    assert_eq!(whole.peak_bytes(), Some(text.len() as u64 * 48)); // one batch an epoch
    assert_eq!(Loader::new(5, LoaderConfig::new(1), |_| Ok(())).unwrap().peak_bytes(), None);
}
