//! A folder for what a command writes and nobody keeps: gone when the command is over.
//!
//! Ctrl-C ends a command on the spot, and its folder stays: a benchmark's beside a card is half a gigabyte of memory. So
//! each folder has a lock that ends with its process, and whoever makes a folder removes those whose owner is gone.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use tempfile::TempDir;

use crate::exit::Exit;

const PREFIX: &str = "tandem-scratch-";
const LOCK: &str = "owned";

/// Holding one of these means that the folder is there and nobody removes it. Dropping it removes the folder.
pub(crate) struct Scratch {
    /// Where its owner writes, beside the lock.
    files: PathBuf,
    _folder: TempDir,
    _lock: File,
}

impl Scratch {
    /// A new folder where the system keeps such.
    pub(crate) fn new() -> Result<Scratch, Exit> {
        Ok(Scratch::new_in(&std::env::temp_dir()).context("no temporary folder can be made")?)
    }

    /// A new folder in `parent`, after the ones that were left there are gone.
    pub(crate) fn new_in(parent: &Path) -> io::Result<Scratch> {
        remove_left(parent);
        let folder = tempfile::Builder::new().prefix(PREFIX).tempdir_in(parent)?;
        // Locked before it has its name: nobody finds the folder without an owner.
        let unnamed = folder.path().join("new");
        let lock = File::create(&unnamed)?;
        lock.lock()?;
        fs::rename(unnamed, folder.path().join(LOCK))?;
        let files = folder.path().join("files");
        fs::create_dir(&files)?;
        Ok(Scratch { files, _folder: folder, _lock: lock })
    }

    /// The folder, empty at first.
    pub(crate) fn path(&self) -> &Path {
        &self.files
    }
}

/// Room is all that is at stake: what cannot be removed stays.
fn remove_left(parent: &Path) {
    for folder in fs::read_dir(parent).into_iter().flatten().flatten() {
        let is_ours = folder.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX));
        let lock = if is_ours { File::open(folder.path().join(LOCK)).ok() } else { None };
        if lock.is_some_and(|lock| lock.try_lock().is_ok()) {
            let _ = fs::remove_dir_all(folder.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_command_left_is_removed_by_the_next_and_nothing_else() {
        let parent = tempfile::tempdir().unwrap();
        let make = |name: &str, file: &str| {
            let folder = parent.path().join(name);
            fs::create_dir(&folder).unwrap();
            fs::write(folder.join(file), "").unwrap();
            folder
        };
        let running = Scratch::new_in(parent.path()).unwrap();
        let left = make("tandem-scratch-left", LOCK);
        let others = [make("elsewhere", LOCK), make("tandem-scratch-mine", "notes.txt")];
        let next = Scratch::new_in(parent.path()).unwrap();
        assert!(!left.exists() && running.path().exists() && next.path().exists());
        assert!(others.iter().all(|folder| folder.exists()));
        let own = next.path().to_owned();
        drop(next);
        assert!(!own.exists());
    }
}
