//! A trainer as one of several replicas, each of which computes a part of every batch.

mod agreement;
mod group;
mod relay;
mod setup;
mod shards;

pub(crate) use agreement::WholeBatch;
pub(crate) use group::Group;
pub(crate) use relay::Relay;
pub(crate) use setup::{Fact, checksum};
pub(crate) use shards::{gathered, part, whole};
