//! `train llm`: the model of a Hugging Face folder, from its configuration to an exported folder.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use kiln_compression::Adapters;
use kiln_models::DecoderConfig;
use serde_json::{Value, json};

use super::support::{config, done, fixture, json_lines, kiln, lines, refused, results, stderr, text, weights};

pub(crate) fn small() -> String {
    fixture("decoders/smollm").to_str().unwrap().to_owned()
}

/// A small run of the fixture's model in `folder`/`name` on some of the book.
pub(crate) fn trained(folder: &Path, name: &str, options: &[&str]) -> String {
    let (model, data) = (small(), text(folder, 40_000));
    let run = ["train", "llm", "--model", &model, "--data", data.to_str().unwrap(), "--out", name, "--context", "32"];
    stderr(&done(folder, &[&run[..], options].concat()))
}

#[test]
fn the_model_of_a_folder_is_trained_resumed_sampled_measured_and_exported() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    fs::write(at.join("constant.toml"), "[schedule]\npeak = 0.001\nwarmup = 0.0\nfloor = 1.0\n").unwrap();
    let constant = ["--config", "constant.toml", "--max-steps"];
    let log = trained(at, "whole", &[&constant[..], &["6"]].concat());
    assert!(log.contains("29 of 29 tensors taken"), "{log}");
    trained(at, "parts", &[&constant[..], &["3"]].concat());
    done(at, &["train", "llm", "--resume", "parts", "--max-steps", "6"]);
    assert!(weights(&at.join("whole")) == weights(&at.join("parts")), "a run that was resumed has other weights");

    // Settings of a run are those of another one, and its checkpoint a beginning.
    let data = text(at, 40_000);
    let other = ["train", "llm", "--config", "whole/config.toml", "--data", data.to_str().unwrap(), "--out", "other"];
    done(at, &other);
    assert!(weights(&at.join("whole")) == weights(&at.join("other")), "the same settings make other weights");
    done(at, &["train", "llm", "--from", "whole", "--max-steps", "2", "--out", "from"]);

    let greedy = ["sample", "whole", "--prompt", "Call me", "--tokens", "8", "--temperature", "0"];
    let lines = json_lines(at, &greedy);
    assert_eq!(lines[0]["tokens"].as_u64(), Some(8), "{lines:?}");
    assert_eq!(json_lines(at, &[&greedy[..], &["--no-cache"]].concat())[0]["text"], lines[0]["text"]);
    let measured = results(at, &["eval", "llm", "--checkpoint", "whole"]);
    assert!(measured["perplexity"].as_f64().is_some_and(|value| value > 1.0), "{measured}");

    done(at, &["export", "whole", "--out", "exported"]);
    let exported = DecoderConfig::from_folder(at.join("exported")).unwrap();
    assert_eq!(exported, DecoderConfig::from_folder(small()).unwrap().with_context(32));
    assert!(at.join("exported/tokenizer.json").is_file());
    // What was exported is a folder to begin with again.
    let again = ["train", "llm", "--model", "exported", "--data", data.to_str().unwrap(), "--max-steps", "1"];
    let log = stderr(&done(at, &[&again[..], &["--out", "again"]].concat()));
    assert!(log.contains("29 of 29 tensors taken"), "{log}");
}

#[test]
fn adapters_are_on_all_layers_of_the_blocks() {
    let folder = tempfile::tempdir().unwrap();
    trained(folder.path(), "run", &["--max-steps", "2", "--lora", "2"]);
    let settings = config(&folder.path().join("run"));
    for layer in ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"] {
        assert!(settings.contains(layer), "{settings}");
    }
}

#[test]
fn adapters_beside_weights_of_four_bits_are_trained_resumed_sampled_and_exported() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    fs::write(at.join("constant.toml"), "[schedule]\npeak = 0.01\nwarmup = 0.0\nfloor = 1.0\n").unwrap();
    for dora in [&[][..], &["--dora"]] {
        let options = [&["--config", "constant.toml", "--lora", "2", "--base-bits", "4"], dora].concat();
        let name = |kind: &str| format!("{kind}{}", dora.len());
        let (whole, parts) = (name("whole"), name("parts"));
        let log = trained(at, &whole, &[&options[..], &["--max-steps", "4"]].concat());
        assert!(log.contains("29 of 29 tensors taken"), "{log}");
        trained(at, &parts, &[&options[..], &["--max-steps", "2"]].concat());
        done(at, &["train", "llm", "--resume", &parts, "--max-steps", "4"]);
        let adapters_of = |run: &str| {
            let folder = format!("adapters of {run}");
            done(at, &["export", run, "--format", "peft", "--out", &folder]);
            Adapters::load(at.join(folder), str::to_owned).unwrap()
        };
        assert!(adapters_of(&whole) == adapters_of(&parts), "a run that was resumed has other adapters");
        // Merged weights would take many times the memory of the codes.
        assert!(!at.join(&whole).join("model.safetensors").exists());
        // A checkpoint has the codes of a layer in place of its weights.
        let checkpoint =
            |run: &str| fs::metadata(at.join(run).join("checkpoints/step-00000004/model.bpk")).unwrap().len();
        let dense = name("dense");
        trained(at, &dense, &[&options[..3], &["2", "--max-steps", "4"], dora].concat());
        let bytes = [checkpoint(&whole), checkpoint(&dense)];
        assert!(bytes[0] + 40_000 < bytes[1], "{bytes:?}");

        let measured = results(at, &["eval", "llm", "--checkpoint", &whole]);
        assert!(measured["perplexity"].as_f64().is_some_and(|value| value > 1.0), "{measured}");
        let greedy = ["sample", &whole, "--prompt", "Call me", "--tokens", "8", "--temperature", "0"];
        assert_eq!(json_lines(at, &greedy)[0]["tokens"].as_u64(), Some(8));
        let (merged, adapters) = (name("merged"), name("adapters"));
        done(at, &["export", &whole, "--out", &merged]);
        assert_eq!(DecoderConfig::from_folder(at.join(&merged)).unwrap().context(), 32);
        done(at, &["export", &whole, "--format", "peft", "--out", &adapters]);
        let words = fs::read_to_string(at.join(&adapters).join("README.md")).unwrap();
        assert!(words.contains("load_in_4bit=True"), "{words}");
    }
    // In 16 bits, where other matrices are stored so, and from there in f32.
    let half = ["--max-steps", "2", "--lora", "2", "--base-bits", "4", "--precision", "bf16"];
    trained(at, "half", &half);
    done(at, &["train", "llm", "--resume", "half", "--max-steps", "3"]);
    let data = text(at, 40_000);
    let from = ["train", "llm", "--from", "half", "--max-steps", "2", "--precision", "f32", "--out", "from"];
    done(at, &[&from[..], &["--data", data.to_str().unwrap()]].concat());

    let (model, data) = (small(), text(at, 40_000));
    let run = ["train", "llm", "--model", &model, "--data", data.to_str().unwrap(), "--out", "run"];
    refused(at, &[&run[..], &["--lora", "2", "--base-bits", "8"]].concat(), 2, &["expected 4"]);
    refused(at, &[&run[..], &["--base-bits", "4"]].concat(), 2, &["required arguments were not provided"]);
    assert!(!at.join("run").exists());
}

#[test]
fn a_folder_is_planned_for_without_its_weights() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    fs::copy(fixture("decoders/llama/config.json"), at.join("config.json")).unwrap();
    let model = at.to_str().unwrap();
    let plan = ["plan", "llm", "--model", model, "--context", "64", "--batch-size", "4", "--memory", "1GiB"];
    let plan = String::from_utf8(done(at, &plan).stdout).unwrap();
    assert!(plan.contains("64 tokens, vocabulary of 97"), "{plan}");
    assert!(plan.contains("train llm --data PATH"), "{plan}");
    let peak = |options: &[&str]| {
        let plan =
            ["plan", "llm", "--model", model, "--context", "64", "--memory", "1GiB", "--precision", "f32", "--json"];
        let plan: Value = serde_json::from_slice(&done(at, &[&plan[..], options].concat()).stdout).unwrap();
        (plan["recommended"]["peak_bytes"].as_u64().unwrap(), plan["command"].to_string())
    };
    let (all, (adapters, train)) = (peak(&[]).0, peak(&["--lora", "2", "--lora-targets", "q_proj,v_proj"]));
    assert!(adapters < all, "{adapters} of {all} bytes");
    assert!(train.contains("--lora") && train.contains("q_proj,v_proj"), "{train}");
    let (coded, train) = peak(&["--lora", "2", "--base-bits", "4"]);
    assert!(coded < peak(&["--lora", "2"]).0, "{coded} of {all} bytes");
    assert!(train.contains("--base-bits"), "{train}");
    // What is in memory adds up to the peak.
    let options = ["--memory", "1GiB", "--lora", "2", "--base-bits", "4", "--bytes"];
    let plan = [&["plan", "llm", "--model", model, "--context", "64"][..], &options].concat();
    let text = String::from_utf8(done(at, &plan).stdout).unwrap();
    assert!(text.contains("In memory at the peak:") && text.contains("  parameters"), "{text}");
    assert!(text.lines().skip(1).all(|line| line.chars().count() <= 80), "{text}"); // the first has the folder
    let plan: Value = serde_json::from_slice(&done(at, &[&plan[..], &["--json"]].concat()).stdout).unwrap();
    let codes = |group: &&Value| {
        group["what"].as_str().is_some_and(|what| what.starts_with("layers.*.mlp.up_proj.four_bits.codes"))
    };
    let found = plan["in_memory"].as_array().unwrap().iter().find(codes).map(|group| group["count"].clone());
    assert_eq!(found, Some(json!(3)), "{plan}");
    let bytes = plan["in_memory"].as_array().unwrap().iter().map(|group| group["bytes"].as_u64().unwrap());
    assert_eq!(Some(bytes.sum()), plan["recommended"]["peak_bytes"].as_u64());
}

#[test]
fn folders_and_options_that_do_not_fit_are_refused_and_nothing_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let (model, data) = (small(), text(at, 40_000));
    let no_tokenizer = fixture("decoders/llama").to_str().unwrap().to_owned();
    // A vocabulary that is larger than the model's.
    let other = at.join("other");
    fs::create_dir(&other).unwrap();
    for file in ["config.json", "model.safetensors"] {
        fs::copy(fixture("decoders/qwen3").join(file), other.join(file)).unwrap();
    }
    fs::copy(fixture("decoders/smollm/tokenizer.json"), other.join("tokenizer.json")).unwrap();
    // A model with a block more than its file has.
    let deeper = at.join("deeper");
    fs::create_dir(&deeper).unwrap();
    for file in ["config.json", "model.safetensors", "tokenizer.json"] {
        fs::copy(fixture("decoders/smollm").join(file), deeper.join(file)).unwrap();
    }
    let config = fs::read_to_string(deeper.join("config.json")).unwrap();
    fs::write(deeper.join("config.json"), config.replace("\"num_hidden_layers\": 3", "\"num_hidden_layers\": 4"))
        .unwrap();
    let run = ["train", "llm", "--data", data.to_str().unwrap(), "--out", "run", "--max-steps", "1", "--model"];
    for (options, code, expected) in [
        (vec!["gpt-3"], 2, "unknown model 'gpt-3', expected one of gpt-tiny"),
        (vec!["gpt-3"], 2, "or the folder of a Hugging Face model"),
        (vec!["."], 1, "config.json': No such file"),
        (vec![&*no_tokenizer], 2, "has no tokenizer: it has neither tokenizer.json nor vocab.json and merges.txt"),
        (vec![other.to_str().unwrap()], 2, "model.vocab is 97, expected at least 600 as in the tokenizer"),
        (vec![deeper.to_str().unwrap()], 1, "9 tensors are missing, the first is 'layers.3.input_layernorm.gamma'"),
        (vec![&*model, "--context", "129"], 2, "--context is 129, expected at most the model's 128"),
        (vec![&*model, "--dropout", "0.1"], 2, "--dropout is an option of a GPT"),
        (vec![&*model, "--tokenizer", "."], 2, "--tokenizer is an option of a GPT"),
    ] {
        refused(at, &[&run[..], &options].concat(), code, &[expected]);
        assert!(!at.join("run").exists(), "{options:?}");
    }
}

/// The fixture's model in a folder of its own, with the chat template of SmolLM2 and its tokens.
fn with_template(at: &Path) -> PathBuf {
    let folder = at.join("model");
    fs::create_dir(&folder).unwrap();
    for file in ["config.json", "model.safetensors", "tokenizer.json"] {
        fs::copy(fixture("decoders/smollm").join(file), folder.join(file)).unwrap();
    }
    let recorded: Value = serde_json::from_slice(&fs::read(fixture("decoders/chats.json")).unwrap()).unwrap();
    let templates = recorded["templates"].as_array().unwrap();
    let smollm = templates.iter().find(|case| case["name"] == "smollm2").unwrap();
    let config = json!({ "chat_template": smollm["template"], "eos_token": { "content": "<|im_end|>" } });
    fs::write(folder.join("tokenizer_config.json"), config.to_string()).unwrap();
    folder
}

/// A file of JSON lines.
fn written(at: &Path, name: &str, records: impl IntoIterator<Item = Value>) -> String {
    let lines: Vec<String> = records.into_iter().map(|record| record.to_string()).collect();
    fs::write(at.join(name), lines.join("\n")).unwrap();
    name.to_owned()
}

fn chat(turns: &[&str]) -> Value {
    let roles = ["user", "assistant"];
    let turns = turns.iter().enumerate().map(|(turn, text)| json!({ "role": roles[turn % 2], "content": text }));
    json!({ "messages": turns.collect::<Vec<_>>() })
}

#[test]
fn a_model_learns_the_answers_of_conversations_and_gives_them() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let model = with_template(at);
    let turns = ["Where is the whale?", "In the sea.", "Which sea?", "The South Sea."];
    let data =
        written(at, "chats.jsonl", (0..40).map(|number| chat(if number % 2 == 0 { &turns } else { &turns[..2] })));
    let run =
        ["train", "llm", "--model", model.to_str().unwrap(), "--data", &data, "--context", "96", "--batch-size", "4"];
    let quick = ["--learning-rate", "0.01", "--max-steps", "90", "--epochs", "20", "--out", "run"];
    done(at, &[&run[..], &quick].concat());

    // Both sides of a conversation on stdin, in the run, in a folder that was exported, and in one with a message alone.
    done(at, &["export", "run", "--out", "exported"]);
    for of in ["run", "exported"] {
        let answers =
            answered(at, &["sample", of, "--chat", "--temperature", "0"], "Where is the whale?\n\nWhich sea?\n");
        assert_eq!(answers, "In the sea.\nThe South Sea.\n", "{of}");
    }
    let one = ["sample", "run", "--chat", "--prompt", "Where is the whale?", "--temperature", "0"];
    let lines = json_lines(at, &one);
    assert_eq!((lines.len(), lines[0]["text"].as_str()), (1, Some("In the sea.")), "{lines:?}");
    // The end of an answer ends a text too.
    let prompt = "<|im_start|>user\nWhere is the whale?<|im_end|>\n<|im_start|>assistant\n";
    let lines = json_lines(at, &["sample", "exported", "--prompt", prompt, "--temperature", "0"]);
    assert!(lines[0]["text"].as_str().is_some_and(|text| text.ends_with("In the sea.")), "{lines:?}");

    // Each record of a file gets what the model writes after it.
    let asked = [chat(&turns), json!({ "prompt": prompt, "number": 7 })];
    let asked = written(at, "asked.jsonl", asked);
    let lines = json_lines(at, &["sample", "run", "--records", &asked, "--temperature", "0"]);
    assert_eq!(lines.len(), 2);
    assert_eq!(lines[0]["generated"], "The South Sea.", "{lines:?}");
    assert!(lines[1]["generated"].as_str().is_some_and(|text| text.ends_with("In the sea.")), "{lines:?}");
    assert_eq!(lines[1]["number"], 7);

    let measured = results(at, &["eval", "llm", "--checkpoint", "run"]);
    assert!(measured["perplexity"].as_f64().is_some_and(|value| value < 1.5), "{measured}");
    assert_eq!(measured["samples"].as_u64(), Some(2), "a twentieth of the records is held out");
}

/// What the program prints when it reads `input`.
fn answered(at: &Path, arguments: &[&str], input: &str) -> String {
    let mut child = kiln(at, arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{arguments:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_step_on_records_is_the_same_in_micro_batches_and_counts_learned_tokens() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let model = with_template(at);
    let prompt = |number: usize| "How many whales? ".repeat(1 + number % 3);
    let completions =
        (0..24).map(|number| json!({ "prompt": prompt(number), "completion": "whale ".repeat(1 + number % 5) }));
    let data = written(at, "records.jsonl", completions);
    let other = written(at, "other.jsonl", [json!({ "text": "Call me Ishmael." }), chat(&["Who?", "Ishmael."])]);
    let run =
        ["train", "llm", "--model", model.to_str().unwrap(), "--data", &data, "--batch-size", "6", "--max-steps", "3"];
    let context = ["--context", "96", "--validation", &other];
    let ways = [
        ("whole", &[][..]),
        ("parts", &["--micro-batch", "1"]),
        ("burn", &["--stock-layers"]),
        ("exact", &["--exact"]),
    ];
    for (name, options) in ways {
        done(at, &[&run[..], &context, &["--out", name], options].concat());
    }
    let losses = |name: &str| {
        let all = lines(&at.join(name).join("metrics.jsonl"));
        all.iter().filter_map(|line| line["loss"].as_f64()).collect::<Vec<_>>()
    };
    let whole = losses("whole");
    assert_eq!(whole.len(), 3);
    for name in ["parts", "burn", "exact"] {
        let close = whole.iter().zip(losses(name)).all(|(one, other)| (one - other).abs() < 1e-4 * one);
        assert!(close, "{name}: {:?}, {whole:?}", losses(name));
    }
    assert_eq!(results(at, &["eval", "llm", "--checkpoint", "whole"])["samples"].as_u64(), Some(2));
    done(at, &["train", "llm", "--resume", "whole", "--max-steps", "4"]);

    // Within a budget, and with a context that leaves records out, which is said once.
    let budget = ["--memory", "400MiB", "--context", "8", "--out", "short"];
    let log = stderr(&done(at, &[&run[..], &budget].concat()));
    assert_eq!(log.matches("left out, which have no token to learn within 8 tokens").count(), 1, "{log}");
    // A GPT without a folder reads records too, byte by byte.
    done(at, &["train", "gpt", "--data", &data, "--context", "64", "--max-steps", "2", "--out", "bytes"]);
}

#[test]
fn records_and_chats_that_do_not_fit_are_refused_and_nothing_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let (model, plain) = (with_template(at), small());
    let good = || chat(&["Where?", "There."]);
    written(at, "good.jsonl", [good(), good(), good()]);
    written(at, "bad.jsonl", [good(), json!({ "texts": "a" })]);
    written(at, "asked.jsonl", [good(), chat(&["Where?"])]);
    written(at, "one.jsonl", [good()]);
    fs::write(at.join("bad.csv"), "question,answer\n1,2\n").unwrap();
    let book = text(at, 40_000).to_str().unwrap().to_owned();
    let of = model.to_str().unwrap();
    for (model, options, code, expected) in [
        (of, &["--data", "bad.jsonl"][..], 1, "bad.jsonl', line 2: it has none of the fields `text`"),
        (of, &["--data", "asked.jsonl"], 1, "asked.jsonl', line 2: conversation: no message has the role `assistant`"),
        (of, &["--data", "bad.csv"], 1, "bad.csv', line 1: the columns are `question`, `answer`"),
        (of, &["--data", "one.jsonl"], 2, "documents is 1, expected at least 2"),
        (of, &["--data", "good.jsonl", "--validation", "bad.jsonl"], 1, "bad.jsonl', line 2"),
        (of, &["--data", "good.jsonl", "--context", "4"], 2, "without a token that is learned"),
        (of, &["--data", &book, "--validation", "good.jsonl"], 2, "expected --data with records beside it"),
        (&*plain, &["--data", "good.jsonl"], 1, "line 1: conversation: the tokenizer has no chat template"),
    ] {
        let run = ["train", "llm", "--model", model, "--out", "run", "--max-steps", "1"];
        refused(at, &[&run[..], options].concat(), code, &[expected]);
        assert!(!at.join("run").exists(), "{options:?}");
    }
    refused(at, &["sample", &plain, "--chat", "--prompt", "Hi"], 2, &["--chat needs a chat template", "has none"]);
    refused(at, &["sample", at.to_str().unwrap(), "--chat"], 1, &["no config.toml"]);
    refused(at, &["sample", &plain, "--records", "bad.jsonl"], 2, &["--records with `messages` needs a chat template"]);
    written(at, "no.jsonl", [json!({ "texts": "a" })]);
    refused(at, &["sample", &plain, "--records", "no.jsonl"], 2, &["'no.jsonl' line 1: it has none of the fields"]);
}
