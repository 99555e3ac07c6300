//! Samples from disk to burn tensors.
//!
//! - **Images**: [`ImageFile`] decodes a file at the size that is needed; the bytes that this takes are known before
//!   decoding begins. [`Transform`] chooses the part of the image. [`ImageSet`] is a directory per class, IDX or CIFAR-10;
//!   [`Raster`] reads windows of large images. The feature `turbo` decodes JPEG through libjpeg-turbo, a sixth to a
//!   quarter faster; its build needs cmake and nasm (`apt-get install cmake nasm`).
//! - **Large images**: a [`TileSet`] cuts them into tiles, with masks of class ids for segmentation, and a [`Stitch`] merges
//!   the predictions for the tiles.
//! - **Text**: [`TextTokens`] are windows over tokens in memory or in a [`TokenFile`], [`Documents`] are texts of
//!   different lengths. A [`Tokenizer`] makes the tokens of both.
//! - **Records**: [`Records`] reads files of texts, prompts with completions, and conversations, as [`Documents`] that know which of their
//!   tokens are learned. A [`ChatTemplate`] writes a conversation as text, as transformers does.
//! - **Order**: a [`Sampler`] chooses the samples of a batch, for any number of replicas: a pure function of (seed,
//!   epoch, batch), so that a run resumes at any batch. [`LoaderState`] is the position of a loop of your own, in one line
//!   of text; a `Trainer` of kiln-training has its own `RunState`.
//! - **Batches**: a [`Loader`] makes them on worker threads within a byte budget ([`Loader::peak_bytes`]). The batches and
//!   their order do not depend on the number of workers. [`BadSamples`] is the policy for files that cannot be read,
//!   [`Damage`] for damaged images that can be;
//!   [`LoaderStats`] shows where the time goes. A batch keeps its bytes on the host until it is dropped, even if it was
//!   copied to the device ahead of its step ([`ImageBatch::upload`]).
//! - **burn**: [`BurnLoader`] is the loader as burn's `DataLoader`, for burn's own `Learner`; the sources are burn `Dataset`s.
//!
//! *Architecture invariant*: this crate knows no model and no training loop. A `Loader` does not know the type of a
//! sample: it chooses the ids of a batch and calls a closure. No file uses, even indirectly, a file that uses it.
//!
//! ```
//! use burn::tensor::Device;
//! use kiln_data::{ImageBatch, LoaderConfig, Normalize, Order, Remainder, Transform, open_images};
//!
//! # let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/fashion-mnist");
//! let data = open_images(root)?; // a folder with a folder for each class, IDX files, or CIFAR-10
//! let (set, transform, seed) = (data.train, Transform::training(28, 0.6), 7);
//! let config = LoaderConfig::new(32).with_order(Order::Shuffled { seed }).with_remainder(Remainder::Drop);
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

mod caught;
mod chat;
mod decode;
mod documents;
mod error;
mod files;
mod images;
mod loader;
mod order;
mod printable;
mod records;
mod text;
mod tiles;

pub use caught::panics_are_errors;
pub use chat::{ASSISTANT, ChatTemplate, Message, SpecialTokens, USER};
pub use decode::{
    Area, Damage, DecodeOptions, DecodePath, DecodePlan, DecodedImage, Format, Header, Image, ImageFile, Orientation,
    Oversized, Quality, Raster, RasterWindow, SampleType, Samples, View,
};
pub use documents::{DocumentBatch, DocumentTensors, Documents, TokenBatch};
pub use error::Error;
pub use files::TrainTest;
pub use images::{
    Crop, ImageBatch, ImageSet, LabeledImage, Mix, MixedLabels, Normalize, Pixels, Transform, images_below,
    open_images, write_idx_gz,
};
pub use loader::{
    BadSample, BadSampleReport, BadSamples, BatchPlan, Batches, Bottleneck, BurnLoader, Loader, LoaderConfig,
    LoaderStats, Stage, Worker,
};
pub use order::{EpochOrder, LoaderState, Order, Remainder, Replica, Sampler, Weights, sample_rng};
pub use printable::printable;
pub use records::{EncodedRecord, Record, RecordEncoder, Records, each_line, has_records};
pub use text::{
    Bpe, TextBatch, TextTokens, TokenFile, TokenFileWriter, Tokenizer, TokenizerKind, open_text, open_text_cached,
    tokenize_files,
};
pub use tiles::{
    Blend, ClassIds, ClassRows, Classes, MaskedImages, Stitch, TileArea, TileBatch, TileConfig, TileGrid, TilePlace,
    TileSet, TileTensors, open_masked_images, stitch, write_classes,
};

#[cfg(doctest)]
#[doc = include_str!("../../../docs/data-loading.md")]
struct Guide;
