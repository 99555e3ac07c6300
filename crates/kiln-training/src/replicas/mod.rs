//! A trainer as one of several replicas, each of which computes a part of every batch.

mod ends;
mod group;
mod identify;
mod random;
mod same;
mod shards;

pub(crate) use ends::{set_aside, telling};
pub(crate) use group::{Replicas, nothing};
pub(crate) use identify::{checksum, share_ids};
pub(crate) use random::hold_random_numbers;
pub(crate) use same::{Fact, same};
pub(crate) use shards::{gathered, part, whole};
