//! Text to sound, from a checkpoint.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use tandem_audio::{AudioError, Clip, GriffinLim, MelFrames};
use tandem_device::{DType, Device, DeviceKind};
use tandem_model::{Acoustic, VoiceReferences};

use crate::error::SynthError;
use crate::model_file::ModelFile;
use crate::script::{Script, ScriptPiece};
use crate::speech_options::SpeechOptions;
use crate::voice::{Voice, VoiceSource, spectrum_of};
use crate::voice_box::{ProgramShape, SynthesisInput, VoiceBox};
use crate::weights::Weights;

/// Pieces whose durations are guessed, and whose programs are made, at once.
const LOOKED_AHEAD: usize = 256;

/// A model that speaks. Holds its weights, and on the device as much memory as its longest piece so far.
pub struct Synthesizer {
    model: ModelFile,
    voices: VoiceReferences,
    voice_box: VoiceBox,
    vocoders: Vec<GriffinLim>,
}

/// What was said.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Speech {
    /// The sound.
    pub clip: Clip,
    /// The spectrum it was made from: that of all pieces, without the pauses between them.
    pub spectrum: MelFrames,
    /// Frames of every symbol, as the model guessed them. They add up to those of the spectrum.
    pub durations: Vec<i32>,
    /// The pieces it was said in, in order.
    pub pieces: Vec<PieceReport>,
    /// Characters that were left out because the model does not know them, each once.
    pub left_out: Vec<char>,
}

/// A recording, and which symbol of its text is spoken when.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Aligned {
    /// Its spectrum.
    pub spectrum: MelFrames,
    /// Frames of every symbol. Each has one at least, and together they are those of the spectrum.
    pub durations: Vec<i32>,
}

/// A piece that was said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PieceReport {
    /// Symbols that were read.
    pub tokens: usize,
    /// Frames they last.
    pub frames: usize,
    /// Samples of silence behind them.
    pub pause_samples: usize,
}

/// A piece with all that was made for it.
struct SaidPiece<'a> {
    report: PieceReport,
    samples: Vec<i16>,
    spectrum: &'a MelFrames,
    durations: &'a [i32],
}

impl Synthesizer {
    /// Reads the model of the checkpoint in `folder` (`model.json` and `weights.safetensors`), to run on `device`: on the
    /// CPU in f32, elsewhere in what it was trained in. Nothing of the device is taken yet.
    ///
    /// Cost: reading the weights once, and keeping them. Fails with [`SynthError::NotAModel`] and
    /// [`SynthError::WrongTensors`]. Whether the files are as they were written is not looked at.
    pub fn open(folder: impl AsRef<Path>, device: Device) -> Result<Synthesizer, SynthError> {
        let folder = folder.as_ref();
        let model = ModelFile::read(folder)?;
        let mels = model.features.n_mels as u32;
        let acoustic = Acoustic::new(model.sizes, model.symbols.len() as u32, mels)?;
        let file = Weights::open(folder)?;
        let weights = file.parameters(acoustic.parameters())?;
        let voices = file.voices(model.features.n_mels)?;
        let narrow = device.machine().kind() != DeviceKind::Cpu && device.card().has_bf16();
        let precision = if narrow { model.compute } else { DType::F32 };
        let statistics = (model.mean, model.deviation);
        let voice_box = VoiceBox::new((acoustic, mels, weights), device, precision, statistics);
        Ok(Synthesizer { model, voices, voice_box, vocoders: Vec::new() })
    }

    /// From now on speaking ends with [`SynthError::Stopped`] soon after `stop` is raised: on the CPU within a few
    /// milliseconds while the model computes, and within one piece while phases are found.
    pub fn stop_when(&mut self, stop: Arc<AtomicBool>) {
        self.voice_box.stop_when(stop);
    }

    /// Frames per second of its spectra.
    pub fn frames_hz(&self) -> f64 {
        f64::from(self.model.features.rate_hz) / self.model.features.hop_samples as f64
    }

    /// Samples per second of what it says.
    pub fn rate_hz(&self) -> u32 {
        self.model.features.rate_hz
    }

    /// The speakers whose voices the checkpoint keeps; one without a name where the corpus named none.
    pub fn speakers(&self) -> impl Iterator<Item = &str> {
        self.voices.speakers()
    }

    /// The voice of a speaker; without one, the checkpoint's first, and where it keeps none, nobody's.
    ///
    /// Fails with [`SynthError::NoSuchVoice`].
    pub fn voice(&self, speaker: Option<&str>) -> Result<Voice, SynthError> {
        let stored = |speaker: &str, frames: &[f32]| Voice {
            source: VoiceSource::Speaker(speaker.to_owned()),
            frames: frames.to_vec(),
        };
        match speaker {
            None => Ok(match self.voices.first() {
                Some((speaker, frames)) => stored(speaker, frames),
                None => Voice::of_means(&self.model.bands),
            }),
            Some(asked) => self.voices.get(asked).map(|frames| stored(asked, frames)).ok_or_else(|| {
                let known = self.speakers().filter(|speaker| !speaker.is_empty()).map(str::to_owned).collect();
                SynthError::NoSuchVoice { asked: asked.to_owned(), known }
            }),
        }
    }

    /// The voice in a recording of any rate. Half a second of speech at least; of more than 4.6 s the loudest stretch.
    ///
    /// Fails with [`SynthError::ReferenceTooShort`] and [`SynthError::ReferenceSilent`].
    pub fn voice_of(&self, recording: &Clip) -> Result<Voice, SynthError> {
        Voice::of_recording(recording, &self.model.features)
    }

    /// A text as the model reads it. Time is linear in the text; nothing is said yet.
    ///
    /// Fails with [`SynthError::EmptyText`] and [`SynthError::NoKnownSymbol`].
    pub fn read(&self, text: &str) -> Result<Script, SynthError> {
        Script::read(text, &self.model)
    }

    /// Says `text`. The same text, voice and manner give the same sound on the same device.
    ///
    /// For long texts [`Synthesizer::say`] keeps less in memory.
    pub fn speak(&mut self, text: &str, voice: &Voice, manner: &SpeechOptions) -> Result<Speech, SynthError> {
        let script = self.read(text)?;
        let mut spoken = Speech { left_out: script.left_out.clone(), ..Speech::default() };
        spoken.clip.rate_hz = self.rate_hz();
        spoken.spectrum.n_mels = self.model.features.n_mels;
        let Speech { clip, pieces, spectrum, durations, .. } = &mut spoken;
        self.say_pieces(&script, voice, manner, &mut |piece| {
            clip.samples.extend_from_slice(&piece.samples);
            spectrum.values.extend_from_slice(&piece.spectrum.values);
            durations.extend_from_slice(piece.durations);
            pieces.push(piece.report);
            Ok(())
        })?;
        Ok(spoken)
    }

    /// Says a script piece by piece: `take` is given each with the silence behind it, in order. Memory is that of a few
    /// pieces, however long the text.
    ///
    /// Fails with [`SynthError::Rate`], [`SynthError::NoRoom`], [`SynthError::NotFinite`], and when `take` does.
    pub fn say(
        &mut self,
        script: &Script,
        voice: &Voice,
        manner: &SpeechOptions,
        take: &mut dyn FnMut(&PieceReport, &[i16]) -> io::Result<()>,
    ) -> Result<(), SynthError> {
        self.say_pieces(script, voice, manner, &mut |piece| take(&piece.report, &piece.samples))
    }

    /// Finds which symbol of `text` is spoken when in a recording of it, of any rate, as training does: along what the
    /// model expects of each symbol. None where that cannot be said: the text is too long to be read at once, or has more
    /// symbols than the recording has frames.
    pub fn align(&mut self, text: &str, recording: &Clip, voice: &Voice) -> Result<Option<Aligned>, SynthError> {
        let script = self.read(text)?;
        let [piece] = &script.pieces[..] else { return Ok(None) };
        let spectrum = spectrum_of(recording, &self.model.features)?;
        if spectrum.num_frames() < piece.tokens.len() {
            return Ok(None);
        }
        self.voice_box.prepare([ProgramShape::of_alignment(piece.tokens.len(), spectrum.num_frames())])?;
        let durations = self.voice_box.alignment(line(piece, 0, voice, &SpeechOptions::default()), &spectrum.values)?;
        Ok(Some(Aligned { spectrum, durations }))
    }

    fn say_pieces(
        &mut self,
        script: &Script,
        voice: &Voice,
        manner: &SpeechOptions,
        take: &mut dyn FnMut(&SaidPiece<'_>) -> io::Result<()>,
    ) -> Result<(), SynthError> {
        manner.check()?;
        for (stretch, pieces) in script.pieces.chunks(LOOKED_AHEAD).enumerate() {
            let first = stretch * LOOKED_AHEAD;
            let durations = self.durations(pieces, first, voice, manner)?;
            let shapes = pieces.iter().zip(&durations).map(|(piece, durations)| {
                ProgramShape::of_spectrum(piece.tokens.len(), durations.iter().sum::<i32>() as usize)
            });
            self.voice_box.prepare(shapes.collect::<Vec<_>>())?;
            let at_once = self.voice_box.device().machine().workers().threads();
            let groups = pieces.chunks(at_once).zip(durations.chunks(at_once));
            for (group, (pieces, durations)) in groups.enumerate() {
                let number = first + group * at_once;
                let spectra = self.spectra(pieces, durations, number, voice, manner)?;
                let clips = self.sound(&spectra, number, manner)?;
                for (place, (piece, clip)) in pieces.iter().zip(clips).enumerate() {
                    let is_last = number + place + 1 == script.pieces.len();
                    let (report, samples) = self.finished(piece, &durations[place], clip?, is_last, manner);
                    let (spectrum, durations) = (&spectra[place], &durations[place]);
                    take(&SaidPiece { report, samples, spectrum, durations }).map_err(SynthError::NotTaken)?;
                }
            }
        }
        Ok(())
    }

    fn durations(
        &mut self,
        pieces: &[ScriptPiece],
        first: usize,
        voice: &Voice,
        manner: &SpeechOptions,
    ) -> Result<Vec<Vec<i32>>, SynthError> {
        let shapes: Vec<ProgramShape> =
            pieces.iter().map(|piece| ProgramShape::of_durations(piece.tokens.len())).collect();
        self.voice_box.prepare(shapes)?;
        let mut durations = Vec::with_capacity(pieces.len());
        for (place, piece) in pieces.iter().enumerate() {
            let guesses = self.voice_box.log_durations(line(piece, first + place, voice, manner))?;
            durations.push(manner.durations(&guesses, self.model.duration_scale)?);
        }
        Ok(durations)
    }

    /// The spectra of a few pieces, one after the other on the device.
    fn spectra(
        &mut self,
        pieces: &[ScriptPiece],
        durations: &[Vec<i32>],
        first: usize,
        voice: &Voice,
        manner: &SpeechOptions,
    ) -> Result<Vec<MelFrames>, SynthError> {
        let n_mels = self.model.features.n_mels;
        let mut spectra = Vec::with_capacity(pieces.len());
        for (place, (piece, durations)) in pieces.iter().zip(durations).enumerate() {
            let values = self.voice_box.spectrum(line(piece, first + place, voice, manner), durations)?;
            spectra.push(MelFrames { values, n_mels });
        }
        Ok(spectra)
    }

    /// Their sound: phases are found side by side on the host.
    fn sound(
        &mut self,
        spectra: &[MelFrames],
        first: usize,
        manner: &SpeechOptions,
    ) -> Result<Vec<Result<Clip, AudioError>>, SynthError> {
        while self.vocoders.len() < spectra.len() {
            self.vocoders.push(GriffinLim::new(&self.model.features)?);
        }
        let mut clips: Vec<Result<Clip, AudioError>> = spectra.iter().map(|_| Ok(Clip::default())).collect();
        let parts: Vec<_> = self.vocoders.iter_mut().zip(spectra).zip(&mut clips).collect();
        let workers = self.voice_box.device().machine().workers();
        workers.each_part(parts, |place, ((vocoder, mel), out)| {
            let mut clip = Clip::default();
            let seed = manner.seed.wrapping_add((first + place) as u64);
            *out = vocoder.clip_into(mel, seed, &mut clip).map(|()| clip);
        });
        Ok(clips)
    }

    /// A piece with the silence behind it.
    fn finished(
        &self,
        piece: &ScriptPiece,
        durations: &[i32],
        clip: Clip,
        is_last: bool,
        manner: &SpeechOptions,
    ) -> (PieceReport, Vec<i16>) {
        let pause_s = if is_last { 0.0 } else { manner.pause_s(piece.ends_with) };
        let pause_samples = (pause_s * f64::from(self.rate_hz())).round() as usize;
        let frames = durations.iter().sum::<i32>() as usize;
        let mut samples = clip.samples;
        samples.resize(samples.len() + pause_samples, 0);
        (PieceReport { tokens: piece.tokens.len(), frames, pause_samples }, samples)
    }
}

fn line<'a>(piece: &'a ScriptPiece, number: usize, voice: &'a Voice, manner: &SpeechOptions) -> SynthesisInput<'a> {
    SynthesisInput { tokens: &piece.tokens, voice: &voice.frames, seed: manner.seed, number: number as u32 }
}

impl std::fmt::Debug for Synthesizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Synthesizer").field("model", &self.model.sizes).finish_non_exhaustive()
    }
}
