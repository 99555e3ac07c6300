//! The number of images of each class, and conclusions from it.

use kiln_data::{ImageSet, TrainTest};
use kiln_report::counted;

/// The largest number of classes for which a data set is described class by class and evaluated without top-5 accuracy.
pub(super) const FEW: usize = 5;
/// Classes with fewer training images are hard to learn.
const SCARCE: usize = 20;
/// Classes that a line lists.
const LISTED: usize = 5;
/// Classes are balanced if the largest has at most this many times the images of the smallest.
const BALANCED: f64 = 1.5;

/// Images of each class.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClassCounts {
    /// The names of the classes.
    pub names: Vec<String>,
    /// Images to train on.
    pub train: Vec<usize>,
    /// Images that are held out.
    pub test: Vec<usize>,
}

/// Images of each class in one part of a data set.
pub(super) fn counts(set: &ImageSet) -> Vec<usize> {
    let mut counts = vec![0; set.classes().len()];
    (0..set.len()).for_each(|id| counts[set.label(id)] += 1);
    counts
}

impl ClassCounts {
    /// Counts the labels of both parts.
    pub fn of(data: &TrainTest<ImageSet>) -> Self {
        Self { names: data.train.classes().to_vec(), train: counts(&data.train), test: counts(&data.test) }
    }

    /// The class with the most training images, and the accuracy on the held-out images of a model that always predicts it.
    pub fn majority(&self) -> Option<(&str, f64)> {
        let held_out: usize = self.test.iter().sum();
        // The first one if several are equal.
        let class = (0..self.train.len()).rev().max_by_key(|class| self.train[*class])?;
        (held_out > 0).then(|| (self.names[class].as_str(), self.test[class] as f64 / held_out as f64))
    }

    /// Lines about the classes at the start of a run: their images, and the accuracy that a model has to beat.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = vec![];
        let classes = || counted(self.names.len(), "class");
        let named = |(name, count): (&String, &usize)| format!("{name} {count}");
        let each = |counts: &[usize]| self.names.iter().zip(counts).map(named).collect::<Vec<_>>().join(", ");
        match self.extremes() {
            None => return lines,
            _ if self.names.len() <= FEW => {
                lines.push(format!("images to train on: {}; held out: {}", each(&self.train), each(&self.test)));
            }
            Some([smallest, largest]) if self.train[smallest] == self.train[largest] => {
                lines.push(format!("{} of {} each to train on", classes(), counted(self.train[smallest], "image")));
            }
            Some([smallest, largest]) => {
                let of = |class: usize| format!("{} ({})", self.train[class], self.names[class]);
                let (from, to) = (of(smallest), of(largest));
                lines.push(format!("{} of {from} to {to} images to train on", classes()));
            }
        }
        if let Some((name, accuracy)) = self.majority() {
            lines.push(format!("baseline: always \"{name}\", the most frequent class: {accuracy:.2}"));
        }
        lines
    }

    /// Warnings about classes that may not be learned, or not be measured.
    pub fn warnings(&self) -> Vec<String> {
        let list = |classes: Vec<usize>, name: &dyn Fn(usize) -> String| {
            let rest = classes.len().saturating_sub(LISTED);
            let mut text = classes.iter().take(LISTED).map(|class| name(*class)).collect::<Vec<_>>().join(", ");
            if rest > 0 {
                text.push_str(&format!(" and {rest} more"));
            }
            text
        };
        let of =
            |wanted: &dyn Fn(usize) -> bool| (0..self.names.len()).filter(|class| wanted(*class)).collect::<Vec<_>>();
        let mut scarce = of(&|class| self.train[class] < SCARCE);
        scarce.sort_by_key(|class| self.train[*class]);
        let unmeasured = of(&|class| self.test[class] == 0);
        let mut warnings = vec![];
        if !scarce.is_empty() {
            let names = list(scarce, &|class| format!("{} {}", self.names[class], self.train[class]));
            warnings.push(format!("classes with fewer than {SCARCE} images to train on: {names}"));
        }
        if !unmeasured.is_empty() {
            let names = list(unmeasured, &|class| self.names[class].clone());
            warnings.push(format!("classes without a held-out image, which are not measured: {names}"));
        }
        warnings
    }

    /// The classes with the fewest and the most images to train on.
    fn extremes(&self) -> Option<[usize; 2]> {
        let classes = 0..self.train.len();
        Some([
            classes.clone().min_by_key(|class| self.train[*class])?,
            classes.rev().max_by_key(|class| self.train[*class])?,
        ])
    }
}

/// The contribution of a correct answer for an image of each class to the balanced accuracy, times the number of images. `None` if the
/// accuracy suffices: for balanced classes, unless they are few.
pub(super) fn recall_weights(counts: &[usize]) -> Option<Vec<f32>> {
    let images: usize = counts.iter().sum();
    let present = counts.iter().filter(|count| **count > 0);
    let (classes, least, most) = (present.clone().count(), present.clone().min()?, present.max()?);
    if counts.len() > FEW && *most as f64 <= BALANCED * *least as f64 {
        return None;
    }
    let weight = |count: &usize| match count {
        0 => 0.0,
        _ => images as f32 / (classes as f32 * *count as f32),
    };
    Some(counts.iter().map(weight).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn classes(train: &[usize], test: &[usize]) -> ClassCounts {
        let names = ["cat", "dog", "emu", "gnu", "yak", "ant", "bee"].iter().map(|name| (*name).to_owned());
        ClassCounts { names: names.take(train.len()).collect(), train: train.to_vec(), test: test.to_vec() }
    }

    #[test]
    fn two_classes_are_described_with_the_accuracy_to_beat() {
        let two = classes(&[620, 380], &[62, 38]);
        assert_eq!(
            two.lines(),
            [
                "images to train on: cat 620, dog 380; held out: cat 62, dog 38",
                "baseline: always \"cat\", the most frequent class: 0.62"
            ]
        );
        assert!(two.warnings().is_empty());
        // The first one of equal classes.
        assert_eq!(classes(&[5, 5], &[1, 3]).majority(), Some(("cat", 0.25)));
        assert_eq!(classes(&[5, 5], &[0, 0]).majority(), None);
        assert!(ClassCounts::default().lines().is_empty());
    }

    #[test]
    fn many_classes_are_summed_up_and_scarce_ones_named() {
        let many = classes(&[400, 7, 400, 400, 30, 3, 800], &[40, 1, 40, 40, 3, 0, 80]);
        assert_eq!(many.lines()[0], "7 classes of 3 (ant) to 800 (bee) images to train on");
        assert_eq!(
            many.warnings(),
            [
                "classes with fewer than 20 images to train on: ant 3, dog 7",
                "classes without a held-out image, which are not measured: ant"
            ]
        );
        assert_eq!(classes(&[400; 6], &[10; 6]).lines()[0], "6 classes of 400 images each to train on");
        let none = classes(&[0; 7], &[0; 7]).warnings();
        assert!(none[0].ends_with("cat 0, dog 0, emu 0, gnu 0, yak 0 and 2 more"), "{none:?}");
    }

    #[test]
    fn weights_of_recalls_give_the_mean_over_classes() {
        // All three cats and one of the six dogs are right: (1 + 1/6) / 2.
        let weights = recall_weights(&[3, 6]).unwrap();
        let right = 3.0 * weights[0] + weights[1];
        assert!((right / 9.0 - (1.0 + 1.0 / 6.0) / 2.0).abs() < 1e-6);
        assert_eq!(recall_weights(&[100; 10]), None);
        assert!(recall_weights(&[100, 100, 100, 100, 100, 10]).is_some());
        // A class without an image has no weight.
        assert_eq!(recall_weights(&[4, 0]).unwrap(), [1.0, 0.0]);
        assert_eq!(recall_weights(&[0, 0]), None);
    }
}
