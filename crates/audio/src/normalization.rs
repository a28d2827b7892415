//! The steps after the logarithm: the lower limit that a clip's maximum sets, a shift and a scale. In f32, in the order in
//! which the kernels compute them.

use crate::FeatureSettings;

/// The last steps of log-mel frames.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Normalization {
    /// The logarithm of the floor.
    pub(crate) log_floor: f32,
    top_range: Option<f32>,
    shift: f32,
    scale: f32,
}

impl Normalization {
    pub(crate) fn of(settings: &FeatureSettings) -> Normalization {
        Normalization {
            log_floor: settings.log.of(settings.floor as f32),
            top_range: settings.top_range.map(|range| range as f32),
            shift: settings.shift as f32,
            scale: settings.scale as f32,
        }
    }

    /// Whether it changes nothing.
    pub(crate) fn is_identity(&self) -> bool {
        self.top_range.is_none() && self.shift == 0.0 && self.scale == 1.0
    }

    /// Whether it needs all frames of a clip at once.
    pub(crate) fn needs_maximum(&self) -> bool {
        self.top_range.is_some()
    }

    /// The value of padding frames in a clip with this maximum of its logarithms.
    pub(crate) fn padding(&self, maximum: f32) -> f32 {
        self.value(self.log_floor, self.lowest(maximum))
    }

    /// Replaces the logarithms of a clip's frames. Returns the value of padding frames.
    pub(crate) fn apply(&self, logs: &mut [f32]) -> f32 {
        let maximum = logs.iter().copied().fold(self.log_floor, f32::max);
        if !self.is_identity() {
            let lowest = self.lowest(maximum);
            logs.iter_mut().for_each(|log| *log = self.value(*log, lowest));
        }
        self.padding(maximum)
    }

    /// The logarithm that has become `value`, apart from the lower limit.
    pub(crate) fn undo(&self, value: f32) -> f32 {
        value / self.scale - self.shift
    }

    fn lowest(&self, maximum: f32) -> f32 {
        self.top_range.map_or(f32::NEG_INFINITY, |range| maximum - range)
    }

    fn value(&self, log: f32, lowest: f32) -> f32 {
        (log.max(lowest) + self.shift) * self.scale
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FeaturePreset;

    #[test]
    fn whispers_padding_follows_the_clips_maximum() {
        let whisper = Normalization::of(&FeaturePreset::Whisper.settings());
        let mut loud = [1.0, -3.0, -10.0];
        assert_eq!((whisper.apply(&mut loud), loud), (-0.75, [1.25, 0.25, -0.75]));
        let mut soft = [-9.0, -10.0];
        assert_eq!((whisper.apply(&mut soft), soft), (-1.5, [-1.25, -1.5]));
        assert_eq!(whisper.apply(&mut []), -1.5);
        assert_eq!(whisper.undo(1.25), 1.0);
    }

    #[test]
    fn the_default_changes_no_bit() {
        let default = Normalization::of(&FeatureSettings::default());
        let mut logs = [-0.0_f32, 0.0, f32::MIN_POSITIVE / 2.0, f32::NAN, -11.5];
        let before = logs.map(f32::to_bits);
        assert_eq!(default.apply(&mut logs).to_bits(), 1e-5_f32.ln().to_bits());
        assert_eq!(logs.map(f32::to_bits), before);
        assert!(default.is_identity() && !default.needs_maximum());
    }
}
