//! Conditional flow matching (Lipman et al. 2022), with the optimal-transport path that Matcha-TTS uses (Mehta et al. 2023).
//!
//! The path from noise to speech at time t is `(1 - (1 - σ)·t)·noise + t·speech`, with `σ` of noise left at t = 1. Its velocity
//! is `speech - (1 - σ)·noise`. The decoder is trained to predict the velocity; Euler steps along the prediction lead from
//! noise to speech.

use tandem_engine::{EngineError, Graph, RngKeys, Value};

use crate::batch_shape::ValidFrames;
use crate::decoder::{Decoder, DecoderInputs, NoisyMel};
use crate::layers::Dropout;

/// The noise left at t = 1.
const SIGMA: f64 = 1e-4;

/// A random point of the path, and the velocity there.
pub(crate) struct PathSample {
    pub(crate) noisy: NoisyMel,
    pub(crate) velocity: Value,
}

/// Samples the path to `speech`: independent noise for every frame, and a uniform time for every utterance.
pub(crate) fn sample_path(g: &mut Graph, speech: Value, keys: &RngKeys) -> Result<PathSample, EngineError> {
    let noise = g.noise(g.shape(speech).last(), keys)?;
    let time = g.uniform(keys)?;
    let frame_time = g.row_broadcast(time, keys.rows())?;
    let noise_scale = g.scale(frame_time, -(1.0 - SIGMA))?;
    let noise_scale = g.shift(noise_scale, 1.0)?;
    let from_noise = g.mul(noise, noise_scale)?;
    let from_speech = g.mul(speech, frame_time)?;
    let mel = g.add(from_noise, from_speech)?;
    let removed = g.scale(noise, 1.0 - SIGMA)?;
    let velocity = g.sub(speech, removed)?;
    Ok(PathSample { noisy: NoisyMel { mel, time }, velocity })
}

/// Where the ODE solver starts, and the number of Euler steps.
#[derive(Clone, Copy)]
pub(crate) struct EulerSteps {
    pub(crate) start: Value,
    pub(crate) count: u32,
}

/// Integrates the predicted velocity from t = 0 to t = 1 in equal Euler steps.
pub(crate) fn integrate(
    g: &mut Graph,
    decoder: &Decoder,
    inputs: DecoderInputs,
    frames: ValidFrames<'_>,
    steps: EulerSteps,
) -> Result<Value, EngineError> {
    let rows = frames.rows.count();
    let mut mel = g.cast(steps.start, g.acc_dtype())?;
    for step in 0..steps.count {
        let time = vec![f64::from(step) / f64::from(steps.count); rows as usize];
        let time = g.numbers(&[rows, 1], &time);
        let noisy = NoisyMel { mel: g.cast(mel, g.precision())?, time };
        let velocity = decoder.velocity(g, inputs, noisy, frames, Dropout::OFF)?;
        let velocity = g.cast(velocity, g.acc_dtype())?;
        let change = g.scale(velocity, 1.0 / f64::from(steps.count))?;
        mel = g.add(mel, change)?;
    }
    Ok(mel)
}
