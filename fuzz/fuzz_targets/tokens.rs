#![no_main]

use kiln_data::TokenFile;

// A token file from anywhere: refused, or read as ids that its vocabulary has.
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Ok(file) = TokenFile::from_bytes(bytes.to_vec()) else { return };
    let mut ids = vec![];
    if file.read(0..file.len().min(64), &mut ids).is_ok() {
        assert!(ids.iter().all(|id| (*id as usize) < file.vocab()));
    }
    let _ = file.verify();
});
