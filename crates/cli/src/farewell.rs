//! The last lines of a training run: the result, and what to type next.

use std::path::Path;

use tandem_checkpoint::{RUN_LOG, RunFolder};
use tandem_launch::launch::Corpora;
use tandem_launch::samples::spoken;
use tandem_plan::setting::Id;
use tandem_plan::{Plan, Settings, quoted};
use tandem_train::{RunOutcome, ValidationReport};

use crate::args::PlanArgs;
use crate::ranks::train_command;

/// The longest text in a suggested command, in characters.
const MAX_TEXT_CHARS: usize = 60;
/// Replaced recordings that are named at the end; the file names all.
const MAX_REPLACED: usize = 5;

/// The result of a run. `verified` batches were verified after their transfer.
pub(crate) fn result_lines(outcome: &RunOutcome, folder: &RunFolder, verified: Option<u64>) -> String {
    let (step, path) = (outcome.step, folder.path().display());
    let mut text = match outcome.stopped {
        false => format!("✅ Training finished: {step} steps, saved in {path}"),
        true => format!("Stopped after step {step}; checkpoint saved in {path}"),
    };
    if let Some(report) = &outcome.validation {
        text += &format!("\n   Validation: {}, {} utterances", mel_score(report), report.utterances);
    }
    if let Some(verified) = verified {
        text += &format!("\n   {}", verified_text(verified));
    }
    text
}

/// How many batches arrived as they were sent.
pub(crate) fn verified_text(verified: u64) -> String {
    let batches = if verified == 1 { "1 batch" } else { &format!("{verified} batches") };
    format!("Verified {batches}: all arrived unchanged")
}

/// What to type next. `typed` are the flags as given; `text` is what to synthesise.
pub(crate) fn farewell(outcome: &RunOutcome, plan: &Plan, typed: &PlanArgs, text: &str) -> String {
    let (step, mut lines) = (outcome.step, Vec::new());
    if outcome.validation.is_some() {
        lines.push("   (L1 in standard deviations of the corpus; the baseline always predicts the mean)".to_owned());
    }
    let dir = quoted(&plan.training.checkpoint_dir);
    let synthesize = format!("       tandem synthesize --checkpoint {dir} --text {} -o out.wav", quoted(text));
    lines.push("   Next:".to_owned());
    if outcome.stopped {
        lines.push(resume_hint(typed, plan));
    } else {
        lines.push("     train longer:".to_owned());
        lines.push(format!("       {} {}", train_command(plan.world), flags_to_continue(typed, plan, step)));
        if typed.settings.given(Id::TrainData).is_none() {
            lines.push("     train on your own recordings:".to_owned());
            lines.push("       tandem train --train-data DIR --checkpoint-dir OTHER".to_owned());
        }
        lines.push(format!("     see the curves and stage times of this run ({RUN_LOG} has every step):"));
        lines.push(format!("       tandem monitor {dir}"));
    }
    lines.push("     hear it:".to_owned());
    lines.push(synthesize);
    lines.join("\n")
}

/// Recordings that could not be used: how many, the first of them, and the file that lists them.
pub(crate) fn replaced_text(replaced: &[String], list: &Path) -> String {
    let count = replaced.len();
    let recordings = if count == 1 { "1 recording was" } else { &format!("{count} recordings were") };
    let mut text = format!("{recordings} unusable and replaced by others:");
    replaced.iter().take(MAX_REPLACED).for_each(|line| text += &format!("\n   {line}"));
    let more = count.saturating_sub(MAX_REPLACED);
    if more > 0 {
        text += &format!("\n   and {more} more");
    }
    text + &format!("\n   Listed in {}", list.display())
}

/// `mel L1 0.351 (baseline 0.722, 51 % lower)`. The baseline predicts the mean of each mel band.
pub(crate) fn mel_score(report: &ValidationReport) -> String {
    let score = format!("mel L1 {:.3}", report.score());
    match (report.metrics.get("mean"), report.ratio()) {
        (Some(baseline), Some(ratio)) => format!("{score} (baseline {baseline:.3}, {})", against_baseline(ratio)),
        _ => score,
    }
}

/// `51 % lower`, for a score of 0.49 times the baseline.
fn against_baseline(ratio: f64) -> String {
    let percent = 100.0 * (ratio - 1.0);
    match percent {
        percent if percent.is_nan() => "not comparable".to_owned(),
        percent if percent > 0.0 => format!("{percent:.0} % higher"),
        percent => format!("{:.0} % lower", percent.abs()),
    }
}

/// Flags that say what a run starts from. Typed again, they would start it there again.
const START_FLAGS: [Id; 4] = [Id::Resume, Id::ResetTraining, Id::InitFrom, Id::InitMelStatistics];

fn resume_hint(typed: &PlanArgs, plan: &Plan) -> String {
    match START_FLAGS.iter().any(|id| typed.settings.given(*id).is_some()) {
        false => "     resume: type the same command again".to_owned(),
        true => {
            let flags = as_typed(typed, &typed.settings.without(&START_FLAGS));
            format!("     resume:\n       {} {flags}", train_command(plan.world))
        }
    }
}

/// The flags as typed, for twice as many steps. Another batch size, model or mode would be another run.
fn flags_to_continue(typed: &PlanArgs, plan: &Plan, step: u64) -> String {
    let training = &plan.training;
    let (flag, value) = match training.max_steps.is_some_and(|max_steps| max_steps <= step) {
        true => ("max-steps", 2 * step),
        false => ("epochs", 2 * training.epochs),
    };
    let settings = typed.settings.without(&START_FLAGS);
    as_typed(typed, &settings.with(&[(flag, value.to_string())]).unwrap_or(settings))
}

/// `settings` as flags, with `--sim` as it was typed.
fn as_typed(typed: &PlanArgs, settings: &Settings) -> String {
    let sim = typed.sim_text.as_ref().map(|spec| format!("--sim {} ", quoted(spec))).unwrap_or_default();
    format!("{sim}{settings}")
}

/// The start of a sentence to synthesise: from the validation set where there is one, else from the training set.
pub(crate) fn text_to_synthesize(corpora: &Corpora) -> String {
    let validation = spoken(corpora).next().map(|sample| sample.text.to_owned());
    let training = || {
        let (index, _) = corpora.train.rows().first()?;
        corpora.train.dataset().get(*index).map(|sample| sample.text.to_owned())
    };
    first_words(&validation.or_else(training).unwrap_or_default())
}

/// The first words of a text, as many as fit a line.
fn first_words(text: &str) -> String {
    let mut words = String::new();
    for word in text.split_whitespace() {
        if !words.is_empty() && words.chars().count() + 1 + word.chars().count() > MAX_TEXT_CHARS {
            break;
        }
        words += if words.is_empty() { "" } else { " " };
        words += word;
    }
    words.chars().take(MAX_TEXT_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_to_type_fits_a_line() {
        let check = |text: &str, expected: &str| assert_eq!(first_words(text), expected);
        check("  Good\tmorning.\n", "Good morning.");
        check("", "");
        check(&"ten chars ".repeat(20), "ten chars ".repeat(6).trim_end());
        check(&"x".repeat(100), &"x".repeat(60));
    }

    #[test]
    fn a_score_is_compared_with_the_baseline_in_percent() {
        let check = |ratio: f64, expected: &str| assert_eq!(against_baseline(ratio), expected);
        check(0.486, "51 % lower");
        check(1.0, "0 % lower");
        check(1.25, "25 % higher");
        check(f64::NAN, "not comparable");
    }
}
