//! Files of records: texts, prompts with completions, and conversations, as documents that know which of their tokens are learned.

mod encoder;
mod index;
mod limit;
mod open;
mod record;
mod record_files;

pub use encoder::{EncodedRecord, RecordEncoder};
pub use open::Records;
pub use record::Record;
pub use record_files::{each_line, has_records};
