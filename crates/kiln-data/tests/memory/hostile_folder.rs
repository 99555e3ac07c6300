//! A folder of damaged and unreadable files: each ends as the policy for bad samples says, within the byte budget.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use image::{ImageFormat, Rgb, RgbImage};
use kiln_data::{BadSamples, Error, ImageBatch, ImageSet, Loader, LoaderConfig, Order, Transform};
use tempfile::{TempDir, tempdir};

use crate::{HEAP, alone};

/// Batches of [`BATCH`] images of [`SIZE`] pixels a side, and images of at most about a megabyte while they are decoded.
const BUDGET: u64 = 1 << 20;
const SIZE: usize = 16;
const BATCH: usize = 4;

const GOOD: usize = 24;

fn png(height: u32, width: u32) -> Vec<u8> {
    let mut bytes = vec![];
    let noise = |x: u32, y: u32| Rgb([x as u8, y as u8, (x * y) as u8]);
    let image = RgbImage::from_fn(width, height, noise);
    image.write_to(&mut std::io::Cursor::new(&mut bytes), ImageFormat::Png).unwrap();
    bytes
}

/// A PNG whose header claims other dimensions than its data have.
fn claiming(height: u32, width: u32) -> Vec<u8> {
    let mut bytes = png(8, 8);
    bytes[16..20].copy_from_slice(&width.to_be_bytes());
    bytes[20..24].copy_from_slice(&height.to_be_bytes());
    let sum = crc32fast::hash(&bytes[12..29]);
    bytes[29..33].copy_from_slice(&sum.to_be_bytes());
    bytes
}

/// Good images, and the paths of the bad files.
fn folder() -> (TempDir, BTreeSet<PathBuf>) {
    let root = tempdir().unwrap();
    let class = root.path().join("class");
    fs::create_dir(&class).unwrap();
    for id in 0..GOOD {
        // The name never tells the format.
        let ending = ["png", "jpg", "tif", "webp"][id % 4];
        fs::write(class.join(format!("good-{id:02}.{ending}")), png(40, 30)).unwrap();
    }
    let (whole, mut bad) = (png(64, 64), BTreeSet::new());
    let mut add = |name: &str, bytes: &[u8]| {
        fs::write(class.join(name), bytes).unwrap();
        bad.insert(class.join(name));
    };
    add("empty.png", b"");
    add("text.jpg", b"this is no image");
    add("cut.png", &whole[..whole.len() / 2]);
    add("zero.png", &claiming(0, 0));
    add("flat.png", &claiming(0, 9));
    add("huge.png", &claiming(60_000, 60_000));
    add("vast.png", &claiming(u32::MAX >> 1, u32::MAX >> 1));
    add("signature.jpg", &[0xff, 0xd8, 0xff]);
    add("cyclic.tif", b"II*\0\x08\0\0\0\x00\0\x08\0\0\0");
    #[cfg(unix)]
    {
        use std::os::unix::ffi::OsStrExt;
        use std::os::unix::fs::{PermissionsExt, symlink};
        let odd = class.join(std::ffi::OsStr::from_bytes(b"not-utf8-\xff\xfe.png"));
        if fs::write(&odd, b"no image either").is_ok() {
            bad.insert(odd);
        }
        for (name, to) in [("loop.png", "loop.png"), ("nowhere.png", "nowhere/at-all.png")] {
            symlink(to, class.join(name)).unwrap();
            bad.insert(class.join(name));
        }
        let pipe = class.join("pipe.png");
        if std::process::Command::new("mkfifo").arg(&pipe).status().is_ok_and(|status| status.success()) {
            bad.insert(pipe);
        }
        let locked = class.join("locked.png");
        fs::write(&locked, png(8, 8)).unwrap();
        fs::set_permissions(&locked, fs::Permissions::from_mode(0o000)).unwrap();
        if fs::read(&locked).is_err() {
            bad.insert(locked); // root may read it
        } else {
            fs::remove_file(locked).unwrap();
        }
    }
    (root, bad)
}

fn loader(root: &Path, bad_samples: BadSamples) -> Loader<ImageBatch> {
    let order = Order::Shuffled { seed: 3 };
    let config =
        LoaderConfig::new(BATCH).with_order(order).with_workers(3).with_budget(BUDGET).with_bad_samples(bad_samples);
    ImageBatch::loader(ImageSet::folder(root).unwrap(), Transform::training(SIZE, 0.5), 1, config).unwrap()
}

/// Two epochs; the number of images that came out in each.
fn epochs(loader: &Loader<ImageBatch>) -> [usize; 2] {
    [0, 1].map(|epoch| {
        let images = |batch: Result<ImageBatch, Error>| match batch {
            Ok(batch) => batch.len(),
            Err(Error::NothingLeft { .. }) => 0,
            Err(error) => panic!("{error}"),
        };
        loader.epoch(epoch, 0).map(images).sum()
    })
}

#[test]
fn bad_files_are_left_out_or_replaced_and_reported_once_within_the_budget() {
    let _alone = alone();
    let (root, bad) = folder();
    for (rule, images) in [(BadSamples::skip(100), GOOD), (BadSamples::substitute(100), GOOD + bad.len())] {
        let loader = loader(root.path(), rule);
        HEAP.reset_peak();
        let before = HEAP.live_bytes();
        assert_eq!(epochs(&loader), [images, images]);
        let peak = HEAP.peak_bytes().saturating_sub(before) as u64;
        let reported: BTreeSet<PathBuf> = loader.bad_samples().into_iter().map(|report| report.path.unwrap()).collect();
        assert_eq!(reported, bad);
        assert_eq!(loader.bad_samples().len(), bad.len());
        // Threads, channels and reports are beside the budget.
        assert!(peak < BUDGET + BUDGET / 10 + (256 << 10), "{peak} bytes at the peak");
        assert!(loader.stats().peak_bytes <= BUDGET);
    }
}

#[test]
fn each_fails_alone_with_one_line_that_names_it() {
    let _alone = alone();
    let (root, bad) = folder();
    let set = ImageSet::folder(root.path()).unwrap();
    let mut failed = BTreeSet::new();
    for id in 0..set.len() {
        if let Err(error) = set.load(id) {
            let text = error.to_string();
            assert_eq!(text.lines().count(), 1, "{text}");
            failed.insert(error.path().unwrap().to_owned());
            assert!(error.is_of_a_sample());
        }
    }
    assert_eq!(failed, bad);
    let loader = loader(root.path(), BadSamples::FAIL);
    assert!(loader.epoch(0, 0).any(|batch| batch.is_err()));
}

#[test]
fn files_that_vanish_during_an_epoch_are_left_out_from_then_on() {
    let _alone = alone();
    let (root, bad) = folder();
    let loader = loader(root.path(), BadSamples::skip(100));
    let mut batches = loader.epoch(0, 0);
    assert!(batches.next().is_some());
    let vanished: Vec<PathBuf> = (8..GOOD)
        .map(|id| {
            let ending = ["png", "jpg", "tif", "webp"][id % 4];
            root.path().join(format!("class/good-{id:02}.{ending}"))
        })
        .collect();
    vanished.iter().for_each(|path| fs::remove_file(path).unwrap());
    let rest: usize = batches.map(|batch| batch.map_or(0, |batch| batch.len())).sum();
    assert!(rest <= GOOD);
    assert_eq!(epochs(&loader)[1], 8);
    assert_eq!(loader.bad_samples().len(), bad.len() + vanished.len());
}
