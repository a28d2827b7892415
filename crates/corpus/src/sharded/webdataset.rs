//! WebDataset shards: members of a tar archive that share a name are one utterance.
//!
//! The key of a member is its name up to the first dot of the last part; the rest, in lower case, is its extension.
//! Members with the same key, one after the other, are a sample: a recording, its text as a text file or in a JSON object,
//! and what the object says of it. Hidden files, names without a dot and `__meta__` folders are passed over, as the
//! `webdataset` package does.
//!
//! In: the bytes of an archive. Out: a row for each sample, or a problem that names its members. Memory: one sample, of
//! which texts and objects have at most a mebibyte each.

pub(crate) mod members;
mod metadata;
mod pending;

use std::sync::Arc;

use tandem_shards::ShardFault;
use tandem_storage::ReadAt;

use self::members::ShardMembers;
use self::pending::PendingSample;
use super::scan::ShardScan;

/// Adds the rows of the archive in `bytes`. The number of a row is that of its sample, from 1.
///
/// A member that cannot be read is a problem. Fails when the archive cannot be read any further; the rows before that are
/// added.
pub(crate) fn scan(bytes: &Arc<dyn ReadAt>, scan: &mut ShardScan<'_>) -> Result<(), ShardFault> {
    let mut members = ShardMembers::open(bytes);
    let mut sample: Option<PendingSample> = None;
    let mut num_samples = 0_u32;
    let walked = loop {
        let member = match members.next_member(scan) {
            Ok(Some(member)) => member,
            Ok(None) => break Ok(()),
            Err(fault) => break Err(fault),
        };
        let Some((key, extension)) = split_name(&member.name) else { continue };
        if sample.as_ref().is_none_or(|sample| sample.key != key) {
            num_samples = num_samples.saturating_add(1);
            if let Some(complete) = sample.replace(PendingSample::new(num_samples, key)) {
                complete.finish(bytes, scan);
            }
        }
        let Some(sample) = &mut sample else { continue };
        if let Err(fault) = sample.add(&member, &extension, &mut members, scan) {
            break Err(fault);
        }
    };
    // Where the archive ends too early, what a sample lacks may be behind the end: that is no problem of the sample.
    if let Some(last) = sample.filter(|sample| walked.is_ok() || sample.is_row()) {
        last.finish(bytes, scan);
    }
    walked
}

/// The key of a member and its extension; none for a name that is passed over.
fn split_name(name: &str) -> Option<(&str, String)> {
    let is_meta = name.split('/').next().is_some_and(|part| part.starts_with("__") && part.ends_with("__"));
    let base_at = name.rfind('/').map_or(0, |slash| slash + 1);
    let dot = base_at + name[base_at..].find('.')?;
    (dot > base_at && !is_meta).then(|| (&name[..dot], name[dot + 1..].to_lowercase()))
}

#[cfg(test)]
pub(crate) mod fixture;
#[cfg(test)]
mod tests;
