//! Wrong input ends with one clear line, the right exit code, and nothing overwritten.

use std::fs;

use super::support::{done, fixture, output, refused, results, stderr, text};

#[test]
fn data_that_is_not_there_or_not_data() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    for directory in ["empty", "classes/cat", "classes/dog", "broken/cat", "broken/dog", "texts"] {
        fs::create_dir_all(at.join(directory)).unwrap();
    }
    let picture = image::RgbImage::from_pixel(8, 8, image::Rgb([1, 2, 3]));
    for name in ["classes/cat/1.png", "broken/dog/1.png", "broken/dog/2.png", "broken/cat/1.png"] {
        picture.save(at.join(name)).unwrap();
    }
    fs::write(at.join("broken/cat/2.png"), "no image").unwrap();
    fs::write(at.join("latin1.txt"), [0x63, 0x61, 0x66, 0xe9, 0x0a]).unwrap();
    fs::write(at.join("short.txt"), "too short").unwrap();
    fs::write(at.join("chat.json"), "{\"text\": \"a line\"}\n".repeat(99)).unwrap();

    let resnet = |data: &'static str| ["train", "resnet", "--out", "run", "--data", data];
    refused(at, &resnet("short.txt"), 1, &["short.txt", "it is a file, expected a directory per class"]);
    refused(at, &resnet("absent"), 1, &["absent", "No such file"]);
    refused(at, &resnet("empty"), 1, &["empty", "expected a directory per class"]);
    refused(at, &resnet("classes"), 1, &["'dog'", "no image", ".png"]);
    assert!(!at.join("run").exists(), "a run directory was made for nothing");
    let size = ["--image-size", "8", "--batch-size", "1", "--width", "4", "--workers", "1"];
    let broken: Vec<&str> = resnet("broken").into_iter().chain(size).collect();
    refused(at, &broken, 1, &["broken/cat/2.png", "--bad-samples skip:N"]);
    let first = [&["memory", "classify", "--data", "broken"], &size[..]].concat();
    refused(at, &first, 1, &["broken/cat/2.png", "--bad-samples skip:N"]);
    // An image of 1,700 x 2,500 pixels beside a budget of which the loader takes at most a quarter.
    let images = fixture("images");
    let large = ["train", "resnet", "--out", "run", "--data", images.to_str().unwrap(), "--memory", "100MiB"];
    refused(at, &large, 1, &["pixels", "expected at most", "--loader-memory", "--bad-samples"]);

    let gpt = |data: &'static str| ["train", "gpt", "--out", "run-gpt", "--data", data];
    refused(at, &gpt("absent.txt"), 1, &["absent.txt", "No such file"]);
    refused(at, &gpt("texts"), 1, &["texts", "expected files ending in .txt"]);
    refused(at, &gpt("chat.json"), 1, &["chat.json", "it has records, expected plain text", ".txt", ".jsonl"]);
    refused(at, &gpt("latin1.txt"), 1, &["latin1.txt", "UTF-8"]);
    assert!(!stderr(&output(at, &gpt("latin1.txt"))).contains("--bad-samples"), "a text is not left out");
    refused(at, &["load", "broken"], 1, &["broken/cat/2.png", "--bad-samples skip:N"]);
    refused(at, &gpt("short.txt"), 2, &["tokens", "expected more than twice the length"]);
    refused(at, &["train", "gpt", "--tokenizer", "texts"], 1, &["texts/vocab.json"]);
    assert!(!at.join("run-gpt").exists());
}

#[test]
fn settings_that_no_run_can_have() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let resnet = |rest: [&'static str; 2]| [["train", "resnet"], rest].concat();
    refused(at, &resnet(["--batch-size", "0"]), 2, &["batch size is 0", "at least 1"]);
    refused(at, &resnet(["--micro-batch", "65"]), 2, &["--micro-batch is 65", "at most the 64 samples"]);
    refused(at, &resnet(["--micro-batch", "0"]), 2, &["micro-batch is 0", "at least 1"]);
    refused(at, &resnet(["--checkpointing", "all"]), 2, &["'all'", "every:K", "auto:24GiB"]);
    refused(at, &resnet(["--checkpointing", "every:0"]), 2, &["'every:0'"]);
    refused(at, &resnet(["--checkpointing", "auto:1KiB"]), 1, &["1.0 KiB", "the least is", "its largest part is"]);
    refused(at, &resnet(["--precision", "f8"]), 2, &["'f8'", "--precision", "f32, f16 or bf16"]);
    refused(at, &resnet(["--workers", "0"]), 2, &["workers is 0"]);
    refused(at, &resnet(["--model", "resnet19"]), 2, &["resnet19", "resnet18, resnet34, resnet50, resnet101"]);
    refused(at, &resnet(["--stem", "square"]), 2, &["square", "imagenet", "cifar"]);
    refused(at, &resnet(["--width", "0"]), 2, &["width is 0"]);
    refused(at, &resnet(["--image-size", "0"]), 2, &["image height of the input is 0"]);
    refused(at, &resnet(["--learning-rate", "0"]), 2, &["learning rate is 0", "above 0"]);
    refused(at, &resnet(["--clip-norm", "nan"]), 2, &["clip norm is NaN"]);
    refused(at, &resnet(["--label-smoothing", "2"]), 2, &["label smoothing is 2", "[0, 1]"]);
    refused(at, &resnet(["--mixup", "nan"]), 2, &["mixup is NaN", "from 0 (off) to 100"]);
    refused(at, &resnet(["--cutmix", "101"]), 2, &["cutmix is 101", "from 0 (off) to 100"]);
    refused(at, &resnet(["--erase", "2"]), 2, &["erase is 2", "[0, 1]"]);
    refused(at, &resnet(["--drop-path", "0.1"]), 2, &["--drop-path", "resnet18", "expected a vit"]);
    refused(at, &resnet(["--keep", "0"]), 2, &["keep is 0"]);
    refused(at, &resnet(["--epochs", "0"]), 2, &["0 steps"]);
    refused(at, &resnet(["--max-steps", "0"]), 2, &["0 steps"]);
    refused(at, &resnet(["--device", "tpu"]), 2, &["unknown device 'tpu'", "flex", "cuda:N", "vulkan:N"]);
    for (kind, is_here) in [
        ("cuda", cfg!(feature = "cuda")),
        ("rocm", cfg!(feature = "rocm")),
        ("metal", cfg!(feature = "metal")),
        ("vulkan", cfg!(feature = "vulkan")),
        ("webgpu", cfg!(feature = "webgpu")),
    ] {
        // One that no machine has.
        let (name, device) = (format!("'{kind}:8000'"), format!("--device={kind}:8000"));
        match is_here {
            true => {
                let refused = output(at, &["train", "resnet", &device]);
                assert!(!refused.status.success() && stderr(&refused).contains(&name), "{}", stderr(&refused));
            }
            false => refused(at, &["train", "resnet", &device], 2, &[&name, &format!("(--features {kind})")]),
        }
    }
    let gpt = |rest: [&'static str; 2]| [["train", "gpt"], rest].concat();
    refused(at, &gpt(["--model", "gpt9"]), 2, &["gpt9", "gpt-tiny, gpt-mini, gpt2, gpt2-medium, gpt2-large, gpt2-xl"]);
    refused(at, &gpt(["--context", "0"]), 2, &["context is 0"]);
    refused(at, &gpt(["--dropout", "1"]), 2, &["dropout is 1", "[0, 1)"]);
    refused(at, &gpt(["--layers", "0"]), 2, &["layers is 0"]);
    refused(at, &gpt(["--heads", "3"]), 2, &["heads is 3", "a divisor of the width, 128"]);
    refused(at, &gpt(["--warmup", "1.5"]), 2, &["--warmup", "warmup is 1.5", "a whole number of steps"]);
    refused(at, &gpt(["--schedule", "gpipe"]), 2, &["gpipe", "cosine, linear or constant"]);
    let plan = |rest: [&'static str; 2]| [["plan", "gpt", "--memory", "1GiB"].as_slice(), rest.as_slice()].concat();
    refused(at, &plan(["--width", "100"]), 2, &["heads is 12", "a divisor of the width, 100"]);
    refused(at, &plan(["--context", "0"]), 2, &["'0'", "--context"]);
    refused(at, &plan(["--context", "4294967295"]), 2, &["--context", "1000000"]);
    refused(at, &plan(["--stages", "4294967295"]), 2, &["--stages", "64"]);
    let untrained = ["compress", "quantize", "run", "--lr", "0.1"];
    refused(at, &untrained, 2, &["--learning-rate", "--epochs or --max-steps"]);
    refused(at, &["compress", "quantize", "run", "--calibrate", "mse"], 2, &["required"]);
    assert_eq!(fs::read_dir(at).unwrap().count(), 0, "something was written");
}

#[test]
fn a_size_without_a_unit_is_refused_wherever_one_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let unit = ["300 has no unit", "expected e.g.", "300MiB"];
    for arguments in [
        &["train", "classify", "--memory", "300"][..],
        &["train", "gpt", "--loader-memory", "300"],
        &["train", "segment", "--memory", "300"],
        &["train", "gpt", "--checkpointing", "auto:300"],
        &["memory", "gpt", "--memory", "300"],
        &["plan", "gpt", "--memory", "300"],
        &["load", "photos", "--loader-memory", "300"],
        &["compress", "quantize", "run", "--budget", "300"],
        &["compress", "prune", "run", "--memory", "300"],
    ] {
        refused(at, arguments, 2, &unit);
    }
    for setting in ["memory = 300", "memory = '300'", "loader_memory = 300", "checkpointing = 'auto:300'"] {
        fs::write(at.join("size.toml"), format!("[run]\n{setting}\n")).unwrap();
        refused(at, &["train", "gpt", "--config", "size.toml"], 2, &[unit.as_slice(), &["size.toml"]].concat());
    }
    refused(at, &["train", "gpt", "--memory", "much"], 2, &["'much'", "300MiB", "auto"]);
}

#[test]
fn configurations() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    fs::write(at.join("key.toml"), "[run]\nepocks = 3\n").unwrap();
    fs::write(at.join("table.toml"), "[modle]\nwidth = 3\n").unwrap();
    fs::write(at.join("type.toml"), "[run]\nepochs = \"three\"\n").unwrap();
    fs::write(at.join("syntax.toml"), "[run\n").unwrap();
    fs::write(at.join("classes.toml"), "[model]\nclasses = 3\n").unwrap();
    let with = |file: &'static str| ["train", "resnet", "--config", file];
    refused(at, &with("absent.toml"), 1, &["absent.toml", "No such file"]);
    refused(at, &with("key.toml"), 2, &["key.toml", "epocks", "epochs"]);
    refused(at, &with("table.toml"), 2, &["table.toml", "modle", "model"]);
    refused(at, &with("type.toml"), 2, &["type.toml", "three"]);
    refused(at, &with("syntax.toml"), 2, &["syntax.toml", "not TOML"]);
    refused(at, &with("classes.toml"), 2, &["classes is 3", "expected 10"]);
    // The error is in the command line, not in the file.
    fs::write(at.join("fine.toml"), "[run]\nepochs = 1\n").unwrap();
    let refused_option = |option: &'static str, value: &'static str, parts: &[&str]| {
        refused(at, &["train", "resnet", "--config", "fine.toml", option, value], 2, parts);
    };
    refused_option("--bad-samples", "ignore", &["--bad-samples", "ignore", "fail, skip:N"]);
    refused_option("--stem", "square", &["--stem", "square"]);
    fs::remove_file(at.join("fine.toml")).unwrap();
    assert_eq!(fs::read_dir(at).unwrap().count(), 5, "something was written");
}

#[test]
fn runs_and_checkpoints() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let data = text(at, 8000);
    let data = data.to_str().unwrap();
    let run = ["train", "gpt", "--data", data, "--max-steps", "2", "--context", "16", "--out", "run"];
    done(at, &run);

    // Nothing is overwritten, and a directory that cannot be resumed is reported.
    refused(at, &run, 2, &["'run'", "not an empty directory", "--resume"]);
    refused(at, &["train", "gpt", "--resume", "absent"], 1, &["'absent'", "no run directory"]);
    refused(at, &["train", "gpt", "--resume", "run", "--seed", "4"], 2, &["--seed"]);
    refused(at, &["train", "gpt", "--resume", "run", "--context", "8"], 2, &["--context"]);
    refused(at, &["train", "gpt", "--resume", "run", "--out", "other"], 2, &["--out"]);
    refused(at, &["train", "resnet", "--resume", "run"], 2, &["run/config.toml"]);

    // One process at a time.
    let lock = fs::File::open(at.join("run/lock")).unwrap();
    lock.lock().unwrap();
    refused(at, &["train", "gpt", "--resume", "run"], 1, &["another process", "'run'"]);
    drop(lock);

    // A run whose data was named in a file, relative to where it began, is evaluated from another directory.
    let elsewhere = tempfile::tempdir().unwrap();
    fs::write(at.join("data.toml"), "[run]\ndata = \"text.txt\"\n").unwrap();
    let named = ["train", "gpt", "--config", "data.toml", "--max-steps", "1", "--context", "16", "--out", "named"];
    done(at, &named);
    let named = at.join("named");
    done(elsewhere.path(), &["eval", "gpt", "--checkpoint", named.to_str().unwrap()]);

    // Other data than the run began with, from another directory.
    fs::write(data, fs::read_to_string(data).unwrap().repeat(2)).unwrap();
    let run_path = at.join("run");
    refused(elsewhere.path(), &["train", "gpt", "--resume", run_path.to_str().unwrap()], 1, &["the data has changed"]);
    text(at, 8000);
    done(elsewhere.path(), &["train", "gpt", "--resume", run_path.to_str().unwrap()]);

    // The run's own checkpoint, its directory, and its safetensors file all evaluate to the same.
    let figure = |checkpoint: &str| results(at, &["eval", "gpt", "--checkpoint", checkpoint])["bits_per_byte"].clone();
    let expected = figure("run");
    assert_eq!(figure("run/checkpoints/step-00000002"), expected);
    assert_eq!(figure("run/model.safetensors"), expected);
    // The kind of the model is that of the run.
    assert_eq!(results(at, &["eval", "run"])["bits_per_byte"], expected);
    refused(at, &["eval", "absent"], 1, &["absent", "no such file"]);
    let quiet = ["eval", "-q", "gpt", "--checkpoint", "run"];
    assert_eq!(results(at, &quiet)["bits_per_byte"], expected);
    refused(at, &["eval", "run", "gpt", "--checkpoint", "run"], 2, &["before all options"]);
    refused(at, &["eval", "gtp", "--checkpoint", "run"], 2, &["'gtp' is no kind of model"]);
    refused(at, &["eval", "--json"], 2, &["no run is named"]);

    // Foreign and damaged checkpoints.
    fs::write(at.join("text.safetensors"), "no checkpoint").unwrap();
    let eval = |file: &'static str| ["eval", "gpt", "--config", "run/config.toml", "--checkpoint", file];
    refused(at, &eval("absent"), 1, &["absent", "no such file"]);
    refused(at, &eval("text.safetensors"), 1, &["text.safetensors"]);
    let foreign = fixture("reference/resnet18.safetensors");
    let foreign = foreign.to_str().unwrap();
    let arguments = ["eval", "gpt", "--config", "run/config.toml", "--checkpoint", foreign];
    refused(at, &arguments, 1, &["resnet18.safetensors", "missing"]);
    let weights = at.join("run/checkpoints/step-00000002/model.bpk");
    let mut bytes = fs::read(&weights).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&weights, bytes).unwrap();
    refused(at, &["eval", "gpt", "--checkpoint", "run/checkpoints/step-00000002"], 1, &["model.bpk is damaged"]);
    refused(at, &["train", "gpt", "--resume", "run"], 1, &["step-00000002", "model.bpk is damaged"]);
    fs::write(at.join("alone.safetensors"), "").unwrap();
    refused(at, &["eval", "gpt", "--checkpoint", "alone.safetensors"], 1, &["--config"]);
    refused(at, &["fetch", "sotu", "--out", "run"], 2, &["'run' exists"]);
}
