//! The choices of log-mel frames that are no numbers: arithmetic, framing, spectrum, mel scale and norm, logarithm.

use serde::{Deserialize, Serialize};

/// `ALL`, `name` and `from_name` of an enum of settings. Names are those of serde.
macro_rules! named {
    ($type:ident { $($variant:ident = $name:literal),+ }) => {
        impl $type {
            /// All of them, in the order of their declaration.
            pub const ALL: [$type; [$($name),+].len()] = [$($type::$variant),+];

            /// Its name in flags, files and messages.
            pub fn name(self) -> &'static str {
                match self {
                    $($type::$variant => $name),+
                }
            }

            /// The one with this name.
            pub fn from_name(name: &str) -> Option<$type> {
                $type::ALL.into_iter().find(|one| one.name() == name)
            }
        }
    };
}
pub(crate) use named;

/// The arithmetic of the Fourier transform of log-mel frames. Both keep the same error bounds; their results differ in the
/// last bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Arithmetic {
    /// 64-bit floating point.
    #[default]
    F64,
    /// Pairs of 32-bit floating-point numbers: about ten operations for each of f64. Faster on cards whose f64 rate is 1/32
    /// of their f32 rate or less. Supports the default settings with other rates, bands, mel scales and norms, and no others.
    TwoFloat,
}
named!(Arithmetic { F64 = "f64", TwoFloat = "two-float" });

/// Which samples a frame covers. Both ends of a clip get reflect padding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Framing {
    /// Padding of `(n_fft - hop) / 2`: frame `t` is centred on the middle of the samples `t * hop .. (t + 1) * hop`, and `n`
    /// samples give `n / hop` frames, rounded down. HiFi-GAN has it.
    #[default]
    Hop,
    /// Padding of `n_fft / 2`: frame `t` is centred on sample `t * hop`, and `n` samples give `n / hop + 1` frames.
    /// `torch.stft` with `center=True` and librosa have it.
    Centered,
    /// The same without the last frame: `n / hop` frames. Whisper has it.
    CenteredWithoutLast,
}
named!(Framing { Hop = "hop", Centered = "centered", CenteredWithoutLast = "centered-without-last" });

/// What the mel filterbank is applied to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Spectrum {
    /// The magnitude of each bin.
    #[default]
    Magnitude,
    /// Its square.
    Power,
}
named!(Spectrum { Magnitude = "magnitude", Power = "power" });

/// The scale on which mel bands are equally wide.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MelScale {
    /// Linear to 1 kHz, logarithmic above: librosa's default.
    #[default]
    Slaney,
    /// `2595 log10(1 + hz / 700)`: torchaudio's default.
    Htk,
}
named!(MelScale { Slaney = "slaney", Htk = "htk" });

/// The height of the triangles of the mel filterbank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MelNorm {
    /// Every triangle has the same area: librosa's default.
    #[default]
    Slaney,
    /// Every triangle has height 1: torchaudio's default.
    None,
}
named!(MelNorm { Slaney = "slaney", None = "none" });

/// The base of the logarithm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum LogBase {
    /// The natural logarithm.
    #[default]
    #[serde(rename = "e")]
    E,
    /// The decimal logarithm.
    #[serde(rename = "10")]
    Ten,
}
named!(LogBase { E = "e", Ten = "10" });

impl LogBase {
    /// The logarithm of a positive number.
    pub(crate) fn of(self, x: f32) -> f32 {
        match self {
            LogBase::E => x.ln(),
            LogBase::Ten => x.log10(),
        }
    }

    /// The number that has this logarithm.
    pub(crate) fn inverse(self, log: f32) -> f32 {
        match self {
            LogBase::E => log.exp(),
            LogBase::Ten => 10.0_f32.powf(log),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_serde_and_lead_back() {
        fn check<T: Serialize + PartialEq + std::fmt::Debug + Copy>(
            all: &[T],
            name: impl Fn(T) -> &'static str,
            from_name: impl Fn(&str) -> Option<T>,
        ) {
            for (i, &one) in all.iter().enumerate() {
                assert_eq!(serde_json::to_value(one).unwrap(), name(one));
                assert_eq!(from_name(name(one)), Some(one));
                assert!(!all[..i].contains(&one));
            }
            assert_eq!(from_name("other"), None);
        }
        check(&Arithmetic::ALL, Arithmetic::name, Arithmetic::from_name);
        check(&Framing::ALL, Framing::name, Framing::from_name);
        check(&Spectrum::ALL, Spectrum::name, Spectrum::from_name);
        check(&MelScale::ALL, MelScale::name, MelScale::from_name);
        check(&MelNorm::ALL, MelNorm::name, MelNorm::from_name);
        check(&LogBase::ALL, LogBase::name, LogBase::from_name);
    }
}
