//! NeMo's tarred datasets: a manifest and the tar archives that it names by number.
//!
//! `convert_to_tarred_audio_dataset.py` flattens the path of a recording to one name, stores it in `audio_N.tar`, and writes
//! the manifest again with that name as `audio_filepath` and N as `shard_id`. Three habits of it matter here:
//!
//! - A recording that has several entries is stored once. Its second entry is called `a-sub1.wav`, its third `a-sub2.wav`, and
//!   `offset` and `duration` cut it.
//! - With `--slice_with_offset` each piece is a member of its own, and the manifest has no `offset` any more.
//! - With `--force_codec` the member is `a.flac`, and the manifest still says `a.wav`.
//!
//! So a member is looked for under the name as it is written, then by its last part, then without its ending, and all of that
//! again without `-subN`. The id of a row is as in other manifests: the path as written, `-subN` included, without the ending,
//! and `@offset` where there is an offset.

mod list;
mod member_index;

use std::sync::Arc;

use tandem_shards::ShardFault;
use tandem_storage::ReadAt;

pub(crate) use self::list::NemoList;
use self::member_index::{Lookup, MemberIndex};
use super::scan::{ShardRow, ShardScan};
use super::webdataset::members::ShardMembers;
use crate::problem::{ProblemKind, excerpt};
use crate::recording_reader::RecordingReader;

/// Adds a row for each entry of `list` that belongs to `shard`, whose archive is in `bytes`: in the order of the manifest, with
/// its line as number. [`NemoList::entries`] says which entries those are.
///
/// An entry without a member is a problem. Fails when the archive cannot be read any further; the rows of the members before
/// that are added, and the others are counted in one problem.
pub(crate) fn scan(
    bytes: &Arc<dyn ReadAt>,
    list: &NemoList,
    shard: Option<u32>,
    scan: &mut ShardScan<'_>,
) -> Result<(), ShardFault> {
    let (index, walked) = walk(bytes, scan);
    let mut is_used = vec![false; index.len()];
    let mut num_lost = 0_u64;
    let mut id = String::new();
    for (line, entry) in list.entries(shard) {
        let (place, name) = match index.find(&entry.key) {
            Lookup::Found(place) => (place, index.name(place)),
            Lookup::Missing if walked.is_err() => {
                num_lost += 1;
                continue;
            }
            Lookup::Missing => {
                let detail = format!("no `{}` in {}", excerpt(&entry.key), show(shard));
                scan.problem(Some(line), ProblemKind::MissingAudio, detail);
                continue;
            }
            Lookup::Ambiguous(names) => {
                let [one, other] = names.map(excerpt);
                let (key, shard) = (excerpt(&entry.key), show(shard));
                let detail = format!("`{key}` may be `{one}` or `{other}` of {shard}: write the name of the member");
                scan.problem(Some(line), ProblemKind::MissingAudio, detail);
                continue;
            }
        };
        is_used[place] = true;
        entry.write_id(&mut id);
        let row = ShardRow {
            number: line,
            id: &id,
            text: &entry.text,
            speaker: entry.speaker.as_deref(),
            lang: entry.lang.as_deref(),
            key: name,
            address: Some(index.address(place)),
            offset_s: entry.offset_s,
            duration_s: entry.duration_s,
        };
        let span = index.span(place);
        scan.row(&row, Some(&|| Ok(RecordingReader::of_piece(Arc::clone(bytes), span.clone()))));
    }
    if num_lost > 0 {
        let detail = format!("{} ends too early: {num_lost} entries have no recording", show(shard));
        scan.problem(None, ProblemKind::MissingAudio, detail);
    }
    let mut unused = (0..index.len()).filter(|place| !is_used[*place]);
    if let Some(first) = unused.next() {
        let (first, num_members) = (excerpt(index.name(first)), 1 + unused.count());
        let detail = format!("the manifest names {num_members} members of {} nowhere, first `{first}`", show(shard));
        scan.problem(None, ProblemKind::UnusedFile, detail);
    }
    walked
}

/// The members of an archive, and why there are no more of them.
fn walk(bytes: &Arc<dyn ReadAt>, scan: &mut ShardScan<'_>) -> (MemberIndex, Result<(), ShardFault>) {
    let (mut index, mut members) = (MemberIndex::default(), ShardMembers::open(bytes));
    let walked = loop {
        match members.next_member(scan) {
            Ok(Some(member)) => index.push(&member),
            Ok(None) => break Ok(()),
            Err(fault) => break Err(fault),
        }
    };
    index.sort();
    (index, walked)
}

fn show(shard: Option<u32>) -> String {
    shard.map_or_else(|| "the shard".to_owned(), |number| format!("shard {number}"))
}

#[cfg(test)]
mod tests;
