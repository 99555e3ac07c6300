//! From PTX text to declarations and instructions with resolved registers.

mod body;
mod document;
mod lexer;
mod reader;
mod types;

pub(crate) use body::bits;
pub(crate) use document::read;
pub(crate) use reader::{Instruction, Item, KernelText, Operand, Source, Variable};
pub(crate) use types::{Kind, Type, Width};
