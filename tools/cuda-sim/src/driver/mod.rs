//! The driver without its C interface: the simulated machine and the operations on it.

mod assembler;
mod card;
mod code;
mod context;
mod control;
mod counts;
mod event;
mod fault;
mod graph;
mod handles;
mod header;
mod launch;
mod ledger;
mod log;
mod mapping;
mod memory;
mod module;
mod objects;
mod settings;
mod sim;
mod size;
mod space;
mod stream;
mod transfer;
mod work;

pub use code::Code;
pub(crate) use control::listen;
pub use control::{Command, CommandError};
pub use fault::{Fault, FaultError, Operation};
pub use settings::{AssemblerSetting, CardSettings, Execution, Settings, SettingsError};

pub(crate) use code::Answer;
pub(crate) use handles::Handle;
pub(crate) use header::Entry;
pub(crate) use module::Refusal;
pub(crate) use objects::{Fill, HostCall, Transfer, Work};
pub(crate) use sim::Sim;
pub(crate) use space::Owner;
pub(crate) use stream::PRIORITIES;
