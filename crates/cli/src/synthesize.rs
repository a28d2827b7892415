//! `tandem synthesize`: turns a text into a wav file with a trained model.

use std::fs;
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Context;
use clap::{Arg, ArgMatches, Command, value_parser};
use tandem_audio::{Clip, decode, wav};
use tandem_checkpoint::{Checkpoint, CheckpointError, RUN_FILE, best_intact};
use tandem_device::{Device, Machine, SimSpec};
use tandem_files::{open_regular, read_bounded};
use tandem_launch::inventory::Inventory;
use tandem_plan::{Origin, Placement, Settings};
use tandem_synth::{SpeechOptions, SynthError, Synthesizer, Voice, VoiceSource};
use tempfile::NamedTempFile;

use crate::args::{overwrite, path, quiet, sim};
use crate::corpus::silence_decoder_panics;
use crate::exit::Exit;
use crate::output_guard::{OutputGuard, OutputKind};
use crate::screen::Screen;
use crate::whole_file::usual_rights;

/// The run to use when no checkpoint is given.
const CHECKPOINTS: &str = "checkpoints";
/// Unknown characters that a warning lists.
const MAX_LISTED: usize = 12;
/// The longest text file: days of speech.
const MAX_TEXT_BYTES: u64 = 16 << 20;
/// The largest reference recording: an hour of uncompressed audio.
const MAX_REFERENCE_BYTES: u64 = 1 << 30;

/// Arguments of `tandem synthesize`.
pub(crate) struct SynthesizeArgs {
    checkpoint: Option<PathBuf>,
    text: Text,
    reference: Option<PathBuf>,
    speaker: Option<String>,
    /// `--lang`
    lang: Option<String>,
    options: SpeechOptions,
    output: PathBuf,
    /// `--gpu` and `--mode`.
    settings: Settings,
    pub(crate) sim: Option<SimSpec>,
    overwrite: bool,
    pub(crate) quiet: bool,
}

enum Text {
    Given(String),
    File(PathBuf),
}

impl Text {
    fn file(&self) -> Option<PathBuf> {
        match self {
            Text::Given(_) => None,
            Text::File(file) => Some(file.clone()),
        }
    }
}

pub(crate) fn command() -> Command {
    let value = |name: &'static str, unit: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name(unit).allow_hyphen_values(true).help(help)
    };
    let checkpoint =
        path("checkpoint", "A checkpoint, or the folder of a run to use its best checkpoint [default: ./checkpoints]");
    Command::new("synthesize")
        .about("Turn text into speech with a trained model: checkpoint and text (and a reference voice) to wav")
        .arg(checkpoint.value_name("DIR"))
        .arg(value("text", "TEXT", "Text to speak").conflicts_with("text-file").required_unless_present("text-file"))
        .arg(path("text-file", "UTF-8 text file to speak"))
        .arg(path("reference", "Recording of the voice to imitate: about 5 s of speech, as wav, flac, ogg or mp3"))
        .arg(value("speaker", "NAME", "Use the voice of this speaker of the corpus").conflicts_with("reference"))
        .arg(value("lang", "LANG", "Language of the text [default: by its script, then the corpus's main language]"))
        .arg(
            value("speaking-rate", "R", "Speed, 0.25 to 4: 2 takes half the time [default: 1]")
                .value_parser(value_parser!(f64)),
        )
        .arg(
            value("seed", "N", "Random seed; the same seed gives the same audio [default: 1234]")
                .value_parser(value_parser!(u64)),
        )
        .arg(value("gpu", "I", "GPU to run on [default: the one with the most free memory, else the CPU]"))
        .arg(value("mode", "MODE", "cpu: run without a GPU"))
        .arg(sim())
        .arg(quiet())
        .arg(path("output", "Wav file to write: 16 bit, mono").short('o').required(true))
        .arg(overwrite())
}

pub(crate) fn parse(matches: &ArgMatches) -> Result<SynthesizeArgs, Exit> {
    let path = |name: &str| matches.get_one::<PathBuf>(name).cloned();
    let mut settings = Settings::new();
    for flag in ["gpu", "mode"] {
        if let Some(text) = matches.get_one::<String>(flag) {
            settings.set(flag, text, Origin::Flag)?;
        }
    }
    let sim = matches.get_one::<String>("sim").map(|text| text.parse::<SimSpec>()).transpose();
    let default = SpeechOptions::default();
    let text = match (matches.get_one::<String>("text").cloned(), path("text-file")) {
        (Some(text), _) => Text::Given(text),
        (None, Some(file)) => Text::File(file),
        (None, None) => return Err(Exit::Usage("❌ give the text with --text or --text-file".to_owned())),
    };
    let Some(output) = path("output") else { return Err(Exit::Usage("❌ give the output file with -o".to_owned())) };
    Ok(SynthesizeArgs {
        checkpoint: path("checkpoint"),
        text,
        reference: path("reference"),
        speaker: matches.get_one::<String>("speaker").cloned(),
        lang: matches.get_one::<String>("lang").cloned(),
        options: SpeechOptions {
            rate: matches.get_one("speaking-rate").copied().unwrap_or(default.rate),
            seed: matches.get_one("seed").copied().unwrap_or(default.seed),
        },
        output,
        settings,
        sim: sim.map_err(|error| Exit::Usage(format!("❌ {error}")))?,
        overwrite: matches.get_flag("overwrite"),
        quiet: matches.get_flag("quiet"),
    })
}

pub(crate) fn run(args: &SynthesizeArgs, screen: &Screen) -> Result<ExitCode, Exit> {
    let started = Instant::now();
    // Cheap checks come before anything is loaded.
    let inputs = [&args.reference, &args.text.file()].into_iter().flatten().cloned().collect();
    let guard = OutputGuard { overwrite: args.overwrite, inputs, own_run: None };
    guard.check("-o", &args.output, OutputKind::Audio)?;
    let out = WavFile::create(&args.output)?;
    let text = text(&args.text)?;
    let recording = args.reference.as_deref().map(recording).transpose()?;
    let checkpoint = checkpoint(args.checkpoint.as_deref(), screen)?;
    let device = device(args)?;
    let synthesizer = Synthesizer::open(&checkpoint.path, device.clone());
    let mut synthesizer = synthesizer.map_err(|error| exit_of("--checkpoint", error))?;
    let script = synthesizer.tokenize(&text, args.lang.as_deref()).map_err(|error| exit_of("the text", error))?;
    let voice = voice(args, recording.as_ref(), &synthesizer)?;
    screen.progress(&format!("Synthesising on {} with {}", device_name(&device), checkpoint.path.display()))?;
    print_voice(&voice, screen)?;
    if !script.unknown_chars.is_empty() {
        screen.warn(&format!("skipped characters the model does not know: {}", listed(&script.unknown_chars)));
    }
    if let Some((trained, now)) = synthesizer.other_espeak(&script) {
        screen.warn(&format!("the model was trained with espeak-ng {trained}, this is {now}: phonemes may differ"));
    }
    let (mut out, mut done) = (out.begin(synthesizer.rate_hz())?, 0);
    let mut ticker = screen.ticker("Chunks");
    let spoken = synthesizer.synthesize_chunks(&script, &voice, &args.options, &mut |_, samples| {
        done += 1;
        ticker.show(done, script.num_chunks());
        out.append(samples)
    });
    drop(ticker);
    spoken.map_err(|error| exit_of("nothing was written", error))?;
    let seconds = out.finish()?;
    let (chunks, took) = (script.num_chunks(), started.elapsed().as_secs_f64());
    let chunks = if chunks == 1 { String::new() } else { format!(" in {chunks} chunks") };
    let path = args.output.display();
    screen.print(&format!("✅ {seconds:.1} s of speech{chunks}, synthesised in {took:.1} s: {path}"))?;
    Ok(ExitCode::SUCCESS)
}

/// Wrong usage (exit code 2) or a failure (exit code 1).
fn exit_of(flag: &str, error: SynthError) -> Exit {
    match error {
        SynthError::NotAModel { .. }
        | SynthError::Checkpoint(CheckpointError::WrongTensors { .. })
        | SynthError::EmptyText
        | SynthError::NoKnownSymbol { .. }
        | SynthError::NoSuchLanguage { .. }
        | SynthError::ReferenceTooShort { .. }
        | SynthError::ReferenceSilent { .. }
        | SynthError::NoSuchVoice { .. } => Exit::Usage(format!("❌ {flag}: {error}")),
        SynthError::Rate { .. } => Exit::Usage(format!("❌ --speaking-rate: {error}")),
        SynthError::NoRoom { .. } => {
            Exit::Usage(format!("❌ {error}\n   Use another GPU (--gpu I) or the CPU (--mode cpu)"))
        }
        other => Exit::Failed(anyhow::Error::new(other).context(flag.to_owned())),
    }
}

fn text(text: &Text) -> Result<String, Exit> {
    match text {
        Text::Given(text) => Ok(text.clone()),
        Text::File(file) => {
            let path = file.display();
            let bytes = read_bounded(file, MAX_TEXT_BYTES)
                .map_err(|error| Exit::Usage(format!("❌ --text-file: cannot read it ({error}): {path}")))?;
            let text = String::from_utf8(bytes)
                .map_err(|error| Exit::Usage(format!("❌ --text-file: not UTF-8 text ({error}): {path}")))?;
            Ok(text.trim_start_matches('\u{FEFF}').to_owned())
        }
    }
}

fn recording(path: &Path) -> Result<Clip, Exit> {
    silence_decoder_panics();
    let refused = |error: &dyn std::fmt::Display| Exit::Usage(format!("❌ --reference: {error}: {}", path.display()));
    let file = open_regular(path).map_err(|error| refused(&format!("cannot open it ({error})")))?;
    let bytes = file.metadata().map_or(0, |found| found.len());
    if bytes > MAX_REFERENCE_BYTES {
        let mb = MAX_REFERENCE_BYTES >> 20;
        return Err(refused(&format!("expected a few seconds of speech, found more than {mb} MB")));
    }
    let mut clip = Clip::default();
    decode(file, &mut clip).map_err(|error| refused(&error))?;
    Ok(clip)
}

fn voice(args: &SynthesizeArgs, recording: Option<&Clip>, synthesizer: &Synthesizer) -> Result<Voice, Exit> {
    match recording {
        Some(clip) => synthesizer.voice_from_recording(clip).map_err(|error| exit_of("--reference", error)),
        None => synthesizer.voice(args.speaker.as_deref()).map_err(|error| exit_of("--speaker", error)),
    }
}

fn print_voice(voice: &Voice, screen: &Screen) -> Result<(), Exit> {
    match &voice.source {
        VoiceSource::Speaker(speaker) if !speaker.is_empty() => screen.progress(&format!("   Voice: {speaker}")),
        VoiceSource::Mean => screen.progress(
            "   Voice: the mean of the training voices (the checkpoint has no speakers); --reference FILE gives another",
        ),
        VoiceSource::Speaker(_) | VoiceSource::Recording => Ok(()),
    }
}

/// The given checkpoint, or the best one of a run.
fn checkpoint(given: Option<&Path>, screen: &Screen) -> Result<Checkpoint, Exit> {
    let (folder, is_run) = match given {
        Some(path) => (path, path.join(RUN_FILE).is_file()),
        None => (Path::new(CHECKPOINTS), true),
    };
    if is_run {
        let found = best_intact(folder).context("cannot read the checkpoints")?;
        for skipped in &found.skipped {
            screen.warn(&format!("skipping a damaged checkpoint: {}", skipped.reason));
        }
        if let Some(checkpoint) = found.checkpoint {
            return Ok(checkpoint);
        }
    }
    // Its error says what is there instead of a checkpoint.
    Checkpoint::open(folder).map_err(|error| not_opened(folder, given.is_some(), error))
}

fn not_opened(folder: &Path, is_given: bool, error: CheckpointError) -> Exit {
    let advice = "train a model with `tandem train`, or give another with --checkpoint";
    let path = folder.display();
    match error {
        CheckpointError::ForeignCheckpoint { program, name, .. } => Exit::Usage(format!(
            "❌ --checkpoint: `{name}` is a checkpoint of {program}, which tandem cannot read; expected a folder with \
             weights.safetensors, model.json and state.json: {path}"
        )),
        CheckpointError::NotACheckpoint { .. } if !is_given => {
            Exit::Usage(format!("❌ no checkpoint in ./{path}: {advice}"))
        }
        CheckpointError::NotACheckpoint { .. } | CheckpointError::NewerFormat { .. } => {
            Exit::Usage(format!("❌ --checkpoint: {error}\n   {advice}"))
        }
        other => Exit::Failed(anyhow::Error::new(other).context("--checkpoint")),
    }
}

/// The GPU or the CPU, chosen as for training.
fn device(args: &SynthesizeArgs) -> Result<Device, Exit> {
    let machine = match &args.sim {
        Some(spec) => Some(Machine::simulated(spec.clone())),
        // A driver error is reported by the survey below.
        None => Machine::cuda().ok().flatten().filter(|machine| !machine.cards().is_empty()),
    };
    let inventory = match &machine {
        Some(machine) => Inventory::of(machine.clone()),
        None => Inventory::survey(None),
    };
    let inventory = inventory.context("cannot read the GPUs")?;
    let placement = Placement::choose(&args.settings, &inventory.hardware);
    let placement = placement.map_err(|refusal| Exit::Refused(Box::new(refusal)))?;
    let (machine, card) = match (machine, placement.model) {
        (Some(machine), Some(card)) => (machine, card),
        _ => (Machine::cpu(), 0),
    };
    machine.restrict(&[card]);
    Ok(machine.open(card).context("cannot open the device")?)
}

fn device_name(device: &Device) -> String {
    match device.machine().kind() {
        tandem_device::DeviceKind::Cpu => "the CPU".to_owned(),
        tandem_device::DeviceKind::Cuda | tandem_device::DeviceKind::Simulated => device.card().to_string(),
    }
}

fn listed(characters: &[char]) -> String {
    let shown = characters.iter().take(MAX_LISTED).map(|c| format!("{c:?}")).collect::<Vec<_>>().join(" ");
    if characters.len() > MAX_LISTED { format!("{shown} and {} more", characters.len() - MAX_LISTED) } else { shown }
}

/// A wav file under a temporary name. It gets its final name once it is complete.
struct WavFile {
    file: NamedTempFile,
    path: PathBuf,
}

/// A wav file being written.
struct OpenWav {
    out: BufWriter<NamedTempFile>,
    path: PathBuf,
    rate_hz: u32,
    num_samples: u64,
}

/// The header: its size, and the offsets of the two length fields, filled in at the end.
const HEADER_BYTES: u64 = 44;
const FILE_LENGTH_OFFSET: u64 = 4;
const SAMPLES_LENGTH_OFFSET: u64 = 40;

impl WavFile {
    fn create(path: &Path) -> Result<WavFile, Exit> {
        let refused = |why: &str| Exit::Usage(format!("❌ -o: {why}: {}", path.display()));
        let folder = match path.parent() {
            Some(folder) if folder.as_os_str().is_empty() => Path::new("."),
            Some(folder) => folder,
            None => return Err(refused("not a file")),
        };
        if !folder.is_dir() {
            return Err(refused("the folder does not exist"));
        }
        // The final rename would replace a folder, a device or a pipe by a file.
        if path.file_name().is_none() || fs::metadata(path).is_ok_and(|there| !there.is_file()) {
            return Err(refused("not a file"));
        }
        let file =
            tempfile::Builder::new().prefix(".tmp-").suffix(".wav").permissions(usual_rights()).tempfile_in(folder);
        let file = file.map_err(|error| refused(&format!("the folder cannot be written to ({error})")))?;
        Ok(WavFile { file, path: path.to_owned() })
    }

    fn begin(self, rate_hz: u32) -> Result<OpenWav, Exit> {
        let mut out = BufWriter::new(self.file);
        wav::write(&Clip { samples: Vec::new(), rate_hz }, &mut out).context("cannot write")?;
        Ok(OpenWav { out, path: self.path, rate_hz, num_samples: 0 })
    }
}

impl OpenWav {
    fn append(&mut self, samples: &[i16]) -> io::Result<()> {
        self.num_samples += samples.len() as u64;
        // Wav is little-endian.
        samples.iter().try_for_each(|sample| self.out.write_all(&sample.to_le_bytes()))
    }

    /// Writes the lengths and gives the file its name. Returns its seconds.
    fn finish(self) -> Result<f64, Exit> {
        let OpenWav { out, path, rate_hz, num_samples } = self;
        let too_long = || format!("{num_samples} samples are more than a wav file can hold");
        let data_bytes = u32::try_from(num_samples * 2).ok().filter(|bytes| *bytes <= u32::MAX - 44);
        let data_bytes = data_bytes.with_context(too_long)?;
        let context = || format!("cannot write {}", path.display());
        let mut file = out.into_inner().map_err(io::IntoInnerError::into_error).with_context(context)?;
        let lengths =
            [(FILE_LENGTH_OFFSET, data_bytes + (HEADER_BYTES - 8) as u32), (SAMPLES_LENGTH_OFFSET, data_bytes)];
        for (offset, length) in lengths {
            let wrote = file.seek(SeekFrom::Start(offset)).and_then(|_| file.write_all(&length.to_le_bytes()));
            wrote.with_context(context)?;
        }
        file.persist(&path).map_err(|error| error.error).with_context(context)?;
        Ok(num_samples as f64 / f64::from(rate_hz))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wav_written_in_chunks_equals_one_written_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out.wav");
        let clip = Clip { samples: (0..1000).map(|i| i * 31).collect(), rate_hz: 22_050 };
        let mut expected = Vec::new();
        wav::write(&clip, &mut expected).unwrap();
        let mut out = WavFile::create(&path).unwrap().begin(clip.rate_hz).unwrap();
        clip.samples.chunks(300).for_each(|chunk| out.append(chunk).unwrap());
        assert!(!path.exists(), "an incomplete file has no name");
        assert!((out.finish().unwrap() - clip.seconds()).abs() < 1e-9);
        assert_eq!(fs::read(&path).unwrap(), expected);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
