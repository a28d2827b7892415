//! Who speaks.

use std::borrow::Cow;

use super::dice::Dice;

/// A voice: what makes one speaker differ from another.
#[derive(Clone, Debug, PartialEq)]
pub struct Voice {
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
    /// Breath heard beside the voice, as a share of it.
    pub breathiness: f64,
    /// How dull it is: the share of each sample that is kept back, from 0 to below 1.
    pub dullness: f64,
}

/// The voices that have names, in the order they take turns. There are more: [`Voice::number`].
pub const VOICES: [Voice; 6] = [
    voice("ada", 205.0, 1.0, 1.16, 1.00, 0.06, 0.35),
    voice("ben", 112.0, 0.9, 1.00, 1.05, 0.02, 0.15),
    voice("cleo", 178.0, 1.2, 1.11, 1.12, 0.10, 0.45),
    voice("dov", 92.0, 0.7, 0.94, 0.92, 0.03, 0.25),
    voice("esme", 238.0, 1.3, 1.20, 1.08, 0.04, 0.30),
    voice("finn", 134.0, 1.1, 1.04, 1.15, 0.05, 0.05),
];

const fn voice(
    name: &'static str,
    pitch_hz: f64,
    pitch_range: f64,
    tract_scale: f64,
    speed: f64,
    breathiness: f64,
    dullness: f64,
) -> Voice {
    Voice { name: Cow::Borrowed(name), pitch_hz, pitch_range, tract_scale, speed, breathiness, dullness }
}

/// What the numbers of a voice are drawn for.
const SOMEBODY: u64 = 0x566f_6963_6573;

impl Voice {
    /// Voice `number` of the corpus that `seed` names: one of [`VOICES`], then as many more as anybody wants, each drawn: a
    /// longer throat speaks lower, within what people do.
    pub fn number(seed: u64, number: usize) -> Voice {
        if let Some(known) = VOICES.get(number) {
            return known.clone();
        }
        let mut dice = Dice::new(&[seed, SOMEBODY, number as u64]);
        let height = dice.around_zero();
        Voice {
            name: Cow::Owned(format!("voice{number:03}")),
            tract_scale: 1.06 + 0.15 * height,
            pitch_hz: 165.0 + 60.0 * height + 25.0 * dice.around_zero(),
            pitch_range: 1.0 + 0.3 * dice.around_zero(),
            speed: 1.05 + 0.13 * dice.around_zero(),
            breathiness: 0.06 + 0.04 * dice.around_zero(),
            dullness: 0.25 + 0.2 * dice.around_zero(),
        }
    }
}
