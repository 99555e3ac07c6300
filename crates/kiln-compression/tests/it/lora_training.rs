//! Steps of adapters of a small Llama, compared with peft's.

use std::path::{Path, PathBuf};

use burn::module::Module;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::optim::{AdamWConfig, GradientsParams};
use burn::tensor::{Device, Int, Tensor, TensorData};
use kiln_compression::{Adapters, FourBits, LowRank, Nest};
use kiln_models::{Decoder, DecoderConfig};

use crate::lora::{difference, tensors};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/decoders").join(name)
}

#[test]
fn twenty_steps_have_the_losses_and_the_adapters_of_peft() {
    let device = Device::flex().autodiff();
    let base = fixture("llama");
    for lean in [true, false] {
        for kind in ["llama-lora", "llama-dora", "llama-qlora"] {
            let config = match DecoderConfig::from_folder(&base).unwrap() {
                DecoderConfig::Llama(config) => DecoderConfig::Llama(config.with_lean(lean)),
                other => panic!("{other:?}"),
            };
            let parameter = |layer: &str| format!("{}.weight", layer.trim_start_matches("model."));
            let adapters = Adapters::load(fixture(kind), parameter).unwrap();
            let plain: Decoder = config.load(&base, &device).unwrap();
            let mut model = match kind {
                "llama-qlora" => {
                    let codes = FourBits::default().skip(["lm_head"]).of(&plain, |_| Ok(None)).unwrap();
                    let targets = adapters.iter().map(|(path, _)| path);
                    let low_rank = adapters.begun(LowRank::new(4, 8.0, targets).unwrap());
                    plain.apply_reparameterization(Nest::new(codes, low_rank))
                }
                _ => adapters.attach_to(plain).unwrap(),
            };
            let expected = tensors(fixture(kind).join("expected.safetensors"));
            let ids = Tensor::<3, Int>::from_data(expected["ids"].clone(), &device);
            let [steps, samples, tokens] = ids.dims();
            let mut optimizer = AdamWConfig::new().with_weight_decay(0.01).with_epsilon(1e-8).init();
            let mut losses = vec![];
            for batch in ids.chunk(steps, 0) {
                let batch = batch.reshape([samples, tokens]);
                let logits = model.forward(batch.clone().narrow(1, 0, tokens - 1));
                let targets = batch.narrow(1, 1, tokens - 1).reshape([-1]);
                let [_, _, vocab] = logits.dims();
                let loss =
                    CrossEntropyLossConfig::new().init(&device).forward(logits.reshape([-1, vocab as i32]), targets);
                losses.push(loss.clone().into_scalar::<f32>());
                let gradients = GradientsParams::from_grads(loss.backward(), &model);
                model = optimizer.step(1e-2, model, gradients);
            }
            let what = format!("{kind} {lean}");
            let losses = TensorData::new(losses, [steps]);
            let far = difference(&losses, &expected["losses"]);
            assert!(far < 1e-4, "the losses of {what} are off by {far}");

            // The files of both have the same names and nearly the same numbers.
            let folder = tempfile::tempdir().unwrap();
            let layer = |path: &str| format!("model.{}", path.trim_end_matches(".weight"));
            Adapters::of(&model).unwrap().save(folder.path(), layer).unwrap();
            let ours = tensors(folder.path().join("adapter_model.safetensors"));
            assert_eq!(ours.len(), expected.len() - 2);
            for (name, ours) in ours {
                let far = difference(&ours, &expected[&format!("after.{name}")]);
                assert!(far < 1e-3, "{name} of {what} is off by {far}");
            }
        }
    }
}
