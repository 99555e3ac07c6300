//! Copies and memsets. Those without `Async` in the name are refused while a stream of the GPU records.

use super::driver;
use super::machine::current;
use super::pointer::In;
use crate::driver::{Answer, Code, Fill, Handle, Operation, Sim, Transfer, Work};

/// `CUDA_MEMCPY2D`: one side is host memory (1), device memory (2), or either (4).
#[repr(C)]
#[derive(Clone, Copy)]
struct Copy2d {
    source_x: usize,
    source_y: usize,
    source_type: u32,
    source_host: u64,
    source_device: u64,
    source_array: u64,
    source_pitch: usize,
    target_x: usize,
    target_y: usize,
    target_type: u32,
    target_host: u64,
    target_device: u64,
    target_array: u64,
    target_pitch: usize,
    width: usize,
    height: usize,
}

/// The address that one side of a copy of rows begins at.
fn corner(kind: u32, host: u64, device: u64, (x, y, pitch): (usize, usize, usize)) -> Answer<u64> {
    let base = match kind {
        1 => host,
        2 | 4 => device,
        _ => return Err(Code::NOT_SUPPORTED), // arrays
    };
    let offset = y.checked_mul(pitch).and_then(|rows| rows.checked_add(x)).ok_or(Code::INVALID_VALUE)?;
    base.checked_add(offset as u64).ok_or(Code::INVALID_VALUE)
}

fn rows(sim: &Sim, copy: &Copy2d) -> Answer<Transfer> {
    let source_at = (copy.source_x, copy.source_y, copy.source_pitch);
    let target_at = (copy.target_x, copy.target_y, copy.target_pitch);
    let source = corner(copy.source_type, copy.source_host, copy.source_device, source_at)?;
    let target = corner(copy.target_type, copy.target_host, copy.target_device, target_at)?;
    let direction = match (copy.source_type, copy.target_type) {
        (1, 2) => Operation::HostToDevice,
        (2, 1) => Operation::DeviceToHost,
        (2, 2) => Operation::DeviceToDevice,
        (1, 1) => return Err(Code::NOT_SUPPORTED), // from host to host
        _ => sim.direction(target, source),
    };
    let pitch = |pitch: usize| if pitch == 0 { copy.width } else { pitch } as u64;
    Ok(Transfer {
        source,
        source_pitch: pitch(copy.source_pitch),
        target,
        target_pitch: pitch(copy.target_pitch),
        width: copy.width as u64,
        height: copy.height as u64,
        direction,
    })
}

fn copy(sim: &Sim, stream: Handle, transfer: Transfer) -> Answer {
    sim.submit(current(), stream, transfer.direction, Work::Transfer(transfer))
}

fn copy_now(sim: &Sim, transfer: Transfer) -> Answer {
    sim.refuse_while_recording(current())?;
    copy(sim, 0, transfer)
}

/// Whether both contexts of a copy between GPUs are there.
fn both(sim: &Sim, to: Handle, from: Handle) -> Answer {
    let state = sim.state();
    state.device_of(to)?;
    state.device_of(from).map(drop)
}

fn fill(sim: &Sim, stream: Handle, fill: Fill) -> Answer {
    sim.submit(current(), stream, Operation::Memset, Work::Fill(fill))
}

/// One row of elements.
fn flat(target: u64, value: u32, size: u64, count: usize) -> Fill {
    Fill { target, pitch: 0, value, size, width: count as u64, height: 1 }
}

const H2D: Operation = Operation::HostToDevice;
const D2H: Operation = Operation::DeviceToHost;
const D2D: Operation = Operation::DeviceToDevice;

driver! {
    /// Copies from the host to a GPU.
    fn cuMemcpyHtoD_v2(target: u64, source: u64, bytes: usize) |sim| {
        copy_now(sim, Transfer::flat(H2D, target, source, bytes as u64))
    }

    /// Copies from the host to a GPU in a stream.
    fn cuMemcpyHtoDAsync_v2(target: u64, source: u64, bytes: usize, stream: Handle) |sim| {
        copy(sim, stream, Transfer::flat(H2D, target, source, bytes as u64))
    }

    /// Copies from a GPU to the host.
    fn cuMemcpyDtoH_v2(target: u64, source: u64, bytes: usize) |sim| {
        copy_now(sim, Transfer::flat(D2H, target, source, bytes as u64))
    }

    /// Copies from a GPU to the host in a stream.
    fn cuMemcpyDtoHAsync_v2(target: u64, source: u64, bytes: usize, stream: Handle) |sim| {
        copy(sim, stream, Transfer::flat(D2H, target, source, bytes as u64))
    }

    /// Copies inside a GPU.
    fn cuMemcpyDtoD_v2(target: u64, source: u64, bytes: usize) |sim| {
        copy_now(sim, Transfer::flat(D2D, target, source, bytes as u64))
    }

    /// Copies inside a GPU in a stream.
    fn cuMemcpyDtoDAsync_v2(target: u64, source: u64, bytes: usize, stream: Handle) |sim| {
        copy(sim, stream, Transfer::flat(D2D, target, source, bytes as u64))
    }

    /// Copies between any two addresses.
    fn cuMemcpy(target: u64, source: u64, bytes: usize) |sim| {
        copy_now(sim, Transfer::flat(sim.direction(target, source), target, source, bytes as u64))
    }

    /// Copies between any two addresses in a stream.
    fn cuMemcpyAsync(target: u64, source: u64, bytes: usize, stream: Handle) |sim| {
        copy(sim, stream, Transfer::flat(sim.direction(target, source), target, source, bytes as u64))
    }

    /// Copies from one GPU to another, each named by a context.
    fn cuMemcpyPeer(target: u64, to: Handle, source: u64, from: Handle, bytes: usize) |sim| {
        both(sim, to, from)?;
        copy_now(sim, Transfer::flat(Operation::Peer, target, source, bytes as u64))
    }

    /// Copies from one GPU to another in a stream.
    fn cuMemcpyPeerAsync(target: u64, to: Handle, source: u64, from: Handle, bytes: usize, stream: Handle) |sim| {
        both(sim, to, from)?;
        copy(sim, stream, Transfer::flat(Operation::Peer, target, source, bytes as u64))
    }

    /// Copies rows.
    fn cuMemcpy2D_v2(description: In<Copy2d>) |sim| {
        copy_now(sim, rows(sim, &description.value()?)?)
    }

    /// As `cuMemcpy2D_v2`.
    fn cuMemcpy2DUnaligned_v2(description: In<Copy2d>) |sim| {
        copy_now(sim, rows(sim, &description.value()?)?)
    }

    /// Copies rows in a stream.
    fn cuMemcpy2DAsync_v2(description: In<Copy2d>, stream: Handle) |sim| {
        copy(sim, stream, rows(sim, &description.value()?)?)
    }

    /// Fills bytes.
    fn cuMemsetD8_v2(target: u64, value: u8, count: usize) |sim| {
        fill(sim, 0, flat(target, value.into(), 1, count))
    }

    /// Fills bytes in a stream.
    fn cuMemsetD8Async(target: u64, value: u8, count: usize, stream: Handle) |sim| {
        fill(sim, stream, flat(target, value.into(), 1, count))
    }

    /// Fills elements of 2 bytes.
    fn cuMemsetD16_v2(target: u64, value: u16, count: usize) |sim| {
        fill(sim, 0, flat(target, value.into(), 2, count))
    }

    /// Fills elements of 2 bytes in a stream.
    fn cuMemsetD16Async(target: u64, value: u16, count: usize, stream: Handle) |sim| {
        fill(sim, stream, flat(target, value.into(), 2, count))
    }

    /// Fills elements of 4 bytes.
    fn cuMemsetD32_v2(target: u64, value: u32, count: usize) |sim| {
        fill(sim, 0, flat(target, value, 4, count))
    }

    /// Fills elements of 4 bytes in a stream.
    fn cuMemsetD32Async(target: u64, value: u32, count: usize, stream: Handle) |sim| {
        fill(sim, stream, flat(target, value, 4, count))
    }

    /// Fills rows of bytes.
    fn cuMemsetD2D8_v2(target: u64, pitch: usize, value: u8, width: usize, height: usize) |sim| {
        fill(sim, 0, Fill { target, pitch: pitch as u64, value: value.into(), size: 1, width: width as u64, height: height as u64 })
    }
}
