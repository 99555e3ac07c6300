//! The committed results in README.md and docs/: tables between markers, and pictures.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use kiln_runs::replace;

use super::case::Group;
use super::results::Results;
use super::{chart, table};

/// The committed results.
pub(crate) const COMMITTED: &str = "benches/results/cpu.json";
const GUIDE: &str = "docs/benchmarks.md";

/// The project's files that contain `results`, with their updated content.
pub(crate) fn files(root: &Path, results: &Results) -> Result<Vec<(PathBuf, String)>> {
    let origin = format!("{}\n", results.provenance.line());
    let mut parts = vec![("docs/commands.md", "bench", table::summary(results))];
    parts.push((GUIDE, "bench-origin", origin));
    for group in Group::ALL {
        parts.push((GUIDE, marker(group), table::group(results, group).unwrap_or_default()));
    }
    parts.push((GUIDE, "bench-peers", table::peers(&results.peers)));

    let mut files: Vec<(PathBuf, String)> = vec![];
    for (file, marker, content) in parts {
        let path = root.join(file);
        let place = match files.iter().position(|(known, _)| *known == path) {
            Some(place) => place,
            None => {
                let text = fs::read_to_string(&path).with_context(|| format!("cannot read '{}'", path.display()))?;
                files.push((path, text));
                files.len() - 1
            }
        };
        files[place].1 = between(&files[place].1, marker, &content).with_context(|| file.to_owned())?;
    }
    for (name, svg) in chart::all(results) {
        files.push((root.join(format!("docs/bench-{name}.svg")), svg));
    }
    Ok(files)
}

/// Writes the updated files.
pub(crate) fn publish(root: &Path) -> Result<()> {
    let results = Results::read(&root.join(COMMITTED))?;
    for (path, text) in files(root, &results)? {
        if fs::read_to_string(&path).ok().as_ref() != Some(&text) {
            replace(&path, text.as_bytes())?;
            tracing::info!("wrote {}", path.display());
        }
    }
    Ok(())
}

fn marker(group: Group) -> &'static str {
    match group {
        Group::Resnet => "bench-resnet",
        Group::Gpt => "bench-gpt",
        Group::Function => "bench-function",
    }
}

/// `text` with `content` between the comments `<!-- marker -->` and `<!-- /marker -->`.
fn between(text: &str, marker: &str, content: &str) -> Result<String> {
    let (open, close) = (format!("<!-- {marker} -->\n"), format!("<!-- /{marker} -->"));
    let start = text.find(&open).map(|at| at + open.len());
    let found = start.and_then(|start| Some((start, start + text[start..].find(&close)?)));
    let Some((start, end)) = found else { bail!("expected the markers <!-- {marker} --> and <!-- /{marker} -->") };
    Ok(format!("{}\n{}\n\n{}", &text[..start], content.trim_end(), &text[end..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_between_markers_is_replaced_and_nothing_else() {
        let text = "a\n<!-- x -->\nold\nolder\n<!-- /x -->\nb <!-- y -->\n";
        let new = between(text, "x", "| t |\n").unwrap();
        assert_eq!(new, "a\n<!-- x -->\n\n| t |\n\n<!-- /x -->\nb <!-- y -->\n");
        assert_eq!(between(&new, "x", "| t |\n").unwrap(), new);
        for marker in ["y", "z"] {
            let error = between(text, marker, "").unwrap_err().to_string();
            assert!(error.contains(&format!("<!-- /{marker} -->")), "{error}");
        }
    }

    #[test]
    fn readme_guide_and_pictures_show_the_committed_results() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let results = Results::read(&root.join(COMMITTED)).unwrap();
        for (path, text) in files(&root, &results).unwrap() {
            let committed = fs::read_to_string(&path).unwrap_or_default();
            assert!(committed == text, "{} is out of date: run `cargo xtask bench --readme`", path.display());
        }
    }
}
