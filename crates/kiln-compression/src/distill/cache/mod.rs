//! A teacher's largest outputs for every sample of a data set, on disk.

mod layout;
mod reader;
mod writer;

pub use layout::CacheLayout;
pub use reader::TeacherCache;
pub use writer::TeacherCacheWriter;
