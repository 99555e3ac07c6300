//! Lowers operations of a whole warp: shuffles, votes and matrix products.

use super::arithmetic::Modifiers;
use super::builder::Builder;
use crate::ptx::machine::{
    Fragment, Mma, Shape, active, load_fragment, load_rows, match_any, mma, reduce, shuffle, store_fragment,
    store_rows, trap, vote, wmma,
};
use crate::ptx::text::{Instruction, Operand, Type, Width};
use crate::ptx::{PtxError, Space};

/// The register with the lanes that must arrive before an instruction runs, if it waits for any.
pub(super) fn waits_for(b: &mut Builder<'_>, i: &Instruction) -> Result<Option<u32>, PtxError> {
    let waits = ["shfl.sync", "vote.sync", "redux.sync", "match.any.sync"];
    if !waits.iter().any(|w| i.opcode.starts_with(w)) {
        return Ok(None);
    }
    match i.operands.last() {
        Some(mask) => Ok(Some(b.read(mask, Width::W32)?)),
        None => b.wrong("no mask of lanes"),
    }
}

pub(super) fn lower(b: &mut Builder<'_>, i: &Instruction, name: &str, modifiers: &[&str]) -> Result<(), PtxError> {
    match (name, modifiers) {
        ("shfl", ["sync", mode, "b32"]) => shuffled(b, i, mode),
        ("vote", ["sync", kind, "b32" | "pred"]) => voted(b, i, kind),
        ("redux", ["sync", operation, ty @ ("u32" | "s32" | "b32")]) => {
            let Some(run) = reduce(operation, *ty == "s32") else { return b.unknown() };
            let a = b.read(b.operand(i, 1)?, Width::W32)?;
            let d = b.write(b.operand(i, 0)?, Width::W32)?;
            b.push(run, d, a, 0, 0, 0);
            Ok(())
        }
        ("match", ["any", "sync", "b32"]) => {
            let a = b.read(b.operand(i, 1)?, Width::W32)?;
            let d = b.write(b.operand(i, 0)?, Width::W32)?;
            b.push(match_any(), d, a, 0, 0, 0);
            Ok(())
        }
        ("activemask", ["b32"]) => {
            let d = b.write(b.operand(i, 0)?, Width::W32)?;
            b.push(active(), d, 0, 0, 0, 0);
            Ok(())
        }
        ("trap", []) => {
            b.push(trap(), 0, 0, 0, 0, 0);
            Ok(())
        }
        ("ldmatrix" | "stmatrix", ["sync", "aligned", rest @ ..]) => rows(b, i, name == "stmatrix", rest),
        ("mma", ["sync", "aligned", shape, "row", "col", d, a, second, c]) => {
            let types = [d, a, second, c].map(|t| Type::from_suffix(t));
            let (Some(shape), [Some(d), Some(a), Some(second), Some(c)]) = (Shape::parse(shape), types) else {
                return b.unknown();
            };
            let Some(found) = mma(shape, a, d).filter(|_| a == second && c == d) else { return b.unknown() };
            product(b, i, found)
        }
        ("wmma", ["mma", "sync", "aligned", "row" | "col", "row" | "col", shape, types @ ..]) => {
            let types: Vec<_> = types.iter().filter_map(|t| Type::from_suffix(t)).collect();
            let (ty, d, c) = match *types.as_slice() {
                [d, c] => (Type::F16, d, c),
                [d, a, second, c] if a == second => (a, d, c),
                _ => return b.unknown(),
            };
            let Some(found) = Shape::parse(shape).and_then(|shape| wmma(shape, ty, d, c)) else { return b.unknown() };
            product(b, i, found)
        }
        (
            "wmma",
            [way @ ("load" | "store"), operand, "sync", "aligned", layout @ ("row" | "col"), shape, rest @ ..],
        ) => {
            let Some(shape) = Shape::parse(shape) else { return b.unknown() };
            fragment(b, i, *way == "store", operand, *layout == "col", shape, rest)
        }
        _ => b.unknown(),
    }
}

fn shuffled(b: &mut Builder<'_>, i: &Instruction, mode: &str) -> Result<(), PtxError> {
    let Some(run) = shuffle(mode) else { return b.unknown() };
    let a = b.read(b.operand(i, 1)?, Width::W32)?;
    let lane = b.read(b.operand(i, 2)?, Width::W32)?;
    let clamp = b.read(b.operand(i, 3)?, Width::W32)?;
    let (d, inside) = match b.operand(i, 0)? {
        Operand::Pair(d, p) => (b.write(d, Width::W32)?, b.write(p, Width::Pred)?),
        d => (b.write(d, Width::W32)?, b.sink(Width::Pred)),
    };
    b.push(run, d, a, lane, clamp, u64::from(inside));
    Ok(())
}

fn voted(b: &mut Builder<'_>, i: &Instruction, kind: &str) -> Result<(), PtxError> {
    let Some(run) = vote(kind) else { return b.unknown() };
    let (a, negated) = b.predicate(b.operand(i, 1)?)?;
    let width = if kind == "ballot" { Width::W32 } else { Width::Pred };
    let d = b.write(b.operand(i, 0)?, width)?;
    b.push(run, d, a, 0, 0, u64::from(negated));
    Ok(())
}

/// The registers of a list operand, each of 32 bits.
fn registers(b: &mut Builder<'_>, operand: &Operand, write: bool) -> Result<Vec<u32>, PtxError> {
    let parts = match operand {
        Operand::List(parts) => parts.as_slice(),
        one => std::slice::from_ref(one),
    };
    parts.iter().map(|part| if write { b.write(part, Width::W32) } else { b.read(part, Width::W32) }).collect()
}

fn rows(b: &mut Builder<'_>, i: &Instruction, store: bool, modifiers: &[&str]) -> Result<(), PtxError> {
    let mut m = Modifiers::new(modifiers);
    if !m.take("m8n8") || !m.take("b16") {
        return b.unknown();
    }
    let transposed = m.take("trans");
    let space = if m.take("shared") || m.take("shared::cta") { Space::Shared } else { Space::Generic };
    let count = match m.rest().as_str() {
        "x1" => 1,
        "x2" => 2,
        "x4" => 4,
        _ => return b.unknown(),
    };
    let Some(run) = (if store { store_rows } else { load_rows })(count, transposed) else { return b.unknown() };
    let (value, memory) = if store { (1, 0) } else { (0, 1) };
    let slots = registers(b, b.operand(i, value)?, !store)?;
    if slots.len() != count {
        return b.wrong(format!("{} registers for {count} matrices", slots.len()));
    }
    let (base, offset) = b.address(b.operand(i, memory)?)?;
    let (list, place) = (b.list(&slots), b.place(space));
    b.push(run, list, base, 0, place, offset);
    Ok(())
}

fn product(b: &mut Builder<'_>, i: &Instruction, found: Mma) -> Result<(), PtxError> {
    let mut all = Vec::new();
    for (n, count) in [found.d, found.a, found.b, found.c].into_iter().enumerate() {
        let slots = registers(b, b.operand(i, n)?, n == 0)?;
        if slots.len() != count {
            return b.wrong(format!("operand {} has {} registers, {count} are expected", n + 1, slots.len()));
        }
        all.extend(slots);
    }
    let list = b.list(&all);
    let (second, third) = (found.d + found.a, found.d + found.a + found.b);
    b.push(found.run, list, found.d as u32, second as u32, third as u32, 0);
    Ok(())
}

fn fragment(
    b: &mut Builder<'_>,
    i: &Instruction,
    store: bool,
    operand: &str,
    by_column: bool,
    shape: Shape,
    modifiers: &[&str],
) -> Result<(), PtxError> {
    let mut m = Modifiers::new(modifiers);
    let space = if m.take("shared") || m.take("shared::cta") {
        Space::Shared
    } else if m.take("global") {
        Space::Global
    } else {
        Space::Generic
    };
    let &[ty] = m.types().as_slice() else { return b.unknown() };
    let (rows, columns) = match operand {
        "a" => (shape.m, shape.k),
        "b" => (shape.k, shape.n),
        "c" | "d" => (shape.m, shape.n),
        _ => return b.unknown(),
    };
    let element = match (operand, ty) {
        ("a" | "b", Type::F16 | Type::BF16) | ("c" | "d", Type::F16) => 2,
        ("a" | "b", Type::Tf32) | ("c" | "d", Type::F32) => 4,
        _ => return b.unknown(),
    };
    let known = [(16, 16, 16), (32, 8, 16), (8, 32, 16), (16, 16, 8)];
    if !known.contains(&(shape.m, shape.n, shape.k)) || !m.rest().is_empty() {
        return b.unknown();
    }
    let fragment = Fragment { rows, columns, by_column, wide: element == 4, sum: matches!(operand, "c" | "d") };
    let found = if store { store_fragment(fragment) } else { load_fragment(fragment) };
    let Some(run) = found else { return b.unknown() };
    let least = rows * columns * element / 128;
    let (value, memory) = if store { (1, 0) } else { (0, 1) };
    let slots = registers(b, b.operand(i, value)?, !store)?;
    if slots.len() < least as usize {
        return b.wrong(format!("{} registers where {least} are needed", slots.len()));
    }
    let (base, offset) = b.address(b.operand(i, memory)?)?;
    let inner = if by_column { rows } else { columns };
    let stride = match i.operands.get(2) {
        Some(stride) => b.read(stride, Width::W32)?,
        None => b.constant(Width::W32, u64::from(inner)),
    };
    let list = b.list(&[slots.len() as u32]);
    b.list(&slots);
    let place = b.place(space);
    b.push(run, list, base, stride, place, offset);
    Ok(())
}
