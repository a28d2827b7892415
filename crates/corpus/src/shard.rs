//! Containers of recordings: where they are, what they looked like when they were indexed, and how a recording in one is
//! read.

use std::ops::Range;

use bytes::Bytes;
use tandem_shards::{PageTable, ShardFault, ValueAddress};
use tandem_storage::{Object, ObjectFetch, ObjectLocation, ObjectStamp, ReadAt, Storage};

use crate::error::CorpusError;
use crate::recording_reader::RecordingReader;

/// A larger recording is read piece by piece.
const MAX_IN_MEMORY: u32 = 64 << 20;

/// A container of recordings as it was when it was indexed. Another content is noticed when it is read.
#[derive(Debug)]
pub struct ShardFile {
    location: ObjectLocation,
    stamp: ObjectStamp,
    kind: ShardKind,
    storage: Storage,
}

/// What sort of container it is.
#[derive(Debug)]
pub(crate) enum ShardKind {
    /// Members of a tar archive: an address is a byte position and a size.
    Tar,
    /// Values of an Arrow file: an address is a byte position and a size.
    Arrow,
    /// Values of a Parquet file: an address is a page and a place in it.
    Parquet(PageTable),
}

impl PartialEq for ShardFile {
    fn eq(&self, other: &ShardFile) -> bool {
        self.location == other.location && self.stamp == other.stamp
    }
}

impl ShardFile {
    pub(crate) fn new(location: ObjectLocation, stamp: ObjectStamp, kind: ShardKind, storage: Storage) -> ShardFile {
        ShardFile { location, stamp, kind, storage }
    }

    /// Where it is.
    pub fn location(&self) -> &ObjectLocation {
        &self.location
    }

    /// What it looked like when it was indexed.
    pub fn stamp(&self) -> &ObjectStamp {
        &self.stamp
    }

    /// A recording of a shard on this machine. Fails if the shard has changed since it was indexed.
    pub(crate) fn open(&self, address: ValueAddress) -> Result<RecordingReader, CorpusError> {
        let object = self.storage.open(&self.location, Some(&self.stamp))?;
        match &self.kind {
            ShardKind::Parquet(pages) => {
                let mut value = Vec::new();
                let read = pages.read_value(&object, address, &mut value);
                read.map_err(|fault| self.damaged(fault))?;
                Ok(RecordingReader::of_bytes(value))
            }
            ShardKind::Tar | ShardKind::Arrow => self.open_span(&object, address),
        }
    }

    fn open_span(&self, object: &Object, address: ValueAddress) -> Result<RecordingReader, CorpusError> {
        if address.extent > MAX_IN_MEMORY {
            return Ok(RecordingReader::Section(Box::new(object.reader(span(address)))));
        }
        let mut value = vec![0; address.extent as usize];
        object.read_exact_at(address.position, &mut value).map_err(|error| self.damaged(error.into()))?;
        Ok(RecordingReader::of_bytes(value))
    }

    /// A recording to fetch, and the dictionary that it needs. Makes no request.
    pub(crate) fn fetch(&self, address: ValueAddress) -> Result<(ObjectFetch, Option<ObjectFetch>), CorpusError> {
        let fetch = |span: Range<u64>| self.storage.fetch(&self.location, span, &self.stamp);
        match &self.kind {
            ShardKind::Tar | ShardKind::Arrow => Ok((fetch(span(address)), None)),
            ShardKind::Parquet(pages) => {
                let page = pages.span(address.position).ok_or_else(|| self.unknown_page(address))?;
                Ok((fetch(page), pages.dictionary_span(address.position).map(fetch)))
            }
        }
    }

    /// The recording in bytes that were fetched.
    pub(crate) fn open_fetched(
        &self,
        address: ValueAddress,
        value: Bytes,
        dictionary: Option<Bytes>,
    ) -> Result<RecordingReader, CorpusError> {
        match &self.kind {
            ShardKind::Tar | ShardKind::Arrow => Ok(RecordingReader::of_bytes(value)),
            ShardKind::Parquet(pages) => {
                let mut out = Vec::new();
                let found = pages.value_in(&value, dictionary.as_deref(), address, &mut out);
                found.map_err(|fault| self.damaged(fault))?;
                Ok(RecordingReader::of_bytes(out))
            }
        }
    }

    /// A recording in words: shard, member and place.
    pub(crate) fn show(&self, member: &str, address: ValueAddress) -> String {
        let (shard, ValueAddress { position, extent }) = (&self.location, address);
        match self.kind {
            ShardKind::Tar | ShardKind::Arrow => format!("{shard}: {member} (byte {position})"),
            ShardKind::Parquet(_) => format!("{shard}: {member} (page {position}, value {extent})"),
        }
    }

    fn damaged(&self, fault: ShardFault) -> CorpusError {
        CorpusError::Shard { shard: self.location.to_string(), fault }
    }

    fn unknown_page(&self, address: ValueAddress) -> CorpusError {
        let reason = format!("page {} is not in the index; run `tandem corpus index` again", address.position);
        self.damaged(ShardFault::Damaged { offset: 0, reason })
    }
}

fn span(address: ValueAddress) -> Range<u64> {
    address.position..address.position.saturating_add(address.extent.into())
}
