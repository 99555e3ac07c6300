//! Options that a command line gives, and that replace the settings of a recipe and of a file.

use std::marker::PhantomData;
use std::path::PathBuf;

use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Command, Error, FromArgMatches, Id};

/// The options of the settings `S` that a command line gives.
#[derive(Clone)]
pub(crate) struct Given<S> {
    matches: ArgMatches,
    settings: PhantomData<fn() -> S>,
}

impl<S: Args> Given<S> {
    /// Replaces the settings that the command line gives. All others stay.
    pub(crate) fn apply(&self, settings: &mut S) -> Result<(), Error> {
        settings.update_from_arg_matches(&self.matches)
    }

    /// The value of an option by its name, as in `batch_size`.
    pub(crate) fn value<T: Clone + Send + Sync + 'static>(&self, name: &str) -> Option<T> {
        self.matches.get_one::<T>(name).cloned()
    }

    /// The path of an option as it was typed.
    pub(crate) fn path(&self, name: &str) -> Option<PathBuf> {
        self.matches.get_raw(name)?.next().map(PathBuf::from)
    }
}

impl<S: Args> Args for Given<S> {
    fn augment_args(command: Command) -> Command {
        S::augment_args_for_update(command)
    }

    fn augment_args_for_update(command: Command) -> Command {
        S::augment_args_for_update(command)
    }
}

impl<S> FromArgMatches for Given<S> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        // A flag that is not given has a value too, which must not replace a setting.
        let mut given = matches.clone();
        for id in matches.ids().filter(|id| !is_given(matches, id)) {
            let _ = given.try_clear_id(id.as_str());
        }
        Ok(Self { matches: given, settings: PhantomData })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// The names of all options that a command line gives, as in `batch_size`.
#[derive(Clone, Debug, Default)]
pub(crate) struct GivenNames(Vec<String>);

impl GivenNames {
    /// These names.
    #[cfg(test)]
    pub(crate) fn of<'a>(names: impl IntoIterator<Item = &'a str>) -> Self {
        Self(names.into_iter().map(str::to_owned).collect())
    }

    /// Whether one of `names` is given.
    pub(crate) fn any(&self, names: &[&str]) -> bool {
        self.0.iter().any(|given| names.contains(&given.as_str()))
    }

    /// The first option that is given and is none of `names`, as in `--batch-size`.
    pub(crate) fn other_than(&self, names: &[&str]) -> Option<String> {
        let other = self.0.iter().find(|given| !names.contains(&given.as_str()))?;
        Some(format!("--{}", other.replace('_', "-")))
    }
}

impl Args for GivenNames {
    fn augment_args(command: Command) -> Command {
        command
    }

    fn augment_args_for_update(command: Command) -> Command {
        command
    }
}

impl FromArgMatches for GivenNames {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        // Groups of options have ids too: the names of the structs.
        let is_option = |id: &&Id| id.as_str().starts_with(|first: char| first.is_ascii_lowercase());
        let given = matches.ids().filter(is_option).filter(|id| is_given(matches, id));
        Ok(Self(given.map(Id::to_string).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

fn is_given(matches: &ArgMatches, id: &Id) -> bool {
    matches.value_source(id.as_str()) == Some(ValueSource::CommandLine)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Args, Debug, PartialEq)]
    struct Own {
        #[arg(long)]
        count: u32,
        #[arg(long)]
        flag: bool,
        #[arg(long)]
        names: Vec<String>,
    }

    #[test]
    fn only_what_is_given_replaces_a_setting() {
        for (arguments, expected, names) in [
            (&[][..], (3, true, "a"), &[][..]),
            (&["--count", "4"], (4, true, "a"), &["count"]),
            (&["--names", "b", "--flag"], (3, true, "b"), &["flag", "names"]),
        ] {
            let command = Given::<Own>::augment_args(Command::new("test").no_binary_name(true));
            let matches = command.try_get_matches_from(arguments).unwrap();
            let mut own = Own { count: 3, flag: true, names: vec!["a".into()] };
            Given::<Own>::from_arg_matches(&matches).unwrap().apply(&mut own).unwrap();
            assert_eq!((own.count, own.flag, own.names[0].as_str()), expected);
            let given = GivenNames::from_arg_matches(&matches).unwrap();
            assert_eq!(given.other_than(names), None);
            assert!(names.iter().all(|name| given.any(&[name])));
        }
    }
}
