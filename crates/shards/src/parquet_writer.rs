//! Writes recordings and their texts as a Parquet file that Hugging Face `datasets` reads as an audio dataset.

use std::io::Write;
use std::sync::Arc;

use ::parquet::basic::{Compression, Encoding};
use ::parquet::data_type::{ByteArray, ByteArrayType, DataType, DoubleType};
use ::parquet::errors::ParquetError;
use ::parquet::file::metadata::KeyValue;
use ::parquet::file::properties::{EnabledStatistics, WriterProperties};
use ::parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use ::parquet::schema::parser::parse_message_type;
use ::parquet::schema::types::ColumnPath;

use crate::fault::ShardFault;

/// The most rows of a row group: what `datasets` writes for audio, so that readers of whole row groups stay small.
const MOST_GROUP_ROWS: usize = 100;

/// The most bytes of recordings in a row group, unless a single one is larger.
const MOST_GROUP_BYTES: usize = 64 << 20;

/// A page ends once it has this many bytes; a larger recording has a page to itself.
const PAGE_BYTES: usize = 1 << 20;

/// `audio` can be null although it never is: `datasets` takes a column for audio only if it has the very type that
/// pyarrow gives it.
const SCHEMA: &str = "message schema {
    required binary id (STRING);
    required binary text (STRING);
    optional binary speaker (STRING);
    optional binary language (STRING);
    required double duration;
    optional group audio {
        optional binary bytes;
        optional binary path (STRING);
    }
}";

/// Makes `datasets` decode the column `audio`, in the words of that library.
const FEATURES: &str = concat!(
    r#"{"info": {"features": {"id": {"dtype": "string", "_type": "Value"}, "#,
    r#""text": {"dtype": "string", "_type": "Value"}, "speaker": {"dtype": "string", "_type": "Value"}, "#,
    r#""language": {"dtype": "string", "_type": "Value"}, "duration": {"dtype": "float64", "_type": "Value"}, "#,
    r#""audio": {"_type": "Audio"}}}}"#
);

/// A recording and what is known of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ParquetRow<'a> {
    /// Its name.
    pub id: &'a str,
    /// What is said.
    pub text: &'a str,
    /// Who says it.
    pub speaker: Option<&'a str>,
    /// In which language.
    pub language: Option<&'a str>,
    /// How long it is.
    pub duration_s: f64,
    /// The recording: a whole audio file.
    pub audio: &'a [u8],
    /// The name of that audio file. Readers know its format by its ending.
    pub path: &'a str,
}

/// Writes a Parquet file, row by row. The same rows make the same bytes.
///
/// Memory: a row group, at most 64 MiB and one recording. Recordings are not compressed again; each page ends after
/// about a mebibyte, so that one can be read without the others. A writer that is dropped before
/// [`ParquetShardWriter::finish`] leaves a file that cannot be read.
pub struct ParquetShardWriter<W: Write + Send> {
    file: SerializedFileWriter<W>,
    group: GroupBuffer,
}

impl<W: Write + Send> ParquetShardWriter<W> {
    /// Begins a file.
    pub fn new(out: W) -> Result<ParquetShardWriter<W>, ShardFault> {
        let schema = parse_message_type(SCHEMA).map_err(fault)?;
        let audio = || ColumnPath::from(vec!["audio".to_owned(), "bytes".to_owned()]);
        let properties = WriterProperties::builder()
            .set_created_by(format!("tandem {}", env!("CARGO_PKG_VERSION")))
            .set_key_value_metadata(Some(vec![KeyValue::new("huggingface".to_owned(), FEATURES.to_owned())]))
            .set_compression(Compression::SNAPPY)
            .set_column_compression(audio(), Compression::UNCOMPRESSED)
            .set_column_dictionary_enabled(audio(), false)
            .set_column_encoding(audio(), Encoding::PLAIN)
            .set_data_page_size_limit(PAGE_BYTES)
            // Smallest and largest recording, byte by byte, are of no use.
            .set_statistics_enabled(EnabledStatistics::None)
            .build();
        let file = SerializedFileWriter::new(out, Arc::new(schema), Arc::new(properties)).map_err(fault)?;
        Ok(ParquetShardWriter { file, group: GroupBuffer::default() })
    }

    /// Adds a row. Writes a row group when enough rows have come.
    ///
    /// Fails if writing does, or if the recording has 1 GiB or more, which no reader of pages takes. After a failure to
    /// write, the file cannot be finished.
    pub fn append(&mut self, row: &ParquetRow<'_>) -> Result<(), ShardFault> {
        if row.audio.len() >= 1 << 30 {
            let reason = format!(
                "recording `{}` has {} bytes: expected less than 1073741824 (1 GiB), the most that a Parquet page holds; \
                 split it into shorter ones, or write tar shards",
                row.id,
                row.audio.len()
            );
            return Err(ShardFault::Unsupported { reason });
        }
        if self.group.num_bytes + row.audio.len() > MOST_GROUP_BYTES {
            self.flush()?;
        }
        self.group.push(row);
        if self.group.ids.len() == MOST_GROUP_ROWS {
            self.flush()?;
        }
        Ok(())
    }

    /// Writes what is left and the footer, and gives back what was written to.
    pub fn finish(mut self) -> Result<W, ShardFault> {
        self.flush()?;
        self.file.into_inner().map_err(fault)
    }

    fn flush(&mut self) -> Result<(), ShardFault> {
        let group = std::mem::take(&mut self.group);
        if group.ids.is_empty() {
            return Ok(());
        }
        let mut out = self.file.next_row_group().map_err(fault)?;
        group.write(&mut out).map_err(fault)?;
        out.close().map_err(fault)?;
        Ok(())
    }
}

/// Rows that wait for their row group.
#[derive(Default)]
struct GroupBuffer {
    ids: Vec<ByteArray>,
    texts: Vec<ByteArray>,
    speakers: Vec<Option<ByteArray>>,
    languages: Vec<Option<ByteArray>>,
    durations: Vec<f64>,
    recordings: Vec<ByteArray>,
    paths: Vec<ByteArray>,
    num_bytes: usize,
}

impl GroupBuffer {
    fn push(&mut self, row: &ParquetRow<'_>) {
        self.num_bytes += row.audio.len() + row.text.len();
        self.ids.push(row.id.into());
        self.texts.push(row.text.into());
        self.speakers.push(row.speaker.map(ByteArray::from));
        self.languages.push(row.language.map(ByteArray::from));
        self.durations.push(row.duration_s);
        self.recordings.push(row.audio.to_vec().into());
        self.paths.push(row.path.into());
    }

    /// Writes the columns in the order of the schema.
    fn write<W: Write + Send>(self, out: &mut SerializedRowGroupWriter<'_, W>) -> Result<(), ParquetError> {
        column::<ByteArrayType, W>(out, &self.ids, None)?;
        column::<ByteArrayType, W>(out, &self.texts, None)?;
        optional_column(out, self.speakers)?;
        optional_column(out, self.languages)?;
        column::<DoubleType, W>(out, &self.durations, None)?;
        // Both the struct and its field are there.
        let levels = vec![2; self.ids.len()];
        column::<ByteArrayType, W>(out, &self.recordings, Some(&levels))?;
        column::<ByteArrayType, W>(out, &self.paths, Some(&levels))
    }
}

fn optional_column<W: Write + Send>(
    out: &mut SerializedRowGroupWriter<'_, W>,
    values: Vec<Option<ByteArray>>,
) -> Result<(), ParquetError> {
    let levels: Vec<i16> = values.iter().map(|value| i16::from(value.is_some())).collect();
    let values: Vec<ByteArray> = values.into_iter().flatten().collect();
    column::<ByteArrayType, W>(out, &values, Some(&levels))
}

fn column<T: DataType, W: Write + Send>(
    out: &mut SerializedRowGroupWriter<'_, W>,
    values: &[T::T],
    levels: Option<&[i16]>,
) -> Result<(), ParquetError> {
    let column = out.next_column()?;
    let mut column = column.ok_or_else(|| ParquetError::General("the schema has too few columns".into()))?;
    column.typed::<T>().write_batch(values, levels, None)?;
    column.close()
}

/// The library wraps the failure to write; this takes it out.
fn fault(error: ParquetError) -> ShardFault {
    match error {
        ParquetError::External(source) => match source.downcast::<std::io::Error>() {
            Ok(error) => ShardFault::Io(*error),
            Err(other) => ShardFault::Io(std::io::Error::other(other)),
        },
        other => ShardFault::Io(std::io::Error::other(other)),
    }
}
