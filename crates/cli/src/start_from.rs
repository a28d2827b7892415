//! What a run starts from: random weights, the checkpoint of `--resume`, or the weights of `--init-from`.
//!
//! What cannot be resumed is refused before anything is created.

use std::fs;
use std::path::Path;

use anyhow::Context;
use tandem_checkpoint::{Checkpoint, RUN_FILE, RunFolder, RunIdentity, best_intact, latest_intact};
use tandem_feed::TrainingSet;
use tandem_launch::launch::{Corpora, check_state, schedule_of};
use tandem_plan::setting::NEWEST;
use tandem_plan::{Plan, quoted};
use tandem_train::{InitReport, RunSchedule};

use crate::exit::Exit;
use crate::screen::Screen;
use crate::train::exit_of;

/// New symbols that are named at the start of a run.
const MAX_NAMED: usize = 8;

/// The checkpoint that `--resume PATH` names, if it does. `identity` is that of this run.
pub(crate) fn named_checkpoint(
    plan: &Plan,
    corpora: &Corpora,
    identity: &RunIdentity,
) -> Result<Option<Checkpoint>, Exit> {
    let Some(path) = plan.training.resume.as_deref().filter(|path| *path != NEWEST) else { return Ok(None) };
    let checkpoint = Checkpoint::open(path).map_err(|error| exit_of("--resume", error))?;
    // First: it says which flag differs, where there is one.
    check_state(&checkpoint, plan).map_err(|error| exit_of("--resume", error))?;
    checkpoint.check_run(identity).map_err(|error| exit_of("--resume", error))?;
    let schedule = schedule_of(plan, corpora);
    if let Some(schedule) = schedule.filter(|schedule| checkpoint.step >= schedule.total_steps)
        && !is_in(&checkpoint, &plan.training.checkpoint_dir)
    {
        return Err(Exit::Usage(nothing_in_a_new_folder(&checkpoint, &schedule, plan)));
    }
    Ok(Some(checkpoint))
}

/// Whether a checkpoint lies in this run folder.
fn is_in(checkpoint: &Checkpoint, folder: &str) -> bool {
    let parent = checkpoint.path.canonicalize().ok().and_then(|path| path.parent().map(Path::to_owned));
    parent.is_some() && parent == fs::canonicalize(folder).ok()
}

fn nothing_in_a_new_folder(checkpoint: &Checkpoint, schedule: &RunSchedule, plan: &Plan) -> String {
    let (step, total) = (checkpoint.step, schedule.total_steps);
    let longer = match plan.training.max_steps {
        Some(_) => format!("--max-steps {}", 2 * step.max(1)),
        None => format!("--epochs {}", 2 * plan.training.epochs.max(1)),
    };
    let path = quoted(&checkpoint.path.display().to_string());
    format!(
        "❌ --resume: nothing to train: the checkpoint is at step {step}, and the run ends at step {total}; the new folder \
         would stay empty\n   To train longer: {longer}\n   To use the checkpoint: tandem synthesize --checkpoint {path} \
         --text TEXT -o out.wav"
    )
}

/// The newest intact checkpoint of the run folder, if there is one. `--resume` without a path requires one.
pub(crate) fn newest_checkpoint(plan: &Plan, folder: &RunFolder, screen: &Screen) -> Result<Option<Checkpoint>, Exit> {
    let is_required = plan.training.resume.is_some();
    let found = latest_intact(folder.path()).context("cannot read the checkpoints")?;
    for skipped in &found.skipped {
        screen.warn(&format!("skipping a damaged checkpoint: {}", skipped.reason));
    }
    if found.checkpoint.is_none() && !found.skipped.is_empty() && !is_required {
        screen.warn("no intact checkpoint found: starting from step 0");
    }
    match found.checkpoint {
        None if is_required => Err(Exit::Usage(format!(
            "❌ --resume: no checkpoint to resume from in {}; to start a new run, leave --resume out",
            folder.path().display()
        ))),
        checkpoint => Ok(checkpoint),
    }
}

/// The checkpoint of `--init-from`: it, or the best one of the run it names.
pub(crate) fn init_checkpoint(plan: &Plan, screen: &Screen) -> Result<Option<Checkpoint>, Exit> {
    let Some(path) = plan.training.init_from.as_deref() else { return Ok(None) };
    if plan.training.resume.is_some() {
        return Err(Exit::Usage(
            "❌ --init-from starts a new run, --resume continues one: give one of the two".to_owned(),
        ));
    }
    if Path::new(path).join(RUN_FILE).is_file() {
        let found = best_intact(Path::new(path)).context("cannot read the checkpoints of --init-from")?;
        for skipped in &found.skipped {
            screen.warn(&format!("skipping a damaged checkpoint: {}", skipped.reason));
        }
        if found.checkpoint.is_some() {
            return Ok(found.checkpoint);
        }
    }
    Checkpoint::open(path).map(Some).map_err(|error| exit_of("--init-from", error))
}

/// The languages of a corpus and their phonemizers. None for English as usual, which needs no line.
pub(crate) fn describe_languages(train: &TrainingSet) -> Option<String> {
    let tokenizer = train.tokenizer()?;
    let shown: Vec<String> =
        tokenizer.languages().iter().map(|rules| format!("{} ({})", rules.tag, rules.phonemizer)).collect();
    let lexicon = tokenizer.lexicon().map(|lexicon| format!("; {} words of the lexicon first", lexicon.len()));
    let is_usual = lexicon.is_none() && shown == ["en (dictionary)"];
    (!is_usual).then(|| format!("Languages: {}{}", shown.join(", "), lexicon.unwrap_or_default()))
}

/// What a run took from the checkpoint of `--init-from`, in lines to print.
pub(crate) fn describe_init(checkpoint: &Checkpoint, report: &InitReport, plan: &Plan) -> Vec<String> {
    let InitReport { known_symbols, new_symbols, new_languages } = report;
    let mut symbols = format!("{known_symbols} symbols known");
    if !new_symbols.is_empty() {
        let named: Vec<String> = new_symbols.iter().take(MAX_NAMED).map(|symbol| format!("{symbol:?}")).collect();
        let more = if new_symbols.len() > MAX_NAMED { " …" } else { "" };
        symbols += &format!(", {} new: {}{more}", new_symbols.len(), named.join(" "));
    }
    if !new_languages.is_empty() {
        symbols += &format!("; new languages: {}", new_languages.join(", "));
    }
    let statistics = match plan.training.keeps_mel_statistics {
        true => "as that model does (--init-mel-statistics measure: by the new data)",
        false => "by the new data (--init-mel-statistics keep: as that model does)",
    };
    vec![
        format!("   Starting from the weights of step {}: {}", checkpoint.step, checkpoint.path.display()),
        format!("   {symbols}; spectrograms are normalised {statistics}"),
    ]
}
