//! Who speaks.

/// A voice: what makes one speaker differ from another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Voice {
    /// Its name.
    pub name: &'static str,
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

/// The voices, in the order they take turns.
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
    Voice { name, pitch_hz, pitch_range, tract_scale, speed, breathiness, dullness }
}
