//! The phones: where each one resonates, what noise it makes, how long it lasts.
//!
//! Formants of vowels are the averages of male speakers that phonetics has measured again and again; those of
//! consonants are where the formants of neighbouring vowels point to. Names are those of English dictionaries.

/// The first three resonances.
pub(super) type Formants = [f64; 3];

/// What a mouth at rest resonates at.
pub(super) const NEUTRAL: Formants = [500.0, 1500.0, 2500.0];

/// How a phone is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Manner {
    /// Voice through an open mouth, perhaps moving.
    Vowel,
    /// Voice through a mouth on its way to a vowel.
    Glide,
    /// Voice through the nose.
    Nasal,
    /// Noise at a narrow place, perhaps with voice.
    Fricative,
    /// A closed mouth that bursts open, perhaps with voice.
    Stop,
    /// A stop that opens slowly, into noise.
    Affricate,
    /// Breath through the mouth of the next phone.
    Breath,
    /// Nothing.
    Silence,
}

/// A phone.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct DemoPhone {
    pub(super) name: &'static str,
    pub(super) manner: Manner,
    pub(super) voiced: bool,
    pub(super) start: Formants,
    pub(super) end: Formants,
    /// Where its noise is loudest, how wide it is, and how loud.
    pub(super) noise_hz: f64,
    pub(super) noise_width_hz: f64,
    pub(super) noise_level: f64,
    /// What a closed mouth takes out of a sound that leaves through the nose.
    pub(super) nasal_zero_hz: f64,
    pub(super) duration_ms: f64,
}

/// The phone called `name`, without the digit of its stress.
pub(super) fn phone(name: &str) -> Option<&'static DemoPhone> {
    PHONES.iter().find(|phone| phone.name == name)
}

pub(super) const SILENCE: &DemoPhone = &PHONES[PHONES.len() - 1];

/// A vowel that stays where it is.
const fn vowel(name: &'static str, at: Formants, duration_ms: f64) -> DemoPhone {
    moving(name, at, at, duration_ms)
}

/// A vowel that moves.
const fn moving(name: &'static str, start: Formants, end: Formants, duration_ms: f64) -> DemoPhone {
    DemoPhone {
        name,
        manner: Manner::Vowel,
        voiced: true,
        start,
        end,
        noise_hz: 4000.0,
        noise_width_hz: 2000.0,
        noise_level: 0.0,
        nasal_zero_hz: 0.0,
        duration_ms,
    }
}

const fn glide(name: &'static str, at: Formants) -> DemoPhone {
    DemoPhone { manner: Manner::Glide, ..vowel(name, at, 72.0) }
}

const fn nasal(name: &'static str, at: Formants, nasal_zero_hz: f64) -> DemoPhone {
    DemoPhone { manner: Manner::Nasal, nasal_zero_hz, ..vowel(name, at, 76.0) }
}

/// A consonant with noise: its centre, width and level.
const fn noisy(manner: Manner, name: &'static str, voiced: bool, at: Formants, noise: [f64; 3], ms: f64) -> DemoPhone {
    let [noise_hz, noise_width_hz, noise_level] = noise;
    DemoPhone { manner, voiced, noise_hz, noise_width_hz, noise_level, ..vowel(name, at, ms) }
}

const LIPS: Formants = [260.0, 900.0, 2200.0];
const LIP_TEETH: Formants = [300.0, 1100.0, 2300.0];
const TEETH: Formants = [300.0, 1400.0, 2500.0];
const RIDGE: Formants = [280.0, 1750.0, 2650.0];
const PALATE: Formants = [290.0, 1950.0, 2550.0];
const VELUM: Formants = [270.0, 1900.0, 2300.0];

const PHONES: [DemoPhone; 40] = [
    vowel("IY", [270.0, 2290.0, 3010.0], 125.0),
    vowel("IH", [390.0, 1990.0, 2550.0], 90.0),
    vowel("EH", [530.0, 1840.0, 2480.0], 105.0),
    vowel("AE", [660.0, 1720.0, 2410.0], 140.0),
    vowel("AA", [730.0, 1090.0, 2440.0], 145.0),
    vowel("AO", [570.0, 840.0, 2410.0], 145.0),
    vowel("AH", [640.0, 1190.0, 2390.0], 90.0),
    vowel("UH", [440.0, 1020.0, 2240.0], 90.0),
    vowel("UW", [300.0, 870.0, 2240.0], 125.0),
    vowel("ER", [490.0, 1350.0, 1690.0], 130.0),
    moving("EY", [480.0, 1900.0, 2500.0], [330.0, 2200.0, 2700.0], 150.0),
    moving("AY", [710.0, 1150.0, 2450.0], [380.0, 2000.0, 2550.0], 175.0),
    moving("OY", [550.0, 850.0, 2400.0], [380.0, 1950.0, 2500.0], 185.0),
    moving("AW", [710.0, 1200.0, 2450.0], [430.0, 950.0, 2350.0], 180.0),
    moving("OW", [520.0, 950.0, 2400.0], [380.0, 850.0, 2300.0], 155.0),
    glide("W", [300.0, 700.0, 2200.0]),
    glide("Y", [270.0, 2250.0, 3000.0]),
    glide("R", [350.0, 1150.0, 1500.0]),
    glide("L", [360.0, 1100.0, 2700.0]),
    nasal("M", [260.0, 1000.0, 2200.0], 900.0),
    nasal("N", [260.0, 1500.0, 2500.0], 1600.0),
    nasal("NG", [260.0, 2000.0, 2700.0], 2700.0),
    noisy(Manner::Fricative, "S", false, RIDGE, [6200.0, 2400.0, 0.9], 110.0),
    noisy(Manner::Fricative, "Z", true, RIDGE, [6200.0, 2400.0, 0.45], 80.0),
    noisy(Manner::Fricative, "SH", false, PALATE, [3100.0, 1500.0, 0.9], 115.0),
    noisy(Manner::Fricative, "ZH", true, PALATE, [3100.0, 1500.0, 0.45], 80.0),
    noisy(Manner::Fricative, "F", false, LIP_TEETH, [7800.0, 6000.0, 0.28], 100.0),
    noisy(Manner::Fricative, "V", true, LIP_TEETH, [7800.0, 6000.0, 0.12], 65.0),
    noisy(Manner::Fricative, "TH", false, TEETH, [5200.0, 6000.0, 0.22], 95.0),
    noisy(Manner::Fricative, "DH", true, TEETH, [5200.0, 6000.0, 0.10], 50.0),
    noisy(Manner::Stop, "P", false, LIPS, [900.0, 1600.0, 0.9], 105.0),
    noisy(Manner::Stop, "B", true, LIPS, [700.0, 1400.0, 0.7], 75.0),
    noisy(Manner::Stop, "T", false, RIDGE, [4600.0, 2600.0, 1.2], 105.0),
    noisy(Manner::Stop, "D", true, RIDGE, [4200.0, 2600.0, 0.9], 70.0),
    noisy(Manner::Stop, "K", false, VELUM, [2100.0, 900.0, 1.3], 110.0),
    noisy(Manner::Stop, "G", true, VELUM, [2000.0, 900.0, 0.9], 75.0),
    noisy(Manner::Affricate, "CH", false, PALATE, [3300.0, 1700.0, 1.0], 130.0),
    noisy(Manner::Affricate, "JH", true, PALATE, [3200.0, 1700.0, 0.6], 100.0),
    noisy(Manner::Breath, "HH", false, NEUTRAL, [1500.0, 2000.0, 0.0], 65.0),
    noisy(Manner::Silence, "SIL", false, NEUTRAL, [4000.0, 2000.0, 0.0], 220.0),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phones_differ_and_can_be_made() {
        for (i, phone) in PHONES.iter().enumerate() {
            assert!(PHONES[..i].iter().all(|other| other.name != phone.name));
            let rising = |f: &Formants| f[0] > 200.0 && f[0] < f[1] && f[1] < f[2] && f[2] < 3200.0;
            assert!(rising(&phone.start) && rising(&phone.end), "{phone:?}");
            assert!(phone.noise_hz < 9000.0 && phone.duration_ms >= 50.0, "{phone:?}");
            assert_eq!(phone.manner == Manner::Nasal, phone.nasal_zero_hz > 0.0);
        }
        assert_eq!(SILENCE.name, "SIL");
        assert_eq!(phone("XX"), None);
    }
}
