//! Conversations as text: the chat template and the special tokens of a Hugging Face folder.

mod clock;
mod folder;
mod json;
mod message;
mod special_tokens;
mod template;

pub use message::{ASSISTANT, Message, USER};
pub use special_tokens::SpecialTokens;
pub use template::ChatTemplate;
