//! The versions of packages that the program was built with.

use kiln_cli::host::unknown;

/// The version of a package that this program was built with.
pub(crate) fn locked(package: &str) -> String {
    version_of(include_str!("../../Cargo.lock"), package).unwrap_or_else(unknown)
}

/// The version of a package in a lock file.
fn version_of(lock: &str, package: &str) -> Option<String> {
    let lock: toml::Table = lock.parse().ok()?;
    let packages = lock.get("package")?.as_array()?;
    let found = packages.iter().find(|entry| entry.get("name").and_then(toml::Value::as_str) == Some(package));
    Some(found?.get("version")?.as_str()?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lock_file_says_which_burn_it_is() {
        assert_eq!((locked("burn").as_str(), locked("no such package").as_str()), ("0.22.1", "unknown"));
        assert_eq!(version_of("[[package]]\nname = \"burnt\"\nversion = \"1\"\n", "burn"), None);
        assert_eq!(version_of("no = lock = file", "burn"), None);
    }
}
