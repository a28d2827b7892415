//! A list of utterances never to be trained on: an id per line, or anything whose first column is one.

use std::collections::HashMap;
use std::io::BufReader;
use std::path::Path;

use crate::dataset::open_list_file;
use crate::error::CorpusError;
use crate::lines::{LineReader, ParsedLine};
use crate::ljspeech::report_unreadable;
use crate::locator::without_extension;
use crate::problem::{Findings, Problem, ProblemKind, excerpt};
use crate::sample::{SampleIndex, Samples, Subset};

/// Marks the rows that the list at `path` names, by their whole id or by the last part of it (the file name).
///
/// Too many rather than too few: a name that several rows bear takes all of them out. Names that no row bears are
/// reported with their line. Fails when the list cannot be read, because training on everything would be worse.
pub(crate) fn apply(path: &Path, samples: &mut Samples, problems: &mut Vec<Problem>) -> Result<(), CorpusError> {
    let failed = |source| CorpusError::Read { path: path.to_owned(), source };
    let mut findings = Findings { file: path.into(), list: problems };
    let mut wanted: HashMap<String, (u32, bool)> = HashMap::new();
    let mut lines = LineReader::new(BufReader::new(open_list_file(path).map_err(failed)?));
    while let Some((number, line)) = lines.next_line().map_err(failed)? {
        match line {
            ParsedLine::Text(text) => {
                let id = without_extension(text.split('|').next().unwrap_or(text).trim());
                wanted.entry(id.to_owned()).or_insert((number, false));
            }
            unreadable => report_unreadable(&unreadable, number, &mut findings),
        }
    }
    for index in (0..samples.len() as u32).map(SampleIndex) {
        let Some(sample) = samples.get(index) else { continue };
        let name = sample.id.rsplit('/').next().unwrap_or(sample.id);
        let mut named = false;
        for id in [sample.id, name] {
            if let Some((_, found)) = wanted.get_mut(id) {
                (named, *found) = (true, true);
            }
        }
        if named {
            samples.set_part(index, Subset::Excluded);
        }
    }
    let mut unknown: Vec<(u32, String)> =
        wanted.into_iter().filter(|(_, (_, found))| !found).map(|(id, (line, _))| (line, id)).collect();
    unknown.sort_unstable();
    for (line, id) in unknown {
        findings.on(line, ProblemKind::UnknownExcluded, format!("`{}` is not in the corpus", excerpt(&id)));
    }
    Ok(())
}
