//! Which rows of a corpus do not train, and why: one list of reasons for `corpus check`, `plan` and `train`.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tandem_corpus::ProblemKind;

/// Rows that do not train, by the first reason that applies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// Their recording does not exist.
    pub missing_audio: usize,
    /// Their recording cannot be read.
    pub undecodable_audio: usize,
    /// They are a part of a recording that is shorter.
    pub bad_number: usize,
    /// Their length is unknown, and nobody tried to measure it.
    pub unmeasured: usize,
    /// Nothing in their text can be spoken.
    pub empty_text: usize,
    /// Their text has characters outside the symbol table.
    pub unknown_symbol: usize,
    /// The program's own tokenizer refused their text.
    pub refused_text: usize,
    /// They are shorter than a frame, or have fewer frames than symbols.
    pub too_short: usize,
    /// Their recording or their text is over the limit.
    pub too_long: usize,
    /// Frames of the row that the longest of those needs; 0 without any.
    pub longest_frames: u32,
    /// Symbols of the longest text of those; 0 without any.
    pub longest_tokens: u32,
}

impl LeftOut {
    /// All of them.
    pub fn total(&self) -> usize {
        self.no_length() + self.bad_text() + self.too_short + self.too_long
    }

    /// Those whose length is unknown, for any reason.
    pub fn no_length(&self) -> usize {
        self.missing_audio + self.undecodable_audio + self.bad_number + self.unmeasured
    }

    /// Those whose text is empty, has unknown characters or was refused.
    pub fn bad_text(&self) -> usize {
        self.empty_text + self.unknown_symbol + self.refused_text
    }

    /// Counts a row without a length. `why` is what the measurement found.
    pub(crate) fn count_no_length(&mut self, why: Option<ProblemKind>) {
        let count = match why {
            Some(ProblemKind::MissingAudio) => &mut self.missing_audio,
            Some(ProblemKind::BadNumber) => &mut self.bad_number,
            Some(_) => &mut self.undecodable_audio,
            None => &mut self.unmeasured,
        };
        *count += 1;
    }

    /// The counts for programs.
    pub fn json(&self) -> Value {
        json!({
            "too_long": self.too_long,
            "too_short": self.too_short,
            "bad_text": self.bad_text(),
            "empty_text": self.empty_text,
            "unknown_symbol": self.unknown_symbol,
            "refused_text": self.refused_text,
            "no_length": self.no_length(),
            "missing_audio": self.missing_audio,
            "undecodable_audio": self.undecodable_audio,
            "bad_number": self.bad_number,
            "longest_frames": self.longest_frames,
            "longest_tokens": self.longest_tokens,
        })
    }

    /// Why utterances are skipped, with their number: an entry for each reason. `rejected` are the rows of the lists that are
    /// no utterances, by reason; `max_frames` and `max_tokens` are the limits in force.
    pub fn reasons(&self, rejected: &BTreeMap<&'static str, usize>, max_frames: u64, max_tokens: u64) -> Vec<String> {
        let lengths = [
            (self.too_long, format!("over {max_frames} frames or {max_tokens} tokens")),
            (self.too_short, "too short for one frame or for their text".to_owned()),
            (self.unmeasured, "of unknown length".to_owned()),
            (self.refused_text, "refused by the tokenizer".to_owned()),
        ];
        // A row of a list and a row that turns out to be faulty later have the same words for the same fault.
        let mut faults = rejected.clone();
        for (kind, count) in [
            (ProblemKind::MissingAudio, self.missing_audio),
            (ProblemKind::UndecodableAudio, self.undecodable_audio),
            (ProblemKind::BadNumber, self.bad_number),
            (ProblemKind::EmptyText, self.empty_text),
            (ProblemKind::UnknownSymbol, self.unknown_symbol),
        ] {
            *faults.entry(kind.words()).or_default() += count;
        }
        let lengths = lengths.into_iter().filter(|(count, _)| *count > 0).map(|(count, why)| format!("{count} {why}"));
        let faults = faults.into_iter().filter(|(_, count)| *count > 0);
        lengths.chain(faults.map(|(why, count)| format!("{count} rejected ({why})"))).collect()
    }
}

/// The rows of a corpus that a run would use, in words: `421 utterances, 0.39 hours; 7 for validation, 3 excluded`.
pub fn show_usage(num_utterances: usize, seconds: f64, num_validation: usize, num_excluded: usize) -> String {
    let excluded = match num_excluded {
        0 => String::new(),
        count => format!(", {count} excluded"),
    };
    let (utterances, hours) = (show_utterances(num_utterances), show_hours(seconds));
    format!("{utterances}, {hours}; {num_validation} for validation{excluded}")
}

/// `1 utterance`, `2 utterances`.
pub fn show_utterances(count: usize) -> String {
    format!("{count} utterance{}", if count == 1 { "" } else { "s" })
}

/// A duration for people: `0.39 hours`. Never negative: no audio at all is `0.00 hours`.
pub fn show_hours(seconds: f64) -> String {
    // `max` alone may keep the sign of a zero.
    format!("{:.2} hours", seconds.max(0.0) / 3600.0 + 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_audio_has_no_sign() {
        for (seconds, shown) in
            [(0.0, "0.00 hours"), (-0.0, "0.00 hours"), (f64::NAN, "0.00 hours"), (5400.0, "1.50 hours")]
        {
            assert_eq!(show_hours(seconds), shown);
        }
        assert_eq!(show_usage(1, -0.0, 0, 0), "1 utterance, 0.00 hours; 0 for validation");
        assert_eq!(show_usage(2, 36.0, 1, 3), "2 utterances, 0.01 hours; 1 for validation, 3 excluded");
    }

    #[test]
    fn a_fault_has_one_name_wherever_it_is_found() {
        let rejected = BTreeMap::from([("duplicate id", 1), ("missing audio", 2)]);
        let mut left_out = LeftOut { too_long: 1, unknown_symbol: 4, ..LeftOut::default() };
        left_out.count_no_length(Some(ProblemKind::MissingAudio));
        assert_eq!(
            left_out.reasons(&rejected, 900, 200),
            [
                "1 over 900 frames or 200 tokens",
                "1 rejected (duplicate id)",
                "3 rejected (missing audio)",
                "4 rejected (unknown symbol)"
            ]
        );
        assert_eq!((left_out.total(), left_out.no_length(), left_out.bad_text()), (6, 1, 4));
        let json = left_out.json();
        assert_eq!((&json["no_length"], &json["missing_audio"], &json["bad_text"]), (&json!(1), &json!(1), &json!(4)));
    }
}
