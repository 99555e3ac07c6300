//! Memory of GPUs, pinned and managed memory, and questions about addresses.

use super::driver;
use super::machine::current;
use super::pointer::Out;
use crate::driver::{Code, Owner};

driver! {
    /// Allocates device memory.
    fn cuMemAlloc_v2(address: Out<u64>, bytes: usize) |sim| {
        if address.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        sim.refuse_while_recording(current())?;
        address.put(sim.allocate(current(), bytes as u64, false)?)
    }

    /// Allocates rows of device memory, each a multiple of 512 bytes.
    fn cuMemAllocPitch_v2(address: Out<u64>, pitch: Out<usize>, width: usize, height: usize, _element: u32) |sim| {
        let row = width.checked_next_multiple_of(512).ok_or(Code::INVALID_VALUE)?;
        let bytes = row.checked_mul(height).ok_or(Code::INVALID_VALUE)?;
        pitch.put(row)?;
        address.put(sim.allocate(current(), bytes as u64, false)?)
    }

    /// Allocates memory that host and GPUs reach.
    fn cuMemAllocManaged(address: Out<u64>, bytes: usize, flags: u32) |sim| {
        if address.is_null() || !matches!(flags, 1 | 2) {
            return Err(Code::INVALID_VALUE);
        }
        address.put(sim.allocate(current(), bytes as u64, true)?)
    }

    /// Gives device memory back.
    fn cuMemFree_v2(address: u64) |sim| {
        sim.refuse_while_recording(current())?;
        sim.free(current(), address)
    }

    /// Free and total bytes of the GPU.
    fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) |sim| {
        let (bytes_free, bytes_total) = sim.memory_info(current())?;
        free.put(bytes_free as usize)?;
        total.put(bytes_total as usize)
    }

    /// Allocates pinned memory.
    fn cuMemAllocHost_v2(pointer: Out<u64>, bytes: usize) |sim| {
        if pointer.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        pointer.put(sim.allocate_host(current(), bytes as u64)?)
    }

    /// As `cuMemAllocHost_v2`; the flags make no difference here.
    fn cuMemHostAlloc(pointer: Out<u64>, bytes: usize, _flags: u32) |sim| {
        if pointer.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        pointer.put(sim.allocate_host(current(), bytes as u64)?)
    }

    /// Gives pinned memory back.
    fn cuMemFreeHost(pointer: u64) |sim| {
        sim.free_host(current(), pointer)
    }

    /// The address by which a GPU reaches pinned memory: the same.
    fn cuMemHostGetDevicePointer_v2(address: Out<u64>, pointer: u64, _flags: u32) |sim| {
        match sim.range_of(pointer)?.2 {
            Owner::Pinned | Owner::Registered => address.put(pointer),
            _ => Err(Code::INVALID_VALUE),
        }
    }

    /// The flags of pinned memory: none.
    fn cuMemHostGetFlags(flags: Out<u32>, pointer: u64) |sim| {
        match sim.range_of(pointer)?.2 {
            Owner::Pinned => flags.put(0),
            _ => Err(Code::INVALID_VALUE),
        }
    }

    /// Lets GPUs reach the program's own memory.
    fn cuMemHostRegister_v2(pointer: u64, bytes: usize, _flags: u32) |sim| {
        sim.register_host(current(), pointer, bytes as u64)
    }

    /// Ends what `cuMemHostRegister_v2` began.
    fn cuMemHostUnregister(pointer: u64) |sim| {
        sim.unregister_host(pointer)
    }

    /// Start and bytes of the allocation around an address.
    fn cuMemGetAddressRange_v2(start: Out<u64>, bytes: Out<usize>, address: u64) |sim| {
        let (first, length, owner) = sim.range_of(address)?;
        if matches!(owner, Owner::Pinned | Owner::Registered) {
            return Err(Code::NOT_FOUND);
        }
        start.put_if_wanted(first);
        bytes.put_if_wanted(length as usize);
        Ok(())
    }

    /// Moves managed memory, which is everywhere here.
    fn cuMemPrefetchAsync(address: u64, _bytes: usize, _device: i32, _stream: usize) |sim| {
        sim.range_of(address).map(drop)
    }

    /// As `cuMemPrefetchAsync`; the place is two words given in one register.
    fn cuMemPrefetchAsync_v2(address: u64, _bytes: usize, _place: u64, _flags: u32, _stream: usize) |sim| {
        sim.range_of(address).map(drop)
    }

    /// Takes advice about managed memory, which makes no difference here.
    fn cuMemAdvise(address: u64, _bytes: usize, _advice: u32, _device: i32) |sim| {
        sim.range_of(address).map(drop)
    }

    /// As `cuMemAdvise`.
    fn cuMemAdvise_v2(address: u64, _bytes: usize, _advice: u32, _place: u64) |sim| {
        sim.range_of(address).map(drop)
    }

    /// Gives managed memory to a stream, which makes no difference here.
    fn cuStreamAttachMemAsync(_stream: usize, address: u64, _bytes: usize, _flags: u32) |sim| {
        sim.range_of(address).map(drop)
    }

    /// A property of an address: what kind of memory, on which GPU, where it begins.
    fn cuPointerGetAttribute(value: Out<u64>, attribute: u32, address: u64) |sim| {
        let (start, bytes, owner) = sim.range_of(address)?;
        let device = match owner {
            Owner::Device(device) | Owner::Variable(device) | Owner::Managed(device) => device,
            Owner::Pinned | Owner::Registered => 0,
        };
        let on_host = matches!(owner, Owner::Pinned | Owner::Registered);
        match attribute {
            1 => value.put(sim.state().device(device)?.primary.unwrap_or(0) as u64),
            2 => value.cast::<u32>().put(if on_host { 1 } else { 2 }),
            3 => value.put(address),
            4 if on_host || matches!(owner, Owner::Managed(_)) => value.put(address),
            8 => value.cast::<u32>().put(u32::from(matches!(owner, Owner::Managed(_)))),
            9 => value.cast::<i32>().put(device as i32),
            11 => value.put(start),
            12 => value.put(bytes),
            _ => Err(Code::INVALID_VALUE),
        }
    }
}
