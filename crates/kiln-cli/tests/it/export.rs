//! `export`: the files of each kind of run, and calls that are refused. `fixtures/reference/check_export.py` runs what the README.md files say.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::support::{done, fixture, output, refused, text, weights};

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap()
}

fn parsed(path: &Path) -> Value {
    serde_json::from_str(&read(path)).unwrap()
}

/// Names and shapes of a safetensors file.
fn tensors(path: &Path) -> serde_json::Map<String, Value> {
    let bytes = fs::read(path).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    serde_json::from_slice(&bytes[8..8 + length]).unwrap()
}

#[test]
fn a_classifier_has_weights_labels_preprocessing_and_lines_of_python() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    done(at, &["train", "classify", "--out", "run", "--max-steps", "1", "--width", "4"]);
    done(at, &["export", "run"]);
    let out = at.join("run/export");
    let exported = tensors(&out.join("model.safetensors"));
    assert_eq!(exported["conv1.weight"]["shape"], json!([4, 1, 7, 7]));
    assert_eq!(fs::read(out.join("model.safetensors")).unwrap(), weights(&at.join("run")));
    assert_eq!(parsed(&out.join("labels.json"))["id2label"]["9"], "Ankle boot");
    let preprocessing = parsed(&out.join("preprocessor_config.json"));
    assert_eq!((&preprocessing["crop_size"]["height"], &preprocessing["image_mean"]), (&json!(28), &json!([0.286])));
    // No library has this width by name.
    assert!(read(&out.join("README.md")).contains("from model import build"));
    assert!(read(&out.join("model.py")).contains("_make_layer(block, 32, 2, stride=2)"));
    assert!(!out.join("config.json").exists());
    // What is there stays.
    refused(at, &["export", "run"], 2, &["run/export' exists"]);
    done(at, &["export", "run/model.safetensors", "--out", "again"]);
    assert_eq!(read(&at.join("again/README.md")), read(&out.join("README.md")));

    // The best checkpoint is not the newest: it is that of another run.
    done(at, &["train", "classify", "--out", "other", "--max-steps", "1", "--width", "4", "--seed", "2"]);
    fs::remove_dir_all(at.join("run/checkpoints/best")).unwrap();
    fs::rename(at.join("other/checkpoints/best"), at.join("run/checkpoints/best")).unwrap();
    done(at, &["export", "run", "--best", "--out", "best"]);
    let model = |run: &str| weights(&at.join(run));
    assert!(model("best") == model("other") && model("best") != model("run"));
    assert_eq!(parsed(&at.join("best/labels.json")), parsed(&out.join("labels.json")));

    for (format, expected) in [("onnx", ["no library writes", "README.md"]), ("gguf", ["'gguf'", "safetensors"])] {
        refused(at, &["export", "run", "--format", format, "--out", "no"], 2, &expected);
    }
    refused(at, &["export", "run/model.safetensors"], 2, &["expected --out"]);
    assert!(!at.join("no").exists());
}

#[test]
fn a_vision_transformer_has_timms_config_and_a_network_with_fewer_channels_its_shapes() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    done(at, &["train", "classify", "--model", "vit_tiny", "--out", "vit", "--max-steps", "1", "--batch-size", "4"]);
    done(at, &["export", "vit", "--out", "timm"]);
    let config = parsed(&at.join("timm/config.json"));
    assert_eq!(config["architecture"], "vit_tiny_patch16_224");
    assert_eq!((&config["model_args"]["img_size"], &config["model_args"]["in_chans"]), (&json!(28), &json!(1)));
    assert_eq!(config["label_names"][0], "T-shirt/top");
    assert!(read(&at.join("timm/README.md")).contains("timm.create_model(\"local-dir:.\", pretrained=True)"));

    done(at, &["train", "classify", "--out", "run", "--max-steps", "1", "--width", "8"]);
    done(at, &["compress", "shrink", "run", "--multiply-adds", "0.5", "--max-steps", "1", "--out", "small"]);
    done(at, &["export", "small"]);
    let (whole, small) =
        (tensors(&at.join("run/model.safetensors")), tensors(&at.join("small/export/model.safetensors")));
    assert!(whole.iter().any(|(name, tensor)| small[name]["shape"] != tensor["shape"]), "channels are gone");
    assert!(read(&at.join("small/export/model.py")).contains("Channels were removed"));
}

#[test]
fn a_decoder_has_transformers_config_and_merged_weights() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let (data, bpe) = (text(at, 40_000), fixture("bpe"));
    let [data, bpe] = [&data, &bpe].map(|path| path.to_str().unwrap());
    let run = ["train", "gpt", "--data", data, "--context", "16", "--max-steps", "2", "--tokenizer", bpe, "--out"];
    done(at, &[&run[..], &["run"]].concat());
    done(at, &[&run[..], &["adapted", "--init", "run", "--lora", "4"]].concat());
    done(at, &["export", "adapted"]);
    let out = at.join("adapted/export");
    let config = parsed(&out.join("config.json"));
    assert_eq!(
        (&config["model_type"], &config["n_positions"], &config["vocab_size"]),
        (&json!("gpt2"), &json!(16), &json!(1024))
    );
    let exported = tensors(&out.join("model.safetensors"));
    assert!(exported.keys().all(|name| name == "__metadata__" || name.starts_with("transformer.")), "{exported:?}");
    assert!(!exported.keys().any(|name| name.contains("lora")), "{exported:?}");
    for file in ["vocab.json", "merges.txt"] {
        assert_eq!(read(&out.join(file)), read(&fixture("bpe").join(file)));
    }
    let greedy = |run: &str| {
        let arguments = ["sample", run, "--prompt", "the sea", "--temperature", "0", "--tokens", "8"];
        output(at, &[&arguments[..], &["--config", "adapted/config.toml"]].concat()).stdout
    };
    assert_eq!(greedy("adapted/export/model.safetensors"), greedy("adapted"), "the merged weights are the model");

    done(at, &["export", "adapted", "--format", "peft", "--out", "peft"]);
    let config = parsed(&at.join("peft/adapter_config.json"));
    assert_eq!((&config["r"], &config["peft_type"]), (&json!(4), &json!("LORA")));
    let adapters = tensors(&at.join("peft/adapter_model.safetensors"));
    assert!(
        adapters.keys().any(|name| name == "base_model.model.transformer.h.0.mlp.c_fc.lora_A.weight"),
        "{adapters:?}"
    );
    assert!(read(&at.join("peft/README.md")).contains("PeftModel.from_pretrained"));
    let refused = output(at, &["export", "run", "--format", "peft", "--out", "none"]);
    let text = String::from_utf8(refused.stderr).unwrap();
    assert!(text.contains("'run' has no adapters, expected a run of `train gpt --lora RANK`"), "{text}");
    assert!(!at.join("none").exists());
}

#[test]
fn a_segmentation_has_the_numbers_of_its_bands() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    fs::write(at.join("small.toml"), "[model]\ndecoder = [8, 8, 8, 8, 4]\n").unwrap();
    let run = ["train", "segment", "--out", "run", "--max-steps", "1", "--batch-size", "1", "--tile", "64"];
    done(
        at,
        &[&run[..], &["--overlap", "0", "--encoder", "resnet18", "--width", "0.0625", "--config", "small.toml"]]
            .concat(),
    );
    done(at, &["export", "run"]);
    let preprocessing = parsed(&at.join("run/export/preprocessor_config.json"));
    let settings: toml::Table = read(&at.join("run/config.toml")).parse().unwrap();
    let mean = settings["tiles"]["normalize"]["mean"].as_array().unwrap();
    let exported = preprocessing["image_mean"].as_array().unwrap();
    assert_eq!(exported.len(), mean.len());
    for (own, mean) in exported.iter().zip(mean) {
        assert!((own.as_f64().unwrap() - mean.as_float().unwrap()).abs() < 1e-6);
    }
    assert!(read(&at.join("run/export/model.py")).contains("UnetDecoder([3] + [4, 4, 8, 16, 32], [8, 8, 8, 8, 4])"));
    assert_eq!(parsed(&at.join("run/export/labels.json"))["id2label"].as_object().unwrap().len(), 5);
}
