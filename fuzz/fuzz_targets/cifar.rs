#![no_main]

use kiln_data::ImageSet;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Ok(root) = tempfile::tempdir() else { return };
    let at = root.path().join("batch.bin");
    if std::fs::write(&at, bytes).is_ok()
        && let Ok(set) = ImageSet::cifar10([&at])
    {
        (0..set.len().min(3)).for_each(|id| drop(set.load(id).map(|sample| sample.image)));
    }
});
