//! Wav files that are complete or not there at all, and wav on standard output.
//!
//! Speech is written chunk by chunk to a temporary file, so that memory does not grow with the text. When it is complete,
//! with its length in the header, it gets its name or is copied to standard output.

use std::fs;
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use tandem_audio::{Clip, wav};
use tempfile::NamedTempFile;

use crate::exit::Exit;
use crate::whole_file::usual_rights;

/// Formats that a user may expect, and that a converter makes from a wav.
const OTHER_FORMATS: [&str; 8] = ["mp3", "flac", "ogg", "opus", "m4a", "aac", "aiff", "wma"];

/// Where speech goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum WavTarget {
    File(PathBuf),
    Stdout,
}

/// A wav file under a temporary name.
pub(super) struct WavFile {
    file: NamedTempFile,
    target: WavTarget,
}

/// A wav file being written.
pub(super) struct OpenWav {
    out: BufWriter<NamedTempFile>,
    target: WavTarget,
    rate_hz: u32,
    num_samples: u64,
}

/// The header: its size, and the offsets of the two length fields, filled in at the end.
const HEADER_BYTES: u64 = 44;
const FILE_LENGTH_OFFSET: u64 = 4;
const SAMPLES_LENGTH_OFFSET: u64 = 40;

impl WavTarget {
    /// `-` is standard output.
    pub(super) fn of(path: &Path) -> WavTarget {
        if path == Path::new("-") { WavTarget::Stdout } else { WavTarget::File(path.to_owned()) }
    }

    /// The file, if it is one.
    pub(super) fn file(&self) -> Option<&Path> {
        match self {
            WavTarget::File(path) => Some(path),
            WavTarget::Stdout => None,
        }
    }
}

impl WavFile {
    /// Checks that the target can be written, before anything is loaded.
    pub(super) fn create(target: WavTarget) -> Result<WavFile, Exit> {
        let folder = match &target {
            WavTarget::File(path) => checked_folder(path)?,
            WavTarget::Stdout => {
                check_stdout()?;
                let file = NamedTempFile::new().context("cannot create a temporary file")?;
                return Ok(WavFile { file, target });
            }
        };
        let file =
            tempfile::Builder::new().prefix(".tmp-").suffix(".wav").permissions(usual_rights()).tempfile_in(folder);
        let refused = |error| format!("❌ -o: the folder cannot be written to ({error}): {}", folder.display());
        let file = file.map_err(|error| Exit::Usage(refused(error)))?;
        Ok(WavFile { file, target })
    }

    pub(super) fn begin(self, rate_hz: u32) -> Result<OpenWav, Exit> {
        let mut out = BufWriter::new(self.file);
        wav::write(&Clip { samples: Vec::new(), rate_hz }, &mut out).context("cannot write")?;
        Ok(OpenWav { out, target: self.target, rate_hz, num_samples: 0 })
    }
}

impl OpenWav {
    pub(super) fn append(&mut self, samples: &[i16]) -> io::Result<()> {
        self.num_samples += samples.len() as u64;
        // Wav is little-endian.
        samples.iter().try_for_each(|sample| self.out.write_all(&sample.to_le_bytes()))
    }

    /// Writes the lengths and brings the file to its target. Returns its seconds.
    pub(super) fn finish(self) -> Result<f64, Exit> {
        let OpenWav { out, target, rate_hz, num_samples } = self;
        let too_long = || format!("{num_samples} samples are more than a wav file can hold");
        let data_bytes = u32::try_from(num_samples * 2).ok().filter(|bytes| *bytes <= u32::MAX - 44);
        let data_bytes = data_bytes.with_context(too_long)?;
        let context = || match &target {
            WavTarget::File(path) => format!("cannot write {}", path.display()),
            WavTarget::Stdout => "cannot write a temporary file".to_owned(),
        };
        let mut file = out.into_inner().map_err(io::IntoInnerError::into_error).with_context(context)?;
        let lengths =
            [(FILE_LENGTH_OFFSET, data_bytes + (HEADER_BYTES - 8) as u32), (SAMPLES_LENGTH_OFFSET, data_bytes)];
        for (offset, length) in lengths {
            let wrote = file.seek(SeekFrom::Start(offset)).and_then(|_| file.write_all(&length.to_le_bytes()));
            wrote.with_context(context)?;
        }
        match &target {
            WavTarget::File(path) => {
                file.persist(path).map_err(|error| error.error).with_context(context)?;
            }
            WavTarget::Stdout => {
                file.seek(SeekFrom::Start(0)).with_context(context)?;
                copy_to_stdout(&mut file)?;
            }
        }
        Ok(num_samples as f64 / f64::from(rate_hz))
    }
}

/// The folder of a file that can be written as wav.
fn checked_folder(path: &Path) -> Result<&Path, Exit> {
    let refused = |why: &str| Exit::Usage(format!("❌ -o: {why}: {}", path.display()));
    let folder = match path.parent() {
        Some(folder) if folder.as_os_str().is_empty() => Path::new("."),
        Some(folder) => folder,
        None => return Err(refused("not a file")),
    };
    // The final rename would replace a folder, a device or a pipe by a file.
    if path.file_name().is_none() || fs::metadata(path).is_ok_and(|there| !there.is_file()) {
        return Err(refused("not a file (`-o -` writes to standard output)"));
    }
    check_extension(path)?;
    match folder.is_dir() {
        true => Ok(folder),
        false => Err(refused("the folder does not exist")),
    }
}

/// Only wav is written: another extension would name a file that it is not.
fn check_extension(path: &Path) -> Result<(), Exit> {
    let extension = path.extension().map(|extension| extension.to_string_lossy().to_lowercase());
    let shown = path.display();
    let (found, advice) = match extension.as_deref() {
        Some("wav") => return Ok(()),
        Some(other) if OTHER_FORMATS.contains(&other) => {
            let wav = path.with_extension("wav");
            let wav = wav.display();
            (format!("found .{other}"), format!("Use -o {wav}, and convert it: ffmpeg -i {wav} {shown}"))
        }
        Some(other) => (format!("found .{other}"), format!("Use -o {shown}.wav")),
        None => ("found no extension".to_owned(), format!("Use -o {shown}.wav")),
    };
    Err(Exit::Usage(format!("❌ -o: expected a file that ends in .wav, {found}: {shown}\n   {advice}")))
}

fn check_stdout() -> Result<(), Exit> {
    if !io::IsTerminal::is_terminal(&io::stdout()) {
        return Ok(());
    }
    let advice = "Send it to a program, as in `tandem synthesize … -o - | aplay`, or give a file: -o speech.wav";
    Err(Exit::Usage(format!("❌ -o -: standard output is a terminal, which cannot play a wav\n   {advice}")))
}

fn copy_to_stdout(file: &mut NamedTempFile) -> Result<(), Exit> {
    let mut out = io::stdout().lock();
    match io::copy(file, &mut out).and_then(|_| out.flush()) {
        Ok(()) => Ok(()),
        // `| head -c 1000` is not a failure.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(Exit::Closed),
        Err(error) => Err(Exit::Failed(anyhow::Error::new(error).context("cannot write to standard output"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wav_written_in_chunks_equals_one_written_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out.WAV");
        let clip = Clip { samples: (0..1000).map(|i| i * 31).collect(), rate_hz: 22_050 };
        let mut expected = Vec::new();
        wav::write(&clip, &mut expected).unwrap();
        let mut out = WavFile::create(WavTarget::of(&path)).unwrap().begin(clip.rate_hz).unwrap();
        clip.samples.chunks(300).for_each(|chunk| out.append(chunk).unwrap());
        assert!(!path.exists(), "an incomplete file has no name");
        assert!((out.finish().unwrap() - clip.seconds()).abs() < 1e-9);
        assert_eq!(fs::read(&path).unwrap(), expected);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
