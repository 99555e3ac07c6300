//! Text batches: windows that stay inside of the text, targets one token later, and a split that shares nothing.

use std::fs;

use burn::data::dataset::Dataset;
use burn::tensor::Device;
use kiln_data::{BatchPlan, TextBatch, TextTokens, TokenFileWriter, Tokenizer, TrainTest, open_text, open_text_cached};
use proptest::prelude::*;
use tempfile::tempdir;

/// A text whose token at every position is the position.
fn counting(tokens: usize, length: usize) -> TextTokens {
    TextTokens::new((0..tokens as u32).collect(), length).unwrap()
}

fn all(text: &TextTokens, seed: Option<u64>, epoch: u64) -> TextBatch {
    TextBatch::load(text, seed, &BatchPlan { epoch, index: 0, ids: (0..text.len()).collect() }).unwrap()
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
    let batch =
        TextBatch::load(&counting(100, 2), None, &BatchPlan { epoch: 0, index: 0, ids: vec![7, 0, 30] }).unwrap();
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

proptest! {
    #[test]
    fn windows_with_a_stride_stay_inside_of_the_text(
        length in 1usize..30, more in 1usize..100, stride in 1usize..60, seed: u64, epoch in 0u64..9,
    ) {
        let tokens = 2 * length + more;
        let text = counting(tokens, length);
        let stride = stride.min(tokens - length);
        let text = text.with_stride(stride).unwrap();
        let batch = all(&text, Some(seed), epoch);
        let offset = batch.tokens[0] as usize;
        prop_assert!(offset < stride && !text.is_empty());
        for (id, window) in batch.tokens.chunks(length + 1).enumerate() {
            let start = (id * stride + offset) as u32;
            prop_assert_eq!(window, &(start..=start + length as u32).collect::<Vec<_>>());
        }
        prop_assert!(*batch.tokens.last().unwrap() < tokens as u32);
        // One window more would not fit at the largest offset.
        prop_assert!(text.len() * stride + stride - 1 + length + 1 > tokens);
    }
}

#[test]
fn strides_without_a_window_are_refused() {
    for stride in [0, 8] {
        let error = counting(10, 3).with_stride(stride).unwrap_err().to_string();
        let expected = "in 10 tokens for a length of 3, expected at least 1, and at most the tokens without one window";
        assert_eq!(error, format!("stride is {stride} {expected}"));
    }
    assert_eq!(counting(10, 3).with_stride(7).unwrap().len(), 1);
}

#[test]
fn windows_of_a_file_are_those_of_the_same_tokens_in_memory() {
    let folder = tempdir().unwrap();
    let tokens: Vec<u32> = (0..1000).map(|at| at * 77 % 70_001).collect();
    let mut writer = TokenFileWriter::create(folder.path().join("tokens"), 70_001).unwrap();
    writer.write(&tokens).unwrap();
    let file = TextTokens::from_file(writer.finish().unwrap(), 9).unwrap();
    let memory = TextTokens::new(tokens, 9).unwrap();
    for epoch in 0..5 {
        assert_eq!(all(&file, Some(3), epoch), all(&memory, Some(3), epoch));
    }
    assert_eq!(file.get(5).unwrap(), memory.get(5).unwrap());
}

fn same(one: &TrainTest<TextTokens>, two: &TrainTest<TextTokens>) -> bool {
    all(&one.train, None, 0) == all(&two.train, None, 0) && all(&one.test, None, 0) == all(&two.test, None, 0)
}

#[test]
fn a_cached_text_is_the_text_and_is_tokenized_once() {
    let folder = tempdir().unwrap();
    let (texts, cache) = (folder.path().join("texts"), folder.path().join("cache/of/tokens"));
    fs::create_dir(&texts).unwrap();
    fs::write(texts.join("a.txt"), "Call me Ishmael. ".repeat(50)).unwrap();
    fs::write(texts.join("b.txt"), "Some years ago — never mind how long précisément ".repeat(50)).unwrap();
    let fixtures = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/bpe");
    let (bytes, bpe) = (Tokenizer::Bytes, Tokenizer::bpe(fixtures).unwrap());
    let cached = |tokenizer, held_out| open_text_cached(&texts, tokenizer, 8, held_out, &cache);
    let files = || {
        let paths = fs::read_dir(&cache).unwrap().map(|entry| entry.unwrap());
        let mut files: Vec<_> = paths.map(|file| (file.path(), file.metadata().unwrap().modified().unwrap())).collect();
        files.sort();
        files
    };
    for tokenizer in [&bytes, &bpe] {
        for held_out in [0.1, 0.25] {
            let plain = open_text(&texts, tokenizer, 8, held_out).unwrap();
            assert!(same(&cached(tokenizer, held_out).unwrap(), &plain));
            let before = files();
            assert!(same(&cached(tokenizer, held_out).unwrap(), &plain));
            assert_eq!(files(), before);
        }
    }
    assert_eq!(files().len(), 8); // for each tokenizer and part held out, train and test

    // A damaged file is written again and renamed: an open map still shows the old file.
    let open = cached(&bytes, 0.1).unwrap();
    for (file, _) in files() {
        fs::remove_file(&file).unwrap();
        fs::write(&file, "nonsense").unwrap();
    }
    assert!(same(&cached(&bytes, 0.1).unwrap(), &open));

    // A text that changed is another.
    fs::write(texts.join("a.txt"), "Call me Ahab. ".repeat(50)).unwrap();
    assert!(same(&cached(&bytes, 0.1).unwrap(), &open_text(&texts, &bytes, 8, 0.1).unwrap()));
    assert!(!same(&cached(&bytes, 0.1).unwrap(), &open));

    fs::write(folder.path().join("file"), "").unwrap();
    let error = open_text_cached(&texts, &bytes, 8, 0.1, folder.path().join("file")).unwrap_err().to_string();
    assert!(error.starts_with("cannot write '"), "{error}");
}
