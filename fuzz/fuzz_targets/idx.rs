#![no_main]

use kiln_data::ImageSet;

// The bytes are cut in two files, images and labels, at the place that the first byte says; an odd one means gzip.
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Some((first, rest)) = bytes.split_first() else { return };
    let (images, labels) = rest.split_at(rest.len() * usize::from(*first) / 255);
    let end = if first % 2 == 1 { ".gz" } else { "" };
    let Ok(root) = tempfile::tempdir() else { return };
    let [at, label_at] = ["images", "labels"].map(|name| root.path().join(format!("{name}{end}")));
    if std::fs::write(&at, images).and_then(|()| std::fs::write(&label_at, labels)).is_ok()
        && let Ok(set) = ImageSet::idx(&at, &label_at, ["a", "b", "c"])
    {
        (0..set.len().min(3)).for_each(|id| drop(set.load(id).map(|sample| sample.image)));
    }
});
