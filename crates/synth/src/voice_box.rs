//! The model on a device, with the programs of the shapes it was asked for.
//!
//! A piece is rounded up to a shape; a shape has a program, which is compiled when it is first needed. All programs share
//! one set of weights and take turns in one working memory, so memory is the weights and the longest piece. New shapes are
//! asked for together: the memory is then given back and taken anew, and the weights are written again.

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

/// Tokens and frames are rounded up to multiples of these. A sentence more or less is then the same program, and a tenth of
/// the work is done for nothing.
const TOKEN_STEP: u32 = 32;
const FRAME_STEP: u32 = 64;
/// How far the noise is spread that spectra are made from: less than in training is steadier, none at all is dull.
const TEMPERATURE: f32 = 0.667;
/// Programs that are kept; when there are more, those that are not asked for now go.
const KEPT: usize = 64;

/// A program's shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ProgramShape {
    /// How long `tokens` last.
    Durations { tokens: u32 },
    /// The spectrum of `tokens` that last `frames`.
    Spectrum { tokens: u32, frames: u32 },
    /// How long `tokens` last in a recording of `frames`.
    Alignment { tokens: u32, frames: u32 },
}

/// What a program is given beside a text and its voice.
#[derive(Clone, Copy)]
enum Given<'a> {
    Nothing,
    /// Frames of each token.
    Durations(&'a [i32]),
    /// The frames of a recording.
    Recording(&'a [f32]),
}

/// A text with its voice, as programs take it.
#[derive(Clone, Copy)]
pub(crate) struct SynthesisInput<'a> {
    pub(crate) tokens: &'a [i32],
    pub(crate) voice: &'a [f32],
    pub(crate) seed: u64,
    /// Which piece of the text: each draws its own random numbers.
    pub(crate) number: u32,
}

pub(crate) struct VoiceBox {
    // Before the arena its memory is from.
    running: Option<Running>,
    model: Acoustic,
    weights: Vec<f32>,
    device: Device,
    precision: DType,
    mels: u32,
    mean: [f32; 1],
    scale: [f32; 1],
    stop: Arc<AtomicBool>,
}

struct Running {
    session: Session,
    programs: BTreeMap<ProgramShape, ProgramId>,
    _arena: Arena,
}

impl ProgramShape {
    pub(crate) fn of_durations(tokens: usize) -> ProgramShape {
        ProgramShape::Durations { tokens: (tokens as u32).next_multiple_of(TOKEN_STEP) }
    }

    pub(crate) fn of_spectrum(tokens: usize, frames: usize) -> ProgramShape {
        let (tokens, frames) = (tokens as u32, frames as u32);
        ProgramShape::Spectrum {
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
            | ProgramShape::Spectrum { tokens, .. }
            | ProgramShape::Alignment { tokens, .. } => tokens,
        }
    }

    fn frames(self) -> u32 {
        match self {
            ProgramShape::Durations { .. } => FRAME_STEP,
            ProgramShape::Spectrum { frames, .. } | ProgramShape::Alignment { frames, .. } => frames,
        }
    }
}

impl VoiceBox {
    /// Takes nothing of the device yet. `mean` and `deviation` are those of the spectra it was trained on.
    pub(crate) fn new(
        (model, mels, weights): (Acoustic, u32, Vec<f32>),
        device: Device,
        precision: DType,
        (mean, deviation): (f32, f32),
    ) -> VoiceBox {
        let (mean, scale) = ([mean], [1.0 / deviation]);
        let stop = Arc::default();
        VoiceBox { running: None, model, weights, device, precision, mels, mean, scale, stop }
    }

    /// Ends what is under way with [`SynthError::Stopped`] once `stop` is raised.
    pub(crate) fn stop_when(&mut self, stop: Arc<AtomicBool>) {
        if let Some(running) = &mut self.running {
            running.session.stop_when(stop.clone());
        }
        self.stop = stop;
    }

    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    /// Makes programs for these shapes, where they are missing.
    ///
    /// Fails with [`SynthError::NoRoom`].
    pub(crate) fn prepare(&mut self, shapes: impl IntoIterator<Item = ProgramShape>) -> Result<(), SynthError> {
        let mut wanted: BTreeSet<ProgramShape> = shapes.into_iter().collect();
        let known = |shape: &ProgramShape| self.running.as_ref().is_some_and(|now| now.programs.contains_key(shape));
        if wanted.iter().all(known) {
            return Ok(());
        }
        // What was there is given back before the new is taken.
        if let Some(before) = self.running.take() {
            wanted.extend(before.programs.into_keys().take(KEPT.saturating_sub(wanted.len())));
        }
        let (set, programs) = self.compile(wanted)?;
        let arena = self.reserve(&set)?;
        let stream = Arc::new(self.device.stream(false)?);
        let mut session = Session::create(Arc::new(set), &arena, stream, 1)?;
        session.stop_when(self.stop.clone());
        match self.precision {
            DType::BF16 => {
                let narrow: Vec<half::bf16> = self.weights.iter().map(|&x| half::bf16::from_f32(x)).collect();
                session.write_span(ParameterSpan::Compute, &narrow)?;
            }
            _ => session.write_span(ParameterSpan::Parameters, &self.weights)?,
        }
        self.running = Some(Running { session, programs, _arena: arena });
        Ok(())
    }

    /// ln(1 + frames) of each token. The shape was prepared.
    pub(crate) fn log_durations(&mut self, line: SynthesisInput<'_>) -> Result<Vec<f32>, SynthError> {
        let results = self.run(ProgramShape::of_durations(line.tokens.len()), line, Given::Nothing)?;
        let mut guesses = results.get::<f32>("log_durations")?;
        guesses.truncate(line.tokens.len());
        Ok(guesses)
    }

    /// The spectrum of tokens that last `durations`, in the recordings' units. The shape was prepared.
    ///
    /// Fails with [`SynthError::NotFinite`].
    pub(crate) fn spectrum(&mut self, line: SynthesisInput<'_>, durations: &[i32]) -> Result<Vec<f32>, SynthError> {
        let frames = durations.iter().sum::<i32>() as usize;
        let results =
            self.run(ProgramShape::of_spectrum(line.tokens.len(), frames), line, Given::Durations(durations))?;
        let mut mel = results.get::<f32>("mel")?;
        mel.truncate(frames * self.mels as usize);
        match mel.iter().all(|x| x.is_finite()) {
            true => Ok(mel),
            false => Err(SynthError::NotFinite { what: "spectra" }),
        }
    }

    /// Frames of each token in a recording, which has at least one for each of them. The shape was prepared.
    pub(crate) fn alignment(&mut self, line: SynthesisInput<'_>, mel: &[f32]) -> Result<Vec<i32>, SynthError> {
        let frames = mel.len() / self.mels as usize;
        assert!(frames >= line.tokens.len(), "{} tokens in {frames} frames", line.tokens.len());
        let shape = ProgramShape::of_alignment(line.tokens.len(), frames);
        let mut durations = self.run(shape, line, Given::Recording(mel))?.get::<i32>("alignment")?;
        durations.truncate(line.tokens.len());
        Ok(durations)
    }

    fn compile(
        &self,
        wanted: BTreeSet<ProgramShape>,
    ) -> Result<(ProgramSet, BTreeMap<ProgramShape, ProgramId>), SynthError> {
        let mut set = ProgramSet::new(self.model.parameters().clone(), self.precision, &[]);
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
        let tokens = shape.tokens();
        let mut layout = NamedLayout::default();
        let whole = |length: u32| TensorType::new(DType::I32, &[length]);
        layout.place("text", whole(tokens))?;
        layout.place("text_lengths", whole(1))?;
        layout.place("reference", TensorType::new(DType::F32, &[REFERENCE_FRAMES, self.mels]))?;
        let batch = BatchShape::new(Rows::even(1, tokens), Rows::even(1, shape.frames()));
        let graph = match shape {
            ProgramShape::Durations { .. } => self.model.guess_durations(self.precision, &batch)?,
            ProgramShape::Spectrum { .. } => {
                layout.place("durations", whole(tokens))?;
                layout.place("mel_lengths", whole(1))?;
                self.model.sample(self.precision, &batch)?
            }
            ProgramShape::Alignment { frames, .. } => {
                layout.place("mel", TensorType::new(DType::F32, &[frames, self.mels]))?;
                layout.place("mel_lengths", whole(1))?;
                self.model.find_alignment(self.precision, &batch)?
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
        let spec = ArenaSpec {
            role: Role::Model,
            limit_bytes: needed_bytes,
            driver_bytes: 0,
            arena_bytes: needed_bytes,
            capped: false,
        };
        Ok(Arena::reserve(&self.device, spec)?)
    }

    fn run(&mut self, shape: ProgramShape, line: SynthesisInput<'_>, given: Given<'_>) -> Result<Results, SynthError> {
        let Some((running, id)) = self.running.as_mut().and_then(|running| {
            let id = *running.programs.get(&shape)?;
            Some((running, id))
        }) else {
            panic!("{shape:?} was not prepared")
        };
        let session = &mut running.session;
        let padded = |values: &[i32]| {
            let mut values = values.to_vec();
            values.resize(shape.tokens() as usize, 0);
            values
        };
        session.write_input(id, "text", &padded(line.tokens))?;
        session.write_input(id, "text_lengths", &[line.tokens.len() as i32])?;
        session.write_input(id, "reference", line.voice)?;
        match given {
            Given::Nothing => {}
            Given::Durations(durations) => {
                session.write_input(id, "durations", &padded(durations))?;
                session.write_input(id, "mel_lengths", &[durations.iter().sum::<i32>()])?;
            }
            Given::Recording(mel) => {
                let mut whole = mel.to_vec();
                whole.resize((shape.frames() * self.mels) as usize, 0.0);
                session.write_input(id, "mel", &whole)?;
                session.write_input(id, "mel_lengths", &[(mel.len() / self.mels as usize) as i32])?;
            }
        }
        let seed = [line.seed as u32, (line.seed >> 32) as u32];
        // Programs take of these what they ask for.
        let values = [
            (host::MEL_MEAN, HostValue::F32(&self.mean)),
            (host::MEL_SCALE, HostValue::F32(&self.scale)),
            (host::TEMPERATURE, HostValue::F32(&[TEMPERATURE])),
            ("seed", HostValue::U32(&seed)),
            ("step", HostValue::U32(&[0])),
            ("utterances", HostValue::U32(&[line.number])),
        ];
        session.run(id, None, &values)?;
        let fetch = session.fetch(id)?;
        Ok(session.finish(fetch)?)
    }
}

#[cfg(test)]
mod tests {
    use tandem_device::Machine;
    use tandem_model::Preset;

    use super::*;

    const MELS: u32 = 8;
    const TOKENS: [i32; 5] = [3, 1, 4, 1, 5];
    const DURATIONS: [i32; 5] = [2, 7, 1, 8, 3];

    fn voice_box() -> VoiceBox {
        let model = Acoustic::new(Preset::Nano.sizes(), 9, MELS).unwrap();
        // Not as training begins: then the decoder adds nothing.
        let other = |(i, x): (usize, f64)| (x + 0.05 * (i as f64 * 1.7).sin()) as f32;
        let weights = model.parameters().initial(7).into_iter().enumerate().map(other).collect();
        VoiceBox::new((model, MELS, weights), Machine::cpu().open(0).unwrap(), DType::F32, (-5.0, 2.0))
    }

    fn line(voice: &[f32]) -> SynthesisInput<'_> {
        SynthesisInput { tokens: &TOKENS, voice, seed: 1, number: 0 }
    }

    #[test]
    fn a_larger_shape_says_the_same() {
        let mut voice_box = voice_box();
        let voice: Vec<f32> = (0..REFERENCE_FRAMES * MELS).map(|i| -5.0 + (i % 37) as f32 * 0.1).collect();
        let shapes = [(32, 64), (32, 192), (96, 64), (96, 192)];
        let shapes = shapes.map(|(tokens, frames)| ProgramShape::Spectrum { tokens, frames });
        voice_box.prepare(shapes).unwrap();
        let mels = shapes.map(|shape| {
            let results = voice_box.run(shape, line(&voice), Given::Durations(&DURATIONS)).unwrap();
            results.get::<f32>("mel").unwrap()[..21 * MELS as usize].to_vec()
        });
        let spread =
            |mel: &[f32]| mel.iter().copied().fold(f32::MIN, f32::max) - mel.iter().copied().fold(0.0, f32::min);
        assert!(mels.iter().all(|mel| spread(mel) > 0.5), "there is something to compare");
        for mel in &mels[1..] {
            let worst = mel.iter().zip(&mels[0]).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(worst < 1e-4, "{worst}");
        }
        let lengths = [32, 96].map(|tokens| ProgramShape::Durations { tokens });
        voice_box.prepare(lengths).unwrap();
        let [narrow, wide] = lengths.map(|shape| {
            let results = voice_box.run(shape, line(&voice), Given::Nothing).unwrap();
            results.get::<f32>("log_durations").unwrap()[..5].to_vec()
        });
        assert!(narrow.iter().zip(&wide).all(|(a, b)| (a - b).abs() < 1e-4), "{narrow:?} {wide:?}");
        // Of the usual shape, through the usual door.
        voice_box.prepare([ProgramShape::of_durations(5)]).unwrap();
        assert_eq!(voice_box.spectrum(line(&voice), &DURATIONS).unwrap(), mels[0], "what was there is kept");
        assert_eq!(voice_box.log_durations(line(&voice)).unwrap().len(), 5);
    }

    #[test]
    fn a_recording_is_used_up_by_the_tokens_in_order() {
        let mut voice_box = voice_box();
        let voice = vec![-5.0; (REFERENCE_FRAMES * MELS) as usize];
        for frames in [5_u32, 21, 64, 65] {
            let mel: Vec<f32> = (0..frames * MELS).map(|i| -5.0 + (i % 41) as f32 * 0.1).collect();
            voice_box.prepare([ProgramShape::of_alignment(TOKENS.len(), frames as usize)]).unwrap();
            let durations = voice_box.alignment(line(&voice), &mel).unwrap();
            assert_eq!((durations.len(), durations.iter().sum::<i32>()), (TOKENS.len(), frames as i32));
            assert!(durations.iter().all(|frames| *frames >= 1), "{durations:?}");
        }
    }

    #[test]
    fn shapes_are_rounded_up() {
        let check = |tokens, frames, expected: (u32, u32)| {
            let ProgramShape::Spectrum { tokens, frames } = ProgramShape::of_spectrum(tokens, frames) else {
                unreachable!()
            };
            assert_eq!((tokens, frames), expected);
        };
        check(1, 1, (32, 64));
        check(32, 64, (32, 64));
        check(33, 65, (64, 128));
    }
}
