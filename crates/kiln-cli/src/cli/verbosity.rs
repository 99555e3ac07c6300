//! How much a command says while it runs.

use clap::Args;

/// How much a command says on stderr. `KILN_LOG` says it more precisely.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct Verbosity {
    /// Only warnings and the final line: no progress
    #[arg(long, short, global = true, conflicts_with = "verbose", help_heading = "Output")]
    pub quiet: bool,
    /// Say more
    #[arg(long, short, global = true, help_heading = "Output")]
    pub verbose: bool,
}
