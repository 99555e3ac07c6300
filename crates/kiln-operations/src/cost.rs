//! The cost of an operation: its memory on each kind of device, and its work. A prediction looks it up by the operation's id.

use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock};

use burn::tensor::DType;

use crate::gpu::Gpu;
use crate::product::Cpu;

/// The memory and the work of an operation. Tensors are numbered in the order in which the operation is recorded with them.
///
/// An operation without a cost has new outputs and no scratch memory, and takes the time of the bytes that it moves.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    /// The id under which the operation is recorded, such as `kiln::softmax`.
    pub id: &'static str,
    /// On the CPU device: pairs of an input and the output that is written in its memory, if the input has no other handle. If several
    /// pairs have the same input or output, the first one that is possible counts.
    pub in_place: &'static [(usize, usize)],
    /// On the CPU device: inputs that are read without a copy if the values of a row or a column lie side by side. Others are copied into
    /// row-major order.
    pub any_order: &'static [usize],
    /// On the CPU device: pairs of an input and the output that has the same layout.
    pub same_layout: &'static [(usize, usize)],
    /// Bytes of scratch memory of the kernel on the CPU device, without copies of inputs.
    pub cpu_scratch: fn(&Call<'_>, &Cpu) -> u64,
    /// Bytes of the temporary tensors on a CubeCL device. An upper bound: what burn fuses makes no tensor. Each of these bytes is also
    /// written and read once.
    pub gpu_scratch: fn(&Call<'_>, &Gpu) -> u64,
    /// Multiply-adds.
    pub multiply_adds: fn(&Call<'_>) -> f64,
    /// Whether a sample has the same bits in a batch of any size, and sums over samples are one sample after the other while
    /// [running sums](crate::RunningSums) are open.
    pub by_sample: bool,
}

impl Cost {
    /// The cost of an operation that needs no memory besides its tensors, and whose time is that of moving them.
    pub const fn new(id: &'static str) -> Self {
        Self {
            id,
            in_place: &[],
            any_order: &[],
            same_layout: &[],
            cpu_scratch: |_, _| 0,
            gpu_scratch: |_, _| 0,
            multiply_adds: |_| 0.0,
            by_sample: false,
        }
    }
}

static COSTS: RwLock<BTreeMap<&'static str, &'static Cost>> = RwLock::new(BTreeMap::new());

/// Makes a cost known to all predictions of this process. [`operation`](crate::operation) does it for what it records. A later cost with
/// the same id replaces the earlier one.
pub fn register(cost: &'static Cost) {
    if of(cost.id).is_none_or(|known| !std::ptr::eq(known, cost)) {
        COSTS.write().unwrap_or_else(PoisonError::into_inner).insert(cost.id, cost);
    }
}

/// The cost that was registered under an id.
pub fn of(id: &str) -> Option<&'static Cost> {
    COSTS.read().unwrap_or_else(PoisonError::into_inner).get(id).copied()
}

/// A tensor of a recorded operation.
#[derive(Clone, Copy, Debug)]
pub struct Operand<'a> {
    /// Its shape at the batch size of the prediction.
    pub shape: &'a [usize],
    /// Its dtype.
    pub dtype: DType,
    /// Its bytes on the device.
    pub bytes: u64,
    /// The strides of an input on the CPU device. Empty for outputs and on other devices.
    pub strides: &'a [isize],
}

impl Operand<'_> {
    fn elements(&self) -> u64 {
        self.shape.iter().map(|size| *size as u64).product()
    }

    fn is_half(&self) -> bool {
        matches!(self.dtype, DType::F16 | DType::BF16)
    }
}

/// A recorded operation at one batch size. Sizes of tensors that it does not have are 1 for a dimension, and otherwise 0 or false.
#[derive(Clone, Debug)]
pub struct Call<'a> {
    /// The tensors that it reads.
    pub inputs: Vec<Operand<'a>>,
    /// The tensors that it makes.
    pub outputs: Vec<Operand<'a>>,
    /// The settings that were recorded with it.
    pub scalars: &'a [i64],
}

impl Call<'_> {
    /// A dimension of an input; 1 if the input does not have it.
    pub fn dim(&self, input: usize, dim: usize) -> u64 {
        self.inputs.get(input).and_then(|input| input.shape.get(dim)).map_or(1, |size| *size as u64)
    }

    /// A dimension of an input, counted from the last; 1 if the input does not have it.
    pub fn dim_from_end(&self, input: usize, dim: usize) -> u64 {
        self.inputs.get(input).and_then(|input| input.shape.iter().rev().nth(dim)).map_or(1, |size| *size as u64)
    }

    /// Values of an input; 1 if there is no such input.
    pub fn elements(&self, input: usize) -> u64 {
        self.inputs.get(input).map_or(1, Operand::elements)
    }

    /// Bytes of an input.
    pub fn bytes(&self, input: usize) -> u64 {
        self.inputs.get(input).map_or(0, |input| input.bytes)
    }

    /// Values of an output.
    pub fn out_elements(&self, output: usize) -> u64 {
        self.outputs.get(output).map_or(0, Operand::elements)
    }

    /// Bytes of an output.
    pub fn out_bytes(&self, output: usize) -> u64 {
        self.outputs.get(output).map_or(0, |output| output.bytes)
    }

    /// Whether the first output has 16 bits.
    pub fn is_half(&self) -> bool {
        self.outputs.first().is_some_and(Operand::is_half)
    }

    /// Whether an input has 16 bits.
    pub fn reads_half(&self, input: usize) -> bool {
        self.inputs.get(input).is_some_and(Operand::is_half)
    }

    /// Whether an input is bf16.
    pub fn reads_bf16(&self, input: usize) -> bool {
        self.inputs.get(input).is_some_and(|input| input.dtype == DType::BF16)
    }

    /// A scalar that is not negative; 0 if it was not recorded.
    pub fn scalar(&self, position: usize) -> u64 {
        self.scalars.get(position).and_then(|value| u64::try_from(*value).ok()).unwrap_or(0)
    }

    /// Bytes of `count` f32 tensors with as many values as an input.
    pub fn wide(&self, input: usize, count: u64) -> u64 {
        4 * count * self.elements(input)
    }

    /// Bytes of the buffers with which an operation on 16 bits widens its values on the CPU: `values` f32 values for each thread that
    /// runs one of `tasks`. In f32 there are none.
    pub fn widened(&self, tasks: u64, values: u64, cpu: &Cpu) -> u64 {
        if self.is_half() { cpu.of_threads(tasks, values) } else { 0 }
    }

    /// Bytes of the buffers of an elementwise operation on the CPU that works on tasks of `chunk` values of its first input: `buffers`
    /// of such a chunk for each thread in 16 bits, none in f32.
    pub fn chunks(&self, chunk: usize, buffers: u64, cpu: &Cpu) -> u64 {
        let (elements, chunk) = (self.elements(0), chunk as u64);
        self.widened(elements.div_ceil(chunk), buffers * chunk.min(elements), cpu)
    }
}
