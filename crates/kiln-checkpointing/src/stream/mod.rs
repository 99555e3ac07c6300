//! Blocks whose parameters, gradients and optimizer state live in a store.

mod access;
mod ahead;
mod bytes;
mod creation;
mod file;
mod gradients;
mod host;
mod inputs;
mod layout;
mod rows;
mod store;
mod streamed;
mod update;
mod uses;
mod values;

pub use creation::{Creation, InitialValues};
pub use file::FileStore;
pub use host::HostStore;
pub(crate) use inputs::Stored;
pub use layout::Parts;
pub use store::{Blob, Content, Store};
pub(crate) use streamed::Source;
pub use streamed::Streamed;
