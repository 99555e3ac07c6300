//! Metrics of a model: named values over the batches of a data set.

mod confusion;
mod ranked;
mod scores;
mod totals;

pub use confusion::Confusion;
pub use scores::{bits_per_byte, perplexity, top_k_correct, top_k_hits};
pub(crate) use totals::Totals;

use burn::tensor::{Bool, ExecutionError, Int, Tensor};

use totals::Total;

/// One metric of a batch: what the metric over a data set is computed from.
#[derive(Clone, Debug)]
pub struct Metric(Parts);

#[derive(Clone, Debug)]
enum Parts {
    /// A sum, and the count that the sum over all batches is divided by.
    Mean { sum: Tensor<1>, count: f64, finish: fn(f64) -> f64 },
    /// Sums, of which `finish` makes the value.
    Sums { sums: Tensor<1>, finish: fn(&[f64]) -> f64 },
    /// Two values for each sample, of which `finish` makes the value, for all samples of the data set.
    Samples { values: Box<[Tensor<1>; 2]>, finish: fn(&[f64], &[f64]) -> f64 },
}

impl Metric {
    /// A metric with `sum` over the batch (one element) and its `count`. Over a data set it is the sum of all `sum`s divided by the sum
    /// of all `count`s.
    pub fn mean(sum: Tensor<1>, count: usize) -> Self {
        Self(Parts::Mean { sum, count: count as f64, finish: |mean| mean })
    }

    /// Applies `finish` to the mean over the data set: `f64::exp` makes a perplexity of nats per token. Other metrics stay as they are.
    #[must_use]
    pub fn finished_by(self, finish: fn(f64) -> f64) -> Self {
        match self.0 {
            Parts::Mean { sum, count, .. } => Self(Parts::Mean { sum, count, finish }),
            other => Self(other),
        }
    }

    /// The mean of the F1 scores of all classes that occur in the data set or in the predictions (macro F1): of `logits_bc` `[B, C]` the
    /// largest is the prediction, `targets_b` `[B]` has the classes. A sample whose class is none of them, as -100, does not count.
    pub fn macro_f1(logits_bc: Tensor<2>, targets_b: Tensor<1, Int>) -> Self {
        let [samples, classes] = logits_bc.dims();
        let ids_bc = Tensor::<1, Int>::arange(0..classes as i64, &logits_bc.device()).unsqueeze_dim::<2>(0);
        let ids_bc = ids_bc.expand([samples, classes]);
        let is_bc = |classes_b1: Tensor<2, Int>| classes_b1.expand([samples, classes]).equal(ids_bc.clone()).float();
        let true_bc = is_bc(targets_b.unsqueeze_dim(1));
        let predicted_bc = is_bc(logits_bc.argmax(1)) * true_bc.clone().sum_dim(1);
        let of_classes = |counts_bc: Tensor<2>| counts_bc.sum_dim(0).squeeze_dim::<1>(0);
        let both_bc = predicted_bc.clone() * true_bc.clone();
        let sums = Tensor::cat(vec![of_classes(both_bc), of_classes(predicted_bc), of_classes(true_bc)], 0);
        Self(Parts::Sums { sums, finish: ranked::macro_f1 })
    }

    /// The area under the ROC curve: the share of pairs of a positive and a negative sample in which the positive one has the larger of
    /// `scores_b` `[B]`; equal ones count half (Fawcett 2006). NaN without a positive or without a negative sample in the data set. All scores
    /// are kept on the host until the end of the evaluation, 16 bytes a sample.
    pub fn roc_auc(scores_b: Tensor<1>, positive_b: Tensor<1, Bool>) -> Self {
        Self(Parts::Samples { values: Box::new([scores_b, positive_b.float()]), finish: ranked::roc_auc })
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

    /// Reads each part from the device separately: a concatenation could hide that one of them was never written.
    pub(crate) fn read(self) -> Result<Totals, ExecutionError> {
        let total = |(name, Metric(parts)): (&'static str, Metric)| {
            let total = match parts {
                Parts::Mean { sum, count, finish } => Total::Mean { sum: values(&sum)?.iter().sum(), count, finish },
                Parts::Sums { sums, finish } => Total::Sums { sums: values(&sums)?, finish },
                Parts::Samples { values: pair, finish } => {
                    Total::Samples { values: [values(&pair[0])?, values(&pair[1])?], finish }
                }
            };
            Ok((name, total))
        };
        Ok(Totals(self.0.into_iter().map(total).collect::<Result<_, ExecutionError>>()?))
    }
}

/// The values of a tensor, read from its device.
fn values(tensor: &Tensor<1>) -> Result<Vec<f64>, ExecutionError> {
    let data = tensor.clone().try_into_data()?;
    // CubeCL copies the values from the device only now, which may fail.
    data.bytes().read(Default::default()).map_err(|e| ExecutionError::generic(e.to_string()))?;
    Ok(data.iter::<f64>().collect())
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

    #[test]
    fn metrics_of_all_samples_do_not_depend_on_how_the_data_is_cut_into_batches() {
        let device = Device::flex();
        let logits =
            [[2.0, 1.0, 0.0], [0.1, 0.2, 0.0], [0.0, 3.0, 0.0], [1.0, 0.0, 0.5], [0.5, 0.4, 0.3], [0.0, 0.2, 0.1]];
        let targets = [0, 0, 1, 0, 1, 1];
        let of = |rows: std::ops::Range<usize>| {
            let logits_bc = Tensor::<2>::from_data(logits, &device).slice_dim(0, rows.clone());
            let targets_b = Tensor::<1, Int>::from_data(targets, &device).slice_dim(0, rows);
            let scores_b = logits_bc.clone().slice_dim(1, 1..2).squeeze_dim(1);
            let metrics = Metrics::new()
                .with("f1", Metric::macro_f1(logits_bc, targets_b.clone()))
                .with("auc", Metric::roc_auc(scores_b, targets_b.equal_elem(1)));
            metrics.read().unwrap()
        };
        let whole = of(0..6).finish();
        // Class 0: 2 of 3 found, 2 of 3 right; class 1 the same; class 2 is nowhere.
        assert_eq!(whole[0].0, "f1");
        assert!((whole[0].1 - 2.0 / 3.0).abs() < 1e-12, "{whole:?}");
        // Positives 3, 0.4 and 0.2 against 1, 0.2 and 0: 3 + 2 + 1.5 of 9 pairs.
        assert!((whole[1].1 - 6.5 / 9.0).abs() < 1e-6, "{whole:?}");
        // Labels of no class, and logits of a single one.
        let logits_bc = Tensor::<2>::from_data([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]], &device);
        let f1 = Metric::macro_f1(logits_bc, Tensor::from_data([0, -100, 255], &device));
        assert_eq!(Metrics::new().with("f1", f1).read().unwrap().finish(), [("f1", 1.0)]);
        let f1 = Metric::macro_f1(Tensor::zeros([2, 1], &device), Tensor::from_data([0, 0], &device));
        assert_eq!(Metrics::new().with("f1", f1).read().unwrap().finish(), [("f1", 1.0)]);
        for cut in 1..6 {
            let mut totals = Totals::default();
            totals.add(of(0..cut));
            totals.add(of(cut..6));
            assert_eq!(totals.finish(), whole, "{cut}");
        }
    }
}
