//! Synthetic speech for examples and tests.

use std::io;
use std::path::{Path, PathBuf};

use tandem_audio::{Clip, wav};
use tandem_corpus::demo;

/// Writes `minutes` of synthetic speech to `folder`, an LJSpeech corpus. Returns the folder.
pub fn write_demo(folder: &Path, minutes: f64) -> io::Result<PathBuf> {
    demo::write(folder, minutes, (1234, 6), |path, samples, rate_hz| {
        let clip = Clip { samples: samples.to_vec(), rate_hz };
        wav::write(&clip, std::fs::File::create(path)?).map_err(io::Error::other)
    })
    .map_err(io::Error::other)?;
    Ok(folder.to_owned())
}
