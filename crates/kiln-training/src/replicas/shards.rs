//! The optimizer's state that is divided among replicas: whole in a checkpoint, in parts on the replicas.

use std::collections::HashSet;

use burn::module::ParamId;
use burn::tensor::Bytes;
use kiln_parallel::Communicator;

use crate::error::Error;
use crate::optimizer::StateRecord;

/// Bytes that a replica sends to the first one at a time.
const AT_ONCE: usize = 16 << 20;

/// Collects the parts of a state from all replicas on the first one. Returns `None` on the others.
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

/// Joins parts that have no parameter in common into one state. A state is burn's record of an optimizer.
///
/// # Errors
/// The reason why a part is no such record.
pub(crate) fn whole(parts: Vec<Vec<u8>>) -> Result<Bytes, String> {
    let mut all = StateRecord::default();
    for part in parts {
        all.extend(StateRecord::read(Bytes::from_bytes_vec(part))?);
    }
    all.into_bytes()
}

/// The part of a state that belongs to the parameters `owned`.
///
/// # Errors
/// The reason why `state` is no record of an optimizer.
pub(crate) fn part(state: Bytes, owned: &HashSet<ParamId>) -> Result<Bytes, String> {
    let StateRecord { tensors, scalars, metadata } = StateRecord::read(state)?;
    let owned = |id: u64| owned.contains(&ParamId::from(id));
    // Names begin with the parameter's id.
    let named = |name: &str| name.split('.').next().and_then(|id| id.parse().ok()).is_some_and(owned);
    let mut part = StateRecord {
        tensors: vec![],
        scalars: scalars.into_iter().filter(|(name, _)| named(name)).collect(),
        metadata: metadata.into_iter().filter(|(name, _)| named(name)).collect(),
    };
    for tensor in tensors {
        let (name, dtype, shape, id, bytes) = tensor.into_parts().map_err(|e| e.to_string())?;
        if id.is_some_and(owned) {
            part.tensors.push(burn_pack::Tensor::new(name, dtype, shape, id, bytes));
        }
    }
    part.into_bytes()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::thread;

    use burn::tensor::DType;
    use burn_pack::{Reader, Scalar};
    use kiln_parallel::Local;
    use proptest::prelude::*;

    use super::*;

    /// A state of these parameters: two tensors, a number and a line of text of each.
    fn state(ids: impl IntoIterator<Item = u64>) -> Bytes {
        let (mut tensors, mut scalars, mut metadata) = (vec![], vec![], vec![]);
        for id in ids {
            for moment in [1, 2] {
                let bytes = Bytes::from_bytes_vec([id as f32 * 0.1, moment as f32].map(f32::to_le_bytes).concat());
                tensors.push(burn_pack::Tensor::new(format!("{id}.moment_{moment}"), DType::F32, [2], Some(id), bytes));
            }
            scalars.push((format!("{id}.time"), Scalar::Int(id as i64)));
            metadata.push((format!("{id}.kind"), format!("kind {}", id % 3)));
        }
        StateRecord { tensors, scalars, metadata }.into_bytes().unwrap()
    }

    /// Everything in a state, by name.
    fn contents(state: Bytes) -> (BTreeMap<String, Vec<u8>>, String) {
        let reader = Reader::from_bytes(state).unwrap();
        let scalars: BTreeMap<_, _> =
            reader.scalars().clone().into_iter().map(|(name, value)| (name, format!("{value:?}"))).collect();
        let metadata: BTreeMap<_, _> =
            reader.metadata().clone().into_iter().filter(|(name, _)| name.contains("kind")).collect();
        let tensors = reader.into_tensors().unwrap().into_iter().map(|tensor| tensor.into_parts().unwrap());
        (tensors.map(|(name, _, _, _, bytes)| (name, bytes.to_vec())).collect(), format!("{scalars:?} {metadata:?}"))
    }

    proptest! {
        /// Ids begin with each other: 1, 11, 111.
        #[test]
        fn a_state_is_the_sum_of_its_parts(owners in prop::collection::vec(0_usize..4, 0..24)) {
            let id = |parameter: usize| [1, 11, 111, 2][parameter % 4] + 1000 * (parameter as u64 / 4);
            let all = || (0..owners.len()).map(id);
            let of = |rank| (0..owners.len()).filter(|parameter| owners[*parameter] == rank).map(id).collect::<Vec<_>>();
            let parts: Vec<Bytes> = (0..4)
                .map(|rank| part(state(all()), &of(rank).into_iter().map(ParamId::from).collect()).unwrap())
                .collect();
            for (rank, part) in parts.iter().enumerate() {
                prop_assert_eq!(contents(part.clone()), contents(state(of(rank))));
            }
            let again = whole(parts.iter().map(|part| part.to_vec()).collect()).unwrap();
            prop_assert_eq!(contents(again), contents(state(all())));
        }
    }

    #[test]
    fn what_is_no_record_is_an_error() {
        assert!(whole(vec![vec![1, 2, 3]]).is_err());
        assert!(part(Bytes::from_bytes_vec(vec![1, 2, 3]), &HashSet::new()).is_err());
    }

    #[test]
    fn the_first_replica_gets_parts_of_any_length() {
        let parts: [Vec<u8>; 4] =
            [3, 0, AT_ONCE + 5, AT_ONCE].map(|length| (0..length).map(|at| (at % 251) as u8).collect());
        thread::scope(|scope| {
            for replica in Local::group(parts.len()) {
                let parts = &parts;
                scope.spawn(move || {
                    let got = gathered(&replica, &parts[replica.rank()]).unwrap();
                    assert_eq!(got.is_some(), replica.rank() == 0);
                    assert!(got.is_none_or(|got| got == parts));
                });
            }
        });
    }
}
