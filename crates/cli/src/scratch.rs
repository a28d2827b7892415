//! A temporary folder, removed when the command ends.
//!
//! Ctrl-C ends a command at once and leaves its folder behind; a GPU benchmark leaves half a gigabyte in memory
//! (`/dev/shm`). So each folder has a lock that its process holds, and creating a folder removes those whose lock is free.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use tandem_files::{is_private_folder, open_private};
use tempfile::TempDir;

use crate::exit::Exit;

const PREFIX: &str = "tandem-scratch-";
const LOCK: &str = "owned";

/// Holding one of these means that the folder exists and stays. Dropping it removes the folder.
pub(crate) struct Scratch {
    /// The part of the folder to write to; the lock is beside it.
    files: PathBuf,
    _folder: TempDir,
    _lock: File,
}

impl Scratch {
    /// Creates a folder in the system's temporary directory.
    pub(crate) fn new() -> Result<Scratch, Exit> {
        Ok(Scratch::new_in(&std::env::temp_dir()).context("cannot create a temporary folder")?)
    }

    /// Creates a folder in `parent`, after removing the abandoned ones there.
    pub(crate) fn new_in(parent: &Path) -> io::Result<Scratch> {
        remove_abandoned(parent);
        let folder = tempfile::Builder::new().prefix(PREFIX).tempdir_in(parent)?;
        // The lock file gets its name after it is locked: no other process can see it unlocked.
        let unnamed = folder.path().join("new");
        let lock = File::create(&unnamed)?;
        lock.lock()?;
        fs::rename(unnamed, folder.path().join(LOCK))?;
        let files = folder.path().join("files");
        fs::create_dir(&files)?;
        Ok(Scratch { files, _folder: folder, _lock: lock })
    }

    /// The folder to write to, empty at first.
    pub(crate) fn path(&self) -> &Path {
        &self.files
    }
}

/// Best effort: a folder that cannot be removed only costs space.
fn remove_abandoned(parent: &Path) {
    for folder in fs::read_dir(parent).into_iter().flatten().flatten() {
        let is_named = folder.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX));
        // In a shared temporary folder anybody can make one of that name.
        let is_ours = is_named && is_private_folder(folder.path());
        let lock = if is_ours { open_private(folder.path().join(LOCK)).ok() } else { None };
        if lock.is_some_and(|lock| lock.try_lock().is_ok()) {
            let _ = fs::remove_dir_all(folder.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use tandem_files::create_private_folder;

    use super::*;

    #[test]
    fn an_abandoned_folder_is_removed_by_the_next_command_and_nothing_else_is() {
        let parent = tempfile::tempdir().unwrap();
        let make = |name: &str, file: &str| {
            let folder = parent.path().join(name);
            create_private_folder(&folder).unwrap();
            fs::write(folder.join(file), "").unwrap();
            folder
        };
        let running = Scratch::new_in(parent.path()).unwrap();
        let abandoned = make("tandem-scratch-left", LOCK);
        let others = [make("elsewhere", LOCK), make("tandem-scratch-mine", "notes.txt")];
        // Somebody else's, made to look like ours: its lock never opens.
        let foreign = make("tandem-scratch-x", "notes.txt");
        fs::set_permissions(&foreign, fs::Permissions::from_mode(0o777)).unwrap();
        let fifo = std::process::Command::new("mkfifo").arg(foreign.join(LOCK)).status().unwrap();
        assert!(fifo.success());
        let next = Scratch::new_in(parent.path()).unwrap();
        assert!(foreign.exists());
        assert!(!abandoned.exists() && running.path().exists() && next.path().exists());
        assert!(others.iter().all(|folder| folder.exists()));
        let own = next.path().to_owned();
        drop(next);
        assert!(!own.exists());
    }
}
