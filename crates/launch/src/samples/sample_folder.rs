//! The folder of audio samples: names, atomic writes, and rotation.
//!
//! `step-00001000-ID.wav` and `.png`: the step comes first, so that a listing is in order. Samples of the newest twenty
//! checkpoints are retained, and those of the first: how the run sounded at its start.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::SampleError;

/// Checkpoints whose samples are retained, beside the first.
const RETAINED: usize = 20;
/// Characters of an id in a file name.
const ID_CHARS: usize = 80;
const BEING_WRITTEN: &str = ".tmp-";

/// The folder. No file stays open.
#[derive(Clone, Debug)]
pub(super) struct SampleFolder {
    folder: PathBuf,
}

impl SampleFolder {
    pub(super) fn new(folder: PathBuf) -> SampleFolder {
        SampleFolder { folder }
    }

    pub(super) fn path(&self) -> &Path {
        &self.folder
    }

    /// Writes a file atomically and returns its path relative to the run folder.
    pub(super) fn put(&self, name: &str, bytes: &[u8]) -> Result<String, SampleError> {
        let no_folder = |source| SampleError::NotWritten { source, path: self.folder.clone() };
        fs::create_dir_all(&self.folder).map_err(no_folder)?;
        let path = self.folder.join(name);
        let temporary = self.folder.join(format!("{BEING_WRITTEN}{name}"));
        let written = fs::write(&temporary, bytes).and_then(|()| fs::rename(&temporary, &path));
        if let Err(source) = written {
            let _ = fs::remove_file(&temporary);
            return Err(SampleError::NotWritten { source, path });
        }
        let folder = self.folder.file_name().unwrap_or_default().to_string_lossy();
        Ok(format!("{folder}/{name}"))
    }

    /// Removes samples past the retention, now that those of `step` exist. Samples of later steps, left by a run that was
    /// resumed from an older checkpoint, stay until training reaches them.
    pub(super) fn clear_up(&self, step: u64) -> Result<(), SampleError> {
        let not_read = |source| SampleError::NotWritten { source, path: self.folder.clone() };
        let names = names_in(&self.folder).map_err(not_read)?;
        for name in to_remove(&names, step) {
            let path = self.folder.join(name);
            fs::remove_file(&path).map_err(|source| SampleError::NotWritten { source, path })?;
        }
        Ok(())
    }
}

/// The file name of a sample without its extension.
pub(super) fn stem(step: u64, name: &str) -> String {
    format!("step-{step:08}-{name}")
}

/// Ids as file names: no path separators, no characters special to a shell. Ids that become equal are numbered.
pub(super) fn names_of<'a>(ids: impl Iterator<Item = &'a str>) -> Vec<String> {
    let plain = |c: char| if c.is_alphanumeric() || "-_.".contains(c) { c } else { '_' };
    let mut names: Vec<String> = Vec::new();
    for id in ids {
        let name: String = id.chars().take(ID_CHARS).map(plain).collect();
        let is_taken = names.contains(&name);
        names.push(if is_taken { format!("{name}-{}", names.len() + 1) } else { name });
    }
    names
}

fn names_in(folder: &Path) -> io::Result<Vec<String>> {
    let entries = fs::read_dir(folder)?.collect::<io::Result<Vec<_>>>()?;
    Ok(entries.into_iter().filter_map(|entry| entry.file_name().into_string().ok()).collect())
}

/// Sample files to remove. Files with other names are never touched.
fn to_remove(names: &[String], step: u64) -> Vec<&String> {
    let steps: BTreeSet<u64> = names.iter().filter_map(|name| step_of(name)).filter(|found| *found <= step).collect();
    let removed = steps.len().saturating_sub(RETAINED + 1);
    let steps: BTreeSet<u64> = steps.into_iter().skip(1).take(removed).collect();
    let is_done = |name: &str| step_of(name).is_some_and(|step| steps.contains(&step));
    let is_left = |name: &str| name.strip_prefix(BEING_WRITTEN).is_some_and(|name| step_of(name).is_some());
    names.iter().filter(|name| is_done(name) || is_left(name)).collect()
}

/// The step in a sample's file name.
fn step_of(name: &str) -> Option<u64> {
    let (step, rest) = name.strip_prefix("step-")?.split_once('-')?;
    let ours = step.len() >= 8 && [".wav", ".png"].iter().any(|ending| rest.ends_with(ending));
    step.parse().ok().filter(|_| ours)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_in_order_and_no_paths() {
        let check = |ids: &[&str], expected: &[&str]| assert_eq!(names_of(ids.iter().copied()), expected);
        check(&["LJ001-0002", "LJ001-0003"], &["LJ001-0002", "LJ001-0003"]);
        check(&["../a b/ç", "../a_b/ç"], &[".._a_b_ç", ".._a_b_ç-2"]);
        check(&[&"x".repeat(300)], &[&"x".repeat(80)]);
        assert_eq!(stem(1000, "LJ001-0002"), "step-00001000-LJ001-0002");
    }

    #[test]
    fn the_newest_stay_and_the_first() {
        let names: Vec<String> = (1..=30).flat_map(|step| [".wav", ".png"].map(|end| name(10 * step, end))).collect();
        let check = |step: u64, expected: std::ops::RangeInclusive<u64>| {
            let removed = to_remove(&names, step);
            let wanted: Vec<String> =
                expected.flat_map(|step| [".wav", ".png"].map(|end| name(10 * step, end))).collect();
            assert_eq!(removed, wanted.iter().collect::<Vec<_>>(), "{step}");
        };
        fn name(step: u64, ending: &str) -> String {
            format!("step-{step:08}-a-b{ending}")
        }
        check(300, 2..=10);
        // Resumed from an older checkpoint: later samples do not count.
        check(220, 2..=2);
        #[expect(clippy::reversed_empty_ranges, reason = "nothing is removed")]
        check(210, 2..=1);
    }

    #[test]
    fn what_others_put_there_stays() {
        let names = ["notes.txt", "step-one-a.wav", "step-00000001-a.txt", ".tmp-notes", ".tmp-step-00000001-a.wav"];
        let names = names.map(str::to_owned);
        assert_eq!(to_remove(&names, 100), [".tmp-step-00000001-a.wav"]);
    }

    #[test]
    fn a_file_is_whole_or_not_there() {
        let dir = tempfile::tempdir().unwrap();
        let shelf = SampleFolder::new(dir.path().join("samples"));
        assert_eq!(shelf.put("a.wav", b"sound").unwrap(), "samples/a.wav");
        assert_eq!(fs::read(dir.path().join("samples/a.wav")).unwrap(), b"sound");
        fs::create_dir_all(dir.path().join("samples/b.wav/in the way")).unwrap();
        assert!(shelf.put("b.wav", b"sound").unwrap_err().to_string().contains("b.wav"));
        assert_eq!(names_in(&dir.path().join("samples")).unwrap().len(), 2, "nothing half written is left");
    }
}
