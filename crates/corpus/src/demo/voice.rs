//! Who speaks.

use std::borrow::Cow;

use super::somebody::Somebody;

/// A voice: what makes one speaker differ from another.
#[derive(Clone, Debug, PartialEq)]
pub struct DemoVoice {
    /// Its name.
    pub name: Cow<'static, str>,
    /// Its middle pitch.
    pub pitch_hz: f64,
    /// How lively it is: 0 speaks on one note, 1 as people do.
    pub pitch_range: f64,
    /// Its formants against those of an average man: a shorter mouth and throat resonates higher.
    pub tract_scale: f64,
    /// How fast it speaks; 1 is unhurried.
    pub speed: f64,
    /// Breath noise relative to the voice: above 1 it sounds hoarse.
    pub breathiness: f64,
    /// How dull it is: the share of each sample that is kept back, from 0 to below 1.
    pub dullness: f64,
    /// The shape of its mouth: the first three formants, and those above, against where its size puts them.
    pub formant_scales: [f64; 4],
    /// How far its vowels lie from the middle of the mouth: 1 as an average man's, less is mumbled.
    pub clarity: f64,
    /// The widths of its formants against the average: walls of a mouth differ in how much they swallow.
    pub width_scale: f64,
    /// The share of a period in which its vocal folds are open: little sounds pressed, much sounds soft.
    pub open_share: f64,
    /// How uneven its periods are: 1 as healthy folds are.
    pub roughness: f64,
    /// How much every second period differs from the one before: 0 not at all, 1 is a rattle.
    pub creak: f64,
    /// How far its nose is open all the time, from 0 to 1.
    pub nasality: f64,
    /// How loud its hisses and bursts are against the average.
    pub hiss_level: f64,
    /// How its chest resonates: above 0 it adds, below 0 it swallows, the more the further.
    pub chest: f64,
    /// Where its chest resonates.
    pub chest_hz: f64,
}

/// The voices that have names, in the order they take turns. There are more: [`DemoVoice::number`].
pub const VOICES: [DemoVoice; 6] = [
    voice("ada", 205.0, 1.0, 1.16, 1.00, 0.06, 0.35),
    voice("ben", 112.0, 0.9, 1.00, 1.05, 0.02, 0.15),
    voice("cleo", 178.0, 1.2, 1.11, 1.12, 0.10, 0.45),
    voice("dov", 92.0, 0.7, 0.94, 0.92, 0.03, 0.25),
    voice("esme", 238.0, 1.3, 1.20, 1.08, 0.04, 0.30),
    voice("finn", 134.0, 1.1, 1.04, 1.15, 0.05, 0.05),
];

/// A voice that is average in everything not given.
const fn voice(
    name: &'static str,
    pitch_hz: f64,
    pitch_range: f64,
    tract_scale: f64,
    speed: f64,
    breathiness: f64,
    dullness: f64,
) -> DemoVoice {
    DemoVoice {
        name: Cow::Borrowed(name),
        pitch_hz,
        pitch_range,
        tract_scale,
        speed,
        breathiness,
        dullness,
        formant_scales: [1.0; 4],
        clarity: 1.0,
        width_scale: 1.0,
        open_share: 0.6,
        roughness: 1.0,
        creak: 0.0,
        nasality: 0.0,
        hiss_level: 1.0,
        chest: 0.0,
        chest_hz: 300.0,
    }
}

impl DemoVoice {
    /// Voice `number` of the corpus that `seed` names: one of [`VOICES`], then as many more as anybody wants, each
    /// unlike those before it in everything at once.
    pub fn number(seed: u64, number: usize) -> DemoVoice {
        VOICES.get(number).cloned().unwrap_or_else(|| somebody(&mut Somebody::new(seed, number), number))
    }
}

/// A voice of ranges as wide as a recogniser of speech can stand; pitch and the length of the tract do not go together,
/// or people would differ in one thing only.
///
/// Measured with GE2E, which tells speakers apart: pitch and tract move a voice most, then widths, breath, the third
/// formant and the folds. Open noses and loud chests move it as far, but a recogniser loses the words (25 % of the
/// characters with closed noses, 56 % with half open ones), so these get little room.
fn somebody(who: &mut Somebody, number: usize) -> DemoVoice {
    DemoVoice {
        name: Cow::Owned(format!("voice{number:03}")),
        pitch_hz: who.in_ratio(75.0, 320.0, 0.5658),
        tract_scale: who.in_ratio(0.82, 1.30, 0.6460),
        open_share: who.evenly(0.28, 0.90, 0.1990),
        width_scale: who.in_ratio(0.35, 1.5, 0.0344),
        formant_scales: [
            who.evenly(0.85, 1.20, 0.6356),
            who.evenly(0.87, 1.13, 0.8163),
            who.evenly(0.83, 1.17, 0.1235),
            who.evenly(0.82, 1.12, 0.8481),
        ],
        chest: who.evenly(-7.0, 1.5, 0.2574),
        chest_hz: who.in_ratio(180.0, 500.0, 0.3819),
        nasality: who.evenly(0.0, 0.15, 0.7723),
        breathiness: who.seldom(0.01, 5.0, 0.7574),
        dullness: who.evenly(0.0, 0.9, 0.8598),
        clarity: who.evenly(0.65, 1.25, 0.1366),
        hiss_level: who.in_ratio(0.3, 1.6, 0.7763),
        creak: who.seldom(0.0, 0.6, 0.4530),
        roughness: who.seldom(0.5, 12.0, 0.3416),
        pitch_range: who.evenly(0.5, 1.3, 0.7170),
        speed: who.evenly(0.90, 1.22, 0.8746),
    }
}
