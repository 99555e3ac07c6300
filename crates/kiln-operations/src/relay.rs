//! Sums that go from one replica of a model to the next, each of which adds its rows.

use std::fmt;
use std::sync::Arc;

use burn::module::ParamId;
use burn::tensor::{Shape, Tensor};

/// A use of a parameter, which has a [running sum](crate::RunningSums).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SumUse {
    /// The parameter.
    pub parameter: ParamId,
    /// The operation that uses it.
    pub operation: String,
    /// Its number among the uses by such an operation in a pass.
    pub number: usize,
}

/// A sum on its way between replicas.
#[derive(Clone, Debug)]
pub struct SentSum {
    /// Its values, one after the other, in f32.
    pub values: Tensor<1>,
    /// Its shape.
    pub shape: Shape,
    /// What the sum is to be multiplied by. `None` for a sum that needs no factor.
    pub factor: Option<f32>,
}

type Take = dyn Fn(&SumUse) -> Option<SentSum> + Send + Sync;
type Give = dyn Fn(SumUse, SentSum) -> Option<SentSum> + Send + Sync;

/// Hands the sums of a batch from replica to replica, so that they are those of one chain over the samples of all replicas.
#[derive(Clone)]
pub struct SumRelay {
    take: Arc<Take>,
    give: Arc<Give>,
}

impl SumRelay {
    /// A relay of two functions. `take` waits for the sum of the replica before; `None` if there is none. `give` hands the sum to the next
    /// replica, and returns it if there is no other.
    pub fn new(
        take: impl Fn(&SumUse) -> Option<SentSum> + Send + Sync + 'static,
        give: impl Fn(SumUse, SentSum) -> Option<SentSum> + Send + Sync + 'static,
    ) -> Self {
        Self { take: Arc::new(take), give: Arc::new(give) }
    }

    /// The sum of the replica before.
    pub fn take(&self, of: &SumUse) -> Option<SentSum> {
        (self.take)(of)
    }

    /// Hands a sum on.
    pub fn give(&self, of: SumUse, sum: SentSum) -> Option<SentSum> {
        (self.give)(of, sum)
    }
}

impl fmt::Debug for SumRelay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a relay of sums")
    }
}
