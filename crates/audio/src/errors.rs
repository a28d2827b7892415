//! What can go wrong with a recording. A variant is a different thing to do next.

/// A recording could not be used as asked.
#[derive(Debug, thiserror::Error)]
pub enum AudioError {
    /// The file has no bytes: record or copy it again.
    #[error("the file is empty")]
    Empty,

    /// These bytes are no audio: the wrong file is here.
    #[error("not an audio file: expected wav, flac, ogg vorbis or mp3")]
    NotAudio,

    /// Audio, but of a kind that is not read: convert it.
    #[error("{what} cannot be read: convert the file to 16-bit wav or flac")]
    Unsupported {
        /// What is not read.
        what: String,
    },

    /// Good as far as it goes, but samples are missing: copy or download it again.
    #[error("the file is cut off: {got} samples were there{}", of_expected(*.expected))]
    Truncated {
        /// Samples per channel that could be read.
        got: u64,
        /// Samples the container promises, where it says.
        expected: Option<u64>,
    },

    /// Bytes inside are wrong: the file is damaged.
    #[error("the file is damaged: {detail}")]
    Corrupt {
        /// What the decoder met.
        detail: String,
    },

    /// A sound file without a single sample: leave it out.
    #[error("the file holds no samples")]
    ZeroLength,

    /// More samples than a clip may have: cut the recording into utterances.
    #[error("the recording is longer than {limit} samples: cut it into utterances")]
    TooLong {
        /// The most a clip may hold.
        limit: u64,
    },

    /// Too few samples for one frame with its padding: leave the clip out.
    #[error("the clip has {samples} samples: features need {needed} at least")]
    TooShort {
        /// What the clip has.
        samples: usize,
        /// What is needed.
        needed: usize,
    },

    /// The clip is at another rate than the features: resample it first.
    #[error("the clip is at {found_hz} Hz, the features are at {expected_hz} Hz: resample it first")]
    WrongRate {
        /// The clip's rate.
        found_hz: u32,
        /// The rate of the features.
        expected_hz: u32,
    },

    /// A filter between these rates would be larger than is sensible: convert the file to a usual rate.
    #[error("cannot resample from {from_hz} Hz to {to_hz} Hz: convert the file to a usual rate, such as 44100 Hz")]
    RatePair {
        /// The rate there is.
        from_hz: u32,
        /// The rate asked for.
        to_hz: u32,
    },

    /// Feature settings that contradict themselves: correct the setting that is named.
    #[error("feature settings: {what}")]
    Settings {
        /// Which, and what would be right.
        what: String,
    },

    /// The device said no: its error says what to do. No recording is at fault.
    #[error(transparent)]
    Device(#[from] tandem_device::DeviceError),

    /// The bytes could not be read or written; the recording may be good.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

fn of_expected(expected: Option<u64>) -> String {
    expected.map_or_else(String::new, |expected| format!(", {expected} were expected"))
}

#[cfg(test)]
mod tests {
    use super::AudioError;

    #[test]
    fn a_cut_file_says_how_much_was_there() {
        let known = AudioError::Truncated { got: 10, expected: Some(20) };
        let unknown = AudioError::Truncated { got: 10, expected: None };
        assert_eq!(known.to_string(), "the file is cut off: 10 samples were there, 20 were expected");
        assert_eq!(unknown.to_string(), "the file is cut off: 10 samples were there");
    }
}
