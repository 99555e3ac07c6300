//! Images of clothes, and loaders that make batches of them on other threads.

use std::fs::File;
use std::io::Read;

use burn::tensor::TensorData;
use flate2::read::GzDecoder;
use kiln_data::{LoaderConfig, Order};
use kiln_training::Loader;

use crate::Result;

/// Images `[B, 1, 28, 28]` and their classes `[B]`, on the host.
pub(crate) type Batch = (TensorData, TensorData);

const PIXELS: usize = 28 * 28;

/// All images of a part of the data set, as bytes.
pub(crate) struct Images {
    pixels: Vec<u8>,
    classes: Vec<u8>,
}

impl Images {
    /// Reads the `train` or `t10k` part of the Fashion-MNIST that comes with Kiln.
    pub(crate) fn read(part: &str) -> Result<Self> {
        let read = |name: &str, header: usize| -> Result<Vec<u8>> {
            let (path, mut bytes) = (format!("fixtures/fashion-mnist/{part}-{name}-ubyte.gz"), vec![]);
            let file = File::open(&path).map_err(|error| format!("cannot read '{path}': {error}"))?;
            GzDecoder::new(file).read_to_end(&mut bytes)?;
            Ok(bytes.split_off(header.min(bytes.len())))
        };
        let (pixels, classes) = (read("images-idx3", 16)?, read("labels-idx1", 8)?);
        match pixels.len() == classes.len() * PIXELS {
            true => Ok(Self { pixels, classes }),
            false => Err(format!("{part}: {} bytes of pixels of {} images", pixels.len(), classes.len()).into()),
        }
    }

    /// Batches of 100: in another order each epoch to train on, in the order of the files to evaluate on.
    pub(crate) fn loader(self, shuffled: bool) -> Result<Loader<Batch>> {
        let order = if shuffled { Order::Shuffled { seed: 1 } } else { Order::Sequential };
        let config = LoaderConfig::new(100).with_order(order).with_workers(1);
        Ok(Loader::new(self.classes.len(), config, move |plan| Ok(self.batch(&plan.ids)))?)
    }

    fn batch(&self, ids: &[usize]) -> Batch {
        let pixels = ids.iter().flat_map(|id| &self.pixels[id * PIXELS..(id + 1) * PIXELS]);
        let pixels: Vec<f32> = pixels.map(|byte| f32::from(*byte) / 255.0).collect();
        let classes: Vec<i64> = ids.iter().map(|id| i64::from(self.classes[*id])).collect();
        (TensorData::new(pixels, [ids.len(), 1, 28, 28]), TensorData::new(classes, [ids.len()]))
    }
}
