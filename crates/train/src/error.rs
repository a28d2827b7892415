//! What can go wrong with a run and its files. A variant is a different thing to do next.

use std::fmt::{self, Display};
use std::io;
use std::path::PathBuf;

use crate::checkpoint::Mismatch;
use crate::run_identity::Difference;

/// How many of a list a message shows. The error itself has all of them.
const SHOWN: usize = 6;

/// A run could not be set up, kept or gone on with.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// Another process trains there: wait for it, or choose another folder.
    #[error(
        "another training run has this folder open ({holder}): wait until it has ended, or give another folder with \
         --checkpoint-dir: {}", path.display()
    )]
    Locked {
        /// Who holds it, as it said itself: `process 1234 on machine`.
        holder: String,
        /// The folder.
        path: PathBuf,
    },

    /// The folder is of a run with other data or another model: another folder, or the old run moved aside.
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

    /// Something has a name that a run would use, and nothing says which run it is of: another folder, or move it
    /// aside.
    #[error(
        "`{name}` is in the way: a run would write there, and no run.json says what run it is of. Give another folder \
         with --checkpoint-dir OTHER, or move it aside with --reset-training (nothing is deleted): {}", path.display()
    )]
    InTheWay {
        /// The first such name.
        name: String,
        /// The folder.
        path: PathBuf,
    },

    /// A checkpoint of another program: it cannot be read, and training would begin anew beside it.
    #[error(
        "`{name}` is a checkpoint of {program}, which cannot be read here: expected a folder with weights.safetensors \
         and state.json. To train anew beside it give another folder with --checkpoint-dir OTHER, or add \
         --reset-training: {}", path.display()
    )]
    ForeignCheckpoint {
        /// Whose: `TensorFlow`, `PyTorch`.
        program: &'static str,
        /// The file it was known by.
        name: String,
        /// The file or folder that was given.
        path: PathBuf,
    },

    /// There is no checkpoint at that place: give another path.
    #[error("expected a checkpoint folder (weights.safetensors, state.json), found {found}: {}", path.display())]
    NotACheckpoint {
        /// What is there.
        found: &'static str,
        /// What was given.
        path: PathBuf,
    },

    /// A file of a run is not as it was written: take another checkpoint.
    #[error("{reason}: {}", path.display())]
    Damaged {
        /// What is wrong with it, expected and found.
        reason: String,
        /// The file.
        path: PathBuf,
    },

    /// A newer program wrote it: take that program.
    #[error("written by a newer version (format {found}, this program reads up to {known}): {}", path.display())]
    NewerFormat {
        /// The format of the file.
        found: u64,
        /// The newest that is read here.
        known: u64,
        /// The file.
        path: PathBuf,
    },

    /// The checkpoint is whole and of another model: give the settings it was trained with, or another checkpoint.
    #[error("the tensors are not those of this model: {}: {}", Listed(mismatches), path.display())]
    WrongTensors {
        /// All of them, by name.
        mismatches: Vec<Mismatch>,
        /// The file.
        path: PathBuf,
    },

    /// There is no such tensor. Checked beforehand by [`TensorFile::expect`](crate::TensorFile::expect).
    #[error("there is no tensor `{name}`: {}", path.display())]
    NoSuchTensor {
        /// What was asked for.
        name: String,
        /// The file.
        path: PathBuf,
    },

    /// The disk, the quota or the largest size of a file does not allow it: make room. What was written is removed,
    /// and earlier checkpoints are as they were.
    #[error(
        "no room for a checkpoint: {} needed, {} ({why}); earlier checkpoints are untouched. Free some space, or give \
         another folder with --checkpoint-dir: {}", Bytes(*needed_bytes), free(*free_bytes), path.display()
    )]
    NoRoom {
        /// All files of the checkpoint together.
        needed_bytes: u64,
        /// What the file system says is free for us, where it says anything.
        free_bytes: Option<u64>,
        /// What the system said.
        why: String,
        /// The folder of the run.
        path: PathBuf,
    },

    /// The model computes no numbers any more: lower the learning rate, or look at the data.
    #[error(
        "gradients were no numbers in {in_a_row} steps in a row, the last of them step {step}: the run cannot go on. \
         {}; lower --lr, or look for broken recordings with `tandem corpus check`", last_good(checkpoint.as_ref())
    )]
    NotFinite {
        /// The last of them.
        step: u64,
        /// How many.
        in_a_row: u32,
        /// The newest checkpoint: steps that were left out changed nothing.
        checkpoint: Option<PathBuf>,
    },

    /// No recording of the corpus can be read.
    #[error("not one recording of the corpus can be read: `tandem corpus check` says why")]
    NothingToTrainOn,

    /// The checkpoint's state is not that of a run of this program with these settings.
    #[error("a run cannot go on from the state of the checkpoint ({reason}): {}", path.display())]
    ForeignState {
        /// What is wrong with it.
        reason: String,
        /// The checkpoint.
        path: PathBuf,
    },

    /// Features of a recording could not be made.
    #[error("features cannot be made: {0}")]
    Features(tandem_audio::AudioError),

    /// The engine said no.
    #[error(transparent)]
    Engine(#[from] tandem_engine::EngineError),

    /// The feed ended.
    #[error(transparent)]
    Feed(#[from] tandem_feed::FeedError),

    /// The device said no.
    #[error(transparent)]
    Device(#[from] tandem_device::DeviceError),

    /// The roles could not be set up.
    #[error(transparent)]
    Isolation(#[from] tandem_device::IsolationError),

    /// A file or folder cannot be read or written: mend the rights on it or the disk, or choose another folder.
    #[error("could not {what} ({source}): {}", path.display())]
    Unusable {
        /// What was tried: `read`, `write`, `create`, …
        what: &'static str,
        /// What the system said.
        source: io::Error,
        /// The file or folder.
        path: PathBuf,
    },
}

/// A few of a list, and how many more there are.
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

fn last_good(checkpoint: Option<&PathBuf>) -> String {
    checkpoint.map_or("There is no checkpoint yet".into(), |path| format!("The last checkpoint is {}", path.display()))
}

fn free(free_bytes: Option<u64>) -> String {
    free_bytes.map_or("how much is free is not known".into(), |bytes| format!("{} free", Bytes(bytes)))
}

/// In bytes, and from one MB (1 MiB) on also in those.
struct Bytes(u64);

impl Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0)?;
        if self.0 >= 1 << 20 { write!(f, " ({} MB)", self.0.div_ceil(1 << 20)) } else { Ok(()) }
    }
}

impl TrainError {
    pub(crate) fn features(error: tandem_audio::AudioError) -> TrainError {
        TrainError::Features(error)
    }

    /// The state of a checkpoint that no run of this program wrote.
    pub fn foreign_state(checkpoint: &crate::Checkpoint, reason: String) -> TrainError {
        TrainError::ForeignState { reason, path: checkpoint.path.clone() }
    }
}
