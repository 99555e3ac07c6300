//! Images in few files: the IDX format of the MNIST family, and the binary format of CIFAR-10.

use std::fs::{self, File};
use std::io::{BufReader, Read, Write};
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;

use crate::error::Error;
use crate::images::image_set::ImageSet;

const IMAGES: u32 = 0x0803; // unsigned bytes, three dimensions
const LABELS: u32 = 0x0801; // unsigned bytes, one dimension

/// The most bytes that a byte of deflate stands for (zlib's technical details, "maximum compression factor").
const RATIO: u64 = 1032;
/// The most bytes that a `.gz` may unpack to, 1 GiB: EMNIST, the largest of the family, has 0.6 GiB. A file that is not packed may be
/// larger, since its bytes are there.
const UNPACKED: u64 = 1 << 30;

impl ImageSet {
    /// Gray images and labels in the IDX format of the MNIST family, gzipped or not. A gzipped file may unpack to at most 1 GiB.
    ///
    /// # Errors
    /// [`Error::Read`] when a file is missing, [`Error::Unsupported`] for a larger `.gz`, [`Error::Format`] when one is damaged or is no IDX file
    /// of bytes, when the two differ in length, and when a label has no name in `classes`.
    ///
    /// Source: <http://yann.lecun.com/exdb/mnist/>, "file formats".
    pub fn idx(
        images: impl AsRef<Path>,
        labels: impl AsRef<Path>,
        classes: impl IntoIterator<Item = impl Into<String>>,
    ) -> Result<Self, Error> {
        let (images, labels_path) = (images.as_ref(), labels.as_ref());
        let (shape, pixels) = read::<3>(images, IMAGES)?;
        let ([count], labels) = read::<1>(labels_path, LABELS)?;
        if shape[0] != count {
            return Err(Error::format(labels_path, format!("{count} labels for {} images", shape[0])));
        }
        if count == 0 || shape[1] * shape[2] == 0 {
            return Err(Error::format(images, format!("{shape:?} holds no image")));
        }
        let classes: Vec<String> = classes.into_iter().map(Into::into).collect();
        if let Some(label) = labels.iter().find(|label| usize::from(**label) >= classes.len()) {
            return Err(Error::format(labels_path, format!("label {label}, expected below {}", classes.len())));
        }
        let labels = labels.into_iter().map(usize::from).collect();
        Ok(Self::in_memory(pixels, [shape[1], shape[2], 1], labels, classes))
    }
}

/// `directory/stem` or `directory/stem.gz`, whichever is there.
pub(crate) fn find(directory: &Path, stem: &str) -> Option<PathBuf> {
    [directory.join(stem), directory.join(format!("{stem}.gz"))].into_iter().find(|path| path.is_file())
}

fn read<const D: usize>(path: &Path, magic: u32) -> Result<([usize; D], Vec<u8>), Error> {
    let file = File::open(path).map_err(|e| Error::read(path, e))?;
    let stored = file.metadata().map_err(|e| Error::read(path, e))?.len();
    let file = BufReader::new(file);
    let zipped = path.extension().is_some_and(|extension| extension == "gz");
    let mut reader: Box<dyn Read> = if zipped { Box::new(GzDecoder::new(file)) } else { Box::new(file) };
    let short = |e: std::io::Error| Error::format(path, e.to_string());
    let mut word = || -> Result<u32, Error> {
        let mut bytes = [0; 4];
        reader.read_exact(&mut bytes).map_err(short)?;
        Ok(u32::from_be_bytes(bytes))
    };
    let found = word()?;
    if found != magic {
        return Err(Error::format(path, format!("starts with {found:#010x}, expected {magic:#010x}")));
    }
    let mut shape = [0; D];
    for dimension in &mut shape {
        *dimension = word()? as usize;
    }
    let size = shape.iter().try_fold(1usize, |size, dimension| size.checked_mul(*dimension));
    let size = size.ok_or_else(|| Error::format(path, format!("{shape:?} is too large")))?;
    // Nothing is unpacked for a header that the file cannot keep.
    if size as u64 > if zipped { stored.saturating_mul(RATIO) } else { stored } {
        return Err(Error::format(path, format!("fewer bytes than its header's {shape:?}")));
    }
    if zipped && size as u64 > UNPACKED {
        let reason =
            format!("{size} bytes by its header's {shape:?}, expected at most {UNPACKED} in a .gz: unpack the file");
        return Err(Error::Unsupported { path: path.to_owned(), reason });
    }
    let mut bytes = vec![];
    reader.take((size as u64).saturating_add(1)).read_to_end(&mut bytes).map_err(short)?;
    if bytes.len() != size {
        let what = if bytes.len() < size { "fewer" } else { "more" };
        return Err(Error::format(path, format!("{what} bytes than its header's {shape:?}")));
    }
    Ok((shape, bytes))
}

/// Writes `bytes` of the given shape as a gzipped IDX file. The file is not replaced atomically: write into a new directory
/// and rename the directory.
///
/// # Errors
/// [`Error::InvalidSetting`] when the shape does not have 1 or 3 dimensions, or has another size than `bytes`,
/// [`Error::Write`] when the file cannot be written.
pub fn write_idx_gz(path: impl AsRef<Path>, shape: &[usize], bytes: &[u8]) -> Result<(), Error> {
    let path = path.as_ref();
    let magic = match shape.len() {
        1 => LABELS,
        3 => IMAGES,
        _ => 0,
    };
    if magic == 0 || shape.iter().product::<usize>() != bytes.len() || shape.iter().any(|d| *d > u32::MAX as usize) {
        let value = format!("{shape:?} for {} bytes", bytes.len());
        return Err(Error::setting("shape", value, "1 or 3 dimensions of the bytes' size"));
    }
    let write = || -> std::io::Result<()> {
        let mut encoder = GzEncoder::new(File::create(path)?, Compression::best());
        encoder.write_all(&magic.to_be_bytes())?;
        for dimension in shape {
            encoder.write_all(&(*dimension as u32).to_be_bytes())?;
        }
        encoder.write_all(bytes)?;
        encoder.finish()?.sync_all()
    };
    write().map_err(|reason| Error::write(path, reason))
}

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
