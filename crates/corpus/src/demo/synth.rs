//! Controls to sound: a pulsing voice and noise, through resonators that stand for mouth and nose.
//!
//! The voice and breath pass a chain of five formants, with a pair of pole and zero for the nose in front, and one for
//! the chest in voices that have it; noise made in the mouth has a resonator of its own beside the chain.

use std::f64::consts::PI;

use super::RATE_HZ;
use super::dice::Dice;
use super::math::{cos, exp};
use super::prosody::FRAME_SAMPLES;
use super::tracks::{ControlTracks, Controls};
use super::voice::DemoVoice;

/// Bandwidths of the five formants, and where the upper two lie, which do not move.
const WIDTHS_HZ: [f64; 5] = [70.0, 100.0, 140.0, 250.0, 300.0];
const UPPER_HZ: [f64; 2] = [3500.0, 4500.0];
const NASAL_POLE_HZ: f64 = 270.0;
const NASAL_WIDTH_HZ: f64 = 100.0;
const CHEST_WIDTH_HZ: f64 = 250.0;

/// Loudness of speech, as a share of full scale, and the peak it never passes.
const TARGET_RMS: f64 = 0.10;
const MAX_PEAK: f64 = 0.85;
/// Loudness of breath and noise against the voice, so that one level means one loudness.
const BREATH_GAIN: f64 = 0.25;
const NOISE_GAIN: f64 = 1.0;
/// A hiss of two steps of the 16-bit scale: no recording is without.
const FLOOR: f64 = 2.0 / 32_768.0;

/// The sound of `tracks`, at one loudness for all voices.
pub(super) fn synthesize(tracks: &ControlTracks, voice: &DemoVoice, dice: &mut Dice) -> Vec<i16> {
    let mut sound = Vec::with_capacity(tracks.frames.len() * FRAME_SAMPLES as usize);
    let mut mouth = Mouth::new(voice);
    for controls in &tracks.frames {
        mouth.frame(controls, dice, &mut sound);
    }
    let gain = gain(&sound, tracks);
    let sample = |value: &f64| ((value * gain + FLOOR * dice.around_zero()) * 32_767.0).round() as i16;
    sound.iter().map(sample).collect()
}

/// What brings the voiced part of `sound` to the target, or its peak to the limit if that is less.
fn gain(sound: &[f64], tracks: &ControlTracks) -> f64 {
    let (mut energy, mut count) = (0.0, 0usize);
    for (samples, controls) in sound.chunks(FRAME_SAMPLES as usize).zip(&tracks.frames) {
        if controls.voice > 0.5 {
            energy += samples.iter().map(|value| value * value).sum::<f64>();
            count += samples.len();
        }
    }
    let rms = (energy / count.max(1) as f64).sqrt();
    let peak = sound.iter().fold(0.0, |peak: f64, value| peak.max(value.abs()));
    if rms > 0.0 { (TARGET_RMS / rms).min(MAX_PEAK / peak) } else { 0.0 }
}

/// Everything that remembers.
struct Mouth<'a> {
    voice: &'a DemoVoice,
    /// Where the vocal folds are in their period, from 0 to 1, and how this period differs from the next.
    phase: f64,
    period_scale: f64,
    level_scale: f64,
    second: bool,
    dulled: f64,
    before: Levels,
    chest: Option<Chest>,
    nasal_zero: Resonator,
    nasal_pole: Resonator,
    formants: [Resonator; 5],
    noise: Resonator,
}

/// Loudnesses, which move from sample to sample; everything else may step from frame to frame.
#[derive(Clone, Copy, Default)]
struct Levels {
    voice: f64,
    breath: f64,
    noise: f64,
}

impl<'a> Mouth<'a> {
    fn new(voice: &'a DemoVoice) -> Mouth<'a> {
        Mouth {
            voice,
            phase: 0.0,
            period_scale: 1.0,
            level_scale: 1.0,
            second: false,
            dulled: 0.0,
            before: Levels::default(),
            chest: Chest::new(voice),
            nasal_zero: Resonator::default(),
            nasal_pole: Resonator::default(),
            formants: [Resonator::default(); 5],
            noise: Resonator::default(),
        }
    }

    fn frame(&mut self, controls: &Controls, dice: &mut Dice, sound: &mut Vec<f64>) {
        self.tune(controls);
        let after = Levels { voice: controls.voice, breath: controls.breath, noise: controls.noise };
        for i in 0..FRAME_SAMPLES {
            let done = f64::from(i) / f64::from(FRAME_SAMPLES);
            let between = |from: f64, to: f64| from + (to - from) * done;
            let levels = Levels {
                voice: between(self.before.voice, after.voice),
                breath: between(self.before.breath, after.breath),
                noise: between(self.before.noise, after.noise),
            };
            sound.push(self.sample(&levels, controls.pitch_hz, dice));
        }
        self.before = after;
    }

    fn tune(&mut self, controls: &Controls) {
        let upper = UPPER_HZ.map(|hz| hz * self.voice.tract_scale * self.voice.formant_scales[3]);
        let [f1, f2, f3] = controls.formants_hz;
        for (i, hz) in [f1, f2, f3, upper[0], upper[1]].into_iter().enumerate() {
            // Through the nose everything is damped.
            self.formants[i].tune(hz, WIDTHS_HZ[i] * self.voice.width_scale * (1.0 + controls.nasal));
        }
        let zero_hz = NASAL_POLE_HZ + (controls.nasal_zero_hz - NASAL_POLE_HZ) * controls.nasal;
        self.nasal_pole.tune(NASAL_POLE_HZ, NASAL_WIDTH_HZ);
        self.nasal_zero.tune(zero_hz, NASAL_WIDTH_HZ);
        self.noise.tune(controls.noise_hz, controls.noise_width_hz);
    }

    fn sample(&mut self, levels: &Levels, pitch_hz: f64, dice: &mut Dice) -> f64 {
        let pulse = self.pulse(pitch_hz, dice);
        self.dulled += (1.0 - self.voice.dullness) * (pulse - self.dulled);
        let noise = dice.around_zero();
        // Breath passes while the folds are open.
        let open = if self.phase < self.voice.open_share { 1.0 } else { 0.3 };
        let breath = noise * BREATH_GAIN * (levels.breath + self.voice.breathiness * levels.voice * open);
        let mut value = self.dulled * levels.voice + breath;
        if let Some(chest) = &mut self.chest {
            value = chest.pole.pass(chest.zero.cancel(value));
        }
        value = self.nasal_pole.pass(self.nasal_zero.cancel(value));
        for formant in &mut self.formants {
            value = formant.pass(value);
        }
        value + self.noise.band(noise * levels.noise * NOISE_GAIN)
    }

    /// What the vocal folds let through now: the mean of two moments, because their closing is too sudden for one.
    fn pulse(&mut self, pitch_hz: f64, dice: &mut Dice) -> f64 {
        let step = pitch_hz * self.period_scale / f64::from(2 * RATE_HZ);
        let mut sum = 0.0;
        for _ in 0..2 {
            self.phase += step;
            if self.phase >= 1.0 {
                self.phase -= 1.0;
                self.second = !self.second;
                let creak = if self.second { self.voice.creak } else { -self.voice.creak };
                self.period_scale = 1.0 + 0.006 * self.voice.roughness * dice.around_zero() + 0.3 * creak;
                self.level_scale = 1.0 + 0.03 * self.voice.roughness * dice.around_zero() - 0.6 * creak;
            }
            sum += flow_change(self.phase, self.voice.open_share);
        }
        0.5 * sum * self.level_scale
    }
}

/// What the chest adds or swallows, whatever is said: of a pole and a zero at one place the narrower wins.
struct Chest {
    pole: Resonator,
    zero: Resonator,
}

impl Chest {
    /// None where they would cancel: that leaves rounding behind.
    fn new(voice: &DemoVoice) -> Option<Chest> {
        let mut chest = Chest { pole: Resonator::default(), zero: Resonator::default() };
        chest.pole.tune(voice.chest_hz, CHEST_WIDTH_HZ / (1.0 + voice.chest.max(0.0)));
        chest.zero.tune(voice.chest_hz, CHEST_WIDTH_HZ / (1.0 - voice.chest.min(0.0)));
        (voice.chest != 0.0).then_some(chest)
    }
}

/// How the flow changes at `phase`, with the folds open for `open_share` of the period: it swells, then is cut off,
/// then rests. It sums to nothing over a period.
fn flow_change(phase: f64, open_share: f64) -> f64 {
    let t = phase / open_share;
    if t < 1.0 { 2.0 * t - 3.0 * t * t } else { 0.0 }
}

/// A resonance of two poles. Used forwards it rings, used backwards it cancels such ringing.
#[derive(Clone, Copy, Default)]
struct Resonator {
    a: f64,
    b: f64,
    c: f64,
    band_gain: f64,
    y1: f64,
    y2: f64,
    x1: f64,
    x2: f64,
}

impl Resonator {
    fn tune(&mut self, hz: f64, width_hz: f64) {
        let rate_hz = f64::from(RATE_HZ);
        let radius = exp(-PI * width_hz / rate_hz);
        self.c = -radius * radius;
        self.b = 2.0 * radius * cos(2.0 * PI * hz / rate_hz);
        self.a = 1.0 - self.b - self.c;
        self.band_gain = (1.0 - radius * radius) / 2.0;
    }

    /// Rings; what does not change passes as it is.
    fn pass(&mut self, x: f64) -> f64 {
        let y = self.a * x + self.b * self.y1 + self.c * self.y2;
        (self.y2, self.y1) = (self.y1, y);
        y
    }

    /// Takes out what [`Resonator::pass`] would add.
    fn cancel(&mut self, x: f64) -> f64 {
        let y = (x - self.b * self.x1 - self.c * self.x2) / self.a;
        (self.x2, self.x1) = (self.x1, x);
        y
    }

    /// Lets a band pass, at its middle as loud as it came.
    fn band(&mut self, x: f64) -> f64 {
        let y = self.band_gain * (x - self.x2) + self.b * self.y1 + self.c * self.y2;
        (self.x2, self.x1) = (self.x1, x);
        (self.y2, self.y1) = (self.y1, y);
        y
    }
}
