//! What can go wrong with the files of a run. A variant is a different thing to do next.

use std::fmt::{self, Display};
use std::io;
use std::path::{Path, PathBuf};

use crate::mismatch::Mismatch;
use crate::run_identity::Difference;

/// How many items of a list a message shows. The error itself has all of them.
const SHOWN: usize = 6;

/// A checkpoint or a run folder could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// Another process trains in this folder: wait for it, or choose another folder.
    #[error(
        "another training run has this folder open ({owner}). Wait until it ends, or give another folder with \
         --checkpoint-dir OTHER: {}", path.display()
    )]
    Locked {
        /// What the lock file says: `process 1234 on machine`.
        owner: String,
        /// The folder.
        path: PathBuf,
    },

    /// The folder belongs to a run with other data or another model: choose another folder, or move the old run away.
    #[error(
        "the folder holds another run: {}. Give another folder with --checkpoint-dir OTHER, or move that run aside \
         with --reset-training (nothing is deleted): {}", Listed(differences), path.display()
    )]
    AnotherRun {
        /// Every fact that differs, by name.
        differences: Vec<Difference>,
        /// The folder.
        path: PathBuf,
    },

    /// The checkpoint was written by a run with other data or another model: an exact resume is impossible. Start a new
    /// run from its weights instead.
    #[error(
        "cannot resume from a checkpoint of another run: {}. To start a new run from its weights, give --init-from in \
         place of --resume: {}", Listed(differences), path.display()
    )]
    OfAnotherRun {
        /// Every fact that differs, by name.
        differences: Vec<Difference>,
        /// The checkpoint.
        path: PathBuf,
    },

    /// A file has a name that a run writes, and no `run.json` says which run it belongs to: choose another folder, or
    /// move it away.
    #[error(
        "`{name}` is in the way: training would write there, and no run.json says which run it belongs to. Give \
         another folder with --checkpoint-dir OTHER, or move it aside with --reset-training (nothing is deleted): {}",
        path.display()
    )]
    InTheWay {
        /// The first such name.
        name: String,
        /// The folder.
        path: PathBuf,
    },

    /// A checkpoint of another program, which this crate cannot read.
    #[error(
        "`{name}` is a checkpoint of {program}, which Tandem cannot read: expected a folder with weights.safetensors \
         and state.json. To start a new run, give another folder with --checkpoint-dir OTHER, or add \
         --reset-training: {}", path.display()
    )]
    ForeignCheckpoint {
        /// The program: `TensorFlow`, `PyTorch`.
        program: &'static str,
        /// The file that shows it.
        name: String,
        /// The file or folder that was given.
        path: PathBuf,
    },

    /// The path is not a checkpoint: give another path.
    #[error("expected a checkpoint folder (weights.safetensors, state.json), found {found}: {}", path.display())]
    NotACheckpoint {
        /// What is there instead.
        found: &'static str,
        /// What was given.
        path: PathBuf,
    },

    /// A file differs from what was written: take another checkpoint.
    #[error("{reason}: {}", path.display())]
    Damaged {
        /// What is wrong with it: expected and found.
        reason: String,
        /// The file.
        path: PathBuf,
    },

    /// A newer version of the program wrote the file: update the program.
    #[error(
        "written by a newer version of Tandem: expected format {known} or older, found {found}. Update Tandem, or \
         give another folder: {}", path.display()
    )]
    NewerFormat {
        /// The format of the file.
        found: u64,
        /// The newest format this version reads.
        known: u64,
        /// The file.
        path: PathBuf,
    },

    /// The checkpoint is intact, but of another model: use the settings it was trained with, or another checkpoint.
    #[error("the tensors do not match this model: {}: {}", Listed(mismatches), path.display())]
    WrongTensors {
        /// All of them, by name.
        mismatches: Vec<Mismatch>,
        /// The file.
        path: PathBuf,
    },

    /// The file has no such tensor. [`TensorFile::expect`](crate::TensorFile::expect) checks this beforehand.
    #[error("no tensor `{name}`: {}", path.display())]
    NoSuchTensor {
        /// What was asked for.
        name: String,
        /// The file.
        path: PathBuf,
    },

    /// The disk, the quota or the file size limit is too small: make room. The partial checkpoint is removed, and
    /// earlier checkpoints are unchanged.
    #[error(
        "no room for a checkpoint: {} needed, {} ({why}); earlier checkpoints are untouched. Free some space, or give \
         another folder with --checkpoint-dir OTHER: {}", Bytes(*needed_bytes), free(*free_bytes), path.display()
    )]
    NoRoom {
        /// All files of the checkpoint together.
        needed_bytes: u64,
        /// Free bytes, if the file system reports them.
        free_bytes: Option<u64>,
        /// The system's message.
        why: String,
        /// The run folder.
        path: PathBuf,
    },

    /// The run folder was removed, renamed or replaced while the run went on.
    #[error("the run folder was removed or renamed during the run: {}\n   {}", path.display(), rescued_text(rescued.as_deref()))]
    FolderGone {
        /// The checkpoint that was written elsewhere; `None` if that failed, too.
        rescued: Option<PathBuf>,
        /// Where the folder was.
        path: PathBuf,
    },

    /// A file or folder cannot be read or written: fix its permissions or the disk, or choose another folder.
    #[error("cannot {what} ({source}): {}", path.display())]
    Unusable {
        /// What was tried: `read`, `write`, `create`, …
        what: &'static str,
        /// The system's error.
        source: io::Error,
        /// The file or folder.
        path: PathBuf,
    },
}

/// The first items of a list, and how many more there are.
struct Listed<'a, T>(&'a [T]);

impl<T: Display> Display for Listed<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, item) in self.0.iter().take(SHOWN).enumerate() {
            write!(f, "{}{item}", if index == 0 { "" } else { "; " })?;
        }
        match self.0.len().saturating_sub(SHOWN) {
            0 => Ok(()),
            more => write!(f, "; and {more} more"),
        }
    }
}

fn rescued_text(rescued: Option<&Path>) -> String {
    match rescued {
        Some(path) => format!("The last step is saved elsewhere. To resume from it: --resume {}", path.display()),
        None => "The steps since the last checkpoint are lost: there is no place to save them".to_owned(),
    }
}

fn free(free_bytes: Option<u64>) -> String {
    free_bytes.map_or("free space unknown".into(), |bytes| format!("{} free", Bytes(bytes)))
}

/// In bytes, and from one MB (1 MiB) on also in those.
struct Bytes(u64);

impl Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0)?;
        if self.0 >= 1 << 20 { write!(f, " ({} MB)", self.0.div_ceil(1 << 20)) } else { Ok(()) }
    }
}
