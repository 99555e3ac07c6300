//! Tiles of large images and their masks against the pixels of the whole, and predictions put together again.

use std::fs;
use std::path::{Path, PathBuf};

use burn::tensor::{DType, Device, Tensor, TensorData};
use image::{GrayImage, Luma};
use kiln_data::{
    BadSamples, Blend, ClassIds, Classes, Error, LoaderConfig, Normalize, Order, Raster, Samples, Stitch, TileBatch,
    TileConfig, TileSet, open_masked_images, stitch, write_classes,
};
use safetensors::{Dtype, SafeTensors};
use tempfile::tempdir;

use crate::fixtures::{fixture, floats};

/// Of 187x152 pixels each, one band: unsigned 16-bit strips, float tiles, signed 16-bit BigTIFF strips.
const TERRAIN: [&str; 3] = ["geotiff/elevation.tif", "geotiff/relief.tif", "geotiff/signed.tif"];

fn terrain() -> [PathBuf; 3] {
    TERRAIN.map(fixture)
}

/// All pixels, `[bands, height, width]`, and that shape.
fn whole(path: &Path) -> (Vec<f32>, [usize; 3]) {
    let mut raster = Raster::open(path, 1 << 30).unwrap();
    let [bands, height, width] = [raster.bands(), raster.height(), raster.width()];
    let pixels = floats(&raster.window(0, 0, height, width).unwrap().samples);
    let planes = (0..bands).flat_map(|band| pixels[band..].iter().step_by(bands).copied()).collect();
    (planes, [bands, height, width])
}

fn config(tile: usize, overlap: usize) -> TileConfig {
    TileConfig::new(tile).with_overlap(overlap)
}

fn batches(set: &TileSet, turns: Option<u64>, epoch: u64, config: LoaderConfig) -> Vec<Result<TileBatch, Error>> {
    TileBatch::loader(set.clone(), turns, config).unwrap().epoch(epoch, 0).collect()
}

/// The samples of every tile in order, `[bands, tile, tile]` each.
fn tiles(set: &TileSet) -> Vec<Vec<f32>> {
    let batches = batches(set, None, 0, LoaderConfig::new(5.min(set.len()))).into_iter().map(Result::unwrap);
    let size = set.bands() * set.config().tile.pow(2);
    batches.flat_map(|batch| floats(&batch.samples).chunks(size).map(<[f32]>::to_vec).collect::<Vec<_>>()).collect()
}

#[test]
fn a_predictor_that_says_its_input_gives_back_the_image_bit_for_bit() {
    let bytes = fs::read(fixture("geotiff/expected.safetensors")).unwrap();
    let recorded = SafeTensors::deserialize(&bytes).unwrap();
    let photos = ["rgb.png", "gray-16.png", "planar.tif", "tiles-deflate.tif", "baseline-420.jpg"];
    let geo = TERRAIN.into_iter().chain(["geotiff/colour.tif"]).map(str::to_owned);
    for name in geo.chain(photos.map(|name| format!("images/{name}"))) {
        let path = fixture(&name);
        let (expected, [bands, height, width]) = whole(&path);
        let cuts = match name.as_str() {
            // Every tile takes a decoding of all of it.
            "images/baseline-420.jpg" => vec![config(500, 100)],
            "geotiff/relief.tif" => vec![config(64, 16), config(50, 40)],
            _ => vec![config(64, 16), config(256, 3)],
        };
        for (cut, blend) in cuts.into_iter().zip([Blend::RaisedCosine, Blend::Linear]) {
            let set = TileSet::new([&path], cut).unwrap();
            assert_eq!((set.bands(), set.grid(0).size(), set.len()), (bands, [height, width], set.grid(0).tiles()));
            let got = stitch(*set.grid(0), bands, blend, tiles(&set)).unwrap();
            assert!(got == expected, "{name} with {cut:?}");
        }
        let Some(file) = name.strip_prefix("geotiff/") else { continue };
        // As tifffile reads it: 40 rows and 50 columns from row 70, column 60.
        let tensor = recorded.tensor(file).unwrap();
        assert_eq!(tensor.shape(), [40, 50, bands]);
        let values: Vec<f32> = match tensor.dtype() {
            Dtype::U8 => tensor.data().iter().map(|byte| f32::from(*byte)).collect(),
            _ => tensor.data().as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect(),
        };
        for (i, value) in values.into_iter().enumerate() {
            let ([y, x], band) = ([70 + i / bands / 50, 60 + i / bands % 50], i % bands);
            assert_eq!(expected[(band * height + y) * width + x], value, "{name} at {i}");
        }
    }
}

#[test]
fn tiles_of_several_images_are_found_by_their_id() {
    let set = TileSet::new(terrain(), config(100, 10)).unwrap();
    let tiles = tiles(&set);
    assert_eq!((set.images(), set.len(), tiles.len(), set.is_eight_bit()), (3, 12, 12, false));
    let images = terrain().map(|path| whole(&path).0);
    for (id, tile) in tiles.iter().enumerate() {
        let place = set.place(id);
        assert_eq!((place.image, place.tile), (id / 4, id % 4));
        assert!(set.ids(place.image).contains(&id) && set.path(place.image) == terrain()[place.image]);
        assert_eq!(place.area, set.grid(place.image).area(place.tile));
        for y in 0..100 {
            let row = (place.area.top + y) * 152 + place.area.left;
            assert!(tile[y * 100..][..100] == images[place.image][row..][..100], "tile {id}, row {y}");
        }
    }
}

/// An image that is its own mask: both are turned alike.
#[test]
fn masks_are_turned_with_their_images_by_seed_epoch_and_id_alone() {
    let small = TileSet::with_masks(
        [(fixture("images/gray.png"), fixture("images/gray.png"))],
        Classes::new(256),
        config(40, 8),
    );
    let deep = Classes::new(1 << 16);
    let large = TileSet::with_masks([(&terrain()[0], &terrain()[0])], deep, config(40, 8));
    for set in [small.unwrap(), large.unwrap()] {
        let shuffled = LoaderConfig::new(4).with_order(Order::Shuffled { seed: 3 });
        let upright = tiles(&set);
        let mut turned = vec![vec![]; set.len()];
        for batch in batches(&set, Some(5), 1, shuffled.clone()).into_iter().map(Result::unwrap) {
            let (samples, masks) = (floats(&batch.samples), batch.masks.as_ref().unwrap());
            assert!(matches!(masks, ClassIds::U8(_)) == set.is_eight_bit());
            assert!(samples.iter().copied().eq(masks.iter().map(|id| id as f32)));
            for (id, tile) in batch.ids.iter().zip(samples.chunks(40 * 40)) {
                turned[*id] = tile.to_vec();
                let sorted = |tile: &[f32]| {
                    let mut tile = tile.to_vec();
                    tile.sort_by(f32::total_cmp);
                    tile
                };
                assert!(sorted(tile) == sorted(&upright[*id]), "{id}");
            }
        }
        let moved = turned.iter().zip(&upright).filter(|(turned, upright)| turned != upright).count();
        assert!(moved > set.len() / 2, "{moved} of {} tiles were turned", set.len());
        // Neither batches nor workers matter; epochs and seeds do.
        let again = |seed, epoch, size| -> Vec<Vec<f32>> {
            let config = LoaderConfig::new(size).with_workers(3);
            let batches = batches(&set, Some(seed), epoch, config).into_iter().map(Result::unwrap);
            batches
                .flat_map(|batch| floats(&batch.samples).chunks(1600).map(<[f32]>::to_vec).collect::<Vec<_>>())
                .collect()
        };
        assert!(again(5, 1, 3) == turned && again(5, 2, 4) != turned && again(6, 1, 4) != turned);
    }
}

/// A mask of class `x * classes / width`, with a row to ignore.
fn striped(directory: &Path, height: u32, width: u32, classes: u32) -> PathBuf {
    let path = directory.join(format!("mask-{height}x{width}-{classes}.png"));
    let class = |x, y| Luma([if y == 2 { 255 } else { (x * classes / width) as u8 }]);
    GrayImage::from_fn(width, height, class).save(&path).unwrap();
    path
}

#[test]
fn on_the_device_pixels_are_normalised_and_what_does_not_count_weighs_nothing() {
    let directory = tempdir().unwrap();
    let mask = striped(directory.path(), 187, 152, 4);
    let classes = Classes::new(4).with_ignore(255);
    // Larger than the image, so that there is padding, and turned, so that it lies anywhere.
    let set = TileSet::with_masks([(&terrain()[0], &mask)], classes, config(190, 0)).unwrap();
    let (image, _) = whole(&terrain()[0]);
    let normalize = Normalize { mean: vec![3000.0], std: vec![200.0] };
    let mut corners = vec![];
    for epoch in 0..6 {
        let [Ok(batch)] = &batches(&set, Some(1), epoch, LoaderConfig::new(1))[..] else { panic!("one batch") };
        let area = batch.valid[0];
        assert!([[187, 152], [152, 187]].contains(&[area.height, area.width]));
        corners.push((area.top > 0, area.left > 0));
        let tiles = batch.to_device(&normalize, &Device::flex()).unwrap();
        let [images, weights] = [tiles.images.flatten::<1>(0, 3), tiles.weights.flatten(0, 2)]
            .map(|tensor| tensor.into_data().iter::<f32>().collect::<Vec<_>>());
        let masks: Vec<i64> = tiles.masks.unwrap().into_data().iter().collect();
        let host = batch.masks.as_ref().unwrap();
        let (mut counted, mut sum) = (0, 0.0);
        for (at, id) in host.iter().enumerate() {
            let inside = (area.top..area.top + area.height).contains(&(at / 190))
                && (area.left..area.left + area.width).contains(&(at % 190));
            assert_eq!(weights[at], if inside && id != 255 { 1.0 } else { 0.0 });
            assert_eq!(masks[at], if id == 255 { 0 } else { id });
            assert!(inside || (id == 255 && images[at] == 0.0));
            counted += usize::from(weights[at] == 1.0);
            sum += f64::from(images[at]);
        }
        assert_eq!(counted, 186 * 152); // without the row to ignore
        let expected: f64 = image.iter().map(|metres| (f64::from(*metres) - 3000.0) / 200.0).sum();
        assert!((sum - expected).abs() < 1e-6 * image.len() as f64, "{sum}, expected {expected}"); // rounding to f32
    }
    corners.sort_unstable();
    corners.dedup();
    assert!(corners.len() > 1, "padding was always at {corners:?}");
}

#[test]
fn bytes_are_scaled_and_a_slice_is_part_of_its_batch() {
    let set = TileSet::new([fixture("images/rgb.png")], config(48, 0)).unwrap();
    let batch = batches(&set, None, 0, LoaderConfig::new(4)).remove(0).unwrap();
    assert!(matches!(batch.samples, Samples::U8(_)) && batch.masks.is_none());
    let (device, plain) = (Device::flex(), Normalize { mean: vec![0.0; 3], std: vec![1.0; 3] });
    let all = batch.to_device(&plain, &device).unwrap();
    let values: Vec<f32> = all.images.clone().into_data().iter().collect();
    assert!(values.iter().zip(floats(&batch.samples)).all(|(value, byte)| (value * 255.0 - byte).abs() < 1e-4));
    assert!(all.masks.is_none() && all.weights.into_data().iter::<f32>().all(|weight| weight == 1.0));
    let part = batch.slice(1..3);
    assert_eq!((part.len(), part.shape, &part.ids[..]), (2, [2, 3, 48, 48], &batch.ids[1..3]));
    let some: Vec<f32> = part.to_device(&plain, &device).unwrap().images.into_data().iter().collect();
    assert!(some == values[3 * 48 * 48..3 * 3 * 48 * 48]);
    let error = batch.to_device(&Normalize::for_channels(1), &device).unwrap_err().to_string();
    assert_eq!(error, "normalize is 1 means and 1 deviations for 3 bands, expected one of each for a band");
}

#[test]
fn predictions_on_a_device_are_stitched_in_any_precision() {
    let set = TileSet::new([&terrain()[1]], config(64, 16)).unwrap();
    let (expected, _) = whole(&terrain()[1]);
    for (dtype, tolerance) in [(DType::F32, 0.0), (DType::F16, 0.5)] {
        let mut image = vec![];
        let mut stitch = Stitch::new(*set.grid(0), 1, Blend::RaisedCosine, |_, row: &[f32]| {
            image.extend_from_slice(row);
            Ok(())
        })
        .unwrap();
        for batch in batches(&set, None, 0, LoaderConfig::new(5)).into_iter().map(Result::unwrap) {
            let data = TensorData::new(floats(&batch.samples), batch.shape);
            let predictions = Tensor::<4>::from_data(data, &Device::flex()).cast(dtype);
            stitch.add_batch(&batch.ids, predictions).unwrap();
        }
        let shape = stitch.add_batch(&[0], Tensor::zeros([1, 2, 64, 64], &Device::flex())).unwrap_err().to_string();
        assert!(
            shape.ends_with("[1, 2, 64, 64] for 1 tiles of 64 and 1 classes, expected [B, classes, tile, tile]"),
            "{shape}"
        );
        // As of a batch in which a tile was left out, or another is in its place.
        let order = stitch.add_batch(&[0, 2], Tensor::zeros([2, 1, 64, 64], &Device::flex())).unwrap_err();
        assert!(matches!(order, Error::TileOrder { .. }), "{order}");
        stitch.finish().unwrap();
        // Metres from the mean, up to a thousand: 11 bits of a half.
        let off = image.iter().zip(&expected).map(|(got, expected)| (got - expected).abs()).fold(0.0, f32::max);
        assert!(image.len() == expected.len() && off <= tolerance, "{off}");
    }
}

#[track_caller]
fn refused<T: std::fmt::Debug>(result: Result<T, Error>, path: &Path, part: &str) {
    let error = result.unwrap_err();
    assert!(error.to_string().contains(part), "{error} lacks {part:?}");
    assert_eq!(error.path(), Some(path), "{error}");
}

#[test]
fn masks_that_cannot_be_of_their_image_are_refused_before_a_pixel_is_read() {
    let directory = tempdir().unwrap();
    let image = &terrain()[0];
    let classes = Classes::new(4).with_ignore(255);
    let with = |image: &Path, mask: &Path| TileSet::with_masks([(image, mask)], classes, config(64, 0));
    let mask = striped(directory.path(), 187, 151, 4);
    refused(with(image, &mask), &mask, "187x151 pixels, expected 187x152 as");
    // Of the size of their image, but not valid as a mask.
    for (image, mask, part) in [
        ("rgb.png", "palette.png", "3 bands, expected one of class ids"),
        ("gray-4.png", "gray-4.png", "4 bits read as U8"),
        ("gray.jpg", "gray.jpg", "the format Jpeg, expected TIFF or PNG"),
        ("orientation-3.jpg", "gray.png", "another orientation than"),
    ] {
        let [image, mask] = [image, mask].map(|name| fixture(&format!("images/{name}")));
        let sizes = [&image, &mask]
            .map(|path| Raster::open(path, 1 << 30).map(|raster| (raster.height(), raster.width())).unwrap());
        assert_eq!(sizes[0], sizes[1]);
        refused(with(&image, &mask), &mask, part);
    }
    refused(with(&terrain()[1], &terrain()[1]), &terrain()[1], "32 bits read as F32");
    for count in [0, 65537] {
        let classes = Classes::new(count);
        let error = TileSet::with_masks([(image, image)], classes, config(64, 0)).unwrap_err().to_string();
        assert_eq!(error, format!("classes is {count}, expected 1 to 65536"));
    }
}

#[test]
fn an_id_that_is_no_class_is_named_with_its_file_and_place() {
    let directory = tempdir().unwrap();
    let mask = striped(directory.path(), 187, 152, 5);
    let first = |count, ignore: Option<u16>| {
        let classes = ignore.map_or(Classes::new(count), |ignore| Classes::new(count).with_ignore(ignore));
        let set = TileSet::with_masks([(&terrain()[0], &mask)], classes, config(64, 0)).unwrap();
        batches(&set, None, 0, LoaderConfig::new(1)).into_iter().find_map(Result::err)
    };
    assert!(first(5, Some(255)).is_none() && first(256, None).is_none());
    refused(
        first(4, Some(255)).map_or(Ok(()), Err),
        &mask,
        "class 4 at row 0, column 122, expected one below 4 or 255 (ignored)",
    );
    refused(first(5, None).map_or(Ok(()), Err), &mask, "class 255 at row 2, column 0, expected one below 5");
}

#[test]
fn sets_that_cannot_be_are_refused() {
    let image = &terrain()[0];
    let none = TileSet::new(Vec::<PathBuf>::new(), config(64, 0)).unwrap_err().to_string();
    assert_eq!(none, "images is none, expected at least one");
    assert!(matches!(TileSet::new([image], config(64, 64)), Err(Error::InvalidSetting { name: "overlap", .. })));
    assert!(matches!(TileSet::new(["absent.tif"], config(64, 0)), Err(Error::Read { .. })));
    let gray = fixture("images/gray.png");
    refused(
        TileSet::new([image, &gray], config(64, 0)),
        &gray,
        "1 bands of U8, expected 1 of samples that are not of 8 bits as",
    );
    let rgb = fixture("images/rgb.png");
    refused(TileSet::new([&gray, &rgb], config(64, 0)), &rgb, "3 bands of U8, expected 1 of 8-bit samples as");
    // The bytes for a tile: of a TIFF its strips, of a JPEG the whole image.
    for path in [image, &fixture("images/baseline-420.jpg")] {
        let small = config(64, 0).with_limit(100_000);
        let error = TileSet::new([path], small).unwrap_err();
        assert!(matches!(&error, Error::TooLarge { limit: 100_000, path: named, .. } if named == path), "{error}");
    }
}

/// Pairs whose mask is missing, of another size, or no mask are errors, or are left out where that is allowed.
#[test]
fn bad_pairs_are_errors_or_left_out() {
    let directory = tempdir().unwrap();
    let place = |name: &str| directory.path().join(name);
    for folder in ["images", "masks"] {
        fs::create_dir(place(folder)).unwrap();
    }
    for (name, size) in [("a", Some([152, 187])), ("b", None), ("c", Some([152, 100])), ("d", Some([152, 187]))] {
        fs::copy(&terrain()[0], place(&format!("images/{name}.tif"))).unwrap();
        if let Some([width, height]) = size {
            GrayImage::new(width, height).save(place(&format!("masks/{name}.png"))).unwrap();
        }
    }
    fs::write(place("images/readme.txt"), "no image").unwrap();
    fs::write(place("classes.txt"), "ground\nwater\n\n").unwrap();
    let data = open_masked_images(directory.path()).unwrap();
    assert_eq!(data.train.classes, Some(vec!["ground".to_owned(), "water".to_owned()]));
    // The third of the four is held out.
    assert_eq!(data.test.pairs, [(place("images/c.tif"), place("masks/c.png"))]);
    let pairs = [data.train.pairs, data.test.pairs].concat();
    let open = |bad| TileSet::with_readable_masks(pairs_of(&pairs), Classes::new(2), config(64, 0), bad);
    let error = open(BadSamples::FAIL).unwrap_err().to_string();
    assert!(error.contains("masks/b.tif") && error.contains("the mask of") && error.contains("is missing"), "{error}");
    let (set, left_out) = open(BadSamples::skip(2)).unwrap();
    assert_eq!((set.images(), left_out.len()), (2, 2));
    assert!(left_out[1].to_string().contains("100x152 pixels, expected 187x152"), "{}", left_out[1]);
    let error = open(BadSamples::skip(1)).unwrap_err().to_string();
    assert!(error.starts_with("more than 1 samples could not be read; the last: "), "{error}");

    fs::remove_dir_all(place("images")).unwrap();
    let error = open_masked_images(directory.path()).unwrap_err().to_string();
    assert!(error.contains("expected images/ and masks/, or train/ and test/ of those"), "{error}");
}

fn pairs_of(pairs: &[(PathBuf, PathBuf)]) -> Vec<(&Path, &Path)> {
    pairs.iter().map(|(image, mask)| (image.as_path(), mask.as_path())).collect()
}

/// The tags that say where an image lies, as they are in both files.
#[test]
fn classes_lie_where_their_image_does() {
    let path = tempdir().unwrap();
    let path = path.path().join("classes.tif");
    let like = &terrain()[0];
    write_classes::<Error>(&path, [187, 152], 3, Some(like), |rows| (0..187).try_for_each(|y| rows.row(&[y % 3; 152])))
        .unwrap();
    let tags = |path: &Path| {
        let mut decoder = tiff::decoder::Decoder::new(fs::File::open(path).unwrap()).unwrap();
        [33550, 33922, 34735, 34736, 34737].map(|tag| {
            decoder.find_tag(tiff::tags::Tag::from_u16_exhaustive(tag)).unwrap().map(|tag| format!("{tag:?}"))
        })
    };
    assert_eq!(tags(&path), tags(like));
    assert!(tags(like).iter().filter(|tag| tag.is_some()).count() >= 3);
    // What is written is a mask.
    let set = TileSet::with_masks([(like, &path)], Classes::new(3), config(64, 0)).unwrap();
    let batch = batches(&set, None, 0, LoaderConfig::new(1)).remove(0).unwrap();
    assert!(batch.masks.unwrap().iter().take(64 * 64).enumerate().all(|(pixel, id)| id == (pixel / 64 % 3) as i64));
}

#[test]
fn of_a_file_that_is_cut_short_the_tiles_that_are_there_are_read() {
    let directory = tempdir().unwrap();
    let path = directory.path().join("cut.tif");
    let bytes = fs::read(&terrain()[1]).unwrap();
    fs::write(&path, &bytes[..bytes.len() * 6 / 10]).unwrap();
    let set = TileSet::new([&path], config(32, 0)).unwrap();
    let error = batches(&set, None, 0, LoaderConfig::new(set.len())).remove(0);
    refused(error, &path, "cut.tif");
    let skipping = LoaderConfig::new(1).with_bad_samples(BadSamples::skip(set.len()));
    let loader = TileBatch::loader(set.clone(), None, skipping).unwrap();
    let (image, _) = whole(&terrain()[1]);
    let mut read = 0;
    for batch in loader.epoch(0, 0) {
        match batch {
            Ok(batch) => {
                let (area, samples) = (set.place(batch.ids[0]).area, floats(&batch.samples));
                assert!(
                    samples
                        .chunks(32)
                        .enumerate()
                        .all(|(y, row)| { row == &image[(area.top + y) * 152 + area.left..][..32] })
                );
                read += 1;
            }
            Err(error) => assert!(matches!(error, Error::NothingLeft { .. }), "{error}"),
        }
    }
    let bad = loader.bad_samples().len();
    assert!(read > 0 && bad > 0 && read + bad == set.len(), "{read} read, {bad} bad of {}", set.len());
}

#[test]
fn files_that_change_or_do_not_fit_the_budget_are_bad_samples() {
    let directory = tempdir().unwrap();
    let path = directory.path().join("image.tif");
    fs::copy(&terrain()[0], &path).unwrap();
    let set = TileSet::new([&path], config(64, 0)).unwrap();
    let tight = LoaderConfig::new(1).with_budget(200_000);
    let error = batches(&set, None, 0, tight).remove(0).unwrap_err();
    assert!(matches!(&error, Error::TooLarge { path: named, .. } if *named == path), "{error}");
    fs::copy(&terrain()[1], &path).unwrap();
    refused(batches(&set, None, 0, LoaderConfig::new(1)).remove(0), &path, "changed since the set of tiles was made");
    fs::remove_file(&path).unwrap();
    assert!(matches!(batches(&set, None, 0, LoaderConfig::new(1)).remove(0), Err(Error::Read { .. })));
}
