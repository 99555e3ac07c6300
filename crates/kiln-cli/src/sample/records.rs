//! Completes the records of a file: prompts and texts, and conversations up to the last message of the user.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use kiln_data::{Message, Tokenizer, TokenizerKind, USER, each_line, printable};
use serde_json::{Map, Value};

use super::chat::{Chat, template};
use super::generate::{Consumer, End, Writer};
use crate::interrupt::Interrupt;
use crate::output::print_json;
use crate::usage::Usage;

/// The field with what the model writes.
const GENERATED: &str = "generated";
const EXPECTED: &str = "expected an object with `prompt`, `text` or `messages`";

/// A file of records that is open.
pub(super) struct Asked {
    path: PathBuf,
    file: File,
}

impl Asked {
    /// # Errors
    /// That of the file.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).with_context(|| format!("cannot read '{}'", printable(&path)))?;
        Ok(Self { path: path.to_owned(), file })
    }
}

/// What is read before the model writes.
enum Begin {
    Prompt(String),
    Messages(Vec<Message>),
}

/// The model that completes records.
pub(super) struct Records<'a> {
    pub(super) writer: &'a Writer<'a>,
    pub(super) tokenizer: &'a Tokenizer,
    pub(super) kind: &'a TokenizerKind,
    /// Tokens that the model reads at once.
    pub(super) room: usize,
    pub(super) interrupt: &'a Interrupt,
}

impl Records<'_> {
    /// Writes each record on stdout, its fields in the order of their names, with what the model writes after it in the field `generated`. A record
    /// whose text was interrupted is left out. Returns why the last text ended.
    ///
    /// # Errors
    /// Those of the file, [`Usage`] for a line that is no record, and those of the tokenizer, the template and the model.
    pub(super) fn complete(&self, Asked { path, file }: Asked) -> Result<End> {
        let first = self.kind.folder().and_then(|_| self.tokenizer.begin());
        let (mut written_by, mut end) = (None, End::Done);
        let shown = printable(&path);
        each_line(&path, file, |line, text| {
            let refused = |reason: String| Usage(format!("'{shown}' line {line}: {reason}"));
            let mut record: Map<String, Value> =
                serde_json::from_str(text).map_err(|error| refused(format!("no JSON object: {error}, {EXPECTED}")))?;
            let ids = match begin(&record).map_err(refused)? {
                Begin::Prompt(prompt) => first.into_iter().chain(self.tokenizer.encode(&prompt)?).collect(),
                Begin::Messages(mut messages) => {
                    let template = match &mut written_by {
                        Some(template) => template,
                        none => none.insert(template(self.kind, "--records with `messages`")?),
                    };
                    let Self { writer, tokenizer, room, interrupt, .. } = *self;
                    let chat = Chat { writer, tokenizer, template, room, interrupt };
                    chat.read(&mut messages).with_context(|| format!("'{shown}' line {line}"))?
                }
            };
            let number = usize::try_from(line).unwrap_or(usize::MAX);
            let generated = self.writer.prompt(&ids)?.generate(number, |_| Ok(Consumer::Open))?;
            end = generated.end;
            if end == End::Interrupted {
                return Ok(false);
            }
            record.insert(GENERATED.into(), generated.text.into());
            print_json(&Value::Object(record))?;
            anyhow::Ok(true)
        })?;
        Ok(end)
    }
}

/// What the model reads of a record.
fn begin(record: &Map<String, Value>) -> Result<Begin, String> {
    let field = |name: &str| record.get(name).filter(|value| !value.is_null());
    if let Some(messages) = field("messages") {
        let messages = Message::list_of(messages)?;
        let last = messages.iter().rposition(|message| message.role == USER);
        let Some(last) = last else { return Err(format!("no message has the role `{USER}`, expected one to answer")) };
        return Ok(Begin::Messages(messages.into_iter().take(last + 1).collect()));
    }
    match field("prompt").or(field("text")) {
        Some(Value::String(text)) if !text.is_empty() => Ok(Begin::Prompt(text.clone())),
        Some(_) => Err(format!("its prompt is no text or an empty one, {EXPECTED}")),
        None => Err(format!("it has none of the fields, {EXPECTED}")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{Begin, begin};

    #[test]
    fn a_record_asks_for_what_comes_after_its_prompt_or_the_last_message_of_the_user() {
        let of = |value: serde_json::Value| begin(value.as_object().unwrap());
        assert!(
            matches!(of(json!({"prompt": "1 + 1 =", "completion": "2"})), Ok(Begin::Prompt(text)) if text == "1 + 1 =")
        );
        assert!(matches!(of(json!({"prompt": null, "text": "a"})), Ok(Begin::Prompt(text)) if text == "a"));
        let message = |role: &str| json!({"role": role, "content": "c"});
        let messages = ["system", "user", "assistant", "user", "assistant"].map(message);
        assert!(matches!(of(json!({"messages": messages})), Ok(Begin::Messages(list)) if list.len() == 4));
        for (value, part) in [
            (json!({"messages": [message("assistant")]}), "`user`"),
            (json!({"messages": "x"}), "`messages` is no list"),
            (
                json!({"messages": [{"role": "user", "content": "c", "tool_calls": []}]}),
                "`tool_calls`, which is not read",
            ),
            (json!({"prompt": 3}), "no text"),
            (json!({"prompt": ""}), "empty"),
            (json!({"answer": "x"}), "none of the fields"),
        ] {
            let reason = of(value).map(|_| ()).unwrap_err();
            assert!(reason.contains(part), "{reason}");
        }
    }
}
