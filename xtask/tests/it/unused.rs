//! Each dependency is named in the sources that it is declared for.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use proc_macro2::{TokenStream, TokenTree};

use super::edges::all_packages;
use super::tokens::{code, files};

/// Dependencies whose names stand in no source, with the reason.
const UNNAMED: [(&str, &str, &str); 4] = [
    ("browser", "serde", "a file of kiln-memory's tests that is part of its test needs it"),
    ("kiln-tests", "burn-pack", "a file of kiln-training's tests that is part of its test needs it"),
    ("kiln-tests", "kiln-cuda-sim", "its tests load the library that cargo builds of it"),
    ("kiln-tests", "kiln-vulkan-faults", "its tests load the library that cargo builds of it"),
];

/// The words of all sources of a package: those that are compiled for others, and those of tests and examples too.
#[derive(Default)]
struct Words {
    library: BTreeSet<String>,
    all: BTreeSet<String>,
}

impl Words {
    fn read(&mut self, path: &Path, library: bool) {
        for file in files(path) {
            let text = fs::read_to_string(file).unwrap();
            words(text.parse().unwrap(), &mut self.all);
            if library {
                words(code(&text).unwrap(), &mut self.library);
            }
        }
    }
}

fn words(tokens: TokenStream, found: &mut BTreeSet<String>) {
    for token in tokens {
        match token {
            TokenTree::Group(group) => words(group.stream(), found),
            TokenTree::Ident(word) => found.extend([word.to_string()]),
            _ => {}
        }
    }
}

#[test]
fn sources_name_each_dependency() {
    let mut unused = vec![];
    let mut unnamed =
        BTreeSet::from(UNNAMED.map(|(package, dependency, _)| (package.to_owned(), dependency.to_owned())));
    for package in all_packages() {
        let name = package["name"].as_str().unwrap();
        let folder = Path::new(package["manifest_path"].as_str().unwrap()).parent().unwrap();
        let mut words = Words::default();
        for target in package["targets"].as_array().unwrap() {
            let file = Path::new(target["src_path"].as_str().unwrap());
            let library = target["kind"][0] != "test" && target["kind"][0] != "example";
            let source = file.parent().unwrap();
            // A crate without src/ has its files beside its manifest.
            let whole = if source == folder { file } else { source };
            words.read(whole, library);
        }
        if folder.join("tests").exists() {
            words.read(&folder.join("tests"), false);
        }
        for dependency in package["dependencies"].as_array().unwrap() {
            let to = dependency["name"].as_str().unwrap();
            let known = if dependency["kind"] == "dev" { &words.all } else { &words.library };
            let pinned = dependency["target"] == "cfg(any())";
            if !pinned && !known.contains(&to.replace('-', "_")) && !unnamed.remove(&(name.to_owned(), to.to_owned())) {
                unused.push(format!("{name}: {to}"));
            }
        }
    }
    assert!(unused.is_empty(), "dependencies that no source names: {unused:?}");
    assert!(unnamed.is_empty(), "named by now, to be removed from the table: {unnamed:?}");
}
