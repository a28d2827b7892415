//! Writes a corpus as shards: tar archives that WebDataset reads, or Parquet files that Hugging Face `datasets` reads.
//!
//! Recordings are copied byte for byte. An utterance that is a part of a recording is decoded and stored as a wav of that part,
//! so that a shard holds what is trained on and no more. A shard has its name only once it is whole.

mod member;

use std::fs::{self, File};
use std::io::{self, BufWriter, Read as _, Write as _};
use std::path::{Path, PathBuf};

use serde::Serialize;
use tandem_audio::{AudioError, Clip, wav};
use tandem_corpus::{Dataset, Problem, ProblemKind, Sample, Subset};
use tandem_shards::{ParquetRow, ParquetShardWriter, ShardFault, TarWriter};

use crate::FeedError;
use crate::load::decode::{load_into, open};
use crate::load::storage_fault::undecodable;
use crate::survey::scan::measure;
use member::{MemberNames, extension_of};

/// What shards are written as.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PackFormat {
    /// Tar archives with a recording and a `.json` for each utterance.
    #[default]
    Tar,
    /// Parquet files with an audio column.
    Parquet,
}

/// How to write shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackOptions {
    /// What they are written as.
    pub format: PackFormat,
    /// A shard ends once it has this many bytes.
    pub shard_bytes: u64,
}

/// What was written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PackReport {
    /// The shards, in the order of their utterances.
    pub shards: Vec<PathBuf>,
    /// Utterances in them.
    pub num_utterances: usize,
    /// Bytes of them.
    pub num_bytes: u64,
    /// Utterances that could not be read, and are in no shard.
    pub problems: Vec<Problem>,
}

/// The most bytes of a recording: what a tar member and an index can hold.
const MAX_RECORDING_BYTES: u64 = 1 << 30;

/// Writes the utterances of `dataset`, in its order and without the excluded ones, to shards in `folder`, which is created.
/// The corpus's own evaluation set gets shards of its own (`validation-…` beside `train-…`). `progress` is called with the
/// number of utterances done.
///
/// Fails if a shard cannot be written, or if an object store does not answer; shards that were finished stay. An utterance that
/// cannot be read is a problem of the report.
pub fn pack(
    dataset: &Dataset,
    folder: &Path,
    options: &PackOptions,
    mut progress: impl FnMut(usize),
) -> Result<PackReport, FeedError> {
    fs::create_dir_all(folder).map_err(|why| unwritable(folder, why))?;
    let mut report = PackReport::default();
    let mut done = 0;
    let has_eval = dataset.has_eval();
    for name in if has_eval { &["train", "validation"][..] } else { &["shard"] } {
        let is_wanted = |part: Subset| !has_eval || (part == Subset::Eval) == (*name == "validation");
        let mut shards =
            ShardSequence { folder, name, options, number: 0, current: None, names: MemberNames::default() };
        let wanted = |sample: &Sample<'_>| sample.part != Subset::Excluded && is_wanted(sample.part);
        for (_, sample) in dataset.samples().iter().filter(|(_, sample)| wanted(sample)) {
            match read_recording(&sample) {
                Ok(recording) => {
                    shards.add(&sample, &recording, &mut report)?;
                    report.num_utterances += 1;
                }
                Err(error) if error.is_about_storage() => return Err(error),
                Err(error) => report.problems.push(problem(&sample, &error)),
            }
            done += 1;
            progress(done);
        }
        shards.finish(&mut report)?;
    }
    Ok(report)
}

/// A recording as it will be stored.
struct PackedRecording {
    bytes: Vec<u8>,
    /// `wav`, `flac`, …
    extension: &'static str,
    duration_s: f64,
}

fn read_recording(sample: &Sample<'_>) -> Result<PackedRecording, FeedError> {
    let mut clip = Clip::default();
    if sample.audio.range.is_some() {
        load_into(&sample.audio, &mut clip)?;
        let mut bytes = Vec::new();
        wav::write(&clip, &mut bytes)
            .map_err(|source| FeedError::Undecodable { source, location: sample.audio.show() })?;
        return Ok(PackedRecording { bytes, extension: "wav", duration_s: clip.seconds() });
    }
    let mut bytes = Vec::new();
    let unreadable = |why: io::Error| undecodable(&sample.audio, AudioError::Io(why));
    open(&sample.audio)?.take(MAX_RECORDING_BYTES + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > MAX_RECORDING_BYTES {
        let what = format!("expected at most {MAX_RECORDING_BYTES} bytes, found more");
        return Err(unreadable(io::Error::other(what)));
    }
    let duration_s = match sample.duration_s {
        Some(duration_s) => duration_s,
        None => measure(&sample.audio, &mut clip)?.duration_s(),
    };
    let extension = extension_of(&bytes, sample.audio.extension());
    Ok(PackedRecording { bytes, extension, duration_s })
}

/// Shards of one set: `train-000000.tar`, `train-000001.tar`, …
struct ShardSequence<'a> {
    folder: &'a Path,
    name: &'a str,
    options: &'a PackOptions,
    number: usize,
    current: Option<OpenShard>,
    names: MemberNames,
}

struct OpenShard {
    path: PathBuf,
    temporary: HalfShard,
    writer: ShardWriter,
    num_bytes: u64,
}

enum ShardWriter {
    Tar(TarWriter<BufWriter<File>>),
    Parquet(Box<ParquetShardWriter<BufWriter<File>>>),
}

/// What a tar shard says of an utterance.
#[derive(Serialize)]
struct Description<'a> {
    id: &'a str,
    text: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    speaker: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    language: Option<&'a str>,
    duration: f64,
}

impl ShardSequence<'_> {
    fn add(
        &mut self,
        sample: &Sample<'_>,
        recording: &PackedRecording,
        report: &mut PackReport,
    ) -> Result<(), FeedError> {
        let member = self.names.take(sample.id);
        if self.current.is_none() {
            self.current = Some(self.begin()?);
            self.number += 1;
        }
        let Some(shard) = &mut self.current else { unreachable!("a shard was opened above") };
        let PackedRecording { bytes, extension, duration_s } = recording;
        let path = format!("{member}.{extension}");
        let written = match &mut shard.writer {
            ShardWriter::Tar(tar) => {
                let description = Description {
                    id: sample.id,
                    text: sample.text,
                    speaker: sample.speaker,
                    language: sample.lang,
                    duration: *duration_s,
                };
                // Strings and finite numbers always have a JSON form.
                let json = serde_json::to_vec(&description).unwrap_or_default();
                shard.num_bytes += json.len() as u64;
                tar.append(&path, bytes).and_then(|()| tar.append(&format!("{member}.json"), &json))
            }
            ShardWriter::Parquet(parquet) => parquet.append(&ParquetRow {
                id: sample.id,
                text: sample.text,
                speaker: sample.speaker,
                language: sample.lang,
                duration_s: *duration_s,
                audio: bytes,
                path: &path,
            }),
        };
        written.map_err(|fault| not_written(&shard.path, fault))?;
        shard.num_bytes += bytes.len() as u64;
        if shard.num_bytes >= self.options.shard_bytes {
            self.finish(report)?;
        }
        Ok(())
    }

    fn begin(&self) -> Result<OpenShard, FeedError> {
        let ending = match self.options.format {
            PackFormat::Tar => "tar",
            PackFormat::Parquet => "parquet",
        };
        let path = self.folder.join(format!("{}-{:06}.{ending}", self.name, self.number));
        let temporary = path.with_extension(format!("{ending}.{}.tmp", std::process::id()));
        let file =
            File::options().write(true).create_new(true).open(&temporary).map_err(|why| unwritable(&path, why))?;
        let temporary = HalfShard(temporary);
        let file = BufWriter::with_capacity(1 << 20, file);
        let writer = match self.options.format {
            PackFormat::Tar => ShardWriter::Tar(TarWriter::new(file)),
            PackFormat::Parquet => {
                let writer = ParquetShardWriter::new(file).map_err(|fault| not_written(&path, fault))?;
                ShardWriter::Parquet(Box::new(writer))
            }
        };
        Ok(OpenShard { path, temporary, writer, num_bytes: 0 })
    }

    /// Ends the shard in hand, if there is one.
    fn finish(&mut self, report: &mut PackReport) -> Result<(), FeedError> {
        let Some(OpenShard { path, temporary, writer, .. }) = self.current.take() else { return Ok(()) };
        let finished = match writer {
            ShardWriter::Tar(tar) => tar.finish(),
            ShardWriter::Parquet(parquet) => parquet.finish(),
        };
        let mut file = finished.map_err(|fault| not_written(&path, fault))?;
        let stored = file.flush().and_then(|()| {
            file.get_ref().sync_all()?;
            let num_bytes = file.get_ref().metadata()?.len();
            fs::rename(&temporary.0, &path)?;
            Ok(num_bytes)
        });
        report.num_bytes += stored.map_err(|why| unwritable(&path, why))?;
        report.shards.push(path);
        Ok(())
    }
}

/// A shard under a temporary name, which is removed with it: half a shard is of no use to anybody.
struct HalfShard(PathBuf);

impl Drop for HalfShard {
    fn drop(&mut self) {
        // One that is finished has another name by now.
        let _ = fs::remove_file(&self.0);
    }
}

fn problem(sample: &Sample<'_>, error: &FeedError) -> Problem {
    let kind = match error {
        FeedError::Missing { .. } => ProblemKind::MissingAudio,
        _ => ProblemKind::UndecodableAudio,
    };
    Problem { file: sample.file.into(), line: Some(sample.line), kind, detail: error.to_string() }
}

fn not_written(path: &Path, fault: ShardFault) -> FeedError {
    match fault {
        ShardFault::Io(why) => unwritable(path, why),
        other => unwritable(path, io::Error::other(other.to_string())),
    }
}

fn unwritable(path: &Path, why: io::Error) -> FeedError {
    FeedError::Unusable { what: "shard", why, path: path.to_owned() }
}
