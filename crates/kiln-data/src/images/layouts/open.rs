//! Opens an image data set, whichever layout its directory has.

use std::path::Path;

use crate::error::Error;
use crate::files::{TrainTest, check_names, list};
use crate::images::image_set::ImageSet;
use crate::order::Order;

use super::packed::find;

/// One in this many samples is held out of a data set that has no test part.
const HELD_OUT: usize = 10;
/// The layouts, for messages.
const EXPECTED: &str = "expected a directory per class (or train/ and val/ of those), IDX files (train-images-idx3-ubyte...), \
                        or CIFAR-10 files (data_batch_1.bin...)";

/// Opens the image data set in `root`, whichever of these layouts it has:
///
/// - IDX: `train-images-idx3-ubyte`, `train-labels-idx1-ubyte`, `t10k-images-idx3-ubyte`,
///   `t10k-labels-idx1-ubyte`, each optionally `.gz`, and optionally `classes.txt` (a name a line)
/// - CIFAR-10 binary: `data_batch_1.bin` ... and `test_batch.bin`
/// - `train/` and `val/` or `test/`, each with a directory per class
/// - a directory per class: one image in ten is held out, the same ones every time
///
/// # Errors
/// [`Error::Read`], [`Error::NoDataSet`], [`Error::EmptyClass`], [`Error::ClassName`], [`Error::Format`].
pub fn open_images(root: impl AsRef<Path>) -> Result<TrainTest<ImageSet>, Error> {
    let root = root.as_ref();
    if root.is_file() {
        return Err(Error::no_data_set(root, format!("it is a file, {EXPECTED}")));
    }
    let entries = list(root)?;
    if find(root, "train-images-idx3-ubyte").is_some() {
        return open_idx(root);
    }
    let batches: Vec<_> = entries.iter().filter(|path| file_name(path).starts_with("data_batch_")).collect();
    if !batches.is_empty() {
        let train = ImageSet::cifar10(batches)?;
        return Ok(TrainTest { train, test: ImageSet::cifar10([root.join("test_batch.bin")])? });
    }
    // A class may have the name train; it has no directories of classes then.
    let train = root.join("train");
    if train.is_dir() && list(&train)?.iter().any(|path| path.is_dir()) {
        return open_split(root);
    }
    if !entries.iter().any(|path| path.is_dir()) {
        return Err(Error::no_data_set(root, EXPECTED));
    }
    hold_out(root, &ImageSet::folder(root)?)
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn open_idx(root: &Path) -> Result<TrainTest<ImageSet>, Error> {
    let names = root.join("classes.txt");
    let classes: Vec<String> = match names.is_file() {
        true => {
            let text = std::fs::read_to_string(&names).map_err(|e| Error::read(&names, e))?;
            text.lines().map(str::to_owned).collect()
        }
        false => (0..10).map(|digit| digit.to_string()).collect(),
    };
    check_names(&classes, &names)?;
    let file = |stem: &str| find(root, stem).unwrap_or_else(|| root.join(stem));
    let half = |name: &str| {
        let (images, labels) = (format!("{name}-images-idx3-ubyte"), format!("{name}-labels-idx1-ubyte"));
        ImageSet::idx(file(&images), file(&labels), classes.clone())
    };
    Ok(TrainTest { train: half("train")?, test: half("t10k")? })
}

fn open_split(root: &Path) -> Result<TrainTest<ImageSet>, Error> {
    let train = ImageSet::folder(root.join("train"))?;
    let Some(test) = ["val", "test"].map(|name| root.join(name)).into_iter().find(|path| path.is_dir()) else {
        return hold_out(root, &train);
    };
    let set = ImageSet::folder(&test)?;
    if set.classes() != train.classes() {
        let reason = format!("its classes {:?} differ from those of train/, {:?}", set.classes(), train.classes());
        return Err(Error::NoDataSet { path: test, reason });
    }
    Ok(TrainTest { train, test: set })
}

fn hold_out(root: &Path, all: &ImageSet) -> Result<TrainTest<ImageSet>, Error> {
    if all.len() < 2 {
        return Err(Error::no_data_set(root, "one image cannot be divided, expected at least 2"));
    }
    let order = Order::Shuffled { seed: 0 }.of_epoch(all.len(), 0);
    let ids: Vec<usize> = (0..all.len()).map(|position| order.at(position)).collect();
    let (test, train) = ids.split_at(all.len().div_ceil(HELD_OUT));
    Ok(TrainTest { train: all.subset(train), test: all.subset(test) })
}
