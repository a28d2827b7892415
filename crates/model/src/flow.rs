//! The path between noise and speech, and the walk along it.
//!
//! At time t a spectrum is `(1 - (1 - s)·t)·noise + t·speech`, with a little noise `s` left at the end; it moves by
//! `speech - (1 - s)·noise`. Who knows that movement at every time can walk from noise to speech.

use tandem_engine::{EngineError, Graph, RngKeys, Value};

use crate::decoder::{Decoder, DecoderInputs, OnItsWay};
use crate::layers::Dropout;

/// Noise that is left at the end.
const LEFT: f64 = 1e-4;

/// A place on the path, and the movement there.
pub(crate) struct OnThePath {
    pub(crate) now: OnItsWay,
    pub(crate) movement: Value,
}

/// Noise of its own for every frame of `speech`, and a time of its own for every utterance.
pub(crate) fn on_the_path(g: &mut Graph, speech: Value, draws: &RngKeys) -> Result<OnThePath, EngineError> {
    let noise = g.noise(g.shape(speech).last(), draws)?;
    let time = g.uniform(draws)?;
    let of_frames = g.row_spread(time, draws.rows())?;
    let kept = g.scale(of_frames, -(1.0 - LEFT))?;
    let kept = g.shift(kept, 1.0)?;
    let from_noise = g.mul(noise, kept)?;
    let from_speech = g.mul(speech, of_frames)?;
    let mel = g.add(from_noise, from_speech)?;
    let taken = g.scale(noise, 1.0 - LEFT)?;
    let movement = g.sub(speech, taken)?;
    Ok(OnThePath { now: OnItsWay { mel, time }, movement })
}

/// Walks from `start` to speech in `steps` equal steps.
pub(crate) fn walk(
    g: &mut Graph,
    decoder: &Decoder,
    known: DecoderInputs,
    (rows, lengths): (&tandem_engine::Rows, Value),
    start: Value,
    steps: u32,
) -> Result<Value, EngineError> {
    let still = Dropout { share: 0.0, draws: None };
    let mut mel = g.cast(start, g.acc_dtype())?;
    for step in 0..steps {
        let time = vec![f64::from(step) / f64::from(steps); rows.count() as usize];
        let time = g.numbers(&[rows.count(), 1], &time);
        let now = OnItsWay { mel: g.cast(mel, g.precision())?, time };
        let velocity = decoder.velocity(g, known, now, rows, lengths, still)?;
        let velocity = g.cast(velocity, g.acc_dtype())?;
        let moved = g.scale(velocity, 1.0 / f64::from(steps))?;
        mel = g.add(mel, moved)?;
    }
    Ok(mel)
}
