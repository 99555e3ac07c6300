#![no_main]

use kiln_data::Format;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz::decode(bytes, |format| !matches!(format, Format::Jpeg | Format::Png | Format::Tiff)));
