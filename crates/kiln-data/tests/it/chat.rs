//! Chat templates against what transformers renders (`fixtures/decoders/record_chats.py`), and the special tokens of folders.

use std::fs;

use kiln_data::{ChatTemplate, Error, Message, SpecialTokens, Tokenizer};
use serde_json::Value;
use tempfile::tempdir;

use super::fixtures::{assert_one_line, fixture};

fn recorded() -> Value {
    serde_json::from_slice(&fs::read(fixture("decoders/chats.json")).unwrap()).unwrap()
}

fn tokens(of: &Value) -> SpecialTokens {
    let named = of.as_object().unwrap().iter();
    named.fold(SpecialTokens::default(), |all, (name, text)| all.with(name, text.as_str().unwrap()))
}

#[test]
fn conversations_are_written_as_transformers_writes_them() {
    let recorded = recorded();
    let chats: Vec<Vec<Message>> = serde_json::from_value(recorded["chats"].clone()).unwrap();
    let templates = recorded["templates"].as_array().unwrap();
    assert!(templates.len() > 5 && chats.len() > 5);
    for case in templates {
        let name = case["name"].as_str().unwrap();
        let template = ChatTemplate::new(case["template"].as_str().unwrap(), &tokens(&case["tokens"])).unwrap();
        for (chat, texts) in chats.iter().zip(case["rendered"].as_array().unwrap()) {
            for (asks, expected) in [false, true].into_iter().zip(texts.as_array().unwrap()) {
                let rendered = template.render(chat, asks);
                match expected.as_str() {
                    Some(expected) => assert_eq!(rendered.unwrap(), expected, "{name}: {chat:?}"),
                    None => assert_one_line(rendered.unwrap_err(), &["chat template: ", "oles"]),
                }
            }
        }
    }
}

#[test]
fn a_folders_template_and_tokens_are_found_wherever_they_are() {
    let folder = tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let rendered = || {
        let template = ChatTemplate::open(folder.path()).unwrap();
        template.map(|template| template.render(&[Message::new("user", "Hi")], false).unwrap())
    };
    assert_eq!(rendered(), None);
    fs::write(at("special_tokens_map.json"), r#"{"bos_token": {"content": "<a>"}, "eos_token": "<b>"}"#).unwrap();
    fs::write(at("tokenizer_config.json"), r#"{"bos_token": null, "eos_token": {"content": "<|im_end|>"}}"#).unwrap();
    assert_eq!(rendered(), None);
    let source = "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}";
    for config in [
        format!("{source:?}"),
        format!(r#"[{{"name": "other", "template": ""}}, {{"name": "default", "template": {source:?}}}]"#),
    ] {
        let config = format!(r#"{{"chat_template": {config}, "eos_token": {{"content": "<|im_end|>"}}}}"#);
        fs::write(at("tokenizer_config.json"), config).unwrap();
        assert_eq!(rendered().unwrap(), "<a>Hi<|im_end|>");
    }
    fs::write(at("chat_template.jinja"), "file {{ eos_token }}\n").unwrap();
    assert_eq!(rendered().unwrap(), "file <|im_end|>");

    let tokenizer = Tokenizer::folder(fixture("decoders/smollm")).unwrap();
    let tokens = || SpecialTokens::open(folder.path()).unwrap();
    assert_eq!((tokens().end(&tokenizer), tokens().stops(&tokenizer)), (Some(2), vec![2]));
    fs::write(at("config.json"), r#"{"eos_token_id": 1}"#).unwrap();
    fs::write(at("generation_config.json"), r#"{"eos_token_id": [7, 2, 0]}"#).unwrap();
    assert_eq!((tokens().end(&tokenizer), tokens().stops(&tokenizer)), (Some(2), vec![0, 1, 2, 7]));
    fs::remove_file(at("tokenizer_config.json")).unwrap();
    // No token has the text of the map.
    assert_eq!(tokens().end(&tokenizer), Some(1));
    assert_eq!(SpecialTokens::default().end(&tokenizer), None);
}

#[test]
fn damaged_templates_and_files_are_refused_in_one_line() {
    let folder = tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let opened = || ChatTemplate::open(folder.path()).unwrap_err();
    fs::write(at("tokenizer_config.json"), "{").unwrap();
    assert_one_line(opened(), &["tokenizer_config.json", "no JSON"]);
    fs::write(at("chat_template.jinja"), "{% for %}\n{{").unwrap();
    assert_one_line(opened(), &["tokenizer_config.json", "no JSON"]);
    fs::remove_file(at("tokenizer_config.json")).unwrap();
    assert_one_line(opened(), &["chat_template.jinja", "chat template: ", "chat:1"]);
    fs::write(at("chat_template.jinja"), b"\xff").unwrap();
    assert_one_line(opened(), &["chat_template.jinja", "not UTF-8"]);
    for (source, part) in [
        ("{{ raise_exception('no\nsuch role') }}", "no\\nsuch role"),
        ("{{ messages[3].content }}", "undefined"),
        ("{{ messages | unknown }}", "unknown"),
        ("{{ messages | tojson(separators=1) }}", "chat template: "),
    ] {
        let rendered =
            ChatTemplate::new(source, &SpecialTokens::default()).and_then(|template| template.render(&[], false));
        let error = rendered.unwrap_err();
        assert!(matches!(error, Error::Template { .. }));
        assert_one_line(error, &[part]);
    }
}

#[test]
fn a_template_without_a_clock_writes_its_own_date_and_one_that_never_ends_is_refused() {
    let dated = "{% if strftime_now is defined %}{{ strftime_now('%Y') }}{% else %}26 Jul 2024{% endif %}";
    let template = ChatTemplate::new(dated, &SpecialTokens::default()).unwrap();
    assert!(template.render(&[], false).unwrap().starts_with("20"));
    assert_eq!(template.without_clock().render(&[], false).unwrap(), "26 Jul 2024");

    let loops = "{% for a in range(9999) %}{% for b in range(9999) %}{{ a }}{% endfor %}{% endfor %}";
    let template = ChatTemplate::new(loops, &SpecialTokens::default()).unwrap();
    assert_one_line(template.render(&[], false).unwrap_err(), &["chat template: ", "fuel"]);
}
