//! The samples of a raster: the types that files store, and the two that are read.

use ::tiff::tags::SampleFormat;

use super::source::reason::Reason;

/// The type of a sample in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the names say it all")]
pub enum SampleType {
    U8,
    U16,
    U32,
    U64,
    I8,
    I16,
    I32,
    I64,
    F16,
    F32,
    F64,
}

/// Samples of 8 bits, or as floats.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Samples {
    /// Samples of a file of [`SampleType::U8`].
    U8(Vec<u8>),
    /// Samples of any other type, not scaled; integers keep their 24 leading bits.
    F32(Vec<f32>),
}

/// The type of a TIFF's samples.
pub(super) fn sample_type(format: SampleFormat, bits: usize) -> Result<SampleType, Reason> {
    Ok(match (format, bits) {
        (SampleFormat::Uint, 1 | 2 | 4 | 8) => SampleType::U8,
        (SampleFormat::Uint, 16) => SampleType::U16,
        (SampleFormat::Uint, 32) => SampleType::U32,
        (SampleFormat::Uint, 64) => SampleType::U64,
        (SampleFormat::Int, 8) => SampleType::I8,
        (SampleFormat::Int, 16) => SampleType::I16,
        (SampleFormat::Int, 32) => SampleType::I32,
        (SampleFormat::Int, 64) => SampleType::I64,
        (SampleFormat::IEEEFP, 16) => SampleType::F16,
        (SampleFormat::IEEEFP, 32) => SampleType::F32,
        (SampleFormat::IEEEFP, 64) => SampleType::F64,
        _ => {
            return Err(Reason::Unsupported(format!(
                "{format:?} samples of {bits} bits, expected integers or floats of 8 to 64"
            )));
        }
    })
}

/// Samples in the machine's byte order to floats.
pub(super) fn to_f32(kind: SampleType, bytes: &[u8], out: &mut [f32]) {
    fn each<const N: usize>(bytes: &[u8], out: &mut [f32], value: impl Fn([u8; N]) -> f32) {
        out.iter_mut().zip(bytes.as_chunks::<N>().0).for_each(|(out, bytes)| *out = value(*bytes));
    }
    match kind {
        SampleType::U8 => each(bytes, out, |[byte]| f32::from(byte)),
        SampleType::I8 => each(bytes, out, |bytes| f32::from(i8::from_ne_bytes(bytes))),
        SampleType::U16 => each(bytes, out, |bytes| f32::from(u16::from_ne_bytes(bytes))),
        SampleType::I16 => each(bytes, out, |bytes| f32::from(i16::from_ne_bytes(bytes))),
        SampleType::U32 => each(bytes, out, |bytes| u32::from_ne_bytes(bytes) as f32),
        SampleType::I32 => each(bytes, out, |bytes| i32::from_ne_bytes(bytes) as f32),
        SampleType::U64 => each(bytes, out, |bytes| u64::from_ne_bytes(bytes) as f32),
        SampleType::I64 => each(bytes, out, |bytes| i64::from_ne_bytes(bytes) as f32),
        SampleType::F16 => each(bytes, out, |bytes| half::f16::from_ne_bytes(bytes).to_f32()),
        SampleType::F32 => each(bytes, out, f32::from_ne_bytes),
        SampleType::F64 => each(bytes, out, |bytes| f64::from_ne_bytes(bytes) as f32),
    }
}
