//! Images and labels in the binary format of CIFAR-10.

use std::fs;
use std::path::Path;

use crate::error::Error;
use crate::images::image_set::ImageSet;

const SIDE: usize = 32;
const PLANE: usize = SIDE * SIDE;
const RECORD: usize = 1 + 3 * PLANE;

/// The classes of CIFAR-10, by label.
pub(crate) const CLASSES: [&str; 10] =
    ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"];

impl ImageSet {
    /// 32x32 RGB images in CIFAR-10's binary format: records of a label byte and three colour planes.
    ///
    /// # Errors
    /// [`Error::Read`] when a file is missing, [`Error::Format`] when one does not consist of records
    /// with labels below 10.
    ///
    /// Source: <https://www.cs.toronto.edu/~kriz/cifar.html>, "binary version".
    pub fn cifar10(files: impl IntoIterator<Item = impl AsRef<Path>>) -> Result<Self, Error> {
        let (mut pixels, mut labels) = (vec![], vec![]);
        for path in files {
            let path = path.as_ref();
            let bytes = fs::read(path).map_err(|e| Error::read(path, e))?;
            if bytes.is_empty() || bytes.len() % RECORD != 0 {
                let reason = format!("{} bytes, expected a multiple of {RECORD}", bytes.len());
                return Err(Error::format(path, reason));
            }
            for record in bytes.chunks_exact(RECORD) {
                let label = usize::from(record[0]);
                if label >= CLASSES.len() {
                    return Err(Error::format(path, format!("label {label}, expected below {}", CLASSES.len())));
                }
                labels.push(label);
                let planes = &record[1..];
                pixels.extend((0..PLANE).flat_map(|i| [planes[i], planes[PLANE + i], planes[2 * PLANE + i]]));
            }
        }
        Ok(Self::in_memory(pixels, [SIDE, SIDE, 3], labels, CLASSES.map(String::from).to_vec()))
    }
}
