//! TFRecord files and the few protocol buffer messages that TensorBoard reads scalars from.
//!
//! This is implemented here because the crates that write such files (tensorboard-rs, tboard) cannot write a session start. TensorBoard
//! needs it to drop the points that a resumed run takes again.
//!
//! Format: `tensorflow/core/lib/io/record_writer.h`, `tensorflow/core/util/event.proto`, `tensorflow/core/framework/summary.proto`.

/// The version that an event file begins with.
const VERSION: &str = "brain.Event:2";

/// An event in the wire format of protocol buffers.
#[derive(Clone, Debug, Default)]
pub(super) struct Event(Vec<u8>);

impl Event {
    /// An event at a time, in seconds since 1970.
    pub(super) fn at(seconds: f64, step: u64) -> Self {
        let mut event = vec![];
        tag(&mut event, 1, FIXED_64);
        event.extend(seconds.to_le_bytes());
        // Zero is the default and is not written.
        if step > 0 {
            tag(&mut event, 2, VARINT);
            varint(&mut event, step);
        }
        Self(event)
    }

    /// Makes it the first event of a file.
    pub(super) fn with_version(mut self) -> Self {
        bytes(&mut self.0, 3, VERSION.as_bytes());
        self
    }

    /// Makes it the start of a session: events recorded for this step and later no longer count.
    pub(super) fn with_session_start(mut self) -> Self {
        let mut session = vec![];
        tag(&mut session, 1, VARINT);
        varint(&mut session, 1);
        bytes(&mut self.0, 7, &session);
        self
    }

    /// Adds named values.
    pub(super) fn with_scalars<'a>(mut self, scalars: impl IntoIterator<Item = (&'a str, f64)>) -> Self {
        let mut summary = vec![];
        for (name, scalar) in scalars {
            let mut value = vec![];
            bytes(&mut value, 1, name.as_bytes());
            tag(&mut value, 2, FIXED_32);
            value.extend((scalar as f32).to_le_bytes());
            bytes(&mut summary, 1, &value);
        }
        bytes(&mut self.0, 5, &summary);
        self
    }

    /// The event as a record of a file: its length and its bytes, each with a checksum.
    pub(super) fn record(&self) -> Vec<u8> {
        let length = (self.0.len() as u64).to_le_bytes();
        let mut record = Vec::with_capacity(self.0.len() + 16);
        record.extend(length);
        record.extend(masked(&length).to_le_bytes());
        record.extend(&self.0);
        record.extend(masked(&self.0).to_le_bytes());
        record
    }
}

const VARINT: u64 = 0;
const FIXED_64: u64 = 1;
const BYTES: u64 = 2;
const FIXED_32: u64 = 5;

fn tag(out: &mut Vec<u8>, field: u64, wire: u64) {
    varint(out, field << 3 | wire);
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn bytes(out: &mut Vec<u8>, field: u64, content: &[u8]) {
    tag(out, field, BYTES);
    varint(out, content.len() as u64);
    out.extend(content);
}

/// CRC-32C, masked as in TFRecord files: the checksum of data that contains checksums would otherwise be unreliable.
fn masked(data: &[u8]) -> u32 {
    crc32c::crc32c(data).rotate_right(15).wrapping_add(0xa282_ead8)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Written by `scripts/check_tensorboard.py record` with the `tensorboard` package: these events through its own writer.
    const RECORDED: &[u8] = include_bytes!("../../tests/fixtures/events.tfevents");

    #[test]
    fn records_are_those_of_tensorboard() {
        let events = [
            Event::at(1_700_000_000.25, 0).with_version(),
            Event::at(1_700_000_001.0, 300).with_session_start(),
            Event::at(1_700_000_002.5, 300).with_scalars([("train/loss", 2.5), ("train/learning_rate", 1e-4)]),
            Event::at(1_700_000_003.5, 70_000).with_scalars([("test/accuracy", 0.8125)]),
        ];
        let written: Vec<u8> = events.iter().flat_map(Event::record).collect();
        assert_eq!(written, RECORDED);
    }

    #[test]
    fn the_checksum_is_that_of_rfc_3720() {
        assert_eq!(crc32c::crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(masked(&[0; 32]), 0x8a91_36aa_u32.rotate_right(15).wrapping_add(0xa282_ead8));
    }
}
