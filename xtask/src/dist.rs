//! `cargo xtask dist`: the program and its fixtures as one archive that runs where Rust is not.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use tar::Builder;
use zstd::Encoder;

use crate::cli::Dist;

const VERSION: &str = env!("CARGO_PKG_VERSION");

const README: &str = "\
Kiln, built for a machine without Rust. It needs Linux on x86-64 with glibc 2.36 or newer, libstdc++, libz and libzstd.

    ./kiln train resnet
    ./kiln train gpt
    ./kiln --help
";

const README_CUDA: &str = "
For --device cuda:0 it needs NVIDIA's driver as well (libcuda.so; put its folder on LD_LIBRARY_PATH if it is not found).
";

/// What else goes along, from the root of the workspace.
const FILES: [&str; 2] = ["LICENSE-MIT", "LICENSE-APACHE"];

pub(crate) fn run(arguments: &Dist) -> Result<()> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let mut build = Command::new(cargo);
    build.args(["build", "--release", "--package", "xtask"]);
    if !arguments.no_cuda {
        build.args(["--features", "cuda"]);
    }
    let status = build.status().context("cannot run cargo")?;
    ensure!(
        status.success(),
        "the release build failed; where GitHub is out of reach, see scripts/llvm-from-debian.sh"
    );

    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    ensure!(root.is_dir(), "'{}' is gone, expected the workspace this program was built in", root.display());
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let kind = if arguments.no_cuda { "flex" } else { "cuda" };
    let name = format!("kiln-{VERSION}-{kind}-{}", std::env::consts::ARCH);
    let out = root.join("dist");
    fs::create_dir_all(&out)?;
    let part = tempfile::NamedTempFile::new_in(&out)?;
    let readme = if arguments.no_cuda { README.to_owned() } else { [README, README_CUDA].concat() };
    pack(part.as_file(), &name, &target.join("release/xtask"), &root, &readme)?;
    let path = out.join(format!("{name}.tar.zst"));
    part.persist(&path)?;
    let bytes = fs::metadata(&path)?.len();
    tracing::info!("{}: {:.1} MiB", path.display(), bytes as f64 / f64::from(1 << 20));
    Ok(())
}

fn pack(file: &File, name: &str, program: &Path, root: &Path, readme: &str) -> Result<()> {
    let mut archive = Builder::new(Encoder::new(file, 19)?);
    archive.append_path_with_name(program, format!("{name}/kiln"))?;
    for folder in ["fixtures", "recipes"] {
        archive.append_dir_all(format!("{name}/{folder}"), root.join(folder))?;
    }
    for file in FILES {
        archive.append_path_with_name(root.join(file), format!("{name}/{file}"))?;
    }
    let mut header = tar::Header::new_gnu();
    header.set_size(readme.len() as u64);
    header.set_mode(0o644);
    archive.append_data(&mut header, format!("{name}/README.txt"), readme.as_bytes())?;
    archive.into_inner()?.finish()?.sync_all()?;
    Ok(())
}
