//! Memory failures: their type, their classification from errors and messages, and their injection for tests.

mod classify;
mod failure;
mod inject;
mod kind;
mod messages;

pub use classify::classify;
pub use failure::Failure;
pub use inject::Injector;
pub use kind::Kind;
