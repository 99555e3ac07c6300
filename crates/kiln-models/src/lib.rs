//! Reference models for burn: ResNet image classifiers and a GPT-2-style decoder.
//!
//! Each model is an ordinary burn module. Besides `forward` it exposes its **blocks as a chain**
//! (`stem`/`embed`, then `blocks()`, then `head`), so that a caller can run it block by block, and it
//! reads and writes **safetensors under the names of the reference implementations**: torchvision
//! for [`ResNet`], Hugging Face transformers for [`Gpt`].
//!
//! *Architecture invariant*: this crate depends on burn and knows nothing of training, data, or
//! checkpointing; a block does not know how it is run.
//!
//! ```
//! use burn::tensor::{Device, Distribution, Tensor};
//! use kiln_models::{ResNetConfig, Stem};
//!
//! let device = Device::flex();
//! let model = ResNetConfig::resnet18(10).with_stem(Stem::Cifar).with_width(8).init(&device)?;
//! // B batch, C channels, H height, W width
//! let images_bchw = Tensor::random([2, 3, 32, 32], Distribution::Default, &device);
//!
//! let logits = model.forward(images_bchw.clone());
//! assert_eq!(logits.dims(), [2, 10]);
//!
//! // The same, block by block.
//! let x = model.blocks().fold(model.stem(images_bchw), |x, block| block.forward(x));
//! assert_eq!(model.head(x).into_data(), logits.into_data());
//! # Ok::<(), kiln_models::Error>(())
//! ```

mod dtype;
mod error;
mod gpt;
mod names;
mod resnet;

pub use error::Error;
pub use gpt::{Block, Gpt, GptConfig};
pub use names::Checkpoint;
pub use resnet::{ResNet, ResNetConfig, ResNetPart, ResidualBlock, Stem, StemLayers};
