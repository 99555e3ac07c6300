//! The task of image classification.
// B batch, C channels or classes, H height, W width

use anyhow::Result;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::tensor::{DType, Device, Int, Tensor};
use kiln_checkpointing::{TensorMap, Tensors};
use kiln_data::{ImageBatch, ImageSet, Normalize};
use kiln_models::{Classifier, ClassifierBlock};
use kiln_training::{Goal, Metric, Metrics, Pass, Task, top_k_correct, top_k_hits};

use super::class_counts::{FEW, counts, recall_weights};
use super::settings::{ClassifySettings, Images, Network};
use crate::pipelines::pipeline::{Chained, Kind, Pipeline};
use crate::pipelines::teacher::TeacherModel;
use crate::usage::Usage;

/// The task of image classification. Training uses cross-entropy. Evaluation reports accuracy and loss, top-5 accuracy if there are more
/// than five classes, and the mean recall of the classes if they are few or unbalanced.
pub struct Classify {
    normalize: Normalize,
    label_smoothing: f64,
    /// A network whose logits are a target beside the labels.
    teacher: Option<TeacherModel<Classifier>>,
    /// The contribution of a correct answer for an image of each class to the balanced accuracy, if that is measured.
    recall_weights: Option<Vec<f32>>,
}

/// The targets of the loss.
#[derive(Clone)]
pub struct Labels {
    own_b: Tensor<1, Int>,
    /// The labels of images that were mixed in, and the share of the original images.
    mixed_b: Option<(Tensor<1, Int>, f64)>,
    /// The teacher's logits.
    taught_bc: Option<Tensor<2>>,
}

impl Tensors for Labels {
    fn map<M: TensorMap>(self, map: &mut M) -> Self {
        let Self { own_b, mixed_b, taught_bc } = self;
        let mixed_b = mixed_b.map(|(mixed_b, lambda)| (map.int(mixed_b), lambda));
        Self { own_b: map.int(own_b), mixed_b, taught_bc: taught_bc.map(|taught_bc| map.float(taught_bc)) }
    }
}

impl Task for Classify {
    type Model = Classifier;
    type Batch = ImageBatch;

    fn loss(&self, pass: &Pass<'_, Classifier>, batch: &ImageBatch) -> Tensor<1> {
        self.chain_loss(pass, batch)
    }

    fn resident_bytes(&self) -> u64 {
        self.teacher.as_ref().map_or(0, TeacherModel::bytes)
    }

    fn metrics(&self, pass: &Pass<'_, Classifier>, batch: &ImageBatch) -> Metrics {
        let (images_bchw, labels_b) = batch.to_device(&self.normalize, pass.device());
        let x = pass.chain(&self.blocks(pass.model()), images_bchw, Self::forward);
        let (logits_bc, labels_b) = (pass.model().head(x).cast(DType::F32), pass.to_device(labels_b));
        let mean = CrossEntropyLossConfig::new().init(pass.device()).forward(logits_bc.clone(), labels_b.clone());
        let count = batch.len();
        let top = |k| Metric::mean(top_k_correct(logits_bc.clone(), labels_b.clone(), k).float(), count);
        let mut metrics = Metrics::new().with("val_accuracy", top(1));
        if let Some(weights) = &self.recall_weights {
            let of = |label: &i64| usize::try_from(*label).ok().and_then(|label| weights.get(label).copied());
            let weights_b: Vec<f32> = batch.labels.iter().map(|label| of(label).unwrap_or(0.0)).collect();
            let weights_b = Tensor::<1>::from_floats(weights_b.as_slice(), pass.device());
            let right_b = top_k_hits(logits_bc.clone(), labels_b.clone(), 1).float();
            metrics = metrics.with("val_balanced_accuracy", Metric::mean((right_b * weights_b).sum(), count));
        }
        if logits_bc.dims()[1] > FEW {
            metrics = metrics.with("val_top5", top(5));
        }
        metrics.with("val_loss", Metric::mean(mean * count as f64, count))
    }
}

impl Pipeline for Classify {
    type Data = Images;
    type Config = Network;

    const KIND: Kind =
        Kind { tables: &["images"], compresses: true, command: "classify", model: "an image classifier" };
    const METRIC: &'static str = "val_accuracy";
    const GOAL: Goal = Goal::Highest;
}

impl Chained for Classify {
    type Block = ClassifierBlock;
    type X = Tensor<4>;
    type Target = Labels;

    fn begin(&self, _: &Classifier, batch: &ImageBatch, device: &Device) -> (Tensor<4>, Labels) {
        let (images_bchw, own_b) = batch.to_device(&self.normalize, device);
        let mixed_b = batch.mixed.as_ref().map(|mixed| (mixed.to_device(device), mixed.lambda));
        let taught_bc =
            self.teacher.as_ref().map(|teacher| teacher.on(device).forward(images_bchw.clone()).cast(DType::F32));
        (images_bchw, Labels { own_b, mixed_b, taught_bc })
    }

    fn blocks(&self, model: &Classifier) -> Vec<ClassifierBlock> {
        model.blocks()
    }

    fn forward(block: &ClassifierBlock, x: Tensor<4>) -> Tensor<4> {
        block.forward(x)
    }

    fn end(&self, model: &Classifier, x: Tensor<4>, labels: Labels) -> Tensor<1> {
        let logits_bc = model.head(x).cast(DType::F32);
        match (&self.teacher, labels.taught_bc.clone()) {
            (Some(teacher), Some(taught_bc)) => {
                let taught = teacher.loss.forward(logits_bc.clone(), taught_bc);
                // The classes were compared when the teacher was loaded.
                let taught = taught.unwrap_or_else(|error| panic!("{error}"));
                taught * teacher.share + self.cross_entropy(logits_bc, labels) * (1.0 - teacher.share)
            }
            _ => self.cross_entropy(logits_bc, labels),
        }
    }
}

impl Classify {
    /// The mean over the batch, from logits in f32. The cross-entropy is linear in the targets: for mixed labels it is the weighted mean
    /// of two cross-entropies.
    fn cross_entropy(&self, logits_bc: Tensor<2>, Labels { own_b, mixed_b, .. }: Labels) -> Tensor<1> {
        let smoothing = (self.label_smoothing > 0.0).then_some(self.label_smoothing as f32);
        let loss = CrossEntropyLossConfig::new().with_smoothing(smoothing).init(&own_b.device());
        match mixed_b {
            None => loss.forward(logits_bc, own_b),
            Some((other_b, lambda)) => {
                loss.forward(logits_bc.clone(), own_b) * lambda + loss.forward(logits_bc, other_b) * (1.0 - lambda)
            }
        }
    }

    /// Returns the task with the mean recall of the classes of `test` as a further metric, if the classes are few or unbalanced.
    #[must_use]
    pub fn weighing_classes(self, test: &ImageSet) -> Self {
        Self { recall_weights: recall_weights(&counts(test)), ..self }
    }

    /// Returns the task with a teacher.
    pub(super) fn taught(self, teacher: Option<TeacherModel<Classifier>>) -> Self {
        Self { teacher, ..self }
    }

    /// A task with three channels and no label smoothing, so that a hand-written loop has the same loss.
    pub fn plain() -> Self {
        Self { normalize: Normalize::for_channels(3), label_smoothing: 0.0, teacher: None, recall_weights: None }
    }
}

/// The task of the settings.
///
/// # Errors
/// [`Usage`] for a label smoothing out of range.
pub fn classify(settings: &ClassifySettings) -> Result<Classify> {
    let label_smoothing = settings.data.images.label_smoothing;
    if !(0.0..=1.0).contains(&label_smoothing) {
        return Err(Usage(format!("label smoothing is {label_smoothing}, expected a number in [0, 1]")).into());
    }
    Ok(Classify { normalize: normalization(settings), label_smoothing, teacher: None, recall_weights: None })
}

/// The mean and deviation that images are normalised by.
pub fn normalization(settings: &ClassifySettings) -> Normalize {
    Normalize::for_channels(settings.model.channels())
}

/// The task for memory predictions on RGB images, without data.
pub fn classify_for_planning() -> Classify {
    Classify { normalize: Normalize::for_channels(3), label_smoothing: 0.1, teacher: None, recall_weights: None }
}

#[cfg(test)]
mod tests {
    use burn::tensor::activation::log_softmax;
    use burn::tensor::{Device, Distribution, Tensor};

    use super::{Classify, Labels};

    /// The loss follows timm's `SoftTargetCrossEntropy` of its `mixup_target`.
    #[test]
    fn mixed_labels_have_the_loss_of_their_mean() {
        let (device, classes, lambda, smoothing) = (Device::flex(), 5, 0.3, 0.1);
        device.seed(1);
        let logits = Tensor::<2>::random([3, classes], Distribution::Normal(0.0, 2.0), &device);
        let (own, other) = ([4, 0, 2], [2, 0, 4]);
        let share = |label: usize, class: usize| if label == class { 1.0 - smoothing } else { 0.0 };
        let log = log_softmax(logits.clone(), 1).into_data().iter::<f64>().collect::<Vec<_>>();
        let of = |sample: usize, class: usize| {
            let target = lambda * share(own[sample], class) + (1.0 - lambda) * share(other[sample], class);
            -(target + smoothing / classes as f64) * log[sample * classes + class]
        };
        let samples = (0..3).map(|sample| (0..classes).map(|class| of(sample, class)).sum::<f64>());
        let expected = samples.sum::<f64>() / 3.0;

        let on_device = |labels: [usize; 3]| Tensor::from_data(labels.map(|label| label as i64), &device);
        let labels = Labels { own_b: on_device(own), mixed_b: Some((on_device(other), lambda)), taught_bc: None };
        let loss: f32 =
            Classify { label_smoothing: smoothing, ..Classify::plain() }.cross_entropy(logits, labels).into_scalar();
        assert!((f64::from(loss) - expected).abs() < 1e-5, "{loss}, expected {expected}");
    }
}
