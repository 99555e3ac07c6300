//! Reference models for burn: image classifiers, a U-Net for segmentation, and decoders of text.
//!
//! - [`ResNet`], the residual networks of 18 to 101 layers.
//! - [`MobileNet`] (versions 2 and 3) and [`ShuffleNetV2`], networks of few parameters and multiply-adds.
//! - [`Vit`], the vision transformer, in DeiT's sizes.
//! - [`Classifier`], any of these by name.
//! - [`Unet`], semantic segmentation with the blocks of a ResNet or a MobileNetV2 as its encoder.
//! - [`Gpt`], a decoder in the sizes of GPT-2, and [`Llama`], one of the Llama family: Llama, Mistral, Qwen2 and Qwen3.
//! - [`Decoder`], any of these, configured and loaded from the folder of a Hugging Face model by [`DecoderConfig`], and [`DecoderReader`],
//!   which reads a text token by token to generate more of it with a [`Sampling`].
//!
//! Each model is an ordinary burn module. Besides `forward` it exposes its **blocks as a chain**, so that a caller can run
//! them one by one: classifiers as `blocks` and `head`, [`Unet`] as `blocks`, decoders as `embed`, `blocks` and `head`. It reads and writes
//! **safetensors under the names of the reference implementations**: torchvision for convolutional networks, timm for [`Vit`],
//! segmentation_models_pytorch for [`Unet`], Hugging Face transformers for decoders.
//!
//! *Architecture invariant*: this crate depends on burn and knows nothing of training, data, or checkpointing; a block does not
//! know how it is run.
//!
//! ```
//! use burn::tensor::{Device, Distribution, Int, Tensor};
//! use kiln_models::{GptConfig, ResNetConfig, Stem};
//!
//! let device = Device::flex();
//! let config = ResNetConfig::resnet18(10).with_stem(Stem::Cifar).with_width(8);
//! config.check_input([32, 32])?;
//! let model = config.init(&device)?;
//! // B batch, C channels, H height, W width
//! let images_bchw = Tensor::random([2, 3, 32, 32], Distribution::Default, &device);
//! let logits = model.forward(images_bchw.clone());
//! assert_eq!(logits.dims(), [2, 10]);
//!
//! // The same, block by block.
//! let x = model.blocks().iter().fold(images_bchw, |x, block| block.forward(x));
//! assert_eq!(model.head(x).into_data(), logits.into_data());
//!
//! // A decoder reads token ids, which its first block does not.
//! let model = GptConfig::tiny(256, 16).init(&device)?;
//! let ids_bt = Tensor::<2, Int>::zeros([2, 16], &device);
//! let x = model.blocks().iter().fold(model.embed(ids_bt.clone()), |x, block| block.forward(x));
//! assert_eq!(model.head(x).into_data(), model.forward(ids_bt).into_data());
//! # Ok::<(), kiln_models::Error>(())
//! ```

mod cache;
mod classifier;
mod config;
mod decoder;
mod error;
mod gpt;
mod layers;
mod llama;
mod matching;
mod mobilenet;
mod resnet;
mod safetensors;
mod safetensors_file;
mod shufflenet_v2;
mod unet;
mod vit;

pub use cache::DecoderCache;
pub use classifier::{Classifier, ClassifierBlock, ClassifierConfig};
pub use decoder::{Decoder, DecoderBlock, DecoderConfig, DecoderHalf, DecoderParts, DecoderReader, Sampling};
pub use error::Error;
pub use gpt::{Gpt, GptBlock, GptConfig, GptHalf};
pub use layers::{InputHook, InputMap, NOT_LEARNED, on_layer_input};
pub use llama::{Llama, LlamaBlock, LlamaConfig, LlamaHalf, Scaling};
pub use mobilenet::{MobileNet, MobileNetBlock, MobileNetV2Config, MobileNetV3Config};
pub use resnet::{ResNet, ResNetBlock, ResNetConfig, Stem};
pub use safetensors::{Matched, SafetensorsModel};
pub use shufflenet_v2::{ShuffleNetV2, ShuffleNetV2Block, ShuffleNetV2Config};
pub use unet::{Unet, UnetBlock, UnetConfig, UnetEncoder};
pub use vit::{Vit, VitBlock, VitConfig};
