//! Whether a run is alive. The last record of its log says how it ended; without one, the lock of its folder says whether a
//! process still runs. The lock is only looked up in the kernel's list: taking it could keep a run from starting.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use super::run_state::RunState;
use super::tail::Tail;

/// The lock file in a run's folder. The training process locks it and writes its name into it.
const LOCK_FILE: &str = ".tandem.lock";

/// Whether a run is running, ended or killed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RunStatus {
    /// The log is empty.
    NotStarted,
    /// A process has locked the folder. `silent` is the age of the last record.
    Running { silent: Option<Duration> },
    /// It ended and wrote so.
    Ended { exit_code: u8, reason: String },
    /// No end in the log, and no process has locked the folder.
    Killed { silent: Option<Duration> },
    /// No end in the log, and no way to know: the log is not in a run's folder, or the run is on another machine.
    Unknown { process: Option<String>, silent: Option<Duration> },
}

/// The status of the run whose log is followed.
pub(super) fn status(tail: &Tail, state: &RunState) -> RunStatus {
    let silent = tail.modified().and_then(|then| SystemTime::now().duration_since(then).ok());
    status_of(state, silent, &lock_owner(tail.path()))
}

/// The process that has locked the folder of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
enum LockOwner {
    ThisMachine,
    None,
    /// `process 12 on node-7`
    OtherMachine(String),
    Unknown,
}

fn status_of(state: &RunState, silent: Option<Duration>, owner: &LockOwner) -> RunStatus {
    if let Some((exit_code, reason)) = &state.ended {
        return RunStatus::Ended { exit_code: *exit_code, reason: reason.clone() };
    }
    match owner {
        LockOwner::ThisMachine => RunStatus::Running { silent },
        _ if state.records == 0 => RunStatus::NotStarted,
        LockOwner::None => RunStatus::Killed { silent },
        LockOwner::OtherMachine(process) => RunStatus::Unknown { process: Some(process.clone()), silent },
        LockOwner::Unknown => RunStatus::Unknown { process: None, silent },
    }
}

fn lock_owner(log: &Path) -> LockOwner {
    // The process with the lock writes only this log: earlier logs have other names.
    let is_current = log.file_name().is_some_and(|name| name == tandem_checkpoint::RUN_LOG);
    let lock = log.with_file_name(LOCK_FILE);
    let (Ok(owner), Ok(file)) = (fs::read_to_string(&lock), fs::metadata(&lock)) else { return LockOwner::Unknown };
    if !is_current {
        return LockOwner::None;
    }
    let here = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let (pid, machine) = parse(&owner);
    match (machine, fs::read_to_string("/proc/locks")) {
        (Some(machine), _) if machine != here.trim() => LockOwner::OtherMachine(owner.trim().to_owned()),
        (_, Ok(locks)) if is_locked(&locks, pid, file.ino()) => LockOwner::ThisMachine,
        (_, Ok(_)) => LockOwner::None,
        (_, Err(_)) => LockOwner::Unknown,
    }
}

/// Process id and machine of `process 12 on node-7`.
fn parse(owner: &str) -> (Option<&str>, Option<&str>) {
    let mut words = owner.split_whitespace();
    let pid = words.nth(1);
    (pid, words.nth(1))
}

/// Whether `/proc/locks` lists that file as locked by that process. Compares the inode without the device: some file systems
/// report another device number there.
fn is_locked(locks: &str, pid: Option<&str>, inode: u64) -> bool {
    locks.lines().any(|line| {
        // 1: FLOCK  ADVISORY  WRITE 708 00:2d:1234 0 EOF
        let mut words = line.split_whitespace().skip(4);
        let (owner, file) = (words.next(), words.next());
        let locked = file.and_then(|file| file.rsplit(':').next()).and_then(|number| number.parse().ok());
        owner == pid && locked == Some(inode)
    })
}

#[cfg(test)]
mod tests {
    use tandem_events::RunEvent;

    use super::*;
    use crate::monitor::run_state::tests::{started, state_of};

    #[test]
    fn an_end_in_the_log_counts_before_anything_else() {
        let ended = RunEvent::RunEnded { exit_code: 130, reason: "stopped".into() };
        let (running, over) = (state_of([(0, started())]), state_of([(0, started()), (1, ended)]));
        let check = |state: &RunState, owner: LockOwner, expected: RunStatus| {
            assert_eq!(status_of(state, None, &owner), expected)
        };
        let ended = RunStatus::Ended { exit_code: 130, reason: "stopped".into() };
        check(&over, LockOwner::ThisMachine, ended.clone());
        check(&over, LockOwner::None, ended);
        check(&running, LockOwner::ThisMachine, RunStatus::Running { silent: None });
        check(&running, LockOwner::None, RunStatus::Killed { silent: None });
        check(&running, LockOwner::Unknown, RunStatus::Unknown { process: None, silent: None });
        check(&RunState::default(), LockOwner::None, RunStatus::NotStarted);
        check(&RunState::default(), LockOwner::ThisMachine, RunStatus::Running { silent: None });
    }

    #[test]
    fn the_kernels_list_is_read_by_process_and_file() {
        let locks =
            "1: FLOCK  ADVISORY  WRITE 708 00:2d:1234 0 EOF\n1: -> FLOCK  ADVISORY  WRITE 709 00:2d:1234 0 EOF\n";
        assert!(is_locked(locks, Some("708"), 1234));
        assert!(!is_locked(locks, Some("708"), 1235), "another file");
        assert!(!is_locked(locks, Some("709"), 1234), "it only waits for the lock");
        assert!(!is_locked(locks, None, 1234) && !is_locked("", Some("708"), 1234) && !is_locked("\n1:", None, 0));
    }

    #[test]
    fn a_lock_is_seen_without_being_taken() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("run.jsonl");
        assert_eq!(lock_owner(&log), LockOwner::Unknown);
        let lock = dir.path().join(LOCK_FILE);
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        fs::write(&lock, format!("process {} on {}", std::process::id(), host.trim())).unwrap();
        assert_eq!(lock_owner(&log), LockOwner::None);
        let file = fs::File::open(&lock).unwrap();
        file.lock().unwrap();
        assert_eq!(lock_owner(&log), LockOwner::ThisMachine);
        assert_eq!(lock_owner(&dir.path().join("run-1.jsonl")), LockOwner::None);
        fs::write(&lock, "process 1 on another-machine").unwrap();
        assert_eq!(lock_owner(&log), LockOwner::OtherMachine("process 1 on another-machine".into()));
    }
}
