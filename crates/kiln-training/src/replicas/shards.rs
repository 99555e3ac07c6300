//! The optimizer's state when it is divided among replicas: whole in a checkpoint, in parts on the replicas.

use std::collections::HashSet;

use burn::module::ParamId;
use burn::tensor::Bytes;
use burn_pack::{Reader, Writer};
use kiln_parallel::Communicator;

use crate::error::Error;

/// Bytes that a replica hands to the first one at once.
const AT_ONCE: usize = 16 << 20;

/// The parts of a state from all replicas, on the first one; none on the others.
///
/// # Errors
/// [`Error::Parallel`].
pub(crate) fn gathered(communicator: &dyn Communicator, own: &[u8]) -> Result<Option<Vec<Vec<u8>>>, Error> {
    let lengths = communicator.exchange(&(own.len() as u64).to_le_bytes())?;
    let lengths = lengths.iter().map(|length| length.as_slice().try_into().map_or(0, u64::from_le_bytes) as usize);
    let rounds = lengths.max().unwrap_or(0).div_ceil(AT_ONCE);
    let mut parts = vec![vec![]; communicator.replicas()];
    for round in 0..rounds {
        let next = own.get(round * AT_ONCE..).unwrap_or_default();
        // The first replica has its own part.
        let next = if communicator.rank() == 0 { &[] } else { &next[..next.len().min(AT_ONCE)] };
        for (part, bytes) in parts.iter_mut().zip(communicator.exchange(next)?) {
            if communicator.rank() == 0 {
                part.extend_from_slice(&bytes);
            }
        }
    }
    parts[0] = own.to_vec();
    Ok((communicator.rank() == 0).then_some(parts))
}

/// One state of its parts, which have no parameter in common. A state is burn's record of an optimizer.
///
/// # Errors
/// The reason why a part is no such record.
pub(crate) fn whole(parts: Vec<Vec<u8>>) -> Result<Bytes, String> {
    let mut tensors = vec![];
    let (mut scalars, mut metadata) = (vec![], vec![]);
    for part in parts {
        let reader = Reader::from_bytes(Bytes::from_bytes_vec(part)).map_err(|e| e.to_string())?;
        scalars.extend(reader.scalars().clone());
        metadata.extend(reader.metadata().clone());
        tensors.extend(reader.into_tensors().map_err(|e| e.to_string())?);
    }
    written(tensors, scalars, metadata)
}

/// The part of a state that belongs to the parameters `owned`.
///
/// # Errors
/// The reason why `state` is no record of an optimizer.
pub(crate) fn part(state: Bytes, owned: &HashSet<ParamId>) -> Result<Bytes, String> {
    let reader = Reader::from_bytes(state).map_err(|e| e.to_string())?;
    let owned = |id: u64| owned.contains(&ParamId::from(id));
    // Names begin with the parameter's id.
    let named = |name: &str| name.split('.').next().and_then(|id| id.parse().ok()).is_some_and(owned);
    let scalars = reader.scalars().clone().into_iter().filter(|(name, _)| named(name)).collect();
    let metadata = reader.metadata().clone().into_iter().filter(|(name, _)| named(name)).collect();
    let mut tensors = vec![];
    for tensor in reader.into_tensors().map_err(|e| e.to_string())? {
        let (name, dtype, shape, id, bytes) = tensor.into_parts().map_err(|e| e.to_string())?;
        if id.is_some_and(owned) {
            tensors.push(burn_pack::Tensor::new(name, dtype, shape, id, bytes));
        }
    }
    written(tensors, scalars, metadata)
}

fn written(
    tensors: Vec<burn_pack::Tensor>,
    scalars: Vec<(String, burn_pack::Scalar)>,
    metadata: Vec<(String, String)>,
) -> Result<Bytes, String> {
    let writer = scalars.iter().fold(Writer::new(tensors), |writer, (key, value)| writer.with_scalar(key, *value));
    let writer = metadata.iter().fold(writer, |writer, (key, value)| writer.with_metadata(key, value));
    writer.into_bytes().map_err(|e| e.to_string())
}
