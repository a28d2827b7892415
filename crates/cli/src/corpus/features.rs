//! `tandem corpus features`: one file's features, exactly as the pipeline makes them.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::{Arg, ArgMatches, Command as Clap, value_parser};
use tandem_audio::{FeatureSettings, npy};
use tandem_feed::{Features, Featurizer};

use crate::args::path;
use crate::exit::Exit;
use crate::screen::Screen;

pub(crate) struct FeaturesArgs {
    file: PathBuf,
    mel: PathBuf,
    pitch: Option<PathBuf>,
    energy: Option<PathBuf>,
}

pub(super) fn grammar() -> Clap {
    Clap::new("features")
        .about("Write one file's log-mel, frames by bands, as the pipeline would make it")
        .arg(
            Arg::new("file")
                .value_name("FILE")
                .required(true)
                .value_parser(value_parser!(PathBuf))
                .help("A recording: wav, flac, ogg or mp3"),
        )
        .arg(path("output", "The log-mel, as .npy").short('o').required(true))
        .arg(path("pitch", "Also the pitch of every frame in Hz, 0 where there is none, as .npy"))
        .arg(path("energy", "Also the energy of every frame, as .npy"))
}

pub(super) fn read(given: &ArgMatches) -> Option<FeaturesArgs> {
    Some(FeaturesArgs {
        file: super::required_path(given, "file")?,
        mel: super::required_path(given, "output")?,
        pitch: super::required_path(given, "pitch"),
        energy: super::required_path(given, "energy"),
    })
}

pub(super) fn run(call: &FeaturesArgs, screen: &Screen) -> Result<ExitCode, Exit> {
    check_names(call)?;
    let file = File::open(&call.file).map_err(|error| {
        Exit::Usage(format!("❌ the recording cannot be opened ({error}): {}", call.file.display()))
    })?;
    let mut features = Features::default();
    Featurizer::new(&FeatureSettings::default())
        .and_then(|mut featurizer| featurizer.file_into(file, call.pitch.is_some(), &mut features))
        .with_context(|| format!("no features of {}", call.file.display()))?;
    write(&call.mel, &features.mel.values, features.mel.n_mels)?;
    for (path, values) in [(&call.pitch, &features.pitch), (&call.energy, &features.energy)] {
        path.as_ref().map_or(Ok(()), |path| write(path, values, 1))?;
    }
    let (frames, bands) = (features.mel.num_frames(), features.mel.n_mels);
    screen.say(&format!("✅ {frames} frames of {bands} bands: {}", call.mel.display()))?;
    Ok(ExitCode::SUCCESS)
}

/// No output takes the place of the recording or of another output.
fn check_names(call: &FeaturesArgs) -> Result<(), Exit> {
    let names = [Some(&call.file), Some(&call.mel), call.pitch.as_ref(), call.energy.as_ref()];
    let mut taken: Vec<PathBuf> = Vec::new();
    for path in names.into_iter().flatten() {
        let same = fs::canonicalize(path).unwrap_or_else(|_| path.clone());
        if taken.contains(&same) {
            return Err(Exit::Usage(format!("❌ two of the files have one name: {}", path.display())));
        }
        taken.push(same);
    }
    Ok(())
}

fn write(path: &Path, values: &[f32], num_columns: usize) -> Result<(), Exit> {
    let mut bytes = Vec::new();
    npy::write(values, num_columns, &mut bytes).context("the array cannot be laid out")?;
    fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(())
}
