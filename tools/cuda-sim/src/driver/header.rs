//! The parts of a PTX text that the driver needs without running it: version, target, and each kernel's name, parameters and limits.

use super::code::{Answer, Code};

/// A PTX module's head and its kernels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Header {
    /// PTX version as 10 x major + minor: 87 is 8.7.
    pub(crate) version: u32,
    pub(crate) target: Target,
    pub(crate) entries: Vec<Entry>,
}

/// The architecture a module was written for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Target {
    /// Compute capability as 10 x major + minor.
    pub(crate) capability: u32,
    /// Which other architectures run it.
    pub(crate) family: Family,
}

/// How far a target's code carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Family {
    /// `sm_90`: this architecture and every later one.
    Later,
    /// `sm_100f`: later ones of the same major version.
    SameMajor,
    /// `sm_90a`: this one only.
    Exact,
}

/// One kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) parameters: Vec<Parameter>,
    /// The block size that the kernel demands.
    pub(crate) required_block: Option<[u32; 3]>,
    /// Most threads of a block.
    pub(crate) max_threads: u32,
    /// Bytes of shared memory that the kernel declares itself.
    pub(crate) static_shared: u32,
}

/// One kernel parameter: where it lies in the parameter block, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Parameter {
    pub(crate) offset: usize,
    pub(crate) bytes: usize,
    /// Whether it is declared as a pointer to memory of the device.
    pub(crate) pointer: bool,
}

impl Entry {
    /// Bytes of the parameter block.
    pub(crate) fn parameter_bytes(&self) -> usize {
        self.parameters.last().map_or(0, |last| last.offset + last.bytes)
    }
}

impl Header {
    /// Reads the head of a PTX text.
    ///
    /// # Errors
    /// `INVALID_PTX` for a text without version and target, or with an entry that cannot be read.
    pub(crate) fn read(text: &str) -> Answer<Self> {
        let text = &without_comments(text);
        let version = after(text, ".version ").and_then(|rest| {
            let (major, minor) = rest.split_whitespace().next()?.split_once('.')?;
            Some(major.parse::<u32>().ok()? * 10 + minor.parse::<u32>().ok()?)
        });
        let target = after(text, ".target ").and_then(|rest| parse_target(rest.split([',', '\n', ' ', '\t']).next()?));
        let mut entries = Vec::new();
        let mut rest = text.as_str();
        while let Some(body) = after(rest, ".entry") {
            entries.push(parse_entry(body).ok_or(Code::INVALID_PTX)?);
            rest = body;
        }
        Ok(Self { version: version.ok_or(Code::INVALID_PTX)?, target: target.ok_or(Code::INVALID_PTX)?, entries })
    }
}

impl Target {
    /// Whether a GPU of `capability` runs code for this target.
    pub(crate) fn runs_on(self, capability: u32) -> bool {
        match self.family {
            Family::Later => capability >= self.capability,
            Family::SameMajor => capability >= self.capability && capability / 10 == self.capability / 10,
            Family::Exact => capability == self.capability,
        }
    }
}

/// The newest PTX version (10 x major + minor) that a driver of `version` (12080 is 12.8) reads.
pub(crate) fn newest_ptx(driver: u32) -> u32 {
    let (major, minor) = (driver / 1000, driver % 1000 / 10);
    match (major, minor) {
        (..=11, _) => 70 + minor.min(8),
        (12, 0..=5) => 80 + minor,
        (12, 6) => 85,
        (12, 7) => 86,
        (12, 8) => 87,
        (12, _) => 88,
        (major, minor) => (major - 4) * 10 + minor, // 13.0 is 9.0
    }
}

fn parse_target(text: &str) -> Option<Target> {
    let text = text.trim().trim_end_matches(';').strip_prefix("sm_")?;
    let (digits, family) = match text.as_bytes().last()? {
        b'a' => (&text[..text.len() - 1], Family::Exact),
        b'f' => (&text[..text.len() - 1], Family::SameMajor),
        _ => (text, Family::Later),
    };
    Some(Target { capability: digits.parse().ok()?, family })
}

/// Reads one entry from behind its `.entry`.
fn parse_entry(text: &str) -> Option<Entry> {
    let open = text.find('{')?;
    let head = &text[..open];
    let (name, list, directives) = match head.find('(') {
        Some(at) => {
            let close = at + head[at..].find(')')?;
            (&head[..at], &head[at + 1..close], &head[close + 1..])
        }
        None => (head.split_whitespace().next()?, "", head),
    };
    let mut parameters = Vec::new();
    let mut offset = 0_usize;
    for declared in list.split(',').filter(|part| !part.trim().is_empty()) {
        let (bytes, align, pointer) = parse_parameter(declared)?;
        offset = offset.next_multiple_of(align);
        parameters.push(Parameter { offset, bytes, pointer });
        offset += bytes;
    }
    let required_block = after(directives, ".reqntid").map(parse_block);
    let most = after(directives, ".maxntid").map(parse_block);
    let max_threads = required_block.or(most).map_or(1024, |block| block.iter().product::<u32>().min(1024));
    let body = &text[open..open + matching_brace(&text[open..])?];
    Some(Entry {
        name: name.trim().to_owned(),
        parameters,
        required_block,
        max_threads,
        static_shared: declared_shared(body),
    })
}

/// Bytes, alignment, and whether it is a pointer, of a declaration such as `.param .align 8 .b8 info[16]`.
fn parse_parameter(text: &str) -> Option<(usize, usize, bool)> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let unit = words.iter().find_map(|word| type_bytes(word))?;
    let length = match text.split_once('[') {
        Some((_, rest)) => rest.split_once(']')?.0.trim().parse::<usize>().ok()?,
        None => 1,
    };
    let pointer = words.contains(&".ptr");
    // the alignment of a `.ptr` is that of what it points to
    let named = words.iter().position(|word| *word == ".align").and_then(|at| words.get(at + 1)?.parse::<usize>().ok());
    let align = named.filter(|_| !pointer).unwrap_or(unit);
    (align.is_power_of_two()).then_some((unit * length, align, pointer))
}

/// Bytes of a PTX type such as `.u64`.
fn type_bytes(word: &str) -> Option<usize> {
    let bits = word.strip_prefix('.')?.strip_prefix(['b', 'u', 's', 'f'])?.parse::<usize>().ok()?;
    matches!(bits, 8 | 16 | 32 | 64).then_some(bits / 8)
}

/// `32, 8, 1` and shorter forms.
fn parse_block(text: &str) -> [u32; 3] {
    let mut block = [1; 3];
    let list = text.split(['\n', '.', '{']).next().unwrap_or(text);
    for (side, number) in block.iter_mut().zip(list.split(',')) {
        *side = number.trim().parse().unwrap_or(1);
    }
    block
}

/// Bytes of the `.shared` variables declared in a body, each at its alignment.
fn declared_shared(body: &str) -> u32 {
    let mut total = 0_usize;
    let mut rest = body;
    while let Some(declared) = after(rest, ".shared ") {
        let declaration = declared.split(';').next().unwrap_or_default();
        if let Some((bytes, align, _)) = parse_parameter(declaration) {
            total = total.next_multiple_of(align) + bytes;
        }
        rest = declared;
    }
    total as u32
}

/// Length of the text up to and with the brace that closes the first one.
fn matching_brace(text: &str) -> Option<usize> {
    let mut depth = 0_usize;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' => {
                depth = depth.checked_sub(1)?;
                if depth == 0 {
                    return Some(at + 1);
                }
            }
            _ => {}
        }
    }
    None
}

fn after<'a>(text: &'a str, what: &str) -> Option<&'a str> {
    text.find(what).map(|at| &text[at + what.len()..])
}

fn without_comments(text: &str) -> String {
    let mut kept = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('/') {
        kept.push_str(&rest[..at]);
        rest = &rest[at..];
        if rest.starts_with("//") {
            rest = rest.find('\n').map_or("", |end| &rest[end..]);
        } else if rest.starts_with("/*") {
            rest = rest.find("*/").map_or("", |end| &rest[end + 2..]);
        } else {
            kept.push('/');
            rest = &rest[1..];
        }
    }
    kept.push_str(rest);
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "//\n// .entry in a comment\n//\n.version 8.7\n.target sm_90a, debug\n.address_size 64\n
        .visible .entry matmul(\n\t.param .u64 .ptr .global .align 1 matmul_param_0,\n\t.param .u32 n,
        \t.param .align 8 .b8 info[20],\n\t.param .u16 h\n)\n.reqntid 32, 8, 1\n{\n .shared .align 16 .b8 tile[100];
        .shared .b32 flag; { ret; } }\n.visible .entry plain() { st.shared.b32 [x], 1; ret; }
        .entry capped(.param .u8 c) .maxntid 128 { ret; }";

    #[test]
    fn reads_what_llvm_writes() {
        let header = Header::read(TEXT).expect("a header");
        assert_eq!((header.version, header.target), (87, Target { capability: 90, family: Family::Exact }));
        let [matmul, plain, capped] = &header.entries[..] else { panic!("{:?}", header.entries) };
        assert_eq!(matmul.name, "matmul");
        let layout: Vec<_> = matmul.parameters.iter().map(|p| (p.offset, p.bytes, p.pointer)).collect();
        assert_eq!(layout, [(0, 8, true), (8, 4, false), (16, 20, false), (36, 2, false)]);
        assert_eq!(matmul.parameter_bytes(), 38);
        assert_eq!((matmul.required_block, matmul.max_threads, matmul.static_shared), (Some([32, 8, 1]), 256, 104));
        assert_eq!((plain.name.as_str(), plain.parameter_bytes(), plain.static_shared), ("plain", 0, 0));
        assert_eq!((capped.max_threads, capped.required_block, capped.parameter_bytes()), (128, None, 1));
    }

    #[test]
    fn what_is_no_ptx_is_refused() {
        for text in ["", "hello", ".version 8.7\n", ".target sm_90\n", ".version 8.0\n.target sm_90\n.entry broken("] {
            assert_eq!(Header::read(text), Err(Code::INVALID_PTX), "{text}");
        }
    }

    #[test]
    fn targets_run_where_the_architecture_allows() {
        let runs = |target: &str, capability| parse_target(target).expect(target).runs_on(capability);
        assert!(runs("sm_80", 90) && runs("sm_80", 80) && !runs("sm_80", 75));
        assert!(runs("sm_90a", 90) && !runs("sm_90a", 100));
        assert!(runs("sm_100f", 103) && !runs("sm_100f", 120));
        assert_eq!(parse_target("compute_90"), None);
    }

    #[test]
    fn drivers_read_the_ptx_of_their_toolkit_and_older() {
        let versions =
            [(11_080, 78), (12_000, 80), (12_060, 85), (12_080, 87), (12_090, 88), (13_000, 90), (13_030, 93)];
        for (driver, ptx) in versions {
            assert_eq!(newest_ptx(driver), ptx, "{driver}");
        }
    }
}
