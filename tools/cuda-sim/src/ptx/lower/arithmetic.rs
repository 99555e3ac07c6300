//! Lowers arithmetic, logic, comparisons and conversions.

use super::builder::Builder;
use crate::ptx::PtxError;
use crate::ptx::machine::{
    Conversion, Handler, Modes, Rounding, carry, carrying, field, float_arithmetic, half_arithmetic,
    integer_arithmetic, logic, pack_conversion, pair_arithmetic, predicate_logic, quick_conversion, select,
    slow_conversion, test, to_pair,
};
use crate::ptx::text::{Instruction, Kind, Operand, Type, Width};

/// Modifiers of an opcode, taken away one by one.
pub(super) struct Modifiers<'m>(Vec<&'m str>);

impl<'m> Modifiers<'m> {
    pub(super) fn new(modifiers: &[&'m str]) -> Self {
        Modifiers(modifiers.to_vec())
    }

    /// Takes `name` away; whether it was there.
    pub(super) fn take(&mut self, name: &str) -> bool {
        let at = self.0.iter().position(|m| *m == name);
        at.map(|at| self.0.remove(at)).is_some()
    }

    /// Takes the types away, in their order.
    pub(super) fn types(&mut self) -> Vec<Type> {
        let found = self.0.iter().filter_map(|m| Type::from_suffix(m)).collect();
        self.0.retain(|m| Type::from_suffix(m).is_none());
        found
    }

    /// The modifiers that are left, joined as they were written.
    pub(super) fn rest(&self) -> String {
        self.0.join(".")
    }

    /// Takes a rounding away: `rn`, and with an `i` for rounding to a whole number.
    fn rounding(&mut self) -> Option<(Rounding, bool)> {
        let known = [
            ("rn", Rounding::Near),
            ("rna", Rounding::Away),
            ("rz", Rounding::Zero),
            ("rm", Rounding::Down),
            ("rp", Rounding::Up),
        ];
        for (name, rounding) in known {
            if self.take(name) {
                return Some((rounding, false));
            }
            if self.take(&format!("{name}i")) {
                return Some((rounding, true));
            }
        }
        None
    }
}

pub(super) fn lower(b: &mut Builder<'_>, i: &Instruction, name: &str, modifiers: &[&str]) -> Result<(), PtxError> {
    let mut m = Modifiers::new(modifiers);
    let types = m.types();
    match name {
        "setp" => return compare(b, i, m, &types),
        "cvt" => return convert(b, i, m, &types),
        "selp" => {
            let Some(&ty) = types.first() else { return b.unknown() };
            let Some(run) = select(ty.width()).filter(|_| m.0.is_empty()) else { return b.unknown() };
            let (predicate, negated) = b.predicate(b.operand(i, 3)?)?;
            if negated {
                return b.wrong("a negated predicate");
            }
            let first = b.read(b.operand(i, 1)?, ty.width())?;
            let second = b.read(b.operand(i, 2)?, ty.width())?;
            let d = b.write(b.operand(i, 0)?, ty.width())?;
            b.push(run, d, first, second, predicate, 0);
            return Ok(());
        }
        _ => {}
    }
    let &[ty] = types.as_slice() else { return b.unknown() };
    if ty == Type::Pred {
        return predicates(b, i, name);
    }
    if m.take("cc") || matches!(name, "addc" | "subc" | "madc") {
        return with_carry(b, i, name, modifiers, &m, ty);
    }
    if matches!(ty.kind(), Kind::Float) {
        let rounding = m.rounding();
        let modes = Modes {
            flush: m.take("ftz"),
            saturate: m.take("sat"),
            rounding: match rounding {
                Some((rounding, false)) => rounding,
                Some(_) => return b.unknown(),
                None => Rounding::Near,
            },
        };
        let handler = if matches!(ty, Type::F32 | Type::F64) {
            float_arithmetic(name, &m.rest(), modes, ty)
        } else if modes.saturate || modes.rounding != Rounding::Near {
            None
        } else {
            let form = if modes.flush { m.rest() + ".ftz" } else { m.rest() };
            match ty {
                Type::F32x2 => pair_arithmetic(name, &form),
                _ => half_arithmetic(name, &form, ty),
            }
        };
        return same_width(b, i, handler, ty);
    }
    let form = m.rest();
    let width = ty.width();
    match (name, form.as_str()) {
        ("and" | "or" | "xor" | "not", "") => same_width(b, i, logic(name, width), ty),
        ("shl", "") => shift(b, i, logic(name, width), width),
        ("shr", "") => shift(b, i, integer_arithmetic(name, "", ty), width),
        ("popc" | "clz", "") => {
            let Some(run) = logic(name, width) else { return b.unknown() };
            let a = b.read(b.operand(i, 1)?, width)?;
            let d = b.write(b.operand(i, 0)?, Width::W32)?;
            b.push(run, d, a, 0, 0, 0);
            Ok(())
        }
        ("brev", "") => same_width(b, i, logic(name, width), ty),
        ("mul" | "mad", "wide") => wide(b, i, integer_arithmetic(name, "wide", ty), width),
        ("bfe", "") => {
            let Some(run) = field("bfe", ty) else { return b.unknown() };
            let a = b.read(b.operand(i, 1)?, width)?;
            let position = b.read(b.operand(i, 2)?, Width::W32)?;
            let length = b.read(b.operand(i, 3)?, Width::W32)?;
            let d = b.write(b.operand(i, 0)?, width)?;
            b.push(run, d, a, position, length, 0);
            Ok(())
        }
        ("bfi", "") => {
            let Some(run) = field("bfi", ty) else { return b.unknown() };
            let a = b.read(b.operand(i, 1)?, width)?;
            let base = b.read(b.operand(i, 2)?, width)?;
            let position = b.read(b.operand(i, 3)?, Width::W32)?;
            let length = b.read(b.operand(i, 4)?, Width::W32)?;
            let d = b.write(b.operand(i, 0)?, width)?;
            b.push(run, d, a, base, position, u64::from(length));
            Ok(())
        }
        ("prmt", "") => same_width(b, i, field("prmt", ty), ty),
        ("lop3", "") => {
            let Some(run) = field("lop3", ty) else { return b.unknown() };
            let Operand::Number(table) = b.operand(i, 4)? else { return b.wrong("the table is no constant") };
            let Some(table) = crate::ptx::text::bits(*table, Width::W32) else {
                return b.wrong("the table is no integer");
            };
            let slots =
                [b.read(b.operand(i, 1)?, width)?, b.read(b.operand(i, 2)?, width)?, b.read(b.operand(i, 3)?, width)?];
            let d = b.write(b.operand(i, 0)?, width)?;
            b.push(run, d, slots[0], slots[1], slots[2], table);
            Ok(())
        }
        ("shf", _) => same_width(b, i, field(&format!("shf.{form}"), ty), ty),
        _ => same_width(b, i, integer_arithmetic(name, &form, ty), ty),
    }
}

/// `d = f(a, b, c)` with every operand as wide as the type.
fn same_width(b: &mut Builder<'_>, i: &Instruction, run: Option<Handler>, ty: Type) -> Result<(), PtxError> {
    let Some(run) = run else { return b.unknown() };
    let name = i.opcode.split('.').next().unwrap_or_default();
    let count = match name {
        "not" | "neg" | "abs" | "brev" | "rcp" | "sqrt" | "rsqrt" | "ex2" | "lg2" | "sin" | "cos" | "tanh" => 1,
        "fma" | "mad" | "prmt" | "shf" => 3,
        _ => 2,
    };
    if i.operands.len() != count + 1 {
        return b.wrong(format!("{} operands where {} are expected", i.operands.len(), count + 1));
    }
    let mut slots = [0; 3];
    for (slot, operand) in slots.iter_mut().zip(&i.operands[1..]) {
        *slot = b.read(operand, ty.width())?;
    }
    let d = b.write(b.operand(i, 0)?, ty.width())?;
    b.push(run, d, slots[0], slots[1], slots[2], 0);
    Ok(())
}

/// A shift, whose distance has 32 bits.
fn shift(b: &mut Builder<'_>, i: &Instruction, run: Option<Handler>, width: Width) -> Result<(), PtxError> {
    let Some(run) = run else { return b.unknown() };
    let a = b.read(b.operand(i, 1)?, width)?;
    let distance = b.read(b.operand(i, 2)?, Width::W32)?;
    let d = b.write(b.operand(i, 0)?, width)?;
    b.push(run, d, a, distance, 0, 0);
    Ok(())
}

/// A product of twice the width, and what is added to it.
fn wide(b: &mut Builder<'_>, i: &Instruction, run: Option<Handler>, width: Width) -> Result<(), PtxError> {
    let Some(run) = run else { return b.unknown() };
    let double = if width == Width::W16 { Width::W32 } else { Width::W64 };
    let first = b.read(b.operand(i, 1)?, width)?;
    let second = b.read(b.operand(i, 2)?, width)?;
    let third = if i.operands.len() > 3 { b.read(b.operand(i, 3)?, double)? } else { 0 };
    let d = b.write(b.operand(i, 0)?, double)?;
    b.push(run, d, first, second, third, 0);
    Ok(())
}

fn predicates(b: &mut Builder<'_>, i: &Instruction, name: &str) -> Result<(), PtxError> {
    let not = name == "not";
    let Some(run) = predicate_logic(if not { "mov" } else { name }) else { return b.unknown() };
    let (first, flip) = b.predicate(b.operand(i, 1)?)?;
    let (second, flip_second) = if i.operands.len() > 2 { b.predicate(b.operand(i, 2)?)? } else { (first, false) };
    let d = b.write(b.operand(i, 0)?, Width::Pred)?;
    b.push(run, d, first, second, 0, u64::from(flip != not) | u64::from(flip_second) << 1);
    Ok(())
}

fn with_carry(
    b: &mut Builder<'_>,
    i: &Instruction,
    name: &str,
    modifiers: &[&str],
    left: &Modifiers<'_>,
    ty: Type,
) -> Result<(), PtxError> {
    let mut flags = match name {
        "add" => 0,
        "addc" => carry::IN,
        "sub" => carry::SUB,
        "subc" => carry::SUB | carry::IN,
        "mad" => carry::MAD,
        "madc" => carry::MAD | carry::IN,
        _ => return b.unknown(),
    };
    if modifiers.contains(&"cc") {
        flags |= carry::OUT;
    }
    let signed = ty.kind() == Kind::Signed;
    match (flags & carry::MAD != 0, left.rest().as_str()) {
        (false, "") | (true, "lo") => {}
        // the high half of a signed product is another number
        (true, "hi") if !signed => flags |= carry::HIGH,
        _ => return b.unknown(),
    }
    let Some(run) = carrying(ty.width()) else { return b.unknown() };
    let first = b.read(b.operand(i, 1)?, ty.width())?;
    let second = b.read(b.operand(i, 2)?, ty.width())?;
    let third = if i.operands.len() > 3 { b.read(b.operand(i, 3)?, ty.width())? } else { second };
    let d = b.write(b.operand(i, 0)?, ty.width())?;
    b.push(run, d, first, second, third, flags);
    Ok(())
}

fn compare(b: &mut Builder<'_>, i: &Instruction, mut m: Modifiers<'_>, types: &[Type]) -> Result<(), PtxError> {
    let flush = m.take("ftz");
    let (&[name], &[ty]) = (m.0.as_slice(), types) else { return b.unknown() };
    let Some(run) = test(name, ty, flush) else { return b.unknown() };
    let Operand::Pair(..) = b.operand(i, 0)? else {
        let first = b.read(b.operand(i, 1)?, ty.width())?;
        let second = b.read(b.operand(i, 2)?, ty.width())?;
        let d = b.write(b.operand(i, 0)?, Width::Pred)?;
        b.push(run, d, first, second, 0, 0);
        return Ok(());
    };
    b.wrong("a second predicate")
}

fn convert(b: &mut Builder<'_>, i: &Instruction, mut m: Modifiers<'_>, types: &[Type]) -> Result<(), PtxError> {
    let rounding = m.rounding();
    let (flush, saturate, relu) = (m.take("ftz"), m.take("sat"), m.take("relu"));
    let &[to, from] = types else { return b.unknown() };
    if !m.0.is_empty() {
        return b.unknown();
    }
    if matches!(to, Type::F16x2 | Type::BF16x2) {
        let near = rounding == Some((Rounding::Near, false)) && !flush && !saturate && from == Type::F32;
        let Some(run) = to_pair(to, relu).filter(|_| near) else { return b.unknown() };
        let high = b.read(b.operand(i, 1)?, Width::W32)?;
        let low = b.read(b.operand(i, 2)?, Width::W32)?;
        let d = b.write(b.operand(i, 0)?, Width::W32)?;
        b.push(run, d, high, low, 0, 0);
        return Ok(());
    }
    if relu {
        return b.unknown();
    }
    let (rounding, integral) = rounding.unwrap_or((Rounding::Near, false));
    let conversion = Conversion { to, from, rounding, integral, saturate, flush };
    let a = b.read(b.operand(i, 1)?, from.width())?;
    let (target, width) = match b.operand(i, 0)? {
        Operand::Name(name) if name == "_" => (b.sink(to.width()), to.width()),
        operand => b.register(operand)?,
    };
    // the register may be wider than the type: the value is then extended by the sign of the type
    let exact = width == to.width() && to.bytes() > 1;
    let d = if exact { target } else { b.allocate(to.width()) };
    match (quick_conversion(conversion), pack_conversion(conversion)) {
        (Some(run), _) => b.push(run, d, a, 0, 0, 0),
        (None, Some(x)) => b.push(slow_conversion(conversion), d, a, 0, 0, x),
        (None, None) => return b.unknown(),
    }
    if exact {
        return Ok(());
    }
    let wider = match (width, to.kind()) {
        (Width::W16, Kind::Signed) => Type::S16,
        (Width::W16, _) => Type::U16,
        (Width::W32, Kind::Signed) => Type::S32,
        (Width::W32, _) => Type::U32,
        (Width::W64, Kind::Signed) => Type::S64,
        (Width::W64, _) => Type::U64,
        (Width::Pred, _) => return b.wrong("a predicate as the target"),
    };
    let extend =
        Conversion { to: wider, from: to, rounding: Rounding::Near, integral: false, saturate: false, flush: false };
    match (quick_conversion(extend), pack_conversion(extend)) {
        (Some(run), _) => b.push(run, target, d, 0, 0, 0),
        (None, Some(x)) => b.push(slow_conversion(extend), target, d, 0, 0, x),
        (None, None) => return b.unknown(),
    }
    Ok(())
}
