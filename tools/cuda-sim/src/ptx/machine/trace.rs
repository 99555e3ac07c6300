//! The device memory that blocks touch, noted for each buffer of a launch, while their stores go nowhere.

use crate::ptx::Traffic;

/// What an operation does with the bytes that it locates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Touch {
    Read,
    Write,
    /// Reads and writes back.
    Update,
}

/// Bytes that blocks touched in one buffer.
#[derive(Debug, Clone, Copy, Default)]
struct Extent {
    /// The lowest address, and the first one behind the highest.
    range: Option<(u64, u64)>,
    /// Bytes that the present block moved.
    here: u64,
    /// The most that one block moved.
    most: u64,
}

impl Extent {
    fn add(&mut self, address: u64, bytes: u64, fresh: bool) {
        let (first, end) = self.range.unwrap_or((address, address));
        self.range = Some((first.min(address), end.max(address + bytes)));
        self.here += if fresh { bytes } else { 0 };
    }

    /// Bytes that `blocks` blocks move at most once each: no more than the range holds.
    fn bytes(&self, blocks: u64) -> u64 {
        let range = self.range.map_or(0, |(first, end)| end - first);
        range.min(self.most.max(self.here).saturating_mul(blocks))
    }
}

/// A buffer among the parameters of a launch, up to the next one or to the end of its allocation.
#[derive(Debug, Clone, Copy)]
struct Buffer {
    start: u64,
    end: u64,
    read: Extent,
    written: Extent,
}

/// What blocks of one launch touched.
#[derive(Debug)]
pub(crate) struct Trace {
    /// Sorted by address.
    buffers: Vec<Buffer>,
    /// Takes what stores and atomics write, and stands for what loads read outside of every allocation.
    sink: Vec<u64>,
    touch: Touch,
    bytes: u64,
    /// The address that the lane before had: lanes that share one move its bytes once.
    before: Option<u64>,
}

impl Trace {
    /// A trace of the buffers that begin at these addresses, each with the end of its allocation.
    pub(crate) fn new(mut buffers: Vec<(u64, u64)>) -> Trace {
        buffers.sort_unstable();
        buffers.dedup();
        let buffer = |(start, end)| Buffer { start, end, read: Extent::default(), written: Extent::default() };
        let buffers = buffers.into_iter().map(buffer).collect();
        Trace { buffers, sink: vec![0; 16], touch: Touch::Read, bytes: 0, before: None }
    }

    /// The next operation touches `bytes` bytes in each of its lanes.
    pub(super) fn begin(&mut self, touch: Touch, bytes: u32) {
        (self.touch, self.bytes, self.before) = (touch, u64::from(bytes), None);
        let words = (bytes as usize).div_ceil(8);
        if self.sink.len() < words {
            self.sink.resize(words, 0);
        }
    }

    /// Notes a lane's address, which is at `host` if it lies in an allocation. Gives the host address to use in its place.
    pub(super) fn note(&mut self, address: u64, host: Option<u64>) -> u64 {
        let sink = self.sink.as_mut_ptr() as u64;
        let Some(host) = host else { return sink };
        let fresh = self.before.replace(address) != Some(address);
        let behind = self.buffers.partition_point(|buffer| buffer.start <= address);
        if let Some(buffer) = self.buffers[..behind].last_mut().filter(|buffer| address < buffer.end) {
            if self.touch != Touch::Write {
                buffer.read.add(address, self.bytes, fresh);
            }
            if self.touch != Touch::Read {
                buffer.written.add(address, self.bytes, fresh);
            }
        }
        if self.touch == Touch::Read { host } else { sink }
    }

    /// The block has ended.
    pub(crate) fn end_block(&mut self) {
        for extent in self.buffers.iter_mut().flat_map(|buffer| [&mut buffer.read, &mut buffer.written]) {
            extent.most = extent.most.max(extent.here);
            extent.here = 0;
        }
    }

    /// The traffic of a launch of `blocks` blocks, of which some were traced.
    pub(crate) fn traffic(&self, blocks: u64) -> Traffic {
        let sum = |extent: fn(&Buffer) -> Extent| self.buffers.iter().map(|b| extent(b).bytes(blocks)).sum();
        Traffic { read: sum(|buffer| buffer.read), written: sum(|buffer| buffer.written) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_those_of_the_range_or_of_what_blocks_move() {
        let mut trace = Trace::new(vec![(2000, 3000), (1000, 1900)]);
        trace.begin(Touch::Read, 4);
        // the first and the last of eight blocks: 16 bytes each, of a row of 100 bytes
        for block in [0, 7] {
            for lane in 0..4 {
                assert_eq!(trace.note(1000 + 100 * block + 4 * lane, Some(5)), 5);
            }
            // all lanes at one address
            for _ in 0..3 {
                let _ = trace.note(2000, Some(6));
            }
            // a variable of the module, and an address outside of memory
            assert_eq!(trace.note(1950, Some(7)), 7);
            assert_ne!(trace.note(5000, None), 0);
            trace.end_block();
        }
        trace.begin(Touch::Write, 8);
        assert_ne!(trace.note(2008, Some(9)), 9);
        assert_eq!(trace.traffic(8), Traffic { read: 8 * 16 + 4, written: 8 });
    }
}
