//! A chat with a decoder: it answers the messages of stdin, one on each line, or one message of the command line.

use std::io::{BufRead, IsTerminal, Write};
use std::iter::{from_fn, once};

use anyhow::{Context, Result, bail};
use kiln_data::{ASSISTANT, ChatTemplate, Message, Tokenizer, TokenizerKind, USER, printable};

use super::generate::{End, Writer};
use super::output::Output;
use super::text::decoded;
use crate::usage::Usage;

/// The chat template in the folder of a tokenizer.
///
/// # Errors
/// [`Usage`] if there is none, and those of [`ChatTemplate::open`].
pub(super) fn template(kind: &TokenizerKind) -> Result<ChatTemplate> {
    let Some(folder) = kind.folder() else {
        bail!(Usage("--chat needs a chat template, expected the model of a Hugging Face folder".into()));
    };
    let expected = "expected a chat_template.jinja in it, or a chat_template in its tokenizer_config.json";
    let missing = || Usage(format!("--chat needs a chat template, and '{}' has none: {expected}", printable(folder)));
    Ok(ChatTemplate::open(folder)?.ok_or_else(missing)?)
}

/// Answers `only`, or else the messages of stdin until it ends. The template writes the whole conversation before each answer. Returns why the
/// last answer ended.
///
/// # Errors
/// Those of the template, the tokenizer and the model, and those of stdin.
pub(super) fn chat(
    writer: &Writer<'_>,
    tokenizer: &Tokenizer,
    template: &ChatTemplate,
    only: Option<String>,
    is_json: bool,
) -> Result<End> {
    let asked: Box<dyn Iterator<Item = Result<String>>> = match only {
        Some(message) => Box::new(once(Ok(message))),
        None => Box::new(from_fn(|| line().transpose())),
    };
    let mut messages = vec![];
    for (turn, message) in asked.enumerate() {
        let message = message?;
        messages.push(Message::new(USER, message.as_str()));
        let ids = tokenizer.encode(&template.render(&messages, true)?)?;
        let output = Output::new(is_json, &message);
        let answer = writer.prompt(&ids)?.generate(turn, |text| output.text(text))?;
        output.end(turn, &answer, writer.seed)?;
        if answer.end != End::Done {
            return Ok(answer.end);
        }
        messages.push(Message::new(ASSISTANT, answer.text));
    }
    Ok(End::Done)
}

/// The next line of stdin that has more than white space; `None` at the end.
fn line() -> Result<Option<String>> {
    let stdin = std::io::stdin();
    loop {
        if stdin.is_terminal() {
            let mut stderr = std::io::stderr().lock();
            write!(stderr, "> ").and_then(|()| stderr.flush()).context("cannot write to stderr")?;
        }
        let mut bytes = vec![];
        if stdin.lock().read_until(b'\n', &mut bytes).context("cannot read stdin")? == 0 {
            return Ok(None);
        }
        let line = decoded(bytes, "stdin")?;
        if !line.trim().is_empty() {
            return Ok(Some(line.trim_end_matches(['\r', '\n']).to_owned()));
        }
    }
}
