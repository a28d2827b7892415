//! Tar shards for a benchmark: noise in wav files, each with a JSON object that has its text.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use tandem_audio::{Clip, wav};

use super::super::BenchError;

/// A tar archive is made of blocks of so many bytes.
const BLOCK_BYTES: usize = 512;
const WAV_HEADER_BYTES: usize = 44;
/// What is said. No number: as words, a long one would need more time than a short recording has.
const TEXT: &str = "This is a sentence of a large corpus.";

/// What to write.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ShardContents {
    /// What the names of its files begin with.
    pub name: &'static str,
    /// Utterances.
    pub rows: usize,
    /// Shards that they are spread over, if there are as many.
    pub num_shards: usize,
    /// Samples per second of its recordings.
    pub rate_hz: u32,
    /// Seconds of the shortest and of the longest recording.
    pub seconds: [f64; 2],
    /// Whether the JSON objects say how long their recordings are.
    pub has_durations: bool,
}

/// Shards on a disk.
#[derive(Clone, Debug)]
pub struct WrittenShards {
    /// What is in them.
    pub contents: ShardContents,
    /// The shards, in order.
    pub files: Vec<PathBuf>,
    /// Their size.
    pub num_bytes: u64,
    /// A pattern that finds them.
    pub pattern: String,
}

impl ShardContents {
    /// The most bytes that they take on a disk.
    pub fn max_bytes(&self) -> u64 {
        let longest = (self.seconds[1] * f64::from(self.rate_hz)).ceil() as usize;
        let recording = BLOCK_BYTES + padded(WAV_HEADER_BYTES + 2 * longest);
        let object = 2 * BLOCK_BYTES;
        // The end marker of each shard, and the index: a row and its strings.
        (self.rows * (recording + object + 256) + self.num_shards * 2 * BLOCK_BYTES) as u64
    }

    fn num_samples(&self, row: usize) -> usize {
        let [shortest_s, longest_s] = self.seconds;
        let share = (row * 7919 % 10_007) as f64 / 10_007.0;
        ((shortest_s + share * (longest_s - shortest_s)) * f64::from(self.rate_hz)) as usize
    }
}

/// Writes shards into `folder`, which is made, and waits until they are on the disk.
pub fn write(folder: &Path, contents: ShardContents) -> Result<WrittenShards, BenchError> {
    let failed = |error: io::Error| BenchError::Clips(format!("{error}: {}", folder.display()));
    fs::create_dir_all(folder).map_err(failed)?;
    let pattern = format!("{}/{}-*.tar", folder.display(), contents.name);
    let mut shards = WrittenShards { contents, files: Vec::new(), num_bytes: 0, pattern };
    let longest = contents.num_samples(0).max((contents.seconds[1] * f64::from(contents.rate_hz)) as usize);
    // Each recording is a part of the same noise, at a place of its own.
    let noise: Vec<i16> = (0..2 * longest as i32).map(|i| (i.wrapping_mul(7919) % 16_001 - 8000) as i16).collect();
    let per_shard = contents.rows.div_ceil(contents.num_shards.max(1)).max(1);
    let mut clip = Clip { samples: Vec::new(), rate_hz: contents.rate_hz };
    let mut recording = Vec::new();
    for (number, first) in (0..contents.rows).step_by(per_shard).enumerate() {
        let path = folder.join(format!("{}-{number:06}.tar", contents.name));
        let mut out = BufWriter::with_capacity(1 << 20, File::create(&path).map_err(failed)?);
        for row in first..contents.rows.min(first + per_shard) {
            let (num_samples, start) = (contents.num_samples(row), row % longest.max(1));
            clip.samples.clear();
            clip.samples.extend_from_slice(&noise[start..start + num_samples]);
            recording.clear();
            wav::write(&clip, &mut recording).map_err(|error| BenchError::Clips(error.to_string()))?;
            append(&mut out, &format!("{row:09}.wav"), &recording).map_err(failed)?;
            append(&mut out, &format!("{row:09}.json"), object(&contents, clip.seconds()).as_bytes())
                .map_err(failed)?;
        }
        shards.num_bytes += finish(out).map_err(failed)?;
        shards.files.push(path);
    }
    Ok(shards)
}

/// What the object of a recording says.
fn object(contents: &ShardContents, seconds: f64) -> String {
    let duration = if contents.has_durations { format!(",\"duration\":{seconds:.6}") } else { String::new() };
    format!("{{\"text\":\"{TEXT}\"{duration}}}")
}

/// Writes a member in the ustar layout of POSIX.1-1988: a header, the bytes, zeros up to a whole block.
fn append(out: &mut impl Write, name: &str, bytes: &[u8]) -> io::Result<()> {
    let mut header = [0; BLOCK_BYTES];
    let mut put = |at: usize, field: &[u8]| header[at..at + field.len()].copy_from_slice(field);
    put(0, name.as_bytes());
    // Mode, owner, group, size, date.
    put(100, b"0000644\x000000000\x000000000\x00");
    put(124, format!("{:011o}\0{:011o}\0", bytes.len(), 0).as_bytes());
    // The checksum is taken with blanks in its place. A regular file.
    put(148, b"        0");
    put(257, b"ustar\x0000");
    let checksum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{checksum:06o}\0 ").as_bytes());
    out.write_all(&header)?;
    out.write_all(bytes)?;
    out.write_all(&[0; BLOCK_BYTES][..padded(bytes.len()) - bytes.len()])
}

/// Writes the end marker. Returns the size.
fn finish(mut out: BufWriter<File>) -> io::Result<u64> {
    out.write_all(&[0; 2 * BLOCK_BYTES])?;
    let file = out.into_inner().map_err(io::IntoInnerError::into_error)?;
    file.sync_all()?;
    Ok(file.metadata()?.len())
}

fn padded(num_bytes: usize) -> usize {
    num_bytes.next_multiple_of(BLOCK_BYTES)
}
