//! A parsed module and its kernels.

use super::error::{ExecError, PtxError};
use super::launch::{Counts, Launch, Limits, Traffic};
use super::lower::{self, Program, lower};
use super::memory::Memory;
use super::run;
use super::text::{self, Source};
use super::{Space, text::KernelText};

/// A PTX text, parsed and lowered: every kernel in it can run.
#[derive(Debug)]
pub struct Module {
    version: String,
    target: String,
    kernels: Vec<Kernel>,
    globals: Vec<Global>,
}

/// A variable of a module in device memory. The program that loads the module allocates it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Global {
    /// Its name in the text.
    pub name: String,
    /// Size in bytes.
    pub bytes: u64,
    /// Alignment in bytes.
    pub align: u32,
    /// Its first bytes; the rest is zero.
    pub init: Vec<u8>,
    /// Whether it is declared in constant memory.
    pub constant: bool,
}

/// Where a parameter lies in [`Launch::params`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Param {
    /// Offset in bytes.
    pub offset: u32,
    /// Size in bytes.
    pub bytes: u32,
    /// Alignment in bytes.
    pub align: u32,
}

/// One `.entry` of a module.
#[derive(Debug)]
pub struct Kernel {
    name: String,
    params: Vec<Param>,
    param_bytes: u32,
    max_threads: Option<[u32; 3]>,
    exact_threads: bool,
    registers: u32,
    program: Program,
}

impl Module {
    /// Parses `text` and lowers all its kernels.
    ///
    /// # Errors
    /// Every reason of [`PtxError`]; an unknown instruction anywhere in the text refuses the module.
    pub fn parse(text: &str) -> Result<Module, PtxError> {
        let source = text::read(text)?;
        let in_memory = |space| matches!(space, Space::Global | Space::Const);
        let named: Vec<_> = source.variables.iter().filter(|v| in_memory(v.space)).collect();
        let globals = named
            .iter()
            .map(|v| Global {
                name: v.name.clone(),
                bytes: v.bytes,
                align: v.align,
                init: v.init.clone(),
                constant: v.space == Space::Const,
            })
            .collect();
        let names: Vec<_> = named
            .iter()
            .enumerate()
            .map(|(index, v)| lower::Global { name: v.name.clone(), index: index as u32 })
            .collect();
        let kernels = source.kernels.iter().map(|k| Kernel::new(k, &source, &names)).collect::<Result<_, _>>()?;
        Ok(Module { version: source.version, target: source.target, kernels, globals })
    }

    /// The PTX version the text names, such as `8.7`.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.version
    }

    /// The architecture the text names, such as `sm_90a`.
    #[must_use]
    pub fn target(&self) -> &str {
        &self.target
    }

    /// The kernels, in the order of the text.
    pub fn kernels(&self) -> impl Iterator<Item = &Kernel> {
        self.kernels.iter()
    }

    /// The kernel of this name.
    #[must_use]
    pub fn kernel(&self, name: &str) -> Option<&Kernel> {
        self.kernels.iter().find(|k| k.name == name)
    }

    /// The variables in device memory, in the order of the text.
    #[must_use]
    pub fn globals(&self) -> &[Global] {
        &self.globals
    }
}

impl Kernel {
    fn new(kernel: &KernelText, source: &Source, globals: &[lower::Global]) -> Result<Kernel, PtxError> {
        let mut end = 0_u32;
        let mut params = Vec::with_capacity(kernel.params.len());
        for param in &kernel.params {
            let offset = end.next_multiple_of(param.align);
            params.push(Param { offset, bytes: param.bytes, align: param.align });
            end = offset + param.bytes;
        }
        let offsets: Vec<u64> = params.iter().map(|p| u64::from(p.offset)).collect();
        let program = lower(kernel, &source.variables, globals, (&offsets, u64::from(end)))?;
        Ok(Kernel {
            name: kernel.name.clone(),
            params,
            param_bytes: end,
            max_threads: kernel.max_threads,
            exact_threads: kernel.exact_threads,
            registers: kernel.registers.len() as u32,
            program,
        })
    }

    /// Its name in the text.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where each parameter lies.
    #[must_use]
    pub fn params(&self) -> &[Param] {
        &self.params
    }

    /// Bytes of all parameters.
    #[must_use]
    pub fn param_bytes(&self) -> u32 {
        self.param_bytes
    }

    /// Bytes of shared memory that the text declares.
    #[must_use]
    pub fn shared_bytes(&self) -> u64 {
        self.program.shared_bytes
    }

    /// Bytes of local memory of one thread.
    #[must_use]
    pub fn local_bytes(&self) -> u64 {
        self.program.local_bytes
    }

    /// Registers that the text declares; an assembler needs fewer, because their lives do not overlap.
    #[must_use]
    pub fn registers(&self) -> u32 {
        self.registers
    }

    /// Threads a block may have (`.maxntid`), or must have (`.reqntid`).
    #[must_use]
    pub fn max_threads(&self) -> Option<[u32; 3]> {
        self.max_threads
    }

    /// Runs the whole grid and returns when its last block has ended.
    ///
    /// # Errors
    /// [`ExecError::InvalidLaunch`] before anything runs; every other reason of [`ExecError`] after some blocks may
    /// have run and written to memory, as on a GPU.
    pub fn run(&self, launch: &Launch<'_>, memory: &dyn Memory, limits: &Limits) -> Result<Counts, ExecError> {
        self.check(launch)?;
        run::grid(&self.program, launch, memory, limits)
    }

    /// The bytes of device memory that a launch moves, from a few of its blocks, which write nothing to device memory. A buffer begins at each
    /// 64-bit parameter that is an address of `memory`.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn traffic(&self, launch: &Launch<'_>, memory: &dyn Memory, limits: &Limits) -> Result<Traffic, ExecError> {
        self.check(launch)?;
        let address = |param: &Param| {
            let bytes = launch.params.get(param.offset as usize..)?.first_chunk::<8>()?;
            let start = u64::from_le_bytes(*bytes);
            memory.region(start).map(|region| (start, region.start + region.len))
        };
        let buffers = self.params.iter().filter(|param| param.bytes == 8).filter_map(address).collect();
        run::traffic(&self.program, launch, memory, limits, buffers)
    }

    fn check(&self, launch: &Launch<'_>) -> Result<(), ExecError> {
        if launch.params.len() != self.param_bytes as usize {
            return Err(ExecError::InvalidLaunch { what: "the parameters have another size than the kernel declares" });
        }
        let threads = launch.block.iter().try_fold(1_u32, |n, &x| n.checked_mul(x)).filter(|n| (1..=1024).contains(n));
        if threads.is_none() {
            return Err(ExecError::InvalidLaunch { what: "a block needs 1 to 1024 threads" });
        }
        if launch.grid.contains(&0) {
            return Err(ExecError::InvalidLaunch { what: "a grid without blocks" });
        }
        if let Some(most) = self.max_threads {
            let fits = launch.block.iter().zip(most).all(|(&n, m)| n <= m);
            if !fits || self.exact_threads && launch.block != most {
                return Err(ExecError::InvalidLaunch {
                    what: "the block is not the one that the kernel was compiled for",
                });
            }
        }
        Ok(())
    }
}
