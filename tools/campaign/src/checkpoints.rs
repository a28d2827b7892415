//! Mutated checkpoints. Damage that a checksum can see is found: the run resumes from an older checkpoint to the same
//! bytes. Forged files, whose checksums are right, may be refused or used, and crash nothing.

use std::fs::{self, OpenOptions};
use std::path::Path;

use anyhow::Context;
use serde_json::Value;
use twox_hash::XxHash3_64;

use crate::case::CaseContext;
use crate::choices::Choices;
use crate::command::CommandSpec;
use crate::fixtures::{STEPS, VARIANTS};
use crate::mutate::{mutate, replace_number};
use crate::tree;

const FILES: [&str; 4] = ["weights.safetensors", "optimizer.safetensors", "model.json", "state.json"];

pub(crate) fn run(case: &mut CaseContext<'_>) -> anyhow::Result<()> {
    case.copy_corpus()?;
    let variant = VARIANTS[0];
    let reference = case.reference(variant)?;
    tree::copy(&reference.run, &case.path("run"))?;
    let kept: Vec<String> = checkpoints(&case.path("run"))?;
    match case.choices.below(3) {
        0 | 1 => {
            let damaged = damage(case, &kept)?;
            speak(case)?;
            let outcome = case.run(&variant.command().bounded())?;
            match outcome.succeeded() {
                true => case.same_bytes("run", &reference),
                false => case.fail(format!("a run with damaged checkpoints does not go on: {:?}", outcome.ended)),
            }
            let newest = format!("checkpoint-{STEPS:08}");
            if damaged.contains(&newest) && !outcome.err_text().contains("skipping a damaged checkpoint") {
                case.fail("silent loss: the newest checkpoint is damaged, and nothing is said");
            }
        }
        _ => {
            forge(case)?;
            speak(case)?;
            case.run(&variant.command_with("--max-steps 20", "--max-steps 21").bounded())?;
            case.run(&variant.command().arg("--resume").arg(format!("run/checkpoint-{STEPS:08}")).bounded())?;
        }
    }
    if case.choices.one_in(3) {
        other_files(case)?;
    }
    Ok(())
}

/// `synthesize` reads the newest or best checkpoint, or the one that is named.
fn speak(case: &mut CaseContext<'_>) -> anyhow::Result<()> {
    let checkpoint = if case.choices.one_in(2) { "run".to_owned() } else { format!("run/checkpoint-{STEPS:08}") };
    let line = format!("synthesize --mode cpu --text Hello. -o out.wav --overwrite --checkpoint {checkpoint}");
    case.run(&CommandSpec::new(&line).bounded())?;
    Ok(())
}

/// The checkpoints of a run folder, oldest first.
pub(crate) fn checkpoints(run: &Path) -> anyhow::Result<Vec<String>> {
    let mut names = Vec::new();
    if run.is_dir() {
        for entry in fs::read_dir(run)? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if name.starts_with("checkpoint-") {
                names.push(name);
            }
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// Damages some files. Returns the checkpoints whose bytes have changed.
fn damage(case: &mut CaseContext<'_>, kept: &[String]) -> anyhow::Result<Vec<String>> {
    let mut damaged = Vec::new();
    for _ in 0..case.choices.between(1, 3) {
        // Mostly the newest, which is the one that is read.
        let from_end = if case.choices.one_in(3) { case.choices.below(kept.len()) } else { 0 };
        let name = kept[kept.len() - 1 - from_end].clone();
        let file = *case.choices.pick(&FILES);
        let path = case.path(&format!("run/{name}/{file}"));
        if !is_small_file(&path) {
            // Damaged before.
            continue;
        }
        let before = fs::read(&path)?;
        damage_file(case, &path, &name, file, kept)?;
        case.counts.inputs += 1;
        let after = if is_small_file(&path) { fs::read(&path)? } else { Vec::new() };
        // A state of another formatting is the same state.
        let same_state = file == "state.json" && same_json(&before, &after);
        if after != before && !same_state {
            damaged.push(name);
        }
    }
    Ok(damaged)
}

/// Whether it is a file that can be read whole: one of the damages is a file of 100 GB without content.
fn is_small_file(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| found.is_file() && found.len() < tree::MAX_COPIED_BYTES)
}

fn same_json(before: &[u8], after: &[u8]) -> bool {
    let parsed = |bytes: &[u8]| serde_json::from_slice::<Value>(bytes).ok();
    parsed(before).is_some() && parsed(before) == parsed(after)
}

fn damage_file(
    case: &mut CaseContext<'_>,
    path: &Path,
    checkpoint: &str,
    file: &str,
    kept: &[String],
) -> anyhow::Result<()> {
    if !is_small_file(path) {
        return Ok(());
    }
    let mut bytes = fs::read(path)?;
    match case.choices.below(10) {
        0 => fs::remove_file(path)?,
        1 => fs::write(path, b"")?,
        2 => fs::write(path, vec![0; bytes.len()])?,
        3 => {
            // The same file of another checkpoint.
            let other = case.choices.pick(kept).clone();
            let other_path = case.path(&format!("run/{other}/{file}"));
            if other != checkpoint && is_small_file(&other_path) {
                fs::copy(other_path, path)?;
            }
        }
        4 => {
            // Another file of the same checkpoint.
            let other = path.with_file_name(case.choices.pick(&FILES));
            if is_small_file(&other) && other != path {
                fs::copy(other, path)?;
            }
        }
        // A file of 100 GB without content: it must not be read into memory.
        5 => OpenOptions::new().write(true).open(path)?.set_len(100 << 30)?,
        6 => {
            fs::remove_file(path)?;
            fs::create_dir(path)?;
        }
        _ => {
            let count = case.choices.between(1, 4);
            mutate(&mut bytes, b"{\"format\": 1}", count, &mut case.choices);
            fs::write(path, bytes)?;
        }
    }
    Ok(())
}

/// Changes what the newest checkpoint says, and makes all its checksums right.
fn forge(case: &mut CaseContext<'_>) -> anyhow::Result<()> {
    let folder = case.path(&format!("run/checkpoint-{STEPS:08}"));
    let mut state: Value = serde_json::from_slice(&fs::read(folder.join("state.json"))?)?;
    for _ in 0..case.choices.between(1, 2) {
        case.counts.inputs += 1;
        match case.choices.below(4) {
            0 | 1 => {
                let mut bytes = fs::read(folder.join("model.json"))?;
                forge_text(&mut bytes, &mut case.choices);
                write_with_digest(&folder, "model.json", &bytes, &mut state)?;
            }
            2 => {
                let name = *case.choices.pick(&FILES[..2]);
                let mut bytes = fs::read(folder.join(name))?;
                forge_tensors(&mut bytes, &mut case.choices);
                write_with_digest(&folder, name, &bytes, &mut state)?;
            }
            _ => {
                let mut text = serde_json::to_vec(&state["record"])?;
                forge_text(&mut text, &mut case.choices);
                // A record that is no longer JSON is damage, which others test.
                if let Ok(record) = serde_json::from_slice(&text) {
                    state["record"] = record;
                }
            }
        }
    }
    state["checksum"] = checksum(&serde_json::to_vec(&state["record"])?).into();
    fs::write(folder.join("state.json"), serde_json::to_vec_pretty(&state)?)?;
    case.count("forged checkpoints");
    Ok(())
}

fn forge_text(bytes: &mut Vec<u8>, choices: &mut Choices) {
    for _ in 0..choices.between(1, 3) {
        match choices.below(8) {
            0 => drop(mutate(bytes, b"\"\\u001b[31m\"", 1, choices)),
            _ => replace_number(bytes, choices),
        }
    }
}

/// Changes the header of a safetensors file (names, shapes, offsets), its length field, or the numbers.
fn forge_tensors(bytes: &mut Vec<u8>, choices: &mut Choices) {
    let length = bytes.get(..8).and_then(|head| head.try_into().ok()).map_or(0, u64::from_le_bytes) as usize;
    match choices.below(4) {
        0 => drop(mutate(bytes, b"NaN", 3, choices)),
        1 => {
            // Numbers that are not finite, in the middle of the data.
            let at = (8 + length + choices.below(bytes.len() / 2)).min(bytes.len());
            let end = (at + 4096).min(bytes.len());
            bytes[at..end].fill(0xff);
        }
        _ => {
            let mut header = bytes.get(8..8 + length).unwrap_or_default().to_vec();
            for _ in 0..choices.between(1, 3) {
                replace_number(&mut header, choices);
            }
            let data = bytes.get(8 + length..).unwrap_or_default().to_vec();
            *bytes = [&(header.len() as u64).to_le_bytes()[..], &header, &data].concat();
        }
    }
}

fn write_with_digest(folder: &Path, name: &str, bytes: &[u8], state: &mut Value) -> anyhow::Result<()> {
    fs::write(folder.join(name), bytes)?;
    let file = state["record"]["files"].get_mut(name).with_context(|| format!("the state does not list {name}"))?;
    file["bytes"] = bytes.len().into();
    file["xxh3"] = checksum(bytes).into();
    Ok(())
}

/// XXH3, 64 bits, as checkpoints write it.
fn checksum(bytes: &[u8]) -> String {
    format!("{:016x}", XxHash3_64::oneshot(bytes))
}

/// The other files of a run folder: its identity and its log.
fn other_files(case: &mut CaseContext<'_>) -> anyhow::Result<()> {
    let name = *case.choices.pick(&["run/run.json", "run/run.jsonl", "run/.tandem.lock"]);
    let path = case.path(name);
    if let Ok(mut bytes) = fs::read(&path) {
        let count = case.choices.between(1, 3);
        mutate(&mut bytes, b"{}", count, &mut case.choices);
        fs::write(&path, bytes)?;
        case.counts.inputs += 1;
    }
    case.run(&VARIANTS[0].command().bounded())?;
    case.run(&CommandSpec::new("monitor --once run").bounded())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_that_is_only_formatted_otherwise_is_the_same() {
        assert!(same_json(b"{\"a\": 1}", b"{ \"a\":1 }\n"));
        assert!(!same_json(b"{\"a\": 1}", b"{\"a\": 2}") && !same_json(b"{\"a\": 1}", b"{\"a\": 1"));
        assert!(!same_json(b"x", b"x"));
    }

    #[test]
    fn the_checksum_is_the_published_xxh3() {
        // `xxhsum -H3` of an empty file.
        assert_eq!(checksum(b""), "2d06800538d394c2");
    }
}
