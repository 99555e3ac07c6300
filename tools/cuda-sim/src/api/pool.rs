//! Memory pools: each is the GPU itself, because freed memory goes back to it at once.

use super::device::ordinal;
use super::driver;
use super::machine::current;
use super::pointer::{In, Out};
use crate::driver::{Answer, Code, Handle, Sim, Work};

/// Allocates in the order of a stream, which may record.
fn allocate(sim: &Sim, address: &Out<u64>, bytes: usize, stream: Handle) -> Answer {
    if address.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    let place = sim.state().place(current(), stream)?;
    address.put(sim.allocate(current(), bytes as u64, false)?)?;
    if let Some(graph) = place.graph {
        sim.state().graphs.get_mut(graph)?.nodes.push(Work::Allocate);
    }
    Ok(())
}

/// The GPU of a pool.
fn card_of(sim: &Sim, pool: Handle) -> Answer<usize> {
    sim.state().pools.get(pool).copied()
}

/// The pool that stands for a GPU by default.
fn default_pool(sim: &Sim, device: i32) -> Answer<Handle> {
    let on = ordinal(sim, device)?;
    let state = sim.state();
    state.pools.iter().filter(|(_, card)| **card == on).map(|(pool, _)| pool).min().ok_or(Code::INVALID_DEVICE)
}

driver! {
    /// Allocates device memory in a stream.
    fn cuMemAllocAsync(address: Out<u64>, bytes: usize, stream: Handle) |sim| {
        allocate(sim, &address, bytes, stream)
    }

    /// Allocates from a pool in a stream.
    fn cuMemAllocFromPoolAsync(address: Out<u64>, bytes: usize, pool: Handle, stream: Handle) |sim| {
        card_of(sim, pool)?;
        allocate(sim, &address, bytes, stream)
    }

    /// Frees in a stream. While it records, the memory stays until its context ends, as a replay may use it.
    fn cuMemFreeAsync(address: u64, stream: Handle) |sim| {
        let place = sim.state().place(current(), stream)?;
        match place.graph {
            None => sim.free(current(), address),
            Some(graph) => {
                sim.state().graphs.get_mut(graph)?.nodes.push(Work::Free);
                Ok(())
            }
        }
    }

    /// The pool of a GPU.
    fn cuDeviceGetDefaultMemPool(pool: Out<Handle>, device: i32) |sim| {
        pool.put(default_pool(sim, device)?)
    }

    /// As `cuDeviceGetDefaultMemPool`.
    fn cuDeviceGetMemPool(pool: Out<Handle>, device: i32) |sim| {
        pool.put(default_pool(sim, device)?)
    }

    /// Chooses the pool of a GPU, which makes no difference here.
    fn cuDeviceSetMemPool(device: i32, pool: Handle) |sim| {
        ordinal(sim, device)?;
        card_of(sim, pool).map(drop)
    }

    /// Makes a pool; the fourth word of its properties is the GPU.
    fn cuMemPoolCreate(pool: Out<Handle>, properties: In<i32>) |sim| {
        let on = ordinal(sim, properties.at(3)?)?;
        let made = sim.state().pools.insert(on);
        pool.put(made)
    }

    /// Ends a pool.
    fn cuMemPoolDestroy(pool: Handle) |sim| {
        sim.state().pools.remove(pool).map(drop)
    }

    /// Gives memory back to the GPU down to a size; there is none to give.
    fn cuMemPoolTrimTo(pool: Handle, _bytes: usize) |sim| {
        card_of(sim, pool).map(drop)
    }

    /// Takes a pool's attribute, which makes no difference here.
    fn cuMemPoolSetAttribute(pool: Handle, _attribute: u32, _value: In<u64>) |sim| {
        card_of(sim, pool).map(drop)
    }

    /// A pool's attribute: memory of the GPU in use, and the most there was.
    fn cuMemPoolGetAttribute(pool: Handle, attribute: u32, value: Out<u64>) |sim| {
        let on = card_of(sim, pool)?;
        let state = sim.state();
        let ledger = &state.device(on)?.ledger;
        match attribute {
            1..=3 => value.cast::<i32>().put(1), // reuse is allowed
            4 => value.put(0),                   // nothing is held back
            5 | 7 => value.put(ledger.charged_bytes),
            6 | 8 => value.put(ledger.peak_charged_bytes),
            _ => Err(Code::INVALID_VALUE),
        }
    }
}
