//! The loop of burn's book, with nothing of Kiln but the count of its bytes.

use std::error::Error;

use burn::module::Module;
use burn::optim::{AdamWConfig, GradientsParams};
use burn::tensor::{Device, Tensor};

use crate::data::Batch;
use crate::measured::{HEAP, Outcome};
use crate::net::{Net, cross_entropy};

pub(crate) fn train(batches: &[Batch]) -> Result<Outcome, Box<dyn Error>> {
    let device = Device::flex().autodiff();
    device.seed(1);
    let mut model = Net::new(&device);
    let mut optimizer = AdamWConfig::new().init();
    let before = HEAP.live_bytes();
    HEAP.reset_peak();

    for (images, classes) in batches {
        let images = Tensor::from_data(images.clone(), &device);
        let classes = Tensor::from_data(classes.clone(), &device);
        let loss = cross_entropy(model.forward(images), classes);
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        model = optimizer.step(1e-2, model, gradients);
    }

    let peak_bytes = (HEAP.peak_bytes() - before) as u64;
    let (model, device) = (model.valid(), device.inner());
    let mut loss = 0.0;
    for (images, classes) in batches {
        let images = Tensor::from_data(images.clone(), &device);
        let classes = Tensor::from_data(classes.clone(), &device);
        loss += cross_entropy(model.forward(images), classes).try_into_scalar::<f64>()?;
    }
    Ok(Outcome { loss: loss / batches.len() as f64, peak_bytes })
}
