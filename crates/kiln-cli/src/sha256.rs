//! The SHA-256 of files, to check that a download is the expected one.

use std::fs::File;
use std::io::copy;
use std::path::Path;

use anyhow::{Context, Result};
use kiln_data::printable;
use sha2::{Digest, Sha256};

/// The SHA-256 of the file at `path`, as 64 hexadecimal digits.
///
/// # Errors
/// Those of the file system, with the path.
pub(crate) fn sha256(path: &Path) -> Result<String> {
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
