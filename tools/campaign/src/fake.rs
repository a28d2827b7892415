//! For tests: a shell script in place of the program, which fails in a known way.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::command::{CommandOutcome, CommandSpec, Deadline};

/// A script, and a folder in which it runs.
pub(crate) struct FakeProgram {
    pub(crate) path: PathBuf,
    pub(crate) folder: TempDir,
    _scripts: TempDir,
}

impl FakeProgram {
    pub(crate) fn new(script: &str) -> FakeProgram {
        let (folder, scripts) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let path = scripts.path().join("fake");
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        FakeProgram { path, folder, _scripts: scripts }
    }

    pub(crate) fn run(&self, spec: &CommandSpec) -> CommandOutcome {
        let stop = AtomicBool::new(false);
        let deadline = Deadline { at: Instant::now() + Duration::from_secs(30), stop: &stop };
        // Another test may fork while the script is open for writing: then it cannot be executed yet.
        for _ in 0..50 {
            match spec.spawn(&self.path, self.folder.path(), deadline) {
                Ok(running) => return running.wait().unwrap(),
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        }
        panic!("the fake program cannot be started");
    }
}
