//! A message of a conversation.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The role of the messages that a model writes.
pub const ASSISTANT: &str = "assistant";
/// The role of the messages that a model answers.
pub const USER: &str = "user";

/// Fields of messages whose content a chat template would write, and which are not read.
const UNREAD: [&str; 4] = ["tool_calls", "function_call", "reasoning_content", "thinking"];

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

    /// The messages of a list in JSON.
    ///
    /// # Errors
    /// What is wrong with the list, and what was expected.
    pub fn list_of(messages: &Value) -> Result<Vec<Self>, String> {
        let expected = "expected a list of {\"role\": .., \"content\": ..}";
        let Value::Array(messages) = messages else { return Err(format!("`messages` is no list, {expected}")) };
        let message = |(index, message): (usize, &Value)| {
            let number = index + 1;
            // What they say would be missing in the text that is learned.
            if let Some(unread) = UNREAD.iter().find(|name| !message[**name].is_null()) {
                return Err(format!(
                    "message {number} has `{unread}`, which is not read, expected `role` and `content` alone"
                ));
            }
            let text = |name: &str| match &message[name] {
                Value::String(text) => Ok(text.clone()),
                _ => Err(format!("message {number} has no `{name}` that is a text, {expected}")),
            };
            Ok(Message { role: text("role")?, content: text("content")? })
        };
        messages.iter().enumerate().map(message).collect()
    }
}
