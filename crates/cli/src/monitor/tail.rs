//! A log that may still grow: whole lines as they come, and the next log when a run starts again in its folder.
//!
//! A line without its end waits for the rest. `train` renames the log of an earlier start before it makes a new one: the
//! old file is read to its end, then the new one from its beginning.

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

/// Read at once: a moment's work, so that keys are answered while a long log is read.
const CHUNK_BYTES: usize = 2 << 20;
/// A line that is longer is none of ours: the longest has a plan, or a thousand ids.
const MOST_LINE_BYTES: usize = 64 << 20;
/// The end of a log that is read in full. Before it, lines that only the last steps' figures are made of are stepped over:
/// they are most of a long log.
const RECENT_BYTES: u64 = 8 << 20;
/// Kinds that are stepped over there, as the log spells them.
const STEPPED_OVER: [&str; 3] = ["stage", "step_work", "training_set"];
/// Two logs differ in their first bytes: there stands the time of the first record, in nanoseconds.
const HEAD_BYTES: usize = 64;
/// A record's kind stands in its first bytes, behind four numbers.
const KIND_WITHIN_BYTES: usize = 160;

/// What came of a look at the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TailProgress {
    /// Nothing new.
    Idle,
    /// There was something, and there may be more.
    Read,
}

/// A log that is being followed.
pub(super) struct Tail {
    path: PathBuf,
    file: File,
    chunk: Vec<u8>,
    /// The first bytes, as they were when they were read.
    head: Vec<u8>,
    /// Bytes taken off the file.
    position: u64,
    /// The line that has no end yet.
    torn: Vec<u8>,
    /// Lines taken, good or bad.
    lines: u64,
    /// Where the part begins that is read in full.
    recent_from: u64,
}

impl Tail {
    pub(super) fn open(path: PathBuf) -> Result<Tail, Exit> {
        let file = File::open(&path).with_context(|| format!("cannot be opened: {}", path.display()))?;
        let mut tail = Tail {
            path,
            file,
            chunk: vec![0; CHUNK_BYTES],
            head: Vec::new(),
            position: 0,
            torn: Vec::new(),
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

    /// When the log was last written to, where the file system says.
    pub(super) fn modified(&self) -> Option<SystemTime> {
        self.file.metadata().and_then(|file| file.modified()).ok()
    }

    /// Reads on, a moment's work at most. Fails when the file is no log that can be read here.
    pub(super) fn advance(&mut self, state: &mut RunState) -> Result<TailProgress, Exit> {
        if self.was_begun_anew()? {
            return self.begin_again(state);
        }
        let count = self.file.read(&mut self.chunk).with_context(|| self.unreadable())?;
        if count == 0 {
            return if self.has_a_successor()? { self.begin_again(state) } else { Ok(TailProgress::Idle) };
        }
        let chunk = std::mem::take(&mut self.chunk);
        let more = HEAD_BYTES.saturating_sub(self.head.len()).min(count);
        self.head.extend_from_slice(&chunk[..more]);
        let taken = self.take(&chunk[..count], state);
        self.chunk = chunk;
        taken.map(|()| TailProgress::Read)
    }

    /// Whether somebody emptied the file and writes another log into it, as `--run-log FILE` does.
    fn was_begun_anew(&self) -> Result<bool, Exit> {
        let mut now = [0; HEAD_BYTES];
        let count = self.file.read_at(&mut now, 0).with_context(|| self.unreadable())?;
        Ok(self.length() < self.position || !now[..count].starts_with(&self.head))
    }

    /// Whether another file has this one's name, as after a resume.
    fn has_a_successor(&self) -> Result<bool, Exit> {
        // While a log is renamed there is none for a moment, and a folder may be moved away: what was read stays.
        let Ok(at_path) = fs::metadata(&self.path) else { return Ok(false) };
        let own = self.file.metadata().with_context(|| self.unreadable())?;
        let identity = |file: &Metadata| (file.dev(), file.ino());
        Ok(identity(&at_path) != identity(&own))
    }

    fn begin_again(&mut self, state: &mut RunState) -> Result<TailProgress, Exit> {
        *self = Tail::open(self.path.clone())?;
        state.begin_again();
        Ok(TailProgress::Read)
    }

    fn take(&mut self, bytes: &[u8], state: &mut RunState) -> Result<(), Exit> {
        self.position += bytes.len() as u64;
        let is_recent = self.position > self.recent_from;
        let mut rest = bytes;
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let (line, behind) = rest.split_at(end + 1);
            rest = behind;
            self.lines += 1;
            if self.torn.is_empty() {
                self.take_line(line, is_recent, state)?;
            } else {
                let mut whole = std::mem::take(&mut self.torn);
                whole.extend_from_slice(line);
                self.take_line(&whole, is_recent, state)?;
            }
        }
        self.torn.extend_from_slice(rest);
        if self.torn.len() > MOST_LINE_BYTES || !could_be_a_record(&self.torn) {
            return Err(self.no_log());
        }
        Ok(())
    }

    fn take_line(&self, line: &[u8], is_recent: bool, state: &mut RunState) -> Result<(), Exit> {
        if !is_recent && kind(line).is_some_and(|kind| STEPPED_OVER.contains(&kind)) {
            return Ok(());
        }
        match Reader::new(line).next() {
            Some(Ok(LogEntry::Known(record))) if is_recent => state.observe(&record),
            Some(Ok(LogEntry::Known(record))) => state.observe_early(&record),
            Some(Ok(LogEntry::Unknown(record))) if record.v > VERSION => {
                let path = self.path.display();
                return Err(Exit::Failed(anyhow!(
                    "the run log was written by a newer tandem: its format is {}, known here is {VERSION}; \
                     watch it with the tandem that trains: {path}",
                    record.v
                )));
            }
            Some(Ok(LogEntry::Unknown(_))) => state.observe_unknown(),
            // Among records a broken line is counted; a file that begins with one is something else.
            _ if self.lines == 1 => return Err(self.no_log()),
            _ => state.observe_broken(),
        }
        Ok(())
    }

    fn length(&self) -> u64 {
        self.file.metadata().map_or(0, |file| file.len())
    }

    fn unreadable(&self) -> String {
        format!("cannot be read: {}", self.path.display())
    }

    fn no_log(&self) -> Exit {
        Exit::Usage(format!(
            "❌ expected a run log, found a file whose line {} is no record of one: {}",
            self.lines.max(1),
            self.path.display()
        ))
    }
}

/// What a record calls itself, read off its beginning. None where it is not written as we write it.
fn kind(line: &[u8]) -> Option<&str> {
    const MARK: &[u8] = b"\"event\":\"";
    let head = &line[..line.len().min(KIND_WITHIN_BYTES)];
    let from = head.windows(MARK.len()).position(|window| window == MARK)? + MARK.len();
    let length = head[from..].iter().position(|byte| *byte == b'"')?;
    std::str::from_utf8(&head[from..from + length]).ok()
}

/// Whether a line that has no end yet begins as records do.
fn could_be_a_record(torn: &[u8]) -> bool {
    torn.first().is_none_or(|first| *first == b'{')
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

    struct Watched {
        _dir: tempfile::TempDir,
        path: PathBuf,
        tail: Tail,
        state: RunState,
    }

    impl Watched {
        fn new(text: &str) -> Watched {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("run.jsonl");
            fs::write(&path, text).unwrap();
            let tail = Tail::open(path.clone()).unwrap();
            Watched { _dir: dir, path, tail, state: RunState::default() }
        }

        fn append(&self, bytes: impl AsRef<[u8]>) {
            File::options().append(true).open(&self.path).unwrap().write_all(bytes.as_ref()).unwrap();
        }

        /// Reads all there is; the last step and the records seen.
        #[track_caller]
        fn check(&mut self, step: u64, records: u64) {
            while self.tail.advance(&mut self.state).unwrap() == TailProgress::Read {}
            assert_eq!((self.state.step, self.state.records), (step, records));
        }
    }

    #[test]
    fn a_torn_line_waits_for_the_rest_wherever_it_is_cut() {
        let next = line(2, RunEvent::Note { text: "ü – ✅".into() }) + &step(3);
        for cut in 0..next.len() {
            let mut watched = Watched::new(&step(1));
            watched.check(1, 1);
            watched.append(&next.as_bytes()[..cut]);
            let whole = next.as_bytes()[..cut].iter().filter(|byte| **byte == b'\n').count() as u64;
            watched.check(1, 1 + whole);
            watched.append(&next.as_bytes()[cut..]);
            watched.check(3, 3);
        }
    }

    #[test]
    fn the_log_of_the_next_start_is_followed_and_the_last_one_read_to_its_end() {
        let mut watched = Watched::new(&step(1));
        watched.check(1, 1);
        watched.append(step(2));
        fs::rename(&watched.path, watched.path.with_file_name("run-1.jsonl")).unwrap();
        watched.check(2, 2);
        fs::write(&watched.path, "").unwrap();
        watched.check(0, 0);
        watched.append(step(7));
        watched.check(7, 1);
    }

    #[test]
    fn a_log_that_is_begun_anew_is_read_anew() {
        let mut watched = Watched::new(&(step(1) + &step(2)));
        watched.check(2, 2);
        fs::write(&watched.path, "").unwrap();
        watched.check(0, 0);
        watched.append(step(1));
        watched.check(1, 1);
    }

    #[test]
    fn a_log_that_is_begun_anew_is_read_anew_however_long_it_is_by_then() {
        let mut watched = Watched::new(&(step(1) + &step(2) + &step(3)));
        watched.check(3, 3);
        let long = line(4, RunEvent::Note { text: "long ".repeat(200) });
        fs::write(&watched.path, long + &step(9)).unwrap();
        watched.check(9, 2);
        // A head that is not whole yet is no other head.
        let mut watched = Watched::new(&step(1)[..9]);
        watched.check(0, 0);
        watched.append(&step(1)[9..]);
        watched.check(1, 1);
    }

    #[test]
    fn a_log_that_goes_away_leaves_what_was_read() {
        let mut watched = Watched::new(&step(1));
        fs::remove_file(&watched.path).unwrap();
        watched.check(1, 1);
    }

    #[track_caller]
    fn refused(text: &str, code: u8, part: &str) {
        let mut watched = Watched::new(text);
        let exit = loop {
            match watched.tail.advance(&mut watched.state) {
                Ok(TailProgress::Read) => {}
                Ok(TailProgress::Idle) => panic!("{text:?} was read"),
                Err(exit) => break exit,
            }
        };
        assert_eq!(exit.code(), code);
        assert!(format!("{exit:?}").contains(part), "{exit:?}");
    }

    #[test]
    fn what_is_no_log_of_ours_is_refused() {
        refused("no json\n", 2, "line 1 is no record");
        refused("no json", 2, "line 1 is no record");
        refused("{\"a\":1}\n", 2, "line 1 is no record");
        refused("\n", 2, "line 1 is no record");
        let newer = r#"{"v":2,"seq":0,"t_ns":5,"dropped":0,"event":"run_started","command":[]}"#;
        refused(&format!("{newer}\n"), 1, "its format is 2, known here is 1");
    }

    #[test]
    fn broken_and_unknown_lines_among_records_are_counted_and_stepped_over() {
        let unknown = r#"{"v":1,"seq":1,"t_ns":5,"dropped":0,"event":"weather"}"#;
        let mut watched = Watched::new(&format!("{}{unknown}\nhalf a li\n{}", step(1), step(2)));
        watched.check(2, 2);
        assert_eq!((watched.state.unknown, watched.state.broken), (1, 1));
    }

    #[test]
    fn kinds_are_read_off_the_beginning() {
        assert_eq!(kind(step(1).as_bytes()), Some("step"));
        assert_eq!(kind(b"{\"v\":1}"), None);
        assert_eq!(kind(b"{\"event\":\"torn"), None);
    }

    #[test]
    fn of_a_long_log_only_the_end_is_read_in_full() {
        let stage =
            |batch| RunEvent::Stage { stage: "load".into(), batch, ns: 1, busy_ns: 1, wait_ns: 0, spans: Vec::new() };
        let text: String = (0..90_000).map(|batch| line(batch, stage(batch)) + &step(batch + 1)).collect();
        assert!(text.len() as u64 > RECENT_BYTES + 2 * CHUNK_BYTES as u64);
        let mut watched = Watched::new(&text);
        while watched.tail.advance(&mut watched.state).unwrap() == TailProgress::Read {}
        let steps = 90_000;
        assert_eq!(watched.state.step, steps);
        let stages = watched.state.records - steps;
        assert!(stages > 30_000 && stages < 60_000, "{stages} of {steps}");
    }
}
