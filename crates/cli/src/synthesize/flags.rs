//! The flags of `tandem synthesize`.

use std::path::{Path, PathBuf};

use clap::{Arg, ArgMatches, Command, value_parser};
use tandem_device::SimSpec;
use tandem_plan::{Origin, Settings};
use tandem_synth::SpeechOptions;

use super::input::InputText;
use super::wav_file::WavTarget;
use crate::args::{json, overwrite, path, quiet, sim, switch};
use crate::exit::Exit;

/// Arguments of `tandem synthesize`.
pub(crate) struct SynthesizeArgs {
    pub(super) checkpoint: Option<PathBuf>,
    pub(super) task: SpeechTask,
    pub(super) reference: Option<PathBuf>,
    pub(super) speaker: Option<String>,
    /// `--lang`
    pub(super) lang: Option<String>,
    pub(super) options: SpeechOptions,
    /// `--gpu` and `--mode`.
    pub(super) settings: Settings,
    pub(crate) sim: Option<SimSpec>,
    pub(super) overwrite: bool,
    pub(crate) quiet: bool,
    pub(crate) json: bool,
}

/// What to do with the model.
pub(super) enum SpeechTask {
    /// `--text` or `--text-file`
    Speak { text: InputText, target: WavTarget },
    /// `--batch`
    Batch { list: InputText, folder: PathBuf },
    /// `--list-speakers`
    ListSpeakers,
}

impl SynthesizeArgs {
    /// Whether the speech goes to standard output, where messages would damage it.
    pub(crate) fn writes_speech_to_stdout(&self) -> bool {
        matches!(self.task, SpeechTask::Speak { target: WavTarget::Stdout, .. })
    }
}

pub(crate) fn command() -> Command {
    let value = |name: &'static str, unit: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name(unit).allow_hyphen_values(true).help(help)
    };
    let checkpoint =
        path("checkpoint", "A checkpoint, or the folder of a run to use its best checkpoint [default: ./checkpoints]");
    let batch = "Speak every row of this file: id|text[|speaker[|lang]], written to DIR/id.wav; - reads standard input";
    Command::new("synthesize")
        .about("Turn text into speech with a trained model: checkpoint and text (and a reference voice) to wav")
        .arg(checkpoint.value_name("DIR"))
        .arg(
            value("text", "TEXT", "Text to speak")
                .conflicts_with_all(["text-file", "batch"])
                .required_unless_present_any(["text-file", "batch", "list-speakers"]),
        )
        .arg(path("text-file", "UTF-8 text file to speak; - reads standard input").conflicts_with("batch"))
        .arg(path("batch", batch))
        .arg(switch("list-speakers", "List the speakers of the checkpoint, and speak nothing").conflicts_with_all([
            "text",
            "text-file",
            "batch",
            "output",
        ]))
        .arg(path("reference", "Recording of the voice to imitate: about 5 s of speech, as wav, flac, ogg or mp3"))
        .arg(value("lang", "LANG", "Language of the text [default: by its script, then the corpus's main language]"))
        .arg(value("speaker", "NAME", "Use the voice of this speaker of the corpus").conflicts_with("reference"))
        .arg(
            value("speaking-rate", "R", "Speed, 0.25 to 4: 2 takes half the time [default: 1]")
                .value_parser(value_parser!(f64)),
        )
        .arg(
            value("seed", "N", "Random seed; the same seed gives the same audio [default: 1234]")
                .value_parser(value_parser!(u64)),
        )
        .arg(value("gpu", "GPU", "GPU to run on: its number in nvidia-smi, or its UUID [default: the one with the most free memory, else the CPU]"))
        .arg(value("mode", "MODE", "cpu: run without a GPU"))
        .arg(sim())
        .arg(json())
        .arg(quiet())
        .arg(
            path("output", "Wav file to write (16 bit, mono), or - for standard output; with --batch, a folder")
                .short('o')
                .required_unless_present("list-speakers"),
        )
        .arg(overwrite())
}

pub(crate) fn parse(matches: &ArgMatches) -> Result<SynthesizeArgs, Exit> {
    let mut settings = Settings::new();
    for flag in ["gpu", "mode"] {
        if let Some(text) = matches.get_one::<String>(flag) {
            settings.set(flag, text, Origin::Flag)?;
        }
    }
    let sim = matches.get_one::<String>("sim").map(|text| text.parse::<SimSpec>()).transpose();
    let default = SpeechOptions::default();
    let args = SynthesizeArgs {
        checkpoint: matches.get_one::<PathBuf>("checkpoint").cloned(),
        task: task(matches)?,
        reference: matches.get_one::<PathBuf>("reference").cloned(),
        speaker: matches.get_one::<String>("speaker").cloned(),
        lang: matches.get_one::<String>("lang").cloned(),
        options: SpeechOptions {
            rate: matches.get_one("speaking-rate").copied().unwrap_or(default.rate),
            seed: matches.get_one("seed").copied().unwrap_or(default.seed),
        },
        settings,
        sim: sim.map_err(|error| Exit::Usage(format!("❌ {error}")))?,
        overwrite: matches.get_flag("overwrite"),
        quiet: matches.get_flag("quiet"),
        json: matches.get_flag("json"),
    };
    if args.json && args.writes_speech_to_stdout() {
        let message = "❌ --json and `-o -` both write to standard output\n   Give a file: -o speech.wav --json";
        return Err(Exit::Usage(message.to_owned()));
    }
    Ok(args)
}

fn task(matches: &ArgMatches) -> Result<SpeechTask, Exit> {
    let path = |name: &str| matches.get_one::<PathBuf>(name);
    if matches.get_flag("list-speakers") {
        return Ok(SpeechTask::ListSpeakers);
    }
    let Some(output) = path("output") else { return Err(Exit::Usage("❌ give the output file with -o".to_owned())) };
    if let Some(list) = path("batch") {
        return Ok(SpeechTask::Batch { list: InputText::of_path("--batch", list), folder: folder(output)? });
    }
    let text = match (matches.get_one::<String>("text"), path("text-file")) {
        (Some(text), _) => InputText::given(text),
        (None, Some(file)) => InputText::of_path("--text-file", file),
        (None, None) => return Err(Exit::Usage("❌ give the text with --text or --text-file".to_owned())),
    };
    Ok(SpeechTask::Speak { text, target: WavTarget::of(output) })
}

/// The folder of a batch. A name that was meant for one file is refused.
fn folder(output: &Path) -> Result<PathBuf, Exit> {
    let is_wav = output.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("wav"));
    let is_other = output.exists() && !output.is_dir();
    if output == Path::new("-") || is_other || (is_wav && !output.exists()) {
        let found = output.display();
        return Err(Exit::Usage(format!(
            "❌ -o: --batch writes a wav file for each row, and expects a folder: {found}\n   Give one: -o speech"
        )));
    }
    Ok(output.to_owned())
}
