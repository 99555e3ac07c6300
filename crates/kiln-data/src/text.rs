use std::ops::Range;
use std::path::Path;

use burn::data::dataset::{Dataset, DatasetError};
use burn::tensor::{Device, Int, Tensor, TensorData};
use rand::RngExt;
use xxhash_rust::xxh3::Xxh3Default;

use crate::rng::sample_rng;
use crate::text_files::TextFiles;
use crate::tokens::Tokens;
use crate::{BatchPlan, Error, Loader, LoaderConfig, TokenFile, Tokenizer, TrainTest};

/// A text as token ids, seen through windows of equal length. The ids are in memory, or in a file and then read when
/// a window is asked for.
///
/// It is a burn `Dataset<Vec<u32>>` of windows of `length + 1` ids.
#[derive(Clone, Debug)]
pub struct TextTokens {
    tokens: Tokens,
    length: usize,
    stride: usize,
}

impl TextTokens {
    /// Windows of `length` tokens over `tokens`, one beginning where the other ends.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] for a zero length or fewer tokens than two windows and one.
    pub fn new(tokens: Vec<u32>, length: usize) -> Result<Self, Error> {
        Self::over(Tokens::Memory(tokens.into()), length)
    }

    /// The same over the tokens of a file.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn from_file(tokens: TokenFile, length: usize) -> Result<Self, Error> {
        Self::over(Tokens::File(tokens), length)
    }

    fn over(tokens: Tokens, length: usize) -> Result<Self, Error> {
        if length == 0 {
            return Err(Error::InvalidSetting { field: "length", value: "0".into(), expected: "at least 1" });
        }
        if tokens.len().div_ceil(2) <= length {
            let value = format!("{} tokens for a length of {length}", tokens.len());
            return Err(Error::InvalidSetting { field: "text", value, expected: "more than twice the length" });
        }
        Ok(Self { tokens, length, stride: length })
    }

    /// A window every `stride` tokens: below the length they overlap, above it they leave tokens out.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] for a stride of 0, or one that leaves no window.
    pub fn with_stride(self, stride: usize) -> Result<Self, Error> {
        let most = self.tokens.len() - self.length;
        if stride == 0 || stride > most {
            let value = format!("{stride} in {} tokens for a length of {}", self.tokens.len(), self.length);
            let expected = "at least 1, and at most the tokens without one window";
            return Err(Error::InvalidSetting { field: "stride", value, expected });
        }
        Ok(Self { stride, ..self })
    }

    /// Number of windows of an epoch: those that fit whatever the epoch's offset.
    pub fn len(&self) -> usize {
        // The last one ends, at the largest offset, one id before the end: (n - 1) stride + stride - 1 + length + 1 <= tokens.
        (self.tokens.len() - self.length) / self.stride
    }

    /// Never: [`new`](Self::new) refuses a text without a window.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Tokens per window.
    pub fn length(&self) -> usize {
        self.length
    }

    /// Adds window `id`, moved right by `offset` (below the stride), to `ids`: `length` ids and the one after.
    fn window(&self, id: usize, offset: usize, ids: &mut Vec<u32>) -> Result<(), Error> {
        let start = id * self.stride + offset;
        self.tokens.read(start..start + self.length + 1, ids)
    }
}

impl Dataset<Vec<u32>> for TextTokens {
    fn get(&self, index: usize) -> Result<Vec<u32>, DatasetError> {
        let mut ids = Vec::with_capacity(self.length + 1);
        self.window(index, 0, &mut ids).map_err(DatasetError::new)?;
        Ok(ids)
    }

    fn len(&self) -> usize {
        self.len()
    }
}

/// Reads `path` (a text file, or a directory whose `.txt` files are read in the order of their names) and cuts off
/// the last `held_out` of it, a fraction in (0, 1), for testing. The tokens are kept in memory.
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
    let files = TextFiles::open(path.as_ref())?;
    let [train, test] = parts(&files, held_out)?;
    let part = |range| {
        let mut tokens = vec![];
        let keep = |ids: &[u32]| {
            tokens.extend_from_slice(ids);
            Ok(())
        };
        files.encode(range, tokenizer, keep).map(|()| tokens)
    };
    let (train, test) = (part(train)?, part(test)?);
    Ok(TrainTest { train: TextTokens::new(train, length)?, test: TextTokens::new(test, length)? })
}

/// [`open_text`] with the tokens in two files in `cache`, a directory that is made if it is not there: the text is tokenized
/// once, and may be larger than memory. The files may be deleted at any time, but not changed (see [`TokenFile`]).
///
/// They are found again by the text's paths, sizes and times of change, the tokenizer's files, and `held_out`. A text that is changed
/// so that size and time stay the same is not noticed.
///
/// # Errors
/// As [`open_text`]; [`Error::Write`] when the cache cannot be written; [`Error::Format`] when the text changes while it is read.
pub fn open_text_cached(
    path: impl AsRef<Path>,
    tokenizer: &Tokenizer,
    length: usize,
    held_out: f64,
    cache: impl AsRef<Path>,
) -> Result<TrainTest<TextTokens>, Error> {
    let (path, cache) = (path.as_ref(), cache.as_ref());
    let files = TextFiles::open(path)?;
    let [train, test] = parts(&files, held_out)?;
    let mut key = Xxh3Default::new();
    key.update(&files.fingerprint().to_le_bytes());
    key.update(&tokenizer.fingerprint().to_le_bytes());
    key.update(&held_out.to_bits().to_le_bytes());
    let key = key.digest128();
    let part = |name: &str, range| {
        let file = cache.join(format!("{key:032x}-{name}.tokens"));
        // One that is missing or damaged is made anew.
        if let Some(tokens) = TokenFile::open(&file).ok().filter(|tokens| tokens.vocab() == tokenizer.vocab()) {
            return Ok(tokens);
        }
        std::fs::create_dir_all(cache).map_err(|reason| Error::Write { path: cache.to_owned(), reason })?;
        let tokens = files.write(range, tokenizer, &file)?;
        if TextFiles::open(path)?.fingerprint() != files.fingerprint() {
            let _ = std::fs::remove_file(&file);
            return Err(Error::format(path, "it changed while it was read"));
        }
        Ok(tokens)
    };
    let (train, test) = (part("train", train)?, part("test", test)?);
    Ok(TrainTest { train: TextTokens::from_file(train, length)?, test: TextTokens::from_file(test, length)? })
}

/// The bytes to train on and to test on; no character is cut.
fn parts(files: &TextFiles, held_out: f64) -> Result<[Range<u64>; 2], Error> {
    if !(held_out > 0.0 && held_out < 1.0) {
        let value = held_out.to_string();
        return Err(Error::InvalidSetting { field: "held out", value, expected: "a fraction between 0 and 1" });
    }
    let cut = files.character_boundary((files.bytes() as f64 * (1.0 - held_out)) as u64)?;
    Ok([0..cut, cut..files.bytes()])
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
    /// A loader of such batches; `seed` as for [`load`](Self::load). A window that cannot be read is an error, whatever
    /// `config` says of bad samples: windows are of one text.
    ///
    /// # Errors
    /// Those of [`Loader::budgeted`].
    pub fn loader(text: TextTokens, seed: Option<u64>, config: LoaderConfig) -> Result<Loader<Self>, Error> {
        // An id of the window beside its tokens.
        let window = (size_of::<u32>() * (text.length + 1) + size_of::<usize>()) as u64;
        let bytes = move |plan: &BatchPlan| window * plan.ids.len() as u64;
        Loader::budgeted(text.len(), config, bytes, move |plan, _| Self::load(&text, seed, plan))
    }

    /// The windows of `plan`. With a seed every epoch moves all windows right by an amount of its own,
    /// a function of (seed, epoch), so that the cuts fall elsewhere.
    ///
    /// # Errors
    /// [`Error::Format`] for an id in a file that its vocabulary does not have.
    pub fn load(text: &TextTokens, seed: Option<u64>, plan: &BatchPlan) -> Result<Self, Error> {
        let offset = seed.map_or(0, |seed| sample_rng(seed, plan.epoch, u64::MAX - 1).random_range(0..text.stride));
        let mut tokens = Vec::with_capacity(plan.ids.len() * (text.length + 1));
        plan.ids.iter().try_for_each(|id| text.window(*id, offset, &mut tokens))?;
        Ok(Self { tokens, shape: [plan.ids.len(), text.length + 1], ids: plan.ids.clone() })
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
