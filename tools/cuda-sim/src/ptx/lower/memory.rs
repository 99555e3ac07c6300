//! Lowers moves, loads, stores, atomic operations and address conversions.

use super::arithmetic::Modifiers;
use super::builder::{Builder, plain};
use crate::ptx::machine::{
    Access, access, atomic, halves, integer_arithmetic, logic, predicate_logic, quick_conversion,
};
use crate::ptx::text::{Instruction, Operand, Type, Width};
use crate::ptx::{PtxError, Space};

/// Modifiers that say how an access is ordered or cached; here every access is seen by all at once.
const ORDER: [&str; 29] = [
    "volatile",
    "relaxed",
    "acquire",
    "release",
    "acq_rel",
    "weak",
    "cta",
    "cluster",
    "gpu",
    "sys",
    "nc",
    "ca",
    "cg",
    "cs",
    "lu",
    "cv",
    "wb",
    "wt",
    "noftz",
    "mmio",
    "unified",
    "L1::evict_normal",
    "L1::evict_unchanged",
    "L1::evict_first",
    "L1::evict_last",
    "L1::no_allocate",
    "L2::64B",
    "L2::128B",
    "L2::256B",
];

fn space(name: &str) -> Option<Space> {
    Some(match name {
        "global" => Space::Global,
        "shared" | "shared::cta" => Space::Shared,
        "local" => Space::Local,
        "param" | "param::entry" => Space::Param,
        "const" => Space::Const,
        _ => return None,
    })
}

/// Takes the space and the modifiers without effect away.
fn take_space(m: &[&str]) -> (Space, Vec<String>) {
    let found = m.iter().find_map(|m| space(m)).unwrap_or(Space::Generic);
    let rest = m.iter().filter(|m| space(m).is_none() && !ORDER.contains(m)).map(|m| (*m).to_owned()).collect();
    (found, rest)
}

pub(super) fn lower(b: &mut Builder<'_>, i: &Instruction, name: &str, modifiers: &[&str]) -> Result<(), PtxError> {
    match name {
        "mov" => mov(b, i, modifiers),
        "cvta" => cvta(b, i, modifiers),
        "ld" | "ldu" | "st" => load_or_store(b, i, name == "st", modifiers),
        "atom" | "red" => read_modify_write(b, i, name == "red", modifiers),
        "prefetch" | "prefetchu" => Ok(()),
        _ => b.unknown(),
    }
}

fn mov(b: &mut Builder<'_>, i: &Instruction, modifiers: &[&str]) -> Result<(), PtxError> {
    let &[suffix] = modifiers else { return b.unknown() };
    let Some(ty) = Type::from_suffix(suffix) else { return b.unknown() };
    let (target, source) = (b.operand(i, 0)?, b.operand(i, 1)?);
    let width = ty.width();
    if ty == Type::Pred {
        let Some(run) = predicate_logic("mov") else { return b.unknown() };
        let (a, negated) = b.predicate(source)?;
        let d = b.write(target, Width::Pred)?;
        b.push(run, d, a, a, 0, u64::from(negated));
        return Ok(());
    }
    match (target, source) {
        (Operand::List(parts), whole) => {
            let whole = b.read(whole, width)?;
            split(b, parts, whole, width)
        }
        (whole, Operand::List(parts)) => {
            let d = b.write(whole, width)?;
            join(b, parts, d, width)
        }
        _ => {
            let Some(run) = logic("mov", width) else { return b.unknown() };
            let a = b.read(source, width)?;
            let d = b.write(target, width)?;
            b.push(run, d, a, 0, 0, 0);
            Ok(())
        }
    }
}

/// Types of a part and of the whole when a register of `width` has `count` parts.
fn part_of(b: &Builder<'_>, width: Width, count: usize) -> Result<(Type, Type), PtxError> {
    match (width, count) {
        (Width::W32, 2) => Ok((Type::U16, Type::U32)),
        (Width::W64, 2) => Ok((Type::U32, Type::U64)),
        (Width::W64, 4) => Ok((Type::U16, Type::U64)),
        _ => b.unknown(),
    }
}

/// `mov {a, b}, whole`.
fn split(b: &mut Builder<'_>, parts: &[Operand], whole: u32, width: Width) -> Result<(), PtxError> {
    let (part, all) = part_of(b, width, parts.len())?;
    let (Some(low), Some(shift)) = (quick_conversion(plain(part, all)), integer_arithmetic("shr", "", all)) else {
        return b.unknown();
    };
    for (n, target) in parts.iter().enumerate() {
        if matches!(target, Operand::Name(name) if name == "_") {
            continue;
        }
        let d = b.write(target, part.width())?;
        match (n, halves(all.bytes()).filter(|_| parts.len() == 2)) {
            (0, _) => b.push(low, d, whole, 0, 0, 0),
            (_, Some((high, _))) => b.push(high, d, whole, 0, 0, 0),
            (_, None) => {
                let distance = b.constant(Width::W32, u64::from(part.bytes()) * 8 * n as u64);
                let moved = b.allocate(width);
                b.push(shift, moved, whole, distance, 0, 0);
                b.push(low, d, moved, 0, 0, 0);
            }
        }
    }
    Ok(())
}

/// `mov whole, {a, b}`.
fn join(b: &mut Builder<'_>, parts: &[Operand], d: u32, width: Width) -> Result<(), PtxError> {
    let (part, all) = part_of(b, width, parts.len())?;
    if let ([first, second], Some((_, join))) = (parts, halves(all.bytes())) {
        let (first, second) = (b.read(first, part.width())?, b.read(second, part.width())?);
        b.push(join, d, first, second, 0, 0);
        return Ok(());
    }
    // four parts: two halves first
    let Some(((_, join_words), (_, join_all))) = halves(4).zip(halves(8)) else { return b.unknown() };
    let mut words = [0; 2];
    for (word, pair) in words.iter_mut().zip(parts.chunks(2)) {
        let (first, second) = (b.read(&pair[0], part.width())?, b.read(&pair[1], part.width())?);
        *word = b.allocate(Width::W32);
        b.push(join_words, *word, first, second, 0, 0);
    }
    b.push(join_all, d, words[0], words[1], 0, 0);
    Ok(())
}

fn cvta(b: &mut Builder<'_>, i: &Instruction, modifiers: &[&str]) -> Result<(), PtxError> {
    let (to, space) = match modifiers {
        ["to", space, "u64"] => (true, *space),
        [space, "u64"] => (false, *space),
        _ => return b.unknown(),
    };
    let space = space.trim_end_matches("::cta").trim_end_matches("::entry");
    let Some(window) = b.window(space) else { return b.unknown() };
    let Some(run) = integer_arithmetic(if to { "sub" } else { "add" }, "", Type::U64) else { return b.unknown() };
    let a = b.read(b.operand(i, 1)?, Width::W64)?;
    let d = b.write(b.operand(i, 0)?, Width::W64)?;
    b.push(run, d, a, window, 0, 0);
    Ok(())
}

fn load_or_store(b: &mut Builder<'_>, i: &Instruction, store: bool, modifiers: &[&str]) -> Result<(), PtxError> {
    let (space, rest) = take_space(modifiers);
    let rest: Vec<&str> = rest.iter().map(String::as_str).collect();
    let (count, ty) = match rest.as_slice() {
        [ty] => (1, *ty),
        ["v2", ty] => (2, *ty),
        ["v4", ty] => (4, *ty),
        ["v8", ty] => (8, *ty),
        _ => return b.unknown(),
    };
    let Some(ty) = Type::from_suffix(ty) else { return b.unknown() };
    let (value, memory) = if store { (1, 0) } else { (0, 1) };
    let value = b.operand(i, value)?;
    let parts = match value {
        Operand::List(parts) => parts.as_slice(),
        one => std::slice::from_ref(one),
    };
    if parts.len() != count {
        return b.wrong(format!("{} registers for {count} values", parts.len()));
    }
    // registers may be wider than the values, all of them alike
    let width =
        parts.iter().filter(|p| !matches!(p, Operand::Name(_))).find_map(|p| b.width_of(p)).unwrap_or(ty.width());
    let mut slots = Vec::with_capacity(count);
    for part in parts {
        slots.push(if store { b.read(part, width)? } else { b.write(part, width)? });
    }
    let d = if count == 1 { slots[0] } else { b.list(&slots) };
    let memory = b.operand(i, memory)?;
    if let (Space::Param, false, Operand::Address(base, offset)) = (space, store, memory)
        && let Operand::Name(name) = base.as_ref()
        && let Some((Space::Param, start)) = b.variable(name)
    {
        let at = start.wrapping_add(*offset as u64);
        if at.checked_add(u64::from(ty.bytes()) * count as u64).is_none_or(|end| end > b.param_bytes) {
            return b.wrong("a parameter read past its end");
        }
        let Some(run) = access(Access::Param, ty, count, width) else { return b.unknown() };
        b.push(run, d, 0, 0, 0, at);
        return Ok(());
    }
    if store && space == Space::Param {
        return b.wrong("a store to a parameter");
    }
    let Some(run) = access(if store { Access::Store } else { Access::Load }, ty, count, width) else {
        return b.unknown();
    };
    let (base, offset) = b.address(memory)?;
    let place = b.place(space);
    b.push(run, d, base, 0, place, offset);
    Ok(())
}

fn read_modify_write(b: &mut Builder<'_>, i: &Instruction, reduce: bool, modifiers: &[&str]) -> Result<(), PtxError> {
    let (space, rest) = take_space(modifiers);
    let rest: Vec<&str> = rest.iter().map(String::as_str).collect();
    let mut m = Modifiers::new(&rest);
    let &[ty] = m.types().as_slice() else { return b.unknown() };
    let name = m.rest();
    let Some(run) = atomic(&name, ty) else { return b.unknown() };
    let at = usize::from(!reduce);
    let d = if reduce { b.sink(ty.width()) } else { b.write(b.operand(i, 0)?, ty.width())? };
    let (base, offset) = b.address(b.operand(i, at)?)?;
    let first = b.read(b.operand(i, at + 1)?, ty.width())?;
    let second = if name == "cas" { b.read(b.operand(i, at + 2)?, ty.width())? } else { first };
    let list = b.list(&[first, second]);
    let place = b.place(space);
    b.push(run, d, base, list, place, offset);
    Ok(())
}
