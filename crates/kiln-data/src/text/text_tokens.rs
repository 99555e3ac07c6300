//! A text as token ids, seen through windows of equal length.

use burn::data::dataset::{Dataset, DatasetError};

use crate::error::Error;

use super::token_file::{TokenFile, Tokens};

/// A text as token ids, divided into windows of equal length. The ids are in memory, or in a file that is read window by
/// window.
///
/// It is a burn `Dataset<Vec<u32>>` of windows of `length + 1` ids.
#[derive(Clone, Debug)]
pub struct TextTokens {
    tokens: Tokens,
    length: usize,
    stride: usize,
}

impl TextTokens {
    /// Windows of `length` tokens over `tokens`, one after the other.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] for a length of 0, or not more than two windows of tokens.
    pub fn new(tokens: Vec<u32>, length: usize) -> Result<Self, Error> {
        Self::over(Tokens::Memory(tokens.into()), length)
    }

    /// Windows of `length` tokens over the tokens of a file, one after the other. Each window is read when it is needed.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn from_file(tokens: TokenFile, length: usize) -> Result<Self, Error> {
        Self::over(Tokens::File(tokens), length)
    }

    fn over(tokens: Tokens, length: usize) -> Result<Self, Error> {
        if length == 0 {
            return Err(Error::setting("length", "0", "at least 1"));
        }
        if tokens.len().div_ceil(2) <= length {
            let value = format!("{} tokens for a length of {length}", tokens.len());
            return Err(Error::setting("text", value, "more than twice the length"));
        }
        Ok(Self { tokens, length, stride: length })
    }

    /// Begins a window every `stride` tokens. With a stride below the length windows overlap, with one above it they skip tokens.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] for a stride of 0, or one that leaves no window.
    pub fn with_stride(self, stride: usize) -> Result<Self, Error> {
        let most = self.tokens.len() - self.length;
        if stride == 0 || stride > most {
            let value = format!("{stride} in {} tokens for a length of {}", self.tokens.len(), self.length);
            let expected = "at least 1, and at most the tokens without one window";
            return Err(Error::InvalidSetting { name: "stride", value, expected });
        }
        Ok(Self { stride, ..self })
    }

    /// Number of windows of an epoch: those that fit at every offset.
    pub fn len(&self) -> usize {
        // The last one ends, at the largest offset, one id before the end: (n - 1) stride + stride - 1 + length + 1 <= tokens.
        (self.tokens.len() - self.length) / self.stride
    }

    /// Always false: [`new`](Self::new) refuses a text without a window.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Tokens per window.
    pub fn length(&self) -> usize {
        self.length
    }

    /// Tokens from the start of one window to the start of the next.
    pub(super) fn stride(&self) -> usize {
        self.stride
    }

    /// Adds window `id`, moved right by `offset` (below the stride), to `ids`: `length` ids and the one after.
    pub(super) fn window(&self, id: usize, offset: usize, ids: &mut Vec<u32>) -> Result<(), Error> {
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
