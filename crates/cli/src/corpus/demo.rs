//! `tandem corpus demo`: writes a corpus of synthetic speech, for trying things without data.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{ArgMatches, Command, value_parser};
use tandem_audio::{AudioError, Clip, wav};
use tandem_corpus::{CorpusError, demo};

use crate::args::quiet;
use crate::exit::Exit;
use crate::screen::Screen;

const MINUTES: f64 = 5.0;
const SEED: u64 = 1234;

pub(crate) struct DemoArgs {
    folder: PathBuf,
    minutes: f64,
    seed: u64,
    voices: usize,
    pub(super) quiet: bool,
}

pub(super) fn command() -> Command {
    Command::new("demo")
        .about("Write a small corpus of synthetic speech in several voices, in LJSpeech layout")
        .arg(super::output())
        .arg(super::value("minutes", "M", "Minutes of speech, at least [default: 5]").value_parser(super::positive))
        .arg(
            super::value("seed", "N", "Random seed; another seed gives another corpus [default: 1234]")
                .value_parser(value_parser!(u64)),
        )
        .arg(super::value("voices", "N", "Number of speakers, 1 to 999 [default: 6]").value_parser(voices))
        .arg(quiet())
}

/// For clap: as many voices as there are distinct names.
fn voices(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(count) if (1..=999).contains(&count) => Ok(count),
        _ => Err("expected a whole number from 1 to 999".to_owned()),
    }
}

pub(super) fn parse(matches: &ArgMatches) -> Option<DemoArgs> {
    Some(DemoArgs {
        folder: super::required_path(matches, "output")?,
        minutes: matches.get_one("minutes").copied().unwrap_or(MINUTES),
        seed: matches.get_one("seed").copied().unwrap_or(SEED),
        voices: matches.get_one("voices").copied().unwrap_or(demo::VOICES.len()),
        quiet: matches.get_flag("quiet"),
    })
}

pub(super) fn run(args: &DemoArgs, screen: &Screen) -> Result<ExitCode, Exit> {
    super::check_empty(&args.folder, "demo", "demo")?;
    let demo_voices = DemoVoices { seed: args.seed, count: args.voices };
    let written = generate(&args.folder, args.minutes, demo_voices, screen)?;
    let folder = super::shell_path(&args.folder);
    let (minutes, voices) = (written.duration_s / 60.0, args.voices.min(written.num_utterances as usize));
    let count = written.num_utterances;
    screen.print(&format!("✅ {count} utterances, {minutes:.1} minutes in {voices} voices: {folder}"))?;
    screen.progress(&format!("   To check it: tandem corpus check {folder}"))?;
    Ok(ExitCode::SUCCESS)
}

/// Writes the corpus that a run without data trains on.
pub(crate) fn write(folder: &Path, minutes: f64, screen: &Screen) -> Result<demo::WrittenDemo, Exit> {
    generate(folder, minutes, DemoVoices { seed: SEED, count: demo::VOICES.len() }, screen)
}

/// The random seed, and the number of speakers.
struct DemoVoices {
    seed: u64,
    count: usize,
}

fn generate(folder: &Path, minutes: f64, voices: DemoVoices, screen: &Screen) -> Result<demo::WrittenDemo, Exit> {
    let mut ticker = screen.ticker("Seconds of speech");
    let mut seconds = 0.0;
    let written = demo::write(folder, minutes, (voices.seed, voices.count), |path, samples, rate_hz| {
        seconds += samples.len() as f64 / f64::from(rate_hz);
        ticker.show(seconds as usize, (minutes * 60.0) as usize);
        write_wav(path, samples, rate_hz)
    });
    written.map_err(|error| match error {
        CorpusError::WouldOverwrite { .. } => Exit::Usage(format!("❌ {error}")),
        other => Exit::Failed(other.into()),
    })
}

fn write_wav(path: &Path, samples: &[i16], rate_hz: u32) -> io::Result<()> {
    let mut file = BufWriter::new(File::create(path)?);
    let clip = Clip { samples: samples.to_vec(), rate_hz };
    wav::write(&clip, &mut file).map_err(|error| match error {
        AudioError::Io(error) => error,
        other => io::Error::other(other),
    })?;
    file.flush()
}
