//! Blocks whose parameters, gradients and optimizer state live in a store.

mod access;
mod bytes;
mod file;
mod gradients;
mod host;
mod inputs;
mod layout;
mod prefetch;
mod store;
mod streamed;
mod update;
mod values;

pub use file::FileStore;
pub use host::HostStore;
pub(crate) use inputs::Stored;
pub use store::{Blob, Content, Store};
pub(crate) use streamed::Source;
pub use streamed::Streamed;
