//! Reads the body of an entry: register declarations, labels, instructions and their operands.

use std::collections::HashMap;

use super::lexer::Token;
use super::reader::{Constant, Instruction, Item, KernelText, Operand, Reader};
use super::types::{Type, Width};
use crate::ptx::PtxError;

/// Registers declared under one name: first index, how many, and whether they are numbered (`%r<9>`).
#[derive(Clone, Copy)]
struct Declared {
    first: u32,
    count: u32,
    numbered: bool,
}

/// The registers in view, innermost block last.
struct Scopes<'a>(Vec<HashMap<&'a str, Declared>>);

impl Scopes<'_> {
    fn find(&self, name: &str) -> Option<u32> {
        let prefix = name.trim_end_matches(|c: char| c.is_ascii_digit());
        let number = name[prefix.len()..].parse::<u32>().ok();
        self.0.iter().rev().find_map(|scope| {
            if let Some(one) = scope.get(name).filter(|d| !d.numbered) {
                return Some(one.first);
            }
            let all = scope.get(prefix).filter(|d| d.numbered)?;
            number.filter(|&n| n < all.count).map(|n| all.first + n)
        })
    }
}

/// Reads a body with its braces into `kernel`.
pub(super) fn read<'a>(reader: &mut Reader<'_, 'a>, kernel: &mut KernelText) -> Result<(), PtxError> {
    reader.expect(b'{')?;
    let mut scopes = Scopes(vec![HashMap::new()]);
    while !scopes.0.is_empty() {
        match reader.peek() {
            None => return reader.error("a body without its `}`"),
            Some(Token::Mark(b'{')) => {
                reader.skip(1);
                scopes.0.push(HashMap::new());
            }
            Some(Token::Mark(b'}')) => {
                reader.skip(1);
                scopes.0.pop();
            }
            Some(Token::Mark(b';')) => reader.skip(1),
            Some(Token::Word(".reg")) => {
                reader.skip(1);
                registers(reader, kernel, &mut scopes)?;
            }
            Some(Token::Word(".local" | ".shared" | ".global" | ".const")) => {
                kernel.variables.extend(reader.variables(false)?);
            }
            Some(Token::Word(".loc" | ".file" | ".pragma")) => reader.rest_of_line(),
            Some(Token::Word(word)) if word.starts_with('.') => {
                return reader.error(format!("directive `{word}` is not supported inside a body"));
            }
            Some(Token::Word(label)) if reader.tokens.get(reader.at + 1).map(|t| t.0) == Some(Token::Mark(b':')) => {
                reader.skip(2);
                if reader.peek() == Some(Token::Word(".branchtargets")) {
                    reader.skip(1);
                    let targets = labels(reader)?;
                    kernel.targets.insert(label.to_owned(), targets);
                } else {
                    kernel.items.push(Item::Label(label.to_owned()));
                }
            }
            _ => kernel.items.push(Item::Instruction(instruction(reader, &scopes)?)),
        }
    }
    Ok(())
}

/// Reads labels up to the end of the statement.
fn labels(reader: &mut Reader<'_, '_>) -> Result<Vec<String>, PtxError> {
    let mut labels = Vec::new();
    loop {
        labels.push(reader.word()?.to_owned());
        if !reader.mark(b',') {
            reader.expect(b';')?;
            return Ok(labels);
        }
    }
}

fn registers<'a>(
    reader: &mut Reader<'_, 'a>,
    kernel: &mut KernelText,
    scopes: &mut Scopes<'a>,
) -> Result<(), PtxError> {
    let ty = reader.word()?;
    let Some(width) = ty.strip_prefix('.').and_then(Type::from_suffix).map(Type::width) else {
        return reader.error(format!("registers of type `{ty}` are not supported"));
    };
    loop {
        let name = reader.word()?;
        let numbered = reader.mark(b'<');
        let count = if numbered { reader.integer()? as u32 } else { 1 };
        if numbered {
            reader.expect(b'>')?;
        }
        let first = kernel.registers.len() as u32;
        kernel.registers.extend(std::iter::repeat_n(width, count as usize));
        if let Some(scope) = scopes.0.last_mut() {
            scope.insert(name, Declared { first, count, numbered });
        }
        if !reader.mark(b',') {
            return reader.expect(b';');
        }
    }
}

fn instruction(reader: &mut Reader<'_, '_>, scopes: &Scopes<'_>) -> Result<Instruction, PtxError> {
    let line = reader.line();
    let mut guard = None;
    if reader.mark(b'@') {
        let negated = reader.mark(b'!');
        let name = reader.word()?;
        let register = scopes.find(name).ok_or_else(|| PtxError::UnknownName { line, name: name.to_owned() })?;
        guard = Some((register, negated));
    }
    let opcode = reader.word()?.to_owned();
    let mut operands = Vec::new();
    if !reader.mark(b';') {
        loop {
            operands.push(operand(reader, scopes)?);
            if reader.mark(b';') {
                break;
            }
            reader.expect(b',')?;
        }
    }
    Ok(Instruction { line, guard, opcode, operands })
}

fn operand(reader: &mut Reader<'_, '_>, scopes: &Scopes<'_>) -> Result<Operand, PtxError> {
    let first = match reader.peek() {
        Some(Token::Mark(b'{')) => {
            reader.skip(1);
            let mut list = Vec::new();
            while !reader.mark(b'}') {
                list.push(operand(reader, scopes)?);
                reader.mark(b',');
            }
            return Ok(Operand::List(list));
        }
        Some(Token::Mark(b'[')) => {
            reader.skip(1);
            let base = operand(reader, scopes)?;
            let (base, mut offset) = match base {
                Operand::Sum(name, offset) => (Operand::Name(name), offset),
                base => (base, 0),
            };
            if reader.mark(b'+') || reader.peek() == Some(Token::Mark(b'-')) {
                offset += reader.integer()? as i64;
            }
            reader.expect(b']')?;
            return Ok(Operand::Address(Box::new(base), offset));
        }
        Some(Token::Mark(b'!')) => {
            reader.skip(1);
            return match operand(reader, scopes)? {
                Operand::Register(r) => Ok(Operand::Not(r)),
                _ => reader.error("expected a predicate after `!`"),
            };
        }
        Some(Token::Number(_) | Token::Mark(b'-')) => Operand::Number(reader.constant()?),
        Some(Token::Word(name)) => {
            reader.skip(1);
            match scopes.find(name) {
                Some(register) => Operand::Register(register),
                None if reader.peek() == Some(Token::Mark(b'+')) => {
                    reader.skip(1);
                    Operand::Sum(name.to_owned(), reader.integer()? as i64)
                }
                None => Operand::Name(name.to_owned()),
            }
        }
        _ => return reader.error("expected an operand"),
    };
    if reader.mark(b'|') {
        let second = operand(reader, scopes)?;
        return Ok(Operand::Pair(Box::new(first), Box::new(second)));
    }
    Ok(first)
}

/// Bits of a number where a value of `width` is read; nothing where the number's form does not fit.
pub(crate) fn bits(constant: Constant, width: Width) -> Option<u64> {
    match (constant, width) {
        (Constant::Integer(v), Width::W64) => Some(v),
        (Constant::Integer(v), Width::W32) => Some(v & 0xffff_ffff),
        (Constant::Integer(v), Width::W16) => Some(v & 0xffff),
        (Constant::Integer(v), Width::Pred) => Some(u64::from(v != 0)),
        (Constant::Float32(v), Width::W32) => Some(u64::from(v)),
        (Constant::Float64(v), Width::W64) => Some(v),
        (Constant::Float64(v), Width::W32) => Some(u64::from((f64::from_bits(v) as f32).to_bits())),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::document;
    use super::*;

    fn items(body: &str) -> Vec<Item> {
        let text = format!(".version 8.7\n.target sm_90\n.entry k() {{ .reg .b32 %r<9>; .reg .pred %p<3>; {body} }}");
        document::read(&text).expect("well formed").kernels.remove(0).items
    }

    fn only(body: &str) -> Instruction {
        match items(body).remove(0) {
            Item::Instruction(i) => i,
            Item::Label(l) => panic!("label {l}"),
        }
    }

    #[test]
    fn operands() {
        use Operand::{Address, List, Name, Number, Pair, Register};
        let i = only("@!%p2 st.shared.v2.b32 [%r3+-8], {%r1, _};");
        assert_eq!(i.guard, Some((11, true)));
        let list = List(vec![Register(1), Name("_".into())]);
        assert_eq!(i.operands, [Address(Box::new(Register(3)), -8), list]);
        let i = only("shfl.sync.bfly.b32 %r1|%p1, %r2, 0f3F800000, -1;");
        let pair = Pair(Box::new(Register(1)), Box::new(Register(10)));
        let one = Number(Constant::Float32(0x3f80_0000));
        assert_eq!(i.operands, [pair, Register(2), one, Number(Constant::Integer(u64::MAX))]);
        assert_eq!(
            only("ld.param.b32 %r1, [k_param_0+4];").operands[1],
            Address(Box::new(Name("k_param_0".into())), 4)
        );
    }

    #[test]
    fn inner_blocks_shadow_registers() {
        let found = items("{ .reg .b32 %r<2>; mov.b32 %r1, 0; } mov.b32 %r1, 0; L: ret;");
        let register = |item: &Item| match item {
            Item::Instruction(i) => i.operands.first().cloned(),
            Item::Label(_) => None,
        };
        assert_eq!(register(&found[0]), Some(Operand::Register(13)));
        assert_eq!(register(&found[1]), Some(Operand::Register(1)));
        assert!(matches!(&found[2], Item::Label(l) if l == "L"));
    }

    #[test]
    fn constants_take_the_width_read() {
        assert_eq!(bits(Constant::Integer(u64::MAX), Width::W16), Some(0xffff));
        assert_eq!(bits(Constant::Float64(0.5_f64.to_bits()), Width::W32), Some(u64::from(0.5_f32.to_bits())));
        assert_eq!(bits(Constant::Float32(0), Width::W64), None);
    }
}
