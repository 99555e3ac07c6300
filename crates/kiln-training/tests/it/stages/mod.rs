//! Runs in stages, beside the laws: any division, failures, and memory.

mod equal;
mod failures;

pub(crate) use failures::ends;
