//! NVIDIA's own assembler as the judge of each module: whether it accepts it, and the resources each kernel takes.

use std::collections::HashMap;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The resources that one kernel takes on the GPU, as the assembler reports them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Resources {
    /// Registers of a thread.
    pub(crate) registers: u32,
    /// Bytes of shared memory that are not dynamic.
    pub(crate) shared: u32,
    /// Bytes of local memory of a thread.
    pub(crate) local: u32,
    /// Bytes a thread writes to local memory because registers ran out.
    pub(crate) spilled: u32,
}

/// The assembler's verdict.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Accepted, with the resources of each kernel.
    Accepted(HashMap<String, Resources>),
    /// Refused, with what the assembler wrote.
    Refused(String),
}

/// The assembler of a CUDA toolkit, looked for through `variable`, which gives the value of an environment variable.
pub(crate) fn find(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let toolkits =
        ["CUDA_PATH", "CUDA_HOME"].into_iter().filter_map(&variable).map(|folder| Path::new(&folder).join("bin"));
    let path = variable("PATH").unwrap_or_default();
    toolkits.chain(std::env::split_paths(&path)).map(|folder| folder.join("ptxas")).find(|file| file.is_file())
}

/// Assembles the PTX in `file` for `architecture` (such as `sm_90a`) and throws the result away.
///
/// # Errors
/// When the assembler cannot be started.
pub(crate) fn assemble(assembler: &Path, file: &Path, architecture: &str) -> io::Result<Verdict> {
    let mut command = Command::new(assembler);
    command.args(["-v", "-o", "/dev/null"]).arg(format!("-arch={architecture}")).arg(file);
    let output = command.env_remove("LD_LIBRARY_PATH").output()?;
    let text = String::from_utf8_lossy(&output.stderr) + String::from_utf8_lossy(&output.stdout);
    Ok(if output.status.success() { Verdict::Accepted(parse(&text)) } else { Verdict::Refused(text.trim().to_owned()) })
}

/// Reads the assembler's verbose output.
fn parse(text: &str) -> HashMap<String, Resources> {
    let mut kernels = HashMap::new();
    let mut current: Option<(String, Resources)> = None;
    for line in text.lines() {
        if let Some(rest) = line.split_once("Compiling entry function '").map(|(_, rest)| rest) {
            kernels.extend(current.take());
            current = rest.split_once('\'').map(|(name, _)| (name.to_owned(), Resources::default()));
        }
        let Some((_, resources)) = &mut current else { continue };
        let before = |what: &str| {
            let (head, _) = line.split_once(what)?;
            head.rsplit(|c: char| !c.is_ascii_digit()).next()?.parse::<u32>().ok()
        };
        resources.registers = before(" registers").unwrap_or(resources.registers);
        resources.shared = before(" bytes smem").unwrap_or(resources.shared);
        resources.local = before(" bytes stack frame").unwrap_or(resources.local);
        resources.spilled = before(" bytes spill stores").unwrap_or(resources.spilled);
    }
    kernels.extend(current);
    kernels
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_resources_of_each_kernel() {
        let text = "ptxas info    : 0 bytes gmem\nptxas info    : Compiling entry function 'first' for 'sm_90a'\n\
            ptxas info    : Function properties for first\n    40 bytes stack frame, 36 bytes spill stores, 44 bytes spill loads\n\
            ptxas info    : Used 255 registers, used 1 barriers, 40 bytes cumulative stack size, 8192 bytes smem\n\
            ptxas info    : Compiling entry function 'second' for 'sm_90a'\nptxas info    : Used 12 registers, used 0 barriers\n";
        let kernels = parse(text);
        assert_eq!(kernels["first"], Resources { registers: 255, shared: 8192, local: 40, spilled: 36 });
        assert_eq!(kernels["second"], Resources { registers: 12, ..Resources::default() });
        assert_eq!(kernels.len(), 2);
    }

    #[test]
    fn the_toolkits_assembler_comes_before_the_one_on_the_path() {
        let folder = tempfile::tempdir().expect("a folder");
        let (toolkit, path) = (folder.path().join("toolkit"), folder.path().join("path"));
        let variable = |name: &str| match name {
            "CUDA_HOME" => Some(toolkit.clone().into_os_string()),
            "PATH" => Some(path.clone().into_os_string()),
            _ => None,
        };
        assert_eq!(find(variable), None);
        std::fs::create_dir_all(&path).expect("a folder");
        std::fs::write(path.join("ptxas"), "").expect("a file");
        assert_eq!(find(variable), Some(path.join("ptxas")));
        std::fs::create_dir_all(toolkit.join("bin")).expect("a folder");
        std::fs::write(toolkit.join("bin/ptxas"), "").expect("a file");
        assert_eq!(find(variable), Some(toolkit.join("bin/ptxas")));
    }

    #[test]
    fn an_assembler_that_is_missing_is_an_error() {
        assert!(assemble(Path::new("/nonexistent/ptxas"), Path::new("/dev/null"), "sm_90").is_err());
    }
}
