//! Metrics of a model: named sums over the batches of a data set.

mod confusion;
mod scores;

pub use confusion::Confusion;
pub use scores::{bits_per_byte, perplexity, top_k_correct, top_k_hits};

use burn::tensor::{ExecutionError, Tensor};

/// One metric of a batch: a sum on the device, and the count that the sum over all batches is divided by.
#[derive(Clone, Debug)]
pub struct Metric {
    sum: Tensor<1>,
    count: f64,
    finish: fn(f64) -> f64,
}

impl Metric {
    /// A metric with `sum` over the batch (one element) and its `count`. Over a data set it is the sum of all `sum`s divided by the sum
    /// of all `count`s.
    pub fn mean(sum: Tensor<1>, count: usize) -> Self {
        Self { sum, count: count as f64, finish: |mean| mean }
    }

    /// Applies `finish` to the mean over the data set: `f64::exp` makes a perplexity of nats per token.
    #[must_use]
    pub fn finished_by(self, finish: fn(f64) -> f64) -> Self {
        Self { finish, ..self }
    }
}

/// The metrics of a batch, each under a name, in the order in which they are reported.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use kiln_training::{Metric, Metrics};
///
/// let errors = Tensor::<1>::from_floats([0.5, 1.5], &Device::flex());
/// let metrics = Metrics::new().with("mean_error", Metric::mean(errors.sum(), 2));
/// assert_eq!(metrics.names(), ["mean_error"]);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Metrics(Vec<(&'static str, Metric)>);

impl Metrics {
    /// No metrics.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a metric.
    #[must_use]
    pub fn with(mut self, name: &'static str, metric: Metric) -> Self {
        self.0.push((name, metric));
        self
    }

    /// The names, in order.
    pub fn names(&self) -> Vec<&'static str> {
        self.0.iter().map(|(name, _)| *name).collect()
    }

    /// Reads each sum from the device separately: a concatenation could hide that one of them was never written.
    pub(crate) fn read(self) -> Result<Totals, ExecutionError> {
        let read = |(_, metric): &(_, Metric)| {
            let data = metric.sum.clone().try_into_data()?;
            // CubeCL copies the values from the device only now, which may fail.
            data.bytes().read(Default::default()).map_err(|e| ExecutionError::generic(e.to_string()))?;
            Ok(data.iter::<f64>().sum())
        };
        let sums: Vec<f64> = self.0.iter().map(read).collect::<Result<_, ExecutionError>>()?;
        let total = |((name, metric), sum): ((&'static str, Metric), f64)| Total {
            name,
            sum,
            count: metric.count,
            finish: metric.finish,
        };
        Ok(Totals(self.0.into_iter().zip(sums).map(total).collect()))
    }
}

/// Metrics summed up over batches, on the host.
#[derive(Clone, Debug, Default)]
pub(crate) struct Totals(Vec<Total>);

#[derive(Clone, Copy, Debug)]
struct Total {
    name: &'static str,
    sum: f64,
    count: f64,
    finish: fn(f64) -> f64,
}

impl Totals {
    /// Adds the metrics of another batch. A metric that the batch lacks keeps its sum.
    pub(crate) fn add(&mut self, batch: Self) {
        for total in batch.0 {
            match self.0.iter_mut().find(|known| known.name == total.name) {
                Some(known) => {
                    known.sum += total.sum;
                    known.count += total.count;
                }
                None => self.0.push(total),
            }
        }
    }

    /// Name and value of every metric.
    pub(crate) fn finish(&self) -> Vec<(&'static str, f64)> {
        self.0.iter().map(|total| (total.name, (total.finish)(total.sum / total.count))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::Device;

    #[test]
    fn sums_and_counts_add_up_over_batches_before_they_are_divided() {
        let batch = |sum: f32, count| {
            let sum = Tensor::<1>::from_floats([sum], &Device::flex());
            let doubled = Metric::mean(sum.clone(), count).finished_by(|mean| 2.0 * mean);
            Metrics::new().with("mean", Metric::mean(sum, count)).with("doubled", doubled).read().unwrap()
        };
        let mut totals = Totals::default();
        totals.add(batch(6.0, 3));
        totals.add(batch(4.0, 1));
        assert_eq!(totals.finish(), [("mean", 2.5), ("doubled", 5.0)]);
        assert!(Metrics::new().read().unwrap().finish().is_empty());
    }
}
