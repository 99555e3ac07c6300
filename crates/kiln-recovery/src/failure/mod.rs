//! Memory failures: their type, their classification from errors and messages, and their injection for tests.

mod failure;
mod injector;
mod messages;

pub use failure::{Failure, classify};
pub use injector::Injector;
pub use messages::Kind;
