//! Losses between the inner features of a student and its teacher.
// B batch, C channels, H height, W width, T tokens

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{DType, Device, Tensor};

use super::sums::mean;
use crate::Error;

/// The mean squared difference between features of the student and of the teacher: FitNets, Romero et al. 2015, arXiv 1412.6550,
/// section 2.2 (there half of the sum). A projection of the channels, trained with the student, makes the numbers of channels equal.
///
/// ```
/// use burn::tensor::{Device, Distribution, Tensor};
/// use kiln_compression::FeatureMatching;
///
/// let device = Device::flex().autodiff();
/// let matching = FeatureMatching::projected(16, 64, &device);
/// // B batch, C channels, H height, W width
/// let student_bchw = Tensor::<4>::random([2, 16, 8, 8], Distribution::Default, &device);
/// let teacher_bchw = Tensor::<4>::random([2, 64, 8, 8], Distribution::Default, &device);
/// let loss = matching.maps(student_bchw, teacher_bchw)?;
/// # Ok::<(), kiln_compression::Error>(())
/// ```
#[derive(Module, Debug)]
pub struct FeatureMatching {
    projection: Option<Linear>,
}

impl FeatureMatching {
    /// Features of equally many channels are compared as they are.
    pub fn plain() -> Self {
        Self { projection: None }
    }

    /// `student` channels are projected to the `teacher`'s number of channels by a linear layer with bias.
    pub fn projected(student: usize, teacher: usize, device: &Device) -> Self {
        Self { projection: Some(LinearConfig::new(student, teacher).init(device)) }
    }

    /// The loss `[1]` between feature maps `[B, C, H, W]`. No gradient reaches the teacher.
    ///
    /// # Errors
    /// [`Error::Shape`] when the sizes differ after the projection.
    pub fn maps(&self, student_bchw: Tensor<4>, teacher_bchw: Tensor<4>) -> Result<Tensor<1>, Error> {
        self.last(student_bchw.permute([0, 2, 3, 1]), teacher_bchw.permute([0, 2, 3, 1]))
    }

    /// The loss `[1]` between tokens `[B, T, C]`. No gradient reaches the teacher.
    ///
    /// # Errors
    /// [`Error::Shape`] when the sizes differ after the projection.
    pub fn tokens(&self, student_btc: Tensor<3>, teacher_btc: Tensor<3>) -> Result<Tensor<1>, Error> {
        self.last(student_btc, teacher_btc)
    }

    /// Features whose last axis is that of the channels.
    fn last<const D: usize>(&self, student: Tensor<D>, teacher: Tensor<D>) -> Result<Tensor<1>, Error> {
        let mut shape = student.dims();
        if let Some(projection) = &self.projection {
            let [from, to] = projection.weight.dims();
            if shape[D - 1] != from {
                return Err(differ("the student's features (channels last)", &shape, format!("{from} channels")));
            }
            shape[D - 1] = to;
        }
        if teacher.dims() != shape {
            return Err(differ("the teacher's features (channels last)", &teacher.dims(), format!("{shape:?}")));
        }
        let student = match &self.projection {
            Some(projection) => projection.forward(student),
            None => student,
        };
        Ok(mean((student.cast(DType::F32) - teacher.detach().cast(DType::F32)).square()))
    }
}

/// The mean squared difference `[1]` between the attention maps of feature maps `[B, C, H, W]`. A map is the mean over channels of the
/// squares, with norm 1 for each image, so the numbers of channels may differ. No gradient reaches the teacher.
///
/// Zagoruyko and Komodakis 2017, arXiv 1612.03928, section 3.1, as in the authors' code.
///
/// ```
/// use burn::tensor::{Device, Distribution, Tensor};
///
/// let device = Device::flex();
/// let student_bchw = Tensor::<4>::random([2, 16, 8, 8], Distribution::Default, &device);
/// let teacher_bchw = Tensor::<4>::random([2, 64, 8, 8], Distribution::Default, &device);
/// let loss = kiln_compression::attention_transfer(student_bchw, teacher_bchw)?;
/// # Ok::<(), kiln_compression::Error>(())
/// ```
///
/// # Errors
/// [`Error::Shape`] when batch, height or width differ.
pub fn attention_transfer(student_bchw: Tensor<4>, teacher_bchw: Tensor<4>) -> Result<Tensor<1>, Error> {
    let ([b, _, h, w], theirs) = (student_bchw.dims(), teacher_bchw.dims());
    if [theirs[0], theirs[2], theirs[3]] != [b, h, w] {
        return Err(differ("the teacher's features", &theirs, format!("[{b}, channels, {h}, {w}]")));
    }
    let student = attention(student_bchw);
    Ok(mean((student - attention(teacher_bchw.detach())).square()))
}

fn attention(x_bchw: Tensor<4>) -> Tensor<2> {
    let [b, _, h, w] = x_bchw.dims();
    let map = x_bchw.cast(DType::F32).square().mean_dim(1).reshape([b, h * w]);
    // torch's normalize divides by at least 1e-12. The square of that is no number of f32 whose root has a gradient at 0.
    let norm = (map.clone().square().sum_dim(1) + f32::MIN_POSITIVE).sqrt();
    map / norm
}

fn differ(what: &'static str, found: &[usize], expected: String) -> Error {
    Error::Shape { what, found: found.to_vec(), expected }
}
