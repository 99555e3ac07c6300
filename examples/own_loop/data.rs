//! Batches of Fashion-MNIST on the host.

use std::error::Error;
use std::fs::File;
use std::io::Read;

use burn::tensor::TensorData;
use flate2::read::GzDecoder;

/// Images `[B, 1, 28, 28]` and their classes `[B]`. `TensorData` is an array on the host, as NumPy's arrays are.
pub(crate) type Batch = (TensorData, TensorData);

const BATCH: usize = 250;
const PIXELS: usize = 28 * 28;

/// The 4,000 images that come with Kiln, in 16 batches.
pub(crate) fn batches() -> Result<Vec<Batch>, Box<dyn Error>> {
    let read = |name: &str| -> Result<Vec<u8>, Box<dyn Error>> {
        let mut bytes = vec![];
        let file = File::open(format!("fixtures/fashion-mnist/{name}-ubyte.gz"))?;
        GzDecoder::new(file).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let (images, classes) = (read("train-images-idx3")?, read("train-labels-idx1")?);
    let images = images[16..].chunks_exact(BATCH * PIXELS);
    let batch = |(pixels, classes): (&[u8], &[u8])| {
        let pixels: Vec<f32> = pixels.iter().map(|byte| f32::from(*byte) / 255.0).collect();
        let classes: Vec<i64> = classes.iter().map(|class| i64::from(*class)).collect();
        (TensorData::new(pixels, [BATCH, 1, 28, 28]), TensorData::new(classes, [BATCH]))
    };
    Ok(images.zip(classes[8..].chunks_exact(BATCH)).map(batch).collect())
}
