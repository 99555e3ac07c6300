//! Tensors and collections of tensors that a segment takes and returns.

use burn::tensor::{Bool, Int, Tensor};

/// Inputs or outputs of a segment: a tensor of any rank and kind, or a tuple, `Vec` or `Option` of them.
///
/// Floats carry gradients; integers and booleans do not.
pub trait Tensors: Clone + Send + 'static {
    /// Passes every tensor through `map`, always in the same order.
    fn map<M: TensorMap>(self, map: &mut M) -> Self;
}

/// A function of tensors of any rank. The default methods return their tensor unchanged.
pub trait TensorMap {
    /// A float tensor.
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        tensor
    }

    /// An integer tensor.
    fn int<const D: usize>(&mut self, tensor: Tensor<D, Int>) -> Tensor<D, Int> {
        tensor
    }

    /// A boolean tensor.
    fn bool<const D: usize>(&mut self, tensor: Tensor<D, Bool>) -> Tensor<D, Bool> {
        tensor
    }
}

impl<const D: usize> Tensors for Tensor<D> {
    fn map<M: TensorMap>(self, map: &mut M) -> Self {
        map.float(self)
    }
}

impl<const D: usize> Tensors for Tensor<D, Int> {
    fn map<M: TensorMap>(self, map: &mut M) -> Self {
        map.int(self)
    }
}

impl<const D: usize> Tensors for Tensor<D, Bool> {
    fn map<M: TensorMap>(self, map: &mut M) -> Self {
        map.bool(self)
    }
}

impl<T: Tensors> Tensors for Vec<T> {
    fn map<M: TensorMap>(self, map: &mut M) -> Self {
        self.into_iter().map(|tensors| tensors.map(map)).collect()
    }
}

impl<T: Tensors> Tensors for Option<T> {
    fn map<M: TensorMap>(self, map: &mut M) -> Self {
        self.map(|tensors| tensors.map(map))
    }
}

macro_rules! tuples {
    ($($name:ident),*) => {
        impl<$($name: Tensors),*> Tensors for ($($name,)*) {
            #[allow(non_snake_case, unused_variables, clippy::unused_unit, reason = "of all lengths, zero included")]
            fn map<Map: TensorMap>(self, map: &mut Map) -> Self {
                let ($($name,)*) = self;
                ($($name.map(map),)*)
            }
        }
    };
}

tuples!();
tuples!(A);
tuples!(A, B);
tuples!(A, B, C);
tuples!(A, B, C, D);
tuples!(A, B, C, D, E);
tuples!(A, B, C, D, E, F);
