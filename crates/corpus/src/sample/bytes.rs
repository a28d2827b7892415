//! Rows as bytes: how an index stores the rows of a shard, and how rows of shards are put together.
//!
//! Little-endian: the counts, the rows of 64 bytes each, the letters, the names of speakers and of languages. Reading takes
//! nothing for granted: a row that points outside the letters, or into a character, makes the bytes damaged.

use std::path::Path;
use std::sync::Arc;

use super::{NO_LANG, NO_NAME, NO_SHARD, Names, Row, Samples, Subset};
use crate::shard::ShardFile;

/// Bytes of a row.
const ROW_BYTES: usize = 64;

impl Samples {
    /// Appends the rows of one shard. Lists and shards are not part of it.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.reserve(self.rows.len() * ROW_BYTES + self.letters.len() + 32);
        out.extend((self.rows.len() as u64).to_le_bytes());
        out.extend((self.letters.len() as u64).to_le_bytes());
        out.extend((self.speakers.names.len() as u32).to_le_bytes());
        out.extend((self.langs.names.len() as u32).to_le_bytes());
        self.rows.iter().for_each(|row| row.encode(out));
        out.extend(self.letters.as_bytes());
        for name in self.speakers.names.iter().chain(&self.langs.names) {
            out.extend((name.len() as u32).to_le_bytes());
            out.extend(name.as_bytes());
        }
    }

    /// The rows that [`Samples::encode`] wrote, and nothing after them. None for anything else.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Samples> {
        let mut input = ByteInput(bytes);
        let num_rows = usize::try_from(input.u64()?).ok()?;
        let num_letters = usize::try_from(input.u64()?).ok()?;
        let (num_speakers, num_langs) = (input.u32()?, input.u32()?);
        let row_bytes = input.take(num_rows.checked_mul(ROW_BYTES)?)?;
        let letters = str::from_utf8(input.take(num_letters)?).ok()?;
        let mut samples = Samples::new(Default::default());
        samples.speakers = input.names(num_speakers)?;
        samples.langs = input.names(num_langs)?;
        if !input.0.is_empty() {
            return None;
        }
        samples.rows.reserve_exact(num_rows);
        for bytes in row_bytes.chunks_exact(ROW_BYTES) {
            let row = Row::decode(bytes)?;
            row.check(letters, num_speakers, num_langs)?;
            samples.rows.push(row);
        }
        samples.letters = letters.to_owned();
        Some(samples)
    }

    /// Appends the rows of a shard, which was scanned or decoded. Costs a copy of its letters and a pass over its rows.
    pub(crate) fn append_shard(&mut self, other: Samples, shard: Arc<ShardFile>, file: Arc<Path>) {
        let (start, shard_number, file_number) = (self.letters.len() as u64, self.shards.len(), self.files.len());
        self.shards.push(shard);
        self.files.push(file);
        self.letters.push_str(&other.letters);
        let numbers = |own: &mut Names, names: &Names| -> Vec<u32> {
            names.names.iter().map(|name| own.number(Some(name))).collect()
        };
        let speakers = numbers(&mut self.speakers, &other.speakers);
        let langs = numbers(&mut self.langs, &other.langs);
        self.rows.extend(other.rows.into_iter().map(|row| Row {
            start: row.start + start,
            speaker: speakers.get(row.speaker as usize).copied().unwrap_or(NO_NAME),
            lang: langs.get(usize::from(row.lang)).map_or(NO_LANG, |lang| (*lang).min(NO_LANG.into()) as u16),
            // The caller has counted them.
            shard: if row.shard == NO_SHARD { NO_SHARD } else { shard_number as u16 },
            file: file_number as u16,
            ..row
        }));
    }

    /// Makes room for what will be appended, at once instead of by doubling.
    pub(crate) fn reserve(&mut self, num_rows: usize, num_letters: usize) {
        self.rows.reserve_exact(num_rows);
        self.letters.reserve_exact(num_letters);
    }

    /// Bytes of all strings.
    pub(crate) fn num_letters(&self) -> usize {
        self.letters.len()
    }
}

impl Row {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend(self.start.to_le_bytes());
        out.extend(self.offset_s.to_le_bytes());
        out.extend(self.duration_s.to_le_bytes());
        out.extend(self.position.to_le_bytes());
        out.extend(self.extent.to_le_bytes());
        out.extend(self.text_len.to_le_bytes());
        out.extend(self.id_at.to_le_bytes());
        out.extend(self.speaker.to_le_bytes());
        out.extend(self.line.to_le_bytes());
        out.extend(self.key_len.to_le_bytes());
        out.extend(self.id_len.to_le_bytes());
        out.extend(self.lang.to_le_bytes());
        // Which list and which source a row is from is decided where rows are put together.
        out.extend(u16::from(self.shard != NO_SHARD).to_le_bytes());
        out.extend([0; 4]);
    }

    fn decode(bytes: &[u8]) -> Option<Row> {
        let mut input = ByteInput(bytes);
        let row = Row {
            start: input.u64()?,
            offset_s: f64::from_bits(input.u64()?),
            duration_s: f64::from_bits(input.u64()?),
            position: input.u64()?,
            extent: input.u32()?,
            text_len: input.u32()?,
            id_at: input.u32()?,
            speaker: input.u32()?,
            line: input.u32()?,
            key_len: input.u16()?,
            id_len: input.u16()?,
            lang: input.u16()?,
            shard: if input.u16()? == 0 { NO_SHARD } else { 0 },
            file: 0,
            part: Subset::Undecided,
            source: 0,
        };
        Some(row)
    }

    /// Whether its strings are strings.
    fn check(&self, letters: &str, num_speakers: u32, num_langs: u32) -> Option<()> {
        let start = usize::try_from(self.start).ok()?;
        let inside = |at: usize, len: usize| {
            let from = start.checked_add(at)?;
            letters.get(from..from.checked_add(len)?).map(drop)
        };
        inside(0, self.key_len.into())?;
        inside(self.key_len.into(), self.text_len as usize)?;
        inside(self.id_at as usize, self.id_len.into())?;
        let has_speaker = self.speaker == NO_NAME || self.speaker < num_speakers;
        let has_lang = self.lang == NO_LANG || u32::from(self.lang) < num_langs;
        (has_speaker && has_lang).then_some(())
    }
}

/// Bytes that are taken from the front.
pub(crate) struct ByteInput<'a>(pub(crate) &'a [u8]);

impl<'a> ByteInput<'a> {
    pub(crate) fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*taken)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    fn names(&mut self, count: u32) -> Option<Names> {
        let mut names = Names::default();
        for number in 0..count {
            let len = self.u32()?;
            let name = str::from_utf8(self.take(len as usize)?).ok()?;
            // A name that is there twice would give two numbers one name.
            if names.number(Some(name)) != number {
                return None;
            }
        }
        Some(names)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tandem_shards::ValueAddress;

    use super::*;
    use crate::sample::NewRow;

    fn shard_rows(rows: &[(String, String, Option<u8>, Option<f64>)]) -> Samples {
        let mut samples = Samples::new("".into());
        samples.begin_file(Path::new("shard.tar").into());
        for (line, (id, text, speaker, duration_s)) in (1..).zip(rows) {
            samples.push(&NewRow {
                id,
                text,
                speaker: speaker.map(|speaker| format!("s{speaker}")).as_deref(),
                lang: speaker.filter(|speaker| speaker % 2 == 0).map(|_| "fa"),
                key: &format!("{id}.wav"),
                offset_s: None,
                duration_s: *duration_s,
                part: Subset::Undecided,
                line,
                address: (line % 3 != 0).then_some(ValueAddress { position: 512 * u64::from(line), extent: line }),
            });
        }
        samples
    }

    fn said(samples: &Samples) -> Vec<String> {
        let row = |(_, sample): (_, crate::Sample<'_>)| {
            let crate::Sample { id, text, speaker, lang, duration_s, line, .. } = sample;
            format!("{id} {text} {speaker:?} {lang:?} {} {duration_s:?} {line}", sample.audio.key)
        };
        samples.iter().map(row).collect()
    }

    fn rows() -> impl Strategy<Value = Vec<(String, String, Option<u8>, Option<f64>)>> {
        let row = ("[a-zü/]{1,9}", "[a-z €]{0,20}", prop::option::of(0_u8..4), prop::option::of(0.1..30.0));
        prop::collection::vec(row, 0..20)
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(rows in rows()) {
            let samples = shard_rows(&rows);
            let mut bytes = Vec::new();
            samples.encode(&mut bytes);
            let found = Samples::decode(&bytes).unwrap();
            prop_assert_eq!(said(&found), said(&samples));
            prop_assert!((0..bytes.len()).step_by(7).all(|end| Samples::decode(&bytes[..end]).is_none()));
        }

        #[test]
        fn damaged_bytes_are_refused_or_read_and_never_panic(
            rows in rows(), at in any::<prop::sample::Index>(), value in any::<u8>(),
        ) {
            let mut bytes = Vec::new();
            shard_rows(&rows).encode(&mut bytes);
            let at = at.index(bytes.len());
            bytes[at] = value;
            if let Some(samples) = Samples::decode(&bytes) {
                said(&samples);
            }
        }
    }
}
