//! The machine and the sources of this program, on which every figure depends.

use std::path::{Path, PathBuf};
use std::process::Command;

use time::OffsetDateTime;

/// The commit that the program was built from, or that is checked out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Revision {
    /// Its hash, shortened.
    pub commit: String,
    /// Whether files differ from the commit's.
    pub changed: bool,
}

impl Revision {
    /// The commit of the program. In a bundle it is the commit that the bundle was built from, in the workspace that of the workspace.
    pub fn of_program() -> Self {
        match option_env!("KILN_REVISION") {
            Some(text) => Self { commit: text.trim_end_matches('+').into(), changed: text.ends_with('+') },
            None => Self::of_workspace().unwrap_or_else(|| Self { commit: unknown(), changed: false }),
        }
    }

    /// The commit that is checked out in the workspace.
    pub fn of_workspace() -> Option<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let git = |arguments: &[&str]| output_of(Command::new("git").args(arguments).current_dir(&root));
        let changed = git(&["status", "--porcelain", "--untracked-files=no"]).is_some_and(|text| !text.is_empty());
        Some(Self { commit: git(&["rev-parse", "--short=12", "HEAD"])?, changed })
    }

    /// One word, as in `KILN_REVISION`: the commit, followed by + if files were changed.
    pub fn word(&self) -> String {
        format!("{}{}", self.commit, if self.changed { "+" } else { "" })
    }
}

/// The processor's name.
pub fn processor() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    let name = name.map(|(_, name)| name.trim().to_owned());
    name.or_else(|| output_of(Command::new("sysctl").args(["-n", "machdep.cpu.brand_string"]))).unwrap_or_else(unknown)
}

/// The number of threads that can run at once.
pub fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The date in UTC, as in 2026-11-21.
pub fn today() -> String {
    OffsetDateTime::now_utc().date().to_string()
}

/// Kiln's directory in the user's cache, which may not exist yet. Everything in it may be deleted at any time. `None` if there is no home
/// directory.
pub fn cache_directory() -> Option<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")))?;
    Some(cache.join("kiln"))
}

/// Cargo's profile.
pub fn profile() -> &'static str {
    if cfg!(debug_assertions) { "dev" } else { "release" }
}

/// The facts of this program on this machine, each with its name.
pub(crate) fn facts(device: &str) -> Vec<(String, String)> {
    let version = match Revision::of_program().word() {
        commit if commit == unknown() => env!("CARGO_PKG_VERSION").to_owned(),
        commit => format!("{} ({commit})", env!("CARGO_PKG_VERSION")),
    };
    let facts = [
        ("kiln", version),
        ("burn", env!("KILN_BURN").to_owned()),
        ("compiler", env!("KILN_RUSTC").to_owned()),
        ("device", device.to_owned()),
        ("processor", format!("{}, {} threads", processor(), processors())),
        ("system", format!("{} ({})", std::env::consts::OS, std::env::consts::ARCH)),
    ];
    facts.map(|(name, fact)| (name.to_owned(), fact)).to_vec()
}

/// The text for a fact that cannot be determined.
pub fn unknown() -> String {
    "unknown".into()
}

/// The output of a program that succeeds.
pub fn output_of(program: &mut Command) -> Option<String> {
    let output = program.output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_day_is_written_year_first() {
        let day = OffsetDateTime::from_unix_timestamp(951_782_400).unwrap();
        assert_eq!(day.date().to_string(), "2000-02-29");
        assert_eq!(today().len(), 10);
    }

    #[test]
    fn a_revision_with_changes_says_so() {
        let mut revision = Revision { commit: "0123456789ab".into(), changed: false };
        assert_eq!(revision.word(), "0123456789ab");
        revision.changed = true;
        assert_eq!(revision.word(), "0123456789ab+");
    }
}
