//! Messages of the program, on stderr.

use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::cli::Verbosity;

/// Libraries log only warnings: CubeCL's compiler writes each kernel after each of its passes, gigabytes for one training run. wgpu looks for
/// drivers of all kinds, and calls each that is not there an error; what is wrong with a device stands in the errors that it returns.
const DEFAULT: &str = "warn,wgpu_hal=off,xtask=info,benches=info,kiln=info,result=info";
const QUIET: &str = "warn,wgpu_hal=off,result=info";
const VERBOSE: &str = "warn,xtask=debug,benches=debug,kiln=debug,result=info";

/// The target of a command's final line, which `--quiet` does not suppress.
pub(crate) const RESULT: &str = "result";

/// Whether `--quiet` was given.
static IS_QUIET: AtomicBool = AtomicBool::new(false);

/// Whether a command shows no progress.
pub(crate) fn is_quiet() -> bool {
    IS_QUIET.load(Relaxed)
}

/// Columns of a terminal.
const COLUMNS: usize = 80;
/// Columns before a message, for its level.
const LEVEL: usize = 6;

/// Joins `parts` into a message, on several lines if a terminal of 80 columns has no room for one. In a file it is one line.
pub(crate) fn fitted(parts: impl IntoIterator<Item = impl AsRef<str>>, separator: &str) -> String {
    let room = if std::io::stderr().is_terminal() { COLUMNS - LEVEL } else { usize::MAX };
    within(room, parts, separator)
}

/// Joins `parts` into lines of at most `room` columns. All lines but the first are indented as far as the first.
fn within(room: usize, parts: impl IntoIterator<Item = impl AsRef<str>>, separator: &str) -> String {
    let (mut text, mut column) = (String::new(), 0);
    for part in parts {
        let (part, gap) = (part.as_ref(), separator.chars().count());
        let width = part.chars().count();
        if column > 0 && column + gap + width > room {
            text.push_str(separator.trim_end());
            text.push('\n');
            text.push_str(&" ".repeat(LEVEL));
            column = 0;
        } else if column > 0 {
            text.push_str(separator);
            column += gap;
        }
        text.push_str(part);
        column += width;
    }
    text
}

/// Prints panics, except those that become errors, such as panics of image decoders.
fn print_other_panics() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| match kiln_data::panics_are_errors() {
        true => tracing::debug!("{panic}"),
        false => print(panic),
    }));
}

/// Starts logging as `KILN_LOG` says (`debug` or `warn,kiln_training=debug`), or else as `verbosity` says.
pub fn init(verbosity: Verbosity) {
    IS_QUIET.store(verbosity.quiet, Relaxed);
    let chosen = std::env::var("KILN_LOG").ok().and_then(|text| text.parse().ok());
    let messages = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .without_time()
        .log_internal_errors(false) // a closed stderr must not end a run
        .with_target(false);
    tracing_subscriber::registry().with(chosen.unwrap_or_else(|| targets(verbosity))).with(messages).init();
    print_other_panics();
}

fn targets(verbosity: Verbosity) -> Targets {
    let text = match verbosity {
        Verbosity { quiet: true, .. } => QUIET,
        Verbosity { verbose: true, .. } => VERBOSE,
        _ => DEFAULT,
    };
    text.parse().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::{RESULT, targets, within};
    use crate::cli::Verbosity;

    #[test]
    fn a_long_message_has_several_lines() {
        let parts = ["step 62", "loss 1.2345", "accuracy 0.8"];
        assert_eq!(within(100, parts, "  "), "step 62  loss 1.2345  accuracy 0.8");
        assert_eq!(within(20, parts, "  "), "step 62  loss 1.2345\n      accuracy 0.8");
        assert_eq!(within(19, parts, "; "), "step 62;\n      loss 1.2345;\n      accuracy 0.8");
        assert_eq!(within(3, ["abcdef"], "  "), "abcdef");
    }

    #[test]
    fn only_warnings_of_libraries_are_printed() {
        let targets = targets(Verbosity::default());
        for own in ["xtask::dist", "benches::gpu::runner", "kiln_cli::train", "kiln_training::trainer"] {
            assert!(targets.would_enable(own, &Level::INFO), "{own}");
            assert!(!targets.would_enable(own, &Level::DEBUG), "{own}");
        }
        for library in ["pliron::pass", "cubecl_runtime::tune", "burn_fusion"] {
            assert!(!targets.would_enable(library, &Level::INFO), "{library}");
            assert!(targets.would_enable(library, &Level::WARN), "{library}");
        }
    }

    #[test]
    fn a_quiet_command_prints_warnings_and_its_final_line() {
        let quiet = targets(Verbosity { quiet: true, verbose: false });
        assert!(quiet.would_enable(RESULT, &Level::INFO) && quiet.would_enable("kiln_cli::train", &Level::WARN));
        assert!(!quiet.would_enable("kiln_cli::train", &Level::INFO));
        let verbose = targets(Verbosity { quiet: false, verbose: true });
        assert!(verbose.would_enable("kiln_training", &Level::DEBUG) && verbose.would_enable(RESULT, &Level::INFO));
        assert!(!verbose.would_enable("cubecl_runtime::tune", &Level::DEBUG));
    }
}
