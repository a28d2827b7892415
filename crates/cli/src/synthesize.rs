//! `tandem synthesize`: a checkpoint and a text become a wav file.

use std::fs::{self, File};
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Context;
use clap::{Arg, ArgMatches, Command as Clap, value_parser};
use tandem_audio::{Clip, decode, wav};
use tandem_device::{Device, Machine, SimSpec};
use tandem_launch::inventory::Inventory;
use tandem_plan::{Origin, Placement, Settings};
use tandem_synth::{SpeechOptions, SynthError, Synthesizer, Voice, VoiceSource};
use tandem_train::{Checkpoint, TrainError, best_usable};
use tempfile::NamedTempFile;

use crate::args::{path, quiet, sim};
use crate::corpus::hush_decoders;
use crate::exit::Exit;
use crate::screen::Screen;

/// Where checkpoints are looked for when none is given.
const CHECKPOINTS: &str = "checkpoints";
/// Characters that a warning shows.
const SHOWN: usize = 12;

/// One call of `tandem synthesize`.
pub(crate) struct SynthesizeArgs {
    checkpoint: Option<PathBuf>,
    text: Text,
    reference: Option<PathBuf>,
    speaker: Option<String>,
    manner: SpeechOptions,
    output: PathBuf,
    /// `--gpu` and `--mode`.
    settings: Settings,
    pub(crate) sim: Option<SimSpec>,
    pub(crate) quiet: bool,
}

enum Text {
    Given(String),
    File(PathBuf),
}

pub(crate) fn grammar() -> Clap {
    let value = |name: &'static str, unit: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name(unit).allow_hyphen_values(true).help(help)
    };
    Clap::new("synthesize")
        .about("Say a text with a model that was trained: checkpoint and text (and a voice) to wav")
        .arg(path("checkpoint", "A checkpoint, or the folder of a run, whose best is taken [default: ./checkpoints]"))
        .arg(value("text", "TEXT", "What to say").conflicts_with("text-file").required_unless_present("text-file"))
        .arg(path("text-file", "A text file, UTF-8, of what to say"))
        .arg(path("reference", "A recording of the voice to say it with: 5 s of speech, wav, flac, ogg or mp3"))
        .arg(value("speaker", "NAME", "The voice of a speaker of the corpus").conflicts_with("reference"))
        .arg(
            value("speaking-rate", "R", "How fast: 2 takes half the time [default: 1]")
                .value_parser(value_parser!(f64)),
        )
        .arg(value("seed", "N", "The same seed, the same sound [default: 1234]").value_parser(value_parser!(u64)))
        .arg(value("gpu", "I", "The card to run on [default: the one with most free memory, else the CPU]"))
        .arg(value("mode", "MODE", "cpu: without a GPU"))
        .arg(sim())
        .arg(quiet())
        .arg(path("output", "The wav file to write: 16 bit, one channel").short('o').required(true))
}

pub(crate) fn read(given: &ArgMatches) -> Result<SynthesizeArgs, Exit> {
    let path = |name: &str| given.get_one::<PathBuf>(name).cloned();
    let mut settings = Settings::new();
    for flag in ["gpu", "mode"] {
        if let Some(text) = given.get_one::<String>(flag) {
            settings.set(flag, text, Origin::Flag)?;
        }
    }
    let sim = given.get_one::<String>("sim").map(|text| text.parse::<SimSpec>()).transpose();
    let usual = SpeechOptions::default();
    let text = match (given.get_one::<String>("text").cloned(), path("text-file")) {
        (Some(text), _) => Text::Given(text),
        (None, Some(file)) => Text::File(file),
        (None, None) => return Err(Exit::Usage("❌ --text or --text-file says what to say".to_owned())),
    };
    let Some(output) = path("output") else { return Err(Exit::Usage("❌ -o says where to".to_owned())) };
    Ok(SynthesizeArgs {
        checkpoint: path("checkpoint"),
        text,
        reference: path("reference"),
        speaker: given.get_one::<String>("speaker").cloned(),
        manner: SpeechOptions {
            rate: given.get_one("speaking-rate").copied().unwrap_or(usual.rate),
            seed: given.get_one("seed").copied().unwrap_or(usual.seed),
        },
        output,
        settings,
        sim: sim.map_err(|error| Exit::Usage(format!("❌ {error}")))?,
        quiet: given.get_flag("quiet"),
    })
}

pub(crate) fn run(call: &SynthesizeArgs, screen: &Screen) -> Result<ExitCode, Exit> {
    let begun = Instant::now();
    // What can be seen to be wrong is said before anything is loaded.
    let out = WavFile::create(&call.output)?;
    let text = text(&call.text)?;
    let recording = call.reference.as_deref().map(recording).transpose()?;
    let checkpoint = checkpoint(call.checkpoint.as_deref(), screen)?;
    let device = device(call)?;
    let mut synthesizer = Synthesizer::open(&checkpoint.path, device.clone()).map_err(|e| ended("--checkpoint", e))?;
    let script = synthesizer.read(&text).map_err(|e| ended("the text", e))?;
    let voice = voice(call, recording.as_ref(), &synthesizer)?;
    screen.progress(&format!("Speaking on {}: {}", place(&device), checkpoint.path.display()))?;
    told_voice(&voice, screen)?;
    if !script.left_out.is_empty() {
        screen.warn(&format!("left out, the model does not know them: {}", listed(&script.left_out)));
    }
    let (mut out, mut said) = (out.begin(synthesizer.rate_hz())?, 0);
    let mut ticker = screen.ticker("Pieces");
    let spoken = synthesizer.say(&script, &voice, &call.manner, &mut |_, samples| {
        said += 1;
        ticker.show(said, script.num_pieces());
        out.take(samples)
    });
    drop(ticker);
    spoken.map_err(|error| ended("nothing was written", error))?;
    let seconds = out.finish()?;
    let (pieces, took) = (script.num_pieces(), begun.elapsed().as_secs_f64());
    let pieces = if pieces == 1 { String::new() } else { format!(" in {pieces} pieces") };
    screen.say(&format!("✅ {seconds:.1} s of speech{pieces}, made in {took:.1} s: {}", call.output.display()))?;
    Ok(ExitCode::SUCCESS)
}

/// What was asked for cannot be, or what was tried went wrong: the shell is told which.
fn ended(flag: &str, error: SynthError) -> Exit {
    match error {
        SynthError::NotAModel { .. }
        | SynthError::WrongTensors { .. }
        | SynthError::EmptyText
        | SynthError::NoKnownSymbol { .. }
        | SynthError::ReferenceTooShort { .. }
        | SynthError::ReferenceSilent { .. }
        | SynthError::NoSuchVoice { .. } => Exit::Usage(format!("❌ {flag}: {error}")),
        SynthError::Rate { .. } => Exit::Usage(format!("❌ --speaking-rate: {error}")),
        SynthError::NoRoom { .. } => {
            Exit::Usage(format!("❌ {error}\n   another card: --gpu I; without one: --mode cpu"))
        }
        other => Exit::Failed(anyhow::Error::new(other).context(flag.to_owned())),
    }
}

fn text(text: &Text) -> Result<String, Exit> {
    match text {
        Text::Given(text) => Ok(text.clone()),
        Text::File(path) => {
            let shown = path.display();
            let bytes = fs::read(path)
                .map_err(|error| Exit::Usage(format!("❌ --text-file: cannot be read ({error}): {shown}")))?;
            let text = String::from_utf8(bytes)
                .map_err(|error| Exit::Usage(format!("❌ --text-file: no UTF-8 text ({error}): {shown}")))?;
            Ok(text.trim_start_matches('\u{FEFF}').to_owned())
        }
    }
}

fn recording(path: &Path) -> Result<Clip, Exit> {
    hush_decoders();
    let refused = |error: &dyn std::fmt::Display| Exit::Usage(format!("❌ --reference: {error}: {}", path.display()));
    let file = File::open(path).map_err(|error| refused(&format!("cannot be opened ({error})")))?;
    let mut clip = Clip::default();
    decode(file, &mut clip).map_err(|error| refused(&error))?;
    Ok(clip)
}

fn voice(call: &SynthesizeArgs, recording: Option<&Clip>, synthesizer: &Synthesizer) -> Result<Voice, Exit> {
    match recording {
        Some(clip) => synthesizer.voice_of(clip).map_err(|error| ended("--reference", error)),
        None => synthesizer.voice(call.speaker.as_deref()).map_err(|error| ended("--speaker", error)),
    }
}

fn told_voice(voice: &Voice, screen: &Screen) -> Result<(), Exit> {
    match &voice.source {
        VoiceSource::Speaker(speaker) if !speaker.is_empty() => screen.progress(&format!("   The voice of {speaker}")),
        VoiceSource::Mean => screen.progress(
            "   The checkpoint keeps no voices: the mean of all it heard speaks. --reference FILE gives it one",
        ),
        VoiceSource::Speaker(_) | VoiceSource::Recording => Ok(()),
    }
}

/// The checkpoint that was given, or the best one of a run.
fn checkpoint(given: Option<&Path>, screen: &Screen) -> Result<Checkpoint, Exit> {
    let (folder, is_run) = match given {
        Some(path) => (path, path.join("run.json").is_file()),
        None => (Path::new(CHECKPOINTS), true),
    };
    if is_run {
        let found = best_usable(folder).context("the checkpoints cannot be read")?;
        for passed_over in &found.passed_over {
            screen.warn(&format!("passed over: {}", passed_over.reason));
        }
        if let Some(checkpoint) = found.checkpoint {
            return Ok(checkpoint);
        }
    }
    // Says what is there instead of a checkpoint.
    Checkpoint::open(folder).map_err(|error| not_opened(folder, given.is_some(), error))
}

fn not_opened(folder: &Path, is_given: bool, error: TrainError) -> Exit {
    let advice = "train a model with `tandem train`, or give another one with --checkpoint";
    let shown = folder.display();
    match error {
        TrainError::ForeignCheckpoint { program, name, .. } => Exit::Usage(format!(
            "❌ --checkpoint: `{name}` is a checkpoint of {program}, which cannot be read here: expected a folder with \
             weights.safetensors, model.json and state.json: {shown}"
        )),
        TrainError::NotACheckpoint { .. } if !is_given => {
            Exit::Usage(format!("❌ there is no checkpoint in ./{shown}: {advice}"))
        }
        TrainError::NotACheckpoint { .. } | TrainError::NewerFormat { .. } => {
            Exit::Usage(format!("❌ --checkpoint: {error}\n   {advice}"))
        }
        other => Exit::Failed(anyhow::Error::new(other).context("--checkpoint")),
    }
}

/// The card or the CPU, chosen as for training.
fn device(call: &SynthesizeArgs) -> Result<Device, Exit> {
    let machine = match &call.sim {
        Some(spec) => Some(Machine::simulated(spec.clone())),
        // Why there is none is for the survey to say.
        None => Machine::cuda().ok().flatten().filter(|machine| !machine.cards().is_empty()),
    };
    let site = match &machine {
        Some(machine) => Inventory::of(machine.clone()),
        None => Inventory::survey(None),
    };
    let site = site.context("cannot read the GPUs")?;
    let placement = Placement::choose(&call.settings, &site.hardware);
    let placement = placement.map_err(|refusal| Exit::Refused(Box::new(refusal)))?;
    let (machine, card) = match (machine, placement.model) {
        (Some(machine), Some(card)) => (machine, card),
        _ => (Machine::cpu(), 0),
    };
    machine.restrict(&[card]);
    Ok(machine.open(card).context("the device cannot be opened")?)
}

fn place(device: &Device) -> String {
    match device.machine().kind() {
        tandem_device::DeviceKind::Cpu => "the CPU".to_owned(),
        tandem_device::DeviceKind::Cuda | tandem_device::DeviceKind::Simulated => device.card().to_string(),
    }
}

fn listed(characters: &[char]) -> String {
    let shown = characters.iter().take(SHOWN).map(|c| format!("{c:?}")).collect::<Vec<_>>().join(" ");
    if characters.len() > SHOWN { format!("{shown} and {} more", characters.len() - SHOWN) } else { shown }
}

/// A wav file under a temporary name, to which a name is given once it is whole.
struct WavFile {
    file: NamedTempFile,
    path: PathBuf,
}

/// One that is being written.
struct OpenWav {
    out: BufWriter<NamedTempFile>,
    path: PathBuf,
    rate_hz: u32,
    num_samples: u64,
}

/// Bytes of a header; the lengths it has are of the file behind them, and of the samples.
const HEADER_BYTES: u64 = 44;
const FILE_LENGTH_AT: u64 = 4;
const SAMPLES_LENGTH_AT: u64 = 40;

impl WavFile {
    fn create(path: &Path) -> Result<WavFile, Exit> {
        let refused = |why: &str| Exit::Usage(format!("❌ -o: {why}: {}", path.display()));
        let folder = match path.parent() {
            Some(folder) if folder.as_os_str().is_empty() => Path::new("."),
            Some(folder) => folder,
            None => return Err(refused("this is no file")),
        };
        if !folder.is_dir() {
            return Err(refused("the folder does not exist"));
        }
        // Renaming would put a file in the place of a folder, a device or a pipe.
        if path.file_name().is_none() || fs::metadata(path).is_ok_and(|there| !there.is_file()) {
            return Err(refused("this is no file"));
        }
        let file = tempfile::Builder::new().prefix(".tmp-").suffix(".wav").permissions(readable()).tempfile_in(folder);
        let file = file.map_err(|error| refused(&format!("the folder cannot be written to ({error})")))?;
        Ok(WavFile { file, path: path.to_owned() })
    }

    fn begin(self, rate_hz: u32) -> Result<OpenWav, Exit> {
        let mut out = BufWriter::new(self.file);
        wav::write(&Clip { samples: Vec::new(), rate_hz }, &mut out).context("cannot write")?;
        Ok(OpenWav { out, path: self.path, rate_hz, num_samples: 0 })
    }
}

/// As other programs make files; what the user's mask takes from it is taken.
fn readable() -> fs::Permissions {
    std::os::unix::fs::PermissionsExt::from_mode(0o666)
}

impl OpenWav {
    fn take(&mut self, samples: &[i16]) -> io::Result<()> {
        self.num_samples += samples.len() as u64;
        // The one platform is little-endian, as wav is.
        samples.iter().try_for_each(|sample| self.out.write_all(&sample.to_le_bytes()))
    }

    /// Writes the lengths, gives the file its name, and says how many seconds it has.
    fn finish(self) -> Result<f64, Exit> {
        let OpenWav { out, path, rate_hz, num_samples } = self;
        let too_long = || format!("{num_samples} samples are more than a wav file can have");
        let data_bytes = u32::try_from(num_samples * 2).ok().filter(|bytes| *bytes <= u32::MAX - 44);
        let data_bytes = data_bytes.with_context(too_long)?;
        let named = || format!("cannot write {}", path.display());
        let mut file = out.into_inner().map_err(io::IntoInnerError::into_error).with_context(named)?;
        let lengths = [(FILE_LENGTH_AT, data_bytes + (HEADER_BYTES - 8) as u32), (SAMPLES_LENGTH_AT, data_bytes)];
        for (place, length) in lengths {
            let wrote = file.seek(SeekFrom::Start(place)).and_then(|_| file.write_all(&length.to_le_bytes()));
            wrote.with_context(named)?;
        }
        file.persist(&path).map_err(|error| error.error).with_context(named)?;
        Ok(num_samples as f64 / f64::from(rate_hz))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wav_in_pieces_is_the_whole_wav() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out.wav");
        let clip = Clip { samples: (0..1000).map(|i| i * 31).collect(), rate_hz: 22_050 };
        let mut expected = Vec::new();
        wav::write(&clip, &mut expected).unwrap();
        let mut out = WavFile::create(&path).unwrap().begin(clip.rate_hz).unwrap();
        clip.samples.chunks(300).for_each(|piece| out.take(piece).unwrap());
        assert!(!path.exists(), "half a file has no name");
        assert!((out.finish().unwrap() - clip.seconds()).abs() < 1e-9);
        assert_eq!(fs::read(&path).unwrap(), expected);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
