//! Draws `docs/memory.svg`: the predicted memory of a step of a ResNet-50 on 32 images of 224 x 224 on a CUDA GPU.
//!
//! `cargo run --example memory_picture > docs/memory.svg`
#![allow(clippy::print_stdout, reason = "the picture goes to stdout")]

use std::error::Error;

use burn::nn::loss::CrossEntropyLossConfig;
use burn::optim::SgdConfig;
use burn::optim::momentum::MomentumConfig;
use burn::tensor::{Int, Tensor};
use kiln_memory::{BackendProfile, MemoryReport, Recorder, StepOptions, record_step};
use kiln_models::{ResNet, ResNetConfig};
use kiln_report::MemoryPage;

/// The picture. It does not depend on the machine.
pub(crate) fn draw() -> Result<String, Box<dyn Error>> {
    let loss = |model: &ResNet, step: &Recorder| {
        let images = Tensor::zeros([step.batch(), 3, 224, 224], step.device());
        let labels = Tensor::<1, Int>::zeros([step.batch()], step.device());
        CrossEntropyLossConfig::new().init(step.device()).forward(model.forward(images), labels)
    };
    let optimizer = SgdConfig::new().with_momentum(Some(MomentumConfig::new())).build();
    // A model that cannot be built is reported as a step that cannot be recorded.
    let build = |device: &_| ResNetConfig::resnet50(1000).init(device).unwrap_or_else(|e| panic!("{e}"));
    let trace = record_step(build, loss, &optimizer, StepOptions::default())?;
    let prediction = trace.predict(32, &BackendProfile::cuda())?;
    let report =
        MemoryReport::new("A training step of ResNet-50 on 32 images of 224 x 224").with_prediction(prediction);
    Ok(serde_json::from_str::<MemoryPage>(&report.json())?.svg())
}

#[allow(dead_code, reason = "a test draws the picture too")]
fn main() -> Result<(), Box<dyn Error>> {
    println!("{}", draw()?);
    Ok(())
}
