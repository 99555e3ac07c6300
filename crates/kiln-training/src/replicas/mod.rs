//! A trainer as one of several replicas, each of which computes a part of every batch.

mod group;
mod identify;
mod random;
mod shards;

pub(crate) use group::{Replicas, nothing};
pub(crate) use identify::share_ids;
pub(crate) use random::hold_random_numbers;
pub(crate) use shards::{gathered, part, whole};
