//! Batches of burn's own `DataLoader`, trained within a byte budget by a closure.

use std::error::Error;
use std::fs::File;
use std::io::Read;

use burn::data::dataloader::DataLoaderBuilder;
use burn::data::dataloader::batcher::Batcher;
use burn::data::dataset::InMemDataset;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Int, Tensor, TensorData};
use flate2::read::GzDecoder;
use kiln_training::{BatchSource, BurnBatches, LossFn, MemoryBudget, Pass, Trainer};

/// An image of 28 x 28 gray pixels and its class.
type Item = (Vec<u8>, u8);
type Batch = (Tensor<2>, Tensor<1, Int>);

#[derive(Clone)]
struct ToTensors;

impl Batcher<Item, Batch> for ToTensors {
    fn batch(&self, items: Vec<Item>, device: &Device) -> Batch {
        let (count, classes) = (items.len(), items.iter().map(|(_, class)| i64::from(*class)).collect());
        let pixels: Vec<f32> = items.iter().flat_map(|(image, _)| image).map(|byte| f32::from(*byte) / 255.0).collect();
        let pixels = Tensor::from_data(TensorData::new(pixels, [count, 784]), device);
        (pixels, Tensor::from_data(TensorData::new::<i64, _>(classes, [count]), device))
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let device = Device::flex();
    let items = InMemDataset::new(fashion_mnist()?);
    let loader = DataLoaderBuilder::new(ToTensors).batch_size(256).shuffle(1).set_device(device.clone()).build(items);
    let batches = BurnBatches::new(loader, 256);
    let task = LossFn::new(|pass: &Pass<'_, Linear>, (pixels, classes): &Batch| {
        let logits = pass.model().forward(pass.input(pixels));
        CrossEntropyLossConfig::new().init(pass.device()).forward(logits, pass.input(classes))
    });
    let first = batches.epoch(0, 0).next().ok_or("the data set has no images")??;
    let mut trainer = Trainer::builder(task, |device| LinearConfig::new(784, 10).init(device))
        .with_memory(MemoryBudget::Bytes(8 << 20))
        .with_epochs(3)
        .build(&device, &first)?;
    let before = trainer.evaluate(&batches)?.metrics;
    let _ = trainer.fit(&batches)?;
    say(format!("before {before:?}, after {:?}", trainer.evaluate(&batches)?.metrics));
    Ok(())
}

/// The images in fixtures/, read without Kiln.
fn fashion_mnist() -> Result<Vec<Item>, Box<dyn Error>> {
    let read = |name: &str| -> Result<Vec<u8>, Box<dyn Error>> {
        let mut bytes = vec![];
        let file = File::open(format!("fixtures/fashion-mnist/{name}-ubyte.gz"))?;
        GzDecoder::new(file).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let (images, labels) = (read("train-images-idx3")?, read("train-labels-idx1")?);
    let images = images[16..].chunks_exact(784).map(<[u8]>::to_vec);
    Ok(images.zip(labels[8..].iter().copied()).collect())
}

#[allow(clippy::print_stdout, reason = "an example shows what it does")]
fn say(text: String) {
    println!("{text}");
}
