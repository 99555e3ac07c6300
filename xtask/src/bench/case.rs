//! What is measured: every case by its name.

use std::fmt;

use anyhow::{Result, bail};

use crate::usage::Usage;

/// Cases that take turns with each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Group {
    /// Steps of `train resnet` on the data set in fixtures/.
    Resnet,
    /// Steps of `train gpt` on the book in fixtures/.
    Gpt,
    /// Single functions.
    Function,
}

impl Group {
    pub(crate) const ALL: [Self; 3] = [Self::Resnet, Self::Gpt, Self::Function];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Resnet => "resnet",
            Self::Gpt => "gpt",
            Self::Function => "function",
        }
    }
}

/// Who takes a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loop {
    /// The loop that burn's book shows: forward, backward, update.
    Burn,
    /// Kiln's step, with what the options say and nothing else.
    Kiln,
    /// Kiln's step as `train` takes it: recovery armed, every boundary watched, the micro-batch picked from `--memory`.
    Armed,
}

/// A function that is measured alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Function {
    Load,
    Solve,
    Probe,
    Record,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    Step(Loop),
    Function(Function),
}

/// One thing that is measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Case {
    pub(crate) group: Group,
    /// Its name within the group.
    pub(crate) name: &'static str,
    pub(crate) what: &'static str,
    pub(crate) work: Work,
    /// Options of `train`.
    pub(crate) options: Vec<&'static str>,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}/{}", self.group.name(), self.name))
    }
}

impl Case {
    /// Whether the others of the group are measured against it.
    pub(crate) fn is_reference(&self) -> bool {
        self.work == Work::Step(Loop::Burn)
    }
}

/// The name of the reference in a group.
pub(crate) const REFERENCE: &str = "burn";

/// All cases, in the order of the tables.
pub(crate) fn all() -> Vec<Case> {
    let mut cases = steps(Group::Resnet, "16", "13MiB");
    cases.extend(steps(Group::Gpt, "2", "25MiB"));
    let functions = [
        ("load", "an epoch of 4,000 packed images, augmented, by two workers", Function::Load),
        ("solve", "the fastest checkpoint plan for 1,000 different blocks at 60 % of the plain peak", Function::Solve),
        ("probe", "asking 100 tensors whether they were written", Function::Probe),
        ("record", "recording a step of the GPT and predicting its memory", Function::Record),
    ];
    cases.extend(functions.map(|(name, what, function)| Case {
        group: Group::Function,
        name,
        what,
        work: Work::Function(function),
        options: vec![],
    }));
    cases
}

/// `micro_batch` is a quarter of the batch; `tight` is a half to three quarters of what the plain step takes.
fn steps(group: Group, micro_batch: &'static str, tight: &'static str) -> Vec<Case> {
    let case = |name, what, takes, options: &[&'static str]| Case {
        group,
        name,
        what,
        work: Work::Step(takes),
        options: options.to_vec(),
    };
    let together = ["--clip-norm", "1", "--precision", "bf16", "--micro-batch", micro_batch];
    let together = [&together[..], &["--checkpointing", "every:1", "--memory", "1GiB"]].concat();
    vec![
        case(REFERENCE, "burn's own loop", Loop::Burn, &[]),
        case("step", "Kiln's step, everything off", Loop::Kiln, &[]),
        case("clip", "clipping by global norm", Loop::Kiln, &["--clip-norm", "1"]),
        case("bf16", "bf16", Loop::Kiln, &["--precision", "bf16"]),
        case("f16", "f16 with a dynamic loss scale", Loop::Kiln, &["--precision", "f16"]),
        case("micro-batches", "four micro-batches", Loop::Kiln, &["--micro-batch", micro_batch]),
        case("every-1", "every block recomputed", Loop::Kiln, &["--checkpointing", "every:1"]),
        case("sqrt", "segments of the best length recomputed", Loop::Kiln, &["--checkpointing", "sqrt"]),
        case("armed", "recovery armed, a budget that is not reached", Loop::Armed, &["--memory", "1GiB"]),
        case("budget", "a tight budget", Loop::Armed, &["--memory", tight]),
        case("together", "all of it together, in bf16", Loop::Armed, &together),
    ]
}

/// The cases that `names` name (a group, or GROUP/CASE), all of them when there are none. A step comes with the reference
/// of its group.
pub(crate) fn chosen(all: Vec<Case>, names: &[String]) -> Result<Vec<Case>> {
    let names_it = |case: &Case, name: &String| name == case.group.name() || *name == case.to_string();
    if let Some(unknown) = names.iter().find(|name| !all.iter().any(|case| names_it(case, name))) {
        let groups = Group::ALL.map(Group::name).join(", ");
        bail!(Usage(format!("no case '{unknown}', expected {groups} or a name that `bench --list` lists")));
    }
    let wanted = |case: &Case| names.is_empty() || names.iter().any(|name| names_it(case, name));
    let steps: Vec<Group> = all.iter().filter(|case| wanted(case)).map(|case| case.group).collect();
    Ok(all.into_iter().filter(|case| wanted(case) || (case.is_reference() && steps.contains(&case.group))).collect())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::Parser;

    use super::*;
    use crate::cli::Cli;

    fn names(wanted: &[&str]) -> Vec<String> {
        let wanted: Vec<String> = wanted.iter().map(|name| name.to_string()).collect();
        chosen(all(), &wanted).unwrap().iter().map(Case::to_string).collect()
    }

    #[test]
    fn names_are_different_and_options_are_those_of_train() {
        let cases = all();
        assert_eq!(cases.iter().map(Case::to_string).collect::<BTreeSet<_>>().len(), cases.len());
        for case in cases.iter().filter(|case| case.group != Group::Function) {
            let words = ["xtask", "train", case.group.name()];
            if let Err(error) = Cli::try_parse_from(words.into_iter().chain(case.options.iter().copied())) {
                panic!("{case}: {error}");
            }
        }
    }

    #[test]
    fn a_step_comes_with_its_reference() {
        assert_eq!(names(&["gpt/bf16"]), ["gpt/burn", "gpt/bf16"]);
        assert_eq!(names(&["function/probe"]), ["function/probe"]);
        assert_eq!(names(&["resnet"]).len(), steps(Group::Resnet, "", "").len());
        assert_eq!(names(&[]).len(), all().len());
    }

    #[test]
    fn an_unknown_name_is_refused() {
        let error = chosen(all(), &["gpt/bf17".into()]).unwrap_err();
        assert!(error.is::<Usage>() && error.to_string().contains("'gpt/bf17'"), "{error}");
    }
}
