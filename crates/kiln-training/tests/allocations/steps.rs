//! Every page of a step, refused: the step is taken all the same, and its result is that of a step without failures.

use kiln_models::GptConfig;
use kiln_training::OptimizerConfig;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::run::{After, Layout, as_by_default, copy, device, in_the_same_split, in_use, seen, step, trainer};
use crate::tasks::{Case, Images, Text};
use crate::{pages, run};

/// Page numbers to refuse, a step each: at most `singles` of all `pages`, evenly chosen, and `pairs`.
fn plan(pages: usize, singles: usize, pairs: usize) -> Vec<Vec<usize>> {
    let every = pages.div_ceil(singles).max(1);
    let mut random = StdRng::seed_from_u64(7);
    let singles = (1..=pages).step_by(every).map(|number| vec![number]);
    // The second may be one of the attempt that comes after the first.
    let pairs = (0..if pages > 0 { pairs } else { 0 }).map(|_| vec![random.random_range(1..=pages), random.random_range(1..=2 * pages)]);
    singles.chain(pairs.collect::<Vec<_>>()).collect()
}

fn same_split<C: Case>(case: &C, layout: Layout, optimizer: OptimizerConfig, singles: usize, pairs: usize)
where
    C::Model: Send,
    C::Batch: Sync,
{
    let _one = pages::exclusive();
    let t0 = std::time::Instant::now();
    let net = case.model(&device());
    let samples = case.samples(&case.batch(0));
    let recovery = || Some(in_the_same_split(samples));
    // The first steps make the optimizer's state, and compile kernels.
    let start = || {
        let mut trainer = trainer(&net, optimizer, recovery());
        for _ in 0..2 {
            let (report, _) = step(case, &mut trainer, layout, &[]);
            let _ = report.unwrap();
        }
        trainer
    };
    let mut plain = start();
    println!("warm {:?}", t0.elapsed());
    let (report, count) = step(case, &mut plain, layout, &[]);
    let plan = plan(count.seen, singles, pairs);
    println!("{layout:?}: {} pages a step, {} steps planned", count.seen, plan.len());
    let t1 = std::time::Instant::now();
    let mut expected = vec![After::of(&plain, &report.unwrap())];
    for _ in 1..plan.len() {
        let (report, _) = step(case, &mut plain, layout, &[]);
        expected.push(After::of(&plain, &report.unwrap()));
    }
    println!("plain {:?} a step", t1.elapsed() / plan.len() as u32);
    drop(plain);
    let mut trainer = start();
    let (mut refused, mut failed, mut wrong, mut leaks) = (0, 0, vec![], vec![]);
    let baseline = in_use();
    let t1 = std::time::Instant::now();
    for (numbers, expected) in plan.iter().zip(&expected) {
        let (report, count) = step(case, &mut trainer, layout, numbers);
        let report = match report {
            Ok(r) => r,
            Err(e) => {
                println!("{numbers:?} {count:?}: {e}");
                wrong.push(numbers.clone());
                break;
            }
        };
        refused += count.refused;
        failed += report.failures;
        if count.refused != report.failures {
            println!("{numbers:?}: {count:?} but {} failures", report.failures);
        }
        let after = After::of(&trainer, &report);
        if !after.is(expected) {
            println!(
                "{numbers:?} {count:?} {} failures: distance {} loss {} {}",
                report.failures,
                after.distance(expected),
                after.loss,
                expected.loss
            );
            wrong.push(numbers.clone());
        }
        if in_use() != baseline {
            leaks.push((numbers.clone(), in_use(), baseline));
        }
    }
    println!("disturbed {:?} a step", t1.elapsed() / plan.len() as u32);
    let seen = seen();
    println!("{refused} refused, {failed} failures, {} in attempts; wrong {wrong:?}; leaks {leaks:?}", seen.len());
    let mut texts: Vec<String> = seen
        .iter()
        .map(|f| {
            format!(
                "{:?} {} {:?}: {}",
                f.kind(),
                f.is_consequence(),
                f.bytes(),
                f.message()
                    .chars()
                    .map(|c| if c.is_ascii_digit() { '9' } else { c })
                    .collect::<String>()
                    .replace("99", "9")
                    .replace("99", "9")
            )
        })
        .collect();
    texts.sort();
    let mut counts: Vec<(usize, String)> = vec![];
    for t in texts {
        if counts.last().is_some_and(|l| l.1 == t) { counts.last_mut().unwrap().0 += 1 } else { counts.push((1, t)) }
    }
    for (n, t) in counts {
        println!("{n} x {}", t.chars().take(600).collect::<String>());
    }
}

fn images(batch_norm: bool) -> Images {
    Images { samples: 8, side: 8, channels: 4, batch_norm }
}

fn text() -> Text {
    Text { samples: 4, config: GptConfig { vocab: 16, context: 8, layers: 1, heads: 2, width: 16, dropout: 0.0 } }
}

fn num(name: &str, default: usize) -> usize {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default)
}

#[test]
fn net_shared() {
    same_split(&Images { samples: 32, side: 16, channels: 8, batch_norm: true }, Layout::Shared, OptimizerConfig::sgd(), num("S", 10), num("P", 4));
}

#[test]
fn net_own() {
    same_split(&images(true), Layout::Own, OptimizerConfig::sgd(), num("S", 10), num("P", 4));
}

#[test]
fn gpt_own() {
    same_split(&text(), Layout::Own, OptimizerConfig::adamw(), num("S", 10), num("P", 4));
}

/// Each disturbed step is the first of a run, and the next follows undisturbed: it would show optimizer state that is wrong.
fn smaller_split<C: Case>(case: &C, layout: Layout, singles: usize, pairs: usize)
where
    C::Model: Send,
    C::Batch: Sync,
{
    let _one = pages::exclusive();
    let net = case.model(&device());
    let samples = case.samples(&case.batch(0));
    let run = |numbers: &[usize]| {
        let mut trainer = trainer(&net, OptimizerConfig::sgd(), Some(as_by_default(samples)));
        let (first, count) = step(case, &mut trainer, layout, numbers);
        let first = first.unwrap();
        let first = (After::of(&trainer, &first), first);
        let (second, _) = step(case, &mut trainer, layout, &[]);
        let second = second.unwrap();
        (first.0, After::of(&trainer, &second), first.1, count)
    };
    let _ = run(&[]);
    let (first, second, _, count) = run(&[]);
    let plan = plan(count.seen, singles, pairs);
    let _ = seen();
    println!("{layout:?} {count:?} {} planned", plan.len());
    let mut worst: f64 = 0.0;
    let mut parts = std::collections::BTreeMap::new();
    for numbers in &plan {
        let (one, two, report, count) = run(numbers);
        let far = one.distance(&first).max(two.distance(&second));
        worst = worst.max(far);
        *parts.entry((report.micro_batches, report.failures, count.refused)).or_insert(0) += 1;
        if far > 1e-5 {
            println!("{numbers:?} {count:?} {report:?}: {far}");
        }
    }
    println!("worst {worst}; (parts, failures, refused): {parts:?}");
    run::seen();
}

fn cap<C: Case>(case: &C)
where
    C::Model: Send,
    C::Batch: Sync,
{
    let _one = pages::exclusive();
    let net = case.model(&device());
    let samples = case.samples(&case.batch(0));
    let new = || trainer(&net, OptimizerConfig::sgd(), Some(as_by_default(samples)));
    let mut plain = new();
    let (report, _) = step(case, &mut plain, Layout::Own, &[]);
    let _ = report.unwrap();
    drop(plain);
    let mut plain = new();
    let before = (in_use(), pages::held());
    let (report, count) = step(case, &mut plain, Layout::Own, &[]);
    let expected = After::of(&plain, &report.unwrap());
    drop(plain);
    println!("before {before:?} {count:?}");
    for share in [0.9, 0.7, 0.5, 0.4, 0.3, 0.2] {
        let mut trainer = new();
        burn::tensor::Device::cpu().sync().unwrap();
        let base = {
            in_use();
            pages::held()
        };
        let cap = base + ((count.peak - before.1) as f64 * share) as usize;
        let batch = case.batch(0);
        let plain = device().inner();
        let (report, count) = pages::capped(cap, || {
            Layout::Own.within(&plain, &mut trainer, |trainer| kiln_training::step(case, trainer, &batch))
        });
        match report {
            Ok(report) => println!(
                "{share}: {} parts {} failures {count:?} far {} in use {} {}",
                report.micro_batches,
                report.failures,
                After::of(&trainer, &report).distance(&expected),
                in_use(),
                pages::held()
            ),
            Err(error) => println!("{share}: {count:?} {error}"),
        }
        for f in run::seen() {
            println!("    {f}");
        }
    }
}

#[test]
fn net_smaller() {
    smaller_split(&images(false), Layout::Own, num("S", 10), num("P", 4));
}

#[test]
fn gpt_smaller() {
    smaller_split(&text(), Layout::Own, num("S", 10), num("P", 4));
}

#[test]
fn net_cap() {
    cap(&Images { samples: 32, side: 16, channels: 8, batch_norm: false });
}

#[test]
fn gpt_cap() {
    cap(&Text {
        samples: 16,
        config: GptConfig { vocab: 16, context: 16, layers: 1, heads: 2, width: 16, dropout: 0.0 },
    });
}
