//! A process that talks to a replica by MPI alone: it looks at what a replica sends, and sends what none can read.

use std::time::{Duration, Instant};

use burn::tensor::{Device, Tensor};
use kiln_parallel::{Communicator, Error, Mpi};
use mpi::point_to_point::{Destination, Source};
use mpi::topology::Communicator as _;

/// The process counts the elements of what it receives.
pub(crate) const PIECES: &str = "messages go in pieces";
/// The process sends something else than a header.
pub(crate) const UNREADABLE: &str = "one sends what cannot be read";

/// The tags of kiln's messages.
const HEADER: i32 = 1;
const MESSAGE: i32 = 3;
const VALUES: i32 = 4;

const THEIRS: &[u8] = b"0123456789";
const OWN: &[u8] = b"abcdefghij";

/// One of two processes.
pub(crate) fn run(case: &str) {
    // MPI can be initialised once in a process, and a replica does it itself.
    match (std::env::var("OMPI_COMM_WORLD_RANK").unwrap().as_str(), case) {
        ("0", PIECES) => replica_in_pieces(),
        ("0", _) => replica_of_another(),
        (_, case) => alone(case),
    }
}

fn alone(case: &str) {
    let universe = mpi::initialize().unwrap();
    let world = universe.world();
    let replica = world.process_at_rank(0);
    if case == UNREADABLE {
        replica.send_with_tag(&b"not a header"[..], HEADER);
    } else {
        // The same calls, with as many bytes and values, in pieces of the same size.
        let echo = || replica.send_with_tag(&replica.receive_vec_with_tag::<u8>(HEADER).0[..], HEADER);
        echo();
        let pieces: Vec<Vec<u8>> = (0..4).map(|_| replica.receive_vec_with_tag(MESSAGE).0).collect();
        assert!(pieces.iter().map(Vec::as_slice).eq(THEIRS.chunks(3)), "{pieces:?}");
        OWN.chunks(3).for_each(|piece| replica.send_with_tag(piece, MESSAGE));
        echo();
        let pieces: Vec<Vec<f32>> = (0..2).map(|_| replica.receive_vec_with_tag(VALUES).0).collect();
        assert_eq!(pieces, [vec![1.0, 2.0, 3.0], vec![4.0]]);
        [&[5.0f32, 6.0, 7.0][..], &[8.0]].into_iter().for_each(|piece| replica.send_with_tag(piece, VALUES));
    }
    // Nothing waits for the replica to finalise MPI.
    std::mem::forget(universe);
}

fn replica_in_pieces() {
    let limit = Duration::from_secs(30);
    for elements in [0, 1 << 31] {
        let error = Mpi::init_with_pieces(limit, elements).unwrap_err();
        assert!(matches!(&error, Error::InvalidSetting { value, .. } if *value == elements.to_string()), "{error}");
    }
    let communicator = Mpi::init_with_pieces(limit, 3).unwrap();
    assert_eq!(communicator.exchange(THEIRS).unwrap(), [THEIRS, OWN]);
    let values = Tensor::from_floats([1.0, 2.0, 3.0, 4.0], &Device::flex());
    let all = communicator.all_gather(values, &[4, 4]).unwrap();
    let all: Vec<f32> =
        all.into_iter().flat_map(|values| values.into_data().iter::<f32>().collect::<Vec<_>>()).collect();
    assert_eq!(all, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
    std::mem::forget(communicator);
}

/// It learns at once that it does not understand the other, long before the time limit.
fn replica_of_another() {
    let communicator = Mpi::init(Duration::from_secs(120)).unwrap();
    let begun = Instant::now();
    let error = communicator.exchange(THEIRS).unwrap_err();
    let named = |reason: &str| reason.contains("a message of replica 1 cannot be read");
    assert!(matches!(&error, Error::Transfer { operation: "exchange", reason } if named(reason)), "{error}");
    assert!(matches!(communicator.exchange(THEIRS), Err(Error::Broken { reason }) if named(&reason)));
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    std::mem::forget(communicator);
}
