//! Cross-entropy and Dice loss of the classes of pixels.
// B images, C classes, H height, W width

use burn::tensor::{DType, Int, Tensor, TensorData};
use kiln_operations::LARGE_SUM;

use crate::check::same_size;
use crate::error::Error;

/// The loss of a semantic segmentation: cross-entropy (with weights of classes) plus the soft Dice loss (Milletari et al. 2016, V-Net).
///
/// Both are computed for each image by itself, and the loss is the mean over images, so that it equals the mean of the losses of
/// micro-batches. Pixels with the weight 0 (ignored ones and padding) do not count.
///
/// - Cross-entropy: the mean of -log p over pixels, each weighted by its weight and that of its class.
/// - Dice: the mean of 1 - (2 I + 1) / (P + T + 1) over classes. I is the sum of the probabilities of the class on its own pixels, P is
///   the sum of its probabilities, and T the number of its pixels. The ones stand for one pixel: a class that an image lacks costs
///   nothing if it is not predicted.
///
/// Keeps one f32 tensor of the size of the logits, their gradient, which is computed in the forward pass. This holds on every device.
///
/// ```
/// use burn::tensor::{Device, Distribution, Int, Tensor};
/// use kiln_layers::SegmentationLoss;
///
/// let device = Device::flex().autodiff();
/// let logits = Tensor::<4>::random([2, 3, 8, 8], Distribution::Default, &device).require_grad();
/// let (classes, weights) = (Tensor::<3, Int>::ones([2, 8, 8], &device), Tensor::<3>::ones([2, 8, 8], &device));
/// let loss = SegmentationLoss::new().with_class_weights(vec![1.0, 2.0, 0.5]).forward(logits.clone(), classes, weights)?;
/// let gradients = loss.backward();
/// assert_eq!(logits.grad(&gradients).map(|gradient| gradient.dims()), Some([2, 3, 8, 8]));
/// # Ok::<(), kiln_layers::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct SegmentationLoss {
    class_weights: Option<Vec<f32>>,
    cross_entropy: f32,
    dice: f32,
}

impl Default for SegmentationLoss {
    fn default() -> Self {
        Self { class_weights: None, cross_entropy: 1.0, dice: 1.0 }
    }
}

impl SegmentationLoss {
    /// The sum of cross-entropy without weights of classes and Dice.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the weights of the classes in the cross-entropy, one for each.
    #[must_use]
    pub fn with_class_weights(self, weights: Vec<f32>) -> Self {
        Self { class_weights: Some(weights), ..self }
    }

    /// Sets the factors of the two losses in their sum. Both are 1 by default.
    #[must_use]
    pub fn with_shares(self, cross_entropy: f32, dice: f32) -> Self {
        Self { cross_entropy, dice, ..self }
    }

    /// Computes the mean loss over images.
    ///
    /// `logits` are `[B, C, H, W]`. `classes` are `[B, H, W]`, each in `0..C`, also where the weight is 0. `weights` are `[B, H, W]` and
    /// not negative. The result is in f32. An image whose weights are all 0 has a loss of 0.
    ///
    /// # Errors
    /// [`Error::Size`] for sizes that differ, including the number of class weights.
    pub fn forward(&self, logits: Tensor<4>, classes: Tensor<3, Int>, weights: Tensor<3>) -> Result<Tensor<1>, Error> {
        let [images, count, height, width] = logits.dims();
        for (name, dims) in [("the classes of pixels", classes.dims()), ("the weights of pixels", weights.dims())] {
            for (of_logits, of_other) in [images, height, width].into_iter().zip(dims) {
                same_size(("a dimension of the logits", of_logits), (name, of_other))?;
            }
        }
        if let Some(weights) = &self.class_weights {
            same_size(("the number of classes of the logits", count), ("the number of class weights", weights.len()))?;
        }
        let logits = logits.cast(DType::F32);
        let (value, gradient) = self.value_and_gradient(logits.clone().detach(), classes, weights);
        // The derivative of the sum of logits times constants are the constants.
        let linear = logits * gradient;
        let linear = if linear.shape().num_elements() < LARGE_SUM { linear.sum() } else { pixels(linear).sum() };
        Ok(value + linear.clone() - linear.detach())
    }

    /// The loss and its gradient, without autodiff.
    fn value_and_gradient(
        &self,
        logits_bchw: Tensor<4>,
        classes: Tensor<3, Int>,
        weights: Tensor<3>,
    ) -> (Tensor<1>, Tensor<4>) {
        let [images, count, ..] = logits_bchw.dims();
        let device = logits_bchw.device();
        let weights_b1hw = weights.detach().cast(DType::F32).unsqueeze_dim::<4>(1);
        let ids = Tensor::<1, Int>::arange(0..count as i64, &device).reshape([1, count, 1, 1]);
        // The weight of a pixel in its own class, 0 in the other classes.
        let truth_bchw = classes.unsqueeze_dim::<4>(1).equal(ids).float().cast(DType::F32) * weights_b1hw.clone();

        let largest_b1hw = logits_bchw.clone().max_dim(1);
        let powers_bchw = (logits_bchw.clone() - largest_b1hw.clone()).exp();
        let sums_b1hw = powers_bchw.clone().sum_dim(1);
        let probabilities_bchw = powers_bchw / sums_b1hw.clone();

        let of_classes = match &self.class_weights {
            Some(weights) => truth_bchw.clone() * row(weights.clone(), &device),
            None => truth_bchw.clone(),
        };
        let shares_b1hw = of_classes.clone().sum_dim(1);
        let total_b111 = pixels(shares_b1hw.clone());
        // An image without weight has nothing to divide.
        let total_b111 = total_b111.clone() + total_b111.equal_scalar(0.0).float().cast(DType::F32);
        // -log p = log of the sum of powers - (logit - largest)
        let logs_b1hw = (sums_b1hw.log() + largest_b1hw) * shares_b1hw.clone();
        let entropy_b111 = pixels(logs_b1hw - (logits_bchw * of_classes.clone()).sum_dim(1)) / total_b111.clone();
        let scale = self.cross_entropy / images as f32;
        let of_entropy_bchw = (probabilities_bchw.clone() * shares_b1hw - of_classes) / total_b111 * scale;

        let common_bc11 = pixels(probabilities_bchw.clone() * truth_bchw.clone());
        let predicted_bc11 = pixels(probabilities_bchw.clone() * weights_b1hw.clone());
        let both_bc11 = predicted_bc11 + pixels(truth_bchw.clone()) + 1.0;
        let dice_bc11 = (common_bc11 * 2.0 + 1.0) / both_bc11.clone();
        let scale = self.dice / (images * count) as f32;
        let of_dice_bchw =
            (dice_bc11.clone() / both_bc11.clone() * weights_b1hw - truth_bchw * 2.0 / both_bc11) * scale;
        // From the derivative by probabilities to that by logits.
        let mean_b1hw = (of_dice_bchw.clone() * probabilities_bchw.clone()).sum_dim(1);
        let of_dice_bchw = (of_dice_bchw - mean_b1hw) * probabilities_bchw;

        let entropy = entropy_b111.sum() * (self.cross_entropy / images as f32);
        let dice = (dice_bc11.neg() + 1.0).sum() * scale;
        (entropy + dice, of_entropy_bchw + of_dice_bchw)
    }
}

/// One value for each class, `[1, C, 1, 1]`.
fn row(values: Vec<f32>, device: &burn::tensor::Device) -> Tensor<4> {
    let shape = [1, values.len(), 1, 1];
    Tensor::from_data(TensorData::new(values, shape), (device, DType::F32))
}

/// Sums over pixels: from `[B, C, H, W]` to `[B, C, 1, 1]`.
fn pixels(x: Tensor<4>) -> Tensor<4> {
    x.sum_dim(3).sum_dim(2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::activation::log_softmax;
    use burn::tensor::{Device, Distribution};

    const SIZES: [usize; 4] = [3, 4, 5, 6];

    fn inputs(device: &Device) -> (Tensor<4>, Tensor<3, Int>, Tensor<3>) {
        device.seed(7);
        let [b, c, h, w] = SIZES;
        let logits = Tensor::random(SIZES, Distribution::Normal(0.0, 3.0), device);
        let classes = (0..b * h * w).map(|pixel| (pixel * 5 % 7 % c) as i64).collect();
        // Every third pixel is ignored, and so is the whole last image.
        let weights = (0..b * h * w).map(|pixel| f32::from(pixel % 3 > 0 && pixel < 2 * h * w)).collect();
        let classes = Tensor::from_data(TensorData::new::<i64, _>(classes, [b, h, w]), device);
        (logits, classes, Tensor::from_data(TensorData::new::<f32, _>(weights, [b, h, w]), device))
    }

    /// The loss on burn's operations, image by image, with autodiff.
    fn plain(loss: &SegmentationLoss, logits: Tensor<4>, classes: Tensor<3, Int>, weights: Tensor<3>) -> Tensor<1> {
        let [b, c, h, w] = logits.dims();
        let mut sum = Tensor::zeros([1], &logits.device());
        for image in 0..b {
            let logs = log_softmax(logits.clone().narrow(0, image, 1).reshape([c, h * w]), 0);
            let weights = weights.clone().narrow(0, image, 1).reshape([1, h * w]);
            let classes = classes.clone().narrow(0, image, 1).reshape([1, h * w]);
            let (mut entropy, mut total) = (sum.clone() * 0.0, sum.clone().detach() * 0.0);
            for class in 0..c {
                let here = classes.clone().equal_scalar(class as i64).float() * weights.clone();
                let logs = logs.clone().narrow(0, class, 1);
                let weight = loss.class_weights.as_ref().map_or(1.0, |weights| weights[class]);
                entropy = entropy - (logs.clone() * here.clone()).sum() * weight;
                total = total + here.clone().sum() * weight;
                let common = (logs.clone().exp() * here.clone()).sum();
                let both = (logs.exp() * weights.clone()).sum() + here.sum();
                let dice = (common * 2.0 + 1.0) / (both + 1.0);
                sum = sum + (dice.neg() + 1.0) * (loss.dice / c as f32);
            }
            if image < 2 {
                sum = sum + entropy / total * loss.cross_entropy;
            }
        }
        sum / b as f64
    }

    fn off(a: Tensor<4>, b: Tensor<4>) -> f32 {
        (a - b).abs().max().into_scalar()
    }

    #[test]
    fn value_and_gradient_are_those_of_the_formula() {
        let device = Device::flex().autodiff();
        let (logits, classes, weights) = inputs(&device);
        let weighted = SegmentationLoss::new().with_class_weights(vec![1.0, 0.25, 3.0, 2.0]);
        for loss in [SegmentationLoss::new(), weighted.clone(), weighted.with_shares(0.0, 2.0)] {
            let mut results = vec![];
            for own in [true, false] {
                let logits = logits.clone().detach().require_grad();
                let value = match own {
                    true => loss.forward(logits.clone(), classes.clone(), weights.clone()).unwrap(),
                    false => plain(&loss, logits.clone(), classes.clone(), weights.clone()),
                };
                // The factor is like a loss scale.
                let gradients = (value.clone() * 8.0).backward();
                results.push((value.into_scalar::<f32>(), logits.grad(&gradients).unwrap()));
            }
            let ((own, of_own), (plain, of_plain)) = (results.remove(0), results.remove(0));
            assert!((own - plain).abs() < 1e-5 * plain, "{own}, expected {plain}");
            // These are sums of 30 terms, each rounded to 24 bits.
            assert!(off(of_own, of_plain) < 1e-6);
        }
    }

    #[test]
    fn a_sure_and_right_prediction_costs_nothing_and_ignored_pixels_do_not_count() {
        let device = Device::flex();
        let (logits, classes, weights) = inputs(&device);
        let ids = Tensor::<1, Int>::arange(0..4, &device).reshape([1, 4, 1, 1]);
        let right = classes.clone().unsqueeze_dim::<4>(1).equal(ids).float() * 100.0;
        let loss = SegmentationLoss::new();
        let value: f32 = loss.forward(right.clone(), classes.clone(), weights.clone()).unwrap().into_scalar();
        assert!(value.abs() < 1e-6, "{value}");
        // Logits are changed where the weight is 0.
        let ignored = weights.clone().equal_scalar(0.0).float().unsqueeze_dim::<4>(1);
        let changed = right + logits * ignored * 1e3;
        let again: f32 = loss.forward(changed, classes, weights).unwrap().into_scalar();
        assert!(again.abs() < 1e-6, "{again}");
    }

    #[test]
    fn other_sizes_are_refused() {
        let device = Device::flex();
        let (logits, classes, weights) = inputs(&device);
        let loss = SegmentationLoss::new().with_class_weights(vec![1.0; 3]);
        let error = loss.forward(logits.clone(), classes.clone(), weights.clone()).unwrap_err().to_string();
        assert!(error.contains("class weights is 3") && error.contains("is 4"), "{error}");
        let error = SegmentationLoss::new().forward(logits, classes.narrow(1, 0, 2), weights).unwrap_err().to_string();
        assert!(error.contains("is 5") && error.contains("the classes of pixels is 2"), "{error}");
    }
}
