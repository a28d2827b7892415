//! Finds the log to show: the log of a run's folder, or a log file.

use std::fs::{self, Metadata};
use std::io;
use std::path::{Path, PathBuf};

use tandem_checkpoint::RUN_LOG;
use tandem_plan::quoted;

use crate::exit::Exit;

/// The log of `run`, a folder or a file. Anything else is refused, with what to type.
pub(super) fn find(run: &Path) -> Result<PathBuf, Exit> {
    let Some(found) = metadata_of(run)? else {
        return Err(Exit::Usage(format!(
            "❌ expected the folder of a run (its --checkpoint-dir) or a run log, but it does not exist: {}",
            run.display()
        )));
    };
    if found.is_file() {
        return Ok(run.to_owned());
    }
    if !found.is_dir() {
        return Err(Exit::Usage(format!(
            "❌ expected the folder of a run or a run log, but it is neither a folder nor a file: {}",
            run.display()
        )));
    }
    let log = run.join(RUN_LOG);
    match metadata_of(&log)? {
        Some(found) if found.is_file() => Ok(log),
        _ => Err(Exit::Usage(without_log(run)?)),
    }
}

/// The message for a folder without a log. Users often give a checkpoint, or the folder above the run.
fn without_log(dir: &Path) -> Result<String, Exit> {
    let message = format!("❌ no run log ({RUN_LOG}) in this folder: {}", dir.display());
    let parent = dir.canonicalize().ok().and_then(|dir| dir.parent().map(|parent| parent.join(RUN_LOG)));
    if let Some(log) = parent.filter(|log| log.is_file()) {
        let run = log.parent().unwrap_or(dir).display().to_string();
        return Ok(format!("{message}\n   Its parent folder has one: tandem monitor {}", quoted(&run)));
    }
    let entries = fs::read_dir(dir).map_err(|error| cannot_read(dir, error))?;
    let mut runs: Vec<_> = entries.flatten().map(|e| e.path()).filter(|path| path.join(RUN_LOG).is_file()).collect();
    runs.sort();
    Ok(match runs.first() {
        Some(run) => format!("{message}\n   It contains a run: tandem monitor {}", quoted(&run.display().to_string())),
        None => format!("{message}\n   For a run started with --run-log FILE: tandem monitor FILE"),
    })
}

/// The metadata of `path`. None if it does not exist.
fn metadata_of(path: &Path) -> Result<Option<Metadata>, Exit> {
    match fs::metadata(path) {
        Ok(found) => Ok(Some(found)),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(None),
        Err(error) => Err(cannot_read(path, error)),
    }
}

fn cannot_read(path: &Path, error: io::Error) -> Exit {
    Exit::Failed(anyhow::Error::new(error).context(format!("cannot read {}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(run: &Path, parts: &[&str]) {
        let Err(Exit::Usage(message)) = find(run) else { panic!("{}", run.display()) };
        assert!(parts.iter().all(|part| message.contains(part)), "{message}");
    }

    #[test]
    fn a_log_is_found_by_its_folder_and_by_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join(RUN_LOG);
        fs::write(&log, "").unwrap();
        assert_eq!(find(dir.path()).unwrap(), log);
        assert_eq!(find(&log).unwrap(), log);
    }

    #[test]
    fn other_paths_are_refused_with_what_to_type() {
        let dir = tempfile::tempdir().unwrap();
        refused(&dir.path().join("nowhere"), &["does not exist", "nowhere"]);
        refused(dir.path(), &["no run log", "tandem monitor FILE"]);
        refused(Path::new("/dev/null"), &["neither a folder nor a file"]);

        let checkpoint = dir.path().join("a run/checkpoint-00000001");
        fs::create_dir_all(&checkpoint).unwrap();
        fs::write(dir.path().join("a run").join(RUN_LOG), "").unwrap();
        refused(&checkpoint, &["Its parent folder has one: tandem monitor '", "a run'"]);
        refused(dir.path(), &["It contains a run: tandem monitor '", "a run'"]);
        refused(&dir.path().join("a run/run.jsonl/x"), &["does not exist"]);
    }
}
