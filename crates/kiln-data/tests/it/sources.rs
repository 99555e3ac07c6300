//! Images in the files of MNIST and CIFAR-10, whole and damaged.

use std::fs;

use kiln_data::{Image, ImageSet, open_images, write_idx_gz};
use proptest::prelude::*;
use tempfile::tempdir;

use crate::fixtures::{assert_one_line, shown};

const IMAGES: u32 = 0x0803;
const LABELS: u32 = 0x0801;
const DIGITS: [&str; 10] = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"];

/// The bytes of an IDX file, whether or not they agree with each other.
fn idx(magic: u32, shape: &[u32], bytes: &[u8]) -> Vec<u8> {
    [magic].iter().chain(shape).flat_map(|word| word.to_be_bytes()).chain(bytes.iter().copied()).collect()
}

#[test]
fn plain_and_gzipped_idx_files_hold_the_same_images() {
    let root = tempdir().unwrap();
    let at = |name: &str| root.path().join(name);
    let pixels: Vec<u8> = (0..2 * 2 * 3).map(|i| i * 20).collect();
    fs::write(at("images"), idx(IMAGES, &[2, 2, 3], &pixels)).unwrap();
    fs::write(at("labels"), idx(LABELS, &[2], &[1, 0])).unwrap();
    write_idx_gz(at("images.gz"), &[2, 2, 3], &pixels).unwrap();
    write_idx_gz(at("labels.gz"), &[2], &[1, 0]).unwrap();

    for (images, labels) in [("images", "labels"), ("images.gz", "labels.gz"), ("images", "labels.gz")] {
        let set = ImageSet::idx(at(images), at(labels), ["shirt", "shoe"]).unwrap();
        assert_eq!((set.len(), set.channels(), set.size()), (2, 1, Some([2, 3])));
        assert_eq!(set.classes(), ["shirt", "shoe"]);
        for (id, label) in [(0, 1), (1, 0)] {
            let sample = set.load(id).unwrap();
            let expected = Image { pixels: pixels[id * 6..id * 6 + 6].to_vec(), height: 2, width: 3, channels: 1 };
            assert_eq!((sample.image, sample.label), (expected, label));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn what_write_idx_gz_wrote_is_read_back(
        count in 1usize..20, height in 1usize..9, width in 1usize..9, noise in proptest::collection::vec(any::<u8>(), 1..99),
    ) {
        let root = tempdir().unwrap();
        let (images, labels) = (root.path().join("images.gz"), root.path().join("labels.gz"));
        let pixels: Vec<u8> = noise.iter().copied().cycle().take(count * height * width).collect();
        let classes: Vec<u8> = noise.iter().map(|byte| byte % 10).cycle().take(count).collect();
        write_idx_gz(&images, &[count, height, width], &pixels).unwrap();
        write_idx_gz(&labels, &[count], &classes).unwrap();

        let set = ImageSet::idx(images, labels, DIGITS).unwrap();
        let samples: Vec<_> = (0..count).map(|id| set.load(id).unwrap()).collect();
        prop_assert_eq!(samples.iter().flat_map(|s| s.image.pixels.clone()).collect::<Vec<_>>(), pixels);
        prop_assert_eq!(samples.iter().map(|s| s.label as u8).collect::<Vec<_>>(), classes);
    }
}

#[test]
fn an_mnist_directory_is_found_with_or_without_names_and_gzip() {
    for (names, gzip, expected) in [(None, true, &DIGITS[..]), (Some("shirt\r\nshoe\n"), false, &["shirt", "shoe"])] {
        let root = tempdir().unwrap();
        for (name, count) in [("train", 3), ("t10k", 1)] {
            let (images, labels) = (format!("{name}-images-idx3-ubyte"), format!("{name}-labels-idx1-ubyte"));
            if gzip {
                write_idx_gz(root.path().join(images + ".gz"), &[count, 1, 1], &[7; 3][..count]).unwrap();
                write_idx_gz(root.path().join(labels + ".gz"), &[count], &[1; 3][..count]).unwrap();
            } else {
                fs::write(root.path().join(images), idx(IMAGES, &[count as u32, 1, 1], &[7; 3][..count])).unwrap();
                fs::write(root.path().join(labels), idx(LABELS, &[count as u32], &[1; 3][..count])).unwrap();
            }
        }
        if let Some(names) = names {
            fs::write(root.path().join("classes.txt"), names).unwrap();
        }
        let data = open_images(root.path()).unwrap();
        assert_eq!((data.train.len(), data.test.len()), (3, 1));
        assert_eq!((data.train.classes(), data.test.classes()), (data.test.classes(), data.train.classes()));
        assert_eq!(data.train.classes(), expected);
    }
}

#[test]
fn damaged_idx_files_are_refused_in_one_line_that_names_the_file() {
    let good_images = idx(IMAGES, &[2, 1, 2], &[0; 4]);
    let good_labels = idx(LABELS, &[2], &[0, 1]);
    // Its dimensions multiply to exactly 2^64 - 1.
    let huge = idx(IMAGES, &[u32::MAX, 641, 6_700_417], &[0; 4]);
    // Images, labels, which of the two is at fault, why.
    let cases = [
        (
            idx(LABELS, &[2, 1, 2], &[0; 4]),
            good_labels.clone(),
            "images",
            "starts with 0x00000801, expected 0x00000803",
        ),
        (good_images.clone(), idx(IMAGES, &[2], &[0, 1]), "labels", "starts with 0x00000803, expected 0x00000801"),
        (vec![], good_labels.clone(), "images", "failed to fill whole buffer"),
        (good_images[..10].to_vec(), good_labels.clone(), "images", "failed to fill whole buffer"),
        (good_images[..19].to_vec(), good_labels.clone(), "images", "fewer bytes than its header's [2, 1, 2]"),
        (huge, good_labels.clone(), "images", "fewer bytes than its header's [4294967295, 641, 6700417]"),
        (idx(IMAGES, &[u32::MAX; 3], &[0; 4]), good_labels.clone(), "images", "is too large"),
        ([&good_images[..], &[0]].concat(), good_labels.clone(), "images", "more bytes than its header's [2, 1, 2]"),
        (good_images.clone(), idx(LABELS, &[2], &[0, 1, 1]), "labels", "more bytes than its header's [2]"),
        (good_images.clone(), idx(LABELS, &[3], &[0; 3]), "labels", "3 labels for 2 images"),
        (good_images.clone(), idx(LABELS, &[2], &[0, 2]), "labels", "label 2, expected below 2"),
        (idx(IMAGES, &[0, 1, 2], &[]), idx(LABELS, &[0], &[]), "images", "[0, 1, 2] holds no image"),
        (idx(IMAGES, &[2, 0, 2], &[]), good_labels.clone(), "images", "[2, 0, 2] holds no image"),
    ];
    for (images, labels, culprit, reason) in cases {
        let root = tempdir().unwrap();
        fs::write(root.path().join("images"), images).unwrap();
        fs::write(root.path().join("labels"), labels).unwrap();
        let error = ImageSet::idx(root.path().join("images"), root.path().join("labels"), ["a", "b"]).unwrap_err();
        assert_one_line(error, &[&shown(&root.path().join(culprit)), "is damaged or of another format", reason]);
    }
}

#[test]
fn damaged_gzip_and_missing_files_are_named() {
    let root = tempdir().unwrap();
    let at = |name: &str| root.path().join(name);
    let noise: Vec<u8> = (0..500u32).map(|i| (i * i % 251) as u8).collect();
    write_idx_gz(at("labels.gz"), &[500], &noise).unwrap();
    let whole = fs::read(at("labels.gz")).unwrap();
    let mut flipped = whole.clone();
    *flipped.last_mut().unwrap() ^= 1;
    let cases = [idx(LABELS, &[500], &noise), whole[..whole.len() / 2].to_vec(), flipped];
    write_idx_gz(at("images.gz"), &[500, 1, 1], &noise).unwrap();
    for bytes in cases {
        fs::write(at("labels.gz"), bytes).unwrap();
        let error = ImageSet::idx(at("images.gz"), at("labels.gz"), DIGITS).unwrap_err();
        assert_one_line(error, &[&shown(&at("labels.gz")), "is damaged or of another format"]);
    }
    assert_one_line(ImageSet::idx(at("absent"), at("labels.gz"), DIGITS).unwrap_err(), &[&shown(&at("absent"))]);

    fs::rename(at("images.gz"), at("train-images-idx3-ubyte.gz")).unwrap();
    let missing = shown(&at("train-labels-idx1-ubyte"));
    assert_one_line(open_images(root.path()).unwrap_err(), &["cannot read ", &missing]);
}

#[test]
fn shapes_that_idx_cannot_hold_are_not_written() {
    let root = tempdir().unwrap();
    let path = root.path().join("file.gz");
    for (shape, shown) in [(&[2, 2][..], "[2, 2]"), (&[], "[]"), (&[3], "[3]"), (&[2, 2, 2], "[2, 2, 2]")] {
        let message = format!("shape is {shown} for 4 bytes, expected 1 or 3 dimensions of the bytes' size");
        assert_eq!(write_idx_gz(&path, shape, &[0; 4]).unwrap_err().to_string(), message);
        assert!(!path.exists());
    }
    let absent = root.path().join("absent/file.gz");
    assert_one_line(write_idx_gz(&absent, &[4], &[0; 4]).unwrap_err(), &[&shown(&absent)]);
}

/// A CIFAR-10 record whose sample at (plane, position) is `plane * 80 + position % 80`.
fn record(label: u8) -> Vec<u8> {
    let samples = (0..3).flat_map(|plane| (0..1024).map(move |i| plane * 80 + (i % 80) as u8));
    [label].into_iter().chain(samples).collect()
}

#[test]
fn cifars_colour_planes_become_pixels() {
    let root = tempdir().unwrap();
    let file = root.path().join("some.bin");
    fs::write(&file, [record(9), record(0)].concat()).unwrap();
    let set = ImageSet::cifar10([&file]).unwrap();
    assert_eq!((set.len(), set.channels(), set.size()), (2, 3, Some([32, 32])));
    assert_eq!([set.label(0), set.label(1)], [9, 0]);
    assert_eq!((set.classes()[9].as_str(), set.classes()[0].as_str(), set.classes().len()), ("truck", "airplane", 10));
    let expected: Vec<u8> = (0..1024).flat_map(|i| [0, 80, 160].map(|plane| plane + (i % 80) as u8)).collect();
    for id in 0..2 {
        assert_eq!(set.load(id).unwrap().image, Image { pixels: expected.clone(), height: 32, width: 32, channels: 3 });
    }
}

#[test]
fn a_cifar_directory_is_read_in_the_order_of_its_batches() {
    let root = tempdir().unwrap();
    for label in [3, 1, 5, 2, 4] {
        fs::write(root.path().join(format!("data_batch_{label}.bin")), record(label)).unwrap();
    }
    let missing = shown(&root.path().join("test_batch.bin"));
    assert_one_line(open_images(root.path()).unwrap_err(), &["cannot read ", &missing]);
    fs::write(root.path().join("test_batch.bin"), record(7)).unwrap();
    let data = open_images(root.path()).unwrap();
    assert_eq!((0..5).map(|id| data.train.label(id)).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
    assert_eq!((data.train.len(), data.test.len(), data.test.label(0)), (5, 1, 7));
}

#[test]
fn damaged_cifar_files_are_refused_in_one_line_that_names_the_file() {
    let root = tempdir().unwrap();
    let [good, bad] = ["good.bin", "bad.bin"].map(|name| root.path().join(name));
    fs::write(&good, record(1)).unwrap();
    let cases = [
        (vec![], "0 bytes, expected a multiple of 3073"),
        (record(1)[..3072].to_vec(), "3072 bytes, expected a multiple of 3073"),
        ([record(1), vec![0]].concat(), "3074 bytes, expected a multiple of 3073"),
        ([record(9), record(10)].concat(), "label 10, expected below 10"),
    ];
    for (bytes, reason) in cases {
        fs::write(&bad, bytes).unwrap();
        let message = format!("{} is damaged or of another format: {reason}", shown(&bad));
        assert_eq!(ImageSet::cifar10([&good, &bad]).unwrap_err().to_string(), message);
    }
}
