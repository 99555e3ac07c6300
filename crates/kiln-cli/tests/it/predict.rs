//! `predict`: classes of images and of pixels, images that cannot be read, and calls that are refused.

use std::fs;
use std::path::Path;

use serde_json::Value;

use super::support::{done, fixture, json_lines, output, refused, results, segmentation, stderr, stdout};

/// Two classes of plain images that are easily distinguished; each image is of one class. They are in `folder`/photos.
pub(super) fn photos(folder: &Path) {
    for part in ["train", "val"] {
        for (class, colour) in [("blue", [20, 30, 220]), ("red", [220, 30, 20])] {
            let directory = folder.join("photos").join(part).join(class);
            fs::create_dir_all(&directory).unwrap();
            for number in 0..8u32 {
                let pixel = |x, y| image::Rgb([0, 1, 2].map(|i: usize| colour[i] - ((x * 3 + y + number) % 19) as u8));
                image::RgbImage::from_fn(40, 36, pixel).save(directory.join(format!("{number}.png"))).unwrap();
            }
        }
    }
}

fn told(output: &std::process::Output) -> Vec<Value> {
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_classifier_tells_classes_as_its_evaluation_does() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    photos(at);
    let run = ["train", "classify", "--data", "photos", "--out", "run", "--image-size", "32", "--batch-size", "4"];
    done(at, &[&run[..], &["--width", "8", "--epochs", "3"]].concat());
    let accuracy = results(at, &["eval", "classify", "--checkpoint", "run"])["test_accuracy"].as_f64().unwrap();

    let found = json_lines(at, &["predict", "run", "photos/val", "--batch-size", "3"]);
    let files: Vec<&str> = found.iter().map(|line| line["file"].as_str().unwrap()).collect();
    assert_eq!(files.len(), 16);
    assert!(files.is_sorted(), "{files:?}");
    let mut correct = 0;
    for line in &found {
        let classes = line["classes"].as_array().unwrap();
        let sum: f64 = classes.iter().map(|class| class["probability"].as_f64().unwrap()).sum();
        assert!(classes.len() == 2 && (sum - 1.0).abs() < 1e-9, "{line}");
        assert!(classes[0]["probability"].as_f64() >= classes[1]["probability"].as_f64());
        correct += usize::from(line["file"].as_str().unwrap().contains(classes[0]["class"].as_str().unwrap()));
    }
    assert!((correct as f64 / 16.0 - accuracy).abs() < 1e-9, "{correct} of 16, but an accuracy of {accuracy}");

    // The best checkpoint is the newest, or one that is equally good.
    let best = output(at, &["predict", "run", "photos/val/red/1.png", "--json", "--best"]);
    assert_eq!(told(&best)[0]["classes"][0]["class"], "red", "{}", stderr(&best));
    let file = output(at, &["predict", "run/model.safetensors", "photos/val/red/1.png", "--best"]);
    assert!(file.status.code() == Some(2) && stderr(&file).contains("is no run directory"), "{}", stderr(&file));

    // Text: a line for each image, with as many classes as are asked for.
    let text = stdout(at, &["predict", "run", "photos/val/red/1.png", "--top", "1"]);
    assert!(text.starts_with("photos/val/red/1.png: ") && !text.contains(','), "{text}");

    // Unreadable images are named, and the others are reported.
    fs::create_dir(at.join("mixed")).unwrap();
    fs::copy(at.join("photos/val/red/1.png"), at.join("mixed/b.png")).unwrap();
    fs::write(at.join("mixed/a.png"), "no image").unwrap();
    fs::write(at.join("mixed/notes.txt"), "left out").unwrap();
    let mixed = output(at, &["predict", "run", "mixed", "absent.jpg", "--json"]);
    assert_eq!(mixed.status.code(), Some(1));
    let (text, found) = (stderr(&mixed), told(&mixed));
    assert!(
        text.contains("error: 2 of 3 images could not be predicted")
            && text.contains("extension of an image format are skipped: 1"),
        "{text}"
    );
    assert!(found[0]["error"].as_str().unwrap().contains("mixed/a.png"), "{found:?}");
    assert_eq!((found[1]["file"].as_str(), found[2]["file"].as_str()), (Some("mixed/b.png"), Some("absent.jpg")));

    fs::create_dir(at.join("none")).unwrap();
    for (arguments, code, parts) in [
        (&["run", "photos", "--out", "x"][..], 2, &["--out", "train segment"][..]),
        (&["run", "photos", "--top", "0"], 2, &["--top is 0"]),
        (&["run", "photos", "--batch-size", "0"], 2, &["--batch-size is 0"]),
        (&["run", "none"], 2, &["no image in 'none'", ".jpg"]),
        (&["absent", "photos"], 1, &["absent", "no such file"]),
        (&["run"], 2, &["required arguments were not provided"]),
    ] {
        refused(at, &[&["predict"], arguments].concat(), code, parts);
    }
}

#[test]
fn a_segmentation_draws_classes_and_tells_their_shares() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    segmentation(at, &[]);

    let images = fixture("segmentation/test/images");
    let images = images.to_str().unwrap();
    image::GrayImage::new(64, 64).save(at.join("gray.png")).unwrap();
    let predicted = output(at, &["predict", "run", images, "gray.png", "--out", "out", "--json"]);
    let text = stderr(&predicted);
    assert_eq!(predicted.status.code(), Some(1), "{text}");
    assert!(text.contains("'gray.png' has 1 band,") && text.contains("1 of 3 images"), "{text}");
    let found = told(&predicted);
    assert_eq!(found.len(), 3);
    for line in &found[..2] {
        let classes = line["classes"].as_array().unwrap();
        let sum: f64 = classes.iter().map(|class| class["share"].as_f64().unwrap()).sum();
        assert!(sum <= 1.0 + 1e-9 && sum > 0.5, "{line}");
        let picture = image::open(at.join(line["picture"].as_str().unwrap())).unwrap().into_rgb8();
        let file = line["file"].as_str().unwrap();
        let size = kiln_data::ImageFile::open(file).unwrap();
        let [height, width] = [size.header().height as u32, size.header().width as u32];
        assert!(picture.width() > width && picture.height() >= height, "{line}: the image, and a legend beside it");
        let black = picture.enumerate_pixels().filter(|(x, _, pixel)| *x > width && pixel.0 == [0; 3]).count();
        assert!(black > 20, "{line}: {black} pixels of letters");
    }
    // Input files are not replaced.
    refused(at, &["predict", "run", "gray.png", "--out", "."], 2, &["is an image that is read"]);
}

#[test]
fn a_decoder_predicts_no_images() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let data = super::support::text(at, 20_000);
    let run = ["train", "gpt", "--data", data.to_str().unwrap(), "--out", "run", "--context", "8", "--max-steps", "1"];
    assert!(output(at, &run).status.success());
    refused(at, &["predict", "run", "x.png"], 2, &["a decoder of text", "sample run"]);
}
