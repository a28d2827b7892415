//! Reading a run log back: of this version or a newer one, of a run that ended or was killed.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use tandem_events::{Record, RunEvent, VERSION};

/// A log, or a line of it, could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file could not be opened.
    #[error("the run log could not be opened ({source}): {}", path.display())]
    Open {
        /// Where it should be.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },

    /// The file stopped giving bytes. Nothing follows.
    #[error("line {line} of the run log could not be read: {source}")]
    Io {
        /// The line, from 1.
        line: u64,
        /// What the system said.
        source: io::Error,
    },

    /// A line is not a record of a run log. The next one may well be.
    #[error("line {line} of the run log is not a record: {source}")]
    Malformed {
        /// The line, from 1.
        line: u64,
        /// What is wrong with it.
        source: serde_json::Error,
    },
}

/// One line of a run log.
#[derive(Clone, Debug, PartialEq)]
pub enum LogEntry {
    /// A record this version understands.
    Known(Record),
    /// A record of a newer version. To be stepped over, or shown as what it is.
    Unknown(UnknownRecord),
}

/// The part of a newer version's record that every version has.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct UnknownRecord {
    /// The version of the vocabulary it was written in.
    pub v: u32,
    /// Its place in the log.
    pub seq: u64,
    /// When it was emitted, since the log was opened.
    pub t_ns: u64,
    /// How many events had been lost when it was written.
    pub dropped: u64,
    /// What it calls itself.
    #[serde(rename = "event")]
    pub kind: String,
}

/// Opens the run log at `path` and yields its lines one by one.
///
/// Records of a newer version come as [`LogEntry::Unknown`]. A line that is no record is an error that does not end the
/// reading. A last line that was cut off, as a killed run leaves it, ends the reading and is no error;
/// [`Reader::torn_bytes`] tells of it.
pub fn read(path: impl AsRef<Path>) -> Result<Reader<BufReader<File>>, ReadError> {
    let path = path.as_ref();
    let file = File::open(path).map_err(|source| ReadError::Open { path: path.to_owned(), source })?;
    Ok(Reader::new(BufReader::new(file)))
}

/// The lines of a run log, from [`read`] or from any other source of bytes.
#[derive(Debug)]
pub struct Reader<R> {
    input: R,
    buffer: Vec<u8>,
    line: u64,
    torn_bytes: usize,
    ended: bool,
}

impl<R: BufRead> Reader<R> {
    /// Reads the log that `input` holds.
    pub fn new(input: R) -> Self {
        Self { input, buffer: Vec::new(), line: 0, torn_bytes: 0, ended: false }
    }

    /// The length of a cut-off last line: 0 before the end is reached, and for a log that ends as it should.
    pub fn torn_bytes(&self) -> usize {
        self.torn_bytes
    }

    fn read_line(&mut self) -> Result<Option<LogEntry>, ReadError> {
        self.buffer.clear();
        self.line += 1;
        let line = self.line;
        let bytes = self.input.read_until(b'\n', &mut self.buffer).map_err(|source| {
            self.ended = true;
            ReadError::Io { line, source }
        })?;
        if bytes == 0 {
            return Ok(None);
        }
        match parse(&self.buffer) {
            Ok(entry) => Ok(Some(entry)),
            // Only what lacks its newline can have been cut off. With the newline alone missing it is a whole record.
            Err(_) if !self.buffer.ends_with(b"\n") => {
                self.torn_bytes = bytes;
                Ok(None)
            }
            Err(source) => Err(ReadError::Malformed { line, source }),
        }
    }
}

impl<R: BufRead> Iterator for Reader<R> {
    type Item = Result<LogEntry, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let read = self.read_line().transpose();
        self.ended |= read.is_none();
        read
    }
}

fn parse(line: &[u8]) -> Result<LogEntry, serde_json::Error> {
    // The envelope first: it alone tells a record that is newer than this program from one that is broken.
    let envelope: UnknownRecord = serde_json::from_slice(line)?;
    if envelope.v > VERSION || !RunEvent::KINDS.contains(&envelope.kind.as_str()) {
        return Ok(LogEntry::Unknown(envelope));
    }
    serde_json::from_slice(line).map(LogEntry::Known)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note_line(seq: u64, text: &str) -> String {
        let event = RunEvent::Note { text: text.into() };
        let record = Record { v: VERSION, seq, t_ns: seq, dropped: 0, event };
        format!("{}\n", serde_json::to_string(&record).unwrap())
    }

    /// What a log reads as, one word per line of it, and how much of it is torn.
    fn check(log: impl AsRef<[u8]>, words: &[&str], torn_bytes: usize) {
        let mut reader = Reader::new(log.as_ref());
        let read: Vec<String> = reader
            .by_ref()
            .map(|entry| match entry {
                Ok(LogEntry::Known(record)) => format!("known {}", record.seq),
                Ok(LogEntry::Unknown(record)) => format!("unknown {} {}", record.seq, record.kind),
                Err(ReadError::Malformed { line, .. }) => format!("malformed line {line}"),
                Err(other) => panic!("{other}"),
            })
            .collect();
        assert_eq!(
            (read.iter().map(String::as_str).collect::<Vec<_>>().as_slice(), reader.torn_bytes()),
            (words, torn_bytes)
        );
    }

    #[test]
    fn an_empty_log_has_no_lines() {
        check("", &[], 0);
    }

    #[test]
    fn newer_records_are_unknown_and_broken_ones_are_errors() {
        let kind = r#"{"v":1,"seq":1,"t_ns":5,"dropped":0,"event":"slots","free":[1,2]}"#;
        let version = r#"{"v":3,"seq":2,"t_ns":5,"dropped":0,"event":"note","text":{"en":"hi"}}"#;
        let wrong_type = r#"{"v":1,"seq":3,"t_ns":5,"dropped":0,"event":"note","text":7}"#;
        let no_envelope = r#"{"text":"hi"}"#;
        let log = [kind, version, wrong_type, no_envelope, "", "no json", ""].join("\n");
        let log = format!("{}{log}{}", note_line(0, "a"), note_line(9, "z"));
        check(
            log,
            &[
                "known 0",
                "unknown 1 slots",
                "unknown 2 note",
                "malformed line 4",
                "malformed line 5",
                "malformed line 6",
                "malformed line 7",
                "known 9",
            ],
            0,
        );
    }

    #[test]
    fn wherever_a_log_is_cut_only_the_cut_line_is_lost() {
        // Two- and three-byte letters, so that the cut also falls inside a character.
        let (first, second) = (note_line(0, "plain"), note_line(1, "ü – ✅ \n \u{2028} \"quoted\" \0"));
        let log = [first.as_bytes(), second.as_bytes()].concat();
        for cut in 0..second.len() - 1 {
            check(&log[..first.len() + cut], &["known 0"], cut);
        }
        for whole in [second.len() - 1, second.len()] {
            check(&log[..first.len() + whole], &["known 0", "known 1"], 0);
        }
    }

    #[test]
    fn a_torn_line_is_forgiven_at_the_end_only() {
        let log = format!("{}\n{}", &note_line(0, "cut")[..30], note_line(1, "whole"));
        check(log, &["malformed line 1", "known 1"], 0);
    }

    #[test]
    fn an_input_that_fails_ends_the_reading() {
        struct Failing;
        impl io::Read for Failing {
            fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
                Err(io::ErrorKind::UnexpectedEof.into())
            }
        }
        let mut reader = Reader::new(BufReader::new(Failing));
        assert!(matches!(reader.next(), Some(Err(ReadError::Io { line: 1, .. }))));
        assert!(reader.next().is_none());
    }
}
