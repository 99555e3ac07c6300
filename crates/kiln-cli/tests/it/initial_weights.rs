//! Runs that begin with the weights of a file, and runs whose parameters are frozen.

use std::fs;
use std::path::Path;

use super::classify::photos;
use super::support::{config, done, fixture, output, refused, stderr, text};
use serde_json::Value;

/// The values of a tensor of a safetensors file.
fn tensor(path: &Path, name: &str) -> Vec<u8> {
    let bytes = fs::read(path).unwrap();
    let (length, rest) = bytes.split_at(8);
    let length = u64::from_le_bytes(length.try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&rest[..length]).unwrap();
    let offset = |end: usize| header[name]["data_offsets"][end].as_u64().unwrap() as usize;
    rest[length + offset(0)..length + offset(1)].to_vec()
}

#[test]
fn a_network_begins_with_a_file_of_torchvision_and_trains_in_part() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    photos(at);
    fs::copy(fixture("reference/resnet18.safetensors"), at.join("weights.safetensors")).unwrap();
    let run = ["train", "classify", "--data", "photos", "--image-size", "32", "--batch-size", "2", "--width", "8"];
    let begin = ["--stem", "imagenet", "--max-steps", "2", "--init", "weights.safetensors"];
    let begin = [&run[..], &begin].concat();
    let trained = output(at, &[&begin[..], &["--freeze", "conv1,bn1,layer1", "--out", "run"]].concat());
    let said = stderr(&trained);
    assert!(trained.status.success(), "{said}");
    assert!(said.contains("weights.safetensors: 100 of 102 tensors taken") && said.contains("new: fc"), "{said}");
    assert!(!said.contains("num_batches_tracked"), "{said}");
    let list: Value = serde_json::from_str(&fs::read_to_string(at.join("run/init.json")).unwrap()).unwrap();
    assert_eq!(list["new"], serde_json::json!(["fc.bias", "fc.weight"]));
    let config = config(&at.join("run"));
    assert!(config.contains("weights.safetensors") && config.contains("\"layer1\""), "{config}");

    // The frozen layers are those of the file, also after a resume, which does not read it again.
    let same = |run: &str, name: &str| {
        tensor(&at.join(run).join("model.safetensors"), name) == tensor(&at.join("reference.safetensors"), name)
    };
    fs::rename(at.join("weights.safetensors"), at.join("reference.safetensors")).unwrap();
    for more in [&[][..], &["--max-steps", "4"]] {
        done(at, &[&["train", "classify", "--resume", "run"], more].concat());
        for frozen in ["conv1.weight", "bn1.weight", "layer1.1.conv2.weight"] {
            assert!(same("run", frozen), "{frozen}");
        }
        assert!(!same("run", "layer2.0.conv1.weight") && !same("run", "bn1.running_mean"));
    }

    // A run directory works too. All of its weights fit.
    let again = [&run[..], &["--stem", "imagenet", "--max-steps", "1", "--init", "run", "--out", "again"]].concat();
    let again = output(at, &again);
    assert!(again.status.success() && stderr(&again).contains("102 of 102 tensors taken"), "{}", stderr(&again));

    for (options, code, parts) in [
        (&["--freeze", "backbone"][..], 2, &["'backbone'", "conv1, bn1, layer1, layer2, layer3, layer4, fc"][..]),
        (&["--init", "photos"], 1, &["no model.safetensors in it"]),
        (&["--init", "absent.safetensors"], 1, &["absent.safetensors", "no such file"]),
        (&["--init", "reference.safetensors", "--stem", "cifar"], 1, &["'conv1.weight'", "--stem"]),
        (&["--init", "reference.safetensors", "--stem", "imagenet", "--channels", "gray"], 1, &["--channels 3"]),
        (&["--init", "reference.safetensors", "--from", "run"], 2, &["--init", "--from"]),
    ] {
        refused(at, &[&run[..], options, &["--out", "refused"]].concat(), code, parts);
        assert!(!at.join("refused").exists(), "{options:?}");
    }
}

#[test]
fn a_decoder_of_another_context_says_which_option_fits() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let data = text(at, 8000).display().to_string();
    let run = ["train", "gpt", "--data", &data, "--batch-size", "4", "--max-steps", "2"];
    done(at, &[&run[..], &["--context", "16", "--out", "first"]].concat());
    let foreign = fixture("reference/gpt2.safetensors").display().to_string();
    for (context, init, parts) in
        [("8", "first", &["--context 16"][..]), ("24", &foreign, &["wte.weight", "--tokenizer"])]
    {
        refused(at, &[&run[..], &["--context", context, "--init", init]].concat(), 1, parts);
    }
    let replicas = ["--context", "16", "--init", "first", "--replicas", "2", "--out", "second"];
    let second = output(at, &[&run[..], &replicas].concat());
    let said = stderr(&second);
    assert!(second.status.success() && said.matches("tensors taken").count() == 1, "{said}");
}
