//! Completes the records of a file: prompts and texts, and conversations up to the last message of the user.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use anyhow::{Context, Result};
use kiln_data::{Message, Tokenizer, TokenizerKind, USER, printable};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::chat::{Chat, template};
use super::generate::{Consumer, End, Writer};
use crate::interrupt::Interrupt;
use crate::output::print_json;
use crate::usage::Usage;

/// The longest line.
const LONGEST: u64 = 64 << 20;
/// The field with what the model writes.
const GENERATED: &str = "generated";
const EXPECTED: &str = "expected an object with `prompt`, `text` or `messages`";

/// What is read before the model writes.
enum Asked {
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
    /// Writes each record of `file` on stdout, with what the model writes after it as another field. Returns why the last one ended.
    ///
    /// # Errors
    /// Those of the file, [`Usage`] for a line that is no record, and those of the tokenizer, the template and the model.
    pub(super) fn complete(&self, file: &Path) -> Result<End> {
        let shown = printable(&file);
        let mut reader = BufReader::new(File::open(file).with_context(|| format!("cannot read '{shown}'"))?);
        let begin = self.kind.folder().and_then(|_| self.tokenizer.begin());
        let (mut written_by, mut end) = (None, End::Done);
        for line in 1.. {
            let mut bytes = vec![];
            let read = reader.by_ref().take(LONGEST).read_until(b'\n', &mut bytes);
            if read.with_context(|| format!("cannot read '{shown}'"))? == 0 {
                break;
            }
            let refused = |reason: String| Usage(format!("'{shown}' line {line}: {reason}"));
            let text = String::from_utf8(bytes).map_err(|error| refused(format!("not UTF-8: {error}")))?;
            if text.trim().is_empty() {
                continue;
            }
            let mut record: Map<String, Value> =
                serde_json::from_str(&text).map_err(|error| refused(format!("no JSON object: {error}, {EXPECTED}")))?;
            let ids = match asked(&record).map_err(refused)? {
                Asked::Prompt(prompt) => begin.into_iter().chain(self.tokenizer.encode(&prompt)?).collect(),
                Asked::Messages(mut messages) => {
                    let template = match &mut written_by {
                        Some(template) => template,
                        none => none.insert(template(self.kind, "--records with `messages`")?),
                    };
                    let Self { writer, tokenizer, room, interrupt, .. } = *self;
                    Chat { writer, tokenizer, template, room, interrupt }.read(&mut messages)?
                }
            };
            let generated = self.writer.prompt(&ids)?.generate(line, |_| Ok(Consumer::Open))?;
            end = generated.end;
            if end == End::Interrupted {
                break;
            }
            record.insert(GENERATED.into(), generated.text.into());
            print_json(&Value::Object(record))?;
        }
        Ok(end)
    }
}

/// What a record asks for.
fn asked(record: &Map<String, Value>) -> Result<Asked, String> {
    let field = |name: &str| record.get(name).filter(|value| !value.is_null());
    if let Some(messages) = field("messages") {
        let messages = Vec::<Message>::deserialize(messages).map_err(|error| format!("`messages`: {error}"))?;
        let last = messages.iter().rposition(|message| message.role == USER);
        let Some(last) = last else { return Err(format!("no message has the role `{USER}`, expected one to answer")) };
        return Ok(Asked::Messages(messages.into_iter().take(last + 1).collect()));
    }
    match field("prompt").or(field("text")) {
        Some(Value::String(text)) if !text.is_empty() => Ok(Asked::Prompt(text.clone())),
        Some(_) => Err(format!("its prompt is no text or an empty one, {EXPECTED}")),
        None => Err(format!("it has none of the fields, {EXPECTED}")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{Asked, asked};

    #[test]
    fn a_record_asks_for_what_comes_after_its_prompt_or_the_last_message_of_the_user() {
        let of = |value: serde_json::Value| asked(value.as_object().unwrap());
        assert!(
            matches!(of(json!({"prompt": "1 + 1 =", "completion": "2"})), Ok(Asked::Prompt(text)) if text == "1 + 1 =")
        );
        assert!(matches!(of(json!({"prompt": null, "text": "a"})), Ok(Asked::Prompt(text)) if text == "a"));
        let message = |role: &str| json!({"role": role, "content": "c"});
        let messages = ["system", "user", "assistant", "user", "assistant"].map(message);
        assert!(matches!(of(json!({"messages": messages})), Ok(Asked::Messages(list)) if list.len() == 4));
        for (value, part) in [
            (json!({"messages": [message("assistant")]}), "`user`"),
            (json!({"messages": "x"}), "`messages`"),
            (json!({"prompt": 3}), "no text"),
            (json!({"prompt": ""}), "empty"),
            (json!({"answer": "x"}), "none of the fields"),
        ] {
            let reason = of(value).map(|_| ()).unwrap_err();
            assert!(reason.contains(part), "{reason}");
        }
    }
}
