//! Whether a run goes on. The log's last word says how it ended; without one, the lock of its folder says whether a process
//! still has it. The lock is only looked at, in the list the kernel keeps: to try it could keep a run from starting.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use super::run_state::RunState;
use super::tail::Tail;

/// Beside the log of a folder; whoever trains there has it locked, and says in it who it is.
const LOCK_FILE: &str = ".tandem.lock";

/// How a run stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Life {
    /// The log is there and empty.
    NotBegun,
    /// A process has the folder; the last record is so old.
    Running { silent: Option<Duration> },
    /// It ended by itself.
    Ended { exit_code: u8, reason: String },
    /// No last word, and nobody has the folder.
    Killed { silent: Option<Duration> },
    /// No last word, and no way to tell: the log is in no folder of a run, or its run is on another machine.
    Unknown { whose: Option<String>, silent: Option<Duration> },
}

/// Looks for it.
pub(super) fn look(tail: &Tail, state: &RunState) -> Life {
    let silent = tail.modified().and_then(|then| SystemTime::now().duration_since(then).ok());
    judge(state, silent, &holder(tail.path()))
}

/// Who has the folder of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Holder {
    ThisMachine,
    Nobody,
    /// `process 12 on node-7`
    Elsewhere(String),
    Untold,
}

fn judge(state: &RunState, silent: Option<Duration>, holder: &Holder) -> Life {
    if let Some((exit_code, reason)) = &state.ended {
        return Life::Ended { exit_code: *exit_code, reason: reason.clone() };
    }
    match holder {
        Holder::ThisMachine => Life::Running { silent },
        _ if state.records == 0 => Life::NotBegun,
        Holder::Nobody => Life::Killed { silent },
        Holder::Elsewhere(whose) => Life::Unknown { whose: Some(whose.clone()), silent },
        Holder::Untold => Life::Unknown { whose: None, silent },
    }
}

fn holder(log: &Path) -> Holder {
    // Only this log is the one a process with the lock writes: earlier ones have other names.
    let is_current = log.file_name().is_some_and(|name| name == tandem_train::RUN_LOG);
    let lock = log.with_file_name(LOCK_FILE);
    let (Ok(said), Ok(file)) = (fs::read_to_string(&lock), fs::metadata(&lock)) else { return Holder::Untold };
    if !is_current {
        return Holder::Nobody;
    }
    let here = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let (pid, machine) = parse(&said);
    match (machine, fs::read_to_string("/proc/locks")) {
        (Some(machine), _) if machine != here.trim() => Holder::Elsewhere(said.trim().to_owned()),
        (_, Ok(locks)) if is_locked(&locks, pid, file.ino()) => Holder::ThisMachine,
        (_, Ok(_)) => Holder::Nobody,
        (_, Err(_)) => Holder::Untold,
    }
}

/// `process 12 on node-7`
fn parse(said: &str) -> (Option<&str>, Option<&str>) {
    let mut words = said.split_whitespace();
    let pid = words.nth(1);
    (pid, words.nth(1))
}

/// Whether the kernel's list has that file locked by that process. By the number of the file alone, not of its disk: some
/// file systems have another one there than they tell.
fn is_locked(locks: &str, pid: Option<&str>, inode: u64) -> bool {
    locks.lines().any(|line| {
        // 1: FLOCK  ADVISORY  WRITE 708 00:2d:1234 0 EOF
        let mut words = line.split_whitespace().skip(4);
        let (by, file) = (words.next(), words.next());
        let of = file.and_then(|file| file.rsplit(':').next()).and_then(|number| number.parse().ok());
        by == pid && of == Some(inode)
    })
}

#[cfg(test)]
mod tests {
    use tandem_events::RunEvent;

    use super::*;
    use crate::monitor::run_state::tests::{started, state_of};

    #[test]
    fn the_last_word_counts_before_anything_else() {
        let ended = RunEvent::RunEnded { exit_code: 130, reason: "stopped".into() };
        let (begun, over) = (state_of([(0, started())]), state_of([(0, started()), (1, ended)]));
        let check =
            |state: &RunState, holder: Holder, expected: Life| assert_eq!(judge(state, None, &holder), expected);
        let ended = Life::Ended { exit_code: 130, reason: "stopped".into() };
        check(&over, Holder::ThisMachine, ended.clone());
        check(&over, Holder::Nobody, ended);
        check(&begun, Holder::ThisMachine, Life::Running { silent: None });
        check(&begun, Holder::Nobody, Life::Killed { silent: None });
        check(&begun, Holder::Untold, Life::Unknown { whose: None, silent: None });
        check(&RunState::default(), Holder::Nobody, Life::NotBegun);
        check(&RunState::default(), Holder::ThisMachine, Life::Running { silent: None });
    }

    #[test]
    fn the_kernels_list_is_read_by_process_and_file() {
        let locks =
            "1: FLOCK  ADVISORY  WRITE 708 00:2d:1234 0 EOF\n1: -> FLOCK  ADVISORY  WRITE 709 00:2d:1234 0 EOF\n";
        assert!(is_locked(locks, Some("708"), 1234));
        assert!(!is_locked(locks, Some("708"), 1235), "another file");
        assert!(!is_locked(locks, Some("709"), 1234), "it only waits for it");
        assert!(!is_locked(locks, None, 1234) && !is_locked("", Some("708"), 1234) && !is_locked("\n1:", None, 0));
    }

    #[test]
    fn a_lock_is_seen_without_being_tried() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("run.jsonl");
        assert_eq!(holder(&log), Holder::Untold);
        let lock = dir.path().join(LOCK_FILE);
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        fs::write(&lock, format!("process {} on {}", std::process::id(), host.trim())).unwrap();
        assert_eq!(holder(&log), Holder::Nobody);
        let file = fs::File::open(&lock).unwrap();
        file.lock().unwrap();
        assert_eq!(holder(&log), Holder::ThisMachine);
        assert_eq!(holder(&dir.path().join("run-1.jsonl")), Holder::Nobody);
        fs::write(&lock, "process 1 on another-machine").unwrap();
        assert_eq!(holder(&log), Holder::Elsewhere("process 1 on another-machine".into()));
    }
}
