//! The members of an archive, while a shard is scanned.

use std::sync::Arc;

use tandem_shards::{ShardFault, TarMember, TarReader};
use tandem_storage::ReadAt;

use crate::lines::MAX_LINE_BYTES;
use crate::problem::ProblemKind;
use crate::recording_reader::PieceReader;
use crate::sharded::scan::ShardScan;

/// The members of an archive in their order. Members that cannot be read become problems.
pub(crate) struct ShardMembers {
    archive: TarReader<PieceReader>,
    buffer: Vec<u8>,
}

impl ShardMembers {
    /// Reads nothing yet.
    pub(crate) fn open(bytes: &Arc<dyn ReadAt>) -> ShardMembers {
        let archive = TarReader::new(PieceReader::whole(Arc::clone(bytes)), bytes.num_bytes());
        ShardMembers { archive, buffer: Vec::new() }
    }

    /// The next member, none at the end. Fails when the archive cannot be read any further.
    pub(crate) fn next_member(&mut self, scan: &mut ShardScan<'_>) -> Result<Option<TarMember>, ShardFault> {
        loop {
            match self.archive.next().transpose() {
                Ok(member) => return Ok(member),
                Err(fault) if self.archive.is_finished() => return Err(fault),
                Err(fault) => scan.problem(None, ProblemKind::UnusedFile, fault.to_string()),
            }
        }
    }

    /// The bytes of a member that is a text. Of one that is too large, its size is said instead.
    pub(crate) fn read_text(&mut self, member: &TarMember) -> Result<Result<&[u8], String>, ShardFault> {
        match self.archive.read_small(member, MAX_LINE_BYTES as u64, &mut self.buffer) {
            Ok(()) => Ok(Ok(&self.buffer)),
            Err(ShardFault::Unsupported { reason }) => Ok(Err(reason)),
            Err(fault) => Err(fault),
        }
    }
}
