//! Folders and locks of this user, in places where others may write.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;

use crate::regular::check_regular;

/// Access for this user only.
const PRIVATE: u32 = 0o700;
/// Bits that let others in.
const OTHERS: u32 = 0o077;

/// Whether `path` is a folder of this user that nobody else can enter, and not a link to one.
pub fn is_private_folder(path: impl AsRef<Path>) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.is_dir() && is_own(&found) && found.mode() & OTHERS == 0)
}

/// Whether `path` is a folder of this user, or a link to one, that nobody else can write to.
pub fn is_protected(path: impl AsRef<Path>) -> bool {
    fs::metadata(path).is_ok_and(|found| found.is_dir() && is_own(&found) && found.mode() & 0o022 == 0)
}

/// Creates the folder at `path`, for this user only, with its missing parents. Succeeds if it is already there, private
/// or not: [`is_private_folder`] tells.
pub fn create_private_folder(path: impl AsRef<Path>) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(PRIVATE).create(path)
}

/// Opens or creates the lock file at `path`. Follows no link, waits for no FIFO, and changes no byte of what is there.
pub fn open_lock(path: impl AsRef<Path>) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(flags.bits() as i32)
        .open(path)?;
    check_regular(&file)?;
    Ok(file)
}

/// Opens the file at `path` for reading if it is a regular file of this user that nobody else can write, and no link.
pub fn open_private(path: impl AsRef<Path>) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(path)?;
    check_regular(&file)?;
    let found = file.metadata()?;
    if !is_own(&found) || found.mode() & 0o022 != 0 {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "another user can change it"));
    }
    Ok(file)
}

fn is_own(found: &fs::Metadata) -> bool {
    found.uid() == rustix::process::geteuid().as_raw()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::process::Command;

    use super::*;

    #[test]
    fn a_lock_follows_no_link_and_truncates_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let [file, link, fifo] = ["file", "link", "fifo"].map(|name| dir.path().join(name));
        fs::write(&file, "precious").unwrap();
        symlink(&file, &link).unwrap();
        assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        assert!(open_lock(&link).is_err() && open_lock(&fifo).is_err() && open_private(&link).is_err());
        drop(open_lock(&file).unwrap());
        assert_eq!(fs::read_to_string(&file).unwrap(), "precious");
        let new = dir.path().join("new");
        drop(open_lock(&new).unwrap());
        assert_eq!(fs::metadata(&new).unwrap().mode() & 0o777, 0o600);
    }

    #[test]
    fn what_others_can_change_is_not_private() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("a/b");
        create_private_folder(&folder).unwrap();
        assert!(is_private_folder(&folder));
        symlink(&folder, dir.path().join("link")).unwrap();
        assert!(!is_private_folder(dir.path().join("link")));
        let file = folder.join("file");
        fs::write(&file, "").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
        open_private(&file).unwrap();
        for mode in [0o664, 0o646] {
            fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
            assert!(open_private(&file).is_err(), "{mode:o}");
        }
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
        assert!(!is_private_folder(&folder));
        for (mode, is_safe) in [(0o755, true), (0o700, true), (0o775, false), (0o757, false)] {
            fs::set_permissions(&folder, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(is_protected(&folder), is_safe, "{mode:o}");
        }
    }
}
