//! Which parameters are quantised, and how.

use super::blocks::Granularity;
use super::codes::WeightRange;
use super::weights::check_bits;
use crate::Error;
use crate::parameters::is_below;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The settings of [`quantize`](super::quantize): which weights of a model, and with how many bits.
///
/// A path is that of a parameter, `layer1.0.conv1.weight`, or of a module, which stands for all parameters inside: `layer1`. By default
/// all parameters of two dimensions and more are quantised except those of embeddings: biases and norms are left alone.
///
/// ```
/// use kiln_compression::{Granularity, Quantization, WeightRange};
///
/// let settings = Quantization::bits(4)
///     .granularity(Granularity::Block(64))
///     .range(WeightRange::LeastSquares)
///     .half_scales()
///     .bits_of("head", 8)
///     .skip("stem");
/// let text = serde_json::to_string(&settings)?;
/// assert_eq!(serde_json::from_str::<Quantization>(&text)?, settings);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Quantization {
    /// Bits of a code, 2 to 8.
    pub bits: u8,
    /// Which values share a scale.
    pub granularity: Granularity,
    /// The method that chooses the range of a block.
    pub range: WeightRange,
    /// Whether scales are rounded to 16 bits.
    pub half_scales: bool,
    /// Whether embeddings are quantised too.
    pub embeddings: bool,
    /// If not empty, only the parameters at or below these paths are quantised, of any number of dimensions.
    pub only: Vec<String>,
    /// Parameters at or below these paths are not quantised.
    pub skip: Vec<String>,
    /// Other bits for the parameters at or below these paths. The longest matching path counts.
    pub bits_of: BTreeMap<String, u8>,
}

impl Default for Quantization {
    /// 8 bits for each output channel.
    fn default() -> Self {
        Self::bits(8)
    }
}

impl Quantization {
    /// Codes of `bits` bits, 2 to 8, with an f32 scale for each output channel and nothing clipped.
    pub fn bits(bits: u8) -> Self {
        Self {
            bits,
            granularity: Granularity::Channel,
            range: WeightRange::Max,
            half_scales: false,
            embeddings: false,
            only: Vec::new(),
            skip: Vec::new(),
            bits_of: BTreeMap::new(),
        }
    }

    /// Sets which values share a scale.
    pub fn granularity(self, granularity: Granularity) -> Self {
        Self { granularity, ..self }
    }

    /// Sets the method that chooses the range of a block.
    pub fn range(self, range: WeightRange) -> Self {
        Self { range, ..self }
    }

    /// Rounds scales to 16 bits.
    pub fn half_scales(self) -> Self {
        Self { half_scales: true, ..self }
    }

    /// Quantises embeddings too.
    pub fn embeddings(self) -> Self {
        Self { embeddings: true, ..self }
    }

    /// Quantises only the parameters at or below this path, and those of further calls.
    pub fn only(mut self, path: impl Into<String>) -> Self {
        self.only.push(path.into());
        self
    }

    /// Does not quantise the parameters at or below a path.
    pub fn skip(mut self, path: impl Into<String>) -> Self {
        self.skip.push(path.into());
        self
    }

    /// Sets the bits of the parameters at or below a path.
    pub fn bits_of(mut self, path: impl Into<String>, bits: u8) -> Self {
        self.bits_of.insert(path.into(), bits);
        self
    }

    /// The bits of a parameter; `None` if it is not quantised.
    pub(crate) fn chosen(&self, path: &str, kind: &str, dimensions: usize) -> Option<u8> {
        let asked = match self.only.is_empty() {
            true => dimensions >= 2 && (self.embeddings || kind != "Embedding"),
            false => self.only.iter().any(|named| is_below(path, named)),
        };
        if !asked || self.skip.iter().any(|named| is_below(path, named)) {
            return None;
        }
        let fitting = self.bits_of.iter().filter(|(named, _)| is_below(path, named));
        Some(fitting.max_by_key(|(named, _)| named.len()).map_or(self.bits, |(_, bits)| *bits))
    }

    /// Checks the bits, and that every path names one of the parameters `known`.
    pub(crate) fn check(&self, known: &[&str]) -> Result<(), Error> {
        check_bits(self.bits)?;
        self.bits_of.values().try_for_each(|bits| check_bits(*bits))?;
        let paths = self.only.iter().chain(&self.skip).chain(self.bits_of.keys());
        match paths.into_iter().find(|named| !known.iter().any(|path| is_below(path, named))) {
            Some(path) => Err(Error::unknown(path, known)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matrices_are_chosen_by_default_and_paths_name_parameters_and_modules() {
        let all = Quantization::bits(8);
        let some = Quantization::bits(8).skip("a.1").bits_of("a", 4).bits_of("a.2.weight", 6);
        let only = Quantization::bits(8).only("tokens").only("norm.gamma");
        for (settings, path, kind, dimensions, bits) in [
            (&all, "fc.weight", "Linear", 2, Some(8)),
            (&all, "fc.bias", "Linear", 1, None),
            (&all, "tokens.weight", "Embedding", 2, None),
            (&all.clone().embeddings(), "tokens.weight", "Embedding", 2, Some(8)),
            (&some, "a.0.weight", "Linear", 2, Some(4)),
            (&some, "a.1.weight", "Linear", 2, None),
            (&some, "a.2.weight", "Linear", 2, Some(6)),
            (&some, "a.10.weight", "Linear", 2, Some(4)),
            (&some, "ab.weight", "Linear", 2, Some(8)),
            (&only, "tokens.weight", "Embedding", 2, Some(8)),
            (&only, "norm.gamma", "LayerNorm", 1, Some(8)),
            (&only, "fc.weight", "Linear", 2, None),
        ] {
            assert_eq!(settings.chosen(path, kind, dimensions), bits, "{path}");
        }
        assert!(some.check(&["a.1.weight", "a.2.weight"]).is_ok());
        assert!(matches!(some.check(&["a.2.weight"]), Err(Error::UnknownParameter { .. })));
        assert!(matches!(Quantization::bits(1).check(&[]), Err(Error::InvalidSetting { .. })));
        assert!(matches!(Quantization::bits(8).bits_of("a", 9).check(&["a"]), Err(Error::InvalidSetting { .. })));
    }
}
