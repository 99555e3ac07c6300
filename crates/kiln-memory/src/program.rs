use std::collections::HashMap;
use std::fmt::{self, Write as _};

use burn::backend::capture::{CapturedGraph, TensorId};
use burn::backend::ir::{
    BaseOperationIr, Conv1dOptionsIr, Conv2dOptionsIr, ModuleOperationIr, NumericOperationIr, OperationIr, TensorIr,
    TensorStatus,
};
use serde::{Deserialize, Serialize};

/// A recorded step at one batch size: operations over numbered tensors.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Program {
    pub(crate) operations: Vec<Op>,
    pub(crate) tensors: Vec<TensorInfo>,
}

/// One operation of burn's intermediate representation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Op {
    /// burn's names, outermost first: `Module.Conv2d`, `NumericFloat.Add`.
    pub(crate) name: String,
    pub(crate) inputs: Vec<Use>,
    pub(crate) outputs: Vec<usize>,
    pub(crate) detail: Detail,
}

/// What the sizes of inputs and outputs do not tell.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Detail {
    #[default]
    None,
    /// The dimensions of a permutation.
    Axes(Vec<usize>),
    /// Whether a slice begins elsewhere than its tensor, and its steps.
    Slice { offset: bool, steps: Vec<isize> },
    /// A convolution in any number of dimensions; padding is that of both sides together.
    Conv { stride: Vec<usize>, padding: Vec<usize>, dilation: Vec<usize>, groups: usize },
}

/// A tensor that an operation reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Use {
    pub(crate) tensor: usize,
    /// Nobody else holds a handle to it: it may be written to, and is gone afterwards.
    pub(crate) last: bool,
}

/// A tensor, before anything is known about where it lives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TensorInfo {
    pub(crate) shape: Vec<usize>,
    pub(crate) dtype: String,
    /// Bytes of one element.
    pub(crate) size: usize,
}

impl Op {
    /// The name without the family: `Conv2d`.
    pub(crate) fn kind(&self) -> &str {
        self.name.rsplit('.').next().unwrap_or_default()
    }
}

/// A program, and which of its tensors have which of burn's ids.
pub(crate) struct Recorded {
    pub(crate) program: Program,
    pub(crate) ids: HashMap<TensorId, usize>,
}

impl Recorded {
    /// Numbers the tensors in the order in which they are met, so that two recordings of one step agree.
    pub(crate) fn of(graph: &CapturedGraph) -> Self {
        let mut recorded = Self { program: Program::default(), ids: HashMap::new() };
        for operation in &graph.graph.operations {
            let inputs = operation
                .inputs()
                .map(|tensor| Use { tensor: recorded.number(tensor), last: tensor.status == TensorStatus::ReadWrite });
            let inputs = inputs.collect();
            let outputs = operation.outputs().map(|tensor| recorded.number(tensor)).collect();
            let (name, detail) = (name(operation), detail(operation));
            recorded.program.operations.push(Op { name, inputs, outputs, detail });
        }
        recorded
    }

    fn number(&mut self, tensor: &TensorIr) -> usize {
        let tensors = &mut self.program.tensors;
        *self.ids.entry(tensor.id).or_insert_with(|| {
            let (dtype, size) = (format!("{:?}", tensor.dtype), tensor.dtype.size());
            tensors.push(TensorInfo { shape: tensor.shape.to_vec(), dtype, size });
            tensors.len() - 1
        })
    }
}

/// The names of an operation in burn's debug output, `Float(F32, Matmul(MatmulOpIr { ... }))`: `Float.Matmul`.
fn name(operation: &OperationIr) -> String {
    /// Takes the beginning only: the rest is long.
    struct Head(String);
    impl fmt::Write for Head {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            self.0.push_str(text);
            if self.0.len() > 80 { Err(fmt::Error) } else { Ok(()) }
        }
    }
    let mut head = Head(String::new());
    let _ = write!(head, "{operation:?}");
    let words = head.0.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty());
    let is_dtype = |word: &str| {
        let number = word.trim_start_matches(|c: char| c.is_ascii_uppercase());
        word.len() <= 5 && number.len() < word.len() && number.chars().all(|c| c.is_ascii_digit())
    };
    let mut names = words.filter(|word| !is_dtype(word)).take_while(|word| !word.ends_with("Ir"));
    match (names.next(), names.next()) {
        (Some(family), Some(kind)) => format!("{family}.{kind}"),
        (Some(family), None) => family.to_owned(),
        _ => "Unknown".to_owned(),
    }
}

fn detail(operation: &OperationIr) -> Detail {
    use ModuleOperationIr as M;
    /// Options with one padding for both sides, which are of many types.
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
        _ => Detail::None,
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
