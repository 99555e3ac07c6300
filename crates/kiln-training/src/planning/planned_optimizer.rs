//! The optimizer that a plan takes steps with.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The optimizer that a plan uses: the run's own, or an allowed replacement.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum PlannedOptimizer {
    /// The run's own.
    #[default]
    Own,
    /// The run's own, with its state in host memory.
    OwnOnHost,
    /// Another optimizer.
    Other {
        /// The name that it was allowed under.
        name: String,
        /// Whether its state is in host memory.
        on_host: bool,
    },
}

impl PlannedOptimizer {
    /// Whether the plan moves the state to host memory. The run's own optimizer may keep its state there anyway.
    pub fn is_on_host(&self) -> bool {
        matches!(self, Self::OwnOnHost | Self::Other { on_host: true, .. })
    }

    /// Whether the parameters have the same bits as with the run's own optimizer.
    pub fn has_same_numbers(&self) -> bool {
        matches!(self, Self::Own | Self::OwnOnHost)
    }

    /// The name, in a run whose own optimizer is called `own`.
    pub fn name<'a>(&'a self, own: &'a str) -> &'a str {
        match self {
            Self::Own | Self::OwnOnHost => own,
            Self::Other { name, .. } => name,
        }
    }
}

impl fmt::Display for PlannedOptimizer {
    /// `own optimizer`, `optimizer state in host memory` or `adamw8bit in host memory`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Own => f.write_str("own optimizer"),
            Self::OwnOnHost => f.write_str("optimizer state in host memory"),
            Self::Other { name, on_host: false } => f.write_str(name),
            Self::Other { name, on_host: true } => write!(f, "{name} in host memory"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::PlannedOptimizer::{self, Other, Own, OwnOnHost};

    #[test]
    fn an_optimizer_in_fewer_bits_is_told_from_the_own_one_on_the_host() {
        let other = |on_host| Other { name: "sgd8bit".into(), on_host };
        let facts = |of: &PlannedOptimizer| (of.is_on_host(), of.has_same_numbers(), of.name("sgd").to_owned());
        assert_eq!(facts(&Own), (false, true, "sgd".into()));
        assert_eq!(facts(&OwnOnHost), (true, true, "sgd".into()));
        assert_eq!(facts(&other(false)), (false, false, "sgd8bit".into()));
        assert_eq!(facts(&other(true)), (true, false, "sgd8bit".into()));
        assert_eq!(other(true).to_string(), "sgd8bit in host memory");
    }
}
