//! All results as one .tar.gz file.

use std::path::Path;

use anyhow::{Context, Result};
use flate2::Compression;
use flate2::write::GzEncoder;
use tar::Builder;

use kiln_runs::replace;

/// Writes all results of `folder`, under the folder's name, to the .tar.gz file `archive`.
pub(crate) fn write(folder: &Path, archive: &Path) -> Result<()> {
    let name = folder.canonicalize().ok().and_then(|path| Some(path.file_name()?.to_owned()));
    let name = name.unwrap_or_else(|| "results".into());
    let mut tar = Builder::new(GzEncoder::new(vec![], Compression::best()));
    let mut files: Vec<_> = std::fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    files.sort();
    for path in files.iter().filter(|path| is_result(path)) {
        let file = Path::new(&name).join(path.file_name().unwrap_or_default());
        tar.append_path_with_name(path, file).with_context(|| format!("cannot pack '{}'", path.display()))?;
    }
    let bytes = tar.into_inner()?.finish()?;
    if let Some(parent) = archive.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        std::fs::create_dir_all(parent).with_context(|| format!("cannot make '{}'", parent.display()))?;
    }
    Ok(replace(archive, &bytes)?)
}

/// Whether an item or the runner wrote the file. The archive may be in the same folder.
fn is_result(path: &Path) -> bool {
    path.is_file() && path.extension().is_some_and(|kind| kind == "json" || kind == "toml")
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use flate2::read::GzDecoder;

    use super::*;

    #[test]
    fn the_archive_has_the_results_and_not_itself() {
        let folder = tempfile::tempdir().unwrap();
        let (results, archive) = (folder.path().join("card"), folder.path().join("card/new/all.tar.gz"));
        std::fs::create_dir(&results).unwrap();
        for (round, text) in ["{}", "{\"item\": 1}"].into_iter().enumerate() {
            std::fs::write(results.join("1-facts.json"), text).unwrap();
            std::fs::write(results.join("earlier.tar.gz"), "not a result").unwrap();
            write(&results, &archive).unwrap();
            let mut tar = tar::Archive::new(GzDecoder::new(std::fs::File::open(&archive).unwrap()));
            let files: Vec<(String, String)> = tar
                .entries()
                .unwrap()
                .map(|entry| {
                    let mut entry = entry.unwrap();
                    let mut text = String::new();
                    entry.read_to_string(&mut text).unwrap();
                    (entry.path().unwrap().display().to_string(), text)
                })
                .collect();
            assert_eq!(files, [("card/1-facts.json".to_owned(), text.to_owned())], "round {round}");
        }
    }
}
