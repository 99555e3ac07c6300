//! An update on CubeCL devices (CUDA, ROCm, Metal, Vulkan ..): one kernel for each parameter.
//!
//! Each block of values is decoded, updated in f32 and encoded by one cube of units (a thread block), and only codes, scales and
//! parameter are written. Memory besides them: the tables of the code books, 4 KB. A tensor that nobody else holds is changed in place;
//! any other is copied first.

mod codes;
mod kernels;

use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, Cube, DType, backend_extension};
use burn::tensor::{Device, Tensor, TensorData};
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;

use self::kernels::Launch;
use super::rule::{AdamWRule, MomentumRule};
use crate::blocks::{CodeBook, Noise};

/// Codes and scales of a moment.
pub(super) struct Moment {
    pub(super) book: CodeBook,
    pub(super) codes: IntTensor<Cube>,
    pub(super) scales: FloatTensor<Cube>,
}

/// Whether a device has as many units in a cube as the kernels ask for. The CPU runtime, whose units are cores, has not.
pub(super) fn has_kernel(device: &burn_cubecl::CubeDevice) -> bool {
    device.client().properties().hardware.max_units_per_cube >= kernels::MOST_UNITS
}

/// The tables of code books, one after the other: entries, thresholds, and one number that fills up.
pub(super) fn tables<const N: usize>(books: [CodeBook; N], device: &Device) -> Tensor<1> {
    let mut numbers = Vec::with_capacity(books.map(codes::table_length).iter().sum());
    for book in books {
        numbers.extend_from_slice(book.entries());
        numbers.extend_from_slice(&book.table().thresholds);
        numbers.push(f32::INFINITY);
    }
    let count = numbers.len();
    Tensor::from_data(TensorData::new(numbers, [count]), (device, DType::F32))
}

/// The updates as operations of the backend. Outputs: parameter, codes and scales.
#[backend_extension(Cube, Fusion)]
pub(super) trait BlockwiseUpdate: Backend {
    #[allow(clippy::too_many_arguments, reason = "operations take tensors one by one")]
    #[allow(clippy::type_complexity, reason = "and give them so")]
    #[fusion(meta = |p, _g, c1, s1, c2, s2, _t, _rule, _books, _noise| {
        (p.clone(), c1.clone(), s1.clone(), c2.clone(), s2.clone())
    })]
    fn blockwise_adamw(
        parameter: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        first_codes: IntTensor<Self>,
        first_scales: FloatTensor<Self>,
        second_codes: IntTensor<Self>,
        second_scales: FloatTensor<Self>,
        tables: FloatTensor<Self>,
        rule: AdamWRule,
        books: [CodeBook; 2],
        noise: Option<Noise>,
    ) -> (FloatTensor<Self>, IntTensor<Self>, FloatTensor<Self>, IntTensor<Self>, FloatTensor<Self>);

    #[allow(clippy::too_many_arguments, reason = "operations take tensors one by one")]
    #[fusion(meta = |p, _g, c, s, _t, _rule, _book, _noise| (p.clone(), c.clone(), s.clone()))]
    fn blockwise_momentum(
        parameter: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        codes: IntTensor<Self>,
        scales: FloatTensor<Self>,
        tables: FloatTensor<Self>,
        rule: MomentumRule,
        book: CodeBook,
        noise: Option<Noise>,
    ) -> (FloatTensor<Self>, IntTensor<Self>, FloatTensor<Self>);
}

impl BlockwiseUpdate for CubeBackend {
    fn blockwise_adamw(
        parameter: CubeTensor,
        gradient: CubeTensor,
        first_codes: CubeTensor,
        first_scales: CubeTensor,
        second_codes: CubeTensor,
        second_scales: CubeTensor,
        tables: CubeTensor,
        rule: AdamWRule,
        books: [CodeBook; 2],
        noise: Option<Noise>,
    ) -> (CubeTensor, CubeTensor, CubeTensor, CubeTensor, CubeTensor) {
        let parameter = writable(parameter);
        let [c1, s1, c2, s2] =
            [first_codes, first_scales, second_codes, second_scales].map(into_contiguous).map(writable);
        let moments = [(books[0], c1.clone(), s1.clone()), (books[1], c2.clone(), s2.clone())];
        Launch { parameter: parameter.clone(), gradient, tables, noise }.adamw(rule, moments);
        (parameter, c1, s1, c2, s2)
    }

    fn blockwise_momentum(
        parameter: CubeTensor,
        gradient: CubeTensor,
        codes: CubeTensor,
        scales: CubeTensor,
        tables: CubeTensor,
        rule: MomentumRule,
        book: CodeBook,
        noise: Option<Noise>,
    ) -> (CubeTensor, CubeTensor, CubeTensor) {
        let parameter = writable(parameter);
        let [codes, scales] = [codes, scales].map(into_contiguous).map(writable);
        let moment = (book, codes.clone(), scales.clone());
        Launch { parameter: parameter.clone(), gradient, tables, noise }.momentum(rule, moment);
        (parameter, codes, scales)
    }
}

/// The tensor itself if nobody else holds it.
fn writable(tensor: CubeTensor) -> CubeTensor {
    match tensor.can_mut() && tensor.is_nonoverlapping() {
        true => tensor,
        false => tensor.copy(),
    }
}
