//! No two files of a crate use each other, directly or through further files.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs;
use std::path::{Path, PathBuf};

use super::edges::all_packages;
use super::source::{Import, Source};

/// Circles that are allowed: none. An entry names a crate and the files of its folder that form a circle.
const KNOWN: &[(&str, &[&str])] = &[];

/// A module of a crate: a file, and its place in the tree of modules.
struct Module {
    file: PathBuf,
    parent: Option<usize>,
    children: BTreeMap<String, usize>,
    source: Source,
}

/// The modules of one crate, the root first.
struct Crate {
    modules: Vec<Module>,
}

/// The files of a crate, with the files that each of them uses.
type Graph = BTreeMap<PathBuf, BTreeSet<PathBuf>>;

impl Crate {
    fn read(root: &Path) -> Self {
        let mut tree = Self { modules: vec![] };
        tree.add(root.to_owned(), None, true);
        tree
    }

    /// Adds a file and all modules that it declares. `owner` says whether these are in the file's own folder.
    fn add(&mut self, file: PathBuf, parent: Option<usize>, owner: bool) -> usize {
        let text = fs::read_to_string(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        let source = Source::parse(&text).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        let index = self.modules.len();
        let folder = file.parent().unwrap().to_owned();
        let inside = if owner { folder.clone() } else { file.with_extension("") };
        let declared = source.modules.clone();
        self.modules.push(Module { file, parent, children: BTreeMap::new(), source });
        for (name, path) in declared {
            let (file, owner) = match path {
                Some(path) => (folder.join(path), true),
                None if inside.join(&name).join("mod.rs").exists() => (inside.join(&name).join("mod.rs"), true),
                None => (inside.join(format!("{name}.rs")), false),
            };
            let child = self.add(file, Some(index), owner);
            self.modules[index].children.insert(name, child);
        }
        index
    }

    /// The file that defines the item which a path names in a module. `None` for items outside of the crate.
    fn resolve(&self, from: usize, path: &[String], depth: usize) -> Option<usize> {
        let module = &self.modules[from];
        let (first, rest) = path.split_first()?;
        let start = match first.as_str() {
            "crate" => 0,
            "self" => from,
            "super" => module.parent?,
            name => match module.children.get(name) {
                Some(child) => *child,
                None => {
                    let imported = self.imported(from, name)?;
                    let target = self.resolve(from, &imported.path, depth.checked_sub(1)?)?;
                    // An import names an item unless its path ends in a module.
                    return if self.is_module(from, &imported.path, depth) {
                        self.descend(target, rest, depth)
                    } else {
                        Some(target)
                    };
                }
            },
        };
        self.descend(start, rest, depth)
    }

    /// Follows the rest of a path from a module.
    fn descend(&self, module: usize, path: &[String], depth: usize) -> Option<usize> {
        let Some((name, rest)) = path.split_first() else { return Some(module) };
        if name == "super" {
            return self.descend(self.modules[module].parent?, rest, depth);
        }
        if let Some(child) = self.modules[module].children.get(name) {
            return self.descend(*child, rest, depth);
        }
        if self.modules[module].source.defined.contains(name) {
            return Some(module);
        }
        let Some(depth) = depth.checked_sub(1) else { return Some(module) };
        if let Some(import) = self.imported(module, name) {
            // Items of another crate are taken from the module that imports them.
            return self.resolve(module, &import.path, depth).or(Some(module));
        }
        let globs = self.modules[module].source.imports.iter().filter(|import| import.name.is_none());
        let through = globs.filter_map(|import| self.resolve(module, &import.path, depth));
        let found = through.filter(|target| *target != module).find_map(|target| {
            let found = self.descend(target, std::slice::from_ref(name), depth)?;
            self.modules[found].source.defined.contains(name).then_some(found)
        });
        Some(found.unwrap_or(module))
    }

    fn imported(&self, module: usize, name: &str) -> Option<&Import> {
        let imports = &self.modules[module].source.imports;
        imports.iter().find(|import| import.name.as_deref() == Some(name) && import.path[0] != name)
    }

    /// Whether a path in a module names a module, in contrast to an item.
    fn is_module(&self, from: usize, path: &[String], depth: usize) -> bool {
        let Some((last, before)) = path.split_last() else { return true };
        match last.as_str() {
            "crate" | "self" | "super" => true,
            _ if before.is_empty() => self.modules[from].children.contains_key(last),
            _ => self.resolve(from, before, depth).is_some_and(|module| {
                self.is_module(from, before, depth) && self.modules[module].children.contains_key(last)
            }),
        }
    }

    /// Adds the files that each file of this crate uses.
    fn edges(&self, graph: &mut Graph) {
        const DEPTH: usize = 8;
        for (index, module) in self.modules.iter().enumerate() {
            let used = graph.entry(module.file.clone()).or_default();
            let imports = module.source.imports.iter().map(|import| &import.path);
            for path in imports.chain(&module.source.paths) {
                if let Some(target) = self.resolve(index, path, DEPTH).filter(|target| *target != index) {
                    used.insert(self.modules[target].file.clone());
                }
            }
        }
    }
}

/// Files that can be reached from one.
fn reached(graph: &Graph, from: &Path) -> BTreeSet<PathBuf> {
    let mut seen = BTreeSet::new();
    let mut next = vec![from.to_owned()];
    while let Some(file) = next.pop() {
        for used in graph.get(&file).into_iter().flatten() {
            if seen.insert(used.clone()) {
                next.push(used.clone());
            }
        }
    }
    seen
}

/// Sets of files in which each file uses all others, directly or indirectly.
fn circles(graph: &Graph) -> Vec<BTreeSet<PathBuf>> {
    let reach: BTreeMap<&PathBuf, BTreeSet<PathBuf>> = graph.keys().map(|file| (file, reached(graph, file))).collect();
    let mut circles: BTreeSet<BTreeSet<PathBuf>> = BTreeSet::new();
    for (file, used) in &reach {
        let mutual = used.iter().filter(|other| reach.get(other).is_some_and(|back| back.contains(*file)));
        circles.extend(Some(mutual.cloned().collect::<BTreeSet<_>>()).filter(|circle| circle.len() > 1));
    }
    circles.into_iter().collect()
}

/// A shortest path from a file back to itself.
fn shortest(graph: &Graph, from: &PathBuf) -> Vec<PathBuf> {
    let mut before: BTreeMap<&PathBuf, &PathBuf> = BTreeMap::new();
    let mut queue = VecDeque::from([from]);
    while let Some(file) = queue.pop_front() {
        for used in graph.get(file).into_iter().flatten() {
            if used == from {
                let mut way = vec![from.clone()];
                let mut at = file;
                while at != from {
                    way.push(at.clone());
                    at = before[at];
                }
                way.push(from.clone());
                way.reverse();
                return way;
            }
            if !before.contains_key(used) {
                before.insert(used, file);
                queue.push_back(used);
            }
        }
    }
    vec![]
}

/// The circles among the files of a package, by their paths from its folder, and a text that names a path around each.
fn circles_of(folder: &Path, roots: &[PathBuf]) -> BTreeMap<Vec<String>, String> {
    let mut graph = Graph::new();
    for root in roots {
        Crate::read(root).edges(&mut graph);
    }
    let short = |file: &PathBuf| file.strip_prefix(folder).unwrap_or(file).to_string_lossy().into_owned();
    circles(&graph)
        .iter()
        .map(|circle| {
            let ways = circle.iter().map(|file| shortest(&graph, file));
            let way: Vec<String> = ways.min_by_key(Vec::len).unwrap_or_default().iter().map(short).collect();
            (circle.iter().map(short).collect(), way.join(" -> "))
        })
        .collect()
}

#[test]
fn files_do_not_use_each_other_in_a_circle() {
    let mut found = BTreeMap::new();
    for package in all_packages() {
        let folder = Path::new(package["manifest_path"].as_str().unwrap()).parent().unwrap();
        let name = package["name"].as_str().unwrap();
        let targets = package["targets"].as_array().unwrap();
        let tests = |target: &&serde_json::Value| target["kind"][0] != "test";
        let roots: Vec<PathBuf> =
            targets.iter().filter(tests).map(|target| target["src_path"].as_str().unwrap().into()).collect();
        for (circle, way) in circles_of(folder, &roots) {
            // A bench that includes a file of another crate's tests by `#[path]` resolves it from its own root.
            if circle.iter().any(|file| file.contains("../")) {
                continue;
            }
            found.insert((name.to_owned(), circle), way);
        }
    }
    let known: BTreeSet<(String, Vec<String>)> = KNOWN
        .iter()
        .map(|(name, files)| ((*name).to_owned(), files.iter().map(|file| (*file).to_owned()).collect()))
        .collect();
    let mut wrong = String::new();
    for ((name, files), way) in found.iter().filter(|(circle, _)| !known.contains(circle)) {
        wrong += &format!("{name}: {} files use each other, as in {way}: {files:?}\n", files.len());
    }
    for (name, files) in known.iter().filter(|circle| !found.contains_key(circle)) {
        wrong += &format!("{name}: no longer a circle, to be removed from the table: {files:?}\n");
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}

/// A crate in a folder of its own, from the text of its files.
fn circles_in(files: &[(&str, &str)]) -> Vec<Vec<String>> {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let file = folder.path().join(name);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }
    circles_of(folder.path(), &[folder.path().join("lib.rs")]).into_keys().collect()
}

#[test]
fn a_circle_is_found_through_imports_and_inline_paths() {
    let files = [
        ("lib.rs", "mod a; mod b; mod c; mod free; pub use a::A;"),
        ("a.rs", "use crate::b::B; pub struct A;"),
        ("b.rs", "use super::{c, free::Free}; pub fn b() { c::call(); } pub struct B;"),
        ("c.rs", "pub fn call() -> crate::A { todo!() }"), // through the re-export
        ("free.rs", "pub struct Free; #[cfg(test)] mod tests { use crate::a::A; }"),
    ];
    assert_eq!(circles_in(&files), [["a.rs", "b.rs", "c.rs"]]);
}

#[test]
fn a_parent_that_defines_what_its_child_uses_is_in_a_circle_with_it() {
    let part = ("whole/part.rs", "use super::Shared; pub struct Part;");
    let whole = ("whole/mod.rs", "mod part; pub use part::Part; pub struct Shared;");
    let root = ("lib.rs", "mod whole; mod other; pub use whole::*; pub struct Root;");
    let other = ("other.rs", "use crate::Part; pub struct Other;");
    assert_eq!(circles_in(&[root, whole, part, other]), [["whole/mod.rs", "whole/part.rs"]]);
    // A declaration alone does not count as use, and a re-export leads to the file that defines the name.
    let whole = ("whole/mod.rs", "mod part; mod shared; pub use part::Part; pub use shared::Shared;");
    let shared = ("whole/shared.rs", "pub struct Shared;");
    assert_eq!(circles_in(&[root, whole, part, shared, other]), [[""; 0]; 0]);
}
