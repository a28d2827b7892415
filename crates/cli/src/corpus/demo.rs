//! `tandem corpus demo`: speech made here, for machines that have none.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Arg, ArgMatches, Command as Clap, value_parser};
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

pub(super) fn grammar() -> Clap {
    let value = |name: &'static str, value: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name(value).allow_hyphen_values(true).help(help)
    };
    Clap::new("demo")
        .about("Write a small corpus of synthetic speech in several voices, in LJSpeech layout")
        .arg(
            Arg::new("output")
                .short('o')
                .long("output")
                .value_name("DIR")
                .required(true)
                .value_parser(value_parser!(PathBuf))
                .help("A folder that is not there yet, or empty"),
        )
        .arg(value("minutes", "M", "At least this much speech [default: 5]").value_parser(super::positive))
        .arg(value("seed", "N", "Another seed is another corpus [default: 1234]").value_parser(value_parser!(u64)))
        .arg(value("voices", "N", "Speakers that take turns, 1 to 999 [default: 6]").value_parser(voices))
        .arg(quiet())
}

/// For clap: as many voices as have a name of their own.
fn voices(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(count) if (1..=999).contains(&count) => Ok(count),
        _ => Err("expected a whole number from 1 to 999".to_owned()),
    }
}

pub(super) fn read(given: &ArgMatches) -> Option<DemoArgs> {
    Some(DemoArgs {
        folder: super::required_path(given, "output")?,
        minutes: given.get_one("minutes").copied().unwrap_or(MINUTES),
        seed: given.get_one("seed").copied().unwrap_or(SEED),
        voices: given.get_one("voices").copied().unwrap_or(demo::VOICES.len()),
        quiet: given.get_flag("quiet"),
    })
}

pub(super) fn run(call: &DemoArgs, screen: &Screen) -> Result<ExitCode, Exit> {
    check_empty(call)?;
    let written = speak(&call.folder, call.minutes, (call.seed, call.voices), screen)?;
    let folder = super::typed(&call.folder);
    let (minutes, voices) = (written.duration_s / 60.0, call.voices.min(written.num_utterances as usize));
    screen
        .say(&format!("✅ {} utterances, {minutes:.1} minutes in {voices} voices: {folder}", written.num_utterances))?;
    screen.progress(&format!("   Look at it: tandem corpus check {folder}"))?;
    Ok(ExitCode::SUCCESS)
}

/// Writes the corpus that a run without data trains on.
pub(crate) fn write(folder: &Path, minutes: f64, screen: &Screen) -> Result<demo::WrittenDemo, Exit> {
    speak(folder, minutes, (SEED, demo::VOICES.len()), screen)
}

fn speak(folder: &Path, minutes: f64, who: (u64, usize), screen: &Screen) -> Result<demo::WrittenDemo, Exit> {
    let mut ticker = screen.ticker("Seconds of speech");
    let mut seconds = 0.0;
    let written = demo::write(folder, minutes, who, |path, samples, rate_hz| {
        seconds += samples.len() as f64 / f64::from(rate_hz);
        ticker.show(seconds as usize, (minutes * 60.0) as usize);
        write_wav(path, samples, rate_hz)
    });
    written.map_err(|error| match error {
        CorpusError::WouldOverwrite { .. } => Exit::Usage(format!("❌ {error}")),
        other => Exit::Failed(other.into()),
    })
}

/// Nothing is ever written among what is somebody else's.
fn check_empty(call: &DemoArgs) -> Result<(), Exit> {
    match std::fs::read_dir(&call.folder).map(Iterator::count) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => {
            Err(Exit::Usage(format!("❌ -o: a new or empty folder is expected ({error}): {}", call.folder.display())))
        }
        Ok(0) => Ok(()),
        Ok(_) => Err(Exit::Usage(format!(
            "❌ the folder is not empty, and nothing is overwritten: {}\n   Type: tandem corpus demo -o {}",
            call.folder.display(),
            super::typed(&free_name(&call.folder))
        ))),
    }
}

/// The first name inside `folder` that nothing has.
fn free_name(folder: &Path) -> PathBuf {
    let mut names = std::iter::once("demo".to_owned()).chain((2..).map(|number| format!("demo-{number}")));
    names.by_ref().map(|name| folder.join(name)).find(|path| !path.exists()).unwrap_or_else(|| folder.join("demo"))
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
