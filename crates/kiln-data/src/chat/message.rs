//! A message of a conversation.

use serde::{Deserialize, Serialize};

/// The role of the messages that a model writes.
pub const ASSISTANT: &str = "assistant";
/// The role of the messages that a model answers.
pub const USER: &str = "user";

/// A message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// Who writes it: [`USER`], [`ASSISTANT`], `system`, or another role that the template knows.
    pub role: String,
    /// Its text.
    pub content: String,
}

impl Message {
    /// A message.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: content.into() }
    }
}
