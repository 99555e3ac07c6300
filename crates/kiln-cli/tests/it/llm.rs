//! `train llm`: the model of a Hugging Face folder, from its configuration to an exported folder.

use std::fs;
use std::path::Path;

use kiln_models::DecoderConfig;

use super::support::{config, done, fixture, json_lines, refused, results, stderr, text, weights};

fn small() -> String {
    fixture("decoders/smollm").to_str().unwrap().to_owned()
}

/// A small run of the fixture's model in `folder`/`name` on some of the book.
fn trained(folder: &Path, name: &str, options: &[&str]) -> String {
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
fn a_folder_is_planned_for_without_its_weights() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    fs::copy(fixture("decoders/llama/config.json"), at.join("config.json")).unwrap();
    let model = at.to_str().unwrap();
    let plan = ["plan", "llm", "--model", model, "--context", "64", "--batch-size", "4", "--memory", "1GiB"];
    let plan = String::from_utf8(done(at, &plan).stdout).unwrap();
    assert!(plan.contains("64 tokens, vocabulary of 97"), "{plan}");
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
