//! The heap that a loader takes, against the bound that it gives.

use std::fs;
use std::path::Path;

use kiln_data::{BadSamples, ImageBatch, ImageFile, ImageSet, LoaderConfig, Order, Transform};
use tempfile::tempdir;

use crate::{HEAP, alone, large};

#[test]
fn the_heap_of_a_folder_of_photographs_stays_below_the_bound_of_its_loader() {
    let _alone = alone();
    let root = tempdir().unwrap();
    let class = root.path().join("class");
    fs::create_dir(&class).unwrap();
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/images");
    for path in fs::read_dir(fixtures).unwrap().map(|entry| entry.unwrap().path()) {
        if ImageFile::open(&path).is_ok() {
            fs::copy(&path, class.join(path.file_name().unwrap())).unwrap();
        }
    }
    // Twelve megapixels each.
    (0..8).for_each(|i| fs::write(class.join(format!("{i}.jpg")), large::jpeg(4000, 375, 3)).unwrap());
    let transform = Transform::training(64, 0.25);
    let set = ImageSet::folder(root.path()).unwrap();
    let largest = set.largest_decode_bytes(&transform).unwrap();
    let order = Order::Shuffled { seed: 1 };
    let config = LoaderConfig::new(8).with_order(order).with_bad_samples(BadSamples::skip(9));
    let loader = ImageBatch::loader(set, transform, 7, config).unwrap().with_largest_image(largest);
    let bound = loader.peak_bytes().unwrap();
    let before = HEAP.live_bytes();
    HEAP.reset_peak();
    for epoch in 0..3 {
        loader.epoch(epoch, 0).for_each(|batch| drop(batch.unwrap()));
    }
    let peak = (HEAP.peak_bytes() - before) as u64;
    // Threads, channels and lists of files are beside the bound.
    assert!(peak <= bound + (256 << 10) && bound < 3 * peak, "peak {peak}, bound {bound}");
    assert!(loader.stats().peak_bytes <= bound);
}
