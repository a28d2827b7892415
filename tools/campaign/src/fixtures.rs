//! What many cases start from: a demo corpus, and undisturbed training runs whose bytes the others must reach.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, bail};

use crate::command::{CommandOutcome, CommandSpec, Deadline};
use crate::tree;
use crate::verdict::last_line;

/// Steps of a training run.
pub(crate) const STEPS: u32 = 20;
/// Flags that all training runs share: about a second on two cores, with five checkpoints.
const TRAIN: &str = "train --model-size nano --buffer-size 4 --max-mel-frames 300 --max-steps 20 --checkpoint-every 4 \
                     --train-data corpus --checkpoint-dir run";

/// A training run with its own settings and its own bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TrainingVariant {
    pub(crate) name: &'static str,
    flags: &'static str,
}

/// The first one is used by most kinds.
pub(crate) const VARIANTS: [TrainingVariant; 6] = [
    TrainingVariant { name: "cpu", flags: "--mode cpu --batch-size 2 --num-workers 1" },
    TrainingVariant { name: "micro-batches", flags: "--mode cpu --batch-size 4 --grad-accum 2 --num-workers 2" },
    TrainingVariant { name: "disk-cache", flags: "--mode cpu --batch-size 2 --cache disk --num-workers 2" },
    TrainingVariant { name: "basic", flags: "--mode cpu --batch-size 2 --cache none --optimization-level basic" },
    TrainingVariant { name: "pair", flags: "--sim 2x24GiB --data-gpu 0 --model-gpu 1 --batch-size 2" },
    TrainingVariant {
        name: "isolated",
        flags: "--sim 1x24GiB --share-gpu --enable-memory-isolation --data-gpu-memory 1024 --model-gpu-memory 2048 \
                --batch-size 2",
    },
];

impl TrainingVariant {
    /// Its command: data in `corpus`, run folder `run`.
    pub(crate) fn command(self) -> CommandSpec {
        CommandSpec::new(&format!("{TRAIN} {}", self.flags))
    }

    /// The same with other words in place of some.
    pub(crate) fn command_with(self, from: &str, to: &str) -> CommandSpec {
        CommandSpec::new(&format!("{TRAIN} {}", self.flags).replace(from, to))
    }
}

/// An undisturbed run.
#[derive(Debug)]
pub(crate) struct ReferenceRun {
    /// Its run folder.
    pub(crate) run: PathBuf,
    /// SHA-256 of the files of its last checkpoint.
    pub(crate) digests: BTreeMap<&'static str, String>,
    pub(crate) wall: Duration,
}

/// Folders that are made once and then only read.
#[derive(Debug)]
pub(crate) struct Fixtures {
    tandem: PathBuf,
    folder: PathBuf,
    references: Mutex<BTreeMap<&'static str, Arc<ReferenceRun>>>,
}

impl Fixtures {
    /// Writes the demo corpus.
    pub(crate) fn create(tandem: &Path, folder: &Path, deadline: Deadline<'_>) -> anyhow::Result<Fixtures> {
        fs::create_dir_all(folder)?;
        let fixtures = Fixtures { tandem: tandem.to_owned(), folder: folder.to_owned(), references: Mutex::default() };
        fixtures.succeed(&CommandSpec::new("corpus demo --minutes 0.7 -o corpus"), folder, deadline)?;
        Ok(fixtures)
    }

    pub(crate) fn corpus(&self) -> PathBuf {
        self.folder.join("corpus")
    }

    /// The undisturbed run of `variant`. The first call trains it.
    pub(crate) fn reference(
        &self,
        variant: TrainingVariant,
        deadline: Deadline<'_>,
    ) -> anyhow::Result<Arc<ReferenceRun>> {
        let mut references = self.references.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = references.get(variant.name) {
            return Ok(Arc::clone(found));
        }
        let folder = self.folder.join(variant.name);
        // Left by a call that ran out of time.
        let _ = fs::remove_dir_all(&folder);
        tree::copy(&self.corpus(), &folder.join("corpus"))?;
        let outcome = self.succeed(&variant.command(), &folder, deadline)?;
        let run = folder.join("run");
        let reference = Arc::new(ReferenceRun { digests: final_digests(&run)?, run, wall: outcome.wall });
        references.insert(variant.name, Arc::clone(&reference));
        Ok(reference)
    }

    fn succeed(&self, spec: &CommandSpec, folder: &Path, deadline: Deadline<'_>) -> anyhow::Result<CommandOutcome> {
        let outcome = spec.spawn(&self.tandem, folder, deadline)?.wait()?;
        match outcome.succeeded() {
            true => Ok(outcome),
            false => bail!(
                "an undisturbed command fails ({:?}, {}): {}",
                outcome.ended,
                last_line(&outcome.err_text()),
                outcome.line
            ),
        }
    }
}

/// The last checkpoint of a run.
pub(crate) fn last_checkpoint(run: &Path) -> PathBuf {
    run.join(format!("checkpoint-{STEPS:08}"))
}

/// SHA-256 of the files of the last checkpoint that must not depend on how the run went.
pub(crate) fn final_digests(run: &Path) -> anyhow::Result<BTreeMap<&'static str, String>> {
    let digest = |name: &'static str| {
        let path = last_checkpoint(run).join(name);
        let digest = tree::file_digest(&path).with_context(|| format!("cannot read {}", path.display()))?;
        Ok((name, digest))
    };
    ["weights.safetensors", "optimizer.safetensors", "model.json"].into_iter().map(digest).collect()
}
