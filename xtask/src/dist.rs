//! `cargo xtask dist`: the program and its fixtures as one archive that runs where Rust is not.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use tar::Builder;
use zstd::Encoder;

use crate::cli::Dist;
use crate::fixtures;

const VERSION: &str = env!("CARGO_PKG_VERSION");

const README: &str = "\
Kiln, built for a machine without Rust. It needs Linux on x86-64 with glibc 2.36 or newer, libstdc++, libz and libzstd,
and for --device cuda:0 NVIDIA's driver (libcuda.so; put its folder on LD_LIBRARY_PATH if it is not found).

    ./kiln train resnet --device cuda:0
    ./kiln train gpt --device cuda:0
    ./kiln --help
";

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
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let kind = if arguments.no_cuda { "flex" } else { "cuda" };
    let name = format!("kiln-{VERSION}-{kind}-{}", std::env::consts::ARCH);
    let out = Path::new("dist");
    fs::create_dir_all(out)?;
    let part = tempfile::NamedTempFile::new_in(out)?;
    pack(part.as_file(), &name, &target.join("release/xtask"), &fixtures::directory()?)?;
    let path = out.join(format!("{name}.tar.zst"));
    part.persist(&path)?;
    let bytes = fs::metadata(&path)?.len();
    tracing::info!("{}: {:.1} MiB", path.display(), bytes as f64 / f64::from(1 << 20));
    Ok(())
}

fn pack(file: &File, name: &str, program: &Path, fixtures: &Path) -> Result<()> {
    let mut archive = Builder::new(Encoder::new(file, 19)?);
    archive.append_path_with_name(program, format!("{name}/kiln"))?;
    archive.append_dir_all(format!("{name}/fixtures"), fixtures)?;
    let mut header = tar::Header::new_gnu();
    header.set_size(README.len() as u64);
    header.set_mode(0o644);
    archive.append_data(&mut header, format!("{name}/README.txt"), README.as_bytes())?;
    archive.into_inner()?.finish()?.sync_all()?;
    Ok(())
}
