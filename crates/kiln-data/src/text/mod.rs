//! Text as token ids: tokenizers, token files, windows and documents, and batches of them.

mod document_batch;
mod documents;
mod open;
mod text_batch;
mod text_files;
mod text_tokens;
mod token_file;
mod tokenizer;

pub use document_batch::{DocumentBatch, DocumentTensors};
pub use documents::Documents;
pub use open::{open_text, open_text_cached};
pub use text_batch::TextBatch;
pub use text_files::tokenize_files;
pub use text_tokens::TextTokens;
pub use token_file::{TokenFile, TokenFileWriter};
pub use tokenizer::{Bpe, Tokenizer, TokenizerKind};
