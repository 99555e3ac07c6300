//! Blocks whose parameters, gradients and optimizer state live in a store.

mod bytes;
mod file;
mod host;
mod layout;
mod prefetch;
mod store;
mod streamed;
mod update;
mod values;

pub use file::FileStore;
pub use host::HostStore;
pub use store::{Blob, Content, Store};
pub(crate) use streamed::Source;
pub use streamed::Streamed;
