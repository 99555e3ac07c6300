//! All tensors of a module that are stored as they are: parameters of every kind and running statistics.

use crate::Error;
use crate::parameters::Place;
use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Bool, DType, Int, Tensor, TensorData};
use safetensors::Dtype;

/// A tensor of a module.
pub(crate) struct Plain {
    pub(crate) path: String,
    pub(crate) shape: Vec<usize>,
    pub(crate) kind: Kind,
    /// Its values, if they were asked for.
    pub(crate) data: Option<TensorData>,
}

/// What a tensor holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Float,
    Int,
    Bool,
}

impl Kind {
    /// burn's dtype of a tensor of this kind in a file.
    pub(crate) fn dtype(self, stored: Dtype) -> Option<DType> {
        Some(match (self, stored) {
            (Self::Float, Dtype::F64) => DType::F64,
            (Self::Float, Dtype::F32) => DType::F32,
            (Self::Float, Dtype::F16) => DType::F16,
            (Self::Float, Dtype::BF16) => DType::BF16,
            (Self::Int, Dtype::I64) => DType::I64,
            (Self::Int, Dtype::I32) => DType::I32,
            (Self::Int, Dtype::I16) => DType::I16,
            (Self::Int, Dtype::I8) => DType::I8,
            (Self::Int, Dtype::U64) => DType::U64,
            (Self::Int, Dtype::U32) => DType::U32,
            (Self::Int, Dtype::U16) => DType::U16,
            (Self::Int, Dtype::U8) => DType::U8,
            _ => return None,
        })
    }
}

/// The dtype in a file of a tensor with burn's `dtype`; none for quantised tensors.
pub(crate) fn stored(dtype: DType) -> Option<Dtype> {
    Some(match dtype {
        DType::F64 => Dtype::F64,
        DType::F32 | DType::Flex32 => Dtype::F32,
        DType::F16 => Dtype::F16,
        DType::BF16 => Dtype::BF16,
        DType::I64 => Dtype::I64,
        DType::I32 => Dtype::I32,
        DType::I16 => Dtype::I16,
        DType::I8 => Dtype::I8,
        DType::U64 => Dtype::U64,
        DType::U32 => Dtype::U32,
        DType::U16 => Dtype::U16,
        DType::U8 => Dtype::U8,
        DType::Bool(_) => Dtype::BOOL,
        DType::QFloat(_) => return None,
    })
}

/// The tensors of `model`, with the values of those whose path `read` accepts.
///
/// # Errors
///
/// [`Error::Reparameterized`] if a parameter has a reparameterization, [`Error::Read`] if a device cannot give values.
pub(crate) fn tensors<M: Module>(model: &M, read: impl Fn(&str) -> bool) -> Result<Vec<Plain>, Error> {
    let mut visitor = Visitor { place: Place::default(), read, tensors: Vec::new(), result: Ok(()) };
    model.visit(&mut visitor);
    visitor.result.map(|()| visitor.tensors)
}

struct Visitor<F> {
    place: Place,
    read: F,
    tensors: Vec<Plain>,
    result: Result<(), Error>,
}

impl<F: Fn(&str) -> bool> Visitor<F> {
    fn take<E: std::fmt::Display>(
        &mut self,
        kind: Kind,
        shape: Vec<usize>,
        values: impl FnOnce() -> Result<TensorData, E>,
    ) {
        if self.result.is_err() {
            return;
        }
        let path = self.place.parameter();
        if self.place.is_inner() {
            self.result = Err(Error::Reparameterized { path });
            return;
        }
        match (self.read)(&path).then(values).transpose() {
            Ok(data) => self.tensors.push(Plain { path, shape, kind, data }),
            Err(error) => self.result = Err(Error::Read { path, reason: error.to_string() }),
        }
    }
}

impl<F: Fn(&str) -> bool> ModuleVisitor for Visitor<F> {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.place.enter(name, container);
        if self.place.is_inner() && self.result.is_ok() {
            self.result = Err(Error::Reparameterized { path: self.place.parameter() });
        }
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.place.leave();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.take(Kind::Float, param.base().dims().to_vec(), || param.base().try_into_data());
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
        self.take(Kind::Int, param.val().dims().to_vec(), || param.val().try_into_data());
    }

    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
        self.take(Kind::Bool, param.val().dims().to_vec(), || param.val().try_into_data());
    }
}
