//! Runs whose parameters are stored in bf16, and the commands that read them.

use std::fs;

use super::support::{done, refused, results, text};

#[test]
fn a_run_with_parameters_in_bf16_is_evaluated_sampled_made_smaller_and_resumed() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let data = text(at, 8000).display().to_string();
    let train = ["train", "gpt", "--data", &data, "--context", "32", "--batch-size", "4", "--max-steps", "3"];
    let bf16 = ["--precision", "bf16", "--parameters", "bf16"];
    let stored = [&train[..], &bf16, &["--out", "stored"]].concat();
    done(at, &stored);
    let dtypes = |run: &str| {
        let bytes = fs::read(at.join(run).join("model.safetensors")).unwrap();
        let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let header: serde_json::Value = serde_json::from_slice(&bytes[8..header]).unwrap();
        let of = |name: &str| header[name]["dtype"].as_str().unwrap().to_owned();
        [of("transformer.h.0.mlp.c_fc.weight"), of("transformer.h.0.ln_1.weight"), of("transformer.wte.weight")]
    };
    assert_eq!(dtypes("stored"), ["BF16", "F32", "F32"]);
    let loss = |checkpoint: &str| results(at, &["eval", "gpt", "--checkpoint", checkpoint])["test_loss"].clone();
    assert!(loss("stored").is_number());
    assert_eq!(loss("stored"), loss("stored/model.safetensors"));
    done(at, &["sample", "stored", "--prompt", "a", "--tokens", "2"]);
    done(at, &["compress", "quantize", "stored", "--data", &data, "--out", "quantized"]);
    done(at, &["compress", "prune", "stored", "--data", &data, "--out", "pruned", "--max-steps", "2"]);
    // In f32 from its weights.
    done(at, &[&train[..], &["--init", "stored/model.safetensors", "--out", "wide"]].concat());
    assert_eq!(dtypes("wide"), ["F32", "F32", "F32"]);
    refused(at, &[&train[..], &["--parameters", "bf16"]].concat(), 2, &["--precision is f32, expected bf16"]);
    refused(at, &["train", "gpt", "--resume", "stored", "--parameters", "f32"], 2, &["--parameters cannot change"]);
}
