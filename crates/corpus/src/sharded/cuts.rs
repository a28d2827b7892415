//! Lhotse cuts: JSON Lines, plain or gzip.
//!
//! A cut is a piece of a recording, and its supervisions say what is said in it. Cuts of one recording (`MonoCut`, `MultiCut`)
//! are rows; mixtures are not. Keys are the paths and URLs of recordings as the manifest spells them.

mod cut;
mod gzip;
mod nested;

use std::io::{self, BufRead};
use std::ops::ControlFlow;
use std::path::Path;

pub(crate) use self::cut::Cut;
pub(crate) use self::gzip::open_lines;
use crate::json_value::RejectedRow;
use crate::lines::{LineReader, ParsedLine};
use crate::ljspeech::{report_unreadable, speaker_of};
use crate::problem::{Findings, ProblemKind};
use crate::sample::{NewRow, Samples, Subset};
use crate::speaker::SpeakerPattern;

/// Reads a manifest of cuts. Fails only when the file stops giving bytes.
pub(crate) fn read(
    input: impl BufRead,
    pattern: Option<&SpeakerPattern>,
    samples: &mut Samples,
    findings: &mut Findings<'_>,
) -> io::Result<()> {
    let mut seen_any = false;
    each_cut(input, &mut |number, cut| {
        seen_any = true;
        if let Err((kind, detail)) = cut.and_then(|cut| push(cut, number, pattern, samples, findings)) {
            findings.on(number, kind, detail);
        }
        ControlFlow::Continue(())
    })?;
    if !seen_any {
        findings.whole(ProblemKind::NoRows, "there is nothing in the file");
    }
    Ok(())
}

/// Takes a line with its number: a cut, or why it is none.
pub(super) type VisitCut<'v> = &'v mut dyn FnMut(u32, Result<Cut<'_>, RejectedRow>) -> ControlFlow<()>;

/// Visits the lines that are not blank until `visit` breaks.
pub(super) fn each_cut(input: impl BufRead, visit: VisitCut<'_>) -> io::Result<()> {
    let mut lines = LineReader::new(input);
    while let Some((number, line)) = lines.next_line()? {
        let cut = match line {
            ParsedLine::Blank => continue,
            ParsedLine::Text(text) => Cut::parse(text),
            unreadable => Err(why_unreadable(&unreadable, number)),
        };
        if visit(number, cut).is_break() {
            break;
        }
    }
    Ok(())
}

fn push(
    cut: Cut<'_>,
    number: u32,
    pattern: Option<&SpeakerPattern>,
    samples: &mut Samples,
    findings: &mut Findings<'_>,
) -> Result<(), RejectedRow> {
    let offset_s = cut.offset_s();
    let key = cut.source()?;
    let speaker = cut.speaker.as_deref().or_else(|| speaker_of(&cut.id, pattern, number, findings));
    samples.push(&NewRow {
        id: &cut.id,
        text: &cut.text,
        speaker,
        lang: cut.lang.as_deref(),
        key,
        offset_s,
        duration_s: Some(cut.duration_s),
        part: Subset::Undecided,
        line: number,
        address: None,
    });
    Ok(())
}

/// Says why a line is no text, in the words of the other manifests.
fn why_unreadable(line: &ParsedLine<'_>, number: u32) -> RejectedRow {
    let mut list = Vec::new();
    report_unreadable(line, number, &mut Findings { file: Path::new("").into(), list: &mut list });
    match list.pop() {
        Some(problem) => (problem.kind, problem.detail),
        None => (ProblemKind::BadJson, "the line cannot be read".to_owned()),
    }
}

#[cfg(test)]
mod tests;
