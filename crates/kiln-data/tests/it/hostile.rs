//! Input that someone made to do harm, or that is odd: names, archives, tokenizers, and a system without threads.

use std::fs;
use std::io::Write;
use std::process::Command;

use flate2::{Compress, Compression, FlushCompress};
use kiln_data::{
    Error, ImageFile, ImageSet, Loader, LoaderConfig, Tokenizer, open_images, open_masked_images, open_text,
    open_text_cached, write_idx_gz,
};
use tempfile::tempdir;

/// Whether a terminal shows all of it, on one line.
fn is_plain(text: &str) -> bool {
    !text.chars().any(char::is_control)
}

/// 1,024 blocks of 4 MiB of zeros after `header`, as a `.gz` of 4 MB.
fn bomb(header: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3];
    // A flush ends a block at a byte and forgets what was before: the block can be repeated.
    let block = |data: &[u8]| {
        let mut packed = Vec::with_capacity(1 << 16);
        Compress::new(Compression::best(), false).compress_vec(data, &mut packed, FlushCompress::Full).unwrap();
        packed
    };
    bytes.extend(block(header));
    let zeros = block(&vec![0; 4 << 20]);
    (0..1024).for_each(|_| bytes.extend(&zeros));
    bytes.extend([3, 0]); // the last block, empty
    bytes
}

#[test]
fn a_small_archive_is_not_unpacked_into_more_than_a_data_set() {
    let folder = tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    write_idx_gz(at("labels.gz"), &[4096], &[0; 4096]).unwrap();
    let header: Vec<u8> = [0x0803u32, 4096, 1024, 1024].into_iter().flat_map(u32::to_be_bytes).collect();
    let bytes = bomb(&header);
    assert!(bytes.len() < 5 << 20, "{}", bytes.len());
    fs::write(at("images.gz"), &bytes).unwrap();
    let open = || ImageSet::idx(at("images.gz"), at("labels.gz"), ["a"]).unwrap_err().to_string();
    let error = open();
    assert!(error.contains("4294967296 bytes") && error.contains("at most 1073741824 in a .gz"), "{error}");

    // A header that no archive of this length could keep.
    let header: Vec<u8> = [0x0803u32, 4096, 1024, 64].into_iter().flat_map(u32::to_be_bytes).collect();
    fs::write(at("images.gz"), &bomb(&header)[..200_000]).unwrap();
    let error = open();
    assert!(error.contains("fewer bytes than its header's [4096, 1024, 64]"), "{error}");
    // A good one of zeros is as small as deflate can make it.
    write_idx_gz(at("images.gz"), &[4096, 64, 64], &vec![0; 4096 << 12]).unwrap();
    assert_eq!(ImageSet::idx(at("images.gz"), at("labels.gz"), ["a"]).unwrap().len(), 4096);
}

#[test]
#[cfg(unix)]
fn a_class_whose_name_is_several_lines_is_refused() {
    let folder = tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    for name in ["folder/cat\ndog", "folder/bird", "colour/\u{1b}[31mred", "colour/blue"] {
        fs::create_dir_all(at(name)).unwrap();
        for image in ["1.png", "2.png"] {
            fs::write(at(name).join(image), "").unwrap();
        }
    }
    fs::create_dir_all(at("masks/images")).unwrap();
    fs::write(at("masks/classes.txt"), "sea\nla\u{7}nd\n").unwrap();
    fs::create_dir_all(at("idx")).unwrap();
    for half in ["train", "t10k"] {
        write_idx_gz(at("idx").join(format!("{half}-images-idx3-ubyte.gz")), &[2, 1, 1], &[0; 2]).unwrap();
        write_idx_gz(at("idx").join(format!("{half}-labels-idx1-ubyte.gz")), &[2], &[0, 1]).unwrap();
    }
    fs::write(at("idx/classes.txt"), "a\nb\u{9b}2J\n").unwrap();
    for (error, class) in [
        (open_images(at("folder")).unwrap_err(), "'cat\\ndog'"),
        (open_images(at("colour")).unwrap_err(), "'\\u{1b}[31mred'"),
        (open_images(at("idx")).unwrap_err(), "'b\\u{9b}2J'"),
        (open_masked_images(at("masks")).unwrap_err(), "'la\\u{7}nd'"),
    ] {
        assert!(matches!(error, Error::ClassName { .. }), "{error:?}");
        let text = error.to_string();
        assert!(is_plain(&text) && text.contains(class) && text.contains("control characters"), "{text:?}");
    }
}

#[test]
#[cfg(unix)]
fn names_of_files_in_errors_control_no_terminal() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("a\n\u{1b}]0;title\u{7}.png");
    fs::write(&path, "no image").unwrap();
    fs::create_dir(folder.path().join("b\n")).unwrap();
    for error in [
        ImageFile::open(&path).unwrap_err(),
        ImageFile::open(path.with_extension("gone")).unwrap_err(),
        open_images(folder.path().join("b\n")).unwrap_err(),
        open_images(&path).unwrap_err(),
        Tokenizer::bpe(&path).err().unwrap(),
    ] {
        let text = error.to_string();
        assert!(is_plain(&text) && text.contains("\\n"), "{text:?}");
    }
    // The path itself is as it was.
    assert_eq!(ImageFile::open(&path).unwrap_err().path(), Some(path.as_path()));
}

#[test]
fn a_tokenizer_that_numbers_its_tokens_with_gaps_is_refused_when_an_id_is_beyond_them() {
    let folder = tempdir().unwrap();
    let bpe = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/bpe");
    let text = fs::read_to_string(format!("{bpe}/vocab.json")).unwrap();
    let mut vocab: serde_json::Map<String, serde_json::Value> = serde_json::from_str(&text).unwrap();
    let tokens = vocab.len();
    vocab["z"] = 5000.into();
    fs::write(folder.path().join("vocab.json"), serde_json::to_vec(&vocab).unwrap()).unwrap();
    fs::copy(format!("{bpe}/merges.txt"), folder.path().join("merges.txt")).unwrap();
    let tokenizer = Tokenizer::bpe(folder.path()).unwrap();
    assert_eq!(tokenizer.vocab(), tokens);

    let file = folder.path().join("text");
    for (text, is_read) in [("abc abc abc abc abc abc", true), ("abc abc abc abc zzz zzz", false)] {
        fs::write(&file, text).unwrap();
        let opened = [
            open_text(&file, &tokenizer, 1, 0.5).map(drop),
            open_text_cached(&file, &tokenizer, 1, 0.5, folder.path().join("cache")).map(drop),
        ];
        for opened in opened {
            assert_eq!(opened.is_ok(), is_read, "{opened:?}");
            if let Err(error) = opened {
                let error = error.to_string();
                assert!(error.contains(&format!("id 5000 in a vocabulary of {tokens}")), "{error}");
            }
        }
    }
}

#[test]
fn a_file_of_records_is_not_read_as_text() {
    let folder = tempdir().unwrap();
    for name in ["chat.jsonl", "table.CSV", "all.json"] {
        let path = folder.path().join(name);
        fs::write(&path, "{\"text\": \"a line\"}\n".repeat(20)).unwrap();
        let error = open_text(&path, &Tokenizer::Bytes, 8, 0.5).unwrap_err().to_string();
        assert!(error.contains(name) && error.contains("plain text") && error.contains(".txt"), "{error}");
    }
    // A directory says the same, and a text may have any other name.
    let error = open_text(folder.path(), &Tokenizer::Bytes, 8, 0.5).unwrap_err().to_string();
    assert!(error.contains("files ending in .txt"), "{error}");
    let mut text = fs::File::create(folder.path().join("notes.md")).unwrap();
    write!(text, "{}", "a line\n".repeat(20)).unwrap();
    assert!(open_text(folder.path().join("notes.md"), &Tokenizer::Bytes, 8, 0.5).is_ok());
}

/// What the process below does: an epoch of a loader whose threads cannot be started.
fn load_without_threads(is_prefetched: bool) {
    let config = LoaderConfig::new(2).with_workers(3);
    let loader = Loader::new(10, config, |plan| Ok(plan.index)).unwrap();
    let loader = if is_prefetched { loader.with_device_prefetch(1 << 20, Ok) } else { loader };
    let items: Vec<_> = loader.epoch(0, 0).collect();
    assert!(matches!(items[..], [Err(Error::Thread { .. })]), "{items:?}");
    let error = items[0].as_ref().unwrap_err().to_string();
    assert!(error.starts_with("cannot start a thread that loads data: "), "{error}");
}

#[test]
#[cfg(target_os = "linux")]
fn an_epoch_without_threads_is_an_error() {
    const OF_CHILD: &str = "KILN_TEST_WITHOUT_THREADS";
    if let Ok(child) = std::env::var(OF_CHILD) {
        return load_without_threads(child == "prefetch");
    }
    for child in ["workers", "prefetch"] {
        // No system has room for a stack of this size. One test runs on the main thread, which needs none.
        let tests = std::env::current_exe().unwrap();
        let mut command = Command::new(tests);
        command.args(["--exact", "hostile::an_epoch_without_threads_is_an_error", "--test-threads=1", "--nocapture"]);
        let output = command.env(OF_CHILD, child).env("RUST_MIN_STACK", "1152921504606846976").output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && text.contains("1 passed"), "{child}: {text}");
    }
}
