//! The files of a rank other than 0: a folder of its own inside the run folder, whose lock rank 0 holds.

use std::fs;
use std::path::{Path, PathBuf};

use crate::disk::unusable;
use crate::error::CheckpointError;
use crate::file_names::RANKS;
use crate::run_folder::new_log_in;

/// The folder of one rank.
#[derive(Debug)]
pub struct RankFolder {
    dir: PathBuf,
}

impl RankFolder {
    /// Creates the folder of `rank` in the run folder `run`, which rank 0 has opened. One that is there is used again.
    pub fn create(run: &Path, rank: u32) -> Result<RankFolder, CheckpointError> {
        let dir = run.join(RANKS).join(rank.to_string());
        fs::create_dir_all(&dir).map_err(unusable("create", &dir))?;
        Ok(RankFolder { dir })
    }

    /// The path of the rank's run log. The log of an earlier process is renamed to `run-1.jsonl`, `run-2.jsonl`, …
    pub fn new_log(&self) -> Result<PathBuf, CheckpointError> {
        new_log_in(&self.dir)
    }

    /// Its path.
    pub fn into_path(self) -> PathBuf {
        self.dir
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file_names::RUN_LOG;

    #[test]
    fn a_rank_keeps_the_logs_of_its_earlier_starts() {
        let run = tempfile::tempdir().unwrap();
        for earlier in 0..3 {
            let log = RankFolder::create(run.path(), 2).unwrap().new_log().unwrap();
            assert_eq!(log, run.path().join("ranks/2").join(RUN_LOG));
            assert!(!log.exists());
            fs::write(&log, earlier.to_string()).unwrap();
        }
        assert_eq!(fs::read_to_string(run.path().join("ranks/2/run-2.jsonl")).unwrap(), "1");
    }

    #[test]
    fn a_file_in_its_place_is_an_error() {
        let run = tempfile::tempdir().unwrap();
        fs::write(run.path().join(RANKS), "").unwrap();
        let error = RankFolder::create(run.path(), 1).unwrap_err().to_string();
        assert!(error.contains("ranks/1"), "{error}");
    }
}
