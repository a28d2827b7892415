//! One process at a time: a locked file that names its owner.

use std::fs::{File, Metadata, TryLockError, symlink_metadata};
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use tandem_files::open_lock;

use crate::disk::unusable;
use crate::error::CheckpointError;
use crate::file_names::LOCK_FILE;

/// Holding one of these means that no other process has one for the same folder. The system releases it when the process
/// ends, however it ends.
#[derive(Debug)]
pub(super) struct Lock {
    file: File,
}

impl Lock {
    /// Takes the lock of the folder `dir`. Fails at once if another process has it.
    pub(super) fn take(dir: &Path) -> Result<Lock, CheckpointError> {
        let path = dir.join(LOCK_FILE);
        let mut file = open_lock(&path).map_err(unusable("open", &path))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(CheckpointError::Locked { owner: owner(&mut file), path: dir.to_owned() });
            }
            Err(TryLockError::Error(error)) => return Err(unusable("lock", &path)(error)),
        }
        let written = file.set_len(0).and_then(|()| file.write_all(this_process().as_bytes()));
        written.map_err(unusable("write", &path))?;
        Ok(Lock { file })
    }
}

impl Lock {
    /// Whether the lock file of the folder `dir` is still the locked one: otherwise the folder was removed, renamed or
    /// replaced since.
    pub(super) fn is_in(&self, dir: &Path) -> bool {
        let identity = |found: Metadata| (found.dev(), found.ino());
        let there = symlink_metadata(dir.join(LOCK_FILE)).map(identity);
        matches!((there, self.file.metadata().map(identity)), (Ok(there), Ok(own)) if there == own)
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Closing the file is not enough: between fork and exec, a process that another thread is starting has it open,
        // too (seen in 2 of 24 test runs).
        let _ = self.file.unlock();
    }
}

/// Several machines may share a folder, so the machine is named as well as the process.
fn this_process() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let on = if host.trim().is_empty() { String::new() } else { format!(" on {}", host.trim()) };
    format!("process {}{on}", std::process::id())
}

/// What the owner wrote. It may not have written it yet.
fn owner(file: &mut File) -> String {
    const MOST_BYTES: u64 = 200;
    let mut text = String::new();
    let read = file.take(MOST_BYTES).read_to_string(&mut text);
    if read.is_ok() && text.starts_with("process ") {
        text.trim().to_owned()
    } else {
        "a process that has not written its number yet".into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lock_is_released_even_if_a_process_being_started_has_the_file_open() {
        let dir = tempfile::tempdir().unwrap();
        let lock = Lock::take(dir.path()).unwrap();
        // As a fork copies it.
        let copy = lock.file.try_clone().unwrap();
        assert!(matches!(Lock::take(dir.path()), Err(CheckpointError::Locked { .. })));
        drop(lock);
        drop(Lock::take(dir.path()).unwrap());
        drop(copy);
    }
}
