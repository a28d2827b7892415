//! What a run with several ranks asks of the settings: a number of micro-batches that all ranks share equally.

use crate::hardware::Hardware;
use crate::refusal::{Refusal, Suggestion};
use crate::setting::Id;
use crate::settings::Settings;
use crate::value::SettingValue;

/// The settings of a run with the ranks of `hardware`, and a note if `--grad-accum` changed.
///
/// A run has the same micro-batches with any number of ranks. So a new run raises their number to a multiple of the ranks, and
/// a run that is there keeps its own number.
pub(crate) fn with_micro_batches(
    settings: &Settings,
    hardware: &Hardware,
) -> Result<(Settings, Option<String>), Refusal> {
    let size = u64::from(hardware.world.size);
    let asked = settings.count(Id::GradAccum);
    let is_given = settings.given(Id::GradAccum).is_some();
    let stored = hardware.run_folder.and_then(|folder| folder.grad_accum).filter(|_| !is_given);
    let count = match stored {
        Some(stored) if !stored.is_multiple_of(size) => return Err(not_shared(stored, size)),
        Some(stored) => stored,
        None => asked.next_multiple_of(size),
    };
    if count == asked {
        return Ok((settings.clone(), None));
    }
    let note = match stored {
        Some(_) => format!("--grad-accum {count}: the run in this folder has {count} micro-batches a step"),
        None => format!("--grad-accum raised from {asked} to {count}: {size} ranks share the micro-batches of a step"),
    };
    let mut settings = settings.clone();
    settings.replace(Id::GradAccum, SettingValue::Count(count));
    Ok((settings, Some(note)))
}

fn not_shared(stored: u64, size: u64) -> Refusal {
    let fitting: Vec<String> =
        (1..=stored).filter(|ranks| stored.is_multiple_of(*ranks)).map(|n| n.to_string()).collect();
    Refusal::usage(format!(
        "❌ The run in this folder has {} a step, which {size} ranks cannot share equally: \
         use {} {}, or start a new run",
        if stored == 1 { "1 micro-batch".to_owned() } else { format!("{stored} micro-batches") },
        fitting.join(" or "),
        if stored == 1 { "rank" } else { "ranks" }
    ))
    .suggest(
        Suggestion::new("a new run; the earlier one is moved aside").set(Id::ResetTraining, SettingValue::Switch(true)),
    )
}

#[cfg(test)]
mod tests {
    use tandem_checkpoint::FolderSpace;
    use tandem_ranks::World;

    use super::*;
    use crate::fixture::{gpus, settings};
    use crate::hardware::RunFolderFacts;

    fn machine(size: u32, stored: Option<u64>) -> Hardware {
        let world = World { rank: 0, size, local_rank: 0, local_size: size };
        let space = FolderSpace::default();
        let folder = RunFolderFacts { space, must_fit: false, arithmetic: None, grad_accum: stored };
        Hardware { world, run_folder: Some(folder), ..gpus(size as usize, 24) }
    }

    #[test]
    fn micro_batches_are_a_multiple_of_the_ranks_and_a_run_keeps_its_own() {
        let check = |line: &str, size: u32, stored: Option<u64>, expected: u64, noted: bool| {
            let (changed, note) = with_micro_batches(&settings(line), &machine(size, stored)).unwrap();
            assert_eq!((changed.count(Id::GradAccum), note.is_some()), (expected, noted), "{line} {size} {stored:?}");
        };
        check("", 1, None, 1, false);
        check("--grad-accum 3", 1, None, 3, false);
        check("", 2, None, 2, true);
        check("--grad-accum 2", 2, None, 2, false);
        check("--grad-accum 3", 2, None, 4, true);
        check("", 1, Some(4), 4, true);
        check("", 2, Some(4), 4, true);
        check("", 1, Some(1), 1, false);
        // A number that is given decides; the folder then refuses another.
        check("--grad-accum 2", 2, Some(4), 2, false);
    }

    #[test]
    fn ranks_that_cannot_share_a_run_are_refused_with_those_that_can() {
        let refusal = with_micro_batches(&settings(""), &machine(3, Some(4))).unwrap_err();
        assert!(refusal.message.contains("use 1 or 2 or 4 ranks"), "{refusal}");
    }
}
