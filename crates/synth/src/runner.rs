//! Runs the model on a device, with one compiled program per shape.
//!
//! A chunk is rounded up to a shape, and the program of a shape is compiled when it is first needed. All programs share the
//! weights and one working memory, so the memory is the weights plus the longest chunk. New shapes are prepared together:
//! the memory is released and reserved again, and the weights are written again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tandem_device::bytes::{POOL_GRANULE, round_up};
use tandem_device::{Arena, ArenaSpec, DType, Device, DeviceKind};
use tandem_engine::{
    EngineError, Graph, HostValue, NamedLayout, ParameterSpan, ProgramId, ProgramSet, Results, Rows, Session,
    TensorType,
};
use tandem_events::Role;
use tandem_model::{Acoustic, BatchShape, REFERENCE_FRAMES, host};

use crate::error::SynthError;

/// Tokens and frames are rounded up to multiples of these, so that chunks of similar length share a program. The padding
/// costs about a tenth of the work.
const TOKEN_STEP: u32 = 32;
const FRAME_STEP: u32 = 64;
/// The standard deviation of the noise that spectrograms are sampled from. Less than the 1 of training is steadier, 0 is
/// dull.
const TEMPERATURE: f32 = 0.667;
/// The most programs in memory; beyond that, those that are not needed now are dropped.
const MAX_PROGRAMS: usize = 64;

/// What a program computes, and its shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ProgramShape {
    /// Predicts the durations of `tokens`.
    Durations { tokens: u32 },
    /// Computes the spectrogram of `tokens` with `frames` frames.
    Spectrogram { tokens: u32, frames: u32 },
    /// Aligns `tokens` with a recording of `frames` frames.
    Alignment { tokens: u32, frames: u32 },
}

/// The inputs of a program besides a text and its voice.
#[derive(Clone, Copy)]
enum ExtraInput<'a> {
    None,
    /// Frames of each token.
    Durations(&'a [i32]),
    /// The spectrogram of a recording.
    Recording(&'a [f32]),
}

/// A text with its voice, as the programs take it.
#[derive(Clone, Copy)]
pub(crate) struct SynthesisInput<'a> {
    pub(crate) tokens: &'a [i32],
    /// The id of the language, for a model with several.
    pub(crate) language: u32,
    pub(crate) voice: &'a [f32],
    pub(crate) seed: u64,
    /// The index of the chunk: each chunk has its own random numbers.
    pub(crate) chunk: u32,
}

/// The model to run.
pub(crate) struct RunnerModel {
    pub(crate) acoustic: Acoustic,
    /// All parameters, at their offsets.
    pub(crate) weights: Vec<f32>,
    /// The element type of the GEMMs.
    pub(crate) precision: DType,
    pub(crate) mels: u32,
    /// Mean and standard deviation of the training spectrograms.
    pub(crate) mel_mean: f32,
    pub(crate) mel_std: f32,
}

pub(crate) struct ModelRunner {
    session: Option<PreparedSession>,
    model: RunnerModel,
    device: Device,
    stop: Arc<AtomicBool>,
}

struct PreparedSession {
    // Before the arena: its memory is from there.
    session: Session,
    programs: BTreeMap<ProgramShape, ProgramId>,
    _arena: Arena,
}

impl ProgramShape {
    pub(crate) fn of_durations(tokens: usize) -> ProgramShape {
        ProgramShape::Durations { tokens: (tokens as u32).next_multiple_of(TOKEN_STEP) }
    }

    pub(crate) fn of_spectrogram(tokens: usize, frames: usize) -> ProgramShape {
        let (tokens, frames) = (tokens as u32, frames as u32);
        ProgramShape::Spectrogram {
            tokens: tokens.next_multiple_of(TOKEN_STEP),
            frames: frames.next_multiple_of(FRAME_STEP),
        }
    }

    pub(crate) fn of_alignment(tokens: usize, frames: usize) -> ProgramShape {
        let (tokens, frames) = (tokens as u32, frames as u32);
        ProgramShape::Alignment {
            tokens: tokens.next_multiple_of(TOKEN_STEP),
            frames: frames.next_multiple_of(FRAME_STEP),
        }
    }

    fn tokens(self) -> u32 {
        match self {
            ProgramShape::Durations { tokens }
            | ProgramShape::Spectrogram { tokens, .. }
            | ProgramShape::Alignment { tokens, .. } => tokens,
        }
    }

    fn frames(self) -> u32 {
        match self {
            ProgramShape::Durations { .. } => FRAME_STEP,
            ProgramShape::Spectrogram { frames, .. } | ProgramShape::Alignment { frames, .. } => frames,
        }
    }
}

impl ModelRunner {
    /// Takes no device memory yet.
    pub(crate) fn new(model: RunnerModel, device: Device) -> ModelRunner {
        ModelRunner { session: None, model, device, stop: Arc::default() }
    }

    /// Ends the work in flight with [`SynthError::Stopped`] once `stop` is raised.
    pub(crate) fn stop_when(&mut self, stop: Arc<AtomicBool>) {
        if let Some(prepared) = &mut self.session {
            prepared.session.stop_when(stop.clone());
        }
        self.stop = stop;
    }

    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    /// Compiles the missing programs of these shapes.
    ///
    /// Fails with [`SynthError::NoRoom`].
    pub(crate) fn prepare(&mut self, shapes: impl IntoIterator<Item = ProgramShape>) -> Result<(), SynthError> {
        let mut wanted: BTreeSet<ProgramShape> = shapes.into_iter().collect();
        let has = |shape: &ProgramShape| self.session.as_ref().is_some_and(|now| now.programs.contains_key(shape));
        if wanted.iter().all(has) {
            return Ok(());
        }
        // The old memory is released before the new memory is reserved.
        if let Some(old) = self.session.take() {
            wanted.extend(old.programs.into_keys().take(MAX_PROGRAMS.saturating_sub(wanted.len())));
        }
        let (set, programs) = self.compile(wanted)?;
        let arena = self.reserve(&set)?;
        let stream = Arc::new(self.device.stream(false)?);
        let mut session = Session::create(Arc::new(set), &arena, stream, 1)?;
        session.stop_when(self.stop.clone());
        let weights = &self.model.weights;
        match self.model.precision {
            DType::BF16 => {
                let rounded: Vec<half::bf16> = weights.iter().map(|&x| half::bf16::from_f32(x)).collect();
                session.write_span(ParameterSpan::Compute, &rounded)?;
            }
            _ => session.write_span(ParameterSpan::Parameters, weights)?,
        }
        self.session = Some(PreparedSession { session, programs, _arena: arena });
        Ok(())
    }

    /// The predicted ln(1 + frames) of each token. The shape must be prepared.
    pub(crate) fn log_durations(&mut self, input: SynthesisInput<'_>) -> Result<Vec<f32>, SynthError> {
        let results = self.run(ProgramShape::of_durations(input.tokens.len()), input, ExtraInput::None)?;
        let mut predicted = results.get::<f32>("log_durations")?;
        predicted.truncate(input.tokens.len());
        Ok(predicted)
    }

    /// The log-mel spectrogram of tokens with these durations, not normalised. The shape must be prepared.
    ///
    /// Fails with [`SynthError::NotFinite`].
    pub(crate) fn spectrogram(&mut self, input: SynthesisInput<'_>, durations: &[i32]) -> Result<Vec<f32>, SynthError> {
        let frames = durations.iter().sum::<i32>() as usize;
        let results = self.run(
            ProgramShape::of_spectrogram(input.tokens.len(), frames),
            input,
            ExtraInput::Durations(durations),
        )?;
        let mut mel = results.get::<f32>("mel")?;
        mel.truncate(frames * self.model.mels as usize);
        match mel.iter().all(|x| x.is_finite()) {
            true => Ok(mel),
            false => Err(SynthError::NotFinite { what: "spectrogram" }),
        }
    }

    /// Frames of each token in a recording, which has at least one frame per token. The shape must be prepared.
    pub(crate) fn alignment(&mut self, input: SynthesisInput<'_>, mel: &[f32]) -> Result<Vec<i32>, SynthError> {
        let frames = mel.len() / self.model.mels as usize;
        assert!(frames >= input.tokens.len(), "{} tokens in {frames} frames", input.tokens.len());
        let shape = ProgramShape::of_alignment(input.tokens.len(), frames);
        let mut durations = self.run(shape, input, ExtraInput::Recording(mel))?.get::<i32>("alignment")?;
        durations.truncate(input.tokens.len());
        Ok(durations)
    }

    fn compile(
        &self,
        wanted: BTreeSet<ProgramShape>,
    ) -> Result<(ProgramSet, BTreeMap<ProgramShape, ProgramId>), SynthError> {
        let mut set = ProgramSet::new(self.model.acoustic.parameters().clone(), self.model.precision, &[]);
        let mut programs = BTreeMap::new();
        for shape in wanted {
            if self.stop.load(Ordering::Relaxed) {
                return Err(SynthError::Stopped);
            }
            let (graph, layout) = self.graph(shape)?;
            programs.insert(shape, set.add(format!("{shape:?}"), &graph, &layout)?);
        }
        Ok((set, programs))
    }

    fn graph(&self, shape: ProgramShape) -> Result<(Graph, NamedLayout), EngineError> {
        let RunnerModel { acoustic, precision, mels, .. } = &self.model;
        let tokens = shape.tokens();
        let mut layout = NamedLayout::default();
        let integers = |length: u32| TensorType::new(DType::I32, &[length]);
        layout.place("text", integers(tokens))?;
        layout.place("text_lengths", integers(1))?;
        layout.place("language", integers(1))?;
        layout.place("reference", TensorType::new(DType::F32, &[REFERENCE_FRAMES, *mels]))?;
        let batch = BatchShape::new(Rows::even(1, tokens), Rows::even(1, shape.frames()));
        let graph = match shape {
            ProgramShape::Durations { .. } => acoustic.predict_durations(*precision, &batch)?,
            ProgramShape::Spectrogram { .. } => {
                layout.place("durations", integers(tokens))?;
                layout.place("mel_lengths", integers(1))?;
                acoustic.sample(*precision, &batch)?
            }
            ProgramShape::Alignment { frames, .. } => {
                layout.place("mel", TensorType::new(DType::F32, &[frames, *mels]))?;
                layout.place("mel_lengths", integers(1))?;
                acoustic.align(*precision, &batch)?
            }
        };
        Ok((graph, layout))
    }

    fn reserve(&self, set: &ProgramSet) -> Result<Arena, SynthError> {
        let kind = self.device.machine().kind();
        let needed_bytes = round_up(set.bytes(kind), POOL_GRANULE);
        let free_bytes = self.device.free_bytes()?;
        if needed_bytes > free_bytes {
            let place = match kind {
                DeviceKind::Cpu => "the host".to_owned(),
                DeviceKind::Cuda | DeviceKind::Simulated => format!("GPU {}", self.device.index()),
            };
            return Err(SynthError::NoRoom { needed_bytes, free_bytes, place });
        }
        let spec = ArenaSpec::new(Role::Model, needed_bytes);
        Ok(Arena::reserve(&self.device, spec)?)
    }

    fn run(
        &mut self,
        shape: ProgramShape,
        input: SynthesisInput<'_>,
        extra: ExtraInput<'_>,
    ) -> Result<Results, SynthError> {
        let Some((prepared, id)) = self.session.as_mut().and_then(|prepared| {
            let id = *prepared.programs.get(&shape)?;
            Some((prepared, id))
        }) else {
            panic!("{shape:?} is not prepared")
        };
        let session = &mut prepared.session;
        let padded = |values: &[i32]| {
            let mut values = values.to_vec();
            values.resize(shape.tokens() as usize, 0);
            values
        };
        session.write_input(id, "text", &padded(input.tokens))?;
        session.write_input(id, "text_lengths", &[input.tokens.len() as i32])?;
        session.write_input(id, "language", &[input.language as i32])?;
        session.write_input(id, "reference", input.voice)?;
        match extra {
            ExtraInput::None => {}
            ExtraInput::Durations(durations) => {
                session.write_input(id, "durations", &padded(durations))?;
                session.write_input(id, "mel_lengths", &[durations.iter().sum::<i32>()])?;
            }
            ExtraInput::Recording(mel) => {
                let mut padded = mel.to_vec();
                padded.resize((shape.frames() * self.model.mels) as usize, 0.0);
                session.write_input(id, "mel", &padded)?;
                session.write_input(id, "mel_lengths", &[(mel.len() / self.model.mels as usize) as i32])?;
            }
        }
        let seed = [input.seed as u32, (input.seed >> 32) as u32];
        let (mel_mean, mel_scale) = ([self.model.mel_mean], [1.0 / self.model.mel_std]);
        // Each program takes those it needs.
        let values = [
            (host::MEL_MEAN, HostValue::F32(&mel_mean)),
            (host::MEL_SCALE, HostValue::F32(&mel_scale)),
            (host::TEMPERATURE, HostValue::F32(&[TEMPERATURE])),
            ("seed", HostValue::U32(&seed)),
            ("step", HostValue::U32(&[0])),
            ("utterances", HostValue::U32(&[input.chunk])),
        ];
        session.run(id, None, &values)?;
        let fetch = session.fetch(id)?;
        Ok(session.finish(fetch)?)
    }
}

#[cfg(test)]
mod tests {
    use tandem_device::Machine;
    use tandem_model::{Preset, Vocabulary};
    use tandem_test_support::largest;

    use super::*;

    const MELS: u32 = 8;
    const TOKENS: [i32; 5] = [3, 1, 4, 1, 5];
    const DURATIONS: [i32; 5] = [2, 7, 1, 8, 3];

    fn runner() -> ModelRunner {
        let acoustic = Acoustic::new(Preset::Nano.sizes(), Vocabulary { symbols: 9, languages: 2 }, MELS).unwrap();
        // Not the initial weights: with those the decoder adds nothing.
        let other = |(i, x): (usize, f64)| (x + 0.05 * (i as f64 * 1.7).sin()) as f32;
        let weights = acoustic.parameters().initial(7).into_iter().enumerate().map(other).collect();
        let precision = DType::F32;
        let model = RunnerModel { acoustic, weights, precision, mels: MELS, mel_mean: -5.0, mel_std: 2.0 };
        ModelRunner::new(model, Machine::cpu().open(0).unwrap())
    }

    fn input(voice: &[f32]) -> SynthesisInput<'_> {
        SynthesisInput { tokens: &TOKENS, language: 1, voice, seed: 1, chunk: 0 }
    }

    #[test]
    fn a_larger_shape_gives_the_same_result() {
        let mut runner = runner();
        let voice: Vec<f32> = (0..REFERENCE_FRAMES * MELS).map(|i| -5.0 + (i % 37) as f32 * 0.1).collect();
        let shapes = [(32, 64), (32, 192), (96, 64), (96, 192)];
        let shapes = shapes.map(|(tokens, frames)| ProgramShape::Spectrogram { tokens, frames });
        runner.prepare(shapes).unwrap();
        let mels = shapes.map(|shape| {
            let results = runner.run(shape, input(&voice), ExtraInput::Durations(&DURATIONS)).unwrap();
            results.get::<f32>("mel").unwrap()[..21 * MELS as usize].to_vec()
        });
        let spread =
            |mel: &[f32]| mel.iter().copied().fold(f32::MIN, f32::max) - mel.iter().copied().fold(0.0, f32::min);
        assert!(mels.iter().all(|mel| spread(mel) > 0.5), "the spectrograms are not constant");
        for mel in &mels[1..] {
            let worst = largest(mel.iter().zip(&mels[0]).map(|(a, b)| (a - b).abs()));
            assert!(worst < 1e-4, "{worst}");
        }
        let lengths = [32, 96].map(|tokens| ProgramShape::Durations { tokens });
        runner.prepare(lengths).unwrap();
        let [short, long] = lengths.map(|shape| {
            let results = runner.run(shape, input(&voice), ExtraInput::None).unwrap();
            results.get::<f32>("log_durations").unwrap()[..5].to_vec()
        });
        assert!(short.iter().zip(&long).all(|(a, b)| (a - b).abs() < 1e-4), "{short:?} {long:?}");
        // The default shape, through the usual methods.
        runner.prepare([ProgramShape::of_durations(5)]).unwrap();
        assert_eq!(runner.spectrogram(input(&voice), &DURATIONS).unwrap(), mels[0], "earlier programs stay");
        assert_eq!(runner.log_durations(input(&voice)).unwrap().len(), 5);
    }

    #[test]
    fn languages_differ() {
        let mut runner = runner();
        let voice = vec![-5.0; (REFERENCE_FRAMES * MELS) as usize];
        runner.prepare([ProgramShape::of_durations(TOKENS.len())]).unwrap();
        let [first, second, again] =
            [0, 1, 0].map(|language| runner.log_durations(SynthesisInput { language, ..input(&voice) }).unwrap());
        assert!(first != second && first == again);
    }

    #[test]
    fn an_alignment_gives_every_frame_to_a_token() {
        let mut runner = runner();
        let voice = vec![-5.0; (REFERENCE_FRAMES * MELS) as usize];
        for frames in [5_u32, 21, 64, 65] {
            let mel: Vec<f32> = (0..frames * MELS).map(|i| -5.0 + (i % 41) as f32 * 0.1).collect();
            runner.prepare([ProgramShape::of_alignment(TOKENS.len(), frames as usize)]).unwrap();
            let durations = runner.alignment(input(&voice), &mel).unwrap();
            assert_eq!((durations.len(), durations.iter().sum::<i32>()), (TOKENS.len(), frames as i32));
            assert!(durations.iter().all(|frames| *frames >= 1), "{durations:?}");
        }
    }

    #[test]
    fn shapes_are_rounded_up() {
        let check = |tokens, frames, expected: (u32, u32)| {
            let ProgramShape::Spectrogram { tokens, frames } = ProgramShape::of_spectrogram(tokens, frames) else {
                unreachable!()
            };
            assert_eq!((tokens, frames), expected);
        };
        check(1, 1, (32, 64));
        check(32, 64, (32, 64));
        check(33, 65, (64, 128));
    }
}
