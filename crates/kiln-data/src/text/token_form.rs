//! How a vocabulary spells bytes, and where its words end: known from `tokenizer.json`.

use serde_json::Value;

/// The form of a vocabulary of parts of words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Form {
    pub(super) spelling: Spelling,
    cut: Cut,
}

/// How a token's characters stand for bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spelling {
    /// A character for each byte, as in GPT-2, Llama 3 and Qwen.
    ByteLevel,
    /// `▁` for a space, and `<0xNN>` for a byte, as in Llama 2 and Mistral.
    Metaspace,
}

/// The places at which a text can be cut without a change of its ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cut {
    /// GPT-2 divides a text into words first, by
    /// `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`, and no id crosses words. The text
    /// can be cut where white space follows another character:
    /// - No alternative matches white space after another character: a word of the whole text ends there.
    /// - The words before are the same without the text after: a repetition that ends there ended because of the white space,
    ///   and the only alternative that looks ahead, `\s+(?!\S)`, looks at the character after a run of white space. This
    ///   character is before the cut, because the text before the cut does not end in white space.
    /// - The words after are the same without the text before, because no alternative looks behind.
    WhiteSpace,
    /// The same holds for a space alone: words of [these patterns](PATTERNS) may have line breaks after another character. Digits that are
    /// words of their own end words that would end later, and begin none at a space.
    Space,
    /// The words are unknown.
    Nowhere,
}

/// The patterns of Llama 3 and of Qwen 2.
const PATTERNS: [&str; 2] = [
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
];

impl Form {
    /// That of GPT-2.
    pub(super) const GPT2: Self = Self { spelling: Spelling::ByteLevel, cut: Cut::WhiteSpace };

    /// The form of the vocabulary in a `tokenizer.json`.
    pub(super) fn of(json: &Value) -> Self {
        let spelling = if is_byte_level(&json["decoder"]) { Spelling::ByteLevel } else { Spelling::Metaspace };
        // A special token takes white space beside it, if it says so, and that within it.
        let takes_space = |token: &Value| {
            let content = token["content"].as_str().unwrap_or(" ");
            content.contains(' ') || token["lstrip"] == true || token["rstrip"] == true
        };
        let added = json["added_tokens"].as_array().is_some_and(|tokens| tokens.iter().any(takes_space));
        // Composed characters begin with one that is no space.
        let normal = json["normalizer"].is_null() || json["normalizer"]["type"] == "NFC";
        let known = spelling == Spelling::ByteLevel && normal && !added && has_known_words(&json["pre_tokenizer"]);
        Self { spelling, cut: if known { Cut::Space } else { Cut::Nowhere } }
    }

    /// Whether there are places at which a text can be cut.
    pub(super) fn can_be_cut(self) -> bool {
        self.cut != Cut::Nowhere
    }

    /// The last place within `text` where it can be cut.
    pub(super) fn last_cut(self, text: &str) -> Option<usize> {
        let begins = |next: char| match self.cut {
            Cut::WhiteSpace => next.is_whitespace(),
            Cut::Space => next == ' ',
            Cut::Nowhere => false,
        };
        let mut after: Option<(usize, char)> = None;
        for (at, character) in text.char_indices().rev() {
            if let Some((cut, next)) = after
                && begins(next)
                && !character.is_whitespace()
            {
                return Some(cut);
            }
            after = Some((at, character));
        }
        None
    }
}

/// Whether a decoder, or one of a sequence, is byte-level.
fn is_byte_level(decoder: &Value) -> bool {
    decoder["type"] == "ByteLevel" || decoder["decoders"].as_array().is_some_and(|all| all.iter().any(is_byte_level))
}

/// Whether words end before each space that follows another character: a byte-level step is the last one, and it or a pattern before it
/// divides text into words.
fn has_known_words(words: &Value) -> bool {
    let alone = std::slice::from_ref(words);
    let steps = words["pretokenizers"].as_array().map_or(alone, Vec::as_slice);
    let Some((last, before)) = steps.split_last() else { return false };
    let is_pattern = |step: &Value| {
        let pattern = step["pattern"]["Regex"].as_str().unwrap_or_default();
        PATTERNS.contains(&pattern) && step["behavior"] == "Isolated" && step["invert"] == false
    };
    let divides = last["use_regex"] != false || before.iter().any(is_pattern);
    let known = before.iter().all(|step| step["type"] == "Digits" || is_pattern(step));
    last["type"] == "ByteLevel" && last["add_prefix_space"] == false && divides && known
}

impl Spelling {
    /// The bytes that a token stands for. `characters` are those of [`byte_characters`].
    pub(super) fn bytes(self, token: &str, characters: &[char]) -> Vec<u8> {
        match self {
            Self::ByteLevel => token.chars().flat_map(|character| one_byte(characters, character)).collect(),
            Self::Metaspace => {
                let byte =
                    token.strip_prefix("<0x").and_then(|rest| u8::from_str_radix(rest.strip_suffix('>')?, 16).ok());
                byte.map_or_else(|| token.replace('▁', " ").into_bytes(), |byte| vec![byte])
            }
        }
    }
}

/// The character that stands for each byte in a byte-level vocabulary: itself if it can be seen, else one from U+0100 on, in the order of
/// the bytes (`bytes_to_unicode` of GPT-2).
pub(super) fn byte_characters() -> Vec<char> {
    let mut next = 0x100u32;
    let character = |byte: u8| match byte {
        b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => char::from(byte),
        _ => {
            next += 1;
            char::from_u32(next - 1).unwrap_or_default()
        }
    };
    (0..=u8::MAX).map(character).collect()
}

/// The byte that `character` stands for; the character's own bytes if it stands for none, as in tokens that were added by hand.
fn one_byte(characters: &[char], character: char) -> Vec<u8> {
    match characters.iter().position(|own| *own == character) {
        Some(byte) => vec![byte as u8],
        None => character.to_string().into_bytes(),
    }
}
