//! Metrics of a data set, added up on the host batch by batch.

/// Metrics added up over batches.
#[derive(Clone, Debug, Default)]
pub(crate) struct Totals(pub(super) Vec<(&'static str, Total)>);

/// One metric so far.
#[derive(Clone, Debug)]
pub(super) enum Total {
    /// A sum, and what it is divided by.
    Mean { sum: f64, count: f64, finish: fn(f64) -> f64 },
    /// Sums, of which a function makes the value.
    Sums { sums: Vec<f64>, finish: fn(&[f64]) -> f64 },
    /// Two values for each sample, of which a function makes the value.
    Samples { values: [Vec<f64>; 2], finish: fn(&[f64], &[f64]) -> f64 },
}

impl Total {
    /// Adds the same metric of another batch.
    fn add(&mut self, other: Self) {
        match (self, other) {
            (Self::Mean { sum, count, .. }, Self::Mean { sum: more, count: counted, .. }) => {
                *sum += more;
                *count += counted;
            }
            (Self::Sums { sums, .. }, Self::Sums { sums: more, .. }) => {
                sums.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
            }
            (Self::Samples { values, .. }, Self::Samples { values: more, .. }) => {
                values.iter_mut().zip(more).for_each(|(values, more)| values.extend(more));
            }
            // A task that gives a name to metrics of two kinds: the later one counts.
            (own, other) => *own = other,
        }
    }

    fn value(&self) -> f64 {
        match self {
            Self::Mean { sum, count, finish } => finish(sum / count),
            Self::Sums { sums, finish } => finish(sums),
            Self::Samples { values: [first, second], finish } => finish(first, second),
        }
    }
}

impl Totals {
    /// Adds the metrics of another batch. A metric that the batch lacks keeps its value.
    pub(crate) fn add(&mut self, batch: Self) {
        for (name, total) in batch.0 {
            match self.0.iter_mut().find(|(known, _)| *known == name) {
                Some((_, known)) => known.add(total),
                None => self.0.push((name, total)),
            }
        }
    }

    /// Name and value of every metric.
    pub(crate) fn finish(&self) -> Vec<(&'static str, f64)> {
        self.0.iter().map(|(name, total)| (*name, total.value())).collect()
    }
}
