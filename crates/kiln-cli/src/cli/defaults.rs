//! Defaults in the help of options, which depend on the recipe of a command.

use clap::Arg;

/// Ids of options, and the defaults that `--help` shows.
type Defaults = &'static [(&'static str, &'static str)];

const CLASSIFY: Defaults = &[
    ("epochs", "12, with --data 5"),
    ("max_steps", "none"),
    ("batch_size", "64"),
    ("learning_rate", "0.1, of a vit 0.001"),
    ("warmup", "0.1"),
    ("clip_norm", "5"),
    ("workers", "2"),
    ("evaluate_every", "0"),
    ("optimizer", "sgd, of a vit adamw"),
];
const SEGMENT: Defaults = &[
    ("epochs", "18, with --data 20"),
    ("max_steps", "none"),
    ("batch_size", "8"),
    ("learning_rate", "0.002"),
    ("warmup", "0.1"),
    ("clip_norm", "5"),
    ("workers", "2"),
    ("evaluate_every", "0"),
    ("optimizer", "adamw"),
];
const GPT: Defaults = &[
    ("epochs", "1"),
    ("max_steps", "1000, with --data or --epochs none"),
    ("batch_size", "8"),
    ("learning_rate", "0.003"),
    ("warmup", "100"),
    ("clip_norm", "1"),
    ("workers", "1"),
    ("evaluate_every", "200, with --data 0"),
    ("optimizer", "adamw"),
];

const QUANTIZE: Defaults = &[("epochs", "0"), ("learning_rate", "a tenth of the run's")];
const PRUNE: Defaults = &[("epochs", "6"), ("learning_rate", "a tenth of the run's")];
const SHRINK: Defaults = &[("epochs", "10"), ("learning_rate", "half of the run's")];
const DISTILL: Defaults = &[("epochs", "those of the run"), ("learning_rate", "that of the run")];

/// Functions that say in the help of an option what it is where nothing is said.
macro_rules! shown {
    ($($function:ident: $defaults:ident),*) => {$(
        pub(super) fn $function(arg: Arg) -> Arg {
            shown(arg, $defaults)
        }
    )*};
}
shown!(
    classify: CLASSIFY, segment: SEGMENT, gpt: GPT,
    quantize: QUANTIZE, prune: PRUNE, shrink: SHRINK, distill: DISTILL
);

/// Says in the help of `arg` what it is where nothing is said.
fn shown(arg: Arg, defaults: Defaults) -> Arg {
    let Some((_, default)) = defaults.iter().find(|(id, _)| arg.get_id() == *id) else { return arg };
    let short = arg.get_help().map(|help| format!("{help} [default: {default}]"));
    let long = arg.get_long_help().map(|help| format!("{help}\n\n[default: {default}]"));
    let arg = match short {
        Some(help) => arg.help(help),
        None => arg,
    };
    match long {
        Some(help) => arg.long_help(help),
        None => arg,
    }
}
