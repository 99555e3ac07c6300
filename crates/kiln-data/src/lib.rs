//! Samples from disk to burn tensors.
//!
//! - **Images**: [`ImageFile`] decodes a file at the size that is needed, within a limit of bytes that is known
//!   before a pixel is; [`Transform`] says what part of it. [`ImageSet`] is a directory per class, IDX or CIFAR-10;
//!   [`Raster`] reads windows of large images. The feature `turbo` decodes JPEG through libjpeg-turbo, a sixth to a
//!   quarter faster; to build it takes cmake and nasm (`apt-get install cmake nasm`).
//! - **Large images**: a [`TileSet`] cuts them into tiles, with masks of class ids for segmentation, and a [`Stitch`] puts
//!   the predictions together again.
//! - **Text**: [`TextTokens`] are windows over tokens in memory or in a mapped [`TokenFile`], [`Documents`] texts of
//!   different lengths, both through a [`Tokenizer`].
//! - **Order**: a [`Sampler`] says which samples make a batch, for any number of replicas: a pure function of (seed,
//!   epoch, batch) that can be entered anywhere. [`LoaderState`] is where a run stands, in a line.
//! - **Batches**: a [`Loader`] makes them on worker threads within a byte budget; what comes out, and in which order,
//!   does not depend on the number of workers. [`BadSamples`] says what is done about files that cannot be read,
//!   [`LoaderStats`] where the time goes. Batches stay on the host, images as bytes, until `to_device`.
//! - **burn**: [`BurnLoader`] is the loader as burn's `DataLoader`, for burn's own `Learner`; sources are burn `Dataset`s.
//!
//! *Architecture invariant*: this crate knows no model and no training loop. A `Loader` does not know what a sample
//! is: it decides which ids make a batch and calls a closure.
//!
//! ```
//! use burn::tensor::Device;
//! use kiln_data::{ImageBatch, LoaderConfig, Normalize, Order, Remainder, Transform, open_images};
//!
//! # let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/fashion-mnist");
//! let data = open_images(root)?;
//! let (set, transform, seed) = (data.train, Transform::training(28, 0.6), 7);
//! let config = LoaderConfig { order: Order::Shuffled { seed }, remainder: Remainder::Drop, ..LoaderConfig::new(32) };
//! let loader = ImageBatch::loader(set, transform, seed, config)?;
//!
//! let normalize = Normalize::for_channels(1);
//! for batch in loader.epoch(0, 0).take(2) {
//!     let (images_bchw, labels_b) = batch?.to_device(&normalize, &Device::flex());
//!     assert_eq!(images_bchw.dims(), [32, 1, 28, 28]);
//!     assert_eq!(labels_b.dims(), [32]);
//! }
//! # Ok::<(), kiln_data::Error>(())
//! ```

mod ahead;
mod bad_samples;
mod batches;
mod buckets;
mod budget;
mod burn_loader;
mod cifar;
mod decode;
mod documents;
mod error;
mod folder;
mod idx;
mod image_batch;
mod image_set;
mod loader;
mod loader_state;
mod open;
mod order;
mod pixels;
mod rng;
mod sampler;
mod stats;
mod text;
mod text_files;
mod tiles;
mod token_file;
mod tokenizer;
mod tokens;
mod transform;
mod worker;
mod workers;

pub use bad_samples::{BadSample, BadSampleReport, BadSamples};
pub use batches::Batches;
pub use burn_loader::BurnLoader;
pub use decode::{
    Area, DecodeOptions, DecodePath, DecodePlan, Format, Header, ImageFile, Orientation, Oversized, Quality, Raster,
    SampleType, Samples, View, Window,
};
pub use documents::{DocumentBatch, DocumentTensors, Documents};
pub use error::Error;
pub use idx::write_idx_gz;
pub use image_batch::{ImageBatch, Normalize};
pub use image_set::{Image, ImageSet, LabeledImage};
pub use loader::{BatchPlan, Loader, LoaderConfig};
pub use loader_state::LoaderState;
pub use open::{TrainTest, open_images};
pub use order::{EpochOrder, Order, Weights};
pub use pixels::Pixels;
pub use rng::sample_rng;
pub use sampler::{Remainder, Replica, Sampler};
pub use stats::{Bottleneck, LoaderStats, Stage};
pub use text::{TextBatch, TextTokens, open_text, open_text_cached};
pub use text_files::tokenize_files;
pub use tiles::{
    Blend, ClassIds, Classes, Stitch, TileArea, TileBatch, TileConfig, TileGrid, TilePlace, TileSet, TileTensors,
    stitch,
};
pub use token_file::{TokenFile, TokenFileWriter};
pub use tokenizer::{Bpe, Tokenizer, TokenizerKind};
pub use transform::{Crop, Transform};
pub use worker::Worker;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/data-loading.md")]
struct Guide;
