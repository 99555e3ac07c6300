//! The state of one parameter in a record: f32 moments or codes.

use burn_pack::Scalar;

use super::format::{Moment, StateFormat};
use super::leaves::{Parameter, Values};
use crate::blocks::{Blocks, CodeBook, dequantize, elements, quantize};
use crate::error::Error;

/// The name of the group of f32 moments in burn's record.
const MOMENTUM: &str = "momentum";
const TIME: &str = "time";
/// The name of the number that burn adds to every state.
const RANK: &str = "__rank";
const MAX: &str = "momentum.max_moment_2";

/// The moments of a parameter.
pub(super) struct State {
    /// The number of steps. It is unknown for f32 moments of SGD.
    pub(super) time: u64,
    pub(super) shape: Vec<usize>,
    pub(super) count: usize,
    pub(super) moments: Vec<Kept>,
    rank: Option<Scalar>,
}

/// A moment.
pub(super) enum Kept {
    F32(Vec<f32>),
    /// Numbers of another dtype than f32.
    Other(Values),
    Codes(CodeBook, Blocks),
}

impl State {
    /// Reads the moments of a format, whatever their code books. `None` if the state has other moments, or if the number of codes or the
    /// block size does not fit.
    pub(super) fn read(parameter: &mut Parameter, format: &StateFormat) -> Option<Self> {
        let rank = parameter.scalars.get(RANK).copied();
        let number = |parameter: &Parameter, name: &str| u64::try_from(*parameter.scalars.get(name)?).ok();
        if parameter.tensors.contains_key(MAX) {
            return None;
        }
        let names: Vec<&str> = format.moments.iter().map(|moment| moment.name).collect();
        if parameter.tensors.contains_key(&format!("{}.codes", names.first()?)) {
            let time = number(parameter, TIME)?;
            let sizes = (0..).map_while(|place| number(parameter, &format!("shape.{place}")));
            let shape: Vec<usize> = sizes.map(|size| size as usize).collect();
            let count = elements(&shape)?;
            let moments = names.iter().map(|name| codes(parameter, name, count)).collect::<Option<_>>()?;
            return Some(Self { time, shape, count, moments, rank });
        }
        let time = match format.counts_steps {
            true => number(parameter, &format!("{MOMENTUM}.{TIME}"))?,
            false => 0,
        };
        let mut shape: Option<Vec<usize>> = None;
        let mut moments = vec![];
        for name in names {
            let values = parameter.tensors.remove(&format!("{MOMENTUM}.{name}"))?;
            if shape.get_or_insert_with(|| values.shape.clone()) != &values.shape {
                return None;
            }
            moments.push(values.to_f32().map_or(Kept::Other(values), Kept::F32));
        }
        let shape = shape?;
        Some(Self { time, count: elements(&shape)?, shape, moments, rank })
    }

    /// Whether an optimizer of this format keeps the moments as codes. Moments of 64 bits belong to a parameter of 64 bits, whose state
    /// is never quantised.
    pub(super) fn is_large(&self, format: &StateFormat) -> bool {
        let wide = |kept: &Kept| matches!(kept, Kept::Other(values) if values.widened().is_none());
        self.count > 0 && self.count >= format.min_elements && !self.moments.iter().any(wide)
    }

    /// The state with codes for all moments that can have them.
    pub(super) fn quantized(self, format: &StateFormat) -> Result<Self, Error> {
        let moments = self.moments.into_iter().zip(&format.moments).map(|(kept, Moment { book, .. })| match kept {
            Kept::F32(values) => Ok(Kept::Codes(*book, quantize(&values, *book)?)),
            Kept::Codes(old, blocks) if old != *book => {
                Ok(Kept::Codes(*book, quantize(&dequantize(&blocks, old)?, *book)?))
            }
            Kept::Other(values) => match values.widened() {
                Some(values) => Ok(Kept::Codes(*book, quantize(&values, *book)?)),
                None => Ok(Kept::Other(values)),
            },
            kept => Ok(kept),
        });
        Ok(Self { moments: moments.collect::<Result<_, _>>()?, ..self })
    }

    /// The state with all moments in f32, except those of 64 bits.
    pub(super) fn in_f32(self) -> Result<Self, Error> {
        let moments = self.moments.into_iter().map(|kept| match kept {
            Kept::Codes(book, blocks) => Ok(Kept::F32(dequantize(&blocks, book)?)),
            Kept::Other(values) => Ok(values.widened().map_or(Kept::Other(values), Kept::F32)),
            kept => Ok(kept),
        });
        Ok(Self { moments: moments.collect::<Result<_, _>>()?, ..self })
    }

    pub(super) fn write(self, format: &StateFormat) -> Parameter {
        let mut parameter = Parameter::default();
        parameter.scalars.extend(self.rank.map(|rank| (RANK.to_owned(), rank)));
        let has_codes = self.moments.iter().any(|kept| matches!(kept, Kept::Codes(..)));
        if has_codes {
            parameter.scalars.insert(TIME.into(), self.time.into());
            let sizes = self.shape.iter().enumerate();
            parameter.scalars.extend(sizes.map(|(place, size)| (format!("shape.{place}"), (*size).into())));
        } else if format.counts_steps {
            parameter.scalars.insert(format!("{MOMENTUM}.{TIME}"), self.time.into());
        }
        for (kept, Moment { name, .. }) in self.moments.into_iter().zip(&format.moments) {
            match kept {
                Kept::F32(values) => {
                    let values = Values::of_f32(values, self.shape.clone());
                    parameter.tensors.insert(format!("{MOMENTUM}.{name}"), values);
                }
                Kept::Other(values) => {
                    parameter.tensors.insert(format!("{MOMENTUM}.{name}"), values);
                }
                Kept::Codes(book, Blocks { codes, scales, .. }) => {
                    let blocks = vec![scales.len()];
                    parameter.tensors.insert(format!("{name}.codes"), Values::of_u8(codes));
                    parameter.tensors.insert(format!("{name}.scales"), Values::of_f32(scales, blocks));
                    parameter.scalars.insert(format!("{name}.map"), book.number().into());
                    parameter.scalars.insert(format!("{name}.bits"), book.bits().into());
                    parameter.scalars.insert(format!("{name}.block"), book.block().into());
                }
            }
        }
        parameter
    }
}

fn codes(parameter: &mut Parameter, name: &str, count: usize) -> Option<Kept> {
    let number = |leaf: &str| u32::try_from(*parameter.scalars.get(&format!("{name}.{leaf}"))?).ok();
    let book = CodeBook::of_number(number("map")?)?;
    if (number("bits")?, number("block")? as usize) != (book.bits(), book.block()) {
        return None;
    }
    let codes = parameter.tensors.remove(&format!("{name}.codes"))?.bytes.to_vec();
    let scales = parameter.tensors.remove(&format!("{name}.scales"))?.to_f32()?;
    let blocks = Blocks { codes, scales, count };
    dequantize(&blocks, book).is_ok().then_some(Kept::Codes(book, blocks))
}
