//! What decoding takes, by an allocator that counts: little for large images, and never more than was planned.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test fails by panicking; figures are shown on demand")]

mod large;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};

use kiln_data::{
    Area, DecodeOptions, DecodePath, Error, ImageFile, LoaderConfig, Order, Quality, Raster, Samples, TileBatch,
    TileConfig, TileSet, View,
};
use kiln_memory::CountingAllocator;
use tempfile::tempdir;

#[global_allocator]
static HEAP: CountingAllocator = CountingAllocator::new();

const MIB: usize = 1 << 20;

/// Tests run on threads of one process; what is counted must be of one of them.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// What `work` gives, and the most bytes that were live meanwhile, beyond those before.
fn peak<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = HEAP.live_bytes();
    HEAP.reset_peak();
    let result = work();
    (result, HEAP.peak_bytes() - before)
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/images").join(name)
}

fn view(file: &ImageFile, side: usize) -> View {
    View { height: side, width: side, ..View::whole(file.header().height, file.header().width) }
}

/// Decodes all of the image to 224x224; returns the path that was taken, the plan's bytes and those it really took.
fn measure(path: &Path, side: usize, quality: Quality) -> (DecodePath, usize, usize) {
    let options = DecodeOptions { quality, limit: 1 << 40, ..DecodeOptions::default() };
    let ((path, planned), took) = peak(|| {
        let file = ImageFile::open(path).unwrap();
        let plan = file.plan(&view(&file, side), 3, &options).unwrap();
        let image = file.decode(&plan).unwrap();
        assert_eq!(image.pixels.len(), side * side * 3);
        (plan.path(), plan.bytes() as usize)
    });
    (path, planned, took)
}

#[test]
fn a_hundred_megapixels_take_a_few_mebibytes() {
    let _alone = alone();
    let root = tempdir().unwrap();
    let [jpeg, png, tiff] = ["a.jpg", "a.png", "a.tif"].map(|name| root.path().join(name));
    fs::write(&jpeg, large::jpeg(12_000, 1050, 3)).unwrap();
    large::png(&png, 8400, 12_000);
    large::tiff(&tiff, 8400, 12_000, 256);
    for path in [&jpeg, &png, &tiff] {
        let (way, planned, took) = measure(path, 224, Quality::Fast);
        println!("{}: {way:?}, planned {planned}, took {took}", path.display());
        assert!(took <= 32 * MIB, "{} took {took} bytes by {way:?}", path.display());
        assert!(took <= planned, "{} took {took} bytes, planned {planned}", path.display());
    }
    for path in [&png, &tiff] {
        let (samples, took) = peak(|| {
            let mut raster = Raster::open(path, 16 << 20).unwrap();
            raster.window(4000, 6000, 512, 512).unwrap().samples
        });
        assert!(matches!(samples, Samples::U8(samples) if samples.len() == 512 * 512 * 3));
        assert!(took <= 4 * MIB, "{} took {took} bytes", path.display());
    }
}

#[test]
fn the_plan_is_an_upper_bound_and_no_more_than_a_tenth_too_high() {
    let _alone = alone();
    let root = tempdir().unwrap();
    let mut paths: Vec<PathBuf> = vec![];
    for (i, (width, blocks)) in [(300, 40), (1500, 130), (5001, 300), (900, 2000)].into_iter().enumerate() {
        for samples in [1, 3] {
            paths.push(root.path().join(format!("{i}-{samples}.jpg")));
            fs::write(paths.last().unwrap(), large::jpeg(width, blocks, samples)).unwrap();
        }
        paths.push(root.path().join(format!("{i}.png")));
        large::png(paths.last().unwrap(), blocks * 8, width);
        for side in [64, 512] {
            paths.push(root.path().join(format!("{i}-{side}.tif")));
            large::tiff(paths.last().unwrap(), blocks * 8, width, side);
        }
    }
    let subsampled = fs::read(fixture("baseline-420.jpg")).unwrap();
    for rows in [34, 200, 1000] {
        paths.push(root.path().join(format!("420-{rows}.jpg")));
        fs::write(paths.last().unwrap(), large::taller(&subsampled, rows, rows * 16 - 5)).unwrap();
    }
    // Kinds that have a path of their own, at the size they have.
    for name in ["progressive.jpg", "gray.jpg", "cmyk.jpg", "rgb.jpg", "interlaced.png", "rgb-16.png", "rgba.png"] {
        paths.push(fixture(name));
    }
    for name in
        ["tiles-jpeg.tif", "planar.tif", "big-endian.tif", "lossy.webp", "lossless.webp", "palette.gif", "rgb.bmp"]
    {
        paths.push(fixture(name));
    }
    let mut wrong = vec![];
    for path in paths {
        for (side, quality) in [(16, Quality::Fast), (64, Quality::Fast), (224, Quality::Exact)] {
            let (way, planned, took) = measure(&path, side, quality);
            let name = path.file_name().unwrap().to_string_lossy();
            let line = format!("{name} to {side} by {way:?}: planned {planned}, took {took}");
            println!("{line}");
            // What does not grow with the image, as the state of an inflater, need not be used in full.
            if took > planned || planned as f64 > 1.1 * took as f64 + (MIB / 2) as f64 {
                wrong.push(line);
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn a_crop_takes_no_more_than_its_plan() {
    let _alone = alone();
    let root = tempdir().unwrap();
    let [png, tiff] = ["a.png", "a.tif"].map(|name| root.path().join(name));
    large::png(&png, 3000, 4000);
    large::tiff(&tiff, 3000, 4000, 128);
    for (path, quality) in
        [(&png, Quality::Exact), (&png, Quality::Fast), (&tiff, Quality::Exact), (&tiff, Quality::Fast)]
    {
        let options = DecodeOptions { quality, ..DecodeOptions::default() };
        let area = Area { top: 1000.5, left: 700.25, height: 900.0, width: 1100.0 };
        let ((image, planned), took) = peak(|| {
            let file = ImageFile::open(path).unwrap();
            let plan = file.plan(&View { area, height: 224, width: 224, flip: true }, 3, &options).unwrap();
            (file.decode(&plan).unwrap(), plan.bytes() as usize)
        });
        assert_eq!(image.pixels.len(), 224 * 224 * 3);
        assert!(took <= planned && planned <= took + took / 10 + MIB / 2, "planned {planned}, took {took}");
    }
}

#[test]
fn a_window_takes_no_more_than_its_raster_says() {
    let _alone = alone();
    let root = tempdir().unwrap();
    let [jpeg, png, tiff] = ["a.jpg", "a.png", "a.tif"].map(|name| root.path().join(name));
    fs::write(&jpeg, large::jpeg(1500, 130, 3)).unwrap();
    large::png(&png, 1000, 1500);
    large::tiff(&tiff, 1000, 1500, 128);
    let kinds = ["gray-16.png", "interlaced.png", "planar.tif", "tiles-jpeg.tif", "palette.gif", "orientation-6.jpg"];
    for path in [jpeg, png, tiff].into_iter().chain(kinds.map(fixture)) {
        let window = |limit| -> Result<usize, Error> {
            let mut raster = Raster::open(&path, limit)?;
            let [height, width] = [raster.height(), raster.width()].map(|side| side.min(500));
            raster.window(0, 0, height, width)?;
            Ok(raster.window_bytes(height, width) as usize)
        };
        let (said, took) = peak(|| window(1 << 40).unwrap());
        println!("{}: {took} bytes, said {said}", path.display());
        assert!(took <= said && said <= took + took / 10 + MIB / 2, "{}: {took} bytes, said {said}", path.display());
        assert!(matches!(window(said as u64 - 1), Err(Error::TooLarge { .. })), "{}", path.display());
    }
}

/// Two workers and four batches ahead of a consumer that holds one, from a tiled TIFF of a hundred megapixels.
#[test]
fn tiles_of_a_hundred_megapixels_stay_within_the_budget() {
    let _alone = alone();
    let root = tempdir().unwrap();
    let path = root.path().join("a.tif");
    large::tiff(&path, 8400, 12_000, 256);
    let set = TileSet::new([&path], TileConfig { overlap: 32, ..TileConfig::new(512) }).unwrap();
    assert_eq!(set.len(), 18 * 25);
    let (order, budget) = (Order::Shuffled { seed: 2 }, 24 << 20);
    let loader = TileBatch::loader(set, Some(2), LoaderConfig { order, budget, ..LoaderConfig::new(2) }).unwrap();
    let (tiles, took) = peak(|| loader.epoch(0, 0).take(8).map(|batch| batch.unwrap().len()).sum::<usize>());
    let stats = loader.stats();
    println!("{tiles} tiles took {took} bytes, {} of the budget", stats.peak_bytes);
    assert_eq!(tiles, 16);
    // Beside what is budgeted: threads, and what the header of an open file says.
    assert!(took <= budget as usize + 2 * MIB && stats.peak_bytes <= budget, "{took} bytes");
}
