//! One process at a time: a file that is locked, and says who holds it.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Write};
use std::path::Path;

use crate::disk::unusable;
use crate::error::TrainError;

/// Hidden, because nobody but us has use for it; never removed, because a removed file can still be locked.
const LOCK_FILE: &str = ".tandem.lock";

/// Holding one of these means that no other process has one for the same folder. The system lets go of it when the
/// process ends, however it ends.
#[derive(Debug)]
pub(super) struct Lock {
    file: File,
}

impl Lock {
    /// Takes the lock of the folder `dir`, at once or not at all.
    pub(super) fn take(dir: &Path) -> Result<Lock, TrainError> {
        let path = dir.join(LOCK_FILE);
        let opened = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
        let mut file = opened.map_err(unusable("open", &path))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(TrainError::Locked { holder: holder(&mut file), path: dir.to_owned() });
            }
            Err(TryLockError::Error(error)) => return Err(unusable("lock", &path)(error)),
        }
        let said = file.set_len(0).and_then(|()| file.write_all(ourselves().as_bytes()));
        said.map_err(unusable("write", &path))?;
        Ok(Lock { file })
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // To close the file is not enough: a process that another thread is just starting has it open, too, until it
        // runs its program (seen in 2 of 24 runs of the tests).
        let _ = self.file.unlock();
    }
}

/// Process numbers mean little on folders that several machines share, so the machine is named as well.
fn ourselves() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let on = if host.trim().is_empty() { String::new() } else { format!(" on {}", host.trim()) };
    format!("process {}{on}", std::process::id())
}

/// What the holder wrote. It may not have come to it yet.
fn holder(file: &mut File) -> String {
    const MOST_BYTES: u64 = 200;
    let mut text = String::new();
    let read = file.take(MOST_BYTES).read_to_string(&mut text);
    if read.is_ok() && text.starts_with("process ") {
        text.trim().to_owned()
    } else {
        "a process that has not said its number".into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lock_goes_even_when_a_process_being_started_has_the_file_open() {
        let dir = tempfile::tempdir().unwrap();
        let lock = Lock::take(dir.path()).unwrap();
        // What a fork does with it.
        let copy = lock.file.try_clone().unwrap();
        assert!(matches!(Lock::take(dir.path()), Err(TrainError::Locked { .. })));
        drop(lock);
        drop(Lock::take(dir.path()).unwrap());
        drop(copy);
    }
}
