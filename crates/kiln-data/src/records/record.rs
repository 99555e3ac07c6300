//! A record: a text, a prompt with its completion, or a conversation.

use serde_json::Value;

use crate::chat::Message;

/// What is expected of a line of JSON.
const KINDS: &str = "`text`, `prompt` and `completion`, or `messages`";

/// A record of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// A text, all of which is learned.
    Text(String),
    /// A prompt, and the completion that is learned.
    Completion {
        /// What comes before.
        prompt: String,
        /// What is learned.
        completion: String,
    },
    /// A conversation, of which the messages of the assistant are learned.
    Conversation(Vec<Message>),
}

impl Record {
    /// The record in a line of JSON. Fields that it does not need are ignored.
    ///
    /// # Errors
    /// What the line lacks, and what was expected.
    pub(super) fn of_json(line: &str) -> Result<Self, String> {
        let value: Value = serde_json::from_str(line).map_err(|error| format!("no JSON: {error}"))?;
        let Value::Object(fields) = value else { return Err(format!("no JSON object, expected one with {KINDS}")) };
        // A table of rows of several kinds has null where a row has no such field.
        let field = |name: &str| fields.get(name).filter(|value| !value.is_null());
        if let Some(messages) = field("messages") {
            return Message::list_of(messages).map(Self::Conversation);
        }
        let text = |name: &str| match field(name) {
            Some(Value::String(text)) => Ok(text.clone()),
            Some(_) => Err(format!("`{name}` is no text, expected one in quotes")),
            None => Err(format!("`{name}` is missing, expected {KINDS}")),
        };
        let has = |name: &str| field(name).is_some();
        match [has("prompt"), has("completion"), has("text")] {
            [true, true, _] | [true, false, false] | [false, true, false] => {
                Ok(Self::Completion { prompt: text("prompt")?, completion: text("completion")? })
            }
            [_, _, true] => Ok(Self::Text(text("text")?)),
            [false, false, false] => Err(format!("it has none of the fields {KINDS}")),
        }
    }
}

/// The columns of records in a table.
#[derive(Clone, Copy, Debug)]
pub(super) enum Columns {
    Text(usize),
    Completion { prompt: usize, completion: usize },
}

impl Columns {
    /// The columns with these names. Others are ignored.
    ///
    /// # Errors
    /// The names, if they are not those of records.
    pub(super) fn named<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<Self, String> {
        let names: Vec<&str> = names.into_iter().map(|name| name.trim_start_matches('\u{feff}').trim()).collect();
        let at = |wanted: &str| names.iter().position(|name| *name == wanted);
        match (at("prompt"), at("completion"), at("text")) {
            (Some(prompt), Some(completion), _) => Ok(Self::Completion { prompt, completion }),
            (_, _, Some(text)) => Ok(Self::Text(text)),
            _ => {
                Err(format!("the columns are `{}`, expected `text`, or `prompt` and `completion`", names.join("`, `")))
            }
        }
    }

    /// The record of a row.
    pub(super) fn record<'a>(self, field: impl Fn(usize) -> Option<&'a str>) -> Record {
        let field = |column| field(column).unwrap_or_default().to_owned();
        match self {
            Self::Text(text) => Record::Text(field(text)),
            Self::Completion { prompt, completion } => {
                Record::Completion { prompt: field(prompt), completion: field(completion) }
            }
        }
    }
}
