//! The model of a checkpoint, on the device it runs on.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use tandem_checkpoint::{Checkpoint, CheckpointError, RUN_FILE, best_intact};
use tandem_device::{Device, DeviceKind, Machine};
use tandem_launch::inventory::Inventory;
use tandem_plan::Placement;
use tandem_synth::{SynthError, Synthesizer};

use super::flags::SynthesizeArgs;
use crate::exit::Exit;
use crate::screen::Screen;

/// The run to use when no checkpoint is given.
const CHECKPOINTS: &str = "checkpoints";

/// A model that is ready to speak.
pub(super) struct LoadedModel {
    pub(super) synthesizer: Synthesizer,
    pub(super) checkpoint: PathBuf,
    /// The device, in words.
    pub(super) place: String,
}

impl LoadedModel {
    /// The model, on the device that the flags choose.
    pub(super) fn load(args: &SynthesizeArgs, screen: &Screen) -> Result<LoadedModel, Exit> {
        let checkpoint = checkpoint(args.checkpoint.as_deref(), screen)?;
        LoadedModel::open(checkpoint, device(args)?)
    }

    /// The model on the CPU, to read what it knows.
    pub(super) fn load_on_cpu(args: &SynthesizeArgs, screen: &Screen) -> Result<LoadedModel, Exit> {
        let checkpoint = checkpoint(args.checkpoint.as_deref(), screen)?;
        LoadedModel::open(checkpoint, Machine::cpu().open(0).context("cannot open the CPU")?)
    }

    fn open(checkpoint: Checkpoint, device: Device) -> Result<LoadedModel, Exit> {
        let place = match device.machine().kind() {
            DeviceKind::Cpu => "the CPU".to_owned(),
            DeviceKind::Cuda | DeviceKind::Simulated => device.card().to_string(),
        };
        let synthesizer = Synthesizer::open(&checkpoint.path, device);
        let synthesizer = synthesizer.map_err(|error| exit_of("--checkpoint", error))?;
        Ok(LoadedModel { synthesizer, checkpoint: checkpoint.path, place })
    }
}

/// Wrong usage (exit code 2) or a failure (exit code 1).
pub(super) fn exit_of(flag: &str, error: SynthError) -> Exit {
    match error {
        SynthError::NotAModel { .. }
        | SynthError::Checkpoint(CheckpointError::WrongTensors { .. })
        | SynthError::EmptyText
        | SynthError::NoKnownSymbol { .. }
        | SynthError::NoSuchLanguage { .. }
        | SynthError::Espeak(_)
        | SynthError::ReferenceTooShort { .. }
        | SynthError::ReferenceSilent { .. }
        | SynthError::NoSuchVoice { .. } => Exit::Usage(format!("❌ {flag}: {error}")),
        SynthError::Rate { .. } => Exit::Usage(format!("❌ --speaking-rate: {error}")),
        SynthError::NoRoom { .. } => {
            Exit::Usage(format!("❌ {error}\n   Use another GPU (--gpu GPU) or the CPU (--mode cpu)"))
        }
        other => Exit::Failed(anyhow::Error::new(other).context(flag.to_owned())),
    }
}

/// The given checkpoint, or the best one of a run.
fn checkpoint(given: Option<&Path>, screen: &Screen) -> Result<Checkpoint, Exit> {
    let (folder, is_run) = match given {
        Some(path) => (path, path.join(RUN_FILE).is_file()),
        None => (Path::new(CHECKPOINTS), true),
    };
    if is_run {
        let found = best_intact(folder).context("cannot read the checkpoints")?;
        for skipped in &found.skipped {
            screen.warn(&format!("skipping a damaged checkpoint: {}", skipped.reason));
        }
        if let Some(checkpoint) = found.checkpoint {
            return Ok(checkpoint);
        }
    }
    // Its error says what is there instead of a checkpoint.
    Checkpoint::open(folder).map_err(|error| not_opened(folder, given.is_some(), error))
}

fn not_opened(folder: &Path, is_given: bool, error: CheckpointError) -> Exit {
    let advice = "train a model with `tandem train`, or give another with --checkpoint";
    let path = folder.display();
    match error {
        CheckpointError::ForeignCheckpoint { program, name, .. } => Exit::Usage(format!(
            "❌ --checkpoint: `{name}` is a checkpoint of {program}, which tandem cannot read; expected a folder with \
             weights.safetensors, model.json and state.json: {path}"
        )),
        CheckpointError::NotACheckpoint { .. } if !is_given => {
            Exit::Usage(format!("❌ no checkpoint in ./{path}: {advice}"))
        }
        CheckpointError::NotACheckpoint { .. } | CheckpointError::NewerFormat { .. } => {
            Exit::Usage(format!("❌ --checkpoint: {error}\n   {advice}"))
        }
        other => Exit::Failed(anyhow::Error::new(other).context("--checkpoint")),
    }
}

/// The GPU or the CPU, chosen as for training.
fn device(args: &SynthesizeArgs) -> Result<Device, Exit> {
    let machine = match &args.sim {
        Some(spec) => Some(Machine::simulated(spec.clone())),
        // A driver error is reported by the survey below.
        None => Machine::cuda().ok().flatten().filter(|machine| !machine.cards().is_empty()),
    };
    let inventory = match &machine {
        Some(machine) => Inventory::of(machine.clone()),
        None => Inventory::survey(None),
    };
    let inventory = inventory.context("cannot read the GPUs")?;
    let placement = Placement::choose(&args.settings, &inventory.hardware);
    let placement = placement.map_err(|refusal| Exit::Refused(Box::new(refusal)))?;
    let (machine, card) = match (machine, placement.model) {
        (Some(machine), Some(card)) => (machine, card),
        _ => (Machine::cpu(), 0),
    };
    machine.restrict(&[card]);
    Ok(machine.open(card).context("cannot open the device")?)
}
