//! The disk space that the checkpoints of a run take, and what is free for them.

use std::fs;
use std::path::Path;

use crate::disk::free_bytes;
use crate::listing::list;
use crate::rotation::{CHECKPOINTS_TO_KEEP, folder_bytes};

/// Room for the run log, samples and TensorBoard files of an ordinary run.
const OTHER_FILES_BYTES: u64 = 32 << 20;

/// What a run folder holds, and what is free on its disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FolderSpace {
    /// What is free, if the file system reports it.
    pub free_bytes: Option<u64>,
    /// Checkpoints that the run will replace by its own.
    pub num_checkpoints: u64,
    /// Their bytes.
    pub checkpoint_bytes: u64,
    /// The step of the last one, from which a run resumes; 0 without any.
    pub last_step: u64,
}

impl FolderSpace {
    /// Reads the folder at `dir`, which need not exist. Checkpoints of steps for which `is_kept` is false are not counted:
    /// the run moves them aside, where they still take their room. What cannot be listed counts as nothing: opening the
    /// folder fails later, with the reason.
    pub fn read(dir: &Path, is_kept: impl Fn(u64) -> bool) -> FolderSpace {
        let mut listed = list(dir).unwrap_or_default();
        listed.retain(|checkpoint| is_kept(checkpoint.step));
        FolderSpace {
            free_bytes: free_bytes(dir),
            num_checkpoints: listed.len() as u64,
            checkpoint_bytes: listed.iter().map(|checkpoint| bytes_in(&checkpoint.path)).sum(),
            last_step: listed.last().map_or(0, |checkpoint| checkpoint.step),
        }
    }
}

/// Bytes of the files in a folder.
fn bytes_in(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.metadata().ok()).filter(fs::Metadata::is_file).map(|file| file.len()).sum()
}

/// The disk space that the checkpoints of a run take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckpointRoom {
    /// Bytes of one.
    pub each_bytes: u64,
    /// Bytes of those that stay: the last three and the best.
    pub kept_bytes: u64,
    /// The most bytes at any time: those that stay, and the one being written.
    pub peak_bytes: u64,
    /// What is in the folder already.
    pub space: FolderSpace,
    /// What the run will take in addition to what is there, its other files included.
    pub needed_bytes: u64,
}

impl CheckpointRoom {
    /// The room for a run that writes at most `max_checkpoints` of `each_bytes`, in a folder as `space` describes it.
    pub fn new(each_bytes: u64, max_checkpoints: u64, space: FolderSpace) -> CheckpointRoom {
        let all = max_checkpoints.max(1).saturating_add(space.num_checkpoints);
        let at_most = |count: u64| each_bytes.saturating_mul(count.min(all));
        let peak_bytes = at_most(u64::MAX).min(folder_bytes(each_bytes));
        // The new one is written before an old one is removed.
        let more_bytes = peak_bytes.saturating_sub(space.checkpoint_bytes).max(each_bytes);
        CheckpointRoom {
            each_bytes,
            kept_bytes: at_most(CHECKPOINTS_TO_KEEP as u64 + 1),
            peak_bytes,
            space,
            needed_bytes: more_bytes.saturating_add(OTHER_FILES_BYTES),
        }
    }

    /// Bytes that are missing on the disk; `None` if there is enough room, or nobody knows.
    pub fn missing_bytes(&self) -> Option<u64> {
        self.needed_bytes.checked_sub(self.space.free_bytes?).filter(|missing| *missing > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: u64 = 1 << 20;

    #[test]
    fn the_last_three_the_best_and_the_one_being_written_must_fit() {
        let check = |max: u64, present: u64, kept: u64, peak: u64, needed: u64| {
            let checkpoint_bytes = 10 * MB * present;
            let space = FolderSpace { num_checkpoints: present, checkpoint_bytes, ..FolderSpace::default() };
            let room = CheckpointRoom::new(10 * MB, max, space);
            let found = (room.kept_bytes / MB, room.peak_bytes / MB, room.needed_bytes / MB);
            assert_eq!(found, (kept, peak, needed + 32), "{max} {present}");
        };
        check(u64::MAX, 0, 40, 50, 50);
        check(1000, 0, 40, 50, 50);
        // A short run has fewer.
        check(1, 0, 10, 10, 10);
        check(3, 0, 30, 30, 30);
        // A resumed run replaces what is there.
        check(1000, 3, 40, 50, 20);
        check(1000, 4, 40, 50, 10);
        check(1000, 9, 40, 50, 10);
        check(1, 2, 30, 30, 10);
        // It says that there is nothing to do, or writes one.
        check(0, 1, 20, 20, 10);
    }

    #[test]
    fn room_is_missing_only_if_the_disk_says_so() {
        let room = |free_bytes| CheckpointRoom::new(10 * MB, 9, FolderSpace { free_bytes, ..FolderSpace::default() });
        assert_eq!(room(None).missing_bytes(), None);
        assert_eq!(room(Some(82 * MB)).missing_bytes(), None);
        assert_eq!(room(Some(82 * MB - 1)).missing_bytes(), Some(1));
        let huge = CheckpointRoom::new(u64::MAX, u64::MAX, FolderSpace::default());
        assert_eq!((huge.peak_bytes, huge.needed_bytes), (u64::MAX, u64::MAX));
    }

    #[test]
    fn a_folder_is_read_with_the_checkpoints_that_the_run_replaces() {
        let dir = tempfile::tempdir().unwrap();
        for (name, bytes) in
            [("checkpoint-00000010/a", 100), ("checkpoint-00000010/b", 20), ("checkpoint-00000020/a", 7)]
        {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, vec![0; bytes]).unwrap();
        }
        fs::write(dir.path().join("run.jsonl"), "not a checkpoint").unwrap();
        let read = |is_kept: fn(u64) -> bool| {
            let space = FolderSpace::read(dir.path(), is_kept);
            (space.num_checkpoints, space.checkpoint_bytes, space.last_step)
        };
        assert_eq!((read(|_| true), read(|step| step <= 10), read(|_| false)), ((2, 127, 20), (1, 120, 10), (0, 0, 0)));
        let absent = FolderSpace::read(&dir.path().join("absent"), |_| true);
        assert_eq!((absent.num_checkpoints, absent.free_bytes.is_some()), (0, free_bytes(dir.path()).is_some()));
    }
}
