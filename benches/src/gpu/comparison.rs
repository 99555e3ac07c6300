//! The cases that both Kiln and PyTorch run, with their figures side by side.

use serde_json::{Value, json};

use super::context::Context;
use super::findings::{Findings, Table};
use super::measure::short;
use super::networks::{Images, Text};

/// Titles of the tables that both have.
pub(crate) const STEPS: &str = "Training steps";
pub(crate) const LARGEST: &str = "Largest batches within a limit";

/// The networks that both train, at equal sizes.
pub(crate) struct Cases {
    pub(crate) images: Images,
    pub(crate) text: Text,
    pub(crate) image_batches: Vec<usize>,
    pub(crate) text_batches: Vec<usize>,
    /// The memory limit for the largest batch, in bytes.
    pub(crate) limit: u64,
}

impl Cases {
    pub(crate) fn new(context: &Context) -> anyhow::Result<Self> {
        Ok(Self {
            images: Images::new(context, "resnet50")?,
            text: Text::new(context, 1024),
            image_batches: context.pick(vec![64, 256], vec![8], vec![2]),
            text_batches: context.pick(vec![8], vec![4], vec![2]),
            limit: context.pick(16 << 30, 64 << 20, 2 << 20),
        })
    }
}

/// Compares steps and largest batches of Kiln and PyTorch, from the items `speed` and `torch` of one run.
pub(crate) fn tables(items: &[Findings]) -> Vec<Table> {
    let of = |item: &str, title: &str| {
        let item = items.iter().find(|findings| findings.name == item)?;
        item.tables.iter().find(|table| table.title == title)
    };
    let tables = [STEPS, LARGEST].map(|title| {
        let (kiln, torch) = of("speed", title).zip(of("torch", title))?;
        let table = if title == STEPS { steps(kiln, torch) } else { largest(kiln, torch) };
        (!table.rows.is_empty()).then_some(table)
    });
    tables.into_iter().flatten().collect()
}

fn steps(kiln: &Table, torch: &Table) -> Table {
    let rows = paired(kiln, torch, &["network", "precision", "batch"]).into_iter().map(|(ours, theirs)| {
        let figure = |name| (kiln.cell(ours, name).as_f64(), torch.cell(theirs, name).as_f64());
        vec![
            torch.cell(theirs, "who").clone(),
            kiln.cell(ours, "network").clone(),
            kiln.cell(ours, "precision").clone(),
            kiln.cell(ours, "batch").clone(),
            kiln.cell(ours, "ms a step").clone(),
            torch.cell(theirs, "ms a step").clone(),
            ratio(figure("ms a step")),
            ratio(figure("memory, MiB")),
        ]
    });
    let columns =
        ["beside", "network", "precision", "batch", "Kiln, ms", "PyTorch, ms", "time, ratio", "memory, ratio"];
    let title = "Kiln's steps over PyTorch's: less is better".into();
    Table { title, columns: columns.map(str::to_owned).to_vec(), rows: rows.collect() }
}

fn largest(kiln: &Table, torch: &Table) -> Table {
    let rows = paired(kiln, torch, &["network", "precision", "limit, MiB"]).into_iter().map(|(ours, theirs)| {
        let (ours_ran, theirs_ran) = (kiln.cell(ours, "ran within"), torch.cell(theirs, "ran within"));
        vec![
            kiln.cell(ours, "network").clone(),
            kiln.cell(ours, "precision").clone(),
            kiln.cell(ours, "limit, MiB").clone(),
            ours_ran.clone(),
            theirs_ran.clone(),
            ratio((ours_ran.as_f64(), theirs_ran.as_f64())),
        ]
    });
    let columns = ["network", "precision", "limit, MiB", "Kiln", "PyTorch", "ratio"];
    let title = "Kiln's largest batches over PyTorch's: more is better".into();
    Table { title, columns: columns.map(str::to_owned).to_vec(), rows: rows.collect() }
}

/// Pairs of rows of two tables that agree in these columns.
fn paired<'a>(kiln: &'a Table, torch: &'a Table, same: &[&str]) -> Vec<(&'a [Value], &'a [Value])> {
    let alike = |ours: &[Value], theirs: &[Value]| {
        same.iter().all(|name| kiln.cell(ours, name) == torch.cell(theirs, name) && !kiln.cell(ours, name).is_null())
    };
    let with =
        |theirs: &'a Vec<Value>| kiln.rows.iter().find(|ours| alike(ours, theirs)).map(|ours| (&ours[..], &theirs[..]));
    torch.rows.iter().filter_map(with).collect()
}

fn ratio((kiln, torch): (Option<f64>, Option<f64>)) -> Value {
    match (kiln, torch) {
        (Some(kiln), Some(torch)) if torch > 0.0 => short(kiln / torch),
        _ => json!(null),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provenance::Provenance;

    #[test]
    fn figures_of_the_same_case_are_set_side_by_side() {
        let (mut torch, mut speed) =
            (Findings::new(3, Provenance::example()), Findings::new(10, Provenance::example()));
        let step = |who, batch, ms, memory| {
            [
                ("who", json!(who)),
                ("network", json!("resnet50")),
                ("precision", json!("bf16")),
                ("batch", json!(batch)),
                ("ms a step", json!(ms)),
                ("memory, MiB", memory),
            ]
        };
        torch.row(STEPS, &step("torch", 64, 10.0, json!(100.0)));
        torch.row(STEPS, &step("torch.compile", 64, 8.0, json!(null)));
        torch.row(STEPS, &step("torch", 256, 40.0, json!(400.0)));
        speed.row(STEPS, &step("kiln", 64, 30.0, json!(150.0)));
        assert_eq!(tables(&[torch.clone()]).len(), 0);
        let both = [torch.clone(), speed.clone()];
        let [table] = &tables(&both)[..] else { panic!("expected one table") };
        let ratios: Vec<_> = table.rows.iter().map(|row| [&row[0], &row[6], &row[7]]).collect();
        assert_eq!(
            ratios,
            [[&json!("torch"), &json!(3.0), &json!(1.5)], [&json!("torch.compile"), &json!(3.75), &json!(null)]]
        );

        let batch = |ran| {
            let same = [("network", json!("gpt")), ("precision", json!("bf16")), ("limit, MiB", json!(16384.0))];
            same.into_iter().chain([("ran within", ran)]).collect::<Vec<_>>()
        };
        torch.row(LARGEST, &batch(json!(40)));
        speed.row(LARGEST, &batch(json!(30)));
        assert_eq!(tables(&[torch, speed])[1].rows[0][5], json!(0.75));
    }
}
