//! Chooses the next token from its logits: greedily, or at random among the likely ones.

use crate::Error;
use crate::config::invalid;

/// The settings by which the next token is chosen from its logits.
///
/// The logits are divided by the temperature. Of all tokens, the `top_k` likeliest stay. Of these, the fewest tokens stay whose
/// probabilities add up to `top_p`. One of the remaining tokens is drawn. Hugging Face's `generate` has this order. Of equally likely
/// tokens the first stays.
///
/// It computes on numbers alone: the caller reads the logits from the device and draws the random number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    temperature: f64,
    top_k: Option<usize>,
    top_p: Option<f64>,
}

impl Sampling {
    /// Draws from all tokens at `temperature`. At 1 the probabilities are the model's; less makes likely tokens likelier, and 0 always
    /// takes the likeliest token.
    pub const fn new(temperature: f64) -> Self {
        Self { temperature, top_k: None, top_p: None }
    }

    /// Draws from the `k` likeliest tokens only (Fan et al. 2018).
    #[must_use]
    pub const fn with_top_k(self, k: usize) -> Self {
        Self { top_k: Some(k), ..self }
    }

    /// Draws only from the fewest tokens whose probabilities add up to `p`, the likeliest first (nucleus sampling, Holtzman et al. 2019).
    #[must_use]
    pub const fn with_top_p(self, p: f64) -> Self {
        Self { top_p: Some(p), ..self }
    }

    /// Checks the settings once, before a model is loaded.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] for a temperature that is negative or not finite, a `top_k` of 0, and a `top_p` outside of (0, 1].
    pub fn check(&self) -> Result<(), Error> {
        if !(self.temperature.is_finite() && self.temperature >= 0.0) {
            return Err(invalid("temperature", self.temperature, "a number of at least 0"));
        }
        match (self.top_k, self.top_p) {
            (Some(0), _) => Err(invalid("top-k", 0, "at least 1")),
            (_, Some(p)) if !(p > 0.0 && p <= 1.0) => Err(invalid("top-p", p, "a number above 0, at most 1")),
            _ => Ok(()),
        }
    }

    /// The tokens that may be drawn, with their probabilities, which add up to 1.
    ///
    /// # Errors
    /// Those of [`check`](Self::check). [`Error::InvalidLogits`] when there are no logits, when one is NaN or infinite, and when all are
    /// minus infinity, which stands for a probability of 0.
    pub fn candidates(&self, logits: &[f32]) -> Result<Vec<(usize, f64)>, Error> {
        self.check()?;
        let likeliest = likeliest(logits)?;
        if self.temperature == 0.0 {
            return Ok(vec![(likeliest, 1.0)]);
        }
        let most = f64::from(logits[likeliest]);
        let weight = |logit: f32| ((f64::from(logit) - most) / self.temperature).exp();
        let mut tokens: Vec<(usize, f64)> = logits.iter().map(|logit| weight(*logit)).enumerate().collect();
        let likelier = |a: &(usize, f64), b: &(usize, f64)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
        if let Some(k) = self.top_k.filter(|k| *k < tokens.len()) {
            tokens.select_nth_unstable_by(k - 1, likelier);
            tokens.truncate(k);
        }
        // A fixed order: the same random number draws the same token.
        if self.top_k.is_some() || self.top_p.is_some() {
            tokens.sort_unstable_by(likelier);
        }
        tokens.retain(|(_, weight)| *weight > 0.0);
        if let Some(p) = self.top_p {
            let all: f64 = tokens.iter().map(|(_, weight)| weight).sum();
            let mut sum = 0.0;
            let enough = tokens.iter().position(|(_, weight)| {
                sum += weight;
                sum >= p * all
            });
            tokens.truncate(enough.map_or(tokens.len(), |last| last + 1));
        }
        let all: f64 = tokens.iter().map(|(_, weight)| weight).sum();
        Ok(tokens.into_iter().map(|(token, weight)| (token, weight / all)).collect())
    }

    /// Chooses the next token by `uniform`, a random number in [0, 1): the probabilities of the [`candidates`](Self::candidates) are laid
    /// side by side, and the token at `uniform` is taken. At temperature 0 the number does not matter.
    ///
    /// # Errors
    /// Those of [`candidates`](Self::candidates).
    pub fn choose(&self, logits: &[f32], uniform: f64) -> Result<usize, Error> {
        let candidates = self.candidates(logits)?;
        let mut sum = 0.0;
        let drawn = candidates.iter().find(|(_, probability)| {
            sum += probability;
            uniform < sum
        });
        // The sum may end below 1 by rounding.
        let last = candidates.last();
        let (token, _) = drawn.or(last).ok_or_else(|| none("there are none"))?;
        Ok(*token)
    }
}

/// The token with the largest logit, the first of equal ones.
fn likeliest(logits: &[f32]) -> Result<usize, Error> {
    let mut best: Option<(usize, f32)> = None;
    for (token, logit) in logits.iter().enumerate() {
        if logit.is_nan() || *logit == f32::INFINITY {
            return Err(none(&format!("that of token {token} is {logit}, expected a number")));
        }
        if best.is_none_or(|(_, most)| *logit > most) {
            best = Some((token, *logit));
        }
    }
    match best {
        Some((token, most)) if most > f32::NEG_INFINITY => Ok(token),
        Some(_) => Err(none("all are minus infinity, expected at least one number")),
        None => Err(none("there are none")),
    }
}

fn none(reason: &str) -> Error {
    Error::InvalidLogits { reason: reason.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::Sampling;

    fn tokens(sampling: Sampling, logits: &[f32]) -> Vec<usize> {
        sampling.candidates(logits).unwrap().into_iter().map(|(token, _)| token).collect()
    }

    #[test]
    fn a_temperature_of_0_takes_the_first_of_the_likeliest() {
        let logits = [1.0, 3.0, 3.0, f32::NEG_INFINITY];
        for uniform in [0.0, 0.5, 0.999_999] {
            assert_eq!(Sampling::new(0.0).with_top_p(0.1).choose(&logits, uniform).unwrap(), 1);
        }
    }

    #[test]
    fn a_number_draws_the_token_at_its_place() {
        // Probabilities 1/4, 1/2, 1/4.
        let logits = [1.0f32.ln(), 2.0f32.ln(), 1.0f32.ln()];
        for (uniform, token) in [(0.0, 0), (0.24, 0), (0.26, 1), (0.74, 1), (0.76, 2), (1.0, 2)] {
            assert_eq!(Sampling::new(1.0).choose(&logits, uniform).unwrap(), token, "{uniform}");
        }
        let half = Sampling::new(0.5).candidates(&logits).unwrap();
        assert!((half[1].1 - 4.0 / 6.0).abs() < 1e-6, "{half:?}");
    }

    #[test]
    fn the_first_of_equal_tokens_stay() {
        let logits = [0.0; 6];
        assert_eq!(tokens(Sampling::new(1.0).with_top_k(2), &logits), [0, 1]);
        assert_eq!(tokens(Sampling::new(1.0).with_top_p(0.5), &logits), [0, 1, 2]);
        // First the four likeliest, and of these half.
        assert_eq!(tokens(Sampling::new(1.0).with_top_k(4).with_top_p(0.5), &logits), [0, 1]);
        assert_eq!(tokens(Sampling::new(1.0).with_top_k(99), &logits), [0, 1, 2, 3, 4, 5]);
    }

    #[test]
    fn what_cannot_be_drawn_from_is_refused() {
        let plain = Sampling::new(1.0);
        for (sampling, logits, expected) in [
            (plain, &[0.0, f32::NAN][..], "token 1 is NaN"),
            (Sampling::new(0.0), &[f32::NAN], "token 0 is NaN"),
            (plain, &[f32::INFINITY, 1.0], "token 0 is inf"),
            (plain, &[f32::NEG_INFINITY; 3], "all are minus infinity"),
            (plain, &[], "there are none"),
            (Sampling::new(-1.0), &[0.0], "temperature is -1"),
            (Sampling::new(f64::NAN), &[0.0], "temperature is NaN"),
            (plain.with_top_k(0), &[0.0], "top-k is 0"),
            (plain.with_top_p(0.0), &[0.0], "top-p is 0"),
            (plain.with_top_p(1.5), &[0.0], "top-p is 1.5"),
        ] {
            let error = sampling.choose(logits, 0.5).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
