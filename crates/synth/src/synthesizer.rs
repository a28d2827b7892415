//! From text to waveform, with the model of a checkpoint.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use tandem_audio::{AudioError, Clip, GriffinLim, MelFrames};
use tandem_device::{DType, Device, DeviceKind};
use tandem_espeak::Espeak;
use tandem_model::{Acoustic, VoiceReferences};
use tandem_text::Phonemizer;

use crate::error::SynthError;
use crate::runner::{ModelRunner, ProgramShape, RunnerModel, SynthesisInput};
use crate::speech_model::SpeechModel;
use crate::speech_options::SpeechOptions;
use crate::tokenized_text::{TokenChunk, TokenizedText};
use crate::voice::{Voice, VoiceSource, spectrogram_of};
use crate::weights::Weights;

/// Chunks whose durations are predicted, and whose programs are compiled, together.
const CHUNKS_AHEAD: usize = 256;

/// A model that speaks. Holds its weights, and device memory for the longest chunk so far.
pub struct Synthesizer {
    model: SpeechModel,
    voices: VoiceReferences,
    runner: ModelRunner,
    vocoders: Vec<GriffinLim>,
}

/// Synthesised speech.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Speech {
    /// The waveform.
    pub clip: Clip,
    /// The spectrogram of all chunks, without the pauses between them.
    pub spectrogram: MelFrames,
    /// Frames of every symbol, as the model predicted them. They sum to the frames of the spectrogram.
    pub durations: Vec<i32>,
    /// The chunks, in order.
    pub chunks: Vec<ChunkReport>,
    /// Characters that were skipped because the model does not know them, each once.
    pub unknown_chars: Vec<char>,
}

/// The alignment of a recording with its text.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AlignedRecording {
    /// The spectrogram of the recording.
    pub spectrogram: MelFrames,
    /// Frames of every symbol: at least one each, and together those of the spectrogram.
    pub durations: Vec<i32>,
}

/// A synthesised chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkReport {
    /// Its tokens.
    pub tokens: usize,
    /// Its frames.
    pub frames: usize,
    /// Samples of silence after it.
    pub pause_samples: usize,
}

/// How a text is spoken.
#[derive(Clone, Copy)]
struct Speaking<'a> {
    voice: &'a Voice,
    options: &'a SpeechOptions,
    /// The id of its language.
    language: u32,
}

/// A chunk with everything computed for it.
struct SpokenChunk<'a> {
    report: ChunkReport,
    samples: Vec<i16>,
    spectrogram: &'a MelFrames,
    durations: &'a [i32],
}

impl Synthesizer {
    /// Reads the model of the checkpoint in `folder` (`model.json` and `weights.safetensors`), to run on `device`: in f32 on
    /// the CPU, elsewhere in the element type it was trained in. Takes no device memory yet.
    ///
    /// Cost: reading the weights once, and keeping them. Fails with [`SynthError::Checkpoint`] and
    /// [`SynthError::NotAModel`]. Checksums are not compared.
    pub fn open(folder: impl AsRef<Path>, device: Device) -> Result<Synthesizer, SynthError> {
        let folder = folder.as_ref();
        let model = SpeechModel::read(folder)?;
        let mels = model.features.n_mels as u32;
        let acoustic = Acoustic::new(model.dims, model.vocabulary, mels)?;
        let file = Weights::open(folder)?;
        let weights = file.parameters(acoustic.parameters())?;
        let voices = file.voices(model.features.n_mels)?;
        let has_bf16 = device.machine().kind() != DeviceKind::Cpu && device.card().has_bf16();
        let precision = if has_bf16 { model.compute } else { DType::F32 };
        let statistics = &model.mel_statistics;
        let runner_model =
            RunnerModel { acoustic, weights, precision, mels, mel_mean: statistics.mean, mel_std: statistics.std };
        let runner = ModelRunner::new(runner_model, device);
        Ok(Synthesizer { model, voices, runner, vocoders: Vec::new() })
    }

    /// From now on, synthesis ends with [`SynthError::Stopped`] soon after `stop` is raised: within a few milliseconds while
    /// the model computes on the CPU, and within one chunk while the vocoder runs.
    pub fn stop_when(&mut self, stop: Arc<AtomicBool>) {
        self.runner.stop_when(stop);
    }

    /// Frames per second of its spectrograms.
    pub fn frames_hz(&self) -> f64 {
        f64::from(self.model.features.rate_hz) / self.model.features.hop_samples as f64
    }

    /// Samples per second of its waveforms.
    pub fn rate_hz(&self) -> u32 {
        self.model.features.rate_hz
    }

    /// The speakers of the checkpoint; one empty name if the corpus names no speakers.
    pub fn speakers(&self) -> impl Iterator<Item = &str> {
        self.voices.speakers()
    }

    /// The voice of a speaker. Without a speaker, the first voice of the checkpoint, or the mean voice if it has none.
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
                None => Voice::of_means(&self.model.mel_statistics.band_means),
            }),
            Some(asked) => self.voices.get(asked).map(|frames| stored(asked, frames)).ok_or_else(|| {
                let known = self.speakers().filter(|speaker| !speaker.is_empty()).map(str::to_owned).collect();
                SynthError::NoSuchVoice { asked: asked.to_owned(), known }
            }),
        }
    }

    /// The voice of a recording with any sample rate: at least half a second of speech; of more than 4.6 s, the loudest
    /// 4.6 s.
    ///
    /// Fails with [`SynthError::ReferenceTooShort`] and [`SynthError::ReferenceSilent`].
    pub fn voice_from_recording(&self, recording: &Clip) -> Result<Voice, SynthError> {
        Voice::of_recording(recording, &self.model.features)
    }

    /// The tags of its languages, that of most training texts first.
    pub fn languages(&self) -> impl Iterator<Item = &str> {
        self.model.languages.iter().map(|rules| rules.tag.as_str())
    }

    /// Tokenizes a text in the language `lang`, a tag. Without one, the first language that is written in the script of the
    /// text, or the main language. Time is linear in the text.
    ///
    /// Fails with [`SynthError::EmptyText`], [`SynthError::NoSuchLanguage`], [`SynthError::NoKnownSymbol`] and
    /// [`SynthError::Espeak`].
    pub fn tokenize(&self, text: &str, lang: Option<&str>) -> Result<TokenizedText, SynthError> {
        TokenizedText::new(text, lang, &self.model)
    }

    /// The versions of espeak-ng that made the phonemes of the training texts and that makes those of `text`, if they
    /// differ: phonemes may differ, too.
    pub fn other_espeak(&self, text: &TokenizedText) -> Option<(String, String)> {
        let trained = self.model.espeak_version.as_ref()?;
        let uses_it = self.model.languages[text.language as usize].phonemizer == Phonemizer::Espeak;
        let now = Espeak::load().ok().filter(|_| uses_it)?.version().to_owned();
        (now != *trained).then(|| (trained.clone(), now))
    }

    /// Synthesises a tokenized text. The same text, voice and options give the same waveform on the same device.
    ///
    /// For long texts [`Synthesizer::synthesize_chunks`] needs less memory.
    pub fn synthesize(
        &mut self,
        text: &TokenizedText,
        voice: &Voice,
        options: &SpeechOptions,
    ) -> Result<Speech, SynthError> {
        let mut speech = Speech { unknown_chars: text.unknown_chars.clone(), ..Speech::default() };
        speech.clip.rate_hz = self.rate_hz();
        speech.spectrogram.n_mels = self.model.features.n_mels;
        let Speech { clip, chunks, spectrogram, durations, .. } = &mut speech;
        let language = text.language;
        self.each_chunk(text, Speaking { voice, options, language }, &mut |chunk| {
            clip.samples.extend_from_slice(&chunk.samples);
            spectrogram.values.extend_from_slice(&chunk.spectrogram.values);
            durations.extend_from_slice(chunk.durations);
            chunks.push(chunk.report);
            Ok(())
        })?;
        Ok(speech)
    }

    /// Synthesises a tokenized text chunk by chunk: `on_chunk` gets each one with the silence after it, in order. Memory is
    /// that of a few chunks, however long the text.
    ///
    /// Fails with [`SynthError::Rate`], [`SynthError::NoRoom`], [`SynthError::NotFinite`], and if `on_chunk` fails.
    pub fn synthesize_chunks(
        &mut self,
        text: &TokenizedText,
        voice: &Voice,
        options: &SpeechOptions,
        on_chunk: &mut dyn FnMut(&ChunkReport, &[i16]) -> io::Result<()>,
    ) -> Result<(), SynthError> {
        let speaking = Speaking { voice, options, language: text.language };
        self.each_chunk(text, speaking, &mut |chunk| on_chunk(&chunk.report, &chunk.samples))
    }

    /// Aligns `text` with a recording of it, of any sample rate, as training does. `None` if the text is longer than one
    /// chunk, or has more symbols than the recording has frames.
    pub fn align(
        &mut self,
        text: &TokenizedText,
        recording: &Clip,
        voice: &Voice,
    ) -> Result<Option<AlignedRecording>, SynthError> {
        let [chunk] = &text.chunks[..] else { return Ok(None) };
        let spectrogram = spectrogram_of(recording, &self.model.features)?;
        if spectrogram.num_frames() < chunk.tokens.len() {
            return Ok(None);
        }
        self.runner.prepare([ProgramShape::of_alignment(chunk.tokens.len(), spectrogram.num_frames())])?;
        let options = SpeechOptions::default();
        let input = Speaking { voice, options: &options, language: text.language }.input(chunk, 0);
        let durations = self.runner.alignment(input, &spectrogram.values)?;
        Ok(Some(AlignedRecording { spectrogram, durations }))
    }

    fn each_chunk(
        &mut self,
        text: &TokenizedText,
        speaking: Speaking<'_>,
        on_chunk: &mut dyn FnMut(&SpokenChunk<'_>) -> io::Result<()>,
    ) -> Result<(), SynthError> {
        speaking.options.check()?;
        for (stretch, chunks) in text.chunks.chunks(CHUNKS_AHEAD).enumerate() {
            let first = stretch * CHUNKS_AHEAD;
            let durations = self.durations(chunks, first, speaking)?;
            let shapes = chunks.iter().zip(&durations).map(|(chunk, durations)| {
                ProgramShape::of_spectrogram(chunk.tokens.len(), durations.iter().sum::<i32>() as usize)
            });
            self.runner.prepare(shapes.collect::<Vec<_>>())?;
            let at_once = self.runner.device().machine().workers().threads();
            let groups = chunks.chunks(at_once).zip(durations.chunks(at_once));
            for (group, (chunks, durations)) in groups.enumerate() {
                let first = first + group * at_once;
                let spectrograms = self.spectrograms(chunks, durations, first, speaking)?;
                let clips = self.waveforms(&spectrograms, first, speaking.options)?;
                for (index, (chunk, clip)) in chunks.iter().zip(clips).enumerate() {
                    let is_last = first + index + 1 == text.chunks.len();
                    let pause_s = if is_last { 0.0 } else { speaking.options.pause_s(chunk.ends_with) };
                    let pause_samples = (pause_s * f64::from(self.rate_hz())).round() as usize;
                    let (spectrogram, durations) = (&spectrograms[index], &durations[index][..]);
                    let frames = durations.iter().sum::<i32>() as usize;
                    let report = ChunkReport { tokens: chunk.tokens.len(), frames, pause_samples };
                    let mut samples = clip?.samples;
                    samples.resize(samples.len() + pause_samples, 0);
                    on_chunk(&SpokenChunk { report, samples, spectrogram, durations }).map_err(SynthError::Output)?;
                }
            }
        }
        Ok(())
    }

    /// Predicts the durations of all symbols. `first` is the index of the first chunk in the text.
    fn durations(
        &mut self,
        chunks: &[TokenChunk],
        first: usize,
        speaking: Speaking<'_>,
    ) -> Result<Vec<Vec<i32>>, SynthError> {
        let shapes: Vec<ProgramShape> =
            chunks.iter().map(|chunk| ProgramShape::of_durations(chunk.tokens.len())).collect();
        self.runner.prepare(shapes)?;
        let mut durations = Vec::with_capacity(chunks.len());
        for (index, chunk) in chunks.iter().enumerate() {
            let predicted = self.runner.log_durations(speaking.input(chunk, first + index))?;
            durations.push(speaking.options.durations(&predicted, self.model.duration_scale)?);
        }
        Ok(durations)
    }

    /// The spectrograms of some chunks, one after the other on the device.
    fn spectrograms(
        &mut self,
        chunks: &[TokenChunk],
        durations: &[Vec<i32>],
        first: usize,
        speaking: Speaking<'_>,
    ) -> Result<Vec<MelFrames>, SynthError> {
        let n_mels = self.model.features.n_mels;
        let mut spectrograms = Vec::with_capacity(chunks.len());
        for (index, (chunk, durations)) in chunks.iter().zip(durations).enumerate() {
            let values = self.runner.spectrogram(speaking.input(chunk, first + index), durations)?;
            spectrograms.push(MelFrames { values, n_mels });
        }
        Ok(spectrograms)
    }

    /// Their waveforms: one vocoder per chunk, in parallel on the host.
    fn waveforms(
        &mut self,
        spectrograms: &[MelFrames],
        first: usize,
        options: &SpeechOptions,
    ) -> Result<Vec<Result<Clip, AudioError>>, SynthError> {
        while self.vocoders.len() < spectrograms.len() {
            self.vocoders.push(GriffinLim::new(&self.model.features)?);
        }
        let mut clips: Vec<Result<Clip, AudioError>> = spectrograms.iter().map(|_| Ok(Clip::default())).collect();
        let parts: Vec<_> = self.vocoders.iter_mut().zip(spectrograms).zip(&mut clips).collect();
        let workers = self.runner.device().machine().workers();
        workers.each_part(parts, |index, ((vocoder, mel), out)| {
            let mut clip = Clip::default();
            let seed = options.seed.wrapping_add((first + index) as u64);
            *out = vocoder.clip_into(mel, seed, &mut clip).map(|()| clip);
        });
        Ok(clips)
    }
}

impl<'a> Speaking<'a> {
    /// The model inputs of the chunk with this index in the text.
    fn input(self, chunk: &'a TokenChunk, index: usize) -> SynthesisInput<'a> {
        let Speaking { voice, options, language } = self;
        let (tokens, voice) = (&chunk.tokens, &voice.frames);
        SynthesisInput { tokens, language, voice, seed: options.seed, chunk: index as u32 }
    }
}

impl std::fmt::Debug for Synthesizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Synthesizer").field("model", &self.model.dims).finish_non_exhaustive()
    }
}
