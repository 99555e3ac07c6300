//! A PTX text as a whole: its variables, and its kernels with their parameters and limits.

use super::body;
use super::lexer::{Token, tokens};
use super::reader::{KernelText, ParamText, Reader, Source};
use super::types::Type;
use crate::ptx::PtxError;

/// Reads a module's text.
pub(crate) fn read(text: &str) -> Result<Source, PtxError> {
    let tokens = tokens(text)?;
    let mut reader = Reader { tokens: &tokens, at: 0 };
    let mut source = Source::default();
    let mut external = false;
    while let Some(token) = reader.peek() {
        match token {
            Token::Word(".version") => {
                reader.next();
                source.version = reader.any()?.to_owned();
            }
            Token::Word(".target") => {
                reader.next();
                source.target = reader.any()?.to_owned();
                while reader.mark(b',') {
                    reader.next();
                }
            }
            Token::Word(".visible" | ".weak" | ".common") => reader.skip(1),
            Token::Word(".extern") => {
                external = true;
                reader.next();
            }
            Token::Word(".entry") => {
                reader.next();
                source.kernels.push(reader.entry()?);
                external = false;
            }
            Token::Word(".func") => {
                reader.function()?;
                external = false;
            }
            Token::Word(".global" | ".const" | ".shared") => {
                source.variables.extend(reader.variables(external)?);
                external = false;
            }
            Token::Word(".section") => {
                reader.skip(2);
                reader.braces()?;
            }
            // one-line directives; those with a value end at their own line
            Token::Word(".address_size" | ".file" | ".pragma" | ".loc") => reader.rest_of_line(),
            Token::Mark(b';') => reader.skip(1),
            other => return Err(reader.unexpected(other, "a module-level directive")),
        }
    }
    if source.version.is_empty() {
        return Err(PtxError::Syntax { line: 1, what: "no .version directive".into() });
    }
    Ok(source)
}

impl<'a> Reader<'_, 'a> {
    /// Skips a function: what calls it is refused where the call stands.
    fn function(&mut self) -> Result<(), PtxError> {
        loop {
            match self.peek() {
                Some(Token::Mark(b'{')) => return self.braces(),
                Some(Token::Mark(b';')) => {
                    self.skip(1);
                    return Ok(());
                }
                Some(_) => self.skip(1),
                None => return self.error("a .func without a body"),
            }
        }
    }

    fn entry(&mut self) -> Result<KernelText, PtxError> {
        let mut kernel = KernelText { name: self.word()?.to_owned(), ..KernelText::default() };
        if self.mark(b'(') {
            while !self.mark(b')') {
                kernel.params.push(self.param()?);
                self.mark(b',');
            }
        }
        loop {
            match self.peek() {
                Some(Token::Word(word @ (".reqntid" | ".maxntid"))) => {
                    self.skip(1);
                    let mut size = [1; 3];
                    size[0] = self.integer()? as u32;
                    for axis in &mut size[1..] {
                        if self.mark(b',') {
                            *axis = self.integer()? as u32;
                        }
                    }
                    kernel.max_threads = Some(size);
                    kernel.exact_threads = word == ".reqntid";
                }
                Some(Token::Mark(b'{')) => break,
                // hints that change nothing here
                Some(Token::Word(".minnctapersm" | ".maxnctapersm" | ".maxnreg" | ".noreturn" | ".pragma")) => {
                    self.rest_of_line();
                }
                Some(other) => return Err(self.unexpected(other, "a launch bound or the body")),
                None => return self.error("an entry without a body"),
            }
        }
        body::read(self, &mut kernel)?;
        Ok(kernel)
    }

    fn param(&mut self) -> Result<ParamText, PtxError> {
        if !self.keyword(".param") {
            return self.error("expected `.param`");
        }
        let (mut ty, mut align, mut pointer) = (None, None, false);
        while let Some(Token::Word(word)) = self.peek() {
            let Some(suffix) = word.strip_prefix('.') else { break };
            self.skip(1);
            match suffix {
                // the alignment after `.ptr` is that of the memory pointed to
                "align" if pointer => drop(self.integer()?),
                "align" => align = Some(self.integer()? as u32),
                "ptr" => pointer = true,
                "global" | "shared" | "local" | "const" => {}
                _ => ty = Type::from_suffix(suffix),
            }
        }
        let Some(ty) = ty else { return self.error("a parameter without a type this reader knows") };
        let name = self.word()?.to_owned();
        let mut bytes = ty.bytes();
        while self.mark(b'[') {
            bytes *= self.integer()? as u32;
            self.expect(b']')?;
        }
        Ok(ParamText { name, align: align.unwrap_or(ty.bytes()).max(1), bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_and_its_parameters() {
        let text = ".version 8.7\n.target sm_90a, debug\n.address_size 64\n.extern .shared .align 16 .b8 pool[];\n\
                    .global .align 4 .u32 table[3] = {1, 0x2, 3};\n.func (.param .b32 r) f(.param .b32 a) { ret; }\n\
                    .visible .entry k(.param .u64 .ptr .global .align 1 k_0, .param .align 8 .b8 k_1[24])\n\
                    .reqntid 32, 8, 1\n{ .reg .b32 %r<3>; ret; }";
        let source = read(text).expect("well formed");
        assert_eq!(source.target, "sm_90a");
        let kernel = &source.kernels[0];
        assert_eq!((kernel.params[0].bytes, kernel.params[0].align), (8, 8));
        assert_eq!((kernel.params[1].bytes, kernel.params[1].align), (24, 8));
        assert_eq!((kernel.max_threads, kernel.exact_threads), (Some([32, 8, 1]), true));
        assert!(source.variables[0].dynamic);
        assert_eq!(source.variables[1].init, [1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0]);
        assert_eq!(source.variables[1].bytes, 12);
    }

    #[test]
    fn refuses_what_is_not_ptx() {
        assert!(matches!(read("hello"), Err(PtxError::Syntax { line: 1, .. })));
        assert!(matches!(read(""), Err(PtxError::Syntax { .. })));
        assert!(matches!(read(".version 8.7\n.target sm_90\n.entry k() {"), Err(PtxError::Syntax { .. })));
    }
}
