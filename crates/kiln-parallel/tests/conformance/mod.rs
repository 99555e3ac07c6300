//! What every group of replicas does, as cases that each replica runs on a thread or in a process of its own.

mod ends;
pub(crate) mod values;
mod works;

use std::time::Duration;

use kiln_parallel::Communicator;

/// One replica of a group.
pub(crate) struct Replica {
    pub(crate) communicator: Box<dyn Communicator>,
    /// Replicas that are summed before others: blocks of this many ranks.
    pub(crate) inner: usize,
    /// Waits until all replicas have called it, without the communicator.
    pub(crate) barrier: Box<dyn Fn() + Send>,
}

/// One case.
#[derive(Clone, Copy)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    /// The time limit of the communicator.
    pub(crate) time_limit: Duration,
    pub(crate) run: fn(Replica),
}

const fn case(name: &'static str, run: fn(Replica)) -> Case {
    Case { name, time_limit: Duration::from_secs(120), run }
}

/// Cases in which every operation succeeds.
pub(crate) const WORKS: &[Case] = &[
    case("sums are serial sums", works::sums_are_serial_sums),
    case("parts are sums of parts", works::parts_are_sums_of_parts),
    case("gathered values are those of all", works::gathered_values_are_those_of_all),
    case("messages come in the order of the ranks", works::messages_come_in_the_order_of_the_ranks),
    case("many operations follow each other", works::many_operations_follow_each_other),
    case("results are the caller's own", works::results_are_the_callers_own),
    case("votes become verdicts", works::votes_become_verdicts),
    case("gradients are summed", works::gradients_are_summed),
    case("owners hand out parameters", works::owners_hand_out_parameters),
];

/// Cases in which the group ends, for groups of two replicas and more.
pub(crate) const ENDS: &[Case] = &[
    case("one leaves", ends::one_leaves),
    case("one is dropped", ends::one_is_dropped),
    case("one leaves after the last operation", ends::one_leaves_after_the_last_operation),
    Case { time_limit: Duration::from_millis(300), ..case("one is late", ends::one_is_late) },
    case("one calls another operation", ends::one_calls_another_operation),
    case("one brings another length", ends::one_brings_another_length),
    case("one brings too few parts", ends::one_brings_too_few_parts),
    case("one cannot make its bucket", ends::one_cannot_make_its_bucket),
];
