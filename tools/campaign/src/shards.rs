//! Mutated shards, indexes of shards and mixtures: rows are read or named as problems, an index never changes what is read, and
//! nothing crashes.

use std::fs;
use std::path::PathBuf;

use serde_json::Value;

use crate::audio_files::wav;
use crate::case::CaseContext;
use crate::command::CommandSpec;
use crate::mutate::{mutate, replace_number};
use crate::tree;

/// Utterances before anything is mutated.
const ROWS: usize = 12;
/// Mutated inputs of a case.
const INPUTS: usize = 6;
/// What pyarrow writes for a dataset with audio.
const ARROW: &[u8] = include_bytes!("../../../crates/shards/tests/data/speech_file.arrow");
const MIXTURE: &str =
    "sources:\n  - path: tar\n    weight: 0.5\n  - {path: [parquet/shard-000000.parquet], name: second, lang: en}\n";

pub(crate) fn run(case: &mut CaseContext<'_>) -> anyhow::Result<()> {
    let list: String = (0..ROWS).map(|row| format!("r{row}|Hi number {row}.\n")).collect();
    case.write("corpus/metadata.csv", list)?;
    for row in 0..ROWS {
        case.write(&format!("corpus/wavs/r{row}.wav"), wav(1, 1, 8_000, 16, 0.4 + 0.02 * row as f64))?;
    }
    for format in ["tar", "parquet"] {
        case.run(&CommandSpec::new(&format!("corpus pack corpus --format {format} -o {format}")))?;
    }
    case.write("arrow/data.arrow", ARROW)?;
    for _ in 0..INPUTS {
        match case.choices.below(8) {
            0..3 => damaged_shard(case, "tar/shard-000000.tar", ROWS)?,
            3..5 => damaged_shard(case, "parquet/shard-000000.parquet", ROWS)?,
            5 => damaged_shard(case, "arrow/data.arrow", usize::MAX)?,
            6 => damaged_index(case)?,
            _ => damaged_mixture(case)?,
        }
    }
    Ok(())
}

/// A mutated container: what is read from it is the same with and without an index.
fn damaged_shard(case: &mut CaseContext<'_>, name: &str, rows: usize) -> anyhow::Result<()> {
    let clean = fs::read(case.path(name))?;
    let mut bytes = clean.clone();
    let count = case.choices.between(1, 5);
    mutate(&mut bytes, ARROW, count, &mut case.choices);
    case.write(name, &bytes)?;
    case.remove("home/.cache");
    case.counts.inputs += 1;
    let first = index(case, name)?;
    let second = index(case, name)?;
    for key in ["utterances", "problems", "shards"] {
        let found = |document: &Option<Value>| document.as_ref().map(|document| document[key].clone());
        if found(&first) != found(&second) {
            case.fail(format!("{key} of {name} differ with an index: {first:?}, then {second:?}"));
        }
    }
    // A splice may repeat members: of one name, the first counts.
    let utterances = first.as_ref().and_then(|document| document["utterances"].as_u64()).unwrap_or(0) as usize;
    if utterances > rows {
        case.fail(format!("{utterances} utterances in {name}, which had {rows}"));
    }
    case.run(&CommandSpec::new(&format!("corpus check --json {name}")).bounded())?;
    case.write(name, clean)?;
    Ok(())
}

/// `corpus index` of a source, which is not changed by it. None if it was refused.
fn index(case: &mut CaseContext<'_>, source: &str) -> anyhow::Result<Option<Value>> {
    let folder = source.split('/').next().unwrap_or(source).to_owned();
    let before = tree::digest(&case.path(&folder))?;
    let outcome = case.run(&CommandSpec::new(&format!("corpus index --json {source}")).bounded())?;
    case.unchanged(&folder, &before)?;
    let document = case.document(&outcome);
    Ok(document.filter(|document| document.get("error").is_none()))
}

/// A damaged index is built again: the rows are those of the clean one.
fn damaged_index(case: &mut CaseContext<'_>) -> anyhow::Result<()> {
    case.remove("home/.cache");
    let Some(clean) = index(case, "tar")? else { return Ok(()) };
    let folder = case.path("home/.cache/tandem/shards");
    let files: Vec<PathBuf> =
        fs::read_dir(&folder).map(|entries| entries.flatten().map(|entry| entry.path()).collect()).unwrap_or_default();
    if files.is_empty() {
        case.fail(format!("no index was written to {}", folder.display()));
    }
    for path in files {
        let mut bytes = fs::read(&path)?;
        let count = case.choices.between(1, 5);
        mutate(&mut bytes, b"tandem shard index 2\n", count, &mut case.choices);
        fs::write(&path, bytes)?;
        case.counts.inputs += 1;
    }
    let again = index(case, "tar")?;
    let rows = |document: &Value| (document["utterances"].clone(), document["problems"].clone());
    if again.as_ref().map(&rows) != Some(rows(&clean)) {
        case.fail(format!("a damaged index changed what is read: {clean}, then {again:?}"));
    }
    Ok(())
}

fn damaged_mixture(case: &mut CaseContext<'_>) -> anyhow::Result<()> {
    let mut text = MIXTURE.as_bytes().to_vec();
    for _ in 0..case.choices.between(1, 4) {
        match case.choices.one_in(2) {
            true => drop(mutate(&mut text, b"[{- &a *a", 1, &mut case.choices)),
            false => replace_number(&mut text, &mut case.choices),
        }
    }
    case.write("corpus.yaml", text)?;
    case.counts.inputs += 1;
    case.run(&CommandSpec::new("corpus index --json corpus.yaml").bounded())?;
    case.run(&CommandSpec::new("plan --mode cpu --model-size nano --batch-size 2 --train-data corpus.yaml").bounded())?;
    Ok(())
}
