//! Everything written with digits. Each rule looks at the text from a digit (or its sign) on and says how many characters
//! it takes and how they are spoken; [`RULES`] is the order in which they are asked.
//!
//! A rule looks at a bounded piece of the text, or at the digits it will take: reading stays linear.

use super::cardinal::{LARGEST, cardinal, digits, ordinal, plural, year};
use super::money::money;
use super::time::{date, time};
use super::units::unit;

/// What a rule takes, and what it says.
pub(super) type Reading = (usize, String);
type Rule = fn(&[char]) -> Option<Reading>;

/// Asked in this order; the last one takes whatever starts with a digit.
const RULES: [Rule; 13] =
    [money, date, time, idiom, phone, chain, range, span, decade, nth, fraction, long_digits, quantity];

/// How the number at the beginning of `text` is spoken; nothing if none is there.
pub(crate) fn read(text: &[char]) -> Option<Reading> {
    RULES.iter().find_map(|rule| rule(text))
}

/// Digits with their thousands separators and decimals.
pub(super) struct Number {
    pub(super) whole: String,
    pub(super) decimals: Option<String>,
    pub(super) len: usize,
    grouped: bool,
}

impl Number {
    /// The number at the beginning of `text`. ".5" is one, "5." is 5.
    pub(super) fn parse(text: &[char]) -> Option<Number> {
        let mut len = run(text);
        let mut whole: String = text[..len].iter().collect();
        let mut grouped = false;
        if (1..=3).contains(&len) {
            while text.get(len) == Some(&',') && run_is(&text[len + 1..], 3) {
                whole.extend(&text[len + 1..len + 4]);
                len += 4;
                grouped = true;
            }
        }
        let mut decimals = None;
        if text.get(len) == Some(&'.') {
            let after = run(&text[len + 1..]);
            if after > 0 {
                decimals = Some(text[len + 1..len + 1 + after].iter().collect());
                len += 1 + after;
            }
        }
        if len == 0 { None } else { Some(Number { whole, decimals, len, grouped }) }
    }

    /// As an integer, if it is one that is said as such.
    pub(super) fn integer(&self) -> Option<u64> {
        if self.decimals.is_some() { None } else { integer(&self.whole) }
    }

    pub(super) fn is_one(&self) -> bool {
        self.decimals.is_none() && self.whole == "1"
    }

    pub(super) fn spoken(&self) -> String {
        let whole = match integer(&self.whole) {
            Some(n) => cardinal(n),
            None => digits(self.whole.chars()),
        };
        match &self.decimals {
            None => whole,
            Some(decimals) if whole.is_empty() => format!("point {}", digits(decimals.chars())),
            Some(decimals) => format!("{whole} point {}", digits(decimals.chars())),
        }
    }
}

/// Nothing when it has zeros in front or is too long to be said as a number.
pub(super) fn integer(text: &str) -> Option<u64> {
    if text.len() > 1 && text.starts_with('0') {
        return None;
    }
    text.parse().ok().filter(|n| *n <= LARGEST)
}

/// How many digits `text` starts with.
fn run(text: &[char]) -> usize {
    text.iter().take_while(|c| c.is_ascii_digit()).count()
}

/// Whether `text` starts with exactly so many digits. Looks no further.
pub(super) fn run_is(text: &[char], len: usize) -> bool {
    run(&text[..text.len().min(len + 1)]) == len
}

/// The number of one to `longest` digits that `text` starts with, and how many there are.
pub(super) fn short(text: &[char], longest: usize) -> Option<(u64, usize)> {
    let len = run(&text[..text.len().min(longest + 1)]);
    if len == 0 || len > longest {
        return None;
    }
    text[..len].iter().collect::<String>().parse().ok().map(|n| (n, len))
}

/// Whether `text` starts with `word` and the word ends there.
pub(super) fn starts_with_word(text: &[char], word: &str) -> bool {
    let len = word.chars().count();
    text.len() >= len
        && word.chars().eq(text[..len].iter().copied())
        && !text.get(len).is_some_and(|c| c.is_alphanumeric())
}

/// Read in a way of their own.
const IDIOMS: [(&str, &str); 3] = [("24/7", "twenty-four seven"), ("9/11", "nine eleven"), ("50/50", "fifty fifty")];

fn idiom(text: &[char]) -> Option<Reading> {
    let fits = |written: &str| starts_with_word(text, written) && text.get(written.len()) != Some(&'/');
    IDIOMS.iter().find(|(written, _)| fits(written)).map(|(written, said)| (written.len(), (*said).to_owned()))
}

/// "555-1234", "(555) 123-4567", "+1-800-555-0199": read digit by digit, with pauses.
fn phone(text: &[char]) -> Option<Reading> {
    const MOST_GROUPS: usize = 5;
    let mut len = usize::from(text.first() == Some(&'+'));
    let mut groups: Vec<&[char]> = Vec::new();
    loop {
        let (open, close) = (text.get(len) == Some(&'('), text.get(len + 4) == Some(&')'));
        let start = len + usize::from(open);
        let (_, digits) = short(&text[start..], 4)?;
        if open && (digits != 3 || !close) {
            return None;
        }
        groups.push(&text[start..start + digits]);
        len = start + digits + usize::from(open);
        let separator = match text.get(len) {
            Some('-' | '.') => 1,
            Some(' ') if open || text.first() == Some(&'+') => 1,
            _ => 0,
        };
        let goes_on = text.get(len + separator).is_some_and(|c| c.is_ascii_digit() || *c == '(');
        if separator == 0 || !goes_on || groups.len() == MOST_GROUPS {
            break;
        }
        len += separator;
    }
    if text.get(len).is_some_and(|c| c.is_ascii_alphanumeric()) {
        return None;
    }
    let sizes: Vec<usize> = groups.iter().map(|group| group.len()).collect();
    let is_phone_number = matches!(sizes.as_slice(), [3, 4] | [3, 3, 4] | [1, 3, 3, 4])
        || (text.first() == Some(&'+') && sizes.len() > 2);
    let spoken = || groups.iter().map(|group| digits(group.iter().copied())).collect::<Vec<_>>().join(", ");
    // "555.1234" is a decimal.
    let dotted = sizes == [3, 4] && text.get(3) == Some(&'.');
    (is_phone_number && !dotted).then(|| (len, spoken()))
}

/// "1-2-3", "12-25-2024", "123-45-6789": three numbers or more. Small ones and years are said as numbers, as long as all of
/// them are; else it is a code, digit by digit.
fn chain(text: &[char]) -> Option<Reading> {
    let mut len = run(text);
    let mut parts = vec![&text[..len]];
    while is_dash(text.get(len)) && text.get(len + 1).is_some_and(char::is_ascii_digit) {
        let digits = run(&text[len + 1..]);
        parts.push(&text[len + 1..len + 1 + digits]);
        len += 1 + digits;
    }
    if parts.len() < 3 {
        return None;
    }
    let number = |part: &&[char]| {
        let n = integer(&part.iter().collect::<String>())?;
        if n < 100 { Some(cardinal(n)) } else { year(n) }
    };
    let code = || parts.iter().map(|part| digits(part.iter().copied())).collect();
    let said: Vec<String> = parts.iter().map(number).collect::<Option<_>>().unwrap_or_else(code);
    Some((len, said.join(", ")))
}

/// "1990s", "90s", "1900s".
fn decade(text: &[char]) -> Option<Reading> {
    let (n, len) = short(text, 4)?;
    let apostrophe = usize::from(text.get(len) == Some(&'\''));
    if !starts_with_word(&text[len + apostrophe..], "s") || n % 10 != 0 || !matches!(len, 2 | 4) {
        return None;
    }
    let said = if len == 2 { cardinal(n) } else { year(n).unwrap_or(cardinal(n)) };
    Some((len + apostrophe + 1, plural(&said)))
}

/// "1st", "22nd", "10,000th".
fn nth(text: &[char]) -> Option<Reading> {
    let number = Number::parse(text)?;
    let n = number.integer()?;
    let suffix = match (n % 10, n % 100) {
        (_, 11..=13) => "th",
        (1, _) => "st",
        (2, _) => "nd",
        (3, _) => "rd",
        _ => "th",
    };
    let lower: Vec<char> = text[number.len..].iter().take(3).map(char::to_ascii_lowercase).collect();
    starts_with_word(&lower, suffix).then(|| (number.len + 2, ordinal(n)))
}

pub(super) fn is_dash(c: Option<&char>) -> bool {
    matches!(c, Some('-' | '—'))
}

/// Two readings with a dash between them, by these two rules: "… to …". Longer chains are nobody's range.
pub(super) fn between(text: &[char], first: Rule, second: Rule) -> Option<Reading> {
    let (len, from) = first(text)?;
    let rest = text.get(len + 1..).filter(|_| is_dash(text.get(len)))?;
    let (to_len, to) = second(rest)?;
    if goes_on(&rest[to_len..]) { None } else { Some((len + 1 + to_len, format!("{from} to {to}"))) }
}

/// Whether a number that ends before `rest` is only a part of what is written there: "20" of "20,000", "20.5" or "20-30".
pub(super) fn goes_on(rest: &[char]) -> bool {
    match rest.first() {
        Some(',') => run_is(&rest[1..], 3),
        Some('-' | '—' | '.' | '/' | ':') => rest.get(1).is_some_and(char::is_ascii_digit),
        _ => false,
    }
}

/// "10-20", "1914-1918".
fn range(text: &[char]) -> Option<Reading> {
    let (from, len) = short(text, 4)?;
    let (to, to_len) = short(text.get(len + 1..)?, 4).filter(|_| is_dash(text.get(len)))?;
    let end = len + 1 + to_len;
    let word = text.get(end).is_some_and(|c| c.is_alphabetic() || matches!(c, '-' | '—'))
        && unit(&text[end..], false).is_none();
    let zeros = [&text[..len], &text[len + 1..end]].iter().any(|part| part.len() > 1 && part[0] == '0');
    if word || zeros || goes_on(&text[end..]) {
        return None;
    }
    let years = len == 4 && (to_len == 4 || to_len == 2);
    let said = |n: u64| year(n).filter(|_| years).unwrap_or_else(|| cardinal(n));
    let (unit_len, name) = unit(&text[end..], false).unwrap_or((0, ""));
    Some((end + unit_len, format!("{} to {} {name}", said(from), said(to)).trim_end().to_owned()))
}

/// "1.5-2.5 kg", "5%-10%", "10,000-20,000", "1/2-3/4", "1st-3rd", "1980s-1990s". Two plain integers are for [`range`].
fn span(text: &[char]) -> Option<Reading> {
    let end = |text: &[char]| fraction(text).or_else(|| measure(text));
    let is_plain = |text: &[char]| end(text).is_none_or(|(len, _)| len == run(text));
    let plain = || end(text).is_none_or(|(len, _)| is_plain(text) && text.get(len + 1..).is_none_or(is_plain));
    let alike = between(text, decade, decade).or_else(|| between(text, nth, nth));
    alike.or_else(|| if plain() { None } else { between(text, end, end) })
}

/// "1/2", "2 3/4", "2-3/4", with a unit. A second slash makes it something else.
fn fraction(text: &[char]) -> Option<Reading> {
    let (first, first_len) = short(text, 3)?;
    let mixed = match text.get(first_len) {
        Some(' ') => simple_fraction(&text[first_len + 1..]),
        // "1-3/2" is a range.
        Some('-') => simple_fraction(&text[first_len + 1..]).filter(|part| part.top < part.bottom),
        _ => None,
    };
    if let Some(part) = mixed {
        let len = first_len + 1 + part.len;
        let said = format!("{} and {}", cardinal(first), part.after_and());
        return Some(match unit(&text[len..], false) {
            Some((unit_len, name)) => (len + unit_len, format!("{said} {name}")),
            None => (len, said),
        });
    }
    let part = simple_fraction(text)?;
    let said = format!("{} {}", cardinal(part.top), part.name());
    Some(match unit(&text[part.len..], true) {
        Some((unit_len, "percent")) => (part.len + unit_len, format!("{said} percent")),
        Some((unit_len, name)) => (part.len + unit_len, format!("{said} of {} {name}", article(name))),
        None => (part.len, said),
    })
}

struct Fraction {
    top: u64,
    bottom: u64,
    len: usize,
}

impl Fraction {
    /// What it counts: "half", "quarters", "thirds".
    fn name(&self) -> String {
        match (self.bottom, self.top) {
            (2, 1) => "half".to_owned(),
            (2, _) => "halves".to_owned(),
            (4, 1) => "quarter".to_owned(),
            (4, _) => "quarters".to_owned(),
            (_, 1) => ordinal(self.bottom),
            _ => format!("{}s", ordinal(self.bottom)),
        }
    }

    /// As it follows a whole number: "a half", "an eighth", "one one hundredth", "two thirds".
    fn after_and(&self) -> String {
        let name = self.name();
        let count = if self.top == 1 && self.bottom < 100 { article(&name).to_owned() } else { cardinal(self.top) };
        format!("{count} {name}")
    }
}

/// "an" before a vowel; of the words that come here, "hour" starts with one as well.
fn article(word: &str) -> &'static str {
    if word.starts_with(['a', 'e', 'i', 'o', 'u']) || word.starts_with("hour") { "an" } else { "a" }
}

fn simple_fraction(text: &[char]) -> Option<Fraction> {
    let (top, top_len) = short(text, 3)?;
    let (bottom, bottom_len) = short(text.get(top_len + 1..)?, 3).filter(|_| text[top_len] == '/')?;
    let len = top_len + 1 + bottom_len;
    let ends = !text.get(len).is_some_and(|c| c.is_alphanumeric() || *c == '/') || unit(&text[len..], true).is_some();
    (bottom >= 2 && ends).then_some(Fraction { top, bottom, len })
}

/// Leading zeros or more digits than a number has: "007", card numbers. Chains such as "1.2.3" and "1/2/2024" as well.
fn long_digits(text: &[char]) -> Option<Reading> {
    let number = Number::parse(text)?;
    if number.decimals.is_none() && integer(&number.whole).is_none() && !number.whole.is_empty() {
        return Some((number.len, digits(number.whole.chars())));
    }
    // A version or an address: every part by itself.
    number.decimals.as_ref().filter(|_| text.get(number.len) == Some(&'.') && run(&text[number.len + 1..]) > 0)?;
    let mut len = 0;
    let mut parts = Vec::new();
    loop {
        let digits_len = run(&text[len..]);
        let part: String = text[len..len + digits_len].iter().collect();
        parts.push(integer(&part).map_or_else(|| digits(part.chars()), cardinal));
        len += digits_len;
        if text.get(len) != Some(&'.') || !text.get(len + 1).is_some_and(char::is_ascii_digit) {
            return Some((len, parts.join(" point ")));
        }
        len += 1;
    }
}

/// Any other number, with its unit. Four digits without a unit or separator are a year if they look like one.
fn quantity(text: &[char]) -> Option<Reading> {
    let (len, said) = measure(text)?;
    let number = Number::parse(text).filter(|number| number.len == len);
    let as_year =
        number.filter(|number| number.whole.len() == 4 && !number.grouped).and_then(|number| number.integer());
    Some((len, as_year.and_then(year).unwrap_or(said)))
}

/// A number with its unit, if it has one.
fn measure(text: &[char]) -> Option<Reading> {
    let number = Number::parse(text)?;
    Some(match unit(&text[number.len..], number.is_one()) {
        Some((unit_len, name)) => (number.len + unit_len, format!("{} {name}", number.spoken())),
        None => (number.len, number.spoken()),
    })
}
