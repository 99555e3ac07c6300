//! `cargo xtask figures`: finds tables of the pages that are older than the code that they describe.

mod code;
mod mark;
mod numbers;
mod output;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use kiln_cli::usage::Usage;
use kiln_runs::replace;

use crate::cli::Figures;
use mark::{Mark, Proof};

/// A page to check, and the line of the mark to check if only one is named.
struct Chosen {
    page: PathBuf,
    line: Option<usize>,
}

pub(crate) fn run(arguments: &Figures) -> Result<()> {
    let root = match &arguments.root {
        Some(root) => root.clone(),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join(".."),
    };
    let mut wrong = vec![];
    let (mut marks, mut accepted) = (0, 0);
    for Chosen { page, line: only } in chosen(&root, &arguments.pages)? {
        let path = root.join(&page);
        let mut text = fs::read_to_string(&path).with_context(|| format!("cannot read '{}'", path.display()))?;
        let (found, unmarked) = mark::read(&text).with_context(|| page.display().to_string())?;
        let chosen = |line: usize| only.is_none_or(|only| only == line);
        for table in unmarked.iter().filter(|table| chosen(table.line)) {
            let what = format!("no mark says where the figures of '{}' come from", table.head);
            wrong.push(format!("{}:{}: {what}", page.display(), table.line));
        }
        for mark in found.iter().filter(|mark| chosen(mark.line)) {
            marks += 1;
            if let (Proof::Code { of, hash }, true) = (&mark.proof, arguments.accept) {
                let now = code::hash(&root, of).with_context(|| format!("{}:{}", page.display(), mark.line))?;
                accepted += usize::from(now != *hash);
                text = accept(&text, mark.line, hash, &now);
                continue;
            }
            let problem = problem(&root, mark, &page, &text).unwrap_or_else(|error| Some(format!("{error:#}")));
            wrong.extend(problem.map(|problem| format!("{}:{}: {problem}", page.display(), mark.line)));
        }
        if arguments.accept {
            replace(&path, text.as_bytes())?;
        }
    }
    for line in &wrong {
        tracing::warn!("{line}");
    }
    let help = "run its command, put in what it prints, and then `cargo xtask figures --accept` (docs/maintaining.md)";
    ensure!(wrong.is_empty(), "{} of {marks} tables and blocks are out of date; for each: {help}", wrong.len());
    tracing::info!("{marks} tables and blocks are those of the present code; {accepted} accepted");
    Ok(())
}

/// README.md and the pages of docs/, or those in `named`: a page, or `PAGE:LINE`.
fn chosen(root: &Path, named: &[String]) -> Result<Vec<Chosen>> {
    let mut pages = vec![PathBuf::from("README.md")];
    for entry in fs::read_dir(root.join("docs")).with_context(|| format!("no docs in '{}'", root.display()))? {
        let name = entry?.file_name();
        if Path::new(&name).extension().is_some_and(|extension| extension == "md") {
            pages.push(Path::new("docs").join(name));
        }
    }
    pages.sort();
    if named.is_empty() {
        return Ok(pages.into_iter().map(|page| Chosen { page, line: None }).collect());
    }
    let choose = |name: &String| {
        let (page, line) = match name.split_once(':') {
            Some((page, line)) => (page, line.parse().ok()),
            None => (name.as_str(), None),
        };
        let found = pages.iter().find(|known| *known == Path::new(page) && name.contains(':') == line.is_some());
        let unknown =
            || Usage(format!("'{name}' is no page, expected README.md, docs/NAME.md or one of these with a line"));
        Ok(Chosen { page: found.ok_or_else(unknown)?.clone(), line })
    };
    named.iter().map(choose).collect()
}

/// The error in the figures below a mark, if any.
fn problem(root: &Path, mark: &Mark, page: &Path, text: &str) -> Result<Option<String>> {
    let read = |file: &str| fs::read_to_string(root.join(file)).with_context(|| format!("cannot read '{file}'"));
    let command = &mark.command;
    Ok(match &mark.proof {
        Proof::Code { of, hash } => (code::hash(root, of)? != *hash)
            .then(|| format!("`{command}` has not run since the code changed in {}", of.join(", "))),
        Proof::In(file) => numbers::missing(&mark.below, file, &read(file)?)
            .map(|lacks| format!("'{lacks}' of the table is not in {file}, which `{command}` writes")),
        Proof::Test(file) => {
            let name = page.file_name().unwrap_or_default().to_string_lossy();
            (!read(file)?.contains(&*name)).then(|| format!("{file} does not compare {name}"))
        }
        Proof::At(revision) => (!text.contains(&format!("revision {revision}")))
            .then(|| format!("the page does not say that the figures are those of revision {revision}")),
        Proof::By => None,
        Proof::Output { has } => output::difference(mark, has.as_deref())?,
    })
}

/// The page with a new hash in the mark of a line.
fn accept(text: &str, line: usize, hash: &str, now: &str) -> String {
    let start: usize = text.split_inclusive('\n').take(line - 1).map(str::len).sum();
    let (before, mark) = text.split_at(start);
    before.to_owned() + &mark.replacen(&format!("code: {hash}"), &format!("code: {now}"), 1)
}
