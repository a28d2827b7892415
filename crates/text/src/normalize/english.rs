//! English: numbers, abbreviations, acronyms and symbols written out, in lower case.
//!
//! What comes out consists of `a` to `z`, apostrophes, hyphens inside words, spaces and the marks `. , ; : ? ! — … " ( )`,
//! plus whatever no rule knows. The text is read once from left to right; at each place the first rule that fits takes
//! its piece.

mod abbreviations;
mod cardinal;
mod letters;
mod money;
mod numbers;
mod roman;
mod symbols;
mod time;
mod units;

use super::unicode::{clean, squeeze};

/// `text` as it is spoken.
pub fn normalize(text: &str) -> String {
    let chars = symbols::unify(&clean(text));
    let mut reader = Reader { text: &chars, at: 0, before: String::new(), out: String::new(), gap: false };
    while reader.at < chars.len() {
        reader.step();
    }
    tidy(&reader.out)
}

struct Reader<'a> {
    text: &'a [char],
    at: usize,
    /// The word just read, as it was written.
    before: String,
    out: String,
    /// Whether a letter that comes next belongs to another word.
    gap: bool,
}

impl Reader<'_> {
    fn step(&mut self) {
        let rest = &self.text[self.at..];
        let c = rest[0];
        if c.is_ascii_alphabetic() {
            self.word();
        } else if let Some((len, said)) = self.number(rest) {
            self.say(&said, len);
        } else if let Some(said) = symbols::said(c, self.previous(), rest.get(1).copied()) {
            self.say(said, 1);
        } else {
            self.keep(c);
        }
    }

    fn previous(&self) -> Option<char> {
        self.at.checked_sub(1).map(|at| self.text[at])
    }

    /// A number with the sign before it.
    fn number(&self, rest: &[char]) -> Option<(usize, String)> {
        let free = !self.previous().is_some_and(|c| c.is_alphanumeric() || c == '.');
        let digit = |at: usize| rest.get(at).is_some_and(char::is_ascii_digit);
        match rest[0] {
            c if c.is_ascii_digit() => numbers::read(rest),
            '$' | '£' | '€' | '¥' => numbers::read(rest),
            '.' | '(' | '+' if free && digit(1) => {
                // A bracket or a plus sign is part of a telephone number only.
                let reading = numbers::read(rest);
                if reading.is_none() && rest[0] == '+' {
                    return numbers::read(&rest[1..]).map(|(len, said)| (len + 1, format!("plus {said}")));
                }
                reading
            }
            '-' if free && (digit(1) || matches!(rest.get(1), Some('$' | '£' | '€' | '¥' | '.'))) => {
                numbers::read(&rest[1..]).map(|(len, said)| (len + 1, format!("minus {said}")))
            }
            '#' if digit(1) => numbers::read(&rest[1..]).map(|(len, said)| (len + 1, format!("number {said}"))),
            _ => None,
        }
    }

    fn word(&mut self) {
        let rest = &self.text[self.at..];
        let len = word_len(rest);
        let word = &rest[..len];
        let dotted_len = dotted_len(rest);
        let near_digit =
            self.previous().is_some_and(|c| c.is_ascii_digit()) || rest.get(len).is_some_and(char::is_ascii_digit);
        let longest = dotted_len.max(len);
        let stop = longest - usize::from(rest[longest - 1] == '.');

        let found = if let Some((said, more)) = abbreviations::abbreviation(&rest[..stop], &rest[stop..]) {
            Some((said.to_owned(), stop + more))
        } else if dotted_len > 0 {
            // "U.S.A.": the last stop is the sentence's as well if the sentence ends there.
            let ends = rest[dotted_len - 1] == '.' && abbreviations::ends_sentence(&rest[dotted_len..]);
            let more = rest[dotted_len..].iter().all(|c| *c == ' ') || rest.len() == dotted_len;
            Some((letters::spell(&rest[..dotted_len]), dotted_len - usize::from(ends && more)))
        } else if is_initial(rest) {
            Some((letters::spell(word), 2))
        } else if let Some(said) = roman::roman(&self.before, word) {
            Some((said, len))
        } else if near_digit && len <= 3 && word.iter().all(char::is_ascii_uppercase) {
            Some((letters::spell(word), len))
        } else {
            letters::acronym(word).map(|said| (said, len))
        };
        self.before = word.iter().collect();
        match found {
            Some((said, len)) => self.say(&said, len),
            None => word.iter().for_each(|c| self.keep(*c)),
        }
    }

    /// Takes `len` characters and writes `words` in their place, apart from what stands on either side.
    fn say(&mut self, words: &str, len: usize) {
        if self.out.ends_with(|c: char| c.is_alphanumeric() || c == '\'') {
            self.out.push(' ');
        }
        self.out.push_str(words);
        self.gap = true;
        self.at += len;
    }

    /// Takes one character as it is.
    fn keep(&mut self, c: char) {
        if self.gap && c.is_alphanumeric() {
            self.out.push(' ');
        }
        self.gap = false;
        self.out.extend(c.to_lowercase());
        self.at += 1;
    }
}

/// Letters, and apostrophes between letters.
fn word_len(rest: &[char]) -> usize {
    let letter = |at: usize| rest.get(at).is_some_and(char::is_ascii_alphabetic);
    let mut len = 1;
    while letter(len) || (rest.get(len) == Some(&'\'') && letter(len + 1)) {
        len += 1;
    }
    len
}

/// The length of single letters with a stop after each, at least two of them: "e.g.", "U.S.A.", or with two letters in a
/// part: "Ph.D.". Nothing of that kind: 0. "e.g" without its last stop counts as well.
fn dotted_len(rest: &[char]) -> usize {
    let letter = |at: usize| rest.get(at).is_some_and(char::is_ascii_alphabetic);
    if rest.len() > 4 && rest[..4] == ['P', 'h', '.', 'D'] && !letter(4) {
        return 4 + usize::from(rest[4] == '.');
    }
    let mut len = 0;
    while letter(len) && !letter(len + 1) && rest.get(len + 1) == Some(&'.') {
        len += 2;
    }
    // "U.S.A" without the last stop.
    if len >= 2 && letter(len) && !letter(len + 1) && !rest.get(len + 1).is_some_and(|c| c.is_alphanumeric()) {
        len += 1;
    }
    if len >= 3 { len } else { 0 }
}

/// "J. Smith": a capital, a stop, a space, another capital. Not for I, which ends sentences.
fn is_initial(rest: &[char]) -> bool {
    rest[0].is_ascii_uppercase()
        && rest[0] != 'I'
        && rest.get(1) == Some(&'.')
        && rest.get(2) == Some(&' ')
        && rest.get(3).is_some_and(|c| c.is_uppercase())
}

/// Spaces squeezed, none before a mark that closes.
fn tidy(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in squeeze(text.chars()).chars() {
        if matches!(c, '.' | ',' | ';' | ':' | '?' | '!' | '…' | ')') && out.ends_with(' ') {
            out.pop();
        }
        out.push(c);
    }
    out
}

#[cfg(test)]
mod tests;
