//! Folders as wholes: copied, and hashed file by file.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use anyhow::Context;
use sha2::{Digest, Sha256};

/// Larger files are not copied: only sparse ones are as large.
pub(crate) const MAX_COPIED_BYTES: u64 = 1 << 30;

/// What a folder holds: the SHA-256 of every file, and the target of every link, by relative path.
pub(crate) type TreeDigest = BTreeMap<PathBuf, String>;

/// The digest of everything under `folder`. Pipes and devices are named and never opened.
pub(crate) fn digest(folder: &Path) -> anyhow::Result<TreeDigest> {
    let mut found = BTreeMap::new();
    visit(folder, Path::new(""), &mut found).with_context(|| format!("cannot read {}", folder.display()))?;
    Ok(found)
}

fn visit(root: &Path, relative: &Path, found: &mut TreeDigest) -> io::Result<()> {
    for entry in fs::read_dir(root.join(relative))? {
        let entry = entry?;
        let (kind, path) = (entry.file_type()?, relative.join(entry.file_name()));
        if kind.is_dir() {
            visit(root, &path, found)?;
        } else if kind.is_symlink() {
            found.insert(path, format!("link to {}", fs::read_link(entry.path())?.display()));
        } else if kind.is_file() {
            found.insert(path, file_digest(&entry.path())?);
        } else {
            found.insert(path, "special".to_owned());
        }
    }
    Ok(())
}

/// The SHA-256 of a file.
pub(crate) fn file_digest(path: &Path) -> io::Result<String> {
    let (mut hash, mut file, mut buffer) = (Sha256::new(), File::open(path)?, vec![0; 1 << 16]);
    loop {
        match file.read(&mut buffer)? {
            0 => break,
            read => hash.update(&buffer[..read]),
        }
    }
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// The first differences between two digests, in words.
pub(crate) fn differences(before: &TreeDigest, after: &TreeDigest) -> Vec<String> {
    let gone =
        before.keys().filter(|path| !after.contains_key(*path)).map(|path| format!("{} is gone", path.display()));
    let new = after.keys().filter(|path| !before.contains_key(*path)).map(|path| format!("{} is new", path.display()));
    let changed = before.iter().filter(|(path, digest)| after.get(*path).is_some_and(|other| other != *digest));
    gone.chain(new).chain(changed.map(|(path, _)| format!("{} differs", path.display()))).take(8).collect()
}

/// Copies a folder with files and links. Pipes, devices and files over [`MAX_COPIED_BYTES`] are left out.
pub(crate) fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(to).with_context(|| format!("cannot create {}", to.display()))?;
    for entry in fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))? {
        let entry = entry?;
        let (kind, target) = (entry.file_type()?, to.join(entry.file_name()));
        if kind.is_dir() {
            copy(&entry.path(), &target)?;
        } else if kind.is_symlink() {
            std::os::unix::fs::symlink(fs::read_link(entry.path())?, target)?;
        } else if kind.is_file() && entry.metadata()?.len() < MAX_COPIED_BYTES {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_change_of_a_folder_is_seen() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::create_dir(path("wavs")).unwrap();
        fs::write(path("wavs/a.wav"), b"a").unwrap();
        std::os::unix::fs::symlink("/nonexistent", path("link")).unwrap();
        let before = digest(folder.path()).unwrap();
        let copied = tempfile::tempdir().unwrap();
        copy(folder.path(), copied.path()).unwrap();
        assert_eq!(differences(&before, &digest(copied.path()).unwrap()), Vec::<String>::new());
        fs::write(path("wavs/a.wav"), b"b").unwrap();
        fs::write(path("wavs/b.wav"), b"b").unwrap();
        fs::remove_file(path("link")).unwrap();
        let after = digest(folder.path()).unwrap();
        assert_eq!(differences(&before, &after), ["link is gone", "wavs/b.wav is new", "wavs/a.wav differs"]);
    }
}
