//! The last words of a run: what came of it, and what to type next.

use std::path::Path;

use tandem_launch::launch::Corpora;
use tandem_launch::samples::spoken;
use tandem_plan::setting::Id;
use tandem_plan::{Plan, quoted};
use tandem_train::{RUN_LOG, RunFolder, RunOutcome};

use crate::args::PlanCall;

/// Letters of the text in a command to type.
const WORDS_CHARS: usize = 60;

/// What came of it, and what to type next.
pub(crate) fn farewell(outcome: &RunOutcome, plan: &Plan, folder: &RunFolder, typed: &PlanCall, words: &str) -> String {
    let mut text = match outcome.stopped {
        false => format!("✅ Trained to step {} in {}\n", outcome.step, folder.path().display()),
        true => format!("Stopped after step {}, which is kept in {}\n", outcome.step, folder.path().display()),
    };
    if let Some(report) = &outcome.validation {
        text += &format!(
            "   Held-out mel L1 {:.3}: {:.2} of what guessing the mean gives ({:.3}), {} utterances\n",
            report.score(),
            report.ratio().unwrap_or(f64::NAN),
            report.figures.get("mean").unwrap_or(f64::NAN),
            report.utterances
        );
    }
    let dir = quoted(&plan.training.checkpoint_dir);
    let speak = format!("     tandem synthesize --checkpoint {dir} --text {} -o out.wav\n", quoted(words));
    if outcome.stopped {
        return text + "   The same command goes on from there; this speaks:\n" + &speak;
    }
    text += "   Next:\n";
    text += &format!("     tandem train {}   goes on from here\n", flags_to_go_on(typed, plan, outcome.step));
    if typed.settings.given(Id::TrainData).is_none() {
        text += "     tandem train --train-data DIR --checkpoint-dir OTHER   trains on your own recordings\n";
    }
    text += &format!("     cat {}   every step of this run\n", shown(&folder.path().join(RUN_LOG)));
    text + &speak
}

/// What was typed, for twice as long: another batch, model or mode would be another run.
fn flags_to_go_on(typed: &PlanCall, plan: &Plan, step: u64) -> String {
    let training = &plan.training;
    let longer = match training.max_steps.is_some_and(|most| most <= step) {
        true => ("max-steps", 2 * step),
        false => ("epochs", 2 * training.epochs),
    };
    let settings = typed.settings.without(&[Id::Resume, Id::ResetTraining]);
    let settings = settings.with(&[(longer.0, longer.1.to_string())]).unwrap_or(settings);
    let sim = typed.sim_text.as_ref().map(|spec| format!("--sim {} ", quoted(spec))).unwrap_or_default();
    format!("{sim}{settings}")
}

/// A few words of the corpus that the model has not heard, where there are any: it can read them.
pub(crate) fn words_to_say(corpora: &Corpora) -> String {
    let held_out = spoken(corpora).next().map(|sample| sample.text.to_owned());
    let trained = || {
        let (index, _) = corpora.train.rows().first()?;
        corpora.train.dataset().get(*index).map(|sample| sample.text.to_owned())
    };
    let text = held_out.or_else(trained).unwrap_or_default();
    first_words(&text)
}

/// The beginning of a text that fits a line.
fn first_words(text: &str) -> String {
    let mut words = String::new();
    for word in text.split_whitespace() {
        if !words.is_empty() && words.chars().count() + 1 + word.chars().count() > WORDS_CHARS {
            break;
        }
        words += if words.is_empty() { "" } else { " " };
        words += word;
    }
    words.chars().take(WORDS_CHARS).collect()
}

fn shown(path: &Path) -> String {
    quoted(&path.display().to_string())
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
}
