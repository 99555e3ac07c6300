use std::path::{Path, PathBuf};
use std::sync::Arc;

use burn::data::dataset::{Dataset, DatasetError};

use rand::Rng;

use crate::{BatchPlan, Error, Stage, Transform, Worker};

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
        let store = Store::Files { paths: paths.into() };
        Self { store, labels: labels.into(), classes: classes.into(), channels: 3 }
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
    /// [`Error::Read`] and [`Error::Format`] for a file that is gone or no image.
    pub fn load(&self, id: usize) -> Result<LabeledImage, Error> {
        let image = match &self.store {
            Store::Memory { pixels, height, width } => {
                let size = height * width * self.channels;
                let pixels = pixels[id * size..(id + 1) * size].to_vec();
                Image { pixels, height: *height, width: *width, channels: self.channels }
            }
            Store::Files { paths } => decode(&paths[id])?,
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
            Store::Memory { .. } => worker.timed(Stage::Decode, || transform.apply(self.load(id)?.image, rng)),
            Store::Files { .. } => worker.within(plan, 0, || transform.apply(self.load(id)?.image, rng)),
        }
    }

    /// The images at `ids`, in that order, sharing the pixels.
    pub(crate) fn subset(&self, ids: &[usize]) -> Self {
        let labels: Vec<usize> = ids.iter().map(|id| self.labels[*id]).collect();
        match &self.store {
            Store::Files { paths } => {
                let paths = ids.iter().map(|id| paths[*id].clone()).collect();
                Self::files(paths, labels, self.classes.to_vec())
            }
            Store::Memory { pixels, height, width } => {
                let size = height * width * self.channels;
                let pixels = ids.iter().flat_map(|id| &pixels[id * size..(id + 1) * size]).copied().collect();
                Self::in_memory(pixels, [*height, *width, self.channels], labels, self.classes.to_vec())
            }
        }
    }
}

fn decode(path: &Path) -> Result<Image, Error> {
    let reader = image::ImageReader::open(path).and_then(|reader| reader.with_guessed_format());
    let decoded = reader.map_err(|e| Error::read(path, e))?.decode().map_err(|e| Error::format(path, e.to_string()))?;
    let rgb = decoded.into_rgb8();
    let (width, height) = rgb.dimensions();
    Ok(Image { height: height as usize, width: width as usize, channels: 3, pixels: rgb.into_raw() })
}

impl Dataset<LabeledImage> for ImageSet {
    fn get(&self, index: usize) -> Result<LabeledImage, DatasetError> {
        self.load(index).map_err(DatasetError::new)
    }

    fn len(&self) -> usize {
        self.labels.len()
    }
}
