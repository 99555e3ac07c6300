//! Optimizers as settings.

use serde::{Deserialize, Serialize};

use crate::error::Error;

/// An optimizer as settings to be kept in a file. Weight decay spares parameters of one dimension: norms and biases (Goyal et al. 2017,
/// section 5.3, and nanoGPT).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
#[non_exhaustive]
pub enum OptimizerConfig {
    /// Stochastic gradient descent with momentum, as torch's `SGD` with no dampening. State: 4 bytes a parameter.
    Sgd {
        /// Factor of the running gradient, in [0, 1).
        momentum: f64,
        /// Factor of the weights that is added to the gradient, at least 0.
        weight_decay: f64,
        /// Look ahead along the momentum.
        nesterov: bool,
    },
    /// SGD with its momentum in 8 bits: 1.02 bytes a parameter (Dettmers et al. 2022). Otherwise as [`Sgd`](Self::Sgd).
    Sgd8bit {
        /// Factor of the running gradient, in [0, 1).
        momentum: f64,
        /// Factor of the weights that is added to the gradient, at least 0.
        weight_decay: f64,
        /// Look ahead along the momentum.
        nesterov: bool,
    },
    /// Adam with decoupled weight decay (Loshchilov and Hutter 2019). State: 8 bytes a parameter.
    AdamW {
        /// Decay of the first moment, in [0, 1).
        beta1: f64,
        /// Decay of the second moment, in [0, 1).
        beta2: f64,
        /// Added to the denominator, above 0.
        epsilon: f64,
        /// Fraction of the weights taken off per unit of learning rate, at least 0.
        weight_decay: f64,
    },
    /// AdamW with its moments in 8 bits: 2.03 bytes a parameter (Dettmers et al. 2022). Otherwise as [`AdamW`](Self::AdamW).
    AdamW8bit {
        /// Decay of the first moment, in [0, 1).
        beta1: f64,
        /// Decay of the second moment, in [0, 1).
        beta2: f64,
        /// Added to the denominator, above 0.
        epsilon: f64,
        /// Fraction of the weights taken off per unit of learning rate, at least 0.
        weight_decay: f64,
    },
    /// AdamW with its moments in 4 bits: 1.06 bytes a parameter (Li et al. 2023). Otherwise as [`AdamW`](Self::AdamW).
    AdamW4bit {
        /// Decay of the first moment, in [0, 1).
        beta1: f64,
        /// Decay of the second moment, in [0, 1).
        beta2: f64,
        /// Added to the denominator, above 0.
        epsilon: f64,
        /// Fraction of the weights taken off per unit of learning rate, at least 0.
        weight_decay: f64,
    },
    /// burn's Adafactor with the run's learning rate: second moments by row and by column, no first moment (Shazeer and Stern 2018).
    Adafactor {
        /// Fraction of the weights taken off per unit of learning rate, at least 0.
        weight_decay: f64,
    },
    /// burn's Lion: the sign of a running mean (Chen et al. 2023). State: 4 bytes a parameter.
    Lion {
        /// Share of the mean in the update, in [0, 1).
        beta1: f64,
        /// Decay of the mean, in [0, 1).
        beta2: f64,
        /// Fraction of the weights taken off per unit of learning rate, at least 0.
        weight_decay: f64,
    },
    /// burn's Muon for matrices (Jordan et al. 2024), with steps of AdamW's size (Liu et al. 2025), and AdamW with
    /// [its usual betas](Self::adamw) and the same weight decay for all other parameters: embeddings, convolutions, biases and norms. A
    /// model does not say which of its matrices is the output layer: one that is not an embedding is updated by Muon as well.
    Muon {
        /// Factor of the running gradient, in [0, 1).
        momentum: f64,
        /// Fraction of the weights taken off per unit of learning rate, at least 0.
        weight_decay: f64,
    },
}

impl OptimizerConfig {
    /// The names of all optimizers, as [`named`](Self::named) takes them.
    pub const NAMES: [&'static str; 8] =
        ["adamw", "adamw8bit", "adamw4bit", "adafactor", "lion", "muon", "sgd", "sgd8bit"];

    /// SGD with Nesterov momentum 0.9 and weight decay 5e-4.
    pub fn sgd() -> Self {
        Self::Sgd { momentum: 0.9, weight_decay: 5e-4, nesterov: true }
    }

    /// AdamW with nanoGPT's figures: betas 0.9 and 0.95, weight decay 0.1.
    pub fn adamw() -> Self {
        Self::AdamW { beta1: 0.9, beta2: 0.95, epsilon: 1e-8, weight_decay: 0.1 }
    }

    /// Returns an optimizer with its usual settings. Versions with 8-bit or 4-bit state have the settings of the f32 version.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] for a name that is not in [`NAMES`](Self::NAMES).
    pub fn named(name: &str) -> Result<Self, Error> {
        Ok(match name {
            "adamw" => Self::adamw(),
            "adamw8bit" => Self::AdamW8bit { beta1: 0.9, beta2: 0.95, epsilon: 1e-8, weight_decay: 0.1 },
            "adamw4bit" => Self::AdamW4bit { beta1: 0.9, beta2: 0.95, epsilon: 1e-8, weight_decay: 0.1 },
            "adafactor" => Self::Adafactor { weight_decay: 0.1 },
            // A third to a tenth of AdamW's rate, and as many times its decay (Chen et al. 2023, section 5).
            "lion" => Self::Lion { beta1: 0.9, beta2: 0.99, weight_decay: 0.5 },
            "muon" => Self::Muon { momentum: 0.95, weight_decay: 0.1 },
            "sgd" => Self::sgd(),
            "sgd8bit" => Self::Sgd8bit { momentum: 0.9, weight_decay: 5e-4, nesterov: true },
            _ => {
                let expected = "adamw, adamw8bit, adamw4bit, adafactor, lion, muon, sgd or sgd8bit";
                return Err(Error::InvalidSetting { name: "optimizer", value: name.to_owned(), expected });
            }
        })
    }

    /// The name, as [`named`](Self::named) takes it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Sgd { .. } => "sgd",
            Self::Sgd8bit { .. } => "sgd8bit",
            Self::AdamW { .. } => "adamw",
            Self::AdamW8bit { .. } => "adamw8bit",
            Self::AdamW4bit { .. } => "adamw4bit",
            Self::Adafactor { .. } => "adafactor",
            Self::Lion { .. } => "lion",
            Self::Muon { .. } => "muon",
        }
    }

    /// Returns the optimizer called `name`. If it differs from this one only in the format of its state, it keeps this one's numbers.
    /// Otherwise it has its usual numbers.
    ///
    /// # Errors
    /// Those of [`named`](Self::named).
    pub fn switched(self, name: &str) -> Result<Self, Error> {
        let usual = Self::named(name)?;
        Ok(match self {
            Self::AdamW { beta1, beta2, epsilon, weight_decay }
            | Self::AdamW8bit { beta1, beta2, epsilon, weight_decay }
            | Self::AdamW4bit { beta1, beta2, epsilon, weight_decay } => match usual {
                Self::AdamW { .. } => Self::AdamW { beta1, beta2, epsilon, weight_decay },
                Self::AdamW8bit { .. } => Self::AdamW8bit { beta1, beta2, epsilon, weight_decay },
                Self::AdamW4bit { .. } => Self::AdamW4bit { beta1, beta2, epsilon, weight_decay },
                _ => usual,
            },
            Self::Sgd { momentum, weight_decay, nesterov } | Self::Sgd8bit { momentum, weight_decay, nesterov } => {
                match usual {
                    Self::Sgd { .. } => Self::Sgd { momentum, weight_decay, nesterov },
                    Self::Sgd8bit { .. } => Self::Sgd8bit { momentum, weight_decay, nesterov },
                    _ => usual,
                }
            }
            own if own.name() == name => own,
            _ => usual,
        })
    }

    /// Returns this optimizer with its state in 8 bits and its other settings unchanged. `None` if there is no such version.
    pub fn in_8bit(self) -> Option<Self> {
        match self {
            Self::Sgd { .. } => self.switched("sgd8bit").ok(),
            Self::AdamW { .. } => self.switched("adamw8bit").ok(),
            _ => None,
        }
    }

    /// Returns this optimizer with the weight decay `decay` and its other settings unchanged.
    #[must_use]
    pub fn with_weight_decay(mut self, decay: f64) -> Self {
        match &mut self {
            Self::Sgd { weight_decay, .. }
            | Self::Sgd8bit { weight_decay, .. }
            | Self::AdamW { weight_decay, .. }
            | Self::AdamW8bit { weight_decay, .. }
            | Self::AdamW4bit { weight_decay, .. }
            | Self::Adafactor { weight_decay }
            | Self::Lion { weight_decay, .. }
            | Self::Muon { weight_decay, .. } => *weight_decay = decay,
        }
        self
    }

    /// Whether the size of a step follows the gradient, as with SGD. Adam and its variants take steps whose size follows the learning
    /// rate.
    pub fn follows_gradient(&self) -> bool {
        matches!(self, Self::Sgd { .. } | Self::Sgd8bit { .. })
    }

    /// Checks the numbers after rounding them to f32, as the optimizers use them.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`].
    pub fn check(&self) -> Result<(), Error> {
        let of = |field, value: f64, holds: bool, expected| match holds {
            true => Ok(()),
            false => Err(Error::InvalidSetting { name: field, value: value.to_string(), expected }),
        };
        let fraction = |field, value: f64| {
            let expected = match (0.0..1.0).contains(&value) {
                true if (value as f32) < 1.0 => return Ok(()),
                true => "a number in [0, 1) that f32 tells from 1",
                false => "a number in [0, 1)",
            };
            of(field, value, false, expected)
        };
        let positive = |field, value: f64, above: bool| {
            let number = value as f32;
            let expected = if above {
                "a number above 0 that f32 tells from 0"
            } else {
                "a number of at least 0 that f32 can hold"
            };
            of(field, value, number.is_finite() && value >= 0.0 && (number > 0.0 || !above), expected)
        };
        match *self {
            Self::Sgd { momentum, weight_decay, .. }
            | Self::Sgd8bit { momentum, weight_decay, .. }
            | Self::Muon { momentum, weight_decay } => {
                fraction("momentum", momentum).and(positive("weight decay", weight_decay, false))
            }
            Self::AdamW { beta1, beta2, epsilon, weight_decay }
            | Self::AdamW8bit { beta1, beta2, epsilon, weight_decay }
            | Self::AdamW4bit { beta1, beta2, epsilon, weight_decay } => fraction("beta1", beta1)
                .and(fraction("beta2", beta2))
                .and(positive("epsilon", epsilon, true))
                .and(positive("weight decay", weight_decay, false)),
            Self::Lion { beta1, beta2, weight_decay } => fraction("beta1", beta1)
                .and(fraction("beta2", beta2))
                .and(positive("weight decay", weight_decay, false)),
            Self::Adafactor { weight_decay } => positive("weight decay", weight_decay, false),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_has_an_optimizer_whose_settings_are_read_back() {
        for name in OptimizerConfig::NAMES {
            let config = OptimizerConfig::named(name).unwrap();
            config.check().unwrap();
            assert_eq!(config.name(), name);
            let text = serde_json::to_string(&config).unwrap();
            assert!(text.starts_with(&format!("{{\"{name}\"")), "{text}");
            assert_eq!(serde_json::from_str::<OptimizerConfig>(&text).unwrap(), config);
        }
        let spared = OptimizerConfig::adamw().with_weight_decay(0.0);
        assert_eq!(spared, OptimizerConfig::AdamW { beta1: 0.9, beta2: 0.95, epsilon: 1e-8, weight_decay: 0.0 });
        let refused = OptimizerConfig::named("adam").unwrap_err().to_string();
        assert!(OptimizerConfig::NAMES.iter().all(|name| refused.contains(name)), "{refused}");
    }

    #[test]
    fn numbers_out_of_range_are_refused() {
        let adamw = |beta2, epsilon| OptimizerConfig::AdamW8bit { beta1: 0.9, beta2, epsilon, weight_decay: 0.1 };
        for bad in [
            adamw(1.0, 1e-8),
            adamw(0.9, 0.0),
            OptimizerConfig::Muon { momentum: 1.0, weight_decay: 0.0 },
            OptimizerConfig::Lion { beta1: -0.1, beta2: 0.9, weight_decay: 0.0 },
            OptimizerConfig::Adafactor { weight_decay: f64::NAN },
            OptimizerConfig::Sgd8bit { momentum: 0.9, weight_decay: -1.0, nesterov: false },
            // In f32: 1, 0 and infinity.
            adamw(0.999_999_99, 1e-8),
            adamw(0.9, 1e-46),
            OptimizerConfig::adamw().with_weight_decay(1e39),
            OptimizerConfig::Sgd { momentum: 0.999_999_98, weight_decay: 0.0, nesterov: true },
            OptimizerConfig::Lion { beta1: 0.999_999_99, beta2: 0.9, weight_decay: 0.0 },
        ] {
            assert!(matches!(bad.check(), Err(Error::InvalidSetting { .. })), "{bad:?}");
        }
        // The numbers nearest to 1, 0 and infinity that f32 can tell from them.
        let last = adamw(f64::from(1f32.next_down()), 1e-45);
        last.with_weight_decay(f64::from(f32::MAX)).check().unwrap();
        OptimizerConfig::adamw().with_weight_decay(0.0).check().unwrap();
        let refused = adamw(0.999_999_99, 1e-8).check().unwrap_err().to_string();
        assert_eq!(refused, "beta2 is 0.99999999, expected a number in [0, 1) that f32 tells from 1");
    }
}
