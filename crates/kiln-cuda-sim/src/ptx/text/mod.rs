//! From PTX text to declarations and instructions with resolved registers.

mod body;
mod lexer;
mod reader;
mod types;

pub(crate) use body::bits;
pub(crate) use reader::{Instruction, Item, KernelText, Operand, Source, Variable, read};
pub(crate) use types::{Kind, Type, Width};
