//! Every case by its name.

use std::fmt;

use anyhow::{Result, anyhow, bail};
use kiln_precision::Precision;
use kiln_training::Recompute;

use kiln_cli::pipelines::{Places, Replicas, RunSettings};
use kiln_cli::usage::Usage;

/// A group of cases that alternate.
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

/// The loop that takes a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loop {
    /// The loop that burn's book shows: forward, backward, update.
    Burn,
    /// Kiln's step with only the case's settings, without recovery.
    Kiln,
    /// Kiln's step as in `train`: with recovery, and planned into the case's memory budget.
    Armed,
}

/// A function that is measured by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Function {
    Load,
    Solve,
    Probe,
    Record,
}

/// The work of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    Step(Loop),
    Function(Function),
}

/// A setting in which a case differs from the recipe. It prints as the corresponding option of `train`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Setting {
    ClipNorm(f64),
    Precision(Precision),
    MicroBatch(usize),
    Checkpointing(Recompute),
    /// In the option's format, as in step:12MiB.
    Memory(&'static str),
    Stages(usize),
    Replicas(usize),
    ShardOptimizer,
    StockLayers,
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ClipNorm(norm) => write!(f, "--clip-norm {norm}"),
            Self::Precision(precision) => write!(f, "--precision {precision}"),
            Self::MicroBatch(samples) => write!(f, "--micro-batch {samples}"),
            Self::Checkpointing(checkpointing) => write!(f, "--checkpointing {checkpointing}"),
            Self::Memory(text) => write!(f, "--memory {text}"),
            Self::Stages(stages) => write!(f, "--stages {stages}"),
            Self::Replicas(replicas) => write!(f, "--replicas {replicas}"),
            Self::ShardOptimizer => f.write_str("--shard-optimizer"),
            Self::StockLayers => f.write_str("--stock-layers"),
        }
    }
}

impl Setting {
    fn apply(&self, run: &mut RunSettings) -> Result<()> {
        match self {
            Self::ClipNorm(norm) => run.clip_norm = Some(*norm),
            Self::Precision(precision) => run.precision = *precision,
            Self::MicroBatch(samples) => run.micro_batch = Some(*samples),
            Self::Checkpointing(checkpointing) => run.checkpointing = checkpointing.clone(),
            Self::Memory(text) => {
                run.memory = Some(text.parse().map_err(|error: String| anyhow!(error))?);
            }
            Self::Stages(stages) => run.parallel.stages = Some(Places::Count(*stages)),
            Self::Replicas(replicas) => run.parallel.replicas = Some(Replicas::threads(Places::Count(*replicas))),
            Self::ShardOptimizer => run.parallel.shard_optimizer = true,
            // A setting of the model.
            Self::StockLayers => {}
        }
        Ok(())
    }
}

/// A case of the list of measurements.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Case {
    pub(crate) group: Group,
    /// Its name within the group.
    pub(crate) name: &'static str,
    pub(crate) what: &'static str,
    pub(crate) work: Work,
    pub(crate) settings: Vec<Setting>,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}/{}", self.group.name(), self.name))
    }
}

impl Case {
    /// Whether the other cases of the group are compared with it.
    pub(crate) fn is_reference(&self) -> bool {
        self.work == Work::Step(Loop::Burn)
    }

    /// Whether the model is made of kiln-layers' operations.
    pub(crate) fn lean(&self) -> bool {
        !self.settings.contains(&Setting::StockLayers)
    }

    /// The options of `train` that correspond to the settings.
    pub(crate) fn options(&self) -> String {
        self.settings.iter().map(Setting::to_string).collect::<Vec<_>>().join(" ")
    }

    /// Applies the settings to a recipe. A case clips gradients only if its settings say so, unlike the recipes.
    pub(crate) fn apply(&self, run: &mut RunSettings, device: &str) -> Result<()> {
        run.device = device.to_owned();
        run.clip_norm = None;
        self.settings.iter().try_for_each(|setting| setting.apply(run))
    }
}

/// The name of the reference in a group.
pub(crate) const REFERENCE: &str = "burn";

/// All cases, in the order of the tables.
pub(crate) fn all() -> Vec<Case> {
    let mut cases = steps(Group::Resnet, 16, "step:12MiB");
    cases.extend(steps(Group::Gpt, 2, "step:17MiB"));
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
        settings: vec![],
    }));
    cases
}

/// `micro_batch` is a quarter of the batch; `tight` is a half to three quarters of the plain step's peak.
fn steps(group: Group, micro_batch: usize, tight: &'static str) -> Vec<Case> {
    use Setting::{Checkpointing as Blocks, ClipNorm, Memory, MicroBatch, Precision as In};
    use Setting::{Replicas, ShardOptimizer, Stages, StockLayers};
    let case = |name, what, takes, settings: &[Setting]| Case {
        group,
        name,
        what,
        work: Work::Step(takes),
        settings: settings.to_vec(),
    };
    let every = || Blocks(Recompute::Every(1));
    let together = [ClipNorm(1.0), In(Precision::BF16), MicroBatch(micro_batch), every(), Memory("1GiB")];
    vec![
        case(REFERENCE, "burn's own loop", Loop::Burn, &[]),
        case("step", "Kiln's step, everything off", Loop::Kiln, &[]),
        case("stock", "burn's own layers", Loop::Kiln, &[StockLayers]),
        case("clip", "clipping by global norm", Loop::Kiln, &[ClipNorm(1.0)]),
        case("bf16", "bf16", Loop::Kiln, &[In(Precision::BF16)]),
        case("f16", "f16 with a dynamic loss scale", Loop::Kiln, &[In(Precision::F16)]),
        case("micro-batches", "four micro-batches", Loop::Kiln, &[MicroBatch(micro_batch)]),
        case("every-1", "every block recomputed", Loop::Kiln, &[every()]),
        case("sqrt", "segments of the best length recomputed", Loop::Kiln, &[Blocks(Recompute::Sqrt)]),
        case("stages", "two stages, four micro-batches", Loop::Kiln, &[MicroBatch(micro_batch), Stages(2)]),
        case("one-replica", "a single replica", Loop::Kiln, &[Replicas(1)]),
        case("replicas", "two replicas in this process", Loop::Kiln, &[Replicas(2)]),
        case("sharded", "two replicas, sharded optimizer", Loop::Kiln, &[Replicas(2), ShardOptimizer]),
        case("armed", "recovery armed, a budget that is not reached", Loop::Armed, &[Memory("1GiB")]),
        case("budget", "a tight budget", Loop::Armed, &[Memory(tight)]),
        case("together", "all of it together, in bf16", Loop::Armed, &together),
    ]
}

/// The cases in `names` (a group, or GROUP/CASE), or all of them if there are no names. The reference of a group is included with each of
/// its steps.
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

    use super::*;
    use kiln_cli::pipelines::next_token::fixture_recipe;

    fn names(wanted: &[&str]) -> Vec<String> {
        let wanted: Vec<String> = wanted.iter().map(|name| name.to_string()).collect();
        chosen(all(), &wanted).unwrap().iter().map(Case::to_string).collect()
    }

    #[test]
    fn names_differ_and_settings_apply() {
        let cases = all();
        assert_eq!(cases.iter().map(Case::to_string).collect::<BTreeSet<_>>().len(), cases.len());
        for case in &cases {
            let mut run = fixture_recipe().run;
            case.apply(&mut run, "cuda:1").unwrap();
            let clips = case.settings.contains(&Setting::ClipNorm(1.0));
            assert_eq!((run.device.as_str(), run.clip_norm.is_some()), ("cuda:1", clips), "{case}");
        }
    }

    #[test]
    fn settings_print_as_options_of_train() {
        let options = |name: &str| all().into_iter().find(|case| case.to_string() == name).unwrap().options();
        assert_eq!(options("gpt/step"), "");
        assert_eq!(
            options("gpt/together"),
            "--clip-norm 1 --precision bf16 --micro-batch 2 --checkpointing every:1 --memory 1GiB"
        );
        assert_eq!(
            (options("resnet/sqrt"), options("resnet/budget")),
            ("--checkpointing sqrt".into(), "--memory step:12MiB".into())
        );
    }

    #[test]
    fn a_step_comes_with_its_reference() {
        assert_eq!(names(&["gpt/bf16"]), ["gpt/burn", "gpt/bf16"]);
        assert_eq!(names(&["function/probe"]), ["function/probe"]);
        assert_eq!(names(&["resnet"]).len(), steps(Group::Resnet, 1, "").len());
        assert_eq!(names(&[]).len(), all().len());
    }

    #[test]
    fn an_unknown_name_is_refused() {
        let error = chosen(all(), &["gpt/bf17".into()]).unwrap_err();
        assert!(error.is::<Usage>() && error.to_string().contains("'gpt/bf17'"), "{error}");
    }
}
