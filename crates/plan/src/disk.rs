//! The disk space of a run's checkpoints: shown with the plan, and refused if it cannot fit.

use tandem_checkpoint::CheckpointRoom;
use tandem_device::bytes::{MIB, show, show_apart, show_free};

use crate::hardware::Hardware;
use crate::model_memory::ModelMemory;
use crate::refusal::{Reason, Refusal};
use crate::setting::Id;
use crate::settings::Settings;

/// The room for the checkpoints of a run with `settings`.
pub(crate) fn checkpoint_room(
    settings: &Settings,
    hardware: &Hardware,
    memory: &dyn ModelMemory,
    num_voices: u64,
) -> CheckpointRoom {
    let space = hardware.run_folder.map(|folder| folder.space).unwrap_or_default();
    // At most one for every step that is left.
    let max_steps = settings.given_count(Id::MaxSteps).unwrap_or(u64::MAX);
    let max_checkpoints = max_steps.saturating_sub(space.last_step);
    CheckpointRoom::new(memory.checkpoint_bytes(num_voices), max_checkpoints, space)
}

/// Refuses checkpoints that do not fit on the disk of the run folder.
pub(crate) fn check_disk(room: &CheckpointRoom, settings: &Settings, hardware: &Hardware) -> Result<(), Refusal> {
    let must_fit = hardware.run_folder.is_some_and(|folder| folder.must_fit);
    let Some(missing) = room.missing_bytes().filter(|_| must_fit) else { return Ok(()) };
    let (needed, free) = show_apart(room.needed_bytes, room.space.free_bytes.unwrap_or(0));
    let message = format!(
        "❌ The checkpoints of this run do not fit on the disk of --checkpoint-dir\n   {}; with the run log and samples, \
         {needed} more are needed and {free} are free: {}\n   Free {} there, or give a folder on another disk: \
         --checkpoint-dir FOLDER",
        describe(room),
        settings.text(Id::CheckpointDir).unwrap_or_default(),
        show(missing.next_multiple_of(MIB)),
    );
    Err(Refusal::new(Reason::Disk, message))
}

/// The warning about checkpoints that would not fit, where they are only shown.
pub(crate) fn disk_note(room: &CheckpointRoom, settings: &Settings) -> Option<String> {
    let missing = room.missing_bytes()?;
    let folder = settings.text(Id::CheckpointDir).unwrap_or_default();
    Some(format!(
        "⚠️ the checkpoints do not fit on the disk of this machine: {} more are needed in {folder}",
        show(missing)
    ))
}

/// Sizes of the checkpoints in words.
pub(crate) fn describe(room: &CheckpointRoom) -> String {
    let present = match room.space.num_checkpoints {
        0 => String::new(),
        count => format!(", of which {count} with {} are there", show(room.space.checkpoint_bytes)),
    };
    let peak = match room.peak_bytes == room.kept_bytes {
        true => String::new(),
        false => format!(" ({} while one is written)", show(room.peak_bytes)),
    };
    let (each, kept) = (show(room.each_bytes), show(room.kept_bytes));
    format!("{each} each, the last 3 and the best are kept: {kept}{peak}{present}")
}

/// What is free, in words.
pub(crate) fn describe_free(room: &CheckpointRoom) -> String {
    room.space.free_bytes.map_or_else(String::new, |free| format!("; {} free", show_free(free)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{Chains, gpus, settings};
    use crate::hardware::RunFolderFacts;
    use crate::plan::Plan;
    use tandem_checkpoint::FolderSpace;

    /// A machine with so much free on the disk of the run folder.
    fn on_disk(free_mb: u64, must_fit: bool) -> Hardware {
        let space = FolderSpace { free_bytes: Some(free_mb * MIB), ..FolderSpace::default() };
        Hardware {
            run_folder: Some(RunFolderFacts { space, must_fit, arithmetic: None, grad_accum: None }),
            ..gpus(1, 24)
        }
    }

    #[test]
    fn checkpoints_that_do_not_fit_are_refused_with_settings_that_do() {
        let solve = |line: &str, hardware: &Hardware| Plan::solve(&settings(line), hardware, &Chains, None);
        // Tiny: 12 million parameters, four values of four bytes each, and five checkpoints at most.
        let plan = solve("", &on_disk(100_000, true)).unwrap();
        let needed_mb = plan.checkpoints.needed_bytes.div_ceil(MIB);
        assert_eq!(plan.checkpoints.each_bytes / MIB, 12_000_000 * 16 / MIB + 1);
        assert!(solve("", &on_disk(needed_mb, true)).is_ok());
        let refusal = solve("", &on_disk(needed_mb - 1, true)).unwrap_err();
        assert_eq!(refusal.kind, Reason::Disk);
        for part in ["the last 3 and the best are kept", "--checkpoint-dir FOLDER", "Free 1.0 MB there"] {
            assert!(refusal.message.contains(part), "{part}: {refusal}");
        }
        let typed: Vec<String> = refusal.suggestions.iter().map(|suggestion| suggestion.args().join(" ")).collect();
        assert_eq!(typed, ["--model-size nano", "--optimization-level basic"]);
        for line in typed {
            solve(&line, &on_disk(needed_mb - 1, true)).unwrap();
        }
        // A short run writes fewer.
        solve("--max-steps 1", &on_disk(needed_mb / 3, true)).unwrap();
        // Where they are only shown, a note.
        let shown = solve("", &on_disk(1, false)).unwrap();
        assert!(
            shown.notes.iter().any(|note| note.contains("do not fit on the disk of this machine")),
            "{:?}",
            shown.notes
        );
        assert_eq!(solve("", &gpus(1, 24)).unwrap().checkpoints.missing_bytes(), None);
    }
}
