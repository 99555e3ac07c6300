//! An update on CubeCL devices (CUDA, ROCm, Metal, Vulkan ..): one kernel for each parameter.
//!
//! One cube of units (a thread block) decodes, updates in f32 and encodes each block of values. Only codes, scales and parameter are
//! written. Memory besides them: the tables of the code books, 4 KB. A tensor is changed in place if no other handle to it exists.
//! Otherwise it stays as it is, and its next value is a new tensor.

mod codes;
mod kernels;

use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, Cube, DType, backend_extension};
use burn::tensor::{Device, Tensor, TensorData};
use burn_cubecl::CubeBackend;
use burn_cubecl::tensor::CubeTensor;
use kiln_operations::cube::has;

use self::kernels::Launch;
use super::options::{AdamWRule, MomentumRule};
use crate::blocks::{CodeBook, Noise};

/// Codes and scales of a moment.
pub(super) struct Moment {
    pub(super) book: CodeBook,
    pub(super) codes: IntTensor<Cube>,
    pub(super) scales: FloatTensor<Cube>,
}

/// Whether a device stores codes, and has what the kernels need. The CPU runtime has few units in a cube, since they are cores.
pub(super) fn has_kernel(device: &burn_cubecl::CubeDevice) -> bool {
    has(device, kernels::MOST_UNITS, kernels::TENSORS, kernels::SHARED)
        && CubeBackend::supports_dtype(device, DType::U8)
}

/// The tables of code books, one after the other. Each has entries, thresholds, and one number of padding.
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

/// The updates as operations of the backend, each by a rule and a number that multiplies the gradient first. Outputs are parameter, codes and
/// scales.
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
        rule: (AdamWRule, f32),
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
        rule: (MomentumRule, f32),
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
        rule: (AdamWRule, f32),
        books: [CodeBook; 2],
        noise: Option<Noise>,
    ) -> (CubeTensor, CubeTensor, CubeTensor, CubeTensor, CubeTensor) {
        let first = kernels::Moment { book: books[0], codes: first_codes, scales: first_scales };
        let second = kernels::Moment { book: books[1], codes: second_codes, scales: second_scales };
        let launch = Launch { parameter, gradient, tables, noise };
        let (parameter, [first, second]) = launch.adamw(rule, [first, second]);
        (parameter, first.codes, first.scales, second.codes, second.scales)
    }

    fn blockwise_momentum(
        parameter: CubeTensor,
        gradient: CubeTensor,
        codes: CubeTensor,
        scales: CubeTensor,
        tables: CubeTensor,
        rule: (MomentumRule, f32),
        book: CodeBook,
        noise: Option<Noise>,
    ) -> (CubeTensor, CubeTensor, CubeTensor) {
        let moment = kernels::Moment { book, codes, scales };
        let (parameter, moment) = Launch { parameter, gradient, tables, noise }.momentum(rule, moment);
        (parameter, moment.codes, moment.scales)
    }
}
