//! Files of records: what is learned of each, what is refused, and the cache.

use std::fs;
use std::path::Path;

use kiln_data::{
    BatchPlan, ChatTemplate, DocumentBatch, Documents, Error, Message, Record, RecordEncoder, Records, SpecialTokens,
    TokenBatch, Tokenizer, TokenizerKind, has_records,
};
use proptest::prelude::*;
use serde_json::{Value, json};
use tempfile::tempdir;

use super::fixtures::{assert_one_line, fixture};

fn smollm() -> Tokenizer {
    Tokenizer::folder(fixture("decoders/smollm")).unwrap()
}

/// The recorded template of a model.
fn template(name: &str) -> ChatTemplate {
    let recorded: Value = serde_json::from_slice(&fs::read(fixture("decoders/chats.json")).unwrap()).unwrap();
    let case = recorded["templates"].as_array().unwrap().iter().find(|case| case["name"] == name).unwrap();
    let tokens = SpecialTokens::default().with("bos_token", "<s>").with("eos_token", "</s>");
    ChatTemplate::new(case["template"].as_str().unwrap(), &tokens).unwrap()
}

/// The text of the tokens of a record, those that are learned between brackets.
fn shown(tokenizer: &Tokenizer, ids: &[u32], learned: &[std::ops::Range<u32>]) -> String {
    let (bytes, mut text) = (tokenizer.token_bytes(), vec![]);
    for (at, id) in (0u32..).zip(ids) {
        text.extend(learned.iter().filter(|range| range.start == at).map(|_| b'['));
        text.extend(&bytes[*id as usize]);
        text.extend(learned.iter().filter(|range| range.end == at + 1).map(|_| b']'));
    }
    String::from_utf8(text).unwrap()
}

fn chat(turns: &[(&str, &str)]) -> Record {
    Record::Conversation(turns.iter().map(|(role, content)| Message::new(*role, *content)).collect())
}

#[test]
fn answers_are_learned_and_what_is_asked_is_not() {
    let tokenizer = smollm();
    let completion =
        |prompt: &str, completion: &str| Record::Completion { prompt: prompt.into(), completion: completion.into() };
    let plain = || RecordEncoder::new(&tokenizer);
    let (user, assistant, system) = ("user", "assistant", "system");
    for (encoder, record, expected) in [
        (plain(), Record::Text("Call me é🐋".into()), "[Call me é🐋]"),
        (plain().with_end(0), Record::Text("Call me".into()), "[Call me<|endoftext|>]"),
        (plain().with_end(0), Record::Text(String::new()), "[<|endoftext|>]"),
        (plain(), completion("Where?", " There."), "Where?[ There.]"),
        // A token of both is learned.
        (plain(), completion("Where? ", "There."), "Where?[ There.]"),
        (plain().with_end(2), completion("Where?\n", "\nThere."), "Where?\n[\nThere.<|im_end|>]"),
        (plain(), completion("Where?", ""), "Where?"),
        (plain(), completion("", "There."), "[There.]"),
        (
            plain().with_end(0).with_template(template("smollm2")),
            chat(&[
                (system, "Be brief."),
                (user, "Where?"),
                (assistant, "There."),
                (user, "And?"),
                (assistant, " \nHere 日 "),
                (user, "Ah."),
            ]),
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWhere?<|im_end|>\n<|im_start|>assistant\n[There.<|im_end|>\n]\
             <|im_start|>user\nAnd?<|im_end|>\n<|im_start|>assistant\n[ \nHere 日 <|im_end|>\n]",
        ),
        (
            plain().with_template(template("mistral-v0.2")),
            chat(&[(user, "Where?"), (assistant, "There."), (user, "And?"), (assistant, "Here.")]),
            "<s>[INST] Where? [/INST][There.</s>][INST] And? [/INST][Here.</s>]",
        ),
    ] {
        let encoded = encoder.encode(&record).unwrap();
        assert_eq!(shown(&tokenizer, &encoded.ids, &encoded.learned), expected, "{record:?}");
    }
    let bytes = RecordEncoder::new(&Tokenizer::Bytes).encode(&completion("é", "日")).unwrap();
    assert_eq!((bytes.ids.len(), bytes.learned.as_slice()), (5, std::slice::from_ref(&(2..5))));
}

#[test]
fn conversations_that_cannot_be_learned_are_refused() {
    let tokenizer = smollm();
    let of = |name| RecordEncoder::new(&tokenizer).with_template(template(name));
    let ask = chat(&[("user", "Where?")]);
    let answered = chat(&[("user", "Where?"), ("assistant", "There.")]);
    let thought = chat(&[("user", "a"), ("assistant", "<think>b</think>c"), ("user", "d"), ("assistant", "e")]);
    for (encoder, record, parts) in [
        (RecordEncoder::new(&tokenizer), &answered, ["no chat template", "chat_template.jinja"]),
        (of("llama-3"), &ask, ["no message has the role `assistant`", "at least one"]),
        (
            of("mistral-v0.2"),
            &chat(&[("assistant", "a"), ("user", "b"), ("assistant", "c")]),
            ["chat template: ", "alternate"],
        ),
        (
            of("mistral-v0.3"),
            &chat(&[("system", "s"), ("user", "a"), ("assistant", "b")]),
            ["message 3", "other text before it"],
        ),
    ] {
        assert_one_line(encoder.encode(record).unwrap_err(), &parts);
    }
    // A template that leaves out what was thought when others follow: the last answer alone is learned.
    let encoded = of("qwen3").encode(&thought).unwrap();
    let expected = "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nc<|im_end|>\n<|im_start|>user\nd<|im_end|>\n<|im_start|>assistant\n\
                    [<think>\n\n</think>\n\ne<|im_end|>\n]";
    assert_eq!((shown(&tokenizer, &encoded.ids, &encoded.learned).as_str(), encoded.changed), (expected, 1));
}

fn opened(path: &Path) -> Result<Records, Error> {
    Records::open(path, &RecordEncoder::new(&Tokenizer::Bytes))
}

fn texts(documents: &Documents) -> Vec<String> {
    let text = |id| {
        let ids = documents.get(id).unwrap();
        shown(&Tokenizer::Bytes, &ids, &documents.learned(id).collect::<Vec<_>>())
    };
    (0..documents.len()).map(text).collect()
}

#[test]
fn files_and_directories_of_each_format_are_read_in_order() {
    let folder = tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::write(
        at("b.jsonl"),
        "\u{feff}{\"text\": \"one\", \"id\": 7}\n\n  {\"prompt\": \"a\", \"completion\": \"bc\", \"text\": \"d\"}",
    )
    .unwrap();
    fs::write(at("a.NDJSON"), "{\"text\": \"zero\\n\", \"prompt\": 3}\r\n").unwrap();
    fs::write(at("notes.md"), "no record").unwrap();
    assert!(has_records(folder.path()) && has_records(at("a.NDJSON")) && !has_records(at("notes.md")));
    assert_eq!(texts(&opened(folder.path()).unwrap().documents), ["z[ero\n]", "o[ne]", "a[bc]"]);
    let table = "\u{feff}id,completion,prompt\n1,\"b, \"\"c\"\"\nd\",a\n2,é,日\n";
    fs::write(at("t.csv"), table).unwrap();
    assert_eq!(texts(&opened(&at("t.csv")).unwrap().documents), ["a[b, \"c\"\nd]", "日[é]"]);
    assert_one_line(opened(folder.path()).unwrap_err(), &["'a.NDJSON' and 't.csv' are of different formats"]);
    fs::write(at("u.csv"), "text\nwhale\n").unwrap();
    assert_eq!(texts(&opened(&at("u.csv")).unwrap().documents), ["w[hale]"]);
    // Whether text or records are meant cannot be known.
    fs::write(at("c.txt"), "text").unwrap();
    assert_one_line(opened(folder.path()).unwrap_err(), &["'c.txt' is text and 'a.NDJSON' has records"]);
    // A row of a table of several kinds has null where it has no value.
    fs::write(at("n.jsonl"), "{\"messages\": null, \"prompt\": null, \"completion\": null, \"text\": \"one\"}")
        .unwrap();
    assert_eq!(texts(&opened(&at("n.jsonl")).unwrap().documents), ["o[ne]"]);
}

#[test]
fn a_record_begins_as_its_tokenizer_begins_a_text() {
    let folder = tempdir().unwrap();
    let mut file: Value =
        serde_json::from_slice(&fs::read(fixture("decoders/smollm/tokenizer.json")).unwrap()).unwrap();
    let begin = json!({ "id": "<|im_start|>", "ids": [1], "tokens": ["<|im_start|>"] });
    let part = |name: &str| json!({ "Sequence": { "id": name, "type_id": 0 } });
    let special = json!({ "SpecialToken": { "id": "<|im_start|>", "type_id": 0 } });
    file["post_processor"] = json!({
        "type": "TemplateProcessing", "single": [special, part("A")], "pair": [part("A"), part("B")],
        "special_tokens": { "<|im_start|>": begin },
    });
    fs::write(folder.path().join("tokenizer.json"), file.to_string()).unwrap();
    let kind = TokenizerKind::Folder(folder.path().to_owned());
    let tokenizer = Tokenizer::open(&kind).unwrap();
    assert_eq!((tokenizer.begin(), smollm().begin(), Tokenizer::Bytes.begin()), (Some(1), None, None));
    let encoder = RecordEncoder::open(&tokenizer, &kind).unwrap();
    for (record, expected) in [
        (Record::Text("Call me".into()), "<|im_start|>[Call me]"),
        (Record::Completion { prompt: "Where?".into(), completion: " There.".into() }, "<|im_start|>Where?[ There.]"),
    ] {
        let encoded = encoder.encode(&record).unwrap();
        assert_eq!(shown(&tokenizer, &encoded.ids, &encoded.learned), expected);
    }
}

#[test]
fn a_bad_record_is_named_by_its_file_and_line() {
    let folder = tempdir().unwrap();
    let template = RecordEncoder::new(&Tokenizer::Bytes).with_template(template("llama-3"));
    let good = "{\"text\": \"good\"}\n";
    let kinds = "`text`, `prompt` and `completion`, or `messages`";
    for (name, text, line, part) in [
        ("a.jsonl", &*format!("{good}\n{{\"text\": \n"), 3, "no JSON: "),
        ("a.jsonl", "[1]", 1, "no JSON object"),
        ("a.jsonl", "{}", 1, kinds),
        ("a.jsonl", &format!("{good}{{\"prompt\": \"a\"}}"), 2, "`completion` is missing"),
        ("a.jsonl", "{\"completion\": \"a\"}", 1, "`prompt` is missing"),
        ("a.jsonl", "{\"text\": 3}", 1, "`text` is no text"),
        ("a.jsonl", "{\"messages\": {}}", 1, "`messages` is no list"),
        ("a.jsonl", "{\"messages\": [{\"role\": \"user\"}]}", 1, "message 1 has no `content`"),
        (
            "a.jsonl",
            "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}",
            1,
            "no message has the role `assistant`",
        ),
        (
            "a.jsonl",
            "{\"messages\": [{\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [1]}]}",
            1,
            "message 1 has `tool_calls`, which is not read",
        ),
        ("a.jsonl", "{\"messages\": []}", 1, "no message has the role `assistant`"),
        ("a.csv", "prompt,answer\na,b\n", 1, "the columns are `prompt`, `answer`, expected `text`"),
        ("a.csv", "text,id\n\"a\nb\",1\nb\n", 4, "number of fields is 1, expected 2"),
        ("a.csv", "", 1, "the columns are ``"),
    ] {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        let error = Records::open(&path, &template).unwrap_err();
        assert_one_line(error, &[&format!("'{}', line {line}: ", path.display()), part]);
    }
    for (name, bytes, line) in [("b.jsonl", &b"{\"text\": \"a\"}\n\xff\n"[..], 2), ("b.csv", b"text\na\n\xff\n", 3)] {
        let path = folder.path().join(name);
        fs::write(&path, bytes).unwrap();
        assert_one_line(opened(&path).unwrap_err(), &[&format!("line {line}: not UTF-8")]);
    }
    // A quote that does not end is a record of all the rest, which is read up to a bound.
    let path = folder.path().join("c.csv");
    fs::write(&path, [&b"text\n\""[..], &vec![b'a'; 68 << 20]].concat()).unwrap();
    assert_one_line(opened(&path).unwrap_err(), &["line 2: a record of more than 64 MiB"]);
    fs::write(path.with_extension("jsonl"), vec![b'a'; 68 << 20]).unwrap();
    assert_one_line(opened(&path.with_extension("jsonl")).unwrap_err(), &["line 1: a record of more than 64 MiB"]);
}

#[test]
fn files_without_a_token_to_learn_are_refused() {
    let folder = tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    for text in ["", "\n\n", "{\"text\": \"\"}", "{\"text\": \"a\"}", "{\"prompt\": \"ab\", \"completion\": \"\"}"] {
        fs::write(at("a.jsonl"), text).unwrap();
        assert_one_line(opened(&at("a.jsonl")).unwrap_err(), &["a.jsonl", "expected records with a token to learn"]);
    }
    fs::write(at("a.json"), "{\"text\": \"good\"}").unwrap();
    assert_one_line(opened(&at("a.json")).unwrap_err(), &["a.json", ".jsonl"]);
    assert_one_line(opened(&at("absent.jsonl")).unwrap_err(), &["cannot read", "absent.jsonl"]);
    fs::create_dir(at("empty")).unwrap();
    assert_one_line(opened(&at("empty")).unwrap_err(), &["empty", "expected files ending in .jsonl"]);
}

#[test]
fn records_are_cut_and_those_with_nothing_left_are_counted() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("a.jsonl");
    let record = |prompt: &str, completion: &str| json!({ "prompt": prompt, "completion": completion }).to_string();
    let lines = [record("ab", "cdef"), record("abcd", "e"), record("a", "b"), record("", "q"), record("", "xyz")];
    fs::write(&path, lines.join("\n")).unwrap();
    let records = opened(&path).unwrap();
    assert_eq!(
        (texts(&records.documents), records.left_out),
        (["ab[cdef]", "abcd[e]", "a[b]", "x[yz]"].map(str::to_owned).to_vec(), 1)
    );
    let cut = records.clone().cut_to(4).unwrap();
    assert_eq!((texts(&cut.documents), cut.left_out), (["ab[cd]", "a[b]", "x[yz]"].map(str::to_owned).to_vec(), 2));
    assert_eq!(cut.documents.lengths().to_vec(), [4, 2, 3]);
    let short = records.clone().cut_to(2).unwrap();
    assert_eq!((texts(&short.documents), short.left_out), (["a[b]", "x[y]"].map(str::to_owned).to_vec(), 3));
    assert_one_line(records.cut_to(1).unwrap_err(), &["length is 1, expected at least 2"]);
    fs::write(&path, &lines[1]).unwrap();
    assert_one_line(opened(&path).unwrap().cut_to(3).unwrap_err(), &["without a token that is learned"]);
}

#[test]
fn every_record_is_on_one_side() {
    let documents = |count: u32| Documents::new((0..count).map(|id| vec![id, id + 1])).unwrap();
    for (count, held_out, expected) in [(2, 0.05, 1), (10, 0.2, 2), (10, 0.01, 1), (10, 0.99, 9), (100, 0.05, 5)] {
        let halves = documents(count).split(held_out).unwrap();
        assert_eq!(halves.test.len(), expected, "{count} and {held_out}");
        let firsts = |part: &Documents| (0..part.len()).map(|id| part.get(id).unwrap()[0]).collect::<Vec<_>>();
        assert!([firsts(&halves.train), firsts(&halves.test)].concat().into_iter().eq(0..count));
    }
    assert_one_line(documents(1).split(0.5).unwrap_err(), &["documents is 1, expected at least 2"]);
    assert_one_line(documents(3).split(1.0).unwrap_err(), &["held out is 1, expected a fraction"]);
}

#[test]
fn learned_ranges_that_do_not_fit_are_refused() {
    let with = |ranges: Vec<Vec<std::ops::Range<u32>>>| {
        Documents::new([vec![1, 2, 3], vec![4, 5]]).unwrap().with_learned(ranges)
    };
    assert!(with(vec![vec![0..1, 2..3], vec![]]).is_ok());
    assert_one_line(with(vec![vec![]]).unwrap_err(), &["1 lists of ranges for 2 documents"]);
    for (first, part) in
        [(&[[1, 1]][..], "1..1"), (&[[1, 4]], "1..4 in document 0 of 3 tokens"), (&[[1, 3], [2, 3]], "2..3")]
    {
        let first = first.iter().map(|[start, end]| *start..*end).collect();
        assert_one_line(with(vec![first, vec![]]).unwrap_err(), &[part]);
    }
}

/// Records of bytes that need no template.
fn records() -> impl Strategy<Value = Vec<(String, String)>> {
    prop::collection::vec(("[a-z]{0,6}", "[a-zé]{2,9}"), 2..8)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))] // each flushes files to the disk
    #[test]
    fn cached_records_are_the_records(records in records(), is_table: bool) {
        let folder = tempdir().unwrap();
        let cache = folder.path().join("cache/of/records");
        let path = folder.path().join(if is_table { "a.csv" } else { "a.jsonl" });
        let lines = records.iter().map(|(prompt, completion)| match is_table {
            true => format!("{prompt},{completion}"),
            false => json!({ "prompt": prompt, "completion": completion }).to_string(),
        });
        let header = is_table.then(|| "prompt,completion".to_owned());
        fs::write(&path, header.into_iter().chain(lines).collect::<Vec<_>>().join("\n")).unwrap();
        let encoder = RecordEncoder::new(&Tokenizer::Bytes);
        let (plain, first) = (opened(&path).unwrap(), Records::open_cached(&path, &encoder, &cache).unwrap());
        let all = |records: &Records| {
            let ids = (0..records.documents.len()).collect();
            DocumentBatch::load(&records.documents, &BatchPlan { epoch: 0, index: 0, ids }).unwrap()
        };
        let batch = all(&plain);
        prop_assert_eq!(&all(&first), &batch);
        prop_assert_eq!(batch.len(), records.len());
        // What is learned is the completions, without the first token of a record.
        let learned: usize = records.iter().map(|(prompt, completion)| completion.len() - usize::from(prompt.is_empty())).sum();
        prop_assert_eq!((batch.targets(), TokenBatch::from(batch.clone()).target_ids().len()), (learned, learned));
        let files = || {
            let mut files: Vec<_> = fs::read_dir(&cache).unwrap().map(|file| file.unwrap().path()).collect();
            files.sort();
            files
        };
        let written = files().into_iter().map(|file| (file.clone(), fs::read(file).unwrap())).collect::<Vec<_>>();
        prop_assert_eq!(written.len(), 2);
        // They are read and not written again, and a damaged or a missing one is.
        let modified = || files().iter().map(|file| fs::metadata(file).unwrap().modified().unwrap()).collect::<Vec<_>>();
        let before = modified();
        prop_assert_eq!(&all(&Records::open_cached(&path, &encoder, &cache).unwrap()), &batch);
        prop_assert_eq!(modified(), before);
        for (file, bytes) in &written {
            for damaged in [true, false] {
                if damaged { fs::write(file, "nonsense").unwrap() } else { fs::remove_file(file).unwrap() }
                prop_assert_eq!(&all(&Records::open_cached(&path, &encoder, &cache).unwrap()), &batch);
                prop_assert_eq!(&fs::read(file).unwrap(), bytes);
            }
        }
        // Another end makes other tokens, in files of their own.
        let ended = Records::open_cached(&path, &RecordEncoder::new(&Tokenizer::Bytes).with_end(0), &cache).unwrap();
        prop_assert_eq!(all(&ended).targets(), learned + records.len());
        prop_assert_eq!(files().len(), 4);
    }
}

#[test]
fn records_that_cannot_be_used_leave_no_file_in_the_cache() {
    let folder = tempdir().unwrap();
    let (path, cache) = (folder.path().join("a.jsonl"), folder.path().join("cache"));
    fs::write(&path, "{\"text\": \"good\"}\n{}\n").unwrap();
    let encoder = RecordEncoder::new(&Tokenizer::Bytes);
    assert_one_line(Records::open_cached(&path, &encoder, &cache).unwrap_err(), &["line 2"]);
    assert_eq!(fs::read_dir(&cache).unwrap().count(), 0);
}

#[test]
fn a_folder_names_its_template_and_its_end() {
    let folder = tempdir().unwrap();
    fs::copy(fixture("decoders/smollm/tokenizer.json"), folder.path().join("tokenizer.json")).unwrap();
    fs::write(folder.path().join("tokenizer_config.json"), r#"{"eos_token": "<|im_end|>"}"#).unwrap();
    fs::write(folder.path().join("chat_template.jinja"), "{% for m in messages %}{{ m.content }}{% endfor %}").unwrap();
    let (kind, tokenizer) = (TokenizerKind::Folder(folder.path().to_owned()), smollm());
    let encoder = RecordEncoder::open(&tokenizer, &kind).unwrap();
    let encoded = encoder.encode(&Record::Text("Call".into())).unwrap();
    assert_eq!(encoded.ids.last(), Some(&2));
    assert!(encoder.encode(&chat(&[("user", "a"), ("assistant", "b")])).is_ok());
    assert!(RecordEncoder::open(&Tokenizer::Bytes, &TokenizerKind::Bytes).is_ok());
}
