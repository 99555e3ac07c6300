use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use burn::data::dataset::{Dataset, DatasetError};
use burn::tensor::{Device, Int, Tensor, TensorData};
use rand::RngExt;

use crate::rng::sample_rng;
use crate::{BatchPlan, Error, Tokenizer, TrainTest};

/// A text as token ids, seen through windows of equal length.
///
/// It is a burn `Dataset<Vec<u32>>` of windows of `length + 1` ids.
#[derive(Clone, Debug)]
pub struct TextTokens {
    tokens: Arc<[u32]>,
    length: usize,
}

impl TextTokens {
    /// Windows of `length` tokens over `tokens`.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] for a zero length or fewer tokens than two windows and one.
    pub fn new(tokens: Vec<u32>, length: usize) -> Result<Self, Error> {
        if length == 0 {
            return Err(Error::InvalidSetting { field: "length", value: "0".into(), expected: "at least 1" });
        }
        if tokens.len() <= 2 * length {
            let value = format!("{} tokens for a length of {length}", tokens.len());
            return Err(Error::InvalidSetting { field: "text", value, expected: "more than twice the length" });
        }
        Ok(Self { tokens: tokens.into(), length })
    }

    /// Number of windows of an epoch: those that fit one after the other whatever the epoch's offset.
    pub fn len(&self) -> usize {
        (self.tokens.len() - 1 - (self.length - 1)) / self.length
    }

    /// Never: [`new`](Self::new) refuses a text without a window.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Tokens per window.
    pub fn length(&self) -> usize {
        self.length
    }

    /// Window `id`, moved right by `offset` (below [`length`](Self::length)): `length` ids and the one after.
    fn window(&self, id: usize, offset: usize) -> &[u32] {
        let start = id * self.length + offset;
        &self.tokens[start..=start + self.length]
    }
}

impl Dataset<Vec<u32>> for TextTokens {
    fn get(&self, index: usize) -> Result<Vec<u32>, DatasetError> {
        Ok(self.window(index, 0).to_vec())
    }

    fn len(&self) -> usize {
        self.len()
    }
}

/// Reads `path` (a text file, or a directory whose `.txt` files are read in the order of their names) and cuts off
/// the last `held_out` of it, a fraction in (0, 1), for testing.
///
/// # Errors
/// [`Error::Read`], [`Error::NoDataSet`] for a directory without text, [`Error::Format`] for a file
/// that is not UTF-8, [`Error::Tokenizer`], [`Error::InvalidSetting`] for a fraction or a length that leaves
/// too little text in either part.
pub fn open_text(
    path: impl AsRef<Path>,
    tokenizer: &Tokenizer,
    length: usize,
    held_out: f64,
) -> Result<TrainTest<TextTokens>, Error> {
    let path = path.as_ref();
    if !(held_out > 0.0 && held_out < 1.0) {
        let value = held_out.to_string();
        return Err(Error::InvalidSetting { field: "held out", value, expected: "a fraction between 0 and 1" });
    }
    let text = read(path)?;
    let cut = text.floor_char_boundary((text.len() as f64 * (1.0 - held_out)) as usize);
    let part = |text: &str| TextTokens::new(tokenizer.encode(text)?, length);
    Ok(TrainTest { train: part(&text[..cut])?, test: part(&text[cut..])? })
}

fn read(path: &Path) -> Result<String, Error> {
    if !path.is_dir() {
        let bytes = std::fs::read(path).map_err(|e| Error::read(path, e))?;
        return String::from_utf8(bytes).map_err(|e| Error::format(path, format!("not UTF-8: {}", e.utf8_error())));
    }
    let mut files = crate::folder::list(path)?;
    files.retain(|file| file.is_file() && file.extension().is_some_and(|extension| extension == "txt"));
    if files.is_empty() {
        return Err(Error::NoDataSet { path: path.to_owned(), reason: "expected files ending in .txt".into() });
    }
    files.iter().map(|file| read(file)).collect()
}

/// A batch of windows on the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextBatch {
    /// `B` windows of T + 1 ids, flat.
    pub tokens: Vec<u32>,
    /// `[B, T + 1]`.
    pub shape: [usize; 2],
    /// `B` window ids, for records of what was trained.
    pub ids: Vec<usize>,
}

impl TextBatch {
    /// The windows of `plan`. With a seed every epoch moves all windows right by an amount of its own,
    /// a function of (seed, epoch), so that the cuts fall elsewhere.
    pub fn load(text: &TextTokens, seed: Option<u64>, plan: &BatchPlan) -> Self {
        let offset = seed.map_or(0, |seed| sample_rng(seed, plan.epoch, u64::MAX - 1).random_range(0..text.length));
        let tokens = plan.ids.iter().flat_map(|id| text.window(*id, offset)).copied().collect();
        Self { tokens, shape: [plan.ids.len(), text.length + 1], ids: plan.ids.clone() }
    }

    /// Number of windows.
    pub fn len(&self) -> usize {
        self.shape[0]
    }

    /// Whether there is no window.
    pub fn is_empty(&self) -> bool {
        self.shape[0] == 0
    }

    /// The windows in `samples`, in a batch of their own.
    ///
    /// # Panics
    /// When `samples` ends after [`len`](Self::len).
    pub fn slice(&self, samples: Range<usize>) -> Self {
        let length = self.shape[1];
        Self {
            tokens: self.tokens[samples.start * length..samples.end * length].to_vec(),
            shape: [samples.len(), length],
            ids: self.ids[samples].to_vec(),
        }
    }

    /// Number of tokens to predict: every one but the first of each window.
    pub fn targets(&self) -> usize {
        self.shape[0] * (self.shape[1] - 1)
    }

    /// Copies the batch to `device`: inputs `[B, T]` and, one token later, targets `[B, T]`.
    pub fn to_device(&self, device: &Device) -> (Tensor<2, Int>, Tensor<2, Int>) {
        let [b, t1] = self.shape;
        let ids: Vec<i64> = self.tokens.iter().map(|id| i64::from(*id)).collect();
        let all = Tensor::<2, Int>::from_data(TensorData::new(ids, [b, t1]), device);
        (all.clone().slice([0..b, 0..t1 - 1]), all.slice([0..b, 1..t1]))
    }
}
