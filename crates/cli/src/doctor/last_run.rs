//! The last run in the folder: its state, and the last lines of its log without private fields.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::Path;

use serde_json::Value;
use tandem_checkpoint::RUN_LOG;

use crate::exit::Exit;
use crate::monitor;

use super::report::DoctorReport;

const LINES: usize = 30;
/// The last lines are searched in this much of the end.
const END_BYTES: u64 = 256 << 10;
/// Fields that are long or that name recordings.
const REMOVED_FIELDS: [&str; 3] = ["plan_json", "ids", "path"];

/// Examines the run in `folder`.
pub(super) fn examine(folder: &Path, report: &mut DoctorReport<'_>) -> Result<(), Exit> {
    let log = folder.join(RUN_LOG);
    if !log.is_file() {
        return report.note(&format!("none in {}", folder.display()));
    }
    match monitor::snapshot_of(&log) {
        Ok(snapshot) => {
            report.note(&format!("{}: {}", snapshot.status, log.display()))?;
            report.text(&snapshot.text);
        }
        Err(exit) => report.warning(&super::message_of(&exit), "check the file: it should be a run log")?,
    }
    match last_lines(&log) {
        Ok(lines) => {
            report.text("\nThe last lines of its log:");
            lines.iter().for_each(|line| report.text(line));
            Ok(())
        }
        Err(error) => {
            report.warning(&format!("cannot read its log ({error}): {}", log.display()), "check its permissions")
        }
    }
}

fn last_lines(log: &Path) -> std::io::Result<Vec<String>> {
    let mut file = File::open(log)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(END_BYTES)))?;
    let mut end = Vec::new();
    file.take(END_BYTES).read_to_end(&mut end)?;
    let end = String::from_utf8_lossy(&end);
    let records: Vec<String> = end.lines().filter_map(without_private_fields).collect();
    Ok(records[records.len().saturating_sub(LINES)..].to_vec())
}

/// A record without its long and private fields. None for an incomplete line.
fn without_private_fields(line: &str) -> Option<String> {
    let mut record: Value = serde_json::from_str(line).ok()?;
    let fields = record.as_object_mut()?;
    REMOVED_FIELDS.iter().for_each(|name| drop(fields.remove(*name)));
    Some(record.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recordings_are_not_named() {
        let line = r#"{"v":1,"event":"training_set","of":2,"ids":["secret"]}"#;
        assert_eq!(without_private_fields(line).as_deref(), Some(r#"{"event":"training_set","of":2,"v":1}"#));
        assert_eq!(without_private_fields("{\"v\":1,\"eve"), None);
        assert_eq!(without_private_fields("text"), None);
    }

    #[test]
    fn only_the_last_lines_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join(RUN_LOG);
        let lines: String = (0..100_000).map(|seq| format!("{{\"seq\":{seq}}}\n")).collect();
        std::fs::write(&log, lines + "{\"seq\":").unwrap();
        let last = last_lines(&log).unwrap();
        assert_eq!((last.len(), last[LINES - 1].as_str()), (LINES, "{\"seq\":99999}"));
    }
}
