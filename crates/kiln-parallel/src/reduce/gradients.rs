//! The sum of the replicas' gradients, bucket by bucket.

use std::collections::BTreeSet;

use burn::module::Module;
use burn::optim::GradientsParams;
use burn::tensor::Tensor;

use super::communicator::Communicator;
use super::parameters::{AnyParam, for_each};
use super::pieces::{buckets, cut, joined};
use crate::error::Error;

/// The sum of all replicas' gradients of `model`, in f32. A parameter with a gradient on some replicas has the sum of these on all
/// replicas. Replicas do not divide: weight the losses, so that the sum is the gradient of the whole batch.
///
/// For each bucket of at most `bucket_bytes` ([`BUCKET_BYTES`](super::pieces::BUCKET_BYTES) is a good choice), in this order:
///
/// 1. `ready` receives a function that copies the bucket's gradients into one tensor. It calls the function, proves that the tensor was
///    written, and [agrees](super::agreement::agree) with the other replicas that all have theirs. When one has not, `ready` returns an
///    error on all replicas, and no replica waits in step 2 for one that does not come. The function may be called again after a failure.
/// 2. The replicas sum the bucket. The order of the sum is the communicator's.
/// 3. The sums replace the bucket's gradients.
///
/// Besides the gradients, memory holds two buckets at most, and the copies of the communicator. A group of one replica returns `gradients`
/// as they are and does not call `ready`.
///
/// # Errors
/// Those of `ready` and of [`all_reduce`](Communicator::all_reduce), and [`Error::Lengths`] when the models of the replicas have parameters
/// of different sizes. The gradients are then lost: some are sums already.
pub fn sum_gradients<E: From<Error>>(
    communicator: &dyn Communicator,
    model: &impl Module,
    mut gradients: GradientsParams,
    bucket_bytes: u64,
    mut ready: impl FnMut(&dyn Fn() -> Tensor<1>) -> Result<Tensor<1>, E>,
) -> Result<GradientsParams, E> {
    if communicator.replicas() == 1 {
        return Ok(gradients);
    }
    let elements = elements_with_gradients(communicator, model, &gradients)?;
    for bucket in buckets(&elements, bucket_bytes) {
        let bucket = BTreeSet::from_iter(bucket);
        let in_bucket = |each: &mut dyn FnMut(&dyn AnyParam)| {
            for_each(model, |index, param| {
                if bucket.contains(&index) {
                    each(param)
                }
            });
        };
        let own = ready(&|| {
            let mut parts = vec![];
            in_bucket(&mut |param| parts.push(param.gradient(&gradients)));
            let device = parts[0].device();
            joined(parts, &device)
        })?;
        in_bucket(&mut |param| param.remove_gradient(&mut gradients));
        let sums = communicator.all_reduce(own)?;
        let lengths: Vec<usize> = bucket.iter().map(|index| elements[*index]).collect();
        let mut sums = cut(&sums, &lengths).into_iter();
        in_bucket(&mut |param| {
            if let Some(sum) = sums.next() {
                param.register_gradient(&mut gradients, sum);
            }
        });
    }
    Ok(gradients)
}

/// The number of elements of each parameter that has a gradient on any replica, and 0 for the others.
fn elements_with_gradients(
    communicator: &dyn Communicator,
    model: &impl Module,
    gradients: &GradientsParams,
) -> Result<Vec<usize>, Error> {
    let mut message: Vec<u8> = vec![];
    for_each(model, |_, param| {
        let word = (param.elements() as u64) << 1 | u64::from(param.has_gradient(gradients));
        message.extend(word.to_le_bytes());
    });
    let messages = communicator.exchange(&message)?;
    let read = |message: &Vec<u8>| -> Vec<(u64, bool)> {
        let words = message.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word));
        words.map(|word| (word >> 1, word & 1 == 1)).collect()
    };
    let replicas: Vec<Vec<(u64, bool)>> = messages.iter().map(read).collect();
    let sizes = |replica: &[(u64, bool)]| replica.iter().map(|(elements, _)| *elements).collect::<Vec<_>>();
    let expected = sizes(&replicas[0]);
    if let Some(rank) = replicas.iter().position(|replica| sizes(replica) != expected) {
        return Err(different(rank, &sizes(&replicas[rank]), &expected));
    }
    let any = |index: usize| replicas.iter().any(|replica| replica[index].1);
    Ok(expected.iter().enumerate().map(|(index, elements)| if any(index) { *elements as usize } else { 0 }).collect())
}

fn different(rank: usize, found: &[u64], expected: &[u64]) -> Error {
    let (found, expected) = match found.iter().zip(expected).position(|(found, expected)| found != expected) {
        Some(at) => {
            let text = |sizes: &[u64]| format!("{} elements of parameter {at}", sizes[at]);
            (text(found), text(expected))
        }
        None => (format!("{} parameters", found.len()), format!("{} parameters", expected.len())),
    };
    Error::Lengths { rank, operation: "sum_gradients", found, first: 0, expected }
}
