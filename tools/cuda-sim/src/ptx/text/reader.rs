//! Reads the directives of a PTX module: variables, entries, parameters and launch bounds.

use std::collections::HashMap;

use super::lexer::{Literal, Located, Token, literal};
use super::types::{Type, Width};
use crate::ptx::{PtxError, Space};

/// A variable of a module or of a kernel.
#[derive(Debug, Clone)]
pub(crate) struct Variable {
    pub name: String,
    pub space: Space,
    pub align: u32,
    pub bytes: u64,
    /// Given by the launch instead of by `bytes`: an `.extern` array without a size.
    pub dynamic: bool,
    pub init: Vec<u8>,
}

/// A parameter of an entry.
#[derive(Debug, Clone)]
pub(crate) struct ParamText {
    pub name: String,
    pub align: u32,
    pub bytes: u32,
}

/// A number as an operand.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Constant {
    Integer(u64),
    Float32(u32),
    Float64(u64),
}

/// An operand with its registers resolved.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Operand {
    /// Index of a register of the kernel.
    Register(u32),
    /// `!%p`.
    Not(u32),
    /// A name that is no register: a variable, a label, a special register, or `_`.
    Name(String),
    Number(Constant),
    /// `[base + offset]`.
    Address(Box<Operand>, i64),
    /// `name + offset` outside of brackets.
    Sum(String, i64),
    /// `{a, b, ...}`.
    List(Vec<Operand>),
    /// `%r1|%p1`.
    Pair(Box<Operand>, Box<Operand>),
}

/// One instruction.
#[derive(Debug, Clone)]
pub(crate) struct Instruction {
    pub line: u32,
    /// The register of `@%p` and whether it is negated.
    pub guard: Option<(u32, bool)>,
    pub opcode: String,
    pub operands: Vec<Operand>,
}

/// A label or an instruction of a body.
#[derive(Debug, Clone)]
pub(crate) enum Item {
    Label(String),
    Instruction(Instruction),
}

/// One entry with its body.
#[derive(Debug, Clone, Default)]
pub(crate) struct KernelText {
    pub name: String,
    pub params: Vec<ParamText>,
    pub max_threads: Option<[u32; 3]>,
    pub exact_threads: bool,
    pub registers: Vec<Width>,
    pub variables: Vec<Variable>,
    pub items: Vec<Item>,
    /// The labels that an indexed branch may jump to, by the name of the list.
    pub targets: HashMap<String, Vec<String>>,
}

/// A whole module.
#[derive(Debug, Clone, Default)]
pub(crate) struct Source {
    pub version: String,
    pub target: String,
    pub variables: Vec<Variable>,
    pub kernels: Vec<KernelText>,
}

/// A position in the tokens.
pub(super) struct Reader<'t, 'a> {
    pub(super) tokens: &'t [Located<'a>],
    pub(super) at: usize,
}

impl<'a> Reader<'_, 'a> {
    pub(super) fn peek(&self) -> Option<Token<'a>> {
        self.tokens.get(self.at).map(|t| t.0)
    }

    pub(super) fn line(&self) -> u32 {
        self.tokens.get(self.at).or(self.tokens.last()).map_or(1, |t| t.1)
    }

    pub(super) fn next(&mut self) -> Option<Token<'a>> {
        let token = self.peek();
        self.at += 1;
        token
    }

    pub(super) fn skip(&mut self, count: usize) {
        self.at += count;
    }

    pub(super) fn error<T>(&self, what: impl Into<String>) -> Result<T, PtxError> {
        Err(PtxError::Syntax { line: self.line(), what: what.into() })
    }

    pub(super) fn unexpected(&self, found: Token<'_>, wanted: &str) -> PtxError {
        PtxError::Syntax { line: self.line(), what: format!("found {found:?}, expected {wanted}") }
    }

    /// Takes the mark if it comes next.
    pub(super) fn mark(&mut self, mark: u8) -> bool {
        let found = self.peek() == Some(Token::Mark(mark));
        self.at += usize::from(found);
        found
    }

    pub(super) fn expect(&mut self, mark: u8) -> Result<(), PtxError> {
        if self.mark(mark) { Ok(()) } else { self.error(format!("expected `{}`", mark as char)) }
    }

    /// Takes the word if it comes next.
    pub(super) fn keyword(&mut self, word: &str) -> bool {
        let found = self.peek() == Some(Token::Word(word));
        self.at += usize::from(found);
        found
    }

    pub(super) fn word(&mut self) -> Result<&'a str, PtxError> {
        match self.next() {
            Some(Token::Word(word)) => Ok(word),
            _ => {
                self.at -= 1;
                self.error("expected a name")
            }
        }
    }

    /// The next word or number, as text.
    pub(super) fn any(&mut self) -> Result<&'a str, PtxError> {
        match self.next() {
            Some(Token::Word(text) | Token::Number(text)) => Ok(text),
            _ => {
                self.at -= 1;
                self.error("expected a word or a number")
            }
        }
    }

    pub(super) fn constant(&mut self) -> Result<Constant, PtxError> {
        let negative = self.mark(b'-');
        let Some(Token::Number(text)) = self.next() else {
            self.at -= 1;
            return self.error("expected a number");
        };
        match literal(text) {
            Some(Literal::Integer(v)) => Ok(Constant::Integer(if negative { v.wrapping_neg() } else { v })),
            Some(Literal::Float32(v)) => Ok(Constant::Float32(if negative { v ^ 1 << 31 } else { v })),
            Some(Literal::Float64(v)) => Ok(Constant::Float64(if negative { v ^ 1 << 63 } else { v })),
            None => self.error(format!("`{text}` is not a number")),
        }
    }

    pub(super) fn integer(&mut self) -> Result<u64, PtxError> {
        match self.constant()? {
            Constant::Integer(v) => Ok(v),
            _ => self.error("expected an integer"),
        }
    }

    pub(super) fn rest_of_line(&mut self) {
        let line = self.line();
        while self.at < self.tokens.len() && self.line() == line {
            self.at += 1;
        }
    }

    pub(super) fn braces(&mut self) -> Result<(), PtxError> {
        self.expect(b'{')?;
        let mut depth = 1;
        while depth > 0 {
            match self.next() {
                Some(Token::Mark(b'{')) => depth += 1,
                Some(Token::Mark(b'}')) => depth -= 1,
                Some(_) => {}
                None => return self.error("a `{` without its `}`"),
            }
        }
        Ok(())
    }

    /// The variables of one declaration that starts with its space.
    pub(super) fn variables(&mut self, external: bool) -> Result<Vec<Variable>, PtxError> {
        let space = match self.word()? {
            ".global" => Space::Global,
            ".const" => Space::Const,
            ".shared" => Space::Shared,
            _ => Space::Local,
        };
        let (mut ty, mut align, mut vector) = (None, None, 1);
        while let Some(Token::Word(word)) = self.peek() {
            let Some(suffix) = word.strip_prefix('.') else { break };
            self.skip(1);
            match suffix {
                "align" => align = Some(self.integer()? as u32),
                "v2" => vector = 2,
                "v4" => vector = 4,
                _ => ty = Type::from_suffix(suffix),
            }
        }
        let Some(ty) = ty else { return self.error("a variable without a type this reader knows") };
        let mut out = Vec::new();
        loop {
            let name = self.word()?.to_owned();
            let (mut count, mut dynamic) = (vector, false);
            while self.mark(b'[') {
                if self.mark(b']') {
                    dynamic = true;
                } else {
                    count *= self.integer()?;
                    self.expect(b']')?;
                }
            }
            let mut init = Vec::new();
            if self.mark(b'=') {
                self.values(ty, &mut init)?;
                if dynamic {
                    count = init.len() as u64 / u64::from(ty.bytes());
                    dynamic = false;
                }
            }
            let bytes = if dynamic { 0 } else { count * u64::from(ty.bytes()) };
            let align = align.unwrap_or(ty.bytes() * vector as u32).max(1);
            out.push(Variable { name, space, align, bytes, dynamic: dynamic && external, init });
            if !self.mark(b',') {
                break;
            }
        }
        self.expect(b';')?;
        Ok(out)
    }

    fn values(&mut self, ty: Type, out: &mut Vec<u8>) -> Result<(), PtxError> {
        if self.mark(b'{') {
            while !self.mark(b'}') {
                self.values(ty, out)?;
                self.mark(b',');
            }
            return Ok(());
        }
        let bits = match self.constant()? {
            Constant::Integer(v) => v,
            Constant::Float32(v) => u64::from(v),
            Constant::Float64(v) if ty == Type::F32 => u64::from((f64::from_bits(v) as f32).to_bits()),
            Constant::Float64(v) => v,
        };
        out.extend_from_slice(&bits.to_le_bytes()[..ty.bytes() as usize]);
        Ok(())
    }
}
