//! The pipeline's audio format: one channel of 16-bit samples.

/// What one step of an `i16` is worth: full scale is -1.0 to just under 1.0.
pub(crate) const FULL_SCALE: f64 = 32_768.0;

/// Mono sound, 16 bits a sample, at `rate_hz`.
///
/// Made to be reused: whoever fills one clears it first and keeps its memory, so that after the longest recording no
/// more is allocated. Everything after decoding starts from these rounded samples, on any device, which is why
/// features can be compared to the digit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Clip {
    /// The samples, in time order.
    pub samples: Vec<i16>,
    /// Samples per second.
    pub rate_hz: u32,
}

impl Clip {
    /// Forgets the sound, keeps the memory.
    pub fn clear(&mut self) {
        self.samples.clear();
        self.rate_hz = 0;
    }

    /// How long it sounds, in seconds; 0 for a clip without a rate.
    pub fn seconds(&self) -> f64 {
        if self.rate_hz == 0 { 0.0 } else { self.samples.len() as f64 / f64::from(self.rate_hz) }
    }

    /// Replaces the sound by `wave` (full scale ±1) at `rate_hz`, rounded by [`round_to_i16`]'s rule.
    pub(crate) fn fill_from_wave(&mut self, wave: &[f32], rate_hz: u32) {
        self.clear();
        self.rate_hz = rate_hz;
        self.samples.extend(wave.iter().map(|&x| round_to_i16(f64::from(x) * FULL_SCALE)));
    }
}

/// The one rounding rule of the pipeline, from a sample in units of an `i16` step: to the nearest step, halves to the
/// even one (no bias up or down), saturating at both ends. Not a number becomes 0; decoding refuses it before.
#[inline]
pub(crate) fn round_to_i16(steps: f64) -> i16 {
    // From here on f64 has no fractions: adding it rounds, halves to even. `round_ties_even` is a call per sample on
    // processors as old as the ones we build for.
    const WHOLE: f64 = 1.5 * (1_u64 << 52) as f64;
    let steps = steps.clamp(f64::from(i16::MIN), f64::from(i16::MAX));
    (steps + WHOLE - WHOLE) as i16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_go_to_the_even_step_and_the_ends_saturate() {
        let check = |steps: f64, expected: i16| assert_eq!(round_to_i16(steps), expected, "{steps}");
        check(0.5, 0);
        check(1.5, 2);
        check(2.5, 2);
        check(-0.5, 0);
        check(-1.5, -2);
        check(0.500_001, 1);
        check(32_767.4, 32_767);
        check(32_768.0, i16::MAX);
        check(1e300, i16::MAX);
        check(-32_768.5, i16::MIN);
        check(f64::NEG_INFINITY, i16::MIN);
        check(f64::NAN, 0);
    }

    #[test]
    fn a_clip_keeps_its_memory() {
        let mut clip = Clip { samples: vec![1; 1000], rate_hz: 22_050 };
        let memory = clip.samples.as_ptr();
        clip.fill_from_wave(&[0.0, 1.0, -1.0, 0.5], 8_000);
        assert_eq!((clip.samples.as_slice(), clip.rate_hz), ([0, 32_767, -32_768, 16_384].as_slice(), 8_000));
        assert_eq!(clip.samples.as_ptr(), memory);
        assert_eq!(clip.seconds(), 4.0 / 8_000.0);
        clip.clear();
        assert_eq!(clip.seconds(), 0.0);
    }
}
