use std::path::PathBuf;
use std::sync::Arc;

use burn::data::dataset::{Dataset, DatasetError};

use rand::Rng;

use crate::{BatchPlan, DecodeOptions, Error, ImageFile, Quality, Stage, Transform, View, Worker};

/// An image of 8-bit samples, row by row, the channels of a pixel side by side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// `height * width * channels` samples.
    pub pixels: Vec<u8>,
    /// Rows.
    pub height: usize,
    /// Columns.
    pub width: usize,
    /// Samples per pixel: 1 (gray) or 3 (RGB).
    pub channels: usize,
}

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
        let decode = DecodeOptions { quality: Quality::Fast, ..DecodeOptions::default() };
        let store = Store::Files { paths: paths.into(), decode };
        Self { store, labels: labels.into(), classes: classes.into(), channels: 3 }
    }

    /// The same images, their files decoded as `options` say: by default fast, within 512 MiB each. A loader's budget may
    /// limit them further.
    #[must_use]
    pub fn decoded(mut self, options: DecodeOptions) -> Self {
        if let Store::Files { decode, .. } = &mut self.store {
            *decode = options;
        }
        self
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

    /// The size `[height, width]` that all images share, if they are known to.
    pub fn size(&self) -> Option<[usize; 2]> {
        match self.store {
            Store::Memory { height, width, .. } => Some([height, width]),
            Store::Files { .. } => None,
        }
    }

    /// Image `id`, below [`len`](Self::len), at its own size; a file is decoded now.
    ///
    /// # Errors
    /// [`Error::Read`] and [`Error::Format`] for a file that is gone or no image, [`Error::TooLarge`] for one that takes more
    /// than its limit.
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

    /// Image `id` as `transform` makes it, read within the room of `worker`.
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
                let options = DecodeOptions { limit: decode.limit.min(worker.image_limit()), ..*decode };
                let decoding = file.plan(&view, self.channels, &options)?;
                worker.within(plan, decoding.bytes(), || {
                    let decoded = worker.decoding(|| file.pixels(&decoding))?;
                    Ok(worker.timed(Stage::Resize, || decoded.finish(&decoding)))
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
                Self::files(paths, labels, self.classes.to_vec()).decoded(*decode)
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
