//! Copies and memsets: which memory they touch, and the bytes themselves.

use std::sync::Arc;

use serde_json::json;

use super::code::{Answer, Code};
use super::fault::Operation;
use super::objects::{Fill, Transfer};
use super::sim::{Sim, State};
use super::space::{Allocation, Owner};

/// Bytes from the first to the last one of `height` rows; nothing where that is no number of bytes.
fn extent(pitch: u64, width: u64, height: u64) -> Option<u64> {
    if height > 1 && pitch < width {
        return None;
    }
    pitch.checked_mul(height.checked_sub(1)?)?.checked_add(width)
}

/// The allocation behind a range, where it must be (or may be) device memory.
fn device_range(state: &State, address: u64, bytes: u64) -> Answer<Arc<Allocation>> {
    state.space.find_range(address, bytes).cloned().ok_or(Code::INVALID_VALUE)
}

/// Host memory as the caller names it: any address of its own, but no device memory, which a host cannot reach.
fn host_range(state: &State, address: u64, bytes: u64) -> Answer<Option<Arc<Allocation>>> {
    match state.space.find(address) {
        None if address == 0 => Err(Code::INVALID_VALUE),
        None => Ok(None),
        Some(found)
            if matches!(found.owner, Owner::Device(_) | Owner::Variable(_)) || !found.contains(address, bytes) =>
        {
            Err(Code::INVALID_VALUE)
        }
        Some(found) => Ok(Some(Arc::clone(found))),
    }
}

impl Sim {
    /// Copies, once both ranges are found to be what the direction says.
    ///
    /// # Errors
    /// `INVALID_VALUE`.
    pub(crate) fn transfer(&self, device: usize, transfer: &Transfer) -> Answer {
        if transfer.bytes() == 0 {
            return Ok(());
        }
        // the allocations stay mapped while the bytes move, even if another thread frees them
        let _held = {
            let mut state = self.state();
            let found = find_both(&state, transfer);
            let Ok(found) = found else {
                self.log.write("bad_copy", json!({ "device": device, "copy": format!("{transfer:x?}") }));
                return Err(Code::INVALID_VALUE);
            };
            state.device_mut(device)?.counts.moved(transfer.direction, transfer.bytes());
            found
        };
        self.log.trace(transfer.direction.name(), || json!({ "device": device, "bytes": transfer.bytes() }));
        for row in 0..transfer.height {
            let source = (transfer.source + row * transfer.source_pitch) as *const u8;
            let target = (transfer.target + row * transfer.target_pitch) as *mut u8;
            // SAFETY: device and pinned ranges were found inside live allocations, which `_held` keeps mapped; other
            // host ranges are the caller's word, as for any CUDA driver. `copy` allows for overlap.
            unsafe { std::ptr::copy(source, target, transfer.width as usize) };
        }
        Ok(())
    }

    /// Fills device memory.
    ///
    /// # Errors
    /// `INVALID_VALUE` for a range outside of the allocations or an address that is no multiple of the element.
    pub(crate) fn fill(&self, device: usize, fill: &Fill) -> Answer {
        if fill.width == 0 || fill.height == 0 {
            return Ok(());
        }
        let bytes = fill.width.checked_mul(fill.size).and_then(|row| extent(fill.pitch, row, fill.height));
        let _held = {
            let mut state = self.state();
            let bytes = bytes.filter(|_| fill.target.is_multiple_of(fill.size) && fill.pitch.is_multiple_of(fill.size));
            let found = bytes.ok_or(Code::INVALID_VALUE).and_then(|bytes| device_range(&state, fill.target, bytes));
            let found = found.inspect_err(|_| {
                self.log.write("bad_memset", json!({ "device": device, "memset": format!("{fill:x?}") }));
            })?;
            state.device_mut(device)?.counts.moved(Operation::Memset, fill.width * fill.size * fill.height);
            found
        };
        for row in 0..fill.height {
            let start = (fill.target + row * fill.pitch) as *mut u8;
            let count = fill.width as usize;
            // SAFETY: the rows lie inside one live allocation, which `_held` keeps mapped, and start at a multiple of
            // the element's size.
            unsafe {
                match fill.size {
                    1 => start.write_bytes(fill.value as u8, count),
                    2 => std::slice::from_raw_parts_mut(start.cast::<u16>(), count).fill(fill.value as u16),
                    _ => std::slice::from_raw_parts_mut(start.cast::<u32>(), count).fill(fill.value),
                }
            }
        }
        Ok(())
    }

    /// The direction of a copy whose call does not name one, by whose memory both ends are.
    pub(crate) fn direction(&self, target: u64, source: u64) -> Operation {
        let state = self.state();
        let device = |address| match state.space.find(address).map(|found| found.owner) {
            Some(Owner::Device(device) | Owner::Variable(device) | Owner::Managed(device)) => Some(device),
            _ => None,
        };
        match (device(source), device(target)) {
            (None, Some(_)) => Operation::HostToDevice,
            (Some(_), None) => Operation::DeviceToHost,
            (Some(from), Some(to)) if from != to => Operation::Peer,
            _ => Operation::DeviceToDevice,
        }
    }
}

type Ends = (Option<Arc<Allocation>>, Option<Arc<Allocation>>);

fn find_both(state: &State, transfer: &Transfer) -> Answer<Ends> {
    let read = extent(transfer.source_pitch, transfer.width, transfer.height).ok_or(Code::INVALID_VALUE)?;
    let written = extent(transfer.target_pitch, transfer.width, transfer.height).ok_or(Code::INVALID_VALUE)?;
    let source = match transfer.direction {
        Operation::HostToDevice => host_range(state, transfer.source, read)?,
        _ => Some(device_range(state, transfer.source, read)?),
    };
    let target = match transfer.direction {
        Operation::DeviceToHost => host_range(state, transfer.target, written)?,
        _ => Some(device_range(state, transfer.target, written)?),
    };
    Ok((source, target))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_reach_as_far_as_the_last_one() {
        assert_eq!(extent(100, 10, 1), Some(10));
        assert_eq!(extent(100, 10, 3), Some(210));
        assert_eq!(extent(5, 10, 2), None, "rows that overlap");
        assert_eq!(extent(5, 10, 1), Some(10));
        assert_eq!(extent(u64::MAX, 10, 3), None);
        assert_eq!(extent(1, 1, 0), None);
    }
}
