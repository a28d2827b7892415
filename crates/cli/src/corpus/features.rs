//! `tandem corpus features`: writes one file's features, exactly as the pipeline computes them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::{Arg, ArgMatches, Command, value_parser};
use tandem_audio::{FeatureSettings, npy};
use tandem_feed::{Features, Featurizer};
use tandem_files::open_regular;

use crate::args::{overwrite, path, quiet};
use crate::exit::Exit;
use crate::output_guard::{OutputGuard, OutputKind};
use crate::screen::Screen;
use crate::whole_file::write_whole;

pub(crate) struct FeaturesArgs {
    file: PathBuf,
    mel: PathBuf,
    pitch: Option<PathBuf>,
    energy: Option<PathBuf>,
    overwrite: bool,
    pub(super) quiet: bool,
}

pub(super) fn command() -> Command {
    Command::new("features")
        .about("Write the log-mel spectrogram of one file, frames × bands, as the pipeline computes it")
        .arg(
            Arg::new("file")
                .value_name("FILE")
                .required(true)
                .value_parser(value_parser!(PathBuf))
                .help("Recording: wav, flac, ogg or mp3"),
        )
        .arg(path("output", "Output file for the log-mel, .npy").short('o').required(true))
        .arg(path("pitch", "Also write the pitch of every frame in Hz (0: unvoiced) to this .npy file"))
        .arg(path("energy", "Also write the energy of every frame to this .npy file"))
        .arg(overwrite())
        .arg(quiet())
}

pub(super) fn parse(matches: &ArgMatches) -> Option<FeaturesArgs> {
    Some(FeaturesArgs {
        file: super::required_path(matches, "file")?,
        mel: super::required_path(matches, "output")?,
        pitch: super::required_path(matches, "pitch"),
        energy: super::required_path(matches, "energy"),
        overwrite: matches.get_flag("overwrite"),
        quiet: matches.get_flag("quiet"),
    })
}

pub(super) fn run(args: &FeaturesArgs, screen: &Screen) -> Result<ExitCode, Exit> {
    check_names(args)?;
    let guard = OutputGuard { overwrite: args.overwrite, inputs: vec![args.file.clone()], own_run: None };
    for path in [Some(&args.mel), args.pitch.as_ref(), args.energy.as_ref()].into_iter().flatten() {
        guard.check("-o", path, OutputKind::Features)?;
    }
    let file = open_regular(&args.file)
        .map_err(|error| Exit::Usage(format!("❌ cannot open the recording ({error}): {}", args.file.display())))?;
    let mut features = Features::default();
    Featurizer::new(&FeatureSettings::default())
        .and_then(|mut featurizer| featurizer.file_into(file, args.pitch.is_some(), &mut features))
        .with_context(|| format!("cannot compute the features of {}", args.file.display()))?;
    write(&args.mel, &features.mel.values, features.mel.n_mels)?;
    for (path, values) in [(&args.pitch, &features.pitch), (&args.energy, &features.energy)] {
        path.as_ref().map_or(Ok(()), |path| write(path, values, 1))?;
    }
    let (frames, bands) = (features.mel.num_frames(), features.mel.n_mels);
    screen.print(&format!("✅ {frames} frames of {bands} bands: {}", args.mel.display()))?;
    Ok(ExitCode::SUCCESS)
}

/// Refuses outputs that would overwrite the recording or each other.
fn check_names(args: &FeaturesArgs) -> Result<(), Exit> {
    let names = [Some(&args.file), Some(&args.mel), args.pitch.as_ref(), args.energy.as_ref()];
    let mut taken: Vec<PathBuf> = Vec::new();
    for path in names.into_iter().flatten() {
        let same = fs::canonicalize(path).unwrap_or_else(|_| path.clone());
        if taken.contains(&same) {
            return Err(Exit::Usage(format!("❌ this file is given twice: {}", path.display())));
        }
        taken.push(same);
    }
    Ok(())
}

fn write(path: &Path, values: &[f32], num_columns: usize) -> Result<(), Exit> {
    let failed = || format!("cannot write {}", path.display());
    let mut bytes = Vec::new();
    npy::write(values, num_columns, &mut bytes).with_context(failed)?;
    write_whole(path, &bytes).with_context(failed)?;
    Ok(())
}
