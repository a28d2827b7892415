//! Follows a growing log: reads complete lines, and switches to the new log when a run restarts in its folder.
//!
//! An incomplete line waits for its rest. `train` renames the log of the earlier start before it creates a new one: the old
//! file is read to its end, then the new one from its start.

use std::fs::{self, File, Metadata};
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context as _, anyhow};
use tandem_events::VERSION;
use tandem_runlog::{LogEntry, Reader};

use crate::exit::Exit;

use super::run_state::RunState;

/// Read per call: small enough that keys are answered while a long log is read.
const CHUNK_BYTES: usize = 2 << 20;
/// A longer line is not a record: the longest has a plan, or a thousand ids.
const MAX_LINE_BYTES: usize = 64 << 20;
/// This much of the end of a log is parsed in full. Before it, records that only matter for the last steps are skipped: they
/// are most of a long log.
const RECENT_BYTES: u64 = 8 << 20;
/// The event names that are skipped there.
const SKIPPED_EVENTS: [&str; 4] = ["stage", "step_work", "rank_waits", "training_set"];
/// Two logs differ in their first bytes, which have the time of the first record in nanoseconds.
const HEAD_BYTES: usize = 64;
/// The event name of a record is in its first bytes, after four numbers.
const EVENT_WITHIN_BYTES: usize = 160;

/// The result of reading on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TailProgress {
    /// No new bytes.
    Idle,
    /// Read some bytes; there may be more.
    Read,
}

/// A followed log.
pub(super) struct Tail {
    path: PathBuf,
    file: File,
    chunk: Vec<u8>,
    /// The first bytes, when they were read.
    head: Vec<u8>,
    /// Bytes read.
    position: u64,
    /// The start of an incomplete line.
    partial: Vec<u8>,
    /// Lines read, valid or not.
    lines: u64,
    /// From this offset on, every record is parsed.
    recent_from: u64,
}

impl Tail {
    pub(super) fn open(path: PathBuf) -> Result<Tail, Exit> {
        let file = File::open(&path).with_context(|| format!("cannot open {}", path.display()))?;
        let mut tail = Tail {
            path,
            file,
            chunk: vec![0; CHUNK_BYTES],
            head: Vec::new(),
            position: 0,
            partial: Vec::new(),
            lines: 0,
            recent_from: 0,
        };
        tail.recent_from = tail.length().saturating_sub(RECENT_BYTES);
        Ok(tail)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// How much of the log is read, from 0 to 1.
    pub(super) fn share_read(&self) -> f64 {
        self.position as f64 / (self.length().max(self.position) as f64).max(1.0)
    }

    /// When the log was last written, if the file system says so.
    pub(super) fn modified(&self) -> Option<SystemTime> {
        self.file.metadata().and_then(|file| file.modified()).ok()
    }

    /// Reads the next chunk. Fails when the file is not a log of this version.
    pub(super) fn advance(&mut self, state: &mut RunState) -> Result<TailProgress, Exit> {
        if self.was_overwritten()? {
            return self.restart(state);
        }
        let count = self.file.read(&mut self.chunk).with_context(|| self.unreadable())?;
        if count == 0 {
            return if self.was_replaced()? { self.restart(state) } else { Ok(TailProgress::Idle) };
        }
        let chunk = std::mem::take(&mut self.chunk);
        let more = HEAD_BYTES.saturating_sub(self.head.len()).min(count);
        self.head.extend_from_slice(&chunk[..more]);
        let taken = self.take(&chunk[..count], state);
        self.chunk = chunk;
        taken.map(|()| TailProgress::Read)
    }

    /// Whether another log was written into the same file, as `--run-log FILE` does.
    fn was_overwritten(&self) -> Result<bool, Exit> {
        let mut now = [0; HEAD_BYTES];
        let count = self.file.read_at(&mut now, 0).with_context(|| self.unreadable())?;
        Ok(self.length() < self.position || !now[..count].starts_with(&self.head))
    }

    /// Whether the path now has another file, as after a resume.
    fn was_replaced(&self) -> Result<bool, Exit> {
        // The file may be missing while a log is renamed or its folder moved: keep what was read.
        let Ok(at_path) = fs::metadata(&self.path) else { return Ok(false) };
        let own = self.file.metadata().with_context(|| self.unreadable())?;
        let identity = |file: &Metadata| (file.dev(), file.ino());
        Ok(identity(&at_path) != identity(&own))
    }

    fn restart(&mut self, state: &mut RunState) -> Result<TailProgress, Exit> {
        *self = Tail::open(self.path.clone())?;
        state.restart();
        Ok(TailProgress::Read)
    }

    fn take(&mut self, bytes: &[u8], state: &mut RunState) -> Result<(), Exit> {
        self.position += bytes.len() as u64;
        let is_recent = self.position > self.recent_from;
        let mut rest = bytes;
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let (line, after) = rest.split_at(end + 1);
            rest = after;
            self.lines += 1;
            if self.partial.is_empty() {
                self.take_line(line, is_recent, state)?;
            } else {
                let mut complete = std::mem::take(&mut self.partial);
                complete.extend_from_slice(line);
                self.take_line(&complete, is_recent, state)?;
            }
        }
        self.partial.extend_from_slice(rest);
        if self.partial.len() > MAX_LINE_BYTES || !could_be_a_record(&self.partial) {
            return Err(self.not_a_log());
        }
        Ok(())
    }

    fn take_line(&self, line: &[u8], is_recent: bool, state: &mut RunState) -> Result<(), Exit> {
        if !is_recent && event_name(line).is_some_and(|name| SKIPPED_EVENTS.contains(&name)) {
            return Ok(());
        }
        match Reader::new(line).next() {
            Some(Ok(LogEntry::Known(record))) if is_recent => state.observe(&record),
            Some(Ok(LogEntry::Known(record))) => state.observe_early(&record),
            Some(Ok(LogEntry::Unknown(record))) if record.v > VERSION => {
                let path = self.path.display();
                return Err(Exit::Failed(anyhow!(
                    "the run log was written by a newer tandem: its format is {}, this one reads {VERSION}; \
                     use the tandem that runs the training: {path}",
                    record.v
                )));
            }
            Some(Ok(LogEntry::Unknown(_))) => state.observe_unknown(),
            // An invalid line among records is counted; a file that starts with one is not a log.
            _ if self.lines == 1 => return Err(self.not_a_log()),
            _ => state.observe_broken(),
        }
        Ok(())
    }

    fn length(&self) -> u64 {
        self.file.metadata().map_or(0, |file| file.len())
    }

    fn unreadable(&self) -> String {
        format!("cannot read {}", self.path.display())
    }

    fn not_a_log(&self) -> Exit {
        Exit::Usage(format!("❌ not a run log: line {} is not a record: {}", self.lines.max(1), self.path.display()))
    }
}

/// The event name of a record, from its first bytes. None if the line is not formatted as `tandem` does.
fn event_name(line: &[u8]) -> Option<&str> {
    const MARK: &[u8] = b"\"event\":\"";
    let head = &line[..line.len().min(EVENT_WITHIN_BYTES)];
    let from = head.windows(MARK.len()).position(|window| window == MARK)? + MARK.len();
    let length = head[from..].iter().position(|byte| *byte == b'"')?;
    std::str::from_utf8(&head[from..from + length]).ok()
}

/// Whether an incomplete line starts like a record.
fn could_be_a_record(partial: &[u8]) -> bool {
    partial.first().is_none_or(|first| *first == b'{')
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use tandem_events::{Record, RunEvent};

    use super::*;

    fn line(seq: u64, event: RunEvent) -> String {
        let record = Record { v: VERSION, seq, t_ns: seq, dropped: 0, event };
        format!("{}\n", serde_json::to_string(&record).unwrap())
    }

    fn step(step: u64) -> String {
        line(step, RunEvent::Step { step, wall_ns: 1_000_000, wait_ns: 0 })
    }

    struct FollowedLog {
        _dir: tempfile::TempDir,
        path: PathBuf,
        tail: Tail,
        state: RunState,
    }

    impl FollowedLog {
        fn new(text: &str) -> FollowedLog {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("run.jsonl");
            fs::write(&path, text).unwrap();
            let tail = Tail::open(path.clone()).unwrap();
            FollowedLog { _dir: dir, path, tail, state: RunState::default() }
        }

        fn append(&self, bytes: impl AsRef<[u8]>) {
            File::options().append(true).open(&self.path).unwrap().write_all(bytes.as_ref()).unwrap();
        }

        /// Reads to the end, then compares the last step and the number of records.
        #[track_caller]
        fn check(&mut self, step: u64, records: u64) {
            while self.tail.advance(&mut self.state).unwrap() == TailProgress::Read {}
            assert_eq!((self.state.step, self.state.records), (step, records));
        }
    }

    #[test]
    fn an_incomplete_line_waits_for_its_rest_wherever_it_is_cut() {
        let next = line(2, RunEvent::Note { text: "ü – ✅".into() }) + &step(3);
        for cut in 0..next.len() {
            let mut followed = FollowedLog::new(&step(1));
            followed.check(1, 1);
            followed.append(&next.as_bytes()[..cut]);
            let complete = next.as_bytes()[..cut].iter().filter(|byte| **byte == b'\n').count() as u64;
            followed.check(1, 1 + complete);
            followed.append(&next.as_bytes()[cut..]);
            followed.check(3, 3);
        }
    }

    #[test]
    fn the_log_of_a_restart_is_followed_after_the_earlier_one_is_read_to_its_end() {
        let mut followed = FollowedLog::new(&step(1));
        followed.check(1, 1);
        followed.append(step(2));
        fs::rename(&followed.path, followed.path.with_file_name("run-1.jsonl")).unwrap();
        followed.check(2, 2);
        fs::write(&followed.path, "").unwrap();
        followed.check(0, 0);
        followed.append(step(7));
        followed.check(7, 1);
    }

    #[test]
    fn an_overwritten_log_is_read_from_its_start() {
        let mut followed = FollowedLog::new(&(step(1) + &step(2)));
        followed.check(2, 2);
        fs::write(&followed.path, "").unwrap();
        followed.check(0, 0);
        followed.append(step(1));
        followed.check(1, 1);
    }

    #[test]
    fn an_overwritten_log_is_read_from_its_start_even_if_it_is_longer() {
        let mut followed = FollowedLog::new(&(step(1) + &step(2) + &step(3)));
        followed.check(3, 3);
        let long = line(4, RunEvent::Note { text: "long ".repeat(200) });
        fs::write(&followed.path, long + &step(9)).unwrap();
        followed.check(9, 2);
        // An incomplete head is not another head.
        let mut followed = FollowedLog::new(&step(1)[..9]);
        followed.check(0, 0);
        followed.append(&step(1)[9..]);
        followed.check(1, 1);
    }

    #[test]
    fn a_removed_log_keeps_what_was_read() {
        let mut followed = FollowedLog::new(&step(1));
        fs::remove_file(&followed.path).unwrap();
        followed.check(1, 1);
    }

    #[track_caller]
    fn refused(text: &str, code: u8, part: &str) {
        let mut followed = FollowedLog::new(text);
        let exit = loop {
            match followed.tail.advance(&mut followed.state) {
                Ok(TailProgress::Read) => {}
                Ok(TailProgress::Idle) => panic!("{text:?} was read"),
                Err(exit) => break exit,
            }
        };
        assert_eq!(exit.code(), code);
        assert!(format!("{exit:?}").contains(part), "{exit:?}");
    }

    #[test]
    fn files_that_are_not_logs_are_refused() {
        refused("no json\n", 2, "line 1 is not a record");
        refused("no json", 2, "line 1 is not a record");
        refused("{\"a\":1}\n", 2, "line 1 is not a record");
        refused("\n", 2, "line 1 is not a record");
        let newer = r#"{"v":3,"seq":0,"t_ns":5,"dropped":0,"event":"run_started","command":[]}"#;
        refused(&format!("{newer}\n"), 1, "its format is 3, this one reads 2");
    }

    #[test]
    fn invalid_and_unknown_lines_among_records_are_counted_and_skipped() {
        let unknown = r#"{"v":1,"seq":1,"t_ns":5,"dropped":0,"event":"weather"}"#;
        let mut followed = FollowedLog::new(&format!("{}{unknown}\nhalf a li\n{}", step(1), step(2)));
        followed.check(2, 2);
        assert_eq!((followed.state.unknown, followed.state.broken), (1, 1));
    }

    #[test]
    fn event_names_are_read_from_the_first_bytes() {
        assert_eq!(event_name(step(1).as_bytes()), Some("step"));
        assert_eq!(event_name(b"{\"v\":1}"), None);
        assert_eq!(event_name(b"{\"event\":\"torn"), None);
    }

    #[test]
    fn only_the_end_of_a_long_log_is_parsed_in_full() {
        let stage =
            |batch| RunEvent::Stage { stage: "load".into(), batch, ns: 1, busy_ns: 1, wait_ns: 0, spans: Vec::new() };
        let text: String = (0..90_000).map(|batch| line(batch, stage(batch)) + &step(batch + 1)).collect();
        assert!(text.len() as u64 > RECENT_BYTES + 2 * CHUNK_BYTES as u64);
        let mut followed = FollowedLog::new(&text);
        while followed.tail.advance(&mut followed.state).unwrap() == TailProgress::Read {}
        let steps = 90_000;
        assert_eq!(followed.state.step, steps);
        let stages = followed.state.records - steps;
        assert!(stages > 30_000 && stages < 60_000, "{stages} of {steps}");
    }
}
