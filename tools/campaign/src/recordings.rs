//! Mutated recordings: hundreds in one corpus, decoded by one command. No row may vanish, intact ones stay usable, and
//! hopeless ones are named.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use serde_json::Value;

use crate::audio_files::{BaseRecording, Condition, base_recordings, mutated_recording};
use crate::case::CaseContext;
use crate::command::CommandSpec;
use crate::tree;

/// Recordings of a corpus.
const ROWS: usize = 400;
/// Short enough for every recording.
const TEXT: &str = "Hi.";
const ENDINGS: [&str; 4] = ["wav", "flac", "ogg", "mp3"];

/// A row of a corpus.
struct WrittenRow {
    condition: Condition,
    base: usize,
    name: String,
}

pub(crate) fn run(case: &mut CaseContext<'_>) -> anyhow::Result<()> {
    let bases = base_recordings();
    let rows = write_corpus(case, &bases)?;
    let before = tree::digest(&case.path("corpus"))?;
    check(case, &rows, &bases)?;
    account(case, rows.len())?;
    if case.choices.one_in(8) {
        train(case)?;
    }
    for _ in 0..2 {
        let name = case.choices.pick(&rows).name.clone();
        case.run(&CommandSpec::new(&format!("corpus features corpus/wavs/{name} -o mel.npy --overwrite")).bounded())?;
    }
    case.unchanged("corpus", &before)?;
    case.counts.inputs += rows.iter().filter(|row| row.condition != Condition::Intact).count() as u64;
    Ok(())
}

fn write_corpus(case: &mut CaseContext<'_>, bases: &[BaseRecording]) -> anyhow::Result<Vec<WrittenRow>> {
    fs::create_dir_all(case.path("corpus/wavs"))?;
    let mut rows = Vec::new();
    let mut list = String::new();
    // The first ones are intact, so that every corpus has usable rows and every format is compared.
    for number in 0..ROWS {
        let (bytes, condition, base) = match bases.get(number) {
            Some(base) => (base.bytes.clone(), Condition::Intact, number),
            None => mutated_recording(bases, &mut case.choices),
        };
        // The content decides, not the name.
        let name = format!("r{number}.{}", case.choices.pick(&ENDINGS));
        case.write(&format!("corpus/wavs/{name}"), bytes)?;
        list += &format!("r{number}|{TEXT}\n");
        rows.push(WrittenRow { condition, base, name });
    }
    case.write("corpus/metadata.csv", list)?;
    Ok(rows)
}

/// `corpus check` decodes every file.
fn check(case: &mut CaseContext<'_>, rows: &[WrittenRow], bases: &[BaseRecording]) -> anyhow::Result<()> {
    let outcome = case.run(&CommandSpec::new("corpus check corpus --json").bounded())?;
    let Some(report) = case.document(&outcome) else { return Ok(()) };
    if report["utterances"].as_u64() != Some(rows.len() as u64) {
        case.fail(format!("silent loss: {} rows, but {} utterances", rows.len(), report["utterances"]));
    }
    let problems = problems_by_line(&report);
    if problems.is_empty() == (outcome.ended != crate::command::HowEnded::Exited(0)) {
        case.fail(format!("{:?} with {} problems", outcome.ended, problems.len()));
    }
    // An intact recording gets the same verdict wherever it is: the first of its kind is the measure.
    let mut verdicts: BTreeMap<usize, BTreeSet<String>> = BTreeMap::new();
    for (number, row) in rows.iter().enumerate() {
        let kinds = problems.get(&(number as u64 + 1)).cloned().unwrap_or_default();
        match row.condition {
            Condition::Hopeless if !kinds.contains("undecodable-audio") => {
                case.fail(format!("silent loss: {} holds no audio, and nothing is said", row.name));
            }
            Condition::Intact => {
                let first = verdicts.entry(row.base).or_insert_with(|| kinds.clone()).clone();
                if first != kinds {
                    let format = bases[row.base].name;
                    case.fail(format!("{} ({format}): {kinds:?}, but {first:?} for the same bytes", row.name));
                }
            }
            _ => {}
        }
    }
    if case.choices.one_in(4) {
        let again = case.run(&CommandSpec::new("corpus check corpus --json --num-workers 1").bounded())?;
        if again.out != outcome.out {
            case.fail("the report differs with one worker");
        }
    }
    Ok(())
}

fn problems_by_line(report: &Value) -> BTreeMap<u64, BTreeSet<String>> {
    let mut lines: BTreeMap<u64, BTreeSet<String>> = BTreeMap::new();
    for problem in report["problems"].as_array().into_iter().flatten() {
        let kind = problem["kind"].as_str().unwrap_or_default().to_owned();
        lines.entry(problem["line"].as_u64().unwrap_or(0)).or_default().insert(kind);
    }
    lines
}

/// Every row of a list is used or counted as left out.
pub(crate) fn account(case: &mut CaseContext<'_>, rows: usize) -> anyhow::Result<()> {
    let spec =
        CommandSpec::new("plan --mode cpu --model-size nano --batch-size 2 --json --train-data corpus").bounded();
    let outcome = case.run(&spec)?;
    let Some(plan) = case.document(&outcome) else { return Ok(()) };
    if outcome.succeeded() {
        let counted = counted_rows(&plan["corpus"]);
        if counted != rows as u64 {
            case.fail(format!(
                "rows do not add up: {rows} rows, but {counted} are used or left out: {}",
                plan["corpus"]
            ));
        }
    }
    Ok(())
}

/// Rows that a plan accounts for.
pub(crate) fn counted_rows(corpus: &Value) -> u64 {
    let number = |value: &Value| value.as_u64().unwrap_or(0);
    let used = number(&corpus["utterances"]) + number(&corpus["validation"]) + number(&corpus["excluded"]);
    let rejected: u64 = corpus["rejected"].as_object().into_iter().flatten().map(|(_, count)| number(count)).sum();
    let left_out = ["too_long", "too_short", "bad_text", "no_length"].map(|why| number(&corpus["left_out"][why]));
    used + rejected + left_out.iter().sum::<u64>()
}

/// A short training run on the mutated corpus: bad recordings are replaced and listed.
fn train(case: &mut CaseContext<'_>) -> anyhow::Result<()> {
    let line = "train --mode cpu --model-size nano --batch-size 2 --buffer-size 4 --max-mel-frames 200 --max-steps 4 \
                --max-bad-fraction 1 --train-data corpus --checkpoint-dir run";
    case.run(&CommandSpec::new(line).bounded())?;
    case.count("training runs on mutated recordings");
    let listed = fs::read_to_string(case.path("run/bad_samples.jsonl")).unwrap_or_default();
    if let Some(line) = listed.lines().find(|line| serde_json::from_str::<Value>(line).is_err()) {
        case.fail(format!("bad_samples.jsonl holds a line that is not JSON: {line}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_reason_to_leave_a_row_out_is_counted() {
        let corpus = json!({ "utterances": 10, "validation": 2, "excluded": 1, "rejected": { "empty text": 3 },
                             "left_out": { "too_long": 1, "too_short": 1, "bad_text": 1, "no_length": 1,
                                           "longest_frames": 900, "longest_tokens": 90 } });
        assert_eq!(counted_rows(&corpus), 20);
    }
}
