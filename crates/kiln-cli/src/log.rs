//! Messages of the program, on stderr.

use std::io::IsTerminal;

use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Of libraries only warnings: CubeCL's compiler writes each kernel after each of its passes, gigabytes for one training run.
const DEFAULT: &str = "warn,xtask=info,benches=info,kiln=info";

/// Messages of `KILN_LOG`, as in `debug` or `warn,kiln_training=debug`, else of [`DEFAULT`].
pub fn init() {
    let chosen = std::env::var("KILN_LOG").ok().and_then(|text| text.parse().ok());
    let messages = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .without_time()
        .log_internal_errors(false) // a closed stderr must not end a run
        .with_target(false);
    tracing_subscriber::registry().with(chosen.unwrap_or_else(targets)).with(messages).init();
}

fn targets() -> Targets {
    DEFAULT.parse().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::targets;

    #[test]
    fn only_warnings_of_libraries_are_printed() {
        let targets = targets();
        for own in ["xtask::dist", "benches::gpu::runner", "kiln_cli::train", "kiln_training::trainer"] {
            assert!(targets.would_enable(own, &Level::INFO), "{own}");
            assert!(!targets.would_enable(own, &Level::DEBUG), "{own}");
        }
        for library in ["pliron::pass", "cubecl_runtime::tune", "burn_fusion"] {
            assert!(!targets.would_enable(library, &Level::INFO), "{library}");
            assert!(targets.would_enable(library, &Level::WARN), "{library}");
        }
    }
}
