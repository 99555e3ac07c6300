//! Image batches: their layout, their numbers, and augmentation that is a function of seed, epoch and sample.

use burn::tensor::Device;
use image::RgbImage;
use kiln_data::{
    Crop, Error, ImageBatch, ImageSet, LoaderConfig, Mix, Normalize, Order, Transform, sample_rng, write_idx_gz,
};
use rand::Rng;
use tempfile::tempdir;

/// Gray images of 12x10 noise, with labels 0, 1, 2, 0, ...
fn noise(count: usize) -> ImageSet {
    let root = tempdir().unwrap();
    let mut pixels = vec![0; count * 120];
    sample_rng(1, 2, 3).fill_bytes(&mut pixels);
    let labels: Vec<u8> = (0..count).map(|id| (id % 3) as u8).collect();
    let [images, names] = ["images.gz", "labels.gz"].map(|name| root.path().join(name));
    write_idx_gz(&images, &[count, 12, 10], &pixels).unwrap();
    write_idx_gz(&names, &[count], &labels).unwrap();
    ImageSet::idx(images, names, ["a", "b", "c"]).unwrap()
}

/// All images of one epoch, one after the other.
fn epoch(set: &ImageSet, transform: Transform, seed: u64, config: LoaderConfig, epoch: u64) -> Vec<ImageBatch> {
    let set = set.clone();
    let loader = ImageBatch::loader(set, transform, seed, config).unwrap();
    loader.epoch(epoch, 0).map(Result::unwrap).collect()
}

fn pixels(batches: &[ImageBatch]) -> Vec<u8> {
    batches.iter().flat_map(|batch| batch.pixels.to_vec()).collect()
}

#[test]
fn a_batch_holds_one_plane_per_channel() {
    let root = tempdir().unwrap();
    for (class, first) in [("a", 0), ("b", 100)] {
        std::fs::create_dir(root.path().join(class)).unwrap();
        let pixels: Vec<u8> = (first..first + 12).collect();
        RgbImage::from_raw(2, 2, pixels).unwrap().save(root.path().join(class).join("x.png")).unwrap();
    }
    let set = ImageSet::folder(root.path()).unwrap();
    let [batch] = &epoch(&set, Transform::evaluation(2), 0, LoaderConfig::new(2), 0)[..] else { panic!("one batch") };
    assert_eq!((batch.shape, batch.len(), batch.is_empty()), ([2, 3, 2, 2], 2, false));
    let planes = |first: u8| [0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11].map(|i| first + i);
    assert_eq!(*batch.pixels, [planes(0), planes(100)].concat());
    assert_eq!((&batch.labels[..], &batch.ids[..]), (&[0, 1][..], &[0, 1][..]));

    let identity = Normalize { mean: vec![0.0; 3], std: vec![1.0 / 255.0; 3] };
    let (images_bchw, labels_b) = batch.to_device(&identity, &Device::flex());
    assert_eq!(images_bchw.dims(), [2, 3, 2, 2]);
    let last_green: f32 = images_bchw.slice([1..2, 1..2, 1..2, 1..2]).into_scalar();
    assert!((last_green - 110.0).abs() < 1e-4, "{last_green}");
    assert_eq!(labels_b.into_data().iter::<i64>().collect::<Vec<_>>(), [0, 1]);
}

#[test]
fn files_are_gray_or_rgb_as_asked_and_their_headers_are_told() {
    let root = tempdir().unwrap();
    std::fs::create_dir(root.path().join("a")).unwrap();
    for number in 0..7u8 {
        let image = image::GrayImage::from_pixel(3 + u32::from(number), 2, image::Luma([number]));
        image.save(root.path().join("a").join(format!("{number}.png"))).unwrap();
    }
    std::fs::write(root.path().join("a/7.png"), "no image").unwrap();
    let set = ImageSet::folder(root.path()).unwrap();
    assert_eq!((set.channels(), set.load(5).unwrap().image.pixels), (3, vec![5; 8 * 2 * 3]));
    let gray = set.clone().with_channels(1).unwrap();
    assert_eq!((gray.channels(), gray.load(5).unwrap().image.pixels), (1, vec![5; 8 * 2]));

    // Every file but the one that is no image; of fewer, every second one.
    let widths = |count| set.some_headers(count).iter().map(|header| header.width).collect::<Vec<_>>();
    assert_eq!(widths(100), (3..10).collect::<Vec<_>>());
    assert_eq!(widths(4), [3, 5, 7, 9]);
    assert!(set.some_headers(1).iter().all(|header| header.channels == 1));

    let refused = |set: ImageSet, channels| set.with_channels(channels).unwrap_err().to_string();
    assert!(refused(set.clone(), 2).contains("channels is 2, expected 1 (gray) or 3 (RGB)"));
    assert!(refused(noise(2), 3).contains("channels is 3, expected 1: the data set is of gray images"));
    assert_eq!(noise(2).with_channels(1).unwrap().channels(), 1);
    assert!(noise(2).some_headers(9).is_empty());
}

#[test]
fn the_device_gets_every_byte_normalised() {
    for channels in [1, 3] {
        let normalize = Normalize::for_channels(channels);
        let pixels: Vec<u8> = (0..channels).flat_map(|_| 0..=255).collect();
        let batch = ImageBatch {
            pixels: pixels.into(),
            shape: [1, channels, 16, 16],
            labels: vec![0],
            ids: vec![0],
            mixed: None,
        };
        let (images_bchw, _) = batch.to_device(&normalize, &Device::flex());
        let got: Vec<f32> = images_bchw.into_data().iter::<f32>().collect();
        for (i, got) in got.into_iter().enumerate() {
            let (mean, std) = (f64::from(normalize.mean[i / 256]), f64::from(normalize.std[i / 256]));
            let expected = ((i % 256) as f64 / 255.0 - mean) / std;
            assert!((f64::from(got) - expected).abs() < 1e-6, "{got}, expected {expected}");
        }
    }
}

#[test]
fn augmentation_does_not_depend_on_workers_or_batch_sizes() {
    let set = noise(37);
    let transform = Transform::training(8, 0.3);
    let config = LoaderConfig::new(5).with_order(Order::Shuffled { seed: 4 });
    let expected = epoch(&set, transform, 7, config.clone(), 3);
    for workers in [1, 3, 8] {
        assert_eq!(epoch(&set, transform, 7, config.clone().with_workers(workers), 3), expected);
    }
    let other_cuts = epoch(&set, transform, 7, config.with_batch_size(16), 3);
    assert_eq!(pixels(&other_cuts), pixels(&expected));
}

#[test]
fn augmentation_differs_between_epochs_and_seeds_only_when_it_is_random() {
    let set = noise(20);
    let run = |transform, seed, number| pixels(&epoch(&set, transform, seed, LoaderConfig::new(20), number));
    let flip = Transform::new(10).with_crop(Crop::Center(1.0)).with_random_flip();
    for random in [Transform::training(8, 0.3), Transform::training(8, 0.3).without_flip(), flip] {
        assert_eq!(run(random, 1, 0), run(random, 1, 0));
        assert_ne!(run(random, 1, 0), run(random, 1, 1));
        assert_ne!(run(random, 1, 0), run(random, 2, 0));
    }
    assert_eq!(run(Transform::evaluation(8), 1, 0), run(Transform::evaluation(8), 2, 1));
}

#[test]
fn one_damaged_image_fails_its_batch_and_no_other() {
    let root = tempdir().unwrap();
    std::fs::create_dir(root.path().join("class")).unwrap();
    for id in 0..6 {
        RgbImage::new(4, 4).save(root.path().join(format!("class/{id}.png"))).unwrap();
    }
    let damaged = root.path().join("class/3.png");
    std::fs::write(&damaged, "this is no image").unwrap();
    let set = ImageSet::folder(root.path()).unwrap();
    let loader = ImageBatch::loader(set, Transform::evaluation(4), 0, LoaderConfig::new(2)).unwrap();
    let batches: Vec<_> = loader.epoch(0, 0).collect();
    assert!(matches!(&batches[..], [Ok(_), Err(Error::Format { path, .. }), Ok(_)] if *path == damaged), "{batches:?}");
}

#[test]
fn an_uploaded_batch_is_the_same_batch() {
    let (device, normalize, set) = (Device::flex(), Normalize::for_channels(1), noise(30));
    let config = LoaderConfig::new(6).with_order(Order::Shuffled { seed: 4 });
    let loader = ImageBatch::loader(set, Transform::training(20, 0.5), 1, config).unwrap();
    let there = device.clone();
    let uploading = loader.clone().with_device_prefetch(1 << 20, move |batch| Ok(batch.upload(&there)));
    for (plain, uploaded) in loader.epoch(0, 0).zip(uploading.epoch(0, 0)) {
        let (plain, uploaded) = (plain.unwrap(), uploaded.unwrap());
        assert!(uploaded.pixels.is_uploaded() && !plain.pixels.is_uploaded());
        assert_eq!(plain, uploaded);
        let part = 2..5;
        for (device, batch) in
            [(&device, uploaded.slice(part.clone())), (&device.clone().autodiff(), uploaded.slice(part))]
        {
            assert_eq!((batch.len(), &batch.pixels), (3, &plain.slice(2..5).pixels));
            let of = |batch: &ImageBatch| batch.to_device(&normalize, device).0.into_data();
            assert!(of(&batch) == of(&plain.slice(2..5)));
        }
    }
}

/// The batches of epoch 3 of a loader that erases and mixes.
fn mixed(mix: Mix, config: LoaderConfig) -> Vec<ImageBatch> {
    let transform = Transform::training(8, 0.3).with_random_erasing(0.5);
    let loader = ImageBatch::mixed_loader(noise(37), transform, mix, 7, config).unwrap();
    loader.epoch(3, 0).map(Result::unwrap).collect()
}

#[test]
fn mixed_batches_do_not_depend_on_workers_or_on_where_an_epoch_begins() {
    let config = LoaderConfig::new(5).with_order(Order::Shuffled { seed: 4 });
    let mix = Mix::none().with_mixup(0.8).with_cutmix(1.0);
    let expected = mixed(mix, config.clone());
    for workers in [1, 3, 8] {
        assert_eq!(mixed(mix, config.clone().with_workers(workers)), expected);
    }
    let transform = Transform::training(8, 0.3).with_random_erasing(0.5);
    let loader = ImageBatch::mixed_loader(noise(37), transform, mix, 7, config.clone()).unwrap();
    let rest: Vec<_> = loader.epoch(3, 4).map(Result::unwrap).collect();
    assert_eq!(rest, expected[4..]);
    let next: Vec<_> = loader.epoch(4, 0).map(Result::unwrap).collect();
    let shares = |batches: &[ImageBatch]| batches.iter().map(|b| b.mixed.clone().unwrap().lambda).collect::<Vec<_>>();
    assert!(shares(&next) != shares(&expected));
    assert!(shares(&expected).iter().all(|share| (0.0..=1.0).contains(share)));
}

#[test]
fn mixing_adds_the_labels_in_reverse_and_changes_nothing_else_of_a_batch() {
    let config = LoaderConfig::new(6).with_order(Order::Shuffled { seed: 4 });
    let (plain, mixed) = (mixed(Mix::none(), config.clone()), mixed(Mix::none().with_mixup(0.8), config));
    assert_eq!(plain.len(), mixed.len());
    for (plain, mixed) in plain.iter().zip(&mixed) {
        assert_eq!((&plain.labels, &plain.ids, plain.shape), (&mixed.labels, &mixed.ids, mixed.shape));
        assert!(plain.mixed.is_none());
        let second = mixed.mixed.as_ref().unwrap();
        let reversed: Vec<i64> = plain.labels.iter().rev().copied().collect();
        assert_eq!(second.labels, reversed);
        let on_device = second.to_device(&Device::flex());
        assert_eq!(on_device.into_data().iter::<i64>().collect::<Vec<_>>(), reversed);
        // The same samples with the same share, in any part of the batch.
        if mixed.len() == 6 {
            let part = mixed.slice(1..4).slice(1..3);
            let of_part = part.mixed.unwrap();
            assert_eq!((&of_part.labels[..], of_part.lambda), (&reversed[2..4], second.lambda));
            assert_eq!(*part.pixels, mixed.pixels[2 * 64..4 * 64]);
        }
    }
    assert!(plain.iter().zip(&mixed).any(|(plain, mixed)| plain.pixels != mixed.pixels));
}

#[test]
fn impossible_mixing_is_refused() {
    let mix = Mix::none().with_cutmix(-0.5);
    let error =
        ImageBatch::mixed_loader(noise(4), Transform::new(8), mix, 0, LoaderConfig::new(2)).map(|_| ()).unwrap_err();
    assert_eq!(error.to_string(), "cutmix is -0.5, expected a number from 0 (off) to 100");
}
