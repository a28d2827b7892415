//! How loud a frame is.

/// The energy of a frame: the L2 norm of its magnitude spectrum over all `n_fft / 2 + 1` bins, the measure that models
/// with an energy head are usually trained on. Linear in amplitude; 0 for silence.
///
/// [`LogMel::mel_energy_into`](crate::LogMel::mel_energy_into) gives it per mel frame at no extra transform, whatever the
/// mel bands are made of.
pub fn frame_energy(magnitudes: &[f32]) -> f32 {
    magnitudes.iter().map(|x| x * x).sum::<f32>().sqrt()
}

#[cfg(test)]
mod tests {
    use super::frame_energy;
    use crate::{Clip, FeatureSettings, LogMel, MelFrames};

    #[test]
    fn it_is_a_norm() {
        assert_eq!(frame_energy(&[3.0, 0.0, 4.0]), 5.0);
        assert_eq!(frame_energy(&[]), 0.0);
    }

    #[test]
    fn twice_the_amplitude_is_twice_the_energy_and_silence_is_none() {
        let mut log_mel = LogMel::new(&FeatureSettings::default()).unwrap();
        let mut energy_of = |amplitude: i16| {
            let samples = (0..4096).map(|i| if i % 50 < 25 { amplitude } else { -amplitude }).collect();
            let (mut mel, mut energy) = (MelFrames::default(), Vec::new());
            log_mel.mel_energy_into(&Clip { samples, rate_hz: 22_050 }, &mut mel, &mut energy).unwrap();
            assert_eq!(energy.len(), mel.num_frames());
            energy[8]
        };
        assert_eq!(energy_of(0), 0.0);
        let (soft, loud) = (energy_of(1000), energy_of(2000));
        assert!((loud / soft - 2.0).abs() < 1e-5);
    }
}
