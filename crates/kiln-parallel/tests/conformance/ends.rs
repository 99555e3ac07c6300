//! Cases in which the group ends.

use std::time::Instant;

use kiln_parallel::{Communicator, Error, Status, Verdict, Vote, agree, sum_gradients};

use super::Replica;
use super::values::{tensor, values};
use super::works::{Net, gradients_of};

/// The replica with the highest rank ends the group.
fn is_last(communicator: &dyn Communicator) -> bool {
    communicator.rank() + 1 == communicator.replicas()
}

/// A later operation ends with an error at once.
fn is_over(communicator: &dyn Communicator) {
    let begun = Instant::now();
    for _ in 0..3 {
        let error = communicator.exchange(b"?").unwrap_err();
        assert!(matches!(error, Error::Left { .. } | Error::Broken { .. }), "{error}");
        communicator.all_reduce(tensor(&[1.0])).unwrap_err();
    }
    assert!(begun.elapsed().as_secs() < 5, "operations of a group that has ended took {:?}", begun.elapsed());
}

/// The error says that the last replica left for a reason. In groups of groups, replicas learn of it from others that leave.
fn says_left(replica: &Replica, error: &Error, reason: &str) {
    let Error::Left { rank, reason: said } = error else { panic!("{error}") };
    assert!(said.contains(reason), "{error}");
    if replica.inner == 1 {
        assert_eq!(*rank + 1, replica.communicator.replicas(), "{error}");
    }
}

pub(crate) fn one_leaves(replica: Replica) {
    let communicator = replica.communicator.as_ref();
    communicator.exchange(&[]).unwrap();
    if is_last(communicator) {
        communicator.leave("the disk is full");
        is_over(communicator);
        return;
    }
    let error = communicator.all_reduce(tensor(&values(0, communicator.rank(), 10))).unwrap_err();
    says_left(&replica, &error, "the disk is full");
    is_over(communicator);
}

pub(crate) fn one_is_dropped(replica: Replica) {
    let communicator = replica.communicator.as_ref();
    communicator.exchange(&[]).unwrap();
    if is_last(communicator) {
        return;
    }
    let parts = (0..communicator.replicas()).map(|_| tensor(&[1.0])).collect();
    let error = communicator.reduce_scatter(parts).unwrap_err();
    says_left(&replica, &error, "dropped");
    is_over(communicator);
}

/// A replica that is faster than the others takes nothing from them.
pub(crate) fn one_leaves_after_the_last_operation(replica: Replica) {
    let communicator = replica.communicator.as_ref();
    let sum = communicator.all_reduce(tensor(&[1.0, 2.0])).unwrap();
    let replicas = communicator.replicas() as f32;
    assert_eq!(sum.into_data().iter::<f32>().collect::<Vec<_>>(), [replicas, 2.0 * replicas]);
}

pub(crate) fn one_is_late(replica: Replica) {
    let communicator = replica.communicator.as_ref();
    communicator.exchange(&[]).unwrap();
    if is_last(communicator) {
        (replica.barrier)();
        is_over(communicator);
        (replica.barrier)();
        return;
    }
    let error = communicator.all_gather(tensor(&[1.0]), &vec![1; communicator.replicas()]).unwrap_err();
    match error {
        Error::Waited { rank, operation: "all_gather", missing, .. } if replica.inner == 1 => {
            assert_eq!(rank, communicator.rank());
            assert_eq!(missing, [communicator.replicas() - 1]);
        }
        // Of groups of groups, one group waits, and the other learns of it.
        Error::Waited { .. } | Error::Left { .. } if replica.inner > 1 => {}
        error => panic!("{error}"),
    }
    (replica.barrier)();
    is_over(communicator);
    // No replica is dropped before the late one has seen how the group ended.
    (replica.barrier)();
}

fn differs(replica: &Replica, error: &Error) {
    match error {
        Error::Lengths { rank, first, .. } => assert_ne!(rank, first),
        // Those that come later learn that the group has ended.
        Error::Broken { .. } | Error::Left { .. } => {}
        error => panic!("{error}"),
    }
    is_over(replica.communicator.as_ref());
}

pub(crate) fn one_calls_another_operation(replica: Replica) {
    let communicator = replica.communicator.as_ref();
    communicator.exchange(&[]).unwrap();
    let error = match is_last(communicator) {
        true => communicator.exchange(b"a message").unwrap_err(),
        false => communicator.all_reduce(tensor(&[1.0, 2.0])).unwrap_err(),
    };
    differs(&replica, &error);
}

pub(crate) fn one_brings_another_length(replica: Replica) {
    let communicator = replica.communicator.as_ref();
    communicator.exchange(&[]).unwrap();
    let length = if is_last(communicator) { 11 } else { 10 };
    let error = communicator.all_reduce(tensor(&values(0, 0, length))).unwrap_err();
    differs(&replica, &error);
}

pub(crate) fn one_brings_too_few_parts(replica: Replica) {
    let communicator = replica.communicator.as_ref();
    communicator.exchange(&[]).unwrap();
    if is_last(communicator) {
        let error = communicator.reduce_scatter(vec![]).unwrap_err();
        assert!(
            matches!(&error, Error::InvalidSetting { name: "number of parts", value, .. } if value == "0"),
            "{error}"
        );
    } else {
        let parts = (0..communicator.replicas()).map(|_| tensor(&[1.0])).collect();
        let error = communicator.reduce_scatter(parts).unwrap_err();
        assert!(error.to_string().contains("number of parts = 0"), "{error}");
    }
    is_over(communicator);
}

/// A replica that cannot make a bucket tells the others before they sum it, and the group goes on.
pub(crate) fn one_cannot_make_its_bucket(replica: Replica) {
    #[derive(Debug, PartialEq)]
    enum Outcome {
        OutOfMemory(usize),
        Group(Error),
    }
    impl From<Error> for Outcome {
        fn from(error: Error) -> Self {
            Self::Group(error)
        }
    }
    let communicator = replica.communicator.as_ref();
    let net = Net::new();
    let mut bucket = 0;
    let outcome = sum_gradients(communicator, &net, gradients_of(&net, communicator.rank()), 100, |make| {
        bucket += 1;
        let full = is_last(communicator) && bucket == 2;
        let status = if full { Status::OutOfMemory("full".into()) } else { Status::Done };
        match agree(communicator, Vote { status, numbers: [] })? {
            Verdict::Done([]) => Ok(make()),
            Verdict::OutOfMemory { rank, .. } | Verdict::Failed { rank, .. } => Err(Outcome::OutOfMemory(rank)),
        }
    });
    assert_eq!(outcome.err(), Some(Outcome::OutOfMemory(communicator.replicas() - 1)));
    assert_eq!(bucket, 2);
    // No replica waits in a sum: all take part in the next operation.
    assert_eq!(communicator.exchange(b"on").unwrap().len(), communicator.replicas());
}
