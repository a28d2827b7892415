//! A checkpoint from the disk, verified before it is used.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::contract::ModelContract;
use crate::disk::unusable;
use crate::error::CheckpointError;
use crate::file_names::{MODEL_FILE, OPTIMIZER_FILE, RUN_FILE, STATE_FILE, WEIGHTS_FILE};
use crate::foreign::{foreign_at, foreign_in};
use crate::run_folder::read_identity;
use crate::run_identity::RunIdentity;
use crate::state_file::StateFile;
use crate::tensor_file::{TensorFile, open_verified};

/// Holding one of these means that every file of the checkpoint had the length and checksum it was written with. The
/// tensor files are open.
#[derive(Debug)]
pub struct Checkpoint {
    /// Its folder.
    pub path: PathBuf,
    /// Optimizer steps done.
    pub step: u64,
    /// The run that wrote it: from the checkpoint itself, else from the folder of the run around it, else unknown.
    pub run: Option<RunIdentity>,
    /// The validation score; lower is better.
    pub score: Option<f64>,
    /// The training state, as the writer gave it.
    pub state: Value,
    /// What the model is.
    pub model: ModelContract,
    /// Parameters and their EMA.
    pub weights: TensorFile,
    /// Optimizer state.
    pub optimizer: TensorFile,
}

impl Checkpoint {
    /// Opens the checkpoint folder at `path` and verifies all of it. Cost: every file is read once, through a 1 MiB
    /// buffer; tensors stay on the disk until they are read.
    ///
    /// Fails for a path that is not a checkpoint ([`CheckpointError::NotACheckpoint`]) or another program's
    /// ([`CheckpointError::ForeignCheckpoint`]), for a newer format, and for a damaged checkpoint.
    pub fn open(path: impl AsRef<Path>) -> Result<Checkpoint, CheckpointError> {
        let path = path.as_ref();
        refuse_others(path)?;
        let record = StateFile::read(path)?;
        let tensors = |name| TensorFile::open_verified(&path.join(name), record.digest(name, path)?);
        let (weights, optimizer) = (tensors(WEIGHTS_FILE)?, tensors(OPTIMIZER_FILE)?);
        let model = read_model(path, &record)?;
        let StateFile { step, run, score, state, .. } = record;
        // A run file that cannot be read says nothing about this checkpoint.
        let run = run.or_else(|| path.parent().and_then(|folder| read_identity(folder).ok().flatten()));
        Ok(Checkpoint { path: path.to_owned(), step, run, score, state, model, weights, optimizer })
    }
}

impl Checkpoint {
    /// Fails with [`CheckpointError::OfAnotherRun`] if the run `identity` cannot resume from it: it is a checkpoint of
    /// other data or of another model. A checkpoint that does not say its run passes.
    pub fn check_run(&self, identity: &RunIdentity) -> Result<(), CheckpointError> {
        let differences = self.run.as_ref().map(|found| identity.differences(found)).unwrap_or_default();
        match differences.is_empty() {
            true => Ok(()),
            false => Err(CheckpointError::OfAnotherRun { differences, path: self.path.clone() }),
        }
    }
}

/// A path without a state file is not a checkpoint; this says what it is.
fn refuse_others(path: &Path) -> Result<(), CheckpointError> {
    if path.join(STATE_FILE).is_file() {
        return Ok(());
    }
    let foreign = if path.is_dir() { foreign_in(path).map_err(unusable("list", path))? } else { foreign_at(path) };
    if let Some(foreign) = foreign {
        return Err(foreign.refused_at(path));
    }
    let found = match () {
        () if path.is_file() => "a file",
        () if !path.exists() => "nothing",
        () if path.join(RUN_FILE).is_file() => "the folder of a run (give one of its checkpoint-… folders)",
        () => "a folder without state.json",
    };
    Err(CheckpointError::NotACheckpoint { found, path: path.to_owned() })
}

fn read_model(folder: &Path, record: &StateFile) -> Result<ModelContract, CheckpointError> {
    let path = folder.join(MODEL_FILE);
    let digest = record.digest(MODEL_FILE, folder)?;
    let file = open_verified(&path, digest)?;
    let mut bytes = vec![0; digest.bytes as usize];
    file.read_exact_at(&mut bytes, 0).map_err(unusable("read", &path))?;
    ModelContract::parse(&bytes, &path)
}
