//! A checkpoint from the disk, checked before a byte of it is used.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::foreign::{foreign_at, foreign_in};
use super::record::StateFile;
use super::tensor_file::{TensorFile, open_checked};
use super::{MODEL_FILE, OPTIMIZER_FILE, STATE_FILE, WEIGHTS_FILE};
use crate::disk::unusable;
use crate::error::TrainError;

/// Holding one of these means that every file of the checkpoint was as long as it was written, and summed up to the
/// same. Its files are held open.
#[derive(Debug)]
pub struct Checkpoint {
    /// Where it is.
    pub path: PathBuf,
    /// Optimizer steps done.
    pub step: u64,
    /// How bad the model was; the lowest is the best.
    pub score: Option<f64>,
    /// What the writer gave as its state.
    pub state: Value,
    /// What the writer gave as its model.
    pub model: Value,
    /// Parameters and their averages.
    pub weights: TensorFile,
    /// Moments.
    pub optimizer: TensorFile,
}

impl Checkpoint {
    /// Opens the checkpoint folder at `path` and checks all of it. Cost: every file is read once, through 1 MiB of
    /// memory; tensors stay on the disk until they are asked for.
    ///
    /// Fails for what is no checkpoint ([`TrainError::NotACheckpoint`]) or another program's
    /// ([`TrainError::ForeignCheckpoint`]), for one of a newer version, and for one that is damaged.
    pub fn open(path: impl AsRef<Path>) -> Result<Checkpoint, TrainError> {
        let path = path.as_ref();
        refuse_others(path)?;
        let record = StateFile::read(path)?;
        let tensors = |name| TensorFile::open(&path.join(name), record.facts(name, path)?);
        let (weights, optimizer) = (tensors(WEIGHTS_FILE)?, tensors(OPTIMIZER_FILE)?);
        let model = read_model(path, &record)?;
        let StateFile { step, score, state, .. } = record;
        Ok(Checkpoint { path: path.to_owned(), step, score, state, model, weights, optimizer })
    }
}

/// Whatever has no state file is no checkpoint; this says what it is.
fn refuse_others(path: &Path) -> Result<(), TrainError> {
    if path.join(STATE_FILE).is_file() {
        return Ok(());
    }
    let foreign = if path.is_dir() { foreign_in(path).map_err(unusable("list", path))? } else { foreign_at(path) };
    if let Some(foreign) = foreign {
        let (program, name) = (foreign.program, foreign.name);
        return Err(TrainError::ForeignCheckpoint { program, name, path: path.to_owned() });
    }
    let found = match () {
        () if path.is_file() => "a file",
        () if !path.exists() => "nothing",
        () if path.join("run.json").is_file() => "the folder of a run (give one of its checkpoint-… folders)",
        () => "a folder without state.json",
    };
    Err(TrainError::NotACheckpoint { found, path: path.to_owned() })
}

fn read_model(folder: &Path, record: &StateFile) -> Result<Value, TrainError> {
    let path = folder.join(MODEL_FILE);
    let facts = record.facts(MODEL_FILE, folder)?;
    let file = open_checked(&path, facts)?;
    let mut bytes = vec![0; facts.bytes as usize];
    file.read_exact_at(&mut bytes, 0).map_err(unusable("read", &path))?;
    serde_json::from_slice(&bytes)
        .map_err(|error| TrainError::Damaged { reason: format!("the model is no JSON ({error})"), path })
}
