//! Tokenizers, GPT-2's against what the reference implementation recorded.

use std::fs;
use std::path::{Path, PathBuf};

use kiln_data::{Tokenizer, TokenizerKind, tokenize_files};
use proptest::prelude::*;
use serde_json::Value;
use tempfile::tempdir;

fn fixture() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/bpe")
}

/// The folders of tokenizers that divide text into words as families of models do.
fn folders() -> [PathBuf; 2] {
    ["smollm", "words-of-llama3"].map(|name| fixture().join("../decoders").join(name))
}

fn json(file: &str) -> Value {
    serde_json::from_slice(&fs::read(fixture().join(file)).unwrap()).unwrap()
}

fn recorded() -> Vec<(String, Vec<u32>)> {
    recorded_in(&fixture())
}

fn recorded_in(folder: &Path) -> Vec<(String, Vec<u32>)> {
    let id = |id: &Value| id.as_u64().unwrap() as u32;
    let case = |case: &Value| {
        (case["text"].as_str().unwrap().to_owned(), case["ids"].as_array().unwrap().iter().map(id).collect())
    };
    let cases: Value = serde_json::from_slice(&fs::read(folder.join("expected.json")).unwrap()).unwrap();
    cases.as_array().unwrap().iter().map(case).collect()
}

#[test]
fn a_folders_texts_become_the_recorded_ids_and_their_bytes_the_texts() {
    for folder in folders() {
        let tokenizer = Tokenizer::open(&TokenizerKind::Folder(folder.clone())).unwrap();
        let bytes = tokenizer.token_bytes();
        assert_eq!((bytes.len(), &*bytes[1]), (600, &b"<|im_start|>"[..]));
        for (text, ids) in recorded_in(&folder) {
            assert_eq!(tokenizer.encode(&text).unwrap(), ids, "{text:?}");
            let read: Vec<u8> = ids.iter().flat_map(|id| bytes[*id as usize].clone()).collect();
            assert_eq!(read, text.as_bytes());
        }
    }
}

#[test]
fn a_folder_whose_words_are_unknown_is_cut_nowhere() {
    let folder = tempdir().unwrap();
    let path = folders()[0].join("tokenizer.json");
    let whole: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    let cut = |change: &dyn Fn(&mut Value)| {
        let mut changed = whole.clone();
        change(&mut changed);
        fs::write(folder.path().join("tokenizer.json"), changed.to_string()).unwrap();
        Tokenizer::folder(folder.path()).unwrap().last_cut("one two\nthree")
    };
    assert_eq!(cut(&|_| ()), Some(3));
    assert_eq!(cut(&|json| json["normalizer"] = serde_json::json!({ "type": "NFC" })), Some(3));
    assert_eq!(cut(&|json| json["normalizer"] = serde_json::json!({ "type": "NFKC" })), None);
    assert_eq!(cut(&|json| json["added_tokens"][1]["rstrip"] = true.into()), None);
    assert_eq!(cut(&|json| json["pre_tokenizer"]["pretokenizers"][1]["add_prefix_space"] = true.into()), None);
    assert_eq!(
        cut(&|json| json["pre_tokenizer"] = serde_json::json!({ "type": "Punctuation", "behavior": "Isolated" })),
        None
    );
    assert_eq!(cut(&|json| json["pre_tokenizer"] = Value::Null), None);
    // Nothing of these divides text into words.
    let steps = |steps: Value| move |json: &mut Value| json["pre_tokenizer"]["pretokenizers"] = steps.clone();
    let bytes =
        serde_json::json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false });
    let digits = serde_json::json!({ "type": "Digits", "individual_digits": true });
    for alone in [serde_json::json!([]), serde_json::json!([digits]), serde_json::json!([digits, bytes])] {
        assert_eq!(cut(&steps(alone)), None);
    }
    // Another length of inputs cuts no text, and padding adds nothing.
    fs::write(folder.path().join("tokenizer.json"), {
        let mut short = whole.clone();
        let (direction, strategy) = ("Right", "LongestFirst");
        short["truncation"] =
            serde_json::json!({ "direction": direction, "max_length": 2, "strategy": strategy, "stride": 0 });
        short["padding"] = serde_json::json!({
            "strategy": { "Fixed": 9 }, "direction": direction, "pad_to_multiple_of": null, "pad_id": 0, "pad_type_id": 0,
            "pad_token": "<|endoftext|>",
        });
        short.to_string()
    })
    .unwrap();
    let [short, plain] = [folder.path(), &folders()[0]].map(|folder| Tokenizer::folder(folder).unwrap());
    for text in ["one", "one two three four five"] {
        assert_eq!(short.encode(text).unwrap(), plain.encode(text).unwrap());
    }
}

#[test]
fn a_folder_without_a_tokenizer_is_refused_by_name() {
    let folder = tempdir().unwrap();
    let refused = || Tokenizer::folder(folder.path()).err().unwrap().to_string();
    assert!(refused().contains("tokenizer.json"), "{}", refused());
    fs::write(folder.path().join("tokenizer.json"), "{}").unwrap();
    assert!(refused().contains("tokenizer.json") && refused().lines().count() == 1, "{}", refused());
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
fn ids_have_the_bytes_of_the_vocabulary() {
    let tokenizer = Tokenizer::bpe(fixture()).unwrap();
    let (bytes, lengths) = (tokenizer.token_bytes(), tokenizer.byte_lengths());
    assert!(bytes.iter().map(Vec::len).eq(lengths.iter().map(|length| *length as usize)));
    // Each byte has an id of its own, also the half of a character.
    assert!((0..=255).all(|byte| bytes.contains(&vec![byte])));
    assert!(bytes.contains(&b" the".to_vec()));
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
    // No JSON, no merges, merges of tokens that the vocabulary lacks, a byte that the vocabulary lacks.
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

/// Text of what the rules of words distinguish: letters, digits, marks and punctuation of several scripts, contractions, and
/// white space of all kinds.
fn text() -> impl Strategy<Value = String> {
    let pieces = [
        "a", "I'll", "we've", "'", "'s", "'r", "e", "é", "日本", "語。", "🐋", "e\u{301}", "٣", "7", "3.14", "Ⅷ", "-",
        "--", "!?", "_", "²", " ", " ", " ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", "\u{a0}", "\u{3000}", "\u{2028}",
        "\u{85}", "\u{200b}", "\u{180e}",
    ];
    let random = any::<char>().prop_map(String::from);
    let piece = prop_oneof![9 => prop::sample::select(pieces.to_vec()).prop_map(str::to_owned), 1 => random];
    prop::collection::vec(piece, 0..60).prop_map(|pieces| pieces.concat())
}

fn both() -> [Tokenizer; 2] {
    [Tokenizer::Bytes, Tokenizer::bpe(fixture()).unwrap()]
}

/// Tokenizers of every form.
fn all() -> Vec<Tokenizer> {
    both().into_iter().chain(folders().map(|folder| Tokenizer::folder(folder).unwrap())).collect()
}

proptest! {
    #[test]
    fn the_bytes_of_ids_are_the_text(text in text()) {
        for tokenizer in all() {
            let bytes = tokenizer.token_bytes();
            let ids = tokenizer.encode(&text).unwrap();
            let read: Vec<u8> = ids.into_iter().flat_map(|id| bytes[id as usize].clone()).collect();
            prop_assert_eq!(read, text.as_bytes());
        }
    }

    #[test]
    fn a_text_may_be_cut_at_every_place_that_is_said_to_be_safe(text in text()) {
        for tokenizer in all() {
            let whole = tokenizer.encode(&text).unwrap();
            // The last cut of every beginning of the text is every cut there is.
            for end in (0..=text.len()).filter(|end| text.is_char_boundary(*end)) {
                let Some(cut) = tokenizer.last_cut(&text[..end]) else { continue };
                prop_assert!(0 < cut && cut <= end);
                let parts = [&text[..cut], &text[cut..]].map(|part| tokenizer.encode(part).unwrap());
                prop_assert_eq!(parts.concat(), &*whole, "{:?} cut at {}", text, cut);
            }
        }
    }

    #[test]
    fn texts_with_words_can_be_cut(words in prop::collection::vec("[a-z日]{1,9}", 2..9)) {
        let text = words.join(" ");
        let last = words[words.len() - 1].len() + 1;
        prop_assert_eq!(both().map(|tokenizer| tokenizer.last_cut(&text)), [Some(text.len()), Some(text.len() - last)]);
    }
}

#[test]
fn places_that_would_change_the_ids_are_not_offered() {
    let bpe = Tokenizer::bpe(fixture()).unwrap();
    // Inside of a word, of white space, after white space, and at the ends.
    for text in ["", " ", "\n\n", "word", " word", "\n\nword", "we'll", "日本語。"] {
        assert_eq!(bpe.last_cut(text), None, "{text:?}");
    }
    assert_eq!(bpe.last_cut("one two \n three"), Some(7));
    assert_eq!((Tokenizer::Bytes.last_cut(""), Tokenizer::Bytes.last_cut("é")), (None, Some(2)));
}

#[test]
fn a_book_has_the_same_ids_from_a_file() {
    let book = fixture().join("../moby-dick/moby-dick.txt");
    let folder = tempdir().unwrap();
    for tokenizer in all() {
        let file = tokenize_files([&book], &tokenizer, folder.path().join("tokens")).unwrap();
        let mut ids = vec![];
        file.read(0..file.len(), &mut ids).unwrap();
        file.verify().unwrap();
        assert!(ids == tokenizer.encode(&fs::read_to_string(&book).unwrap()).unwrap());
    }
}

#[test]
fn text_that_cannot_be_read_leaves_no_token_file() {
    let folder = tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("good"), "words and words").unwrap();
    let damaged = [&[b'a'; 300_000][..], b" \xe6\x97 b"].concat();
    fs::write(at("damaged"), &damaged).unwrap();
    fs::write(at("cut"), b"whale \xe6\x97").unwrap();
    fs::write(at("endless"), vec![b'a'; (1 << 26) + (1 << 18)]).unwrap();
    let refused = |name: &str, tokenizer: &Tokenizer| {
        tokenize_files([at("good"), at(name)], tokenizer, at("tokens")).unwrap_err().to_string()
    };
    let [bytes, bpe] = both();
    let cases = [
        ("absent", "cannot read '{}/absent': "),
        (
            "damaged",
            "'{}/damaged' is damaged or of another format: not UTF-8: invalid utf-8 sequence from index 300001",
        ),
        ("cut", "'{}/cut' is damaged or of another format: not UTF-8: invalid utf-8 sequence from index 6"),
    ];
    for (name, message) in cases {
        let message = message.replace("{}", &folder.path().display().to_string());
        let error = refused(name, &bytes);
        assert!(error.starts_with(&message), "{error}, expected {message}");
        assert!(!at("tokens").exists());
    }
    let error = refused("endless", &bpe);
    assert!(error.contains("64 MiB of text without white space"), "{error}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 4, "something half-written was left");
    assert_eq!(tokenize_files([at("endless")], &bytes, at("tokens")).unwrap().len(), (1 << 26) + (1 << 18));
}
