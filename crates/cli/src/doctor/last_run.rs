//! The last run in the folder: how it stands, and the last lines of its log without what they quote.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::Path;

use serde_json::Value;
use tandem_train::RUN_LOG;

use crate::exit::Exit;
use crate::monitor;

use super::examination::Examination;

const LINES: usize = 30;
/// Lines are looked for in so much of the end.
const END_BYTES: u64 = 256 << 10;
/// Fields that are long, or that name recordings.
const LEFT_OUT: [&str; 3] = ["plan_json", "ids", "path"];

/// Looks at the run in `folder`.
pub(super) fn look(folder: &Path, to: &mut Examination<'_>) -> Result<(), Exit> {
    let log = folder.join(RUN_LOG);
    if !log.is_file() {
        return to.note(&format!("none in {}", folder.display()));
    }
    match monitor::snapshot_of(&log) {
        Ok((state, text)) => {
            to.note(&format!("{state}: {}", log.display()))?;
            to.text(&text);
        }
        Err(exit) => to.warning(&super::said(&exit), "look at the file: it should be a run log")?,
    }
    match last_lines(&log) {
        Ok(lines) => {
            to.text("\nThe last lines of its log:");
            lines.iter().for_each(|line| to.text(line));
            Ok(())
        }
        Err(error) => {
            to.warning(&format!("its log cannot be read ({error}): {}", log.display()), "see who may read it")
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
    let known: Vec<String> = end.lines().filter_map(without_quotes).collect();
    Ok(known[known.len().saturating_sub(LINES)..].to_vec())
}

/// A record without fields that are long or that name recordings; none of a line that is cut off.
fn without_quotes(line: &str) -> Option<String> {
    let mut record: Value = serde_json::from_str(line).ok()?;
    let fields = record.as_object_mut()?;
    LEFT_OUT.iter().for_each(|name| drop(fields.remove(*name)));
    Some(record.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recordings_are_not_named() {
        let line = r#"{"v":1,"event":"training_set","of":2,"ids":["secret"]}"#;
        assert_eq!(without_quotes(line).as_deref(), Some(r#"{"event":"training_set","of":2,"v":1}"#));
        assert_eq!(without_quotes("{\"v\":1,\"eve"), None);
        assert_eq!(without_quotes("text"), None);
    }

    #[test]
    fn only_the_last_lines_are_taken() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join(RUN_LOG);
        let lines: String = (0..100_000).map(|seq| format!("{{\"seq\":{seq}}}\n")).collect();
        std::fs::write(&log, lines + "{\"seq\":").unwrap();
        let last = last_lines(&log).unwrap();
        assert_eq!((last.len(), last[LINES - 1].as_str()), (LINES, "{\"seq\":99999}"));
    }
}
