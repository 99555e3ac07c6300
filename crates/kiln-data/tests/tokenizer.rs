//! Tokenizers, GPT-2's against what the reference implementation recorded.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::PathBuf;

use kiln_data::{Tokenizer, TokenizerKind};
use serde_json::Value;
use tempfile::tempdir;

fn fixture() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/bpe")
}

fn json(file: &str) -> Value {
    serde_json::from_slice(&fs::read(fixture().join(file)).unwrap()).unwrap()
}

fn recorded() -> Vec<(String, Vec<u32>)> {
    let id = |id: &Value| id.as_u64().unwrap() as u32;
    let case = |case: &Value| {
        (case["text"].as_str().unwrap().to_owned(), case["ids"].as_array().unwrap().iter().map(id).collect())
    };
    json("expected.json").as_array().unwrap().iter().map(case).collect()
}

#[test]
fn texts_become_the_recorded_ids() {
    let tokenizer = Tokenizer::open(&TokenizerKind::Bpe(fixture())).unwrap();
    assert!(!recorded().is_empty());
    for (text, ids) in recorded() {
        assert_eq!(tokenizer.encode(&text).unwrap(), ids, "{text:?}");
    }
}

#[test]
fn the_lengths_of_a_texts_ids_add_up_to_its_bytes() {
    for kind in [TokenizerKind::Bytes, TokenizerKind::Bpe(fixture())] {
        let tokenizer = Tokenizer::open(&kind).unwrap();
        let lengths = tokenizer.byte_lengths();
        assert_eq!(lengths.len(), tokenizer.vocab());
        for (text, _) in recorded() {
            let ids = tokenizer.encode(&text).unwrap();
            let bytes: u32 = ids.into_iter().map(|id| lengths[id as usize]).sum();
            assert_eq!(bytes as usize, text.len(), "{text:?} with {kind:?}");
        }
    }
}

#[test]
fn the_vocabulary_has_the_size_of_its_file() {
    assert_eq!(Tokenizer::bpe(fixture()).unwrap().vocab(), json("vocab.json").as_object().unwrap().len());
}

#[test]
fn bytes_are_ids_of_their_own() {
    let tokenizer = Tokenizer::open(&TokenizerKind::default()).unwrap();
    assert_eq!(tokenizer.vocab(), 256);
    assert_eq!(tokenizer.encode("aé\n").unwrap(), [97, 0xc3, 0xa9, 10]);
    assert!(tokenizer.encode("").unwrap().is_empty());
}

#[test]
fn missing_and_damaged_files_are_refused_in_one_line_that_names_them() {
    let folder = tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let refused = || Tokenizer::bpe(folder.path()).err().unwrap().to_string();
    let shown = |name: &str| format!("'{}'", at(name).display());

    assert_eq!(refused(), format!("tokenizer: no file {}", shown("vocab.json")));
    fs::copy(fixture().join("vocab.json"), at("vocab.json")).unwrap();
    assert_eq!(refused(), format!("tokenizer: no file {}", shown("merges.txt")));

    let merges = fs::read_to_string(fixture().join("merges.txt")).unwrap();
    let mut vocab = json("vocab.json");
    vocab.as_object_mut().unwrap().remove("a");
    // No JSON, no merges, merges of what the vocabulary lacks, a byte that the vocabulary lacks.
    let whole = json("vocab.json").to_string();
    let cases =
        [("{", &*merges), (&whole, "#version\na b c\n"), (&whole, "#version\nqqq zzz\n"), (&vocab.to_string(), "")];
    for (vocab, merges) in cases {
        fs::write(at("vocab.json"), vocab).unwrap();
        fs::write(at("merges.txt"), merges).unwrap();
        let error = refused();
        assert!(error.lines().count() == 1 && error.contains(&*folder.path().to_string_lossy()), "{error:?}");
    }
}

#[test]
fn a_kind_is_a_word_or_a_directory_in_a_configuration() {
    for (kind, json) in
        [(TokenizerKind::Bytes, r#""bytes""#), (TokenizerKind::Bpe("some/where".into()), r#"{"bpe":"some/where"}"#)]
    {
        assert_eq!(serde_json::to_string(&kind).unwrap(), json);
        assert_eq!(serde_json::from_str::<TokenizerKind>(json).unwrap(), kind);
    }
}
