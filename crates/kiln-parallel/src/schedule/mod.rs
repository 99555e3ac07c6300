//! The order in which stages work on micro-batches, and how blocks are divided among stages.
