//! Launches, attributes of functions, occupancy, tensor maps.

use super::driver;
use super::machine::current;
use super::pointer::{In, Out};
use crate::driver::{Answer, Code, Entry, Handle, Sim};

/// `CU_LAUNCH_PARAM_*`: the end of the list, the parameter block, its size.
const EXTRA_END: usize = 0;
const EXTRA_BLOCK: usize = 1;
const EXTRA_BYTES: usize = 2;

/// The first words of a `CUlaunchConfig`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Config {
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    stream: Handle,
}

/// Copies a kernel's arguments into its parameter block, from a pointer to each or from one block.
fn arguments(entry: &Entry, each: &In<usize>, extra: &In<usize>) -> Answer<Vec<u8>> {
    if !extra.is_null() {
        return from_block(entry, extra);
    }
    let mut block = vec![0; entry.parameter_bytes()];
    for (at, parameter) in entry.parameters.iter().enumerate() {
        let bytes = In::<u8>::from_address(each.at(at)?).copy(parameter.bytes)?;
        block[parameter.offset..parameter.offset + parameter.bytes].copy_from_slice(&bytes);
    }
    Ok(block)
}

/// The arguments from a list of key and value that ends with [`EXTRA_END`].
fn from_block(entry: &Entry, extra: &In<usize>) -> Answer<Vec<u8>> {
    let (mut block, mut bytes, mut at) = (0, 0, 0);
    loop {
        match extra.at(at)? {
            EXTRA_END => break,
            EXTRA_BLOCK => block = extra.at(at + 1)?,
            EXTRA_BYTES => bytes = In::<usize>::from_address(extra.at(at + 1)?).value()?,
            _ => return Err(Code::INVALID_VALUE),
        }
        at += 2;
    }
    if bytes < entry.parameter_bytes() {
        return Err(Code::INVALID_VALUE);
    }
    In::<u8>::from_address(block).copy(entry.parameter_bytes())
}

fn launch(sim: &Sim, function: Handle, config: &Config, each: &In<usize>, extra: &In<usize>) -> Answer {
    let shape = (config.grid, config.block, config.shared);
    sim.launch((current(), config.stream), function, shape, |entry| arguments(entry, each, extra))
}

driver! {
    /// Launches a kernel.
    fn cuLaunchKernel(
        function: Handle, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32,
        shared: u32, stream: Handle, each: In<usize>, extra: In<usize>,
    ) |sim| {
        let config = Config { grid: [grid_x, grid_y, grid_z], block: [block_x, block_y, block_z], shared, stream };
        launch(sim, function, &config, &each, &extra)
    }

    /// Launches a kernel; attributes beside its shape are ignored.
    fn cuLaunchKernelEx(config: In<Config>, function: Handle, each: In<usize>, extra: In<usize>) |sim| {
        launch(sim, function, &config.value()?, &each, &extra)
    }

    /// Changes an attribute of a kernel: 8 is the most dynamic shared memory, 9 and above make no difference here.
    fn cuFuncSetAttribute(function: Handle, attribute: i32, value: i32) |sim| {
        match attribute {
            8 => sim.set_max_dynamic(function, value),
            9..=15 => sim.state().functions.get(function).map(drop),
            _ => Err(Code::INVALID_VALUE),
        }
    }

    /// An attribute of a kernel.
    fn cuFuncGetAttribute(value: Out<i32>, attribute: i32, function: Handle) |sim| {
        value.put(sim.function_attribute(function, attribute)?)
    }

    /// Takes a preference for the cache, which makes no difference here.
    fn cuFuncSetCacheConfig(function: Handle, _config: u32) |sim| {
        sim.state().functions.get(function).map(drop)
    }

    /// Blocks of a kernel that fit on one multiprocessor.
    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks: Out<i32>, function: Handle, threads: i32, shared: usize) |sim| {
        blocks.put(sim.active_blocks(function, threads, shared as u64)? as i32)
    }

    /// As `cuOccupancyMaxActiveBlocksPerMultiprocessor`.
    fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        blocks: Out<i32>, function: Handle, threads: i32, shared: usize, _flags: u32,
    ) |sim| {
        blocks.put(sim.active_blocks(function, threads, shared as u64)? as i32)
    }

    /// Describes a tensor for copies by the tensor memory accelerator. The description keeps the arguments; no kernel
    /// of the interpreter reads it.
    fn cuTensorMapEncodeTiled(
        map: Out<[u64; 16]>, kind: u32, rank: u32, address: u64, sides: In<u64>, strides: In<u64>, cut: In<u32>, _steps: In<u32>,
        interleave: u32, swizzle: u32, _promotion: u32, _fill: u32,
    ) |_| {
        if !(1..=5).contains(&rank) || !address.is_multiple_of(16) || kind > 15 {
            return Err(Code::INVALID_VALUE);
        }
        let rank = rank as usize;
        let mut words = [0; 16];
        words[0] = address;
        words[1] = u64::from(kind) | (rank as u64) << 8 | u64::from(interleave) << 16 | u64::from(swizzle) << 24;
        words[2..2 + rank].copy_from_slice(&sides.copy(rank)?);
        words[7..6 + rank].copy_from_slice(&strides.copy(rank - 1)?);
        for (word, side) in words[11..11 + rank].iter_mut().zip(cut.copy(rank)?) {
            *word = side.into();
        }
        map.put(words)
    }
}
