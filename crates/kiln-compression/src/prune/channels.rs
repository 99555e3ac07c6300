//! Which channels of a model can only be removed together.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::backend::capture::{CapturedGraph, TensorId};
use burn::backend::ir::{ModuleOperationIr, OperationIr};
use burn::module::Module;
use burn::tensor::Device;
use serde::{Deserialize, Serialize};

use super::axes::Axes;
use super::kept::{ChannelGroup, Kept, Member};
use super::rules;
use crate::Error;
use crate::parameters::{Item, walk};

/// A layer that multiplies and adds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Multiplied {
    /// The path of its weight.
    pub path: String,
    /// The shape of its weight.
    pub shape: Vec<usize>,
    /// Multiplications of each element of the weight in a forward pass.
    pub times: usize,
}

/// The channels of a model that can be removed, and what a forward pass costs.
///
/// The analysis follows the idea of Fang et al. 2023 (DepGraph, Torch-Pruning), for any module of burn: the forward pass is recorded on
/// burn's capture device, which computes nothing, and channels are followed through the recorded operations. Sums tie the channels of a
/// residual connection together, a convolution ties its output to what reads it, and batch norm and depthwise convolutions belong to the
/// channels that they work on.
///
/// Channels of the model's inputs and outputs are no group, and neither are those that meet an operation that mixes them or is not
/// understood: softmax, layer norm and means over channels, concatenation, axes that are split, convolutions in groups that are not depthwise,
/// custom operations. Record
/// a model on burn's own layers, without reparameterizations. Sizes that the model's code states as numbers, as in
/// `reshape([batch, 512])`, cannot be seen: write them in terms of the tensor's shape.
///
/// ```
/// use burn::module::Module;
/// use burn::nn::conv::{Conv2d, Conv2dConfig};
/// use burn::tensor::{Device, Tensor};
/// use kiln_compression::{ChannelPruning, Channels, shrink};
///
/// #[derive(Module, Debug)]
/// struct Net {
///     first: Conv2d,
///     second: Conv2d,
/// }
///
/// fn build(device: &Device) -> Net {
///     Net {
///         first: Conv2dConfig::new([3, 8], [3, 3]).init(device),
///         second: Conv2dConfig::new([8, 5], [3, 3]).init(device),
///     }
/// }
///
/// let forward = |net: &Net, x: Tensor<4>| net.second.forward(net.first.forward(x));
/// let channels = Channels::of(build, |net, device| forward(net, Tensor::zeros([1, 3, 16, 16], device)))?;
/// assert_eq!(channels.groups.len(), 1); // the eight channels between the two convolutions
/// assert_eq!(channels.groups[0].size, 8);
///
/// let net = build(&Device::flex());
/// let kept = channels.choose(&net, &ChannelPruning::uniform(0.5))?;
/// let small = shrink(net, &kept)?;
/// assert_eq!(small.first.weight.dims(), [4, 3, 3, 3]);
/// assert_eq!(small.second.weight.dims(), [5, 4, 3, 3]);
/// assert_eq!(channels.multiply_adds(&kept) * 2, channels.multiply_adds(&channels.all()));
/// # Ok::<(), kiln_compression::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Channels {
    /// The groups, in the order of the model's fields. Remove those that must stay whole.
    pub groups: Vec<ChannelGroup>,
    /// The layers that multiply by a parameter, in the order of the forward pass.
    pub layers: Vec<Multiplied>,
}

impl Channels {
    /// Records a forward pass. `init` makes the model on the given device; `forward` makes an input there and may return anything. What it
    /// computes and does not read itself counts as an output.
    ///
    /// # Errors
    /// [`Error::Record`] for a program that panics or reads values back.
    pub fn of<M: Module, O>(
        init: impl FnOnce(&Device) -> M,
        forward: impl FnOnce(&M, &Device) -> O,
    ) -> Result<Self, Error> {
        let device = Device::capture();
        let mut parameters = Parameters::default();
        let run = || {
            device.capture_scope(|scope| {
                let model = init(&device);
                parameters = Parameters::of(&model);
                drop(forward(&model, &device));
                scope.complete([], [])
            })
        };
        let graph = match catch_unwind(AssertUnwindSafe(run)) {
            Ok(graph) => graph.map_err(|error| Error::Record(format!("{error:?}")))?,
            Err(panic) => {
                let text = panic.downcast_ref::<String>().cloned();
                let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
                return Err(Error::Record(text.unwrap_or_default().replace('\n', " ")));
            }
        };
        Ok(parameters.channels(&graph))
    }

    /// The choice that keeps every channel.
    pub fn all(&self) -> Kept {
        Kept::new(self.groups.iter().map(|group| (group.clone(), (0..group.size).collect())))
    }

    /// Multiply-adds of a forward pass of the recorded batch with what is kept: those of the layers that multiply by a parameter, as
    /// papers count them.
    pub fn multiply_adds(&self, kept: &Kept) -> u64 {
        let sizes: BTreeMap<(&str, usize), usize> = kept
            .groups
            .iter()
            .flat_map(|own| own.group.members.iter().map(|m| ((m.path.as_str(), m.axis), own.channels.len() * m.block)))
            .collect();
        let cost = |layer: &Multiplied| {
            let size = |(axis, size): (usize, &usize)| *sizes.get(&(layer.path.as_str(), axis)).unwrap_or(size) as u64;
            layer.times as u64 * layer.shape.iter().enumerate().map(size).product::<u64>()
        };
        self.layers.iter().map(cost).sum()
    }
}

/// The parameters and running statistics of a model that is recorded: their ids, paths and shapes.
#[derive(Default)]
struct Parameters(Vec<(TensorId, String, Vec<usize>)>);

impl Parameters {
    fn of(model: &impl Module) -> Self {
        let mut found = vec![];
        walk(model, |place, item| {
            if let Item::Float(param) = item
                && let Some(id) = param.recorded()
            {
                found.push((id, place.parameter(), param.shape()));
            }
        });
        Self(found)
    }

    fn channels(&self, graph: &CapturedGraph) -> Channels {
        let operations = &graph.graph.operations;
        let is_parameter: HashSet<TensorId> = self.0.iter().map(|(id, ..)| *id).collect();
        let read: HashSet<TensorId> = operations.iter().flat_map(|op| op.inputs().map(|tensor| tensor.id)).collect();
        // A parameter and its views, such as its transpose.
        let mut of_tensor: HashMap<TensorId, (&str, &[usize])> =
            self.0.iter().map(|(id, path, shape)| (*id, (path.as_str(), shape.as_slice()))).collect();
        let mut axes = Axes::default();
        let mut layers = vec![];
        for operation in operations {
            // How a parameter gets its first value is of no interest.
            if operation.outputs().any(|tensor| is_parameter.contains(&tensor.id)) {
                continue;
            }
            rules::apply(&mut axes, operation);
            let creates = operation.inputs().next().is_none();
            let main = match operation {
                // The indices of a pool serve its backward pass.
                OperationIr::Module(
                    ModuleOperationIr::MaxPool1dWithIndices(_) | ModuleOperationIr::MaxPool2dWithIndices(_),
                ) => 1,
                _ => usize::MAX,
            };
            for tensor in operation.outputs().take(main).filter(|tensor| creates || !read.contains(&tensor.id)) {
                rules::freeze(&mut axes, tensor);
            }
            if let Some((weight, times)) = rules::multiplied(operation)
                && let Some((path, shape)) = of_tensor.get(&weight.id)
            {
                layers.push(Multiplied { path: (*path).to_owned(), shape: shape.to_vec(), times });
            }
            let mut inputs = operation.inputs();
            if let (Some(only), None) = (inputs.next(), inputs.next())
                && let Some(own) = of_tensor.get(&only.id).copied()
            {
                of_tensor.extend(operation.outputs().map(|output| (output.id, own)));
            }
        }
        Channels { groups: self.groups(&mut axes, &read), layers }
    }

    /// The sets that have axes of parameters, as groups.
    fn groups(&self, axes: &mut Axes<TensorId>, read: &HashSet<TensorId>) -> Vec<ChannelGroup> {
        let mut groups: Vec<ChannelGroup> = vec![];
        let mut of_set: HashMap<usize, usize> = HashMap::new();
        for (id, path, shape) in self.0.iter().filter(|(id, ..)| read.contains(id)) {
            for (axis, size) in shape.iter().enumerate().filter(|(_, size)| **size > 1) {
                let Some(set) = axes.set((*id, axis, *size)).filter(|set| set.size > 1) else { continue };
                let index = *of_set.entry(set.number).or_insert(groups.len());
                if index == groups.len() {
                    groups.push(ChannelGroup { size: set.size, members: vec![] });
                }
                groups[index].members.push(Member { path: path.clone(), axis, block: set.block });
            }
        }
        groups
    }
}
