//! An optimizer's state as its record: named tensors and scalars in host memory.

use burn::optim::{RecordState, StateSink, StateSource, join_path};
use burn::tensor::{AllocationProperty, Bytes, DType, Device, TensorData};
use burn_pack::Scalar;

use crate::chunks::Chunks;

/// The leaves of a state's record. A clone shares the tensors' bytes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Leaves {
    tensors: Vec<(String, TensorData)>,
    scalars: Vec<(String, Scalar)>,
}

impl Leaves {
    /// The leaves of a state, copied from its device. The state's memory is free once the state is dropped.
    ///
    /// # Panics
    /// When the device cannot give the values, as when memory ran out in the operation that should have written them.
    pub(crate) fn of(state: &impl RecordState) -> Self {
        let mut sink = StateSink::default();
        state.state_flatten("", &mut sink);
        Self::of_sink(sink)
    }

    /// The leaves of a state that has been written into a record, copied from its device.
    pub(crate) fn of_sink(sink: StateSink) -> Self {
        let tensors = sink.tensors.into_iter().map(|(name, data)| (name, copied(data)));
        Self { tensors: tensors.collect(), scalars: sink.scalars }
    }

    /// The state on a device. `None` if the leaves do not belong to a state of this type.
    pub(crate) fn state<S: RecordState>(self, device: &Device) -> Option<S> {
        S::state_unflatten("", &mut self.into_source(), device)
    }

    /// The leaves as a record that can be read.
    pub(crate) fn into_source(self) -> StateSource {
        let mut source = StateSource::new(self.scalars.into_iter().collect());
        for (name, data) in self.tensors {
            source.insert_tensor(name, data);
        }
        source
    }

    /// The state on a device. The leaves must come from such a state.
    ///
    /// # Panics
    /// When the state does not read its own record.
    pub(crate) fn restored<S: RecordState>(self, device: &Device) -> S {
        match self.state(device) {
            Some(state) => state,
            None => panic!("the optimizer's state cannot be read from the record that it has written"),
        }
    }

    /// Adds the leaves to a record.
    pub(crate) fn push(self, prefix: &str, out: &mut StateSink) {
        out.tensors.extend(self.tensors.into_iter().map(|(name, data)| (join_path(prefix, &name), data)));
        out.scalars.extend(self.scalars.into_iter().map(|(name, value)| (join_path(prefix, &name), value)));
    }

    /// Whether the state keeps its dtypes when it is read from the leaves. burn's optimizers read their states in the device's default
    /// dtypes. If the state has other dtypes, it is read back by `again` and compared.
    pub(crate) fn keep_dtypes(&self, device: &Device, again: impl FnOnce(Self) -> Option<Self>) -> bool {
        let settings = device.settings();
        let defaults = [DType::from(settings.float_dtype), DType::from(settings.int_dtype)];
        let dtypes = |leaves: &Self| leaves.tensors.iter().map(|(_, data)| data.dtype()).collect::<Vec<_>>();
        let own = dtypes(self);
        own.iter().all(|dtype| defaults.contains(dtype))
            || again(self.clone()).is_some_and(|again| dtypes(&again) == own)
    }

    /// Joins the leaves of a parameter's chunks into those of the whole parameter of shape `dims`. Scalars are taken from the first
    /// chunk.
    pub(crate) fn join(parts: Vec<Self>, chunks: Chunks, dims: &[usize]) -> Self {
        let Some(first) = parts.first() else { return Self::default() };
        let joined = |leaf: usize| {
            let (name, model) = &first.tensors[leaf];
            let tensors = parts.iter().filter_map(|part| part.tensors.get(leaf)).map(|(_, data)| data);
            let mut shape = model.shape().to_vec();
            match is_chunk(&shape, chunks.range(0).len(), dims.len()) {
                true => shape = dims.to_vec(),
                false => shape[0] = tensors.clone().map(|data| data.shape()[0]).sum(),
            }
            let bytes: Vec<&[u8]> = tensors.map(TensorData::as_bytes).collect();
            (name.clone(), TensorData::from_bytes_vec(bytes.concat(), shape, model.dtype()))
        };
        // A tensor without axes is a scalar.
        let tensors = (0..first.tensors.len()).map(|leaf| match first.tensors[leaf].1.rank() {
            0 if !dims.is_empty() => first.tensors[leaf].clone(),
            _ => joined(leaf),
        });
        Self { tensors: tensors.collect(), scalars: first.scalars.clone() }
    }

    /// Divides the leaves of a whole parameter of shape `dims` into those of its chunks: tensors of that shape by elements, others by
    /// rows. `None` if a tensor cannot be divided.
    pub(crate) fn split(&self, chunks: Chunks, dims: &[usize]) -> Option<Vec<Self>> {
        let part = |chunk| {
            let slice = |(name, data): &(String, TensorData)| {
                let mut shape = data.shape().to_vec();
                let (rows, total) = if shape == dims {
                    let elements = chunks.range(chunk);
                    shape = vec![1; dims.len()];
                    *shape.last_mut()? = elements.len();
                    (elements, data.num_elements())
                } else {
                    let total = *shape.first()?;
                    let rows = chunks.rows(chunk, total)?;
                    shape[0] = rows.len();
                    (rows, total)
                };
                let bytes = data.as_bytes();
                let row = bytes.len() / total;
                let bytes = bytes[rows.start * row..rows.end * row].to_vec();
                let data = TensorData::try_from_bytes_vec(bytes, shape, data.dtype()).ok()?;
                Some((name.clone(), shared(data)))
            };
            let tensors = self.tensors.iter().map(slice).collect::<Option<_>>()?;
            Some(Self { tensors, scalars: self.scalars.clone() })
        };
        (0..chunks.count()).map(part).collect()
    }
}

/// Whether a shape is the shape of a chunk, for a parameter with this number of axes.
fn is_chunk(shape: &[usize], elements: usize, axes: usize) -> bool {
    shape.len() == axes
        && shape.split_last().is_some_and(|(last, rest)| *last == elements && rest.iter().all(|n| *n == 1))
}

/// Copies the values to host memory. CubeCL reads values only when they are asked for, and keeps the device's memory as long as the
/// values that it read.
fn copied(data: TensorData) -> TensorData {
    let (bytes, shape, dtype) = data.into_parts();
    let bytes = match bytes.property() {
        AllocationProperty::Native => bytes,
        _ => match bytes.read(Default::default()) {
            Ok(_) => bytes.clone(),
            Err(error) => panic!("the optimizer's state could not be read from its device: {error}"),
        },
    };
    shared(TensorData::from_bytes(bytes, shape, dtype))
}

/// Moves the values into shared bytes. Clones share them. A tensor that is made from them copies them before it is changed.
fn shared(data: TensorData) -> TensorData {
    let (bytes, shape, dtype) = data.into_parts();
    TensorData::from_bytes(Bytes::shared(bytes), shape, dtype)
}
