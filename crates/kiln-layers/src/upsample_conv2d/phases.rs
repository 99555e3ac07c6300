//! Converts weights that read a doubled image to weights that read the image itself, and converts their gradients back.

use burn::backend::tensor::{Device, FloatTensor};
use burn::backend::{Backend, TensorMetadata};
use burn::tensor::{Shape, TensorData};

use crate::composed::Wide;

/// The pixel that each of the three weights of a row reads: the one before, the same one or the one after. There is one entry for even
/// and one for odd pixels of the doubled row.
const ROWS: [[[f32; 3]; 2]; 3] =
    [[[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]], [[0.0, 1.0, 0.0], [0.0, 1.0, 0.0]], [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]];

/// A matrix `[9, 36]`. The 9 weights of a kernel times this matrix are the 9 weights of each of the four pixels of a square.
fn sums<B: Backend>(device: &Device<B>) -> Wide<B> {
    let mut sums = vec![];
    for y in ROWS {
        for x in ROWS {
            for (y, x) in y.iter().flat_map(|y| x.iter().map(move |x| (y, x))) {
                sums.extend(y.iter().flat_map(|y| x.iter().map(move |x| y * x)));
            }
        }
    }
    Wide::of(&B::float_from_data(TensorData::new(sums, [9, 36]), device))
}

/// Converts a weight `[outputs, inputs, 3, 3]` that reads a doubled image to the weight `[4 outputs, inputs, 3, 3]` that gives the same
/// result from the image itself. It has four channels for each output, the pixels of a square of two by two. Weights that read the same
/// pixel are added.
///
/// Source of the idea: Shi et al. 2016, "Is the deconvolution layer the same as a convolutional layer?".
pub(super) fn phases<B: Backend>(weight: &FloatTensor<B>) -> FloatTensor<B> {
    let shape = weight.shape();
    let (outputs, inputs) = (shape[0], shape[1]);
    let sums = Wide::<B>::of(weight).reshape([outputs * inputs, 9]).matmul(sums::<B>(&weight.device()));
    let sums = sums.reshape([outputs, inputs, 4, 9]).permute(&[0, 2, 1, 3]);
    sums.reshape([4 * outputs, inputs, 3, 3]).narrow(weight.dtype())
}

/// The gradient of a weight from the gradient of its [`phases`].
pub(super) fn phases_backward<B: Backend>(gradient: &FloatTensor<B>) -> FloatTensor<B> {
    let shape = gradient.shape();
    let (outputs, inputs) = (shape[0] / 4, shape[1]);
    let rows = Wide::<B>::of(gradient).reshape([outputs, 4, inputs, 9]).permute(&[0, 2, 1, 3]);
    let sums = rows.reshape([outputs * inputs, 36]).matmul(sums::<B>(&gradient.device()).transpose());
    sums.reshape([outputs, inputs, 3, 3]).narrow(gradient.dtype())
}

/// Converts four channels for each output to squares of two by two pixels: `[images, 4 outputs, height, width]` to
/// `[images, outputs, 2 height, 2 width]`.
pub(super) fn to_squares<B: Backend>(x: FloatTensor<B>) -> FloatTensor<B> {
    let shape = x.shape();
    let [images, outputs, height, width] = [shape[0], shape[1] / 4, shape[2], shape[3]];
    let x = B::float_reshape(x, Shape::new([images, outputs, 2, 2, height, width]));
    B::float_reshape(B::float_permute(x, &[0, 1, 4, 2, 5, 3]), Shape::new([images, outputs, 2 * height, 2 * width]))
}

/// The inverse of [`to_squares`].
pub(super) fn from_squares<B: Backend>(x: FloatTensor<B>) -> FloatTensor<B> {
    let shape = x.shape();
    let [images, outputs, height, width] = [shape[0], shape[1], shape[2] / 2, shape[3] / 2];
    let x = B::float_reshape(x, Shape::new([images, outputs, height, 2, width, 2]));
    B::float_reshape(B::float_permute(x, &[0, 1, 3, 5, 2, 4]), Shape::new([images, 4 * outputs, height, width]))
}
