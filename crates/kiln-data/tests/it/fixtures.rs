//! Files of fixtures/, what is decoded of them, and errors that are one line.

use std::fs;
use std::path::{Path, PathBuf};

use kiln_data::{DecodeOptions, Error, Image, ImageFile, Samples, View};

/// A file below fixtures/.
pub(crate) fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(name)
}

/// The bytes of a file below fixtures/images/.
pub(crate) fn image_bytes(name: &str) -> Vec<u8> {
    fs::read(fixture("images").join(name)).unwrap()
}

/// All of an image, as RGB.
pub(crate) fn decode(bytes: &[u8]) -> Image {
    let file = ImageFile::from_bytes("file", bytes).unwrap();
    let view = View::whole(file.header().height, file.header().width);
    let plan = file.plan(&view, 3, &DecodeOptions::new()).unwrap();
    file.decode(&plan).unwrap()
}

/// As floats, whatever they are.
pub(crate) fn floats(samples: &Samples) -> Vec<f32> {
    match samples {
        Samples::U8(samples) => samples.iter().map(|sample| f32::from(*sample)).collect(),
        Samples::F32(samples) => samples.clone(),
        other => panic!("{other:?}"),
    }
}

pub(crate) fn shown(path: &Path) -> String {
    format!("'{}'", path.display())
}

#[track_caller]
pub(crate) fn assert_one_line(error: Error, parts: &[&str]) {
    let error = error.to_string();
    assert_eq!(error.lines().count(), 1, "{error}");
    parts.iter().for_each(|part| assert!(error.contains(part), "{error:?} lacks {part:?}"));
}
