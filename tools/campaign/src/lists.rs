//! Mutated lists: metadata, manifests, exclude lists, and the cache of measured lengths. Every line is an utterance, or
//! is named as a problem.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;

use crate::audio_files::wav;
use crate::case::CaseContext;
use crate::choices::Choices;
use crate::command::CommandSpec;
use crate::mutate::{mutate, replace_number};
use crate::recordings::{account, counted_rows};
use crate::tree;

/// Rows of a list before it is mutated.
const ROWS: usize = 24;
/// Lists of a case.
const LISTS: usize = 6;
/// Problems whose row is not part of the corpus.
const REJECTED: [&str; 12] = [
    "missing-column",
    "too-many-columns",
    "invalid-utf8",
    "line-too-long",
    "duplicate-id",
    "empty-id",
    "empty-text",
    "bad-json",
    "missing-key",
    "wrong-type",
    "bad-number",
    "missing-audio",
];
/// Those that are also found when a recording is opened or a text is read: then the row is an utterance, too.
const MAYBE_KEPT: [&str; 3] = ["bad-number", "empty-text", "missing-audio"];
/// Fields that readers, terminals and file systems trip over.
const FIELDS: [&str; 24] = [
    "",
    " ",
    "../../../../etc/passwd",
    "/etc/passwd",
    "/dev/zero",
    "..",
    ".",
    "a/../r0",
    "\u{1b}[2J\u{1b}[31mred",
    "\u{1b}]0;title\u{7}",
    "\u{9b}31m",
    "\r\u{8}\u{7f}",
    "nul\0nul",
    "\u{202e}reversed",
    "\u{feff}mark",
    "中文 и русский",
    "e\u{301}\u{301}\u{301}\u{301}",
    "99999999999999999999999999999999999999999999",
    "-0.0e-999",
    "\"quoted\"\"",
    "{{{{[[[[",
    "%s%n%x",
    "$(touch injected)",
    "\u{10ffff}",
];

pub(crate) fn run(case: &mut CaseContext<'_>) -> anyhow::Result<()> {
    for row in 0..ROWS {
        case.write(&format!("corpus/wavs/r{row}.wav"), wav(1, 1, 8_000, 16, 0.4 + 0.02 * row as f64))?;
    }
    if case.choices.one_in(3) {
        odd_files(case)?;
    }
    for _ in 0..LISTS {
        match case.choices.below(8) {
            0..4 => metadata(case)?,
            4..6 => manifest(case)?,
            6 => exclude_ids(case)?,
            _ => length_cache(case)?,
        }
    }
    Ok(())
}

/// Replaces some recordings by things that are not files.
fn odd_files(case: &mut CaseContext<'_>) -> anyhow::Result<()> {
    for _ in 0..case.choices.between(1, 4) {
        let row = case.choices.below(ROWS);
        let path = case.path(&format!("corpus/wavs/r{row}.wav"));
        // A link is a file here, whatever it leads to.
        let is_folder = fs::symlink_metadata(&path).is_ok_and(|found| found.is_dir());
        let _ = if is_folder { fs::remove_dir(&path) } else { fs::remove_file(&path) };
        match case.choices.below(7) {
            0 => symlink("/dev/zero", &path)?,
            1 => symlink(&path, &path)?,
            2 => symlink("/nonexistent", &path)?,
            3 => symlink("/etc/passwd", &path)?,
            4 => symlink("/proc/self/mem", &path)?,
            5 => fs::create_dir(&path)?,
            // Opening it would block.
            _ => {
                Command::new("mkfifo").arg(&path).status()?;
            }
        }
    }
    Ok(())
}

fn metadata(case: &mut CaseContext<'_>) -> anyhow::Result<()> {
    let mut lines: Vec<Vec<u8>> = (0..ROWS).map(|row| format!("r{row}|Hi.|Hi.|anna|en").into_bytes()).collect();
    damage_rows(&mut lines, b'|', &mut case.choices);
    let list = joined(lines, &mut case.choices);
    let rows = num_rows(&list);
    case.write("corpus/metadata.csv", &list)?;
    check(case, "corpus", rows, has_header(&list))?;
    if !has_header(&list) {
        account(case, rows)?;
    }
    Ok(())
}

fn manifest(case: &mut CaseContext<'_>) -> anyhow::Result<()> {
    let row = |row: usize| {
        format!(
            "{{\"audio_filepath\": \"wavs/r{row}.wav\", \"text\": \"Hi.\", \"duration\": {:.2}, \"offset\": 0.0, \
             \"speaker\": \"anna\", \"lang\": \"en\"}}",
            0.4 + 0.02 * row as f64
        )
        .into_bytes()
    };
    let mut lines: Vec<Vec<u8>> = (0..ROWS).map(row).collect();
    damage_rows(&mut lines, b',', &mut case.choices);
    for _ in 0..case.choices.below(4) {
        let at = case.choices.below(lines.len());
        replace_number(&mut lines[at], &mut case.choices);
    }
    if case.choices.one_in(10) {
        let depth = case.choices.between(100, 200_000);
        lines.push([vec![b'['; depth], b"1".to_vec()].concat());
    }
    let list = joined(lines, &mut case.choices);
    case.write("corpus/list.jsonl", &list)?;
    check(case, "corpus/list.jsonl", num_rows(&list), false)?;
    // A plan looks at recordings only when it measures them, so rows of one recording may differ; it must not crash.
    case.run(
        &CommandSpec::new("plan --mode cpu --model-size nano --batch-size 2 --train-data corpus/list.jsonl").bounded(),
    )?;
    Ok(())
}

/// `corpus check` of a list: every row that is not blank is counted once.
fn check(case: &mut CaseContext<'_>, path: &str, rows: usize, header: bool) -> anyhow::Result<()> {
    let before = tree::digest(&case.path("corpus"))?;
    let outcome = case.run(&CommandSpec::new(&format!("corpus check --json {path}")).bounded())?;
    case.unchanged("corpus", &before)?;
    case.counts.inputs += 1;
    let Some(report) = case.document(&outcome) else { return Ok(()) };
    if report.get("error").is_some() {
        return Ok(());
    }
    let problems = report["problems"].as_array().into_iter().flatten();
    let kinds: Vec<&str> = problems.filter_map(|problem| problem["kind"].as_str()).collect();
    let number = |name: &str| report[name].as_u64().unwrap_or(0) as usize;
    let utterances = number("utterances") + number("excluded");
    let rejected = kinds.iter().filter(|kind| REJECTED.contains(kind)).count();
    let kept = kinds.iter().filter(|kind| MAYBE_KEPT.contains(kind)).count();
    // A header is not a row.
    let least = rows - usize::from(header && rows > 0);
    if utterances + rejected < least {
        let counted = utterances + rejected;
        case.fail(format!("silent loss: {rows} rows, but {counted} are utterances or problems"));
    }
    if utterances + rejected - kept > rows {
        case.fail(format!("{rows} rows, but {utterances} utterances and {} rejected rows", rejected - kept));
    }
    Ok(())
}

/// An exclude list that is damaged: excluded rows are counted.
fn exclude_ids(case: &mut CaseContext<'_>) -> anyhow::Result<()> {
    let list: String = (0..ROWS).map(|row| format!("r{row}|Hi.\n")).collect();
    case.write("corpus/metadata.csv", &list)?;
    let count = case.choices.between(1, ROWS);
    let mut lines: Vec<Vec<u8>> = (0..count).map(|row| format!("r{row}").into_bytes()).collect();
    damage_rows(&mut lines, b'r', &mut case.choices);
    let excluded = joined(lines, &mut case.choices);
    case.write("excluded.txt", excluded)?;
    case.counts.inputs += 1;
    let line = "plan --mode cpu --model-size nano --batch-size 1 --json --train-data corpus --exclude-ids excluded.txt";
    let outcome = case.run(&CommandSpec::new(line).bounded())?;
    let Some(plan) = case.document(&outcome) else { return Ok(()) };
    if outcome.succeeded() && counted_rows(&plan["corpus"]) != ROWS as u64 {
        case.fail(format!("rows do not add up with --exclude-ids: {ROWS} rows, but {}", plan["corpus"]));
    }
    case.run(&CommandSpec::new("corpus check corpus --exclude-ids excluded.txt").bounded())?;
    Ok(())
}

/// A damaged cache of measured lengths changes no plan. `corpus check` writes it for the user, a plan into its run folder.
fn length_cache(case: &mut CaseContext<'_>) -> anyhow::Result<()> {
    let list: String = (0..ROWS).map(|row| format!("r{row}|Hi.\n")).collect();
    case.write("corpus/metadata.csv", &list)?;
    case.remove("home/.cache");
    case.remove("run");
    let plan = "plan --mode cpu --model-size nano --batch-size 2 --json --train-data corpus --checkpoint-dir run";
    let spec = CommandSpec::new(plan).bounded();
    let clean = case.run(&spec)?;
    let Some(expected) = case.document(&clean) else { return Ok(()) };
    let folder = if case.choices.one_in(2) {
        case.run(&CommandSpec::new("corpus check corpus"))?;
        case.path("home/.cache/tandem/lengths")
    } else {
        fs::create_dir_all(case.path("run"))?;
        case.run(&spec)?;
        case.path("run")
    };
    let caches: Vec<PathBuf> = fs::read_dir(&folder)
        .map(|entries| entries.flatten().map(|entry| entry.path()).filter(|path| path.is_file()).collect())
        .unwrap_or_default();
    if caches.is_empty() {
        case.fail(format!("no cache of lengths was written to {}", folder.display()));
    }
    for path in caches {
        let mut bytes = fs::read(&path)?;
        let count = case.choices.between(1, 5);
        match case.choices.one_in(2) {
            true => drop(mutate(&mut bytes, b"{}", count, &mut case.choices)),
            false => (0..count).for_each(|_| replace_number(&mut bytes, &mut case.choices)),
        }
        fs::write(&path, bytes)?;
        case.counts.inputs += 1;
        case.count("damaged length caches");
    }
    let again = case.run(&spec)?;
    let Some(found) = case.document(&again) else { return Ok(()) };
    if clean.ended != again.ended || found["corpus"] != expected["corpus"] {
        case.fail(format!(
            "a damaged length cache changes the plan: {} became {}",
            expected["corpus"], found["corpus"]
        ));
    }
    Ok(())
}

/// Damages fields, rows and their order.
fn damage_rows(lines: &mut Vec<Vec<u8>>, separator: u8, choices: &mut Choices) {
    for _ in 0..choices.between(1, 5) {
        if lines.is_empty() {
            return;
        }
        let at = choices.below(lines.len());
        match choices.below(12) {
            0 => lines.push(lines[at].clone()),
            1 => drop(lines.remove(at)),
            2 => lines[at] = Vec::new(),
            3 => lines.insert(0, b"id|text|normalized".to_vec()),
            4 => {
                let length = *choices.pick(&[1000, 70_000, 1 << 20, (1 << 20) + 1, 3 << 20]);
                lines[at].extend(std::iter::repeat_n(b'x', length));
            }
            5 => {
                let bytes =
                    *choices.pick(&[b"\xff\xfe".as_slice(), b"\xc3", b"\xed\xa0\x80", b"\0", b"\xf4\x90\x80\x80"]);
                let to = choices.below(lines[at].len() + 1);
                lines[at].splice(to..to, bytes.iter().copied());
            }
            6 => lines[at] = std::iter::repeat_n(separator, choices.between(1, 300)).collect(),
            7..10 => {
                let field = *choices.pick(&FIELDS);
                let mut fields: Vec<Vec<u8>> = lines[at].split(|byte| *byte == separator).map(<[u8]>::to_vec).collect();
                let which = choices.below(fields.len());
                fields[which] = field.as_bytes().to_vec();
                lines[at] = fields.join(&separator);
            }
            _ => {
                let other = lines[choices.below(lines.len())].clone();
                let count = choices.between(1, 3);
                mutate(&mut lines[at], &other, count, choices);
            }
        }
    }
}

/// One file of the lines, mostly with the usual line ends.
fn joined(lines: Vec<Vec<u8>>, choices: &mut Choices) -> Vec<u8> {
    let end: &[u8] = if choices.one_in(6) { b"\r\n" } else { b"\n" };
    let mut list = lines.join(end);
    if choices.one_in(8) {
        list.splice(0..0, *b"\xef\xbb\xbf");
    }
    if !choices.one_in(4) {
        list.extend(end);
    }
    list
}

/// Lines that are not blank. A byte order mark at the start is not part of the first one.
fn num_rows(list: &[u8]) -> usize {
    let list = list.strip_prefix(b"\xef\xbb\xbf").unwrap_or(list);
    let is_blank = |line: &[u8]| str::from_utf8(line).is_ok_and(|text| text.trim().is_empty());
    list.split(|byte| *byte == b'\n').filter(|line| !is_blank(line)).count()
}

/// Whether the first line may be a header, which is not a row.
fn has_header(list: &[u8]) -> bool {
    let list = list.strip_prefix(b"\xef\xbb\xbf").unwrap_or(list);
    let first = list.split(|byte| *byte == b'\n').next().unwrap_or_default();
    first.starts_with(b"id|text")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blank_lines_and_marks_are_no_rows() {
        assert_eq!(num_rows(b""), 0);
        assert_eq!(num_rows(b"\xef\xbb\xbfa|b\r\n\r\n \t\nc"), 2);
        assert_eq!(num_rows(b"\xff\n\n\0\n"), 2);
        assert!(has_header(b"\xef\xbb\xbfid|text\r\n") && !has_header(b"a|b\nid|text"));
    }

    #[test]
    fn damaged_lists_are_a_function_of_the_seed() {
        let list = |seed| {
            let mut choices = Choices::of_case(seed, 1, 0);
            let mut lines: Vec<Vec<u8>> = (0..ROWS).map(|row| format!("r{row}|Hi.").into_bytes()).collect();
            damage_rows(&mut lines, b'|', &mut choices);
            joined(lines, &mut choices)
        };
        assert!((0..50).all(|seed| list(seed) == list(seed)));
        assert!((0..50).any(|seed| list(seed) != list(seed + 50)));
    }
}
