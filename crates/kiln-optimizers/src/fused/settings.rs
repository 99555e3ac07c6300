//! The settings of burn's optimizers. Their fields are private, so they are read from the form in which configurations are saved.

use burn::config::Config;
use serde_json::Value;

use crate::error::Error;

/// The fields of a configuration.
pub(crate) struct Settings(Value);

impl Settings {
    pub(crate) fn of(config: &impl Config) -> Self {
        Self(serde_json::to_value(config).unwrap_or_default())
    }

    /// A group of settings that may be absent.
    pub(crate) fn group(&self, name: &str) -> Option<Self> {
        let group = &self.0[name];
        (!group.is_null()).then(|| Self(group.clone()))
    }

    /// A number. A number that is not finite has no form in a file and becomes NaN.
    pub(crate) fn number(&self, name: &str) -> f64 {
        self.0[name].as_f64().unwrap_or(f64::NAN)
    }

    pub(crate) fn flag(&self, name: &str) -> bool {
        self.0[name].as_bool().unwrap_or(false)
    }

    /// Refuses a number that `accepts` does not take.
    pub(crate) fn check(
        &self,
        name: &'static str,
        expected: &'static str,
        accepts: impl FnOnce(f64) -> bool,
    ) -> Result<(), Error> {
        let value = self.number(name);
        match accepts(value) {
            true => Ok(()),
            false => Err(Error::InvalidSetting { name, value: value.to_string(), expected }),
        }
    }
}
