//! Lhotse Shar: cuts and tar archives with the same numbers.
//!
//! `recording.000000.tar` has two members for each cut of `cuts.000000.jsonl.gz`: the recording (`ID.flac`, or the empty
//! `ID.nodata` for a cut without one) and its description (`ID.json`). Recordings are cut to their cuts already. Members come
//! in the order of the cuts, so that both are read side by side; where they do not, they are found by name.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io::BufRead;
use std::ops::ControlFlow;
use std::sync::Arc;

use tandem_shards::{ShardFault, TarMember, TarReader, ValueAddress};
use tandem_storage::ReadAt;

use super::cuts::{Cut, each_cut};
use super::scan::{ShardRow, ShardScan};
use crate::problem::{ProblemKind, excerpt};
use crate::recording_reader::{PieceReader, RecordingReader};

/// Scans the archive `bytes` with the recordings of `cuts`.
///
/// Memory: the members that are passed over because their cuts come later; none if the order is that of the cuts. Fails
/// where the archive or the manifest cannot be read any further; the rows before are in `scan`.
pub(crate) fn scan(bytes: &Arc<dyn ReadAt>, cuts: impl BufRead, scan: &mut ShardScan<'_>) -> Result<(), ShardFault> {
    let mut members = SharMembers::new(bytes);
    let mut stopped = Ok(());
    each_cut(cuts, &mut |number, cut| {
        let added = match cut {
            Ok(cut) => add(bytes, &mut members, number, &cut, scan),
            Err((kind, detail)) => {
                scan.problem(Some(number), kind, detail);
                Ok(())
            }
        };
        match added {
            Ok(()) => ControlFlow::Continue(()),
            Err(fault) => {
                stopped = Err(fault);
                ControlFlow::Break(())
            }
        }
    })?;
    stopped?;
    members.report_unused(scan)
}

fn add(
    bytes: &Arc<dyn ReadAt>,
    members: &mut SharMembers,
    number: u32,
    cut: &Cut<'_>,
    scan: &mut ShardScan<'_>,
) -> Result<(), ShardFault> {
    let Some(member) = members.find(&cut.id, scan)? else {
        let detail = format!("`{}` has no recording in the archive", excerpt(&cut.id));
        scan.problem(Some(number), ProblemKind::MissingAudio, detail);
        return Ok(());
    };
    if is_placeholder(&member.name) {
        let detail = format!("`{}` was written without a recording", excerpt(&cut.id));
        scan.problem(Some(number), ProblemKind::MissingAudio, detail);
        return Ok(());
    }
    let range = member.offset..member.offset + member.num_bytes;
    let row = ShardRow {
        number,
        id: &cut.id,
        text: &cut.text,
        speaker: cut.speaker.as_deref(),
        lang: cut.lang.as_deref(),
        key: &member.name,
        // A member has less than 4 GiB.
        address: Some(ValueAddress { position: member.offset, extent: member.num_bytes as u32 }),
        offset_s: cut.offset_s(),
        duration_s: Some(cut.duration_s),
    };
    scan.row(&row, Some(&|| Ok(RecordingReader::of_piece(Arc::clone(bytes), range.clone()))));
    Ok(())
}

/// The recordings of an archive, in its order.
struct SharMembers {
    tar: TarReader<PieceReader>,
    /// Members that were read before their cuts, by the ids of their cuts.
    passed: HashMap<String, TarMember>,
    has_members: bool,
    /// Why the last member was refused, until it is clear that it was not the archive.
    refused: Option<String>,
}

impl SharMembers {
    fn new(bytes: &Arc<dyn ReadAt>) -> SharMembers {
        let tar = TarReader::new(PieceReader::whole(Arc::clone(bytes)), bytes.num_bytes());
        SharMembers { tar, passed: HashMap::new(), has_members: false, refused: None }
    }

    /// The member of the cut `id`; none if there is none in the archive.
    fn find(&mut self, id: &str, scan: &mut ShardScan<'_>) -> Result<Option<TarMember>, ShardFault> {
        if let Some(member) = self.passed.remove(id) {
            return Ok(Some(member));
        }
        while let Some(member) = self.next_recording(scan)? {
            if cut_id(&member.name) == id {
                return Ok(Some(member));
            }
            self.pass(member, scan);
        }
        Ok(None)
    }

    /// Holds a member until its cut comes.
    fn pass(&mut self, member: TarMember, scan: &mut ShardScan<'_>) {
        match self.passed.entry(cut_id(&member.name).to_owned()) {
            Entry::Vacant(place) => {
                place.insert(member);
            }
            Entry::Occupied(first) => {
                let (first, second) = (excerpt(&first.get().name), excerpt(&member.name));
                let detail = format!("expected one recording of a cut, found {first} and {second}: the first is read");
                scan.problem(None, ProblemKind::DuplicateId, detail);
            }
        }
    }

    /// The next member that is no description. A member that is refused becomes a problem.
    fn next_recording(&mut self, scan: &mut ShardScan<'_>) -> Result<Option<TarMember>, ShardFault> {
        loop {
            let item = self.tar.next();
            match (self.refused.take(), &item) {
                // A refusal and nothing else: the archive is refused.
                (Some(reason), None) if !self.has_members => return Err(ShardFault::Unsupported { reason }),
                (Some(reason), _) => scan.problem(None, ProblemKind::UnusedFile, reason),
                (None, _) => {}
            }
            match item {
                Some(Ok(member)) => {
                    self.has_members = true;
                    if !is_description(&member.name) {
                        return Ok(Some(member));
                    }
                }
                Some(Err(ShardFault::Unsupported { reason })) => self.refused = Some(reason),
                Some(Err(fault)) => return Err(fault),
                None => return Ok(None),
            }
        }
    }

    /// Reads the rest of the archive and reports what belongs to no cut.
    fn report_unused(mut self, scan: &mut ShardScan<'_>) -> Result<(), ShardFault> {
        let first = self.passed.values().min_by_key(|member| member.offset).map(|member| member.name.clone());
        let mut unused = (self.passed.len(), first);
        while let Some(member) = self.next_recording(scan)? {
            unused = (unused.0 + 1, unused.1.or(Some(member.name)));
        }
        if let (count, Some(first)) = unused {
            let detail = format!("recordings without a usable cut: {count}, the first is {}", excerpt(&first));
            scan.problem(None, ProblemKind::UnusedFile, detail);
        }
        Ok(())
    }
}

/// The name of a member without its ending: the id of its cut, which may have dots and slashes.
fn cut_id(name: &str) -> &str {
    match name.rsplit_once('.') {
        Some((stem, ending)) if !ending.contains('/') => stem,
        _ => name,
    }
}

fn is_description(name: &str) -> bool {
    name.ends_with(".json") || name.ends_with(".nometa")
}

/// Stands for the recording of a cut that has none.
fn is_placeholder(name: &str) -> bool {
    name.ends_with(".nodata")
}

#[cfg(test)]
mod tests;
