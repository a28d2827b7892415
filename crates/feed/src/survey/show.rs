//! The report of a dataset check as text and as JSON.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write;

use serde_json::{Value, json};
use tandem_corpus::{Distribution, Problem, ProblemKind};

use crate::survey::left_out::{show_hours, show_usage, show_utterances};
use crate::survey::report::{BucketUse, CorpusReport, OtherPadding, ShapeReport, UsageReport, UtteranceGroup};

const NUM_BARS: usize = 12;
const BAR_CHARS: usize = 40;
/// More speakers or languages than this are counted, not listed.
const LISTED: usize = 8;

/// The report as text: problems by kind, at most `max_per_kind` of each, then statistics of the corpus.
pub fn show_report(report: &CorpusReport, max_per_kind: usize) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = write_problems(&mut text, report, max_per_kind);
    let _ = write_totals(&mut text, report);
    text
}

/// The report as a JSON document.
pub fn report_json(report: &CorpusReport) -> Value {
    let group = |group: &UtteranceGroup| json!({ "name": group.name, "utterances": group.num_utterances, "hours": hours(group.seconds) });
    let bin = |bin: &tandem_corpus::Bin| json!({ "from_s": bin.from, "to_s": bin.to, "utterances": bin.count });
    json!({
        "passed": report.passed(),
        "path": report.path.to_string_lossy(),
        "format": report.format.slug(),
        "not_read": report.not_read,
        "problems": report.problems,
        "hints": report.hints,
        "utterances": report.num_utterances,
        "excluded": report.num_excluded,
        "hours": hours(report.seconds.total()),
        "seconds": distribution_json(&report.seconds),
        "symbols": distribution_json(&report.tokens),
        "speakers": report.speakers.iter().map(group).collect::<Vec<_>>(),
        "languages": report.langs.iter().map(group).collect::<Vec<_>>(),
        "histogram": report.seconds.histogram(NUM_BARS).iter().map(bin).collect::<Vec<_>>(),
        "training": {
            "utterances": report.training.num_utterances,
            "hours": hours(report.training.seconds),
            "validation": report.training.num_validation,
            "rejected": report.training.rejected,
            "left_out": report.training.left_out.json(),
        },
        "trained_on": report.trained_on.iter().map(|(kind, count)| (kind.words(), *count)).collect::<BTreeMap<_, _>>(),
        "shapes": report.shapes.as_ref().map(|shapes| shapes_json(shapes, &report.training)),
    })
}

fn write_problems(text: &mut String, report: &CorpusReport, max_per_kind: usize) -> std::fmt::Result {
    if report.passed() {
        let (count, path) = (show_utterances(report.num_utterances), report.path.display());
        writeln!(text, "✅ No problem in {count}: {path}")?;
        return write_hints(text, report);
    }
    let count = report.problems.len();
    let plural = if count == 1 { "" } else { "s" };
    writeln!(text, "❌ {count} problem{plural} in {}", report.path.display())?;
    let mut by_kind: Vec<&Problem> = report.problems.iter().collect();
    // A stable sort: within a kind they stay in file and line order.
    by_kind.sort_by_key(|problem| problem.kind);
    for group in by_kind.chunk_by(|a, b| a.kind == b.kind) {
        let trained_on = report.trained_on.get(&group[0].kind).copied().unwrap_or(0);
        write_kind(text, group, trained_on, max_per_kind)?;
    }
    write_hints(text, report)
}

fn write_hints(text: &mut String, report: &CorpusReport) -> std::fmt::Result {
    report.hints.iter().try_for_each(|hint| writeln!(text, "\n⚠️ {hint}"))
}

/// The problems of one kind, of which a run would train on `trained_on` utterances all the same.
fn write_kind(text: &mut String, problems: &[&Problem], trained_on: usize, most: usize) -> std::fmt::Result {
    let kind = problems[0].kind;
    let fate = match (trained_on, kind) {
        (0, _) => String::new(),
        (count, ProblemKind::UndecodableAudio) => format!(", of which {count} would be replaced during training"),
        (count, _) => format!(", of which {count} would be trained on"),
    };
    writeln!(text, "\n{} ({}){fate}", kind.words(), problems.len())?;
    for problem in problems.iter().take(most) {
        let line = problem.line.map(|line| format!(":{line}")).unwrap_or_default();
        writeln!(text, "  {}{line}: {}", problem.file.display(), problem.detail)?;
    }
    match problems.len().saturating_sub(most) {
        0 => Ok(()),
        more => writeln!(text, "  … and {more} more (-v shows all)"),
    }
}

fn write_totals(text: &mut String, report: &CorpusReport) -> std::fmt::Result {
    let excluded = match report.num_excluded {
        0 => String::new(),
        excluded => format!(", {excluded} more excluded"),
    };
    let hours = show_hours(report.seconds.total());
    let not_read = match report.not_read.is_empty() {
        true => String::new(),
        false => format!("; not read: {}", report.not_read.join(", ")),
    };
    writeln!(text, "\nFormat:      {}{not_read}", report.layout)?;
    writeln!(text, "Utterances:  {}, {hours}{excluded}", report.num_utterances)?;
    writeln!(text, "Speakers:    {}", list(&report.speakers))?;
    writeln!(text, "Languages:   {}", list(&report.langs))?;
    writeln!(text, "Seconds:     {}", range(&report.seconds, 2))?;
    writeln!(text, "Symbols:     {}", range(&report.tokens, 0))?;
    let bins = report.seconds.histogram(NUM_BARS);
    let tallest = bins.iter().map(|bin| bin.count).max().unwrap_or(0).max(1);
    for bin in bins {
        // A bin that is not empty has at least one character.
        let bar = "#".repeat((bin.count * BAR_CHARS).div_ceil(tallest));
        writeln!(text, "  {:6.2} - {:6.2} s  {bar} {}", bin.from, bin.to, bin.count)?;
    }
    let training = &report.training;
    let usage = show_usage(training.num_utterances, training.seconds, training.num_validation, report.num_excluded);
    writeln!(text, "Training:    {usage}")?;
    let skipped = training.skipped();
    if !skipped.is_empty() {
        writeln!(text, "Skipped:     {}", skipped.join("; "))?;
    }
    match &report.shapes {
        Some(shapes) => write_shapes(text, shapes),
        None => writeln!(text, "Buckets:     none: no utterance can train"),
    }
}

fn write_shapes(text: &mut String, shapes: &ShapeReport) -> std::fmt::Result {
    let rows = || shapes.buckets.iter().flat_map(|used| used.bucket.rows()).map(|row| row.frames);
    let (shortest, longest) = (rows().min().unwrap_or(0), rows().max().unwrap_or(0));
    let sums: Vec<String> = shapes.buckets.iter().map(|used| used.bucket.frames().to_string()).collect();
    let (count, batch) = (sums.len(), shapes.batch);
    writeln!(text, "Buckets:     {count} of {batch} rows each, for {shortest} to {longest} frames")?;
    writeln!(text, "             {} frames in a batch", sums.join(", "))?;
    let (frames, tokens) = (shapes.padding.frame_waste() * 100.0, shapes.padding.token_waste() * 100.0);
    writeln!(text, "Padding:     {frames:.1} % of frames, {tokens:.1} % of symbols")?;
    let other = |other: &OtherPadding| format!("{}: {:.1} %", other.num_buckets, other.padding.frame_waste() * 100.0);
    let others: Vec<String> = shapes.others.iter().map(other).collect();
    writeln!(text, "             of frames, by number of buckets: {}", others.join(", "))
}

fn list(groups: &[UtteranceGroup]) -> String {
    let named = groups.iter().filter(|group| group.name.is_some()).count();
    let mut shown: Vec<String> = groups
        .iter()
        .take(LISTED)
        .map(|group| {
            format!("{} {}", group.name.as_deref().map_or("(not named)".into(), shortened), group.num_utterances)
        })
        .collect();
    if groups.len() > LISTED {
        shown.push(format!("and {} more", groups.len() - LISTED));
    }
    if shown.is_empty() { "0".to_owned() } else { format!("{named} ({})", shown.join(", ")) }
}

/// The beginning of a long name: speakers of Common Voice are 128 digits.
fn shortened(name: &str) -> Cow<'_, str> {
    const MAX_CHARS: usize = 24;
    match name.char_indices().nth(MAX_CHARS) {
        Some((end, _)) => format!("{}…", &name[..end]).into(),
        None => name.into(),
    }
}

fn range(values: &Distribution, digits: usize) -> String {
    let (Some(min), Some(max), Some(most)) = (values.min(), values.max(), values.percentile(99.5)) else {
        return "none".to_owned();
    };
    format!("{min:.digits$} to {max:.digits$}, mean {:.digits$}, 99.5 % up to {most:.digits$}", values.mean())
}

fn distribution_json(values: &Distribution) -> Value {
    json!({
        "min": values.min(),
        "mean": values.mean(),
        "p50": values.percentile(50.0),
        "p99_5": values.percentile(99.5),
        "max": values.max(),
    })
}

fn shapes_json(shapes: &ShapeReport, training: &UsageReport) -> Value {
    let bucket = |used: &BucketUse| {
        json!({
            "frames": used.bucket.longest_frames(),
            "symbols": used.bucket.longest_tokens(),
            "total_frames": used.bucket.frames(),
            "total_symbols": used.bucket.tokens(),
            "utterances": used.num_utterances,
        })
    };
    let other = |other: &OtherPadding| {
        json!({
            "buckets": other.num_buckets,
            "padding_waste": other.padding.frame_waste(),
            "symbol_padding_waste": other.padding.token_waste(),
        })
    };
    json!({
        "buckets": shapes.buckets.iter().map(bucket).collect::<Vec<_>>(),
        "batch_size": shapes.batch,
        "batches": shapes.padding.batches,
        "padding_waste": shapes.padding.frame_waste(),
        "symbol_padding_waste": shapes.padding.token_waste(),
        "by_number_of_buckets": shapes.others.iter().map(other).collect::<Vec<_>>(),
        "max_frames": training.max_frames,
        "max_symbols": training.max_tokens,
        "left_out": training.left_out.too_long,
    })
}

fn hours(seconds: f64) -> f64 {
    seconds / 3600.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;
    use tandem_corpus::Format;

    use crate::survey::left_out::LeftOut;

    fn report(problems: &[(u32, ProblemKind)]) -> CorpusReport {
        let problem = |(line, kind): &(u32, ProblemKind)| Problem {
            file: Path::new("d/metadata.csv").into(),
            line: Some(*line),
            kind: *kind,
            detail: format!("detail {line}"),
        };
        CorpusReport {
            path: "d".into(),
            format: Format::LjSpeech,
            layout: "LJSpeech, recordings in wavs/".to_owned(),
            not_read: vec!["Common Voice".to_owned()],
            problems: problems.iter().map(problem).collect(),
            hints: Vec::new(),
            num_utterances: 3,
            num_excluded: 1,
            seconds: Distribution::new([1.0, 2.0, 4.0]),
            tokens: Distribution::new([]),
            speakers: vec![UtteranceGroup { name: None, num_utterances: 3, seconds: 7.0 }],
            langs: Vec::new(),
            training: UsageReport {
                num_utterances: 2,
                seconds: 3.0,
                num_validation: 1,
                rejected: BTreeMap::from([("empty text", 1)]),
                left_out: LeftOut { too_long: 1, ..LeftOut::default() },
                max_frames: 900,
                max_tokens: 200,
            },
            trained_on: BTreeMap::from([(ProblemKind::Clipping, 2)]),
            shapes: None,
        }
    }

    #[test]
    fn problems_are_grouped_by_kind_and_long_lists_are_cut() {
        let (clips, short) = (ProblemKind::Clipping, ProblemKind::TooShort);
        let report = report(&[(1, clips), (2, short), (3, clips), (4, clips)]);
        let shown = show_report(&report, 2);
        let expected = "❌ 4 problems in d\n\n\
            too short (1)\n  d/metadata.csv:2: detail 2\n\n\
            clipping (3), of which 2 would be trained on\n  d/metadata.csv:1: detail 1\n  d/metadata.csv:3: detail 3\n  … and 1 more (-v shows all)\n";
        assert!(shown.starts_with(expected), "{shown}");
        assert!(show_report(&report, usize::MAX).contains("detail 4"));
        assert_eq!(report_json(&report)["problems"].as_array().unwrap().len(), 4);
    }

    #[test]
    fn a_corpus_without_problems_is_reported_first() {
        let shown = show_report(&report(&[]), 5);
        assert!(shown.starts_with("✅ No problem in 3 utterances: d\n"), "{shown}");
        let usage = "Training:    2 utterances, 0.00 hours; 1 for validation, 1 excluded\n";
        assert!(shown.contains(usage), "{shown}");
        assert!(shown.contains("Skipped:     1 over 900 frames or 200 tokens; 1 rejected (empty text)\n"), "{shown}");
        assert!(shown.contains("Format:      LJSpeech, recordings in wavs/; not read: Common Voice\n"), "{shown}");
        for part in
            ["3, 0.00 hours, 1 more excluded", "0 ((not named) 3)", "1.00 to 4.00, mean 2.33", "Symbols:     none"]
        {
            assert!(shown.contains(part), "{part}: {shown}");
        }
    }
}
