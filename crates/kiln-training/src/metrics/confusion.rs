//! Confusion matrix of classes, and the scores that follow from it.

/// A confusion matrix: counts of pixels, or of other things with a class, by true and predicted class.
///
/// ```
/// use kiln_training::Confusion;
///
/// let mut confusion = Confusion::new(3);
/// for (truth, predicted) in [(0, 0), (0, 0), (0, 1), (1, 1)] {
///     confusion.add(truth, predicted);
/// }
/// assert_eq!(confusion.iou(), [Some(2.0 / 3.0), Some(0.5), None]); // there is no third class
/// assert_eq!(confusion.mean_iou(), (2.0 / 3.0 + 0.5) / 2.0);
/// assert_eq!(confusion.accuracy(), 0.75);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Confusion {
    classes: usize,
    /// `[true class, predicted class]`.
    counts: Vec<u64>,
}

impl Confusion {
    /// An empty matrix for `classes` classes.
    pub fn new(classes: usize) -> Self {
        Self { classes, counts: vec![0; classes * classes] }
    }

    /// Counts one pixel. An id outside of the classes is skipped: an ignored pixel.
    pub fn add(&mut self, truth: usize, predicted: usize) {
        if truth < self.classes && predicted < self.classes {
            self.counts[truth * self.classes + predicted] += 1;
        }
    }

    /// Adds the counts of `other`, which has the same number of classes.
    pub fn merge(&mut self, other: &Self) {
        debug_assert_eq!(self.classes, other.classes);
        self.counts.iter_mut().zip(&other.counts).for_each(|(count, more)| *count += more);
    }

    /// Pixels of each true class.
    pub fn truths(&self) -> Vec<u64> {
        self.counts.chunks_exact(self.classes.max(1)).map(|row| row.iter().sum()).collect()
    }

    /// IoU of each class: the intersection of truth and prediction over their union. `None` for a class that is in neither.
    pub fn iou(&self) -> Vec<Option<f64>> {
        let score = |(class, truth): (usize, u64)| {
            let predicted: u64 = (0..self.classes).map(|row| self.counts[row * self.classes + class]).sum();
            let both = self.counts[class * self.classes + class];
            let union = truth + predicted - both;
            (union > 0).then(|| both as f64 / union as f64)
        };
        self.truths().into_iter().enumerate().map(score).collect()
    }

    /// The mean of [`iou`](Self::iou) over the classes that have one; 0 without any.
    pub fn mean_iou(&self) -> f64 {
        let scores: Vec<f64> = self.iou().into_iter().flatten().collect();
        scores.iter().sum::<f64>() / scores.len().max(1) as f64
    }

    /// The share of pixels whose class is right; 0 without pixels.
    pub fn accuracy(&self) -> f64 {
        let all: u64 = self.counts.iter().sum();
        let right: u64 = (0..self.classes).map(|class| self.counts[class * self.classes + class]).sum();
        right as f64 / all.max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::Confusion;

    #[test]
    fn a_class_that_is_only_predicted_has_a_score_of_zero_and_ignored_ids_count_nowhere() {
        let mut confusion = Confusion::new(3);
        for (truth, predicted) in [(0, 2), (255, 1), (0, 0)] {
            confusion.add(truth, predicted);
        }
        assert_eq!(confusion.iou(), [Some(0.5), None, Some(0.0)]);
        let mut twice = confusion.clone();
        twice.merge(&confusion);
        assert_eq!((twice.truths(), twice.mean_iou()), (vec![4, 0, 0], 0.25));
        assert_eq!((Confusion::new(2).mean_iou(), Confusion::new(0).accuracy()), (0.0, 0.0));
    }
}
