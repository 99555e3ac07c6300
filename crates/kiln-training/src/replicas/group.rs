//! The replicas of a run, as seen from one of them: who they are, and how they learn of each other's success.

use std::any::Any;
use std::error::Error as _;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use burn::tensor::Tensor;
use kiln_parallel::{Communicator, Number, Status, Verdict, Vote, agree};
use kiln_recovery::{Failure, Kind, Probe, classify};
use serde_json::{from_str, to_string};

use crate::error::Error;

/// The replicas of a run, as seen from one of them. A run without replicas is a group of one, which agrees with itself at no cost.
#[derive(Clone, Default)]
pub(crate) struct Group {
    /// The connection to the other replicas. `None` in a group of one.
    communicator: Option<Arc<dyn Communicator>>,
    /// Whether each replica keeps only a part of the optimizer's state.
    pub(crate) shards_optimizer: bool,
}

impl Group {
    /// The group of `communicator`, if there is one with several replicas.
    pub(crate) fn new(communicator: Option<Arc<dyn Communicator>>, shards_optimizer: bool) -> Self {
        let communicator = communicator.filter(|communicator| communicator.replicas() > 1);
        Self { shards_optimizer: shards_optimizer && communicator.is_some(), communicator }
    }

    /// The connection to the other replicas, if there are any.
    pub(crate) fn communicator(&self) -> Option<&dyn Communicator> {
        self.communicator.as_deref()
    }

    /// The connection to the other replicas, for what outlives a call.
    pub(super) fn shared(&self) -> Option<Arc<dyn Communicator>> {
        self.communicator.clone()
    }

    /// Whether there are other replicas.
    pub(crate) fn has_others(&self) -> bool {
        self.communicator.is_some()
    }

    /// The number of replicas.
    pub(crate) fn replicas(&self) -> usize {
        self.communicator().map_or(1, Communicator::replicas)
    }

    /// The number of replicas in this process, this one included.
    pub(crate) fn in_this_process(&self) -> usize {
        self.communicator().map_or(1, |communicator| communicator.in_this_process().max(1))
    }

    /// The number of this replica, from 0 on.
    pub(crate) fn rank(&self) -> usize {
        self.communicator().map_or(0, Communicator::rank)
    }

    /// Whether this replica writes files and reports.
    pub(crate) fn is_first(&self) -> bool {
        self.rank() == 0
    }

    /// Runs `work`. If it ends with an error or a panic, the other replicas are told, because they would otherwise wait for this one. They
    /// still wait for a replica whose update is unfinished, because its caller can complete the update.
    ///
    /// # Errors
    /// Those of `work`.
    ///
    /// # Panics
    /// When `work` panics.
    pub(crate) fn tell_end<T>(&self, work: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
        let Some(communicator) = self.communicator() else { return work() };
        let outcome = catch_unwind(AssertUnwindSafe(work));
        match &outcome {
            Ok(Ok(_) | Err(Error::Unfinished { .. })) => {}
            Ok(Err(error)) => communicator.leave(&chain(error)),
            Err(payload) => communicator.leave(&panicked(payload.as_ref())),
        }
        outcome.unwrap_or_else(|payload| resume_unwind(payload))
    }

    /// Runs `work`, and turns a panic for lack of memory into an error. burn reports some failures by a panic. With several replicas the
    /// loss of the device is an error too, because the others wait for this one's status.
    ///
    /// # Panics
    /// When `work` panics for another reason. The other replicas are told.
    pub(crate) fn caught<T>(&self, work: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
        catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|payload| match Failure::from_panic(payload.as_ref()) {
            Some(failure) if failure.is_recoverable() || self.has_others() => Err(Error::Memory(failure)),
            _ => {
                self.communicator().iter().for_each(|communicator| communicator.leave(&panicked(payload.as_ref())));
                resume_unwind(payload)
            }
        })
    }

    /// Makes a tensor, and checks that it was written.
    pub(super) fn written(&self, make: &dyn Fn() -> Tensor<1>) -> Result<Tensor<1>, Error> {
        self.caught(|| {
            let made = make();
            let mut probe = Probe::new();
            probe.add(&made);
            probe.finish()?;
            Ok(made)
        })
    }

    /// Returns `own` if all replicas have succeeded. Otherwise all get an error: the failed replica its own, the others one that names
    /// it. If memory ran out, all get the same failure, which names the replica, so that all make the same decision.
    ///
    /// # Errors
    /// Those of `own`; [`Error::Memory`] and [`Error::Replica`] for another replica's; [`Error::Parallel`].
    pub(crate) fn all<T>(&self, own: Result<T, Error>) -> Result<T, Error> {
        match self.communicator {
            Some(_) => self.settle(own, []).map(|(own, [])| own),
            None => own,
        }
    }

    /// Works as [`all`](Self::all), and also exchanges `numbers` with the other replicas. Returns one result for each number.
    pub(super) fn settle<T, const N: usize>(
        &self,
        own: Result<T, Error>,
        numbers: [Number; N],
    ) -> Result<(T, [u64; N]), Error> {
        match (self.vote(status(&own), numbers), own) {
            (Ok(numbers), own) => own.map(|own| (own, numbers)),
            (Err(Error::Replica { rank, .. }), Err(own)) if rank == self.rank() => Err(own),
            (Err(error), _) => Err(error),
        }
    }

    /// Whether `yes` is true on any replica.
    pub(crate) fn any(&self, yes: bool) -> Result<bool, Error> {
        let [any] = self.exchange([Number::Most(u64::from(yes))])?;
        Ok(any > 0)
    }

    /// The highest `number` of all replicas. All wait for the last one.
    pub(crate) fn most(&self, number: u64) -> Result<u64, Error> {
        let [most] = self.exchange([Number::Most(number)])?;
        Ok(most)
    }

    /// Exchanges `numbers` with the other replicas. Returns one result for each number.
    pub(super) fn exchange<const N: usize>(&self, numbers: [Number; N]) -> Result<[u64; N], Error> {
        self.vote(Status::Done, numbers)
    }

    fn vote<const N: usize>(&self, status: Status, numbers: [Number; N]) -> Result<[u64; N], Error> {
        let Some(communicator) = self.communicator() else {
            return Ok(numbers.map(|number| number.value()));
        };
        match agree(communicator, Vote { status, numbers })? {
            Verdict::Done(numbers) => Ok(numbers),
            Verdict::OutOfMemory { rank, reason, .. } => {
                Err(Error::Memory(failure(&reason).at(format!("on replica {rank}"))))
            }
            Verdict::Failed { rank, reason } => Err(Error::Replica { rank, reason }),
        }
    }
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "replica {} of {}", self.rank(), self.replicas())
    }
}

/// The status that a replica reports of its work.
fn status<T>(own: &Result<T, Error>) -> Status {
    match own {
        Ok(_) => Status::Done,
        Err(error) => match classify(error).filter(Failure::is_recoverable) {
            // The failure in full: the others also decide by its kind and its bytes.
            Some(failure) => Status::OutOfMemory(to_string(&failure).unwrap_or_else(|_| failure.message().to_owned())),
            None => Status::Failed(chain(error)),
        },
    }
}

/// The failure that another replica has reported.
fn failure(reason: &str) -> Failure {
    from_str(reason).unwrap_or_else(|_| Failure::new(Kind::OutOfMemory, reason))
}

/// An error with its sources, in one line.
fn chain(error: &Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        let source_text = source.to_string();
        // Some errors quote their source.
        if !text.contains(&source_text) {
            text = format!("{text}: {source_text}");
        }
        next = source.source();
    }
    text
}

/// The message of a panic.
fn panicked(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    format!("it panicked: {}", text.unwrap_or("without a message"))
}

#[cfg(test)]
pub(super) mod tests {
    use std::{io, thread};

    use burn::tensor::ExecutionError;
    use kiln_parallel::Local;

    use super::*;

    /// The results of three replicas.
    pub(crate) fn each<R: Send>(work: impl Fn(usize, &Group) -> R + Sync) -> Vec<R> {
        thread::scope(|scope| {
            let work = &work;
            let threads: Vec<_> = Local::group(3)
                .into_iter()
                .map(|local| {
                    let group = Group::new(Some(Arc::new(local)), false);
                    scope.spawn(move || work(group.rank(), &group))
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    #[test]
    fn all_have_the_same_failure_whatever_its_form_on_the_replica_that_lacks_memory() {
        let forms: [fn() -> Error; 2] = [
            || Error::Lost(ExecutionError::with_context("out of device memory allocating 4096 bytes")),
            || Error::Memory(Failure::new(Kind::TooBig, "one buffer").with_bytes(64)),
        ];
        for form in forms {
            let own = classify(&form()).unwrap();
            for error in each(|rank, group| group.all(if rank == 1 { Err(form()) } else { Ok(()) }).unwrap_err()) {
                let Error::Memory(failure) = error else { panic!("{error}") };
                assert_eq!((failure.kind(), failure.bytes()), (own.kind(), own.bytes()));
                assert_eq!(failure.message(), format!("on replica 1: {}", own.message()));
            }
        }
    }

    #[test]
    fn a_failure_for_good_outweighs_a_lack_of_memory_and_stays_what_it_is_where_it_happened() {
        let errors = each(|rank, group| {
            let own = match rank {
                0 => Err(Error::Memory(Failure::new(Kind::OutOfMemory, "none left"))),
                1 => Ok(()),
                _ => Err(Error::Memory(Failure::new(Kind::DeviceLost, "gone"))),
            };
            group.all(own).unwrap_err()
        });
        for error in &errors[..2] {
            assert!(matches!(error, Error::Replica { rank: 2, reason } if reason.contains("gone")), "{error}");
        }
        assert!(matches!(&errors[2], Error::Memory(failure) if failure.kind() == Kind::DeviceLost));
    }

    #[test]
    fn a_panic_for_lack_of_memory_is_an_error_and_another_one_leaves_the_group() {
        let outcomes = each(|rank, group| {
            let own = group.caught(|| match rank {
                1 => panic!("out of device memory allocating 64 bytes"),
                _ => Ok(()),
            });
            let first = group.all(own).unwrap_err();
            let panic = catch_unwind(AssertUnwindSafe(|| match rank {
                2 => group.caught::<()>(|| panic!("a bug")),
                _ => Ok(()),
            }));
            (first, panic.is_err(), group.any(false).unwrap_err().to_string())
        });
        for (rank, (first, panicked, second)) in outcomes.into_iter().enumerate() {
            assert!(matches!(&first, Error::Memory(failure) if failure.bytes() == Some(64)), "{first}");
            assert_eq!((panicked, second.as_str()), (rank == 2, "replica 2 has left: it panicked: a bug"));
        }
    }

    #[test]
    fn an_error_is_told_with_its_sources() {
        let error = Error::Model(Box::new(io::Error::other("width 0")));
        assert_eq!(chain(&error), "the model cannot be made: width 0");
        let error = Error::Accumulation(kiln_accumulation::Error::Scale(0.0));
        assert_eq!(chain(&error), error.to_string());
    }

    #[test]
    fn a_panic_is_told_with_its_message() {
        assert_eq!(panicked(&"so"), "it panicked: so");
        assert_eq!(panicked(&String::from("so")), "it panicked: so");
        assert_eq!(panicked(&7), "it panicked: without a message");
    }
}
