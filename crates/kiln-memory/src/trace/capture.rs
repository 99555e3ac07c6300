//! Reads burn's captured graph into a [`Graph`]: operations get names and attributes, tensors get numbers.

use std::collections::HashMap;
use std::fmt::{self, Debug, Write};

use burn::backend::capture::{CapturedGraph, TensorId};
use burn::backend::ir::{
    BaseOperationIr, Conv1dOptionsIr, Conv2dOptionsIr, ModuleOperationIr, NumericOperationIr, OperationIr, ScalarIr,
    TensorIr, TensorStatus,
};

use super::graph::{Detail, Graph, Kind, Use};
use super::recorder::RecordedTensor;

/// A graph, and the number of each of burn's tensors in it.
#[derive(Default)]
pub(crate) struct Captured {
    pub(crate) graph: Graph,
    pub(crate) tensors: Vec<RecordedTensor>,
    pub(crate) shapes: Vec<Vec<usize>>,
    numbers: HashMap<TensorId, u32>,
    known_shapes: HashMap<Vec<usize>, u32>,
    /// The operation that makes each tensor; `None` for a tensor that no operation makes.
    made_by: Vec<Option<usize>>,
}

impl Captured {
    /// Numbers the tensors in the order in which they occur, so that two recordings of one step agree.
    pub(crate) fn of(captured: &CapturedGraph) -> Self {
        let mut all = Self::default();
        let mut kinds: HashMap<Kind, u32> = HashMap::new();
        let (mut inputs, mut outputs) = (vec![], vec![]);
        for operation in &captured.graph.operations {
            inputs.clear();
            outputs.clear();
            for tensor in operation.inputs() {
                inputs.push(Use { tensor: all.number(tensor), last: tensor.status == TensorStatus::ReadWrite });
            }
            for tensor in operation.outputs() {
                let output = all.number(tensor);
                all.made_by[output as usize].get_or_insert(all.graph.operations.len());
                outputs.push(output);
            }
            let kind = Kind { name: name(operation), detail: detail(operation) };
            let kind = match kinds.get(&kind) {
                Some(known) => *known,
                None => {
                    let index = all.graph.kinds.len() as u32;
                    all.graph.kinds.push(kind.clone());
                    kinds.insert(kind, index);
                    index
                }
            };
            let operation = all.graph.operation(kind, inputs.iter().copied(), outputs.iter().copied());
            all.graph.operations.push(operation);
        }
        all
    }

    /// The number of a tensor that occurs in the graph.
    pub(crate) fn tensor(&self, id: &TensorId) -> Option<usize> {
        self.numbers.get(id).map(|number| *number as usize)
    }

    /// The operation that makes a tensor.
    pub(crate) fn made_at(&self, id: &TensorId) -> Option<usize> {
        self.made_by[self.tensor(id)?]
    }

    fn number(&mut self, tensor: &TensorIr) -> u32 {
        if let Some(number) = self.numbers.get(&tensor.id) {
            return *number;
        }
        let number = self.tensors.len() as u32;
        let dims: &[usize] = &tensor.shape;
        let shape = match self.known_shapes.get(dims) {
            Some(shape) => *shape,
            None => {
                let shape = self.shapes.len() as u32;
                self.shapes.push(dims.to_vec());
                self.known_shapes.insert(dims.to_vec(), shape);
                shape
            }
        };
        self.numbers.insert(tensor.id, number);
        self.tensors.push(RecordedTensor { shape, dtype: tensor.dtype });
        self.made_by.push(None);
        number
    }
}

/// Family and variant of an operation: `Float(F32, Matmul(MatmulOpIr { ... }))` is `Float.Matmul`. The variant of a custom
/// operation is its id.
fn name(operation: &OperationIr) -> String {
    let (family, variant): (&str, &dyn Debug) = match operation {
        OperationIr::BaseFloat(variant) => ("BaseFloat", variant),
        OperationIr::BaseInt(variant) => ("BaseInt", variant),
        OperationIr::BaseBool(variant) => ("BaseBool", variant),
        OperationIr::NumericFloat(_, variant) => ("NumericFloat", variant),
        OperationIr::NumericInt(_, variant) => ("NumericInt", variant),
        OperationIr::Bool(variant) => ("Bool", variant),
        OperationIr::Int(variant) => ("Int", variant),
        OperationIr::Float(_, variant) => ("Float", variant),
        OperationIr::Module(variant) => ("Module", variant),
        OperationIr::Distributed(variant) => ("Distributed", variant),
        OperationIr::Activation(variant) => ("Activation", variant),
        OperationIr::Init(_) => return "Init".to_owned(),
        OperationIr::Custom(custom) => return format!("Custom.{}", custom.id),
        OperationIr::Drop(_) => return "Drop".to_owned(),
    };
    let mut name = Identifier(format!("{family}."));
    // The error is the way in which the identifier stops the rest from being written.
    let _ = write!(name, "{variant:?}");
    name.0
}

/// Takes the first identifier of a debug output, which is the variant's name, without formatting the rest, which may be long.
struct Identifier(String);

impl Write for Identifier {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
        self.0.push_str(&text[..end]);
        if end < text.len() { Err(fmt::Error) } else { Ok(()) }
    }
}

fn detail(operation: &OperationIr) -> Detail {
    use ModuleOperationIr as M;
    /// Reads the attributes of options that have one padding for both sides. These options have many types.
    macro_rules! symmetric {
        ($op:expr) => {{
            let options = &$op.options;
            let padding = options.padding.iter().map(|padding| 2 * padding).collect();
            conv(&options.stride, padding, &options.dilation, options.groups)
        }};
    }
    match operation {
        OperationIr::BaseFloat(base) | OperationIr::BaseInt(base) | OperationIr::BaseBool(base) => match base {
            BaseOperationIr::SwapDims(op) => {
                let mut axes: Vec<usize> = (0..op.input.shape.num_dims()).collect();
                axes.swap(op.dim1, op.dim2);
                Detail::Axes(axes)
            }
            BaseOperationIr::Permute(op) => Detail::Axes(op.axes.clone()),
            BaseOperationIr::Cat(op) => Detail::Axes(vec![op.dim]),
            BaseOperationIr::Slice(op) => Detail::Slice {
                offset: op.ranges.iter().any(|range| range.start != 0 || range.step < 0),
                steps: op.ranges.iter().map(|range| range.step).collect(),
            },
            _ => Detail::None,
        },
        OperationIr::NumericFloat(_, numeric) | OperationIr::NumericInt(_, numeric) => match numeric {
            NumericOperationIr::SumDim(op) | NumericOperationIr::MeanDim(op) | NumericOperationIr::ProdDim(op) => {
                Detail::Axes(vec![op.axis])
            }
            NumericOperationIr::SumDims(op) => Detail::Axes(op.axes.clone()),
            _ => Detail::None,
        },
        OperationIr::Module(module) => match module {
            M::Conv1d(op) => conv1d(&op.options),
            M::Conv1dXBackward(op) => conv1d(&op.options),
            M::Conv1dWeightBackward(op) => conv1d(&op.options),
            M::Conv2d(op) => conv2d(&op.options),
            M::Conv2dXBackward(op) => conv2d(&op.options),
            M::Conv2dWeightBackward(op) => conv2d(&op.options),
            M::Conv3d(op) => symmetric!(op),
            M::Conv3dXBackward(op) => symmetric!(op),
            M::Conv3dWeightBackward(op) => symmetric!(op),
            M::ConvTranspose1d(op) => symmetric!(op),
            M::ConvTranspose1dWeightBackward(op) => symmetric!(op),
            M::ConvTranspose2d(op) => symmetric!(op),
            M::ConvTranspose2dWeightBackward(op) => symmetric!(op),
            M::ConvTranspose3d(op) => symmetric!(op),
            M::ConvTranspose3dWeightBackward(op) => symmetric!(op),
            _ => Detail::None,
        },
        OperationIr::Custom(custom) => Detail::Scalars(custom.scalars.iter().filter_map(integer).collect()),
        _ => Detail::None,
    }
}

fn integer(scalar: &ScalarIr) -> Option<i64> {
    match scalar {
        ScalarIr::Int(value) => Some(*value),
        ScalarIr::UInt(value) => i64::try_from(*value).ok(),
        ScalarIr::Bool(value) => Some(i64::from(*value)),
        ScalarIr::Float(_) => None,
    }
}

fn conv1d(options: &Conv1dOptionsIr) -> Detail {
    conv(&options.stride, options.padding.iter().map(|(a, b)| a + b).collect(), &options.dilation, options.groups)
}

fn conv2d(options: &Conv2dOptionsIr) -> Detail {
    conv(&options.stride, options.padding.iter().map(|(a, b)| a + b).collect(), &options.dilation, options.groups)
}

fn conv(stride: &[usize], padding: Vec<usize>, dilation: &[usize], groups: usize) -> Detail {
    Detail::Conv { stride: stride.to_vec(), padding, dilation: dilation.to_vec(), groups }
}
