//! Each dependency is used in the sources that it is declared for.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::edges::packages;

/// Dependencies whose names stand in no source, with the reason.
const UNNAMED: [(&str, &str, &str); 2] = [
    ("browser", "serde", "a file of kiln-memory's tests that is part of its test needs it"),
    ("kiln-training", "kiln-cuda-sim", "its tests load the library that cargo builds of it"),
];

/// The words of all sources of a package: of those compiled for users, and of tests and examples.
#[derive(Default)]
struct Words {
    library: BTreeSet<String>,
    all: BTreeSet<String>,
}

impl Words {
    fn read(&mut self, path: &Path, library: bool) {
        if path.is_dir() {
            for entry in fs::read_dir(path).unwrap() {
                self.read(&entry.unwrap().path(), library);
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(path).unwrap();
            let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
            let words = code.flat_map(|line| line.split(|c: char| !c.is_alphanumeric() && c != '_'));
            let words: BTreeSet<String> = words.map(str::to_owned).collect();
            if library {
                self.library.extend(words.iter().cloned());
            }
            self.all.extend(words);
        }
    }
}

#[test]
fn sources_name_each_dependency() {
    let mut unused = vec![];
    let mut unnamed =
        BTreeSet::from(UNNAMED.map(|(package, dependency, _)| (package.to_owned(), dependency.to_owned())));
    for package in packages() {
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
        words.read(&folder.join("tests"), false);
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
