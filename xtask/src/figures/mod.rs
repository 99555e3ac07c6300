//! `cargo xtask figures`: finds tables of the pages that are older than the code that they describe.

mod code;
mod mark;
mod numbers;
mod output;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use kiln_cli::atomic::replace;
use kiln_cli::usage::Usage;

use crate::cli::Figures;
use mark::{Mark, Proof};

pub(crate) fn run(arguments: &Figures) -> Result<()> {
    let root = match &arguments.root {
        Some(root) => root.clone(),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join(".."),
    };
    let mut wrong = vec![];
    let (mut marks, mut accepted) = (0, 0);
    for page in pages(&root, &arguments.pages)? {
        let path = root.join(&page);
        let mut text = fs::read_to_string(&path).with_context(|| format!("cannot read '{}'", path.display()))?;
        let (found, unmarked) = mark::read(&text).with_context(|| page.display().to_string())?;
        marks += found.len();
        let place = |line: usize| format!("{}:{line}", page.display());
        for table in unmarked {
            wrong.push(format!("{}: no mark says where the figures of '{}' come from", place(table.line), table.head));
        }
        // From the last to the first, so that lines keep their numbers.
        for mark in found.iter().rev() {
            let problem = match (&mark.proof, arguments.accept) {
                (Proof::Code { of, hash }, true) => {
                    let now = code::hash(&root, of).with_context(|| place(mark.line))?;
                    if now != *hash {
                        text = accept(&text, mark.line, hash, &now);
                        accepted += 1;
                    }
                    None
                }
                _ => problem(&root, mark, &page, &text).with_context(|| place(mark.line))?,
            };
            wrong.extend(problem.map(|problem| format!("{}: {problem}", place(mark.line))));
        }
        if arguments.accept {
            replace(&path, text.as_bytes())?;
        }
    }
    wrong.sort();
    for line in &wrong {
        tracing::warn!("{line}");
    }
    let help = "run its command, put in what it prints, and then `cargo xtask figures --accept` (docs/maintaining.md)";
    ensure!(wrong.is_empty(), "{} of {marks} tables and blocks are out of date; for each: {help}", wrong.len());
    tracing::info!("{marks} tables and blocks are those of the present code; {accepted} accepted");
    Ok(())
}

/// README.md and the pages of docs/, or those of them that are named.
fn pages(root: &Path, named: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut pages = vec![PathBuf::from("README.md")];
    for entry in fs::read_dir(root.join("docs")).with_context(|| format!("no docs in '{}'", root.display()))? {
        let name = entry?.file_name();
        if Path::new(&name).extension().is_some_and(|extension| extension == "md") {
            pages.push(Path::new("docs").join(name));
        }
    }
    pages.sort();
    if let Some(unknown) = named.iter().find(|page| !pages.contains(page)) {
        bail!(Usage(format!("'{}' is no page, expected README.md or docs/NAME.md", unknown.display())));
    }
    pages.retain(|page| named.is_empty() || named.contains(page));
    Ok(pages)
}

/// What is wrong with the figures below a mark, if anything.
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

/// The page with another hash in the mark of a line.
fn accept(text: &str, line: usize, hash: &str, now: &str) -> String {
    let start: usize = text.split_inclusive('\n').take(line - 1).map(str::len).sum();
    let (before, mark) = text.split_at(start);
    before.to_owned() + &mark.replacen(&format!("code: {hash}"), &format!("code: {now}"), 1)
}
