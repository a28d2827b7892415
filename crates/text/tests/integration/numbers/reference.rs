//! The reference tables.

use std::collections::BTreeMap;
use std::sync::LazyLock;

/// The lines of one language: kind, number as it is written, words.
pub(super) struct Reference {
    lines: BTreeMap<&'static str, BTreeMap<&'static str, String>>,
}

impl Reference {
    /// As num2words writes them, but in the style of Tandem, which says "one thousand one hundred five" where num2words
    /// says "one thousand, one hundred and five", and "nineteen oh five" where it writes "nineteen oh-five".
    pub(super) fn english() -> &'static Reference {
        static READ: LazyLock<Reference> = LazyLock::new(|| {
            let style = |words: &str| words.replace(" and ", " ").replace(", ", " ").replace("oh-", "oh ");
            Reference::read(include_str!("../../data/numbers_en.txt"), style)
        });
        &READ
    }

    /// As num2words writes them, but with a non-joiner in «سی‌ام», where persian-tools has a space and a vowel mark.
    pub(super) fn persian() -> &'static Reference {
        static READ: LazyLock<Reference> = LazyLock::new(|| {
            let style = |words: &str| words.replace(" ا\u{064F}م", "\u{200C}ام");
            Reference::read(include_str!("../../data/numbers_fa.txt"), style)
        });
        &READ
    }

    fn read(text: &'static str, style: impl Fn(&str) -> String) -> Reference {
        let mut lines: BTreeMap<_, BTreeMap<_, _>> = BTreeMap::new();
        for line in text.lines() {
            let [kind, number, words] = line.split('\t').collect::<Vec<_>>().try_into().expect("three columns");
            lines.entry(kind).or_default().insert(number, style(words));
        }
        Reference { lines }
    }

    /// Every number of this kind with its words. Fails if there are fewer than `least` of them.
    pub(super) fn all(&self, kind: &str, least: usize) -> impl Iterator<Item = (&'static str, &str)> {
        let lines = &self.lines[kind];
        assert!(lines.len() >= least, "{} lines of {kind}", lines.len());
        lines.iter().map(|(number, words)| (*number, words.as_str()))
    }

    /// The same for integers.
    pub(super) fn integers(&self, kind: &str, least: usize) -> impl Iterator<Item = (u64, &str)> {
        self.all(kind, least).map(|(number, words)| (number.parse().expect("an integer"), words))
    }

    pub(super) fn cardinal(&self, n: u64) -> &str {
        &self.lines["cardinal"][n.to_string().as_str()]
    }

    pub(super) fn ordinal(&self, n: u64) -> &str {
        &self.lines["ordinal"][n.to_string().as_str()]
    }

    /// The words of each digit.
    pub(super) fn digits(&self, written: &str) -> String {
        let digits = written.chars().map(|c| self.cardinal(u64::from(c.to_digit(10).expect("a digit"))));
        digits.collect::<Vec<_>>().join(" ")
    }
}

/// 1234567 as "1,234,567", with any separator.
pub(super) fn grouped(n: u64, separator: char) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (at, c) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(separator);
        }
        out.push(c);
    }
    out
}
