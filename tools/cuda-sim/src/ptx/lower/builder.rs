//! Lays out the registers of a kernel and resolves operands to them.

use std::collections::HashMap;

use super::program::{Global, Program, Special};
use crate::ptx::machine::{Conversion, Handler, LOCAL_WINDOW, Op, Place, Rounding, SHARED_WINDOW, quick_conversion};
use crate::ptx::text::{Instruction, KernelText, Operand, Type, Variable, Width, bits};
use crate::ptx::{PtxError, Space};

/// A program under construction, with everything that operands can name.
pub(crate) struct Builder<'a> {
    pub(super) kernel: &'a KernelText,
    /// Slot of each register of the kernel.
    slots: Vec<u32>,
    constants: HashMap<(Width, u64), u32>,
    specials: HashMap<Special, u32>,
    names: HashMap<&'a str, (Space, u64)>,
    globals: &'a [Global],
    pub(super) program: Program,
    pub(super) line: u32,
    pub(super) opcode: String,
    /// A register of each width that nobody reads.
    sinks: HashMap<Width, u32>,
    /// Bytes of the parameters.
    pub(super) param_bytes: u64,
}

impl<'a> Builder<'a> {
    /// A builder for `kernel`; `params` are the offsets of its parameters and their size in all.
    pub(super) fn new(
        kernel: &'a KernelText,
        variables: &'a [Variable],
        globals: &'a [Global],
        params: (&[u64], u64),
    ) -> Self {
        let mut builder = Builder {
            kernel,
            slots: Vec::new(),
            constants: HashMap::new(),
            specials: HashMap::new(),
            names: HashMap::new(),
            globals,
            program: Program::default(),
            line: 0,
            opcode: String::new(),
            sinks: HashMap::new(),
            param_bytes: params.1,
        };
        for (param, &offset) in kernel.params.iter().zip(params.0) {
            builder.names.insert(&param.name, (Space::Param, offset));
        }
        let (mut shared, mut local, mut dynamic) = (0_u64, 0_u64, Vec::new());
        for variable in variables.iter().chain(&kernel.variables) {
            let align = u64::from(variable.align);
            match variable.space {
                Space::Shared if variable.dynamic => dynamic.push(variable),
                Space::Shared => {
                    shared = shared.next_multiple_of(align);
                    builder.names.insert(&variable.name, (Space::Shared, shared));
                    shared += variable.bytes;
                }
                Space::Local => {
                    local = local.next_multiple_of(align);
                    builder.names.insert(&variable.name, (Space::Local, local));
                    local += variable.bytes;
                }
                _ => {}
            }
        }
        // dynamic shared memory starts behind the static one, and all such arrays start at the same place
        let align = dynamic.iter().map(|v| u64::from(v.align)).max().unwrap_or(1).max(16);
        let shared = shared.next_multiple_of(align);
        for variable in dynamic {
            builder.names.insert(&variable.name, (Space::Shared, shared));
        }
        builder.program.shared_bytes = shared;
        builder.program.local_bytes = local.next_multiple_of(16);
        builder.slots = kernel.registers.iter().map(|&width| builder.allocate(width)).collect::<Vec<_>>();
        builder
    }

    /// A fresh register.
    pub(super) fn allocate(&mut self, width: Width) -> u32 {
        let bytes = width.slot_bytes();
        let slot = self.program.register_bytes.next_multiple_of(bytes.min(64));
        self.program.register_bytes = slot + bytes;
        slot
    }

    /// A register that always holds `value`.
    pub(super) fn constant(&mut self, width: Width, value: u64) -> u32 {
        if let Some(&slot) = self.constants.get(&(width, value)) {
            return slot;
        }
        let slot = self.allocate(width);
        self.constants.insert((width, value), slot);
        self.program.constants.push((slot, width, value));
        slot
    }

    pub(super) fn special(&mut self, special: Special) -> u32 {
        if let Some(&slot) = self.specials.get(&special) {
            return slot;
        }
        let slot = self.allocate(special.width());
        self.specials.insert(special, slot);
        self.program.specials.push((slot, special));
        slot
    }

    /// A register for results that nobody reads.
    pub(super) fn sink(&mut self, width: Width) -> u32 {
        if let Some(&slot) = self.sinks.get(&width) {
            return slot;
        }
        let slot = self.allocate(width);
        self.sinks.insert(width, slot);
        slot
    }

    /// Adds an operation.
    pub(super) fn push(&mut self, run: Handler, d: u32, a: u32, b: u32, c: u32, x: u64) {
        self.program.ops.push(Op { run, d, a, b, c, x });
        self.program.lines.push(self.line);
    }

    /// Adds registers to the table of lists; gives where they start.
    pub(super) fn list(&mut self, slots: &[u32]) -> u32 {
        let at = self.program.lists.len() as u32;
        self.program.lists.extend_from_slice(slots);
        at
    }

    /// The entry of a new memory operation.
    pub(super) fn place(&mut self, space: Space) -> u32 {
        self.program.places += 1;
        Place { space, entry: self.program.places - 1 }.pack()
    }

    pub(super) fn unknown<T>(&self) -> Result<T, PtxError> {
        Err(PtxError::UnknownInstruction { line: self.line, instruction: self.opcode.clone() })
    }

    pub(super) fn wrong<T>(&self, what: impl Into<String>) -> Result<T, PtxError> {
        Err(PtxError::Operand { line: self.line, instruction: self.opcode.clone(), what: what.into() })
    }

    fn undeclared<T>(&self, name: &str) -> Result<T, PtxError> {
        Err(PtxError::UnknownName { line: self.line, name: name.to_owned() })
    }

    /// The operand at `index`.
    pub(super) fn operand<'i>(&self, instruction: &'i Instruction, index: usize) -> Result<&'i Operand, PtxError> {
        match instruction.operands.get(index) {
            Some(operand) => Ok(operand),
            None => self.wrong(format!("operand {} is missing", index + 1)),
        }
    }

    /// Width of the register that an operand names, if it names one.
    pub(super) fn width_of(&self, operand: &Operand) -> Option<Width> {
        match operand {
            Operand::Register(r) | Operand::Not(r) => Some(self.kernel.registers[*r as usize]),
            Operand::Name(name) => Special::parse(name).map(Special::width),
            _ => None,
        }
    }

    /// Space and offset of a variable or parameter.
    pub(super) fn variable(&self, name: &str) -> Option<(Space, u64)> {
        self.names.get(name).copied()
    }

    /// A register that holds the address of a variable in its own space.
    fn address_of(&mut self, name: &str, offset: i64, width: Width) -> Result<u32, PtxError> {
        if let Some((_, base)) = self.variable(name) {
            return Ok(self.constant(width, base.wrapping_add(offset as u64)));
        }
        if let Some(index) = self.globals.iter().find(|g| g.name == name).map(|g| g.index) {
            if offset == 0 && width == Width::W64 {
                return Ok(self.special(Special::Global(index)));
            }
            return self.wrong("an offset from a global variable outside of brackets");
        }
        self.undeclared(name)
    }

    /// The register that an instruction reads for `operand`, as wide as `width`.
    pub(super) fn read(&mut self, operand: &Operand, width: Width) -> Result<u32, PtxError> {
        match operand {
            Operand::Register(r) => {
                let have = self.kernel.registers[*r as usize];
                let slot = self.slots[*r as usize];
                if have == width { Ok(slot) } else { self.narrowed(slot, have, width) }
            }
            Operand::Number(number) => match bits(*number, width) {
                Some(value) => Ok(self.constant(width, value)),
                None => self.wrong(format!("{number:?} does not fit {width:?}")),
            },
            Operand::Name(name) => {
                if let Some(special) = Special::parse(name) {
                    let slot = self.special(special);
                    return if special.width() == width {
                        Ok(slot)
                    } else {
                        self.narrowed(slot, special.width(), width)
                    };
                }
                match name.as_str() {
                    "_" => Ok(self.sink(width)),
                    "WARP_SZ" => Ok(self.constant(width, 32)),
                    _ => self.address_of(name, 0, width),
                }
            }
            Operand::Sum(name, offset) => self.address_of(name, *offset, width),
            _ => self.wrong("expected a register or a constant"),
        }
    }

    /// The low part of a register that is wider than what the instruction reads.
    fn narrowed(&mut self, slot: u32, have: Width, want: Width) -> Result<u32, PtxError> {
        let of = |width| match width {
            Width::W16 => Some(Type::U16),
            Width::W32 => Some(Type::U32),
            Width::W64 => Some(Type::U64),
            Width::Pred => None,
        };
        let handler = match (of(want), of(have)) {
            (Some(to), Some(from)) if to.bytes() < from.bytes() => quick_conversion(plain(to, from)),
            _ => None,
        };
        let Some(handler) = handler else {
            return self.wrong(format!("a register of {have:?} where {want:?} is read"));
        };
        let out = self.allocate(want);
        self.push(handler, out, slot, 0, 0, 0);
        Ok(out)
    }

    /// The register that an instruction writes for `operand`, which must be as wide as `width`.
    pub(super) fn write(&mut self, operand: &Operand, width: Width) -> Result<u32, PtxError> {
        match operand {
            Operand::Register(r) if self.kernel.registers[*r as usize] == width => Ok(self.slots[*r as usize]),
            Operand::Register(r) => {
                self.wrong(format!("a register of {:?} where {width:?} is written", self.kernel.registers[*r as usize]))
            }
            Operand::Name(name) if name == "_" => Ok(self.sink(width)),
            _ => self.wrong("expected a register"),
        }
    }

    /// A register operand as it is, with its width.
    pub(super) fn register(&mut self, operand: &Operand) -> Result<(u32, Width), PtxError> {
        match operand {
            Operand::Register(r) => Ok((self.slots[*r as usize], self.kernel.registers[*r as usize])),
            _ => self.wrong("expected a register"),
        }
    }

    /// A predicate and whether it is negated.
    pub(super) fn predicate(&mut self, operand: &Operand) -> Result<(u32, bool), PtxError> {
        match operand {
            Operand::Not(r) => Ok((self.read(&Operand::Register(*r), Width::Pred)?, true)),
            other => Ok((self.read(other, Width::Pred)?, false)),
        }
    }

    /// A memory operand: a 64-bit register with the base, and the offset from it.
    pub(super) fn address(&mut self, operand: &Operand) -> Result<(u32, u64), PtxError> {
        let Operand::Address(base, offset) = operand else { return self.wrong("expected an address in brackets") };
        let slot = match base.as_ref() {
            Operand::Register(r) if self.kernel.registers[*r as usize] == Width::W32 => {
                let narrow = self.slots[*r as usize];
                let Some(handler) = quick_conversion(plain(Type::U64, Type::U32)) else { return self.unknown() };
                let wide = self.allocate(Width::W64);
                self.push(handler, wide, narrow, 0, 0, 0);
                wide
            }
            other => self.read(other, Width::W64)?,
        };
        Ok((slot, *offset as u64))
    }

    /// The start of the generic window of `space`, as an operand to add or subtract.
    pub(super) fn window(&mut self, space: &str) -> Option<u32> {
        match space {
            "global" | "const" | "param" => Some(self.constant(Width::W64, 0)),
            "shared" => Some(self.constant(Width::W64, SHARED_WINDOW)),
            "local" => Some(self.constant(Width::W64, LOCAL_WINDOW)),
            _ => None,
        }
    }
}

/// A conversion without modifiers.
pub(super) fn plain(to: Type, from: Type) -> Conversion {
    Conversion { to, from, rounding: Rounding::Near, integral: false, saturate: false, flush: false }
}
