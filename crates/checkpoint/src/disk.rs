//! Synced writes, and free disk space.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use crate::error::CheckpointError;

/// Bytes the file system of `path`, or of its nearest existing ancestor, has free for this user. `None` if the file
/// system does not report it.
pub fn free_bytes(path: &Path) -> Option<u64> {
    let absolute = std::path::absolute(path).ok()?;
    let existing = absolute.ancestors().find(|path| path.exists())?;
    let stat = rustix::fs::statvfs(existing).ok()?;
    // Some network and overlay file systems report zeros.
    (stat.f_blocks > 0).then(|| stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// Writes `bytes` to a new file and waits until they are on the disk.
pub(crate) fn write_synced(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Waits until the names in a folder are on the disk. A rename is durable only after this.
pub(crate) fn sync_folder(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// Creates the folder at `path` with its missing parents. What is new is on the disk when this returns: a folder is
/// durable only once the one above it is.
pub(crate) fn create_synced(path: &Path) -> io::Result<()> {
    let absolute = std::path::absolute(path)?;
    let missing = absolute.ancestors().take_while(|folder| !folder.exists()).count();
    fs::create_dir_all(path)?;
    absolute.ancestors().skip(1).take(missing).try_for_each(sync_folder)
}

/// Replaces the file at `path` by `bytes`, atomically. `temporary` is a path in the same folder.
pub(crate) fn replace(path: &Path, temporary: &Path, bytes: &[u8]) -> io::Result<()> {
    write_synced(temporary, bytes)?;
    fs::rename(temporary, path)?;
    path.parent().map_or(Ok(()), sync_folder)
}

/// Whether an error means that the disk, a quota or a file size limit is exhausted.
pub(crate) fn is_no_room(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge)
}

/// The error for a failed attempt to do `what` with `path`.
pub(crate) fn unusable(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> CheckpointError {
    move |source| CheckpointError::Unusable { what, source, path: path.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_space_is_known_for_folders_that_do_not_exist_yet() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(free_bytes(&dir.path().join("a/b/c")).is_some(), free_bytes(dir.path()).is_some());
        assert_eq!(free_bytes(Path::new("/proc/self")), None, "a file system without blocks");
    }

    #[test]
    fn a_file_is_replaced_completely_or_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        let [path, temporary] = ["file", ".tmp-file"].map(|name| dir.path().join(name));
        replace(&path, &temporary, b"first").unwrap();
        fs::create_dir(&temporary).unwrap();
        assert!(replace(&path, &temporary, b"second").is_err());
        assert_eq!(fs::read(&path).unwrap(), b"first");
        fs::remove_dir(&temporary).unwrap();
        replace(&path, &temporary, b"third").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"third");
        assert!(!temporary.exists());
    }

    #[test]
    fn system_errors_that_mean_no_room() {
        let check = |errno, expected| assert_eq!(is_no_room(&io::Error::from_raw_os_error(errno)), expected, "{errno}");
        check(28, true); // ENOSPC
        check(122, true); // EDQUOT
        check(27, true); // EFBIG
        check(13, false); // EACCES
        check(5, false); // EIO
    }
}
