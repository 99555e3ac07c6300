//! `cargo xtask dist`: the program and its fixtures as one archive that runs on machines without Rust.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use liblzma::write::XzEncoder;
use tar::Builder;

use crate::cargo::cargo;
use crate::cli::Dist;
use kiln_cli::host::Revision;

const VERSION: &str = env!("CARGO_PKG_VERSION");

const README: &str = "\
Kiln, built for a machine without Rust. It needs Linux on x86-64 with glibc 2.36 or newer, libstdc++ and libz.

    ./kiln train resnet
    ./kiln train gpt
    ./kiln --help

What it does on a GPU is found out by a numbered list, in less than 9 minutes:

    ./kiln gpu --out results            all items, on cuda:0
    ./kiln gpu --list                   what they are
    ./kiln gpu 2 5 --out results        only some, beside those that ran before
    ./kiln gpu --python /path/python    with PyTorch beside it (pip install -r benches/peers/requirements.txt)
    ./kiln gpu --patience 3             three times as long for each: a first run compiles and tunes all kernels
    ./kiln gpu --device flex --quick    to see that the list runs, without a GPU

results/ then holds one JSON file for each item, summary.json, and messages.toml, the texts of failed allocations; an item that
fails, hangs or loses the device ends alone. Everything compiled and tuned is kept in kernels/ beside the program: carry it
along, and the next run on a gpu of the same kind begins where this one ended. In a workspace the results are committed as
benches/results/gpu/CARD-DATE, and `cargo xtask gpu --page` writes docs/results.md.

To bring all of it home in two files, the first of which is whole after each item:

    ./kiln gpu --out results --archive results.tar.gz
    tar czf kernels.tar.gz kernels

When items need longer than there is time for, run some of them at a time: ./kiln gpu 1 2 3 --patience 3. Ctrl-C ends
the item that runs and writes the summary.
";

const README_CUDA: &str = "
For --device cuda:0 it needs NVIDIA's driver for CUDA 13.0 or newer as well (libcuda.so; put its folder on
LD_LIBRARY_PATH if it is not found), and NVIDIA's libdevice: CUDA's toolkit has it, and so has a package of 80 MB from PyPI,

    pip install --no-deps --target cuda nvidia-nvvm

which is found when it is installed like that, in this folder.
";

const README_CUDA_CPP: &str = "\
Kernels are compiled by NVRTC: CUDA's toolkit must be there as well, at CUDA_PATH, /usr/local/cuda or /opt/cuda, with
libnvrtc.so on LD_LIBRARY_PATH.
";

/// Further folders in the archive, relative to the root of the workspace.
const FOLDERS: [&str; 2] = ["fixtures", "recipes"];
const FILES: [&str; 2] = ["LICENSE-MIT", "LICENSE-APACHE"];
/// The folder of the PyTorch programs that `gpu` compares with. Only their own files are included.
const PEERS: &str = "benches/peers";
/// A larger bundle contains files that it should not.
const MOST_BYTES: u64 = 52 << 20;

pub(crate) fn run(arguments: &Dist) -> Result<()> {
    let mut build = cargo(Path::new("."));
    build.args(["build", "--release", "--package", "xtask"]);
    if let Some(revision) = Revision::of_workspace() {
        build.env("KILN_REVISION", revision.word());
    }
    let kind = match (arguments.no_cuda, arguments.cuda_cpp) {
        (true, _) => "flex",
        (false, false) => "cuda",
        (false, true) => "cuda-cpp",
    };
    if kind != "flex" {
        build.args(["--features", kind]);
    }
    let status = build.status().context("cannot run cargo")?;
    ensure!(
        status.success(),
        "the release build failed; where GitHub is out of reach, see scripts/llvm-from-debian.sh"
    );

    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    ensure!(root.is_dir(), "'{}' is gone, expected the workspace this program was built in", root.display());
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let name = format!("kiln-{VERSION}-{kind}-{}", std::env::consts::ARCH);
    let out = root.join("dist");
    fs::create_dir_all(&out)?;
    let part = tempfile::NamedTempFile::new_in(&out)?;
    let readme = match kind {
        "flex" => README.to_owned(),
        "cuda" => [README, README_CUDA].concat(),
        _ => [README, README_CUDA, README_CUDA_CPP].concat(),
    };
    pack(part.as_file(), &name, &target.join("release/xtask"), &root, &readme)?;
    let path = out.join(format!("{name}.tar.xz"));
    part.persist(&path)?;
    let bytes = fs::metadata(&path)?.len();
    tracing::info!("{}: {:.1} MiB", path.display(), bytes as f64 / f64::from(1 << 20));
    ensure!(bytes <= MOST_BYTES, "the bundle has {bytes} bytes, expected at most {MOST_BYTES}");
    Ok(())
}

fn pack(file: &File, name: &str, program: &Path, root: &Path, readme: &str) -> Result<()> {
    let mut archive = Builder::new(XzEncoder::new(file, 9)); // Python unpacks it where tar cannot
    archive.append_path_with_name(program, format!("{name}/kiln"))?;
    for folder in FOLDERS {
        archive.append_dir_all(format!("{name}/{folder}"), root.join(folder))?;
    }
    for entry in fs::read_dir(root.join(PEERS))? {
        let path = entry?.path();
        let kind = path.extension().unwrap_or_default();
        if let Some(file) = path.file_name().filter(|_| ["py", "txt", "md"].iter().any(|known| kind == *known)) {
            archive.append_path_with_name(&path, format!("{name}/{PEERS}/{}", file.to_string_lossy()))?;
        }
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
