//! `cargo xtask house`: the size of the sources, read from the files: lines, short files, names that nothing uses, copied constants.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use proc_macro2::{Delimiter, TokenStream, TokenTree};

use crate::tokens::{code, files, is};

/// A shorter file should be part of another, and a longer one be divided.
const SHORT: usize = 50;
const LONG: usize = 400;

/// Packages beside crates/, whose sources and tests are counted too.
const OTHERS: [&str; 4] = ["benches", "browser", "examples", "xtask"];

/// A source file and its lines.
struct File {
    path: PathBuf,
    text: String,
}

impl File {
    fn read(path: PathBuf) -> Result<Self> {
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read '{}'", path.display()))?;
        Ok(Self { path, text })
    }

    fn lines(&self) -> usize {
        self.text.lines().count()
    }

    /// Lines that are neither blank nor comments.
    fn code(&self) -> usize {
        let line = |line: &&str| !line.trim().is_empty() && !line.trim_start().starts_with("//");
        self.text.lines().filter(line).count()
    }
}

/// The sources of a package.
struct Package {
    name: String,
    sources: Vec<File>,
    tests: Vec<File>,
}

impl Package {
    fn read(folder: &Path) -> Result<Self> {
        let read = |part: &str| files(&folder.join(part)).into_iter().map(File::read).collect::<Result<Vec<_>>>();
        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Self {
            name,
            sources: read("src")?,
            tests: [read("tests")?, read("benches")?].into_iter().flatten().collect(),
        })
    }

    fn files(&self) -> impl Iterator<Item = &File> {
        self.sources.iter().chain(&self.tests)
    }

    /// The words of its tests, of its documentation, and of its public items except the names that these define.
    fn shown(&self) -> BTreeSet<&str> {
        let mut shown: BTreeSet<&str> = self.tests.iter().flat_map(|file| words(&file.text)).collect();
        for line in self.sources.iter().flat_map(|file| file.text.lines()).map(str::trim_start) {
            let defined = ["struct", "enum", "trait", "use", "mod"].map(|item| format!("pub {item} "));
            let public = line.starts_with("pub ") && !defined.iter().any(|item| line.starts_with(item));
            if public || line.contains("->") || line.starts_with("///") || line.starts_with("//!") {
                shown.extend(words(line));
            }
        }
        shown
    }

    /// The names that `lib.rs` exports.
    fn exported(&self) -> Result<BTreeSet<String>> {
        let root = self.sources.iter().find(|file| file.path.ends_with("src/lib.rs"));
        root.map_or_else(|| Ok(BTreeSet::new()), |root| Ok(exported(code(&root.text)?)))
    }
}

pub(crate) fn run() -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let crates = packages(&root.join("crates"))?;
    let others = OTHERS.iter().map(|name| Package::read(&root.join(name))).collect::<Result<Vec<_>>>()?;
    // Programs outside of the workspace's packages use exported names too.
    let mut outside = vec![];
    for folder in ["examples", "fuzz", "tools"] {
        outside.extend(files(&root.join(folder)).into_iter().map(File::read).collect::<Result<Vec<_>>>()?);
    }
    let mut out = std::io::stdout().lock();
    write!(out, "{}", report(&crates, &others, &outside)?)?;
    Ok(())
}

fn packages(folder: &Path) -> Result<Vec<Package>> {
    let entries = fs::read_dir(folder).with_context(|| format!("cannot read '{}'", folder.display()))?;
    let mut folders = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    folders.retain(|folder| folder.join("Cargo.toml").is_file());
    folders.sort();
    folders.iter().map(|folder| Package::read(folder)).collect()
}

fn report(crates: &[Package], others: &[Package], outside: &[File]) -> Result<String> {
    let mut text = String::new();
    let head = ["src", "code", "files", "< 50", "> 400", "median", "tests", "unused"];
    line(&mut text, "", &head.map(str::to_owned));
    let unused = unused(crates, others, outside)?;
    let mut all: Vec<&File> = vec![];
    for package in crates.iter().chain(others) {
        let sources: Vec<&File> = package.sources.iter().collect();
        line(&mut text, &package.name, &row(&sources, &package.tests, unused.get(&package.name)));
        if crates.iter().any(|one| one.name == package.name) {
            all.extend(sources);
        }
    }
    let tests = crates.iter().chain(others).flat_map(|package| &package.tests);
    let names: Vec<String> = unused.values().flatten().cloned().collect();
    line(&mut text, "crates/; all tests", &row(&all, tests, Some(&names)));
    text.push('\n');
    for (name, names) in &unused {
        if !names.is_empty() {
            wrapped(&mut text, &format!("{name}, exported and needed by nothing: {}", names.join(", ")));
        }
    }
    let copied = copied(crates)?;
    wrapped(&mut text, &format!("constants of kiln-memory that another crate has too: {}", listed(&copied)));
    let mut caught = 0;
    for file in all {
        let text = code(&file.text)?.to_string();
        caught += text.matches("catch_unwind (").count() + text.matches("catch_unwind(").count();
    }
    let [fields, setters] = builder(crates)?;
    wrapped(&mut text, &format!("catch_unwind: {caught} calls; TrainerBuilder: {fields} fields, {setters} setters"));
    Ok(text)
}

fn row<'a>(sources: &[&File], tests: impl IntoIterator<Item = &'a File>, unused: Option<&Vec<String>>) -> Vec<String> {
    let mut lines: Vec<usize> = sources.iter().map(|file| file.lines()).collect();
    lines.sort_unstable();
    let few = lines.iter().filter(|count| **count < SHORT).count();
    let many = lines.iter().filter(|count| **count > LONG).count();
    let code = sources.iter().map(|file| file.code()).sum::<usize>();
    let median = lines.get(lines.len() / 2).copied().unwrap_or_default();
    let tests = tests.into_iter().map(File::lines).sum::<usize>();
    let figures = [lines.iter().sum(), code, lines.len(), few, many, median, tests].map(|figure| figure.to_string());
    [figures.to_vec(), vec![unused.map_or(String::new(), |names| names.len().to_string())]].concat()
}

fn line(text: &mut String, name: &str, cells: &[String]) {
    let cells: String = cells.iter().map(|cell| format!("{cell:>7}")).collect();
    let _ = writeln!(text, "{}", format!("{name:<20}{cells}").trim_end());
}

/// Adds a paragraph of at most 80 columns.
fn wrapped(text: &mut String, paragraph: &str) {
    let mut line = String::new();
    for word in paragraph.split_whitespace() {
        if line.chars().count() + 1 + word.chars().count() > 80 {
            let _ = writeln!(text, "{line}");
            line = " ".into();
        }
        line += if line.is_empty() { "" } else { " " };
        line += word;
    }
    let _ = writeln!(text, "{line}");
}

fn listed(names: &[String]) -> String {
    if names.is_empty() { "none".into() } else { names.join(", ") }
}

/// Names that the libraries export although nothing needs them: no other package, no test, no example, and no public item.
fn unused(crates: &[Package], others: &[Package], outside: &[File]) -> Result<BTreeMap<String, Vec<String>>> {
    let mut users: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for package in crates.iter().chain(others) {
        for word in package.files().flat_map(|file| words(&file.text)) {
            users.entry(word).or_default().insert(&package.name);
        }
    }
    for word in outside.iter().flat_map(|file| words(&file.text)) {
        users.entry(word).or_default().insert("");
    }
    let mut unused = BTreeMap::new();
    for package in crates {
        let shown = package.shown();
        let alone = |name: &String| {
            let others = users.get(name.as_str()).is_some_and(|users| users.iter().any(|user| *user != package.name));
            !others && !shown.contains(name.as_str())
        };
        unused.insert(package.name.clone(), package.exported()?.into_iter().filter(alone).collect());
    }
    Ok(unused)
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

/// The last names of the paths of `pub use`.
fn exported(tokens: TokenStream) -> BTreeSet<String> {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let mut names = BTreeSet::new();
    for (at, pair) in tokens.windows(2).enumerate() {
        if pair[0].to_string() == "pub" && pair[1].to_string() == "use" {
            leaves(tokens[at + 2..].iter().take_while(|token| !is(token, ';')), &mut names);
        }
    }
    names
}

fn leaves<'a>(tree: impl Iterator<Item = &'a TokenTree>, names: &mut BTreeSet<String>) {
    let mut last = None;
    for token in tree {
        match token {
            TokenTree::Ident(word) => last = Some(word.to_string()),
            TokenTree::Group(group) => {
                last = None;
                leaves(group.stream().into_iter().collect::<Vec<_>>().iter(), names);
            }
            token if is(token, ',') => names.extend(last.take()),
            token if is(token, '*') => last = None,
            _ => {}
        }
    }
    names.extend(last);
}

/// Constants with a name and a value of kiln-memory's that another crate defines too.
fn copied(crates: &[Package]) -> Result<Vec<String>> {
    let mut of: BTreeMap<bool, BTreeSet<String>> = BTreeMap::new();
    for package in crates {
        for file in &package.sources {
            constants(code(&file.text)?, of.entry(package.name == "kiln-memory").or_default());
        }
    }
    let of = |memory| of.get(&memory).cloned().unwrap_or_default();
    Ok(of(true).intersection(&of(false)).cloned().collect())
}

/// Adds `NAME = VALUE` of each constant.
fn constants(tokens: TokenStream, found: &mut BTreeSet<String>) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    for (at, token) in tokens.iter().enumerate() {
        match (token, tokens.get(at + 1)) {
            (TokenTree::Group(group), _) => constants(group.stream(), found),
            (TokenTree::Ident(word), Some(TokenTree::Ident(name))) if word == "const" => {
                let item = tokens[at + 1..].iter().take_while(|token| !is(token, ';'));
                let value: Vec<String> = item.skip_while(|token| !is(token, '=')).map(ToString::to_string).collect();
                found.extend((!value.is_empty()).then(|| format!("{name} {}", value.join(" "))));
            }
            _ => {}
        }
    }
}

/// The fields of `TrainerBuilder`, and its functions that return `Self`.
fn builder(crates: &[Package]) -> Result<[usize; 2]> {
    let mut counts = [0, 0];
    for file in crates.iter().filter(|package| package.name == "kiln-training").flat_map(|package| &package.sources) {
        if !file.text.contains("TrainerBuilder") {
            continue;
        }
        let tokens: Vec<TokenTree> = code(&file.text)?.into_iter().collect();
        // The words of an item, up to its braces.
        let mut words = vec![];
        for token in tokens {
            let TokenTree::Group(group) = &token else {
                words.push(token.to_string());
                if is(&token, ';') {
                    words.clear();
                }
                continue;
            };
            if group.delimiter() != Delimiter::Brace {
                continue;
            }
            let named = words.iter().any(|word| word == "TrainerBuilder");
            let has = |word: &str| words.iter().any(|found| found == word);
            let inside: Vec<String> = group.stream().into_iter().map(|token| token.to_string()).collect();
            if named && has("struct") {
                // A field is a name and one colon; `::` are two.
                let colon = |at: usize| inside.get(at).is_some_and(|word| word == ":");
                counts[0] += (1..inside.len()).filter(|at| colon(*at) && !colon(at - 1) && !colon(at + 1)).count();
            } else if named && has("impl") && !has("for") {
                counts[1] += inside.windows(3).filter(|words| *words == ["-", ">", "Self"]).count();
            }
            words.clear();
        }
    }
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, sources: &[(&str, &str)]) -> Package {
        let file = |(path, text): &(&str, &str)| File { path: path.into(), text: (*text).into() };
        Package { name: name.into(), sources: sources.iter().map(file).collect(), tests: vec![] }
    }

    #[test]
    fn sources_are_counted() {
        let training = "pub struct TrainerBuilder<'a> { a: Vec<u8>, b: std::fmt::Error }\n\
                        impl<'a> TrainerBuilder<'a> { pub fn with_a(self) -> Self { self } pub fn build(self) -> u8 { 1 } }\n";
        let crates = [
            package(
                "kiln-memory",
                &[("src/lib.rs", "//! Text.\n\npub use a::{Used, b::Unused};\nmod x { const ROWS: usize = 8; }\n")],
            ),
            package(
                "kiln-layers",
                &[("src/lib.rs", "const ROWS: usize = 8;\nconst SPAN: usize = 4;\nfn f(x: Used) {}\n")],
            ),
            package("kiln-training", &[("src/lib.rs", training)]),
        ];
        let text = report(&crates, &[], &[]).unwrap();
        for part in [
            "kiln-memory               4      2      1      1      0      4      0      1\n",
            "kiln-memory, exported and needed by nothing: Unused\n",
            "constants of kiln-memory that another crate has too: ROWS = 8\n",
            "catch_unwind: 0 calls; TrainerBuilder: 2 fields, 1 setters\n",
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    }

    #[test]
    fn long_paragraphs_are_wrapped() {
        let mut text = String::new();
        wrapped(&mut text, &"word ".repeat(40));
        assert!(text.lines().count() == 3 && text.lines().all(|line| line.len() <= 80), "{text}");
    }
}
