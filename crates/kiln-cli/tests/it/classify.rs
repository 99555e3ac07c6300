//! Each family of classifiers is trained, stopped, resumed and evaluated; what does not fit a network is refused.

use std::fs;
use std::path::Path;

use super::support::{config, done, fixture, output, refused, stderr, weights};

/// Writes one photograph as two classes, with a part for training and a part for evaluation.
pub(crate) fn photos(folder: &Path) {
    for part in ["train", "val"] {
        for (class, photo) in [("flower", "422.jpg"), ("rock", "baseline-444.jpg")] {
            let class = folder.join("photos").join(part).join(class);
            fs::create_dir_all(&class).unwrap();
            for copy in ["1.jpg", "2.jpg"] {
                fs::copy(fixture("images").join(photo), class.join(copy)).unwrap();
            }
        }
    }
}

#[test]
fn every_family_is_trained_resumed_and_evaluated() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    photos(at);
    for model in ["resnet18", "mobilenet_v2", "mobilenet_v3_large", "shufflenet_v2_x0_5", "vit_tiny"] {
        let run = ["train", "classify", "--model", model, "--data", "photos", "--out", model, "--epochs", "1"];
        let run = [run.as_slice(), &["--image-size", "32", "--batch-size", "2"]].concat();
        let smaller: &[&str] = if model.starts_with("mobilenet") { &["--width", "0.1"] } else { &[] };
        done(at, &[&*run, smaller].concat());
        let settings = config(&at.join(model));
        assert!(settings.contains(&format!("name = \"{model}\"")), "{settings}");
        // It has come to its end: nothing is left to do.
        done(at, &["train", "classify", "--resume", model]);
        let checkpoint = format!("{model}/model.safetensors");
        let evaluated = done(at, &["eval", "classify", "--checkpoint", &checkpoint]);
        assert!(stderr(&evaluated).contains("test_accuracy"), "{}", stderr(&evaluated));
    }
}

#[test]
fn small_files_are_trained_at_their_size_and_gray_ones_as_gray_on_request() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    for (part, count) in [("train", 12), ("val", 4)] {
        for (class, base) in [("dark", 10), ("light", 200)] {
            let directory = at.join("shades").join(part).join(class);
            fs::create_dir_all(&directory).unwrap();
            for number in 0..count {
                let pixel = |x: u32, y: u32| image::Luma([base + ((x + y + number) % 30) as u8]);
                image::GrayImage::from_fn(26, 30, pixel).save(directory.join(format!("{number}.png"))).unwrap();
            }
        }
    }
    let train = ["train", "classify", "--data", "shades", "--batch-size", "64", "--width", "4", "--max-steps", "2"];
    let trained = |out: &str, options: &[&str]| {
        let trained = done(at, &[&train[..], &["--out", out], options].concat());
        let settings: toml::Table = config(&at.join(out)).parse().unwrap();
        (stderr(&trained), settings)
    };
    let (said, settings) = trained("rgb", &[]);
    assert!(said.contains("trained at 24 x 24 pixels") && said.contains("--channels 1 trains them as gray"), "{said}");
    assert!(said.contains("the data set has 24 samples: batches of 24, not of 64"), "{said}");
    let of = |settings: &toml::Table| {
        (
            settings["images"]["size"].as_integer(),
            settings["model"]["channels"].as_integer(),
            settings["model"]["stem"].clone(),
        )
    };
    assert_eq!(of(&settings), (Some(24), Some(3), "cifar".into()));
    let (said, settings) = trained("gray", &["--channels", "gray", "--image-size", "96"]);
    assert!(!said.contains("--channels") && !said.contains("trained at"), "{said}");
    assert_eq!(of(&settings), (Some(96), Some(1), "imagenet".into()));
    // Commands that follow a run keep its number of channels.
    for arguments in [
        &["train", "classify", "--resume", "gray", "--max-steps", "3"][..],
        &["eval", "classify", "--checkpoint", "gray"],
        &["predict", "gray", "shades/val"],
        &["compress", "quantize", "gray", "--out", "integers"],
    ] {
        done(at, arguments);
    }
    let begun = output(at, &[&train[..], &["--init", "gray", "--out", "no"]].concat());
    assert!(stderr(&begun).contains("--channels 1"), "{}", stderr(&begun));
    refused(at, &["train", "classify", "--channels", "3"], 2, &["channels is 3"]); // IDX files of gray images
}

#[test]
fn a_run_of_another_pipeline_is_refused_with_the_command_for_it() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    done(at, &["train", "classify", "--max-steps", "1", "--width", "4", "--out", "run"]);
    for arguments in [
        &["train", "gpt", "--resume", "run"][..],
        &["train", "segment", "--from", "run"],
        &["eval", "gpt", "--checkpoint", "run"],
        &["eval", "segment", "--checkpoint", "run"],
    ] {
        refused(at, arguments, 2, &["is of an image classifier", "train classify"]);
    }
}

#[test]
fn mixed_erased_and_dropped_runs_have_the_same_numbers_however_they_are_taken() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    photos(at);
    let run = |name: &str, options: &[&str]| {
        let run = ["train", "classify", "--model", "vit_tiny", "--data", "photos", "--out", name, "--image-size", "16"];
        let run = [&run, ["--batch-size", "4", "--micro-batch", "2", "--epochs", "3"].as_slice(), options].concat();
        done(at, &run);
        weights(&at.join(name))
    };
    let on = ["--mixup", "0.8", "--cutmix", "1", "--erase", "0.5", "--drop-path", "0.5"];
    let expected = run("on", &on);
    assert!(run("off", &[]) != expected);
    assert!(
        run("recomputed", &[&on, ["--checkpointing", "every:1", "--workers", "1"].as_slice()].concat()) == expected
    );
    let settings = fs::read_to_string(at.join("on").join("config.toml")).unwrap();
    for line in ["mixup = 0.8", "cutmix = 1.0", "erase = 0.5", "drop_path = 0.5"] {
        assert!(settings.contains(line), "{line} in {settings}");
    }
    for option in ["--mixup", "--cutmix", "--erase", "--drop-path"] {
        let parts = [format!("{option} cannot change")];
        refused(at, &["train", "classify", "--resume", "on", option, "0.2"], 2, &[&parts[0]]);
    }
}

#[test]
fn what_does_not_fit_a_network_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    for (options, expected) in [
        (["--model", "alexnet"].as_slice(), ["alexnet", "mobilenet_v2"]),
        (&["--model", "vit_tiny", "--width", "3"], ["--width", "vit_tiny"]),
        (&["--model", "vit_tiny", "--drop-path", "1"], ["drop_path is 1", "[0, 1)"]),
        (&["--model", "vit_tiny", "--stem", "cifar"], ["stem", "patch"]),
        (&["--model", "vit_tiny", "--image-size", "30"], ["30", "a multiple of patch"]),
        (&["--width", "2.5"], ["--width", "2.5"]),
        (&["--model", "mobilenet_v2", "--width", "0"], ["width is 0", "above 0"]),
    ] {
        refused(folder.path(), &[&["train", "classify"], options].concat(), 2, &expected);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "something was written");
    }
}
