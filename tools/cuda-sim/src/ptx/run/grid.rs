//! Spreads the blocks of a grid over threads.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::block::{self, Broken};
use super::warp::Lockstep;
use crate::ptx::lower::{Program, Special};
use crate::ptx::machine::{AccessedGlobal, Block, LANES, Races, Trace, Trouble, Warp};
use crate::ptx::text::Width;
use crate::ptx::{Counts, ExecError, Fault, Launch, Limits, Memory, Region, Space, Traffic};

/// The state that all threads of a launch share.
struct Shared<'a> {
    program: &'a Program,
    launch: &'a Launch<'a>,
    memory: &'a dyn Memory,
    limits: &'a Limits,
    next_block: AtomicU64,
    /// The blocks to run.
    blocks: Blocks,
    instructions: AtomicU64,
    stop: AtomicBool,
    error: Mutex<Option<ExecError>>,
    accessed: AccessedGlobal,
}

/// Blocks of a grid by number.
enum Blocks {
    All(u64),
    /// The first ones in any case, the others as long as few operations have run.
    Some {
        numbers: Vec<u64>,
        first: usize,
    },
}

/// Operations of sampled blocks after which only the corners of the grid are run.
const CHEAP: u64 = 1 << 21;

impl Blocks {
    /// The block that comes after `at` others, when `operations` have run.
    fn nth(&self, at: u64, operations: u64) -> Option<u64> {
        match self {
            Blocks::All(count) => (at < *count).then_some(at),
            Blocks::Some { first, .. } if at >= *first as u64 && operations > CHEAP => None,
            Blocks::Some { numbers, .. } => numbers.get(at as usize).copied(),
        }
    }
}

impl<'a> Shared<'a> {
    fn new(
        program: &'a Program,
        launch: &'a Launch<'a>,
        memory: &'a dyn Memory,
        limits: &'a Limits,
        blocks: Blocks,
    ) -> Result<Shared<'a>, ExecError> {
        let global = |special: &Special| if let Special::Global(n) = special { Some(*n) } else { None };
        let needs = program.specials.iter().filter_map(|(_, special)| global(special)).max();
        if needs.is_some_and(|n| n as usize >= launch.globals.len()) {
            return Err(ExecError::InvalidLaunch { what: "an address of a variable of the module is missing" });
        }
        Ok(Shared {
            program,
            launch,
            memory,
            limits,
            next_block: AtomicU64::new(0),
            blocks,
            instructions: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            error: Mutex::new(None),
            accessed: AccessedGlobal::default(),
        })
    }

    fn error(self) -> Result<u64, ExecError> {
        match self.error.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner) {
            Some(error) => Err(error),
            None => Ok(self.instructions.into_inner()),
        }
    }
}

fn blocks_of(launch: &Launch<'_>) -> u64 {
    launch.grid.iter().map(|&n| u64::from(n)).product()
}

/// Runs some blocks of a launch whose sizes were checked, without writing to device memory, and gives the bytes that the whole launch moves
/// in `buffers`: where each begins, and where its allocation ends.
///
/// The blocks are those at the corners of the grid and some between them. They show how far the launch reaches into each buffer, and what
/// one block moves at most. What depends on values in memory is that of the values that are there.
pub(crate) fn traffic(
    program: &Program,
    launch: &Launch<'_>,
    memory: &dyn Memory,
    limits: &Limits,
    buffers: Vec<(u64, u64)>,
) -> Result<Traffic, ExecError> {
    let blocks = blocks_of(launch);
    let shared = Shared::new(program, launch, memory, limits, sample(launch.grid))?;
    let trace = work(&shared, Some(Trace::new(buffers)));
    shared.error()?;
    Ok(trace.map_or_else(Traffic::default, |trace| trace.traffic(blocks)))
}

/// Blocks between the first and the last of a grid that are run to see what a launch moves.
const BETWEEN: u64 = 12;

/// The corners of a grid, and [`BETWEEN`] blocks between the first and the last, evenly spread.
fn sample([x, y, z]: [u32; 3]) -> Blocks {
    let [x, y, z] = [x, y, z].map(u64::from);
    let ends = |n: u64| if n > 1 { vec![0, n - 1] } else { vec![0] };
    let corners = ends(z).into_iter().flat_map(|k| ends(y).into_iter().map(move |j| (j, k)));
    let mut numbers: Vec<u64> =
        corners.flat_map(|(j, k)| ends(x).into_iter().map(move |i| i + x * (j + y * k))).collect();
    let all = x * y * z;
    let first = numbers.len();
    let between = (1..=BETWEEN).map(|at| all * at / (BETWEEN + 1));
    for number in between {
        if !numbers.contains(&number) {
            numbers.push(number);
        }
    }
    Blocks::Some { numbers, first }
}

/// Runs all blocks of a launch whose sizes were checked.
pub(crate) fn grid(
    program: &Program,
    launch: &Launch<'_>,
    memory: &dyn Memory,
    limits: &Limits,
) -> Result<Counts, ExecError> {
    let blocks = blocks_of(launch);
    let shared = Shared::new(program, launch, memory, limits, Blocks::All(blocks))?;
    // a block that runs for a few microseconds is not worth waking a thread
    let workers = limits.threads.clamp(1, 64).min(usize::try_from(blocks).unwrap_or(usize::MAX));
    if workers == 1 {
        work(&shared, None);
    } else {
        rayon::in_place_scope(|scope| {
            for _ in 1..workers {
                scope.spawn(|_| drop(work(&shared, None)));
            }
            work(&shared, None);
        });
    }
    Ok(Counts { instructions: shared.error()?, blocks })
}

/// Memory of a number of 64-byte lines.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

fn lines(bytes: u64) -> Vec<Line> {
    vec![Line([0; 64]); (bytes as usize).div_ceil(64).max(1)]
}

fn region(memory: &mut [Line], len: u64) -> Region {
    Region { start: 0, len, host: memory.as_mut_ptr().cast() }
}

/// Runs blocks until none is left, and gives the trace back.
fn work(shared: &Shared<'_>, trace: Option<Trace>) -> Option<Trace> {
    let Shared { program, launch, limits, .. } = *shared;
    let threads: u32 = launch.block.iter().product();
    let warp_count = threads.div_ceil(LANES as u32);
    let stride = u64::from(program.register_bytes.next_multiple_of(64).max(64));
    let mut registers = lines(stride * u64::from(warp_count));
    let shared_bytes = program.shared_bytes + u64::from(launch.shared);
    let mut shared_memory = lines(shared_bytes);
    let mut local = lines(program.local_bytes * u64::from(warp_count) * LANES as u64);
    let mut params: Vec<u8> = launch.params.to_vec();
    let start = registers.as_mut_ptr().cast::<u8>();
    let mut warps: Vec<Lockstep> = (0..warp_count)
        .map(|n| {
            // SAFETY: `registers` holds `stride` bytes for each warp and outlives `warps`.
            let at = unsafe { start.add(stride as usize * n as usize) };
            Lockstep::new(Warp::new(at, n * LANES as u32))
        })
        .collect();
    for warp in &mut warps {
        prepare(program, launch, &mut warp.warp, threads, shared_bytes);
    }
    let mut block = Block {
        memory: shared.memory,
        regions: vec![Region { start: 0, len: 0, host: std::ptr::null_mut() }; program.places as usize],
        shared: region(&mut shared_memory, shared_bytes),
        params: Region { start: 0, len: params.len() as u64, host: params.as_mut_ptr() },
        local: region(&mut local, program.local_bytes),
        local_bytes: program.local_bytes,
        threads: warp_count as usize * LANES,
        lists: &program.lists,
        trouble: None,
        races: (limits.races && trace.is_none()).then(|| {
            Races::new(&shared.accessed, program.ops.as_ptr() as usize, warp_count as usize, shared_bytes as usize)
        }),
        trace,
    };
    while !shared.stop.load(Ordering::Relaxed) {
        let number = shared.next_block.fetch_add(1, Ordering::Relaxed);
        let operations = shared.instructions.load(Ordering::Relaxed);
        let Some(number) = shared.blocks.nth(number, operations) else { break };
        let [x, y] = [u64::from(launch.grid[0]), u64::from(launch.grid[1])];
        let index = [(number % x) as u32, (number / x % y) as u32, (number / x / y) as u32];
        // SAFETY: this is the memory that `block.shared` points to, `shared_bytes` long.
        unsafe { block.shared.host.write_bytes(limits.shared_fill, shared_bytes as usize) };
        for (n, warp) in warps.iter_mut().enumerate() {
            let here = threads - n as u32 * LANES as u32;
            warp.restart(if here >= LANES as u32 { !0 } else { (1 << here) - 1 });
            for &(slot, special) in program.specials.iter().filter(|s| s.1.changes_with_block()) {
                if let Special::Block(axis) = special {
                    // SAFETY: the slot is a 32-bit register of this program.
                    unsafe { warp.warp.fill(slot, index[axis as usize]) };
                }
            }
        }
        block.races.iter_mut().for_each(|races| races.begin(number));
        let seed = limits.order.map(|order| order ^ number << 32);
        let result = block::run(program, &mut warps, &mut block, seed, |count| {
            let before = shared.instructions.fetch_add(count, Ordering::Relaxed);
            before + count <= limits.max_instructions && !shared.stop.load(Ordering::Relaxed)
        });
        block.trace.iter_mut().for_each(Trace::end_block);
        if let Err(broken) = result {
            shared.stop.store(true, Ordering::Relaxed);
            let error = explain(broken, index, limits, program);
            let mut slot = shared.error.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            // the block that another one's error stopped has nothing to add
            if slot.is_none() {
                *slot = Some(error);
            }
            break;
        }
    }
    block.trace
}

/// Fills the registers that stay the same in all blocks.
fn prepare(program: &Program, launch: &Launch<'_>, warp: &mut Warp, threads: u32, shared_bytes: u64) {
    for &(slot, width, value) in &program.constants {
        // SAFETY: the slots are registers of this width of this program.
        unsafe {
            match width {
                Width::Pred => warp.fill_predicate(slot, value != 0),
                Width::W16 => warp.fill(slot, value as u16),
                Width::W32 => warp.fill(slot, value as u32),
                Width::W64 => warp.fill(slot, value),
            }
        }
    }
    let [x, y, _] = launch.block;
    for &(slot, special) in &program.specials {
        if let Special::Global(index) = special {
            // SAFETY: the slot is a 64-bit register of this program.
            unsafe { warp.fill(slot, launch.globals[index as usize]) };
            continue;
        }
        for lane in 0..LANES {
            let (bit, thread) = (1_u32 << lane, warp.first_thread + lane as u32);
            let value = match special {
                Special::Thread(0) => thread % x,
                Special::Thread(1) => thread / x % y,
                Special::Thread(_) => thread / x / y,
                Special::Threads(axis) => launch.block[axis as usize],
                Special::Blocks(axis) => launch.grid[axis as usize],
                Special::Block(_) | Special::Global(_) => 0,
                Special::Lane => lane as u32,
                Special::Warp => warp.first_thread / LANES as u32,
                Special::Warps => threads.div_ceil(LANES as u32),
                Special::MaskEqual => bit,
                Special::MaskBelow => bit - 1,
                Special::MaskUpTo => bit | (bit - 1),
                Special::MaskAbove => !(bit | (bit - 1)),
                Special::MaskFrom => !(bit - 1),
                Special::DynamicShared => launch.shared,
                Special::TotalShared => shared_bytes as u32,
            };
            // SAFETY: the slot is a 32-bit register of this program, and `lane` one of its lanes.
            unsafe { warp.set_lane(slot, lane, value) };
        }
    }
}

/// The error that a caller sees.
fn explain(broken: Broken, block: [u32; 3], limits: &Limits, program: &Program) -> ExecError {
    match broken {
        Broken::Stopped => ExecError::TooManyInstructions { limit: limits.max_instructions },
        Broken::Deadlock { group, warp } => {
            let thread = warp as u32 * LANES as u32 + group.mask.trailing_zeros();
            ExecError::Deadlock { fault: Fault { block, thread, line: group.line } }
        }
        Broken::Failed { failure, warp } => {
            let first = warp as u32 * LANES as u32;
            let fault = |lane: u32| Fault { block, thread: first + lane, line: failure.line };
            match failure.trouble {
                Trouble::Illegal { address, bytes, space, lane } => {
                    ExecError::IllegalAddress { address, bytes, space, fault: fault(lane) }
                }
                Trouble::Misaligned { address, bytes, space, lane } => {
                    ExecError::Misaligned { address, bytes, space, fault: fault(lane) }
                }
                Trouble::Diverged => {
                    ExecError::Diverged { mask: failure.mask, fault: fault(failure.mask.trailing_zeros()) }
                }
                Trouble::Race(race) => ExecError::Race {
                    what: if race.writes { "writes" } else { "reads" },
                    space: if race.is_shared { Space::Shared } else { Space::Global },
                    earlier: match (race.earlier, race.elsewhere) {
                        (Some(thread), false) => format!("after thread {thread}"),
                        (Some(thread), true) => format!("as thread {thread} of another block"),
                        (None, _) => "as several threads".to_owned(),
                    },
                    earlier_line: program.lines[race.earlier_op as usize],
                    fault: Fault { block, thread: race.thread, line: program.lines[race.op as usize] },
                },
                Trouble::Trap => ExecError::Trap { fault: fault(failure.mask.trailing_zeros()) },
            }
        }
    }
}
