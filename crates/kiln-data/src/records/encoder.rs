//! Records as token ids, with the ranges of those that are learned.

use std::ops::Range;
use std::slice::from_ref;

use xxhash_rust::xxh3::Xxh3Default;

use super::record::Record;
use crate::chat::{ASSISTANT, ChatTemplate, Message, SpecialTokens};
use crate::error::Error;
use crate::text::{Tokenizer, TokenizerKind};

/// The version of the rules in this file: another one makes other tokens.
const VERSION: u64 = 2;

/// Turns records into token ids, and finds the ids that are learned: all of a text, a completion, and the assistant's messages of a
/// conversation.
///
/// A text, and a prompt with its completion, begin with the token that the tokenizer puts before a text, if it does, and end with the token that
/// ends a text, if there is one, which is learned too. A conversation is written by the chat template, which has its own. A template that asks
/// for the date finds no clock, so that tokens do not depend on the day: Llama 3.2's then writes its own date.
pub struct RecordEncoder<'a> {
    tokenizer: &'a Tokenizer,
    template: Option<ChatTemplate>,
    begin: Option<u32>,
    end: Option<u32>,
}

/// The tokens of a record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EncodedRecord {
    /// Token ids.
    pub ids: Vec<u32>,
    /// Positions of the learned ids, as ranges in ascending order.
    pub learned: Vec<Range<u32>>,
    /// The number of answers that are not learned, because the chat template writes them in another way when other messages follow.
    pub changed: usize,
}

impl<'a> RecordEncoder<'a> {
    /// An encoder without a chat template and without a token that ends a text.
    pub fn new(tokenizer: &'a Tokenizer) -> Self {
        Self { tokenizer, template: None, begin: None, end: None }
    }

    /// The encoder with the chat template and the end of a text that the folder of the tokenizer names, if `kind` has one.
    ///
    /// # Errors
    /// Those of [`ChatTemplate::open`] and [`SpecialTokens::open`].
    pub fn open(tokenizer: &'a Tokenizer, kind: &TokenizerKind) -> Result<Self, Error> {
        let encoder = Self::new(tokenizer);
        let Some(folder) = kind.folder() else { return Ok(encoder) };
        let (begin, end) = (tokenizer.begin(), SpecialTokens::open(folder)?.end(tokenizer));
        // A vocabulary without a tokenizer.json spells the special tokens that a template writes.
        let template = match kind {
            TokenizerKind::Folder(folder) => ChatTemplate::open(folder)?.map(ChatTemplate::without_clock),
            _ => None,
        };
        Ok(Self { template, begin, end, ..encoder })
    }

    /// The encoder with a chat template.
    #[must_use]
    pub fn with_template(self, template: ChatTemplate) -> Self {
        Self { template: Some(template), ..self }
    }

    /// The encoder with a token that ends a text and a completion.
    #[must_use]
    pub fn with_end(self, end: u32) -> Self {
        Self { end: Some(end), ..self }
    }

    /// The size of the tokenizer's vocabulary.
    pub(super) fn vocab(&self) -> usize {
        self.tokenizer.vocab()
    }

    /// The tokens of `record`.
    ///
    /// # Errors
    /// [`Error::Tokenizer`]; [`Error::Template`]; [`Error::Conversation`] without a chat template, without a message of the assistant, and when
    /// the template writes other text before a message of the assistant than without it.
    pub fn encode(&self, record: &Record) -> Result<EncodedRecord, Error> {
        match record {
            Record::Text(text) => self.marked(text, from_ref(&(0..text.len())), (self.begin, self.end)),
            Record::Completion { prompt, completion } => {
                let text = format!("{prompt}{completion}");
                self.marked(&text, from_ref(&(prompt.len()..text.len())), (self.begin, self.end))
            }
            Record::Conversation(messages) => {
                let (text, answers, changed) = self.conversation(messages)?;
                Ok(EncodedRecord { changed, ..self.marked(&text, &answers, (None, None))? })
            }
        }
    }

    /// The text of a conversation up to the assistant's last message, the places of what the assistant writes, and the number of its messages
    /// that are changed in the text, because others follow.
    fn conversation(&self, messages: &[Message]) -> Result<(String, Vec<Range<usize>>, usize), Error> {
        let refused = |reason: String| Error::Conversation { reason };
        let Some(template) = &self.template else {
            let places = "chat_template.jinja, or chat_template in tokenizer_config.json";
            return Err(refused(format!("the tokenizer has no chat template, expected a folder with {places}")));
        };
        let is_answer = |message: &Message| message.role == ASSISTANT;
        let Some(last) = messages.iter().rposition(is_answer) else {
            return Err(refused(format!("no message has the role `{ASSISTANT}`, expected at least one to learn")));
        };
        let whole = template.render(&messages[..=last], false)?;
        let (mut answers, mut changed) = (vec![], 0);
        for (number, _) in messages[..=last].iter().enumerate().filter(|(_, message)| is_answer(message)) {
            let before = template.render(&messages[..number], true)?;
            let with = template.render(&messages[..=number], false)?;
            if !with.starts_with(&before) {
                return Err(refused(format!(
                    "with message {}, which is the assistant's, the chat template writes other text before it than without, expected \
                     a template that adds to the text",
                    number + 1
                )));
            }
            if !whole.starts_with(&with) {
                changed += 1;
                continue;
            }
            answers.push(before.len()..with.len());
        }
        Ok((whole, answers, changed))
    }

    /// The ids of `text` between that of the beginning and that of the end. Learned are those with a part in one of the `places`, which are in
    /// ascending order, and the end.
    fn marked(
        &self,
        text: &str,
        places: &[Range<usize>],
        (begin, end): (Option<u32>, Option<u32>),
    ) -> Result<EncodedRecord, Error> {
        let mut encoded = EncodedRecord { ids: Vec::from_iter(begin), ..EncodedRecord::default() };
        let mut learn = |at: u32| match encoded.learned.last_mut() {
            Some(last) if last.end == at => last.end += 1,
            _ => encoded.learned.push(at..at + 1),
        };
        let mut places = places.iter().peekable();
        for (id, place) in self.tokenizer.encode_with_places(text)? {
            while places.next_if(|learned| learned.end <= place.start).is_some() {}
            if places.peek().is_some_and(|learned| learned.start < place.end && place.start < learned.end) {
                learn(encoded.ids.len() as u32);
            }
            encoded.ids.push(id);
        }
        if let Some(end) = end {
            learn(encoded.ids.len() as u32);
            encoded.ids.push(end);
        }
        Ok(encoded)
    }

    /// A hash that differs between encoders.
    pub(super) fn fingerprint(&self) -> u64 {
        let mut hash = Xxh3Default::new();
        let template = self.template.as_ref().map(ChatTemplate::fingerprint);
        for number in [VERSION, self.tokenizer.fingerprint(), u64::from(template.is_some()), template.unwrap_or(0)] {
            hash.update(&number.to_le_bytes());
        }
        for token in [self.begin, self.end] {
            hash.update(&token.map_or(u64::MAX, u64::from).to_le_bytes());
        }
        hash.digest()
    }
}
