//! Labelled images, in memory or as files.

use std::path::PathBuf;
use std::sync::Arc;

use burn::data::dataset::{Dataset, DatasetError};
use rand::Rng;

use crate::decode::{DecodeOptions, Header, Image, ImageFile, Quality, View};
use crate::error::Error;
use crate::loader::{BatchPlan, Stage, Worker};

use super::transform::Transform;

/// An image and its class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabeledImage {
    /// The image.
    pub image: Image,
    /// Index into [`ImageSet::classes`].
    pub label: usize,
}

/// Labelled images, in memory or as files. Made by [`folder`](Self::folder), [`idx`](Self::idx),
/// [`cifar10`](Self::cifar10), or for both halves of a directory by [`open_images`](crate::open_images).
///
/// It is a burn `Dataset<LabeledImage>`, so that burn's own tools take it.
#[derive(Clone, Debug)]
pub struct ImageSet {
    store: Store,
    labels: Arc<[usize]>,
    classes: Arc<[String]>,
    channels: usize,
}

#[derive(Clone, Debug)]
enum Store {
    /// All images of one size, one after the other.
    Memory {
        pixels: Arc<[u8]>,
        height: usize,
        width: usize,
    },
    Files {
        paths: Arc<[PathBuf]>,
        decode: DecodeOptions,
    },
}

impl ImageSet {
    pub(crate) fn in_memory(
        pixels: Vec<u8>,
        [height, width, channels]: [usize; 3],
        labels: Vec<usize>,
        classes: Vec<String>,
    ) -> Self {
        debug_assert_eq!(pixels.len(), labels.len() * height * width * channels);
        let store = Store::Memory { pixels: pixels.into(), height, width };
        Self { store, labels: labels.into(), classes: classes.into(), channels }
    }

    pub(crate) fn files(paths: Vec<PathBuf>, labels: Vec<usize>, classes: Vec<String>) -> Self {
        let decode = DecodeOptions::new().with_quality(Quality::Fast);
        let store = Store::Files { paths: paths.into(), decode };
        Self { store, labels: labels.into(), classes: classes.into(), channels: 3 }
    }

    /// Decodes the files with these options; the default is fast, within 512 MiB each. A loader's budget may lower the
    /// limit.
    #[must_use]
    pub fn with_decode_options(mut self, options: DecodeOptions) -> Self {
        if let Store::Files { decode, .. } = &mut self.store {
            *decode = options;
        }
        self
    }

    /// Decodes the files to 1 (gray) or 3 (RGB) samples per pixel; the default is 3. Images in memory keep what they have.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] for other numbers, and for images in memory that have another number.
    pub fn with_channels(mut self, channels: usize) -> Result<Self, Error> {
        let expected = match self.store {
            Store::Files { .. } if [1, 3].contains(&channels) => {
                self.channels = channels;
                return Ok(self);
            }
            Store::Memory { .. } if channels == self.channels => return Ok(self),
            Store::Files { .. } => "1 (gray) or 3 (RGB)",
            Store::Memory { .. } if self.channels == 1 => "1: the data set is of gray images",
            Store::Memory { .. } => "3: the data set is of RGB images",
        };
        Err(Error::InvalidSetting { name: "channels", value: channels.to_string(), expected })
    }

    /// The headers of at most `count` image files, evenly spread over the set. There is no header for files that cannot be read, and none
    /// for images in memory.
    pub fn some_headers(&self, count: usize) -> Vec<Header> {
        let Store::Files { paths, .. } = &self.store else { return vec![] };
        let every = paths.len().div_ceil(count.max(1)).max(1);
        let headers = paths.iter().step_by(every).map(|path| Some(ImageFile::open(path).ok()?.header().clone()));
        headers.flatten().collect()
    }

    /// An upper bound of the bytes that decoding any one of the images for `transform` takes, whatever the random
    /// choices: for [`Loader::with_largest_image`](crate::Loader::with_largest_image). Reads the header of every file, on
    /// as many threads as the machine has processors. Files that cannot be read, and are not decoded, have no part in it;
    /// 0 for images in memory.
    ///
    /// # Errors
    /// Those of [`Transform::check`].
    pub fn largest_decode_bytes(&self, transform: &Transform) -> Result<u64, Error> {
        transform.check()?;
        let Store::Files { paths, decode } = &self.store else { return Ok(0) };
        let of_file = |path: &PathBuf| {
            let file = ImageFile::open(path).ok()?;
            transform.decode_bytes(&file, self.channels, decode).ok()
        };
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let largest = std::thread::scope(|scope| {
            let parts = paths.chunks(paths.len().div_ceil(threads).max(1));
            let largest = |part: &[PathBuf]| part.iter().filter_map(of_file).max();
            let start = |part| std::thread::Builder::new().spawn_scoped(scope, move || largest(part));
            let scans: Vec<_> = parts.map(|part| (part, start(part))).collect();
            let read = |(part, scan): (_, std::io::Result<std::thread::ScopedJoinHandle<'_, _>>)| match scan {
                Ok(scan) => scan.join().ok().flatten(),
                Err(_) => largest(part), // the system has no thread left: this one reads
            };
            scans.into_iter().filter_map(read).max()
        });
        Ok(largest.unwrap_or(0))
    }

    /// Number of images.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Whether there is no image.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// Names of the classes; a label is an index into them.
    pub fn classes(&self) -> &[String] {
        &self.classes
    }

    /// Samples per pixel of every image: 1 (gray) or 3 (RGB).
    pub fn channels(&self) -> usize {
        self.channels
    }

    /// The label of image `id`, below [`len`](Self::len).
    pub fn label(&self, id: usize) -> usize {
        self.labels[id]
    }

    /// The size `[height, width]` of all images, if they are known to have the same.
    pub fn size(&self) -> Option<[usize; 2]> {
        match self.store {
            Store::Memory { height, width, .. } => Some([height, width]),
            Store::Files { .. } => None,
        }
    }

    /// Image `id`, below [`len`](Self::len), at its own size. A file is decoded by this call.
    ///
    /// # Errors
    /// [`Error::Read`] and [`Error::Format`] for a file that is missing or no image, [`Error::TooLarge`] for one that takes
    /// more bytes than its limit.
    pub fn load(&self, id: usize) -> Result<LabeledImage, Error> {
        let image = match &self.store {
            Store::Memory { pixels, height, width } => {
                let size = height * width * self.channels;
                let pixels = pixels[id * size..(id + 1) * size].to_vec();
                Image { pixels, height: *height, width: *width, channels: self.channels }
            }
            Store::Files { paths, decode } => {
                let file = ImageFile::open(&paths[id])?;
                let view = View::whole(file.header().height, file.header().width);
                let decoding = file.plan(&view, self.channels, decode)?;
                file.decode(&decoding)?
            }
        };
        Ok(LabeledImage { image, label: self.labels[id] })
    }

    /// Image `id`, transformed. The worker waits until the budget has room for the decoding.
    pub(crate) fn view(
        &self,
        id: usize,
        transform: &Transform,
        rng: &mut impl Rng,
        plan: &BatchPlan,
        worker: &Worker,
    ) -> Result<Image, Error> {
        match &self.store {
            Store::Memory { .. } => worker.timed(Stage::Resize, || transform.apply(self.load(id)?.image, rng)),
            Store::Files { paths, decode } => {
                let file = worker.timed(Stage::Read, || ImageFile::open(&paths[id]))?;
                let view = transform.view(file.header().height, file.header().width, rng);
                let options = decode.with_limit(decode.limit.min(worker.image_limit()));
                let decoding = file.plan(&view, self.channels, &options)?;
                worker.within(plan, decoding.bytes(), || {
                    let decoded = worker.decoding(|| file.pixels(&decoding))?;
                    if let Some(damage) = decoded.damage {
                        worker.repaired(id, &paths[id], damage);
                    }
                    worker.timed(Stage::Resize, || Ok(transform.erased(decoded.finish(&decoding)?, rng)))
                })
            }
        }
    }

    /// The images at `ids`, in that order, sharing the pixels.
    pub(crate) fn subset(&self, ids: &[usize]) -> Self {
        let labels: Vec<usize> = ids.iter().map(|id| self.labels[*id]).collect();
        match &self.store {
            Store::Files { paths, decode } => {
                let paths = ids.iter().map(|id| paths[*id].clone()).collect();
                let set = Self::files(paths, labels, self.classes.to_vec()).with_decode_options(*decode);
                Self { channels: self.channels, ..set }
            }
            Store::Memory { pixels, height, width } => {
                let size = height * width * self.channels;
                let pixels = ids.iter().flat_map(|id| &pixels[id * size..(id + 1) * size]).copied().collect();
                Self::in_memory(pixels, [*height, *width, self.channels], labels, self.classes.to_vec())
            }
        }
    }
}

impl Dataset<LabeledImage> for ImageSet {
    fn get(&self, index: usize) -> Result<LabeledImage, DatasetError> {
        self.load(index).map_err(DatasetError::new)
    }

    fn len(&self) -> usize {
        self.labels.len()
    }
}
