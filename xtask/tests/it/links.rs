//! Links of the pages in the root and in docs/ have existing targets, and the book has every page.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};

/// The pages, relative to the root: README.md and its neighbours, and those of docs/.
pub(crate) fn pages(root: &Path) -> Vec<PathBuf> {
    let mut pages = vec![];
    for folder in ["", "docs"] {
        for entry in fs::read_dir(root.join(folder)).unwrap() {
            let name = entry.unwrap().file_name();
            if Path::new(&name).extension().is_some_and(|extension| extension == "md") {
                pages.push(Path::new(folder).join(name));
            }
        }
    }
    pages.sort();
    pages
}

pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// The text without fenced code blocks.
fn unfenced(text: &str) -> String {
    let mut kept = String::new();
    let mut fence: Option<&str> = None;
    for line in text.lines() {
        let start = line.trim_start();
        let marks = &start[..start.len() - start.trim_start_matches('`').len()];
        match fence {
            Some(opened) if marks.len() >= opened.len() && start.trim_end() == marks => fence = None,
            Some(_) => {}
            None if marks.len() >= 3 => fence = Some(marks),
            None => kept = kept + line + "\n",
        }
    }
    kept
}

/// The text without code, which may look like links.
fn prose(text: &str) -> String {
    // A span of code may cross the end of a line, but not of a paragraph.
    let without_spans = |paragraph: &str| {
        let parts = paragraph.split('`').enumerate();
        parts.map(|(index, part)| if index % 2 == 0 { part } else { "`" }).collect::<String>()
    };
    unfenced(text).split("\n\n").map(without_spans).collect::<Vec<_>>().join("\n\n")
}

/// Targets of `[text](target)` and `![text](target)`, of `<a href="target">` and `<img src="target">`.
fn targets(text: &str) -> Vec<String> {
    let prose = prose(text);
    let mut targets = vec![];
    for (opening, closing) in [("](", ')'), ("href=\"", '"'), ("src=\"", '"'), ("srcset=\"", '"')] {
        for (at, _) in prose.match_indices(opening) {
            let rest = &prose[at + opening.len()..];
            let target = &rest[..rest.find(closing).unwrap_or(rest.len())];
            targets.push(target.split_whitespace().next().unwrap_or_default().to_owned());
        }
    }
    targets
}

/// The anchors of a page, as GitHub and mdBook make them of headings.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    for line in unfenced(text).lines() {
        let title = line.trim_start_matches('#');
        if title.len() == line.len() || !title.starts_with(' ') {
            continue;
        }
        let anchor = anchor(title.trim());
        let known = |number: usize| match number {
            0 => anchor.clone(),
            _ => format!("{anchor}-{number}"),
        };
        let free = (0..).map(known).find(|name| !anchors.contains(name)).unwrap();
        anchors.insert(free);
    }
    for (at, opening) in text.match_indices("<a id=\"") {
        let rest = &text[at + opening.len()..];
        anchors.insert(rest[..rest.find('"').unwrap_or(rest.len())].to_owned());
    }
    anchors
}

fn anchor(title: &str) -> String {
    // Only the text of a link in a heading counts.
    let mut shown = title.to_owned();
    while let Some((text, rest)) = shown.split_once("](").map(|(text, rest)| (text.to_owned(), rest.to_owned())) {
        let after = rest.split_once(')').map_or("", |(_, after)| after);
        shown = text.replacen('[', "", 1) + after;
    }
    let kept = shown.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect()
}

/// `folder/target` without `.` and `..`.
fn resolved(folder: &Path, target: &str) -> PathBuf {
    let mut path = folder.to_owned();
    for part in Path::new(target).components() {
        match part {
            Component::ParentDir => drop(path.pop()),
            Component::Normal(name) => path.push(name),
            _ => {}
        }
    }
    path
}

/// The broken links of a page.
fn broken(root: &Path, page: &Path, text: &str) -> Vec<String> {
    let mut broken = vec![];
    for target in targets(text) {
        if target.contains("://") || target.starts_with("mailto:") {
            continue;
        }
        let (file, heading) = target.split_once('#').map_or((target.as_str(), None), |(file, it)| (file, Some(it)));
        let to = match file {
            "" => page.to_owned(),
            _ => resolved(page.parent().unwrap(), file),
        };
        if !root.join(&to).exists() {
            broken.push(format!("{}: there is no file for '{target}'", page.display()));
            continue;
        }
        // mdBook converts `.md` to `.html` even for files that it makes no page of.
        let of_book = |path: &Path| path.starts_with("docs");
        if of_book(page) && !of_book(&to) && to.extension().is_some_and(|extension| extension == "md") {
            broken.push(format!("{}: '{target}' leads nowhere in the book; link to its folder", page.display()));
            continue;
        }
        let Some(heading) = heading else { continue };
        let is_page = to.extension().is_some_and(|extension| extension == "md");
        let there = || if to == page { text.to_owned() } else { fs::read_to_string(root.join(&to)).unwrap() };
        if !is_page || !anchors(&there()).contains(heading) {
            broken.push(format!("{}: there is no heading for '{target}'", page.display()));
        }
    }
    broken
}

#[test]
fn links_of_the_pages_lead_somewhere() {
    let mut wrong = vec![];
    for page in pages(root()) {
        let text = fs::read_to_string(root().join(&page)).unwrap();
        wrong.extend(broken(root(), &page, &text));
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn the_book_has_every_page_once() {
    let summary = fs::read_to_string(root().join("docs/SUMMARY.md")).unwrap();
    let listed = targets(&summary);
    let once: BTreeSet<&String> = listed.iter().collect();
    assert_eq!(once.len(), listed.len(), "docs/SUMMARY.md lists a page twice: {listed:?}");
    for page in pages(root()) {
        let Ok(name) = page.strip_prefix("docs") else { continue };
        let name = name.to_str().unwrap().to_owned();
        assert!(name == "SUMMARY.md" || once.contains(&name), "docs/SUMMARY.md does not list {name}");
    }
}

#[test]
fn a_broken_link_is_found() {
    let text = "\
# A title with `code`, and [a link](README.md)

[file](docs/SUMMARY.md), [none](docs/none.md), [heading](#a-title-with-code-and-a-link), [no heading](#b),
[web](https://example.org/x#y), [folder](docs), `[code](none)`, ![picture](none.svg), <img src=\"none.png\">

````text
```
[in code](none)
````

## Twice
## Twice
[second](#twice-1), [third](#twice-2)
";
    let wrong = broken(root(), Path::new("README.md"), text);
    let missing = |target: &str| wrong.iter().any(|line| line.contains(&format!("'{target}'")));
    for target in ["docs/none.md", "#b", "none.svg", "none.png", "#twice-2"] {
        assert!(missing(target), "{target} was not found in {wrong:?}");
    }
    for target in
        ["docs/SUMMARY.md", "docs", "#a-title-with-code-and-a-link", "#twice-1", "none", "https://example.org/x#y"]
    {
        assert!(!missing(target), "{target} is no broken link: {wrong:?}");
    }
    let expected = ["a-title-with-code-and-a-link", "twice", "twice-1"].map(str::to_owned);
    assert_eq!(anchors(text), BTreeSet::from(expected));
}
