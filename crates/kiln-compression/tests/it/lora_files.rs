//! The files of adapters: those of peft, damaged ones, and saves that are interrupted.

use std::path::Path;

use burn::tensor::Device;
use kiln_compression::{Adapters, Error};

use crate::lora::{adapters, base, fixture, load, save, tensors};

#[test]
fn saved_files_have_the_tensors_of_peft() {
    for kind in ["lora", "dora"] {
        let directory = tempfile::tempdir().unwrap();
        let attached = adapters(kind).attach_to(base(true, &Device::flex())).unwrap();
        let taken = Adapters::of(&attached).unwrap();
        assert_eq!(taken, adapters(kind));
        save(&taken, directory.path()).unwrap();
        let names = ["adapter_config.json", "adapter_model.safetensors"];
        let mut files: Vec<_> = std::fs::read_dir(directory.path()).unwrap().map(|f| f.unwrap().file_name()).collect();
        files.sort();
        assert_eq!(files, names);
        assert_eq!(tensors(directory.path().join(names[1])), tensors(fixture(kind).join(names[1])));
        let config = |directory: &Path| -> serde_json::Value {
            serde_json::from_slice(&std::fs::read(directory.join(names[0])).unwrap()).unwrap()
        };
        let (ours, theirs) = (config(directory.path()), config(&fixture(kind)));
        for key in ["peft_type", "r", "use_dora", "use_rslora", "fan_in_fan_out", "bias", "inference_mode"] {
            assert_eq!(ours[key], theirs[key], "{key}");
        }
        assert_eq!(ours["lora_alpha"].as_f64(), theirs["lora_alpha"].as_f64());
        assert_eq!(load(directory.path()), Ok(taken));
    }
}

#[test]
fn damaged_files_are_errors() {
    let directory = tempfile::tempdir().unwrap();
    save(&adapters("dora"), directory.path()).unwrap();
    let weights = directory.path().join("adapter_model.safetensors");
    let config = directory.path().join("adapter_config.json");
    let (whole, text) = (std::fs::read(&weights).unwrap(), std::fs::read_to_string(&config).unwrap());
    let refused = || assert!(matches!(load(directory.path()), Err(Error::Load { .. })), "{:?}", load(directory.path()));
    for length in (0..whole.len()).step_by(97) {
        std::fs::write(&weights, &whole[..length]).unwrap();
        refused();
    }
    // Names without which the rest is read as before: those of the checksum and of the format.
    let harmless: Vec<usize> = [&b"\"crc32\""[..], b"\"format\":\"pt\""]
        .into_iter()
        .flat_map(|name| {
            let at = whole.windows(name.len()).position(|bytes| bytes == name).unwrap();
            at..at + name.len()
        })
        .collect();
    for at in (0..whole.len()).filter(|at| *at < 1000 || at % 13 == 0) {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x11;
        std::fs::write(&weights, &bytes).unwrap();
        match load(directory.path()) {
            Ok(loaded) => assert!(loaded == adapters("dora") && harmless.contains(&at), "{at}"),
            Err(error) => assert!(matches!(error, Error::Load { .. })),
        }
    }
    std::fs::write(&weights, &whole).unwrap();
    for (from, to) in [
        ("\"r\": 4", "\"r\": 8"),
        ("\"r\": 4", "\"r\": 0"),
        ("\"lora_alpha\": 6.0", "\"lora_alpha\": 7.0"),
        ("\"use_dora\": true", "\"use_dora\": false"),
        ("\"LORA\"", "\"IA3\""),
        ("\"bias\": \"none\"", "\"bias\": \"all\""),
        ("\"bias\"", "\"rank_pattern\": {\"c_fc\": 2}, \"bias\""),
        ("}", ""),
    ] {
        assert!(text.contains(from), "{from}");
        std::fs::write(&config, text.replace(from, to)).unwrap();
        refused();
    }
    std::fs::remove_file(&config).unwrap();
    refused();
}

#[test]
fn files_of_other_adapters_are_errors() {
    let directory = tempfile::tempdir().unwrap();
    let weights = directory.path().join("adapter_model.safetensors");
    save(&adapters("lora"), directory.path()).unwrap();
    let name = |part: &str| format!("base_model.model.transformer.h.0.attn.c_attn.{part}");
    let write = |entries: &[(&str, [usize; 2])]| {
        let bytes = vec![0u8; 4096];
        let views = entries.iter().map(|(part, shape)| {
            let size = 4 * shape[0] * shape[1];
            let view = safetensors::tensor::TensorView::new(safetensors::Dtype::F32, shape.to_vec(), &bytes[..size]);
            (name(part), view.unwrap())
        });
        std::fs::write(&weights, safetensors::serialize(views, None).unwrap()).unwrap();
    };
    write(&[("lora_A.weight", [4, 16]), ("lora_B.weight", [48, 4])]);
    assert_eq!(load(directory.path()).unwrap().iter().count(), 1);
    for entries in [
        &[("lora_A.weight", [4, 16])][..],
        &[("lora_B.weight", [48, 4])],
        &[("lora_A.weight", [4, 16]), ("lora_B.weight", [48, 3])],
        &[("lora_A.weight", [3, 16]), ("lora_B.weight", [48, 4])],
        &[("lora_A.weight", [4, 16]), ("lora_B.weight", [48, 4]), ("bias", [1, 48])],
        &[("lora_embedding_A", [4, 16]), ("lora_embedding_B", [48, 4])],
        &[],
    ] {
        write(entries);
        assert!(matches!(load(directory.path()), Err(Error::Load { .. })), "{entries:?}");
    }
}

/// The state of a folder is that of a save that ended after the weights were replaced and before the configuration was.
#[test]
fn the_weights_decide_where_a_save_ends_between_its_two_files() {
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("adapter_config.json");
    for [old, new] in [["lora", "dora"], ["dora", "lora"], ["lora", "lora"]] {
        save(&adapters(old), directory.path()).unwrap();
        let replaced = std::fs::read(&config).unwrap();
        save(&adapters(new), directory.path()).unwrap();
        std::fs::write(&config, replaced).unwrap();
        assert_eq!(load(directory.path()), Ok(adapters(new)), "{new} over {old}");
        // Another save ends there, too.
        save(&adapters(old), directory.path()).unwrap();
        assert_eq!(load(directory.path()), Ok(adapters(old)), "{old} over an interrupted {new}");
    }
}
