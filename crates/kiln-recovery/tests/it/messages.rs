//! The fixture table of real messages: every one is classified as what it is, however it arrives.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::panic::{catch_unwind, panic_any};

use burn::tensor::ExecutionError;
use kiln_recovery::{Failure, Kind, classify};
use serde::Deserialize;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Message {
    source: String,
    kind: String,
    #[serde(default)]
    consequence: bool,
    bytes: Option<u64>,
    text: String,
}

fn messages() -> Vec<Message> {
    #[derive(Deserialize)]
    struct Table {
        message: Vec<Message>,
    }
    toml::from_str::<Table>(include_str!("../../fixtures/messages.toml")).unwrap().message
}

/// As in the table.
fn kind(failure: Option<&Failure>) -> &'static str {
    match failure.map(Failure::kind) {
        None => "none",
        Some(Kind::OutOfMemory) => "out-of-memory",
        Some(Kind::TooBig) => "too-big",
        Some(Kind::DeviceLost) => "device-lost",
        Some(_) => "a kind that the table does not know",
    }
}

#[test]
fn every_message_is_what_the_table_says() {
    let messages = messages();
    for Message { source, kind: expected, consequence, bytes, text } in &messages {
        let failure = Failure::from_text(text);
        assert_eq!(kind(failure.as_ref()), expected, "{source}:\n{text}");
        let Some(failure) = failure else { continue };
        assert_eq!(failure.is_consequence(), *consequence, "{source}:\n{text}");
        assert_eq!(failure.bytes(), *bytes, "{source}:\n{text}");
        assert_eq!(failure.is_recoverable(), expected != "device-lost");
        assert!(!failure.message().contains('\n') && !failure.message().contains("backtrace.rs"), "{failure}");
    }
    for kind in ["out-of-memory", "too-big", "device-lost", "none"] {
        assert!(messages.iter().filter(|message| message.kind == kind).count() >= 4, "few messages of kind {kind}");
    }
}

/// Each text in the sources of the crates below a training step has the kind that its name and documentation say. The kinds were written
/// down without a look at the patterns (`fixtures/record_sources.py`).
#[test]
fn every_text_of_the_sources_is_what_its_name_says() {
    type Texts = BTreeMap<String, BTreeMap<String, Vec<String>>>;
    let sources: Texts = toml::from_str(include_str!("../../fixtures/sources.toml")).unwrap();
    let mut wrong = Vec::new();
    let mut counts = BTreeMap::<&str, usize>::new();
    for (source, kinds) in &sources {
        for (expected, texts) in kinds {
            *counts.entry(expected).or_default() += texts.len();
            for text in texts {
                let failure = Failure::from_text(text);
                let found = match &failure {
                    Some(failure) if failure.is_consequence() => "consequence",
                    failure => kind(failure.as_ref()),
                };
                if found != expected {
                    wrong.push(format!("{found}, expected {expected}: {source}: {text:?}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    for (kind, least) in [("none", 500), ("device-lost", 20), ("out-of-memory", 15), ("too-big", 4), ("consequence", 4)]
    {
        assert!(counts[kind] >= least, "{kind}: {counts:?}");
    }
}

/// An error of an application around one of its own.
#[derive(Debug)]
struct Wrapped(Option<Box<dyn Error>>, String);

impl fmt::Display for Wrapped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.1)
    }
}

impl Error for Wrapped {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.as_deref()
    }
}

#[test]
fn a_message_is_the_same_as_an_error_a_cause_a_panic_and_burns_error() {
    for Message { source, kind: expected, text, .. } in messages() {
        let read = |failure: Option<Failure>, how: &str| {
            assert_eq!(kind(failure.as_ref()), expected, "{source}, as {how}:\n{text}");
        };
        read(classify(&Wrapped(None, text.clone())), "an error");
        let cause = Wrapped(None, text.clone());
        read(classify(&Wrapped(Some(Box::new(cause)), "the step failed".into())), "a cause");
        read(Failure::from_device(&ExecutionError::with_context(text.as_str())), "burn's error");
        read(classify(&ExecutionError::generic(text.as_str())), "burn's other error");
        let payload = catch_unwind(|| panic_any(text.clone())).unwrap_err();
        read(Failure::from_panic(payload.as_ref()), "a panic");
        assert_eq!(*payload.downcast::<String>().unwrap(), text, "the payload was touched");
    }
}

#[test]
fn a_failure_survives_being_turned_into_text() {
    for Message { text, .. } in messages() {
        let Some(failure) = Failure::from_text(&text) else { continue };
        let again = Failure::from_text(&format!("device flex failed: {failure}")).unwrap();
        assert_eq!((again.kind(), again.is_consequence()), (failure.kind(), failure.is_consequence()), "{text}");
        assert_eq!(again.bytes(), failure.bytes(), "{text}");
    }
}
