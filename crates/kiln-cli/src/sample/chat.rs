//! A chat with a decoder: it answers the messages of stdin, one on each line, or one message of the command line.

use std::io::{BufRead, IsTerminal, Write};
use std::iter::{from_fn, once};

use anyhow::{Context, Result, bail};
use kiln_data::{ASSISTANT, ChatTemplate, Message, Tokenizer, TokenizerKind, USER, printable};
use kiln_report::counted;

use super::generate::{End, Writer};
use super::output::Output;
use super::text::decoded;
use crate::interrupt::Interrupt;
use crate::usage::Usage;

/// The chat template in the folder of a tokenizer, which `asking` needs.
///
/// # Errors
/// [`Usage`] if there is none, and those of [`ChatTemplate::open`].
pub(super) fn template(kind: &TokenizerKind, asking: &str) -> Result<ChatTemplate> {
    let TokenizerKind::Folder(folder) = kind else {
        bail!(Usage(format!(
            "{asking} needs a chat template, expected the model of a Hugging Face folder with a tokenizer.json"
        )));
    };
    let expected = "expected a chat_template.jinja in it, or a chat_template in its tokenizer_config.json";
    let missing = || Usage(format!("{asking} needs a chat template, and '{}' has none: {expected}", printable(folder)));
    Ok(ChatTemplate::open(folder)?.ok_or_else(missing)?)
}

/// A chat with a model.
pub(super) struct Chat<'a> {
    pub(super) writer: &'a Writer<'a>,
    pub(super) tokenizer: &'a Tokenizer,
    pub(super) template: &'a ChatTemplate,
    /// Tokens that the model reads at once.
    pub(super) room: usize,
    pub(super) interrupt: &'a Interrupt,
}

impl Chat<'_> {
    /// Answers `only`, or else the messages of stdin until it ends. The template writes the whole conversation before each answer. Returns why
    /// the last answer ended.
    ///
    /// # Errors
    /// Those of the template, the tokenizer and the model, those of stdin, and [`Usage`] for a message that is longer than what the model reads.
    pub(super) fn answer(&self, only: Option<String>, is_json: bool) -> Result<End> {
        let asked: Box<dyn Iterator<Item = Result<String>>> = match only {
            Some(message) => Box::new(once(Ok(message))),
            None => Box::new(from_fn(|| self.interrupt.at_once(line).transpose())),
        };
        let mut messages = vec![];
        for (turn, message) in asked.enumerate() {
            let message = message?;
            messages.push(Message::new(USER, message.as_str()));
            let ids = self.read(&mut messages)?;
            let output = Output::new(is_json, &message);
            let answer = self.writer.prompt(&ids)?.generate(turn, |text| output.text(text))?;
            output.end(turn, &answer, self.writer.seed)?;
            if answer.end != End::Done {
                return Ok(answer.end);
            }
            messages.push(Message::new(ASSISTANT, answer.text));
        }
        Ok(End::Done)
    }

    /// The tokens of the conversation. The oldest messages and answers are left out where the model could not read all of it, but not what comes before
    /// the user's first message.
    pub(super) fn read(&self, messages: &mut Vec<Message>) -> Result<Vec<u32>> {
        let all = messages.len();
        loop {
            let ids = self.tokenizer.encode(&self.template.render(messages, true)?)?;
            if ids.len() < self.room {
                if messages.len() < all {
                    tracing::warn!(
                        "the oldest {} of the conversation no longer fit",
                        counted(all - messages.len(), "message")
                    );
                }
                return Ok(ids);
            }
            let first = messages.iter().take_while(|message| message.role != USER).count();
            if messages.len() < first + 3 {
                let (tokens, room) = (ids.len(), self.room - 1);
                bail!(Usage(format!(
                    "the message has {tokens} tokens as the template writes it, expected at most {room}"
                )));
            }
            messages.drain(first..first + 2); // a message and its answer
        }
    }
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
