//! Token files: what was written is read, whole or in part; what is damaged is an error, never a panic or another tensor.

use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use kiln_data::{BatchPlan, Error, TextBatch, TextTokens, TokenFile, TokenFileWriter};
use proptest::prelude::*;
use tempfile::tempdir;

fn write(path: &Path, vocab: usize, ids: &[u32]) -> TokenFile {
    let mut writer = TokenFileWriter::create(path, vocab).unwrap();
    ids.chunks(7).for_each(|ids| writer.write(ids).unwrap());
    writer.finish().unwrap()
}

fn read(file: &TokenFile) -> Result<Vec<u32>, Error> {
    let mut ids = vec![];
    file.read(0..file.len(), &mut ids).map(|()| ids)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))] // each flushes a file to the disk
    #[test]
    fn ids_are_read_back(
        ids in prop::collection::vec(any::<u32>(), 0..200), vocab in 1usize..1 << 32, from in 0usize..200, to in 0usize..200,
    ) {
        let ids: Vec<u32> = ids.into_iter().map(|id| (id as usize % vocab) as u32).collect();
        let folder = tempdir().unwrap();
        let path = folder.path().join("tokens");
        let file = write(&path, vocab, &ids);
        prop_assert_eq!((file.len(), file.vocab(), file.is_empty()), (ids.len(), vocab, ids.is_empty()));
        file.verify().unwrap();
        prop_assert_eq!(&read(&file).unwrap(), &ids);
        let memory = TokenFile::from_bytes(fs::read(&path).unwrap()).unwrap();
        let (from, to) = (from.min(ids.len()), to.min(ids.len()));
        let mut part = vec![5];
        match memory.read(from..to, &mut part) {
            Ok(()) => prop_assert_eq!(&part[1..], &ids[from..to]),
            Err(_) => prop_assert!(from > to && part == [5]),
        }
        let width = if vocab <= 65_536 { 2 } else { 4 };
        prop_assert_eq!(fs::metadata(&path).unwrap().len(), 48 + (width * ids.len()) as u64);
    }

}

/// The bytes of a file of 20 ids in a vocabulary of 1000.
static SMALL: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let folder = tempdir().unwrap();
    let path = folder.path().join("small");
    write(&path, 1000, &(0..20).map(|at| at * 49).collect::<Vec<_>>());
    fs::read(path).unwrap()
});

proptest! {
    #[test]
    fn changed_bytes_are_an_error_when_opened_or_verified(changes in prop::collection::vec((0usize..88, 1u8..), 1..4)) {
        let mut bytes = SMALL.clone();
        changes.iter().for_each(|(at, change)| bytes[*at] ^= change);
        prop_assume!(bytes != *SMALL);
        if let Ok(file) = TokenFile::from_bytes(bytes) {
            prop_assert!(changes.iter().any(|(at, _)| *at >= 48), "a header that changed was accepted");
            prop_assert!(file.verify().is_err());
            if let Ok(ids) = read(&file) {
                prop_assert!(ids.len() == 20 && ids.iter().all(|id| *id < 1000));
            }
        }
    }

    #[test]
    fn any_bytes_are_an_error_or_a_file(bytes in prop::collection::vec(any::<u8>(), 0..200), as_header: bool) {
        let bytes = if as_header { [&SMALL[..40], &bytes].concat() } else { bytes };
        if let Ok(file) = TokenFile::from_bytes(bytes) {
            let _ = (read(&file), file.verify());
        }
    }
}

#[test]
fn every_truncation_is_an_error() {
    let folder = tempdir().unwrap();
    let (path, whole) = (folder.path().join("cut"), SMALL.clone());
    for length in 0..whole.len() {
        assert!(TokenFile::from_bytes(whole[..length].to_vec()).is_err(), "{length} bytes were accepted");
        fs::write(&path, &whole[..length]).unwrap();
        assert!(TokenFile::open(&path).is_err(), "{length} bytes were accepted");
    }
    assert!(TokenFile::from_bytes([&whole[..], &[0, 0]].concat()).is_err());
    assert!(TokenFile::from_bytes(whole).is_ok());
}

/// The bytes with a header whose checksum is right.
fn signed(mut bytes: Vec<u8>) -> Vec<u8> {
    let checksum = xxhash_rust::xxh3::xxh3_64(&bytes[..40]);
    bytes[40..48].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

#[test]
fn what_is_wrong_is_said() {
    let changed = |at: usize, with: &[u8]| {
        let mut bytes = SMALL.clone();
        bytes[at..at + with.len()].copy_from_slice(with);
        bytes
    };
    let cases = [
        (vec![], "0 bytes, expected a header of 48"),
        (changed(0, b"RIFF"), "it does not begin as a token file (a file of ids alone is opened as such)"),
        (signed(changed(8, &[2, 0, 0, 0])), "version 2, expected 1"),
        (signed(changed(8, &[0, 0, 0, 1])), "its numbers are big-endian, expected little-endian"),
        (changed(24, &[1]), "the header's checksum is wrong"),
        (signed(changed(12, &[3])), "3 bytes per id, expected 2 or 4"),
        (signed(changed(16, &[21])), "40 bytes of ids, expected 21 ids of 2 bytes"),
        (signed(changed(16, &[0xff; 8])), "40 bytes of ids, expected 18446744073709551615 ids of 2 bytes"),
    ];
    for (bytes, reason) in cases {
        let error = TokenFile::from_bytes(bytes).unwrap_err().to_string();
        assert_eq!(error, format!("'(memory)' is damaged or of another format: {reason}"));
    }
    // An id that the vocabulary does not have is met when it is read, and the batch is an error.
    let file = TokenFile::from_bytes(changed(48 + 2 * 13, &1000u16.to_le_bytes())).unwrap();
    assert!(file.read(0..13, &mut vec![]).is_ok());
    let message = "'(memory)' is damaged or of another format: id 1000 at 13, expected below 1000";
    assert_eq!(file.read(13..20, &mut vec![]).unwrap_err().to_string(), message);
    assert_eq!(
        file.verify().unwrap_err().to_string(),
        "'(memory)' is damaged or of another format: the checksum of its ids is wrong"
    );
    let text = TextTokens::from_file(file.clone(), 4).unwrap();
    let load = |id| TextBatch::load(&text, None, &BatchPlan { epoch: 0, index: 0, ids: vec![id] });
    assert!(load(0).is_ok());
    assert_eq!(load(3).unwrap_err().to_string(), message);
    let error = file.read(3..21, &mut vec![]).unwrap_err().to_string();
    assert_eq!(error, "range is 3..21 of 20 ids, expected one within the file");
}

#[test]
fn files_of_16_bit_ids_and_nothing_else_are_read() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("train.bin");
    let ids = [0u16, 1, 50_256, 300, 65_535];
    fs::write(&path, ids.map(u16::to_le_bytes).concat()).unwrap();
    let file = TokenFile::raw_u16(&path, 65_536).unwrap();
    assert_eq!(read(&file).unwrap(), ids.map(u32::from));
    file.verify().unwrap();
    let error = TokenFile::raw_u16(&path, 50_257).unwrap().verify().unwrap_err().to_string();
    assert!(error.ends_with("id 65535 at 4, expected below 50257"), "{error}");
    let error = TokenFile::raw_u16(&path, 65_537).unwrap_err().to_string();
    assert_eq!(error, "vocabulary is 65537, expected at most 65536, in 16 bits");
    assert!(TokenFile::open(&path).is_err());

    fs::write(&path, [1, 2, 3]).unwrap();
    let error = TokenFile::raw_u16(&path, 10).unwrap_err().to_string();
    assert!(error.ends_with("3 bytes, expected 2 for every id"), "{error}");
    fs::write(&path, []).unwrap();
    assert!(TokenFile::raw_u16(&path, 10).unwrap().is_empty() && TokenFile::open(&path).is_err());
    assert!(TokenFile::raw_u16(folder.path().join("absent"), 10).is_err());
}

#[test]
fn nothing_half_written_is_left_or_seen() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("tokens");
    let entries = || fs::read_dir(folder.path()).unwrap().count();
    let mut writer = TokenFileWriter::create(&path, 10).unwrap();
    writer.write(&[1, 2]).unwrap();
    assert_eq!(
        writer.write(&[3, 10]).unwrap_err().to_string(),
        "id is 10 in a vocabulary of 10, expected one below the size of the vocabulary"
    );
    assert!(!path.exists() && entries() == 1);
    drop(writer);
    assert_eq!(entries(), 0);

    // Two writers of one file: the last to finish wins, and an open map still shows its file.
    let first = write(&path, 10, &[1, 2, 3]);
    let mut writers = [1, 2].map(|_| TokenFileWriter::create(&path, 10).unwrap());
    writers[0].write(&[4]).unwrap();
    writers[1].write(&[5, 6]).unwrap();
    let [one, two] = writers;
    let two = two.finish().unwrap();
    let one = one.finish().unwrap();
    assert_eq!((read(&first).unwrap(), read(&two).unwrap(), read(&one).unwrap()), (vec![1, 2, 3], vec![5, 6], vec![4]));
    assert_eq!((entries(), read(&TokenFile::open(&path).unwrap()).unwrap()), (1, vec![4]));

    let error = TokenFileWriter::create(folder.path().join("no/such/folder"), 10).err().unwrap().to_string();
    assert!(error.starts_with("cannot write '"), "{error}");
}
