//! The fundamental types of PTX and the width of the register that holds each.

/// Width of a register.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Width {
    /// A predicate: one bit a lane.
    Pred,
    /// 16 bits; 8-bit values live here too.
    W16,
    /// 32 bits.
    W32,
    /// 64 bits.
    W64,
}

impl Width {
    /// Bytes of one warp's register of this width.
    pub(crate) fn slot_bytes(self) -> u32 {
        match self {
            Width::Pred => 4,
            Width::W16 => 64,
            Width::W32 => 128,
            Width::W64 => 256,
        }
    }
}

/// A type suffix of an instruction or a declaration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Type {
    Pred,
    B8,
    U8,
    S8,
    B16,
    U16,
    S16,
    B32,
    U32,
    S32,
    B64,
    U64,
    S64,
    F16,
    BF16,
    F32,
    F64,
    F16x2,
    BF16x2,
    F32x2,
    Tf32,
}

/// The meaning of the bits of a [`Type`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Bits,
    Unsigned,
    Signed,
    Float,
    Pred,
}

impl Type {
    /// The type a suffix names, given without its dot.
    pub(crate) fn from_suffix(suffix: &str) -> Option<Type> {
        Some(match suffix {
            "pred" => Type::Pred,
            "b8" => Type::B8,
            "u8" => Type::U8,
            "s8" => Type::S8,
            "b16" => Type::B16,
            "u16" => Type::U16,
            "s16" => Type::S16,
            "b32" => Type::B32,
            "u32" => Type::U32,
            "s32" => Type::S32,
            "b64" => Type::B64,
            "u64" => Type::U64,
            "s64" => Type::S64,
            "f16" => Type::F16,
            "bf16" => Type::BF16,
            "f32" => Type::F32,
            "f64" => Type::F64,
            "f16x2" => Type::F16x2,
            "bf16x2" => Type::BF16x2,
            "f32x2" => Type::F32x2,
            "tf32" => Type::Tf32,
            _ => return None,
        })
    }

    /// Bytes of one value in memory.
    pub(crate) fn bytes(self) -> u32 {
        match self {
            Type::Pred | Type::B8 | Type::U8 | Type::S8 => 1,
            Type::B16 | Type::U16 | Type::S16 | Type::F16 | Type::BF16 => 2,
            Type::B32 | Type::U32 | Type::S32 | Type::F32 | Type::F16x2 | Type::BF16x2 | Type::Tf32 => 4,
            Type::B64 | Type::U64 | Type::S64 | Type::F64 | Type::F32x2 => 8,
        }
    }

    /// Width of the register that holds a value of this type.
    pub(crate) fn width(self) -> Width {
        match (self, self.bytes()) {
            (Type::Pred, _) => Width::Pred,
            (_, 1 | 2) => Width::W16,
            (_, 4) => Width::W32,
            _ => Width::W64,
        }
    }

    /// The meaning of the bits.
    pub(crate) fn kind(self) -> Kind {
        match self {
            Type::Pred => Kind::Pred,
            Type::B8 | Type::B16 | Type::B32 | Type::B64 => Kind::Bits,
            Type::U8 | Type::U16 | Type::U32 | Type::U64 => Kind::Unsigned,
            Type::S8 | Type::S16 | Type::S32 | Type::S64 => Kind::Signed,
            _ => Kind::Float,
        }
    }
}
