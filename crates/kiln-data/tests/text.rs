//! Text batches: windows that stay inside of the text, targets one token later, and a split that shares nothing.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;

use burn::data::dataset::Dataset;
use burn::tensor::Device;
use kiln_data::{BatchPlan, TextBatch, TextTokens, Tokenizer, open_text};
use proptest::prelude::*;
use tempfile::tempdir;

/// A text whose token at every position is the position.
fn counting(tokens: usize, length: usize) -> TextTokens {
    TextTokens::new((0..tokens as u32).collect(), length).unwrap()
}

fn all(text: &TextTokens, seed: Option<u64>, epoch: u64) -> TextBatch {
    TextBatch::load(text, seed, &BatchPlan { epoch, index: 0, ids: (0..text.len()).collect() })
}

/// The text behind `tokens`, which were made with a length of 1 and a token per byte.
fn read_back(tokens: &TextTokens) -> Vec<u8> {
    let windows = (0..tokens.len()).map(|id| tokens.get(id).unwrap());
    windows.enumerate().flat_map(|(id, ids)| ids[id.min(1)..].to_vec()).map(|id| id as u8).collect()
}

proptest! {
    #[test]
    fn windows_follow_each_other_inside_of_the_text_at_every_offset(
        length in 1usize..50, more in 1usize..200, seed: u64, epoch: u64,
    ) {
        let tokens = 2 * length + more;
        let text = counting(tokens, length);
        for (seed, epoch) in [(None, epoch), (Some(seed), epoch), (Some(seed), 0)] {
            let batch = all(&text, seed, epoch);
            prop_assert_eq!(batch.shape, [text.len(), length + 1]);
            let offset = batch.tokens[0] as usize;
            prop_assert!(offset < length && (seed.is_some() || offset == 0));
            let expected = (0..text.len()).flat_map(|id| id * length + offset..=(id + 1) * length + offset);
            prop_assert_eq!(batch.tokens.iter().map(|token| *token as usize).collect::<Vec<_>>(), expected.collect::<Vec<_>>());
            prop_assert!(*batch.tokens.last().unwrap() < tokens as u32);
        }
        // One window more would not fit at the largest offset.
        prop_assert!((text.len() + 1) * length + length > tokens);
    }

    #[test]
    fn a_split_shares_no_text_and_cuts_no_character(text in "[a-zé日🐋\n]{24,80}", held_out in 0.3f64..0.7) {
        let folder = tempdir().unwrap();
        let path = folder.path().join("text");
        fs::write(&path, &text).unwrap();
        let halves = open_text(&path, &Tokenizer::Bytes, 1, held_out).unwrap();
        let train = String::from_utf8(read_back(&halves.train)).unwrap();
        let test = String::from_utf8(read_back(&halves.test)).unwrap();
        prop_assert_eq!(format!("{train}{test}"), &*text);
        let wanted = text.len() as f64 * (1.0 - held_out);
        prop_assert!((0.0..4.0).contains(&(wanted.floor() - train.len() as f64)), "{} for {wanted}", train.len());
    }
}

#[test]
fn targets_are_the_inputs_one_token_later() {
    let (inputs_bt, targets_bt) = all(&counting(10, 3), None, 0).to_device(&Device::flex());
    assert_eq!((inputs_bt.dims(), targets_bt.dims()), ([2, 3], [2, 3]));
    let host = |ids: burn::tensor::Tensor<2, burn::tensor::Int>| ids.into_data().iter::<i64>().collect::<Vec<_>>();
    assert_eq!(host(inputs_bt), [0, 1, 2, 3, 4, 5]);
    assert_eq!(host(targets_bt), [1, 2, 3, 4, 5, 6]);
}

#[test]
fn a_batch_holds_the_windows_of_its_plan_in_the_plans_order() {
    let batch = TextBatch::load(&counting(100, 2), None, &BatchPlan { epoch: 0, index: 0, ids: vec![7, 0, 30] });
    assert_eq!(batch.tokens, [14, 15, 16, 0, 1, 2, 60, 61, 62]);
    assert_eq!((batch.ids.as_slice(), batch.len(), batch.is_empty()), (&[7, 0, 30][..], 3, false));
}

#[test]
fn every_epoch_has_an_offset_of_its_own_and_none_without_a_seed() {
    let text = counting(40, 5);
    let offsets = |seed| (0..60).map(|epoch| all(&text, seed, epoch).tokens[0]).collect::<Vec<_>>();
    assert!((0..5).all(|offset| offsets(Some(1)).contains(&offset)), "{:?}", offsets(Some(1)));
    assert_eq!(offsets(Some(1)), offsets(Some(1)));
    assert_ne!(offsets(Some(1)), offsets(Some(2)));
    assert_eq!(offsets(None), [0; 60]);
}

#[test]
fn a_directory_is_its_txt_files_in_the_order_of_their_names() {
    let folder = tempdir().unwrap();
    for (name, text) in [("b.txt", "second é"), ("a.txt", "first. "), ("notes.md", "not this"), ("c.txt", "third")] {
        fs::write(folder.path().join(name), text).unwrap();
    }
    fs::create_dir(folder.path().join("directory.txt")).unwrap();
    let halves = open_text(folder.path(), &Tokenizer::Bytes, 1, 0.4).unwrap();
    let text = [read_back(&halves.train), read_back(&halves.test)].concat();
    assert_eq!(String::from_utf8(text).unwrap(), "first. second éthird");
}

#[test]
fn what_is_no_text_is_refused_in_one_line() {
    let folder = tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    for directory in ["empty", "mixed"] {
        fs::create_dir(at(directory)).unwrap();
    }
    fs::write(at("text"), "abcdefghij").unwrap();
    fs::write(at("latin1"), b"caf\xe9 au lait").unwrap();
    fs::write(at("mixed/a.txt"), "good").unwrap();
    fs::write(at("mixed/b.txt"), b"\xff").unwrap();
    let cases = [
        ("absent", 1, 0.5, "cannot read '{}/absent': "),
        ("empty", 1, 0.5, "no data set in '{}/empty': expected files ending in .txt"),
        ("latin1", 1, 0.5, "'{}/latin1' is damaged or of another format: not UTF-8: invalid utf-8 sequence"),
        ("mixed", 1, 0.5, "'{}/mixed/b.txt' is damaged or of another format: not UTF-8: "),
        ("text", 1, 0.0, "held out is 0, expected a fraction between 0 and 1"),
        ("text", 1, 1.0, "held out is 1, expected a fraction between 0 and 1"),
        ("text", 1, f64::NAN, "held out is NaN, expected a fraction between 0 and 1"),
        ("text", 0, 0.5, "length is 0, expected at least 1"),
        ("text", 3, 0.5, "text is 5 tokens for a length of 3, expected more than twice the length"),
        ("text", 2, 0.1, "text is 1 tokens for a length of 2, expected more than twice the length"),
    ];
    for (name, length, held_out, message) in cases {
        let error = open_text(at(name), &Tokenizer::Bytes, length, held_out).unwrap_err().to_string();
        let message = message.replace("{}", &folder.path().display().to_string());
        assert!(error.starts_with(&message) && error.lines().count() == 1, "{error:?}, expected {message:?}");
    }
    assert_eq!(TextTokens::new(vec![0; 7], 3).unwrap().len(), 1);
}
