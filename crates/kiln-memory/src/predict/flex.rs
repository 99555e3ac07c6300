//! The memory rules of burn's CPU device: whether each output is a view, written over an input, or new, and the scratch memory of each
//! kernel.

use super::custom;
use super::flex_modules;
use super::flex_site::Site;
use super::memory::{Effect, Memory, Output, Strides};
use crate::trace::Detail;

/// The workspace of an operation, and where its first output is.
///
/// The rules were read from the sources of burn-flex 0.22.1, and are checked against a counting allocator by the tests of this
/// crate and by `cargo bench --package benches --features criterion --bench memory`.
pub(super) fn effect(memory: &Memory, index: usize) -> Effect {
    let at = Site::new(memory, index);
    let (family, kind) = at.name.split_once('.').unwrap_or((at.name, ""));
    match (family, kind) {
        ("BaseFloat" | "BaseInt" | "BaseBool", _) => at.base(kind),
        ("Module", _) => flex_modules::effect(&at, kind),
        ("Float", "Matmul") => at.matmul(),
        ("Float", "Powf" | "ArcTan2" | "Hypot") => at.binary(),
        ("Float", "PowfScalar") => at.scalar(),
        ("Float", "Random") => at.fresh(0),
        ("Float" | "Int" | "Bool", "IntoInt" | "IntoFloat") => at.fresh(at.copy(0)),
        ("Float", "IsNan" | "IsInf") => at.fresh(at.copy(0)),
        ("Float" | "Activation", _) if at.inputs.len() == 1 => at.unary(),
        ("Activation", _) => at.binary(),
        ("Bool" | "Int", _) if at.inputs.len() == 2 => at.binary(),
        ("Bool" | "Int", _) => at.unary(),
        ("NumericFloat" | "NumericInt", _) => at.numeric(kind),
        ("Custom", _) => custom::on_flex(memory, index),
        _ => at.fresh(0),
    }
}

impl Site<'_> {
    fn binary(&self) -> Effect {
        match (self.reusable(0), self.reusable(1)) {
            (true, _) => self.over(0, 0),
            (_, true) => self.over(1, 0),
            _ => self.fresh(0),
        }
    }

    fn scalar(&self) -> Effect {
        if self.reusable(0) { self.over(0, 0) } else { self.fresh(0) }
    }

    fn unary(&self) -> Effect {
        if self.reusable(0) {
            return self.over(0, 0);
        }
        match self.input(0) {
            // A transposed input gives an output with the same transposed layout.
            Some(tensor) if self.memory.fills_its_buffer(tensor) => Effect::new(Output::Like(tensor), 0),
            _ => self.fresh(0),
        }
    }

    fn base(&self, kind: &str) -> Effect {
        let view = |strides: Strides, offset: bool| match self.input(0) {
            Some(tensor) => Effect::new(Output::View { of: tensor, strides, offset }, 0),
            None => self.fresh(0),
        };
        let Some(input) = self.input(0) else {
            // Zeros are made in one buffer and moved to an aligned one.
            let twice = matches!(kind, "Zeros" | "Empty");
            return self.fresh(if twice { self.out_bytes() } else { 0 });
        };
        let strides = self.memory.strides(input);
        match (kind, self.detail) {
            ("Reshape", _) if self.memory.is_contiguous(input) => {
                view(Strides::RowMajor, self.memory.has_offset(input))
            }
            ("SwapDims" | "Permute", Detail::Axes(axes)) => view(
                Strides::Other(axes.iter().filter_map(|axis| strides.get(*axis).copied()).collect()),
                self.memory.has_offset(input),
            ),
            ("Flip", _) => view(Strides::Other(strides.iter().map(|stride| -stride).collect()), true),
            ("Slice", Detail::Slice { offset, steps }) => {
                let steps = steps.iter().chain(std::iter::repeat(&1));
                let stepped = strides.iter().zip(steps).map(|(stride, step)| stride * step).collect();
                view(Strides::Other(stepped), *offset || self.memory.has_offset(input))
            }
            ("Expand", _) => {
                let (from, to) = (self.memory.shape(input), self.out_shape());
                let new = to.len() - from.len().min(to.len());
                let stride = |dim: usize| match dim.checked_sub(new) {
                    Some(old) if from[old] == to[dim] => strides[old],
                    _ => 0,
                };
                view(Strides::Other((0..to.len()).map(stride).collect()), self.memory.has_offset(input))
            }
            ("Unfold", _) => view(Strides::Other(vec![0; self.out_shape().len()]), true),
            ("Cast", _)
                if self.outputs.first().is_some_and(|out| self.memory.dtype(*out) == self.memory.dtype(input)) =>
            {
                view(Strides::Of(input), self.memory.has_offset(input))
            }
            ("Cast" | "RepeatDim" | "AllDim" | "AnyDim" | "All" | "Any", _) => {
                let twice = if kind == "RepeatDim" { self.out_bytes() } else { 0 };
                self.fresh(self.copy(0) + twice)
            }
            ("MaskFill", _) => match self.reusable(0) {
                true => self.over(0, 0),
                false => self.fresh(0),
            },
            ("MaskWhere", _) => match (self.reusable(0), self.reusable(2)) {
                (true, _) => self.over(0, 0),
                (_, true) => self.over(2, 0),
                _ => self.fresh(0),
            },
            ("SliceAssign", _) => match self.reusable(0) {
                true => self.over(0, self.copy(1)),
                false => self.fresh(self.copy(1)),
            },
            ("Scatter" | "SelectAssign", _) => {
                let workspace = self.copy(1) + self.copy(2) + self.widened(1);
                match self.reusable(0) {
                    true => self.over(0, workspace),
                    false => self.fresh(workspace + self.copy(0)),
                }
            }
            ("Gather", _) => self.fresh(self.copy(0) + self.copy(1) + self.widened(1)),
            ("Select", _) => self.fresh(self.copy(0) + self.widened(1)),
            ("Cat", Detail::Axes(axes)) => {
                let positions = 0..self.inputs.len();
                let in_order = positions.clone().all(|at| self.input(at).is_some_and(|t| self.memory.is_contiguous(t)));
                let simple = axes == &[0] && in_order;
                self.fresh(if simple { 0 } else { positions.map(|at| self.copy(at)).sum() })
            }
            _ => self.fresh(0), // comparisons and all others
        }
    }

    /// Bytes of the indices at 8 bytes each, the width in which kernels read them.
    pub(super) fn widened(&self, position: usize) -> u64 {
        let elements: usize = self.shape(position).iter().product();
        8 * elements as u64
    }

    fn numeric(&self, kind: &str) -> Effect {
        let axis = match self.detail {
            Detail::Axes(axes) => axes.first().copied().unwrap_or(0),
            _ => 0,
        };
        let rank = self.shape(0).len();
        match kind {
            "Add" | "Sub" | "Mul" | "Div" | "Rem" | "Powi" => self.binary(),
            "AddScalar" | "SubScalar" | "DivScalar" | "RemScalar" | "MulScalar" | "PowiScalar" => self.scalar(),
            "Abs" | "Clamp" | "ClampMin" | "ClampMax" | "Neg" | "Sign" => self.unary(),
            "Mean" if self.is_half() => self.fresh(2 * self.bytes(0) + self.copy(0)),
            "SumDim" | "MeanDim" | "ProdDim" => {
                let half_mean = if kind == "MeanDim" && self.is_half() { 2 * self.bytes(0) } else { 0 };
                // Sums over any dimension but the last are made in an aligned buffer first.
                let aligned = if axis + 1 == rank { 0 } else { self.out_bytes() };
                let strided = self.input(0).is_some_and(|tensor| !self.memory.is_contiguous(tensor));
                let copy = if strided && rank > 2 { self.bytes(0) } else { 0 };
                self.fresh(half_mean + aligned + copy)
            }
            "SumDims" => {
                // The dimensions are handled one after the other.
                let Detail::Axes(axes) = self.detail else { return self.fresh(0) };
                let size = |dims: &[usize]| dims.iter().product::<usize>() as u64;
                let element = self.bytes(0) / size(self.shape(0)).max(1);
                let mut shape = self.shape(0).to_vec();
                let (mut most, mut before) = (0, 0);
                for axis in axes.iter().filter(|axis| **axis < rank) {
                    shape[*axis] = 1;
                    let after = element * size(&shape);
                    most = most.max(before + 2 * after);
                    before = after;
                }
                self.fresh(most.saturating_sub(self.out_bytes()) + self.copy(0))
            }
            "MaxDimWithIndices" | "MinDimWithIndices" => {
                let indices: usize = self.out_shape().iter().product();
                self.fresh(self.copy(0) + 8 * indices as u64)
            }
            "ArgMax" | "ArgMin" => self.fresh(self.copy(0) + 2 * self.out_bytes()),
            "MaxDim" | "MinDim" | "MaxAbs" | "MaxAbsDim" | "CumSum" | "CumProd" | "CumMin" | "CumMax" => {
                self.fresh(self.copy(0))
            }
            "Sort" => self.fresh(0),
            "SortWithIndices" | "ArgSort" | "TopK" | "ArgTopK" | "TopKWithIndices" => {
                let elements: usize = self.shape(0).iter().product();
                self.fresh(self.bytes(0) + 12 * elements as u64)
            }
            _ => self.fresh(0), // full reductions, comparisons, Full
        }
    }
}
