//! The commands `runs` and `compare`.

mod compare;
mod list;
mod recipe;
mod table;

pub(crate) use compare::run as compare;
pub(crate) use list::run as list;
pub(crate) use recipe::recipe;
