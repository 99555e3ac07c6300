//! The chat template of a Hugging Face folder, which writes a conversation as text.

use std::path::Path;

use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, ErrorKind, Value};
use minijinja_contrib::pycompat::unknown_method_callback;
use xxhash_rust::xxh3::Xxh3Default;

use super::clock::now;
use super::folder::{TOKENIZER_CONFIG, json, text};
use super::json::tojson;
use super::message::Message;
use super::special_tokens::SpecialTokens;
use crate::error::Error;
use crate::printable::printable;

/// The file of a template in a folder.
const FILE: &str = "chat_template.jinja";
/// Instructions of a rendering, above which it is refused: a conversation of a thousand messages takes some hundred thousand.
const WORK: u64 = 20_000_000;
/// The function of the date.
const CLOCK: &str = "strftime_now";
/// The name of the template in its environment, and in messages.
const NAME: &str = "chat";

/// A chat template: a Jinja template that writes a conversation as the text that a model was trained on.
///
/// It renders as in transformers (`chat_template_utils.py`, `_compile_jinja_template`): line breaks after blocks and white space before them are
/// left out, and `break`, `continue`, `raise_exception`, `strftime_now` (in UTC), `tojson` and the usual methods of Python's texts,
/// lists and dictionaries (those of `minijinja-contrib`) are there. A message has its role and its content, and there are no tools.
///
/// ```
/// use kiln_data::{ChatTemplate, Message, SpecialTokens};
///
/// let source = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ eos_token }}{% endfor %}\
///               {% if add_generation_prompt %}<assistant>{% endif %}";
/// let template = ChatTemplate::new(source, &SpecialTokens::default().with("eos_token", "</s>"))?;
/// assert_eq!(template.render(&[Message::new("user", "Hi")], true)?, "<user>Hi</s><assistant>");
/// # Ok::<(), kiln_data::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    tokens: SpecialTokens,
    fingerprint: u64,
}

impl ChatTemplate {
    /// The template of the model in `folder`: `chat_template.jinja`, or else `chat_template` in `tokenizer_config.json`. `None` for a folder
    /// without one.
    ///
    /// # Errors
    /// [`Error::Read`], and [`Error::Format`] for files that are damaged and a template that cannot be parsed.
    pub fn open(folder: impl AsRef<Path>) -> Result<Option<Self>, Error> {
        let (folder, file) = (folder.as_ref(), folder.as_ref().join(FILE));
        let (file, source) = match text(&file)? {
            Some(source) => (file, Some(source)),
            None => {
                let file = folder.join(TOKENIZER_CONFIG);
                let source = of_config(&json(&file)?["chat_template"]);
                (file, source)
            }
        };
        let Some(source) = source else { return Ok(None) };
        let template = Self::new(&source, &SpecialTokens::open(folder)?);
        template.map(Some).map_err(|error| Error::format(&file, error.to_string()))
    }

    /// The template `source`, which may use the texts of `tokens` by their names.
    ///
    /// # Errors
    /// [`Error::Template`] when it cannot be parsed.
    pub fn new(source: &str, tokens: &SpecialTokens) -> Result<Self, Error> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(refused)?);
        environment.set_unknown_method_callback(unknown_method_callback);
        // A template of a folder may be anybody's.
        environment.set_fuel(Some(WORK));
        environment.add_filter("tojson", tojson);
        environment.add_function(CLOCK, |format: String| now(&format));
        environment.add_function("raise_exception", |message: String| -> Result<String, minijinja::Error> {
            Err(minijinja::Error::new(ErrorKind::InvalidOperation, message))
        });
        environment.add_template_owned(NAME, without_marks(source)).map_err(refused)?;
        let mut hash = Xxh3Default::new();
        for text in tokens.texts().flat_map(|(name, text)| [name, text]).chain([source]) {
            hash.update(&(text.len() as u64).to_le_bytes());
            hash.update(text.as_bytes());
        }
        Ok(Self { environment, tokens: tokens.clone(), fingerprint: hash.digest() })
    }

    /// The template without `strftime_now`: its texts do not depend on the day. Templates that ask whether it is there write a date of their own.
    #[must_use]
    pub fn without_clock(mut self) -> Self {
        self.environment.remove_global(CLOCK);
        self
    }

    /// The text of a conversation. With `asks` it ends with the beginning of an answer (transformers' `add_generation_prompt`).
    ///
    /// # Errors
    /// [`Error::Template`] when the template refuses the conversation, or uses what is not there.
    pub fn render(&self, messages: &[Message], asks: bool) -> Result<String, Error> {
        let message = |message: &Message| {
            Value::from_pairs([("role", message.role.as_str()), ("content", message.content.as_str())])
        };
        let tokens = self.tokens.texts().map(|(name, text)| (name, Value::from(text)));
        let own = [
            ("messages", messages.iter().map(message).collect::<Value>()),
            ("add_generation_prompt", Value::from(asks)),
            ("tools", Value::from(())),
            ("documents", Value::from(())),
        ];
        let template = self.environment.get_template(NAME).map_err(refused)?;
        template.render(Value::from_pairs(tokens.chain(own))).map_err(refused)
    }

    /// A hash that differs between templates.
    pub(crate) fn fingerprint(&self) -> u64 {
        self.fingerprint
    }
}

/// The template of a tokenizer's configuration: a text, or of several with names the one called `default`.
fn of_config(template: &serde_json::Value) -> Option<String> {
    let named = || template.as_array()?.iter().find(|entry| entry["name"] == "default")?["template"].as_str();
    template.as_str().or_else(named).map(str::to_owned)
}

fn refused(error: minijinja::Error) -> Error {
    Error::Template { reason: printable(&error.to_string()) }
}

/// The template with blocks in place of `generation`, a tag of transformers that marks what an assistant writes and renders nothing.
fn without_marks(source: &str) -> String {
    let (mut text, mut rest) = (String::with_capacity(source.len()), source);
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at + 2);
        text.push_str(before);
        let end = tag.find("%}").unwrap_or(tag.len());
        let inside = &tag[..end];
        let word = inside.trim_matches(['-', '+']).trim();
        let block = match word {
            "generation" => "if true",
            "endgeneration" => "endif",
            word => word,
        };
        text.push_str(&inside.replacen(word, block, usize::from(word != block)));
        rest = &tag[end..];
    }
    text + rest
}

#[cfg(test)]
mod tests {
    use super::without_marks;

    #[test]
    fn marks_of_what_is_generated_become_blocks() {
        for (source, plain) in [
            ("a{%- generation -%}b{% endgeneration %}c", "a{%- if true -%}b{% endif %}c"),
            ("{% set generation = 1 %}{{ generation }}", "{% set generation = 1 %}{{ generation }}"),
            ("{%+endgeneration%} {% ", "{%+endif%} {% "),
        ] {
            assert_eq!(without_marks(source), plain);
        }
    }
}
