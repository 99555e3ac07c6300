//! Launches: geometry and arguments checked as the driver checks them, then run by the interpreter, slept or skipped.

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use serde_json::json;

use super::card::{BLOCK, BLOCK_THREADS, Card, GRID, REGISTERS, SHARED_BY_DEFAULT};
use super::code::{Answer, Code};
use super::fault::Operation;
use super::handles::Handle;
use super::header::Entry;
use super::objects::{Function, Launch, Work};
use super::settings::Execution;
use super::sim::Sim;
use crate::ptx::{self, ExecError, Limits, Memory};

/// The longest sleep in place of a kernel.
const LONGEST_SLEEP: Duration = Duration::from_millis(20);
/// A launch that took longer on the host is logged.
const SLOW: Duration = Duration::from_secs(1);

/// Whether a GPU takes a launch of this shape.
///
/// # Errors
/// `INVALID_VALUE` for a shape the GPU or the kernel forbids, `LAUNCH_OUT_OF_RESOURCES` for too many registers.
fn check_shape(card: &Card, function: &Function, grid: [u32; 3], block: [u32; 3], shared: u32) -> Answer {
    let entry = function.entry();
    let inside = |sides: [u32; 3], most: [u32; 3]| sides.iter().zip(most).all(|(side, most)| (1..=most).contains(side));
    let threads = block.iter().map(|side| u64::from(*side)).product::<u64>();
    let demanded = entry.required_block.is_none_or(|required| required == block);
    if !inside(grid, GRID) || !inside(block, BLOCK) || threads > u64::from(BLOCK_THREADS) || !demanded {
        return Err(Code::INVALID_VALUE);
    }
    if threads > u64::from(entry.max_threads) {
        return Err(Code::LAUNCH_OUT_OF_RESOURCES);
    }
    let most = function.max_dynamic.unwrap_or(SHARED_BY_DEFAULT.saturating_sub(entry.static_shared));
    let all = u64::from(shared) + u64::from(entry.static_shared);
    if shared > most || all > card.shared_per_block as u64 {
        return Err(Code::INVALID_VALUE);
    }
    // registers are given to warps in units of 256
    let registers = function.resources().map_or(0, |resources| resources.registers);
    if u64::from((registers * 32).next_multiple_of(256)) * threads.div_ceil(32) > u64::from(REGISTERS) {
        return Err(Code::LAUNCH_OUT_OF_RESOURCES);
    }
    Ok(())
}

/// The code that a GPU gives for what went wrong in a kernel.
fn code_of(error: &ExecError) -> Code {
    match error {
        ExecError::IllegalAddress { .. } => Code::ILLEGAL_ADDRESS,
        ExecError::Misaligned { .. } => Code::MISALIGNED_ADDRESS,
        ExecError::TooManyInstructions { .. } => Code::LAUNCH_TIMEOUT,
        ExecError::InvalidLaunch { .. } => Code::INVALID_VALUE,
        _ => Code::LAUNCH_FAILED,
    }
}

/// Bytes at the beginning of a buffer that tell what a kernel does: CubeCL's shapes and strides.
const TOLD: u64 = 512;

/// What launches have in common that move equally many bytes: all arguments, with what stands at the beginning of each buffer in place of its
/// address. Measured kernels write nothing, so tensors do not change.
fn alike(launch: &Launch, memory: &dyn Memory) -> Vec<u8> {
    let mut key =
        format!("{} {:?} {:?} {} ", launch.function.entry, launch.grid, launch.block, launch.shared).into_bytes();
    let mut addresses: Vec<u64> = vec![];
    for word in launch.params.chunks(8) {
        let address = word.try_into().map_or(0, u64::from_le_bytes);
        match memory.region(address) {
            None => key.extend(word),
            Some(region) => {
                // equal addresses are one buffer
                let at = addresses.iter().position(|known| *known == address).unwrap_or(addresses.len());
                addresses.push(address);
                let offset = address - region.start;
                let bytes = TOLD.min(region.len - offset) as usize;
                // SAFETY: the bytes lie in a live allocation, which `memory` keeps, and which no kernel writes while launches are measured.
                let told = unsafe { std::slice::from_raw_parts(region.host.add(offset as usize), bytes) };
                key.push(at as u8);
                key.extend(told);
            }
        }
    }
    key
}

impl Sim {
    /// Launches a function in a stream. `params` is the parameter block.
    ///
    /// # Errors
    /// Those of [`check_shape`], and the errors of every call. A fault of the kernel is answered by the calls after this one.
    pub(crate) fn launch(
        &self,
        (current, stream): (Handle, Handle),
        function: Handle,
        (grid, block, shared): ([u32; 3], [u32; 3], u32),
        params: impl FnOnce(&Entry) -> Answer<Vec<u8>>,
    ) -> Answer {
        let function = self.state().functions.get(function)?.clone();
        let card = self.state().device(function.device)?.card;
        check_shape(&card, &function, grid, block, shared).inspect_err(|code| {
            let name = &function.entry().name;
            let fields = json!({ "kernel": name, "grid": grid, "block": block, "shared": shared, "code": code.0 });
            self.log.write("bad_launch", fields);
        })?;
        let params = params(function.entry())?;
        let launch = Launch { function, grid, block, shared, params };
        self.submit(current, stream, Operation::Launch, Work::Launch(Arc::new(launch)))
    }

    /// Runs a launch on a GPU.
    ///
    /// # Errors
    /// Only for a module that cannot run; what the kernel does wrong becomes the GPU's sticky error.
    pub(crate) fn run(&self, device: usize, launch: &Launch) -> Answer {
        let entry = launch.function.entry();
        let execution = self.state().execution;
        if execution != Execution::Measure {
            self.log.trace("launch", || {
                json!({ "device": device, "kernel": entry.name, "grid": launch.grid, "block": launch.block, "shared": launch.shared })
            });
        }
        if self.settings.sleepers.iter().any(|part| entry.name.contains(part)) {
            std::thread::sleep(sleep_of(entry, &launch.params));
            return Ok(());
        }
        if execution == Execution::Skip {
            return Ok(());
        }
        let module = &launch.function.module;
        let program = self.program(module).map_err(|error| {
            self.log.write("cannot_run", json!({ "device": device, "kernel": entry.name, "why": error.to_string() }));
            Code::INVALID_PTX
        })?;
        let kernel = program.module.kernel(&entry.name).ok_or(Code::NOT_FOUND)?;
        let view = {
            let mut state = self.state();
            let peers = state.device(device)?.peers.clone();
            state.space.view(device, &peers)
        };
        let shared_fill = self.settings.fill.unwrap_or(0);
        let mut limits = Limits {
            max_instructions: self.settings.max_instructions,
            shared_fill,
            races: self.settings.races,
            order: self.settings.order,
            ..Limits::default()
        };
        if self.settings.threads > 0 {
            limits.threads = self.settings.threads;
        }
        let arguments = ptx::Launch {
            grid: launch.grid,
            block: launch.block,
            shared: launch.shared,
            params: &launch.params,
            globals: &program.globals,
        };
        if execution == Execution::Measure {
            // blocks that end in a fault, because of values that no kernel has computed, count as far as they came: as nothing
            let key = alike(launch, &*view);
            let measured = || module.measured.lock().unwrap_or_else(PoisonError::into_inner);
            let known = measured().get(&key).copied();
            let start = Instant::now();
            let traffic = known.unwrap_or_else(|| kernel.traffic(&arguments, &*view, &limits).unwrap_or_default());
            measured().insert(key, traffic);
            if start.elapsed() > SLOW {
                let seconds = start.elapsed().as_secs_f64();
                self.log.write(
                    "slow_launch",
                    json!({ "device": device, "kernel": entry.name, "grid": launch.grid, "seconds": seconds }),
                );
            }
            self.log.trace("launch", || {
                json!({
                    "device": device, "kernel": entry.name, "grid": launch.grid, "block": launch.block, "shared": launch.shared,
                    "read": traffic.read, "written": traffic.written,
                })
            });
            let mut state = self.state();
            let on = &mut state.device_mut(device)?.counts;
            on.kernels_read_bytes += traffic.read;
            on.kernels_written_bytes += traffic.written;
            return Ok(());
        }
        let start = Instant::now();
        let outcome = kernel.run(&arguments, &*view, &limits);
        let took = start.elapsed();
        let mut state = self.state();
        match outcome {
            Ok(counts) => {
                let on = &mut state.device_mut(device)?.counts;
                on.executed += 1;
                on.warp_instructions += counts.instructions;
                if took > SLOW {
                    let fields = json!({
                        "device": device, "kernel": entry.name, "grid": launch.grid, "seconds": took.as_secs_f64(),
                        "warp_instructions": counts.instructions,
                    });
                    self.log.write("slow_launch", fields);
                }
            }
            Err(error) => self.poison(&mut state, device, code_of(&error), &format!("{}: {error}", entry.name)),
        }
        Ok(())
    }

    /// Allows a function this many bytes of dynamic shared memory.
    ///
    /// # Errors
    /// `INVALID_HANDLE`; `INVALID_VALUE` for more than the GPU has; the errors of every call.
    pub(crate) fn set_max_dynamic(&self, function: Handle, bytes: i32) -> Answer {
        let mut state = self.state();
        let function = state.functions.get(function)?.clone();
        self.gate(&mut state, function.device, Operation::FunctionAttribute)
            .and_then(|()| {
                let most = state.device(function.device)?.card.shared_per_block as u32;
                let bytes = u32::try_from(bytes).map_err(|_| Code::INVALID_VALUE)?;
                let fits = bytes.checked_add(function.entry().static_shared).is_some_and(|all| all <= most);
                fits.then_some(bytes).ok_or(Code::INVALID_VALUE)
            })
            .map(|bytes| {
                state
                    .functions
                    .values_mut()
                    .filter(|known| known.is(&function))
                    .for_each(|known| known.max_dynamic = Some(bytes));
            })
    }

    /// A `CUfunction_attribute`.
    ///
    /// # Errors
    /// `INVALID_HANDLE`; `INVALID_VALUE` for an attribute that is not known.
    pub(crate) fn function_attribute(&self, function: Handle, attribute: i32) -> Answer<i32> {
        let state = self.state();
        let function = state.functions.get(function)?;
        let (entry, resources) = (function.entry(), function.resources().copied().unwrap_or_default());
        let capability = function.module.header.target.capability as i32;
        Ok(match attribute {
            0 => entry.max_threads as i32,
            1 => entry.static_shared as i32,
            2 => 0, // constant memory
            3 => resources.local as i32,
            4 => resources.registers as i32,
            5 => function.module.header.version as i32,
            6 => capability,
            7 => 0, // no cache mode
            8 => function.max_dynamic.unwrap_or(SHARED_BY_DEFAULT.saturating_sub(entry.static_shared)) as i32,
            9 => -1, // the driver chooses how much of the cache is shared memory
            10..=15 => 0,
            _ => return Err(Code::INVALID_VALUE),
        })
    }

    /// Blocks of a function that fit on one multiprocessor.
    ///
    /// # Errors
    /// `INVALID_HANDLE`; `INVALID_VALUE` for blocks without threads.
    pub(crate) fn active_blocks(&self, function: Handle, threads: i32, shared: u64) -> Answer<u32> {
        let state = self.state();
        let function = state.functions.get(function)?;
        let threads = u32::try_from(threads).ok().filter(|threads| *threads > 0).ok_or(Code::INVALID_VALUE)?;
        let registers = function.resources().map_or(0, |resources| resources.registers);
        let card = state.device(function.device)?.card;
        Ok(card.active_blocks(threads, registers, shared + u64::from(function.entry().static_shared)))
    }
}

impl Function {
    fn is(&self, other: &Self) -> bool {
        self.entry == other.entry && Arc::ptr_eq(&self.module, &other.module)
    }
}

/// How long to sleep in place of a kernel that measures the GPU: the first word of its last parameter, in microseconds. A program that
/// scales its iterations to a time then finds a clock that moves with them.
fn sleep_of(entry: &Entry, params: &[u8]) -> Duration {
    let at = entry.parameters.last().map_or(0, |last| last.offset);
    let word = params.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_le_bytes);
    Duration::from_micros(u64::from(word)).min(LONGEST_SLEEP)
}
