//! Everything written with digits. Each rule looks at the text from a digit (or its sign) on and says how many characters
//! it takes and how they are spoken; [`RULES`] is the order in which they are asked.
//!
//! A rule looks at a bounded piece of the text, or at the digits it will take: reading stays linear.

use super::abbreviations::ends_sentence;
use super::cardinal::{LARGEST, cardinal, digits, ordinal, plural, year};
use super::units::unit;

/// What a rule takes, and what it says.
type Reading = (usize, String);
type Rule = fn(&[char]) -> Option<Reading>;

/// Asked in this order; the last one takes whatever starts with a digit.
const RULES: [Rule; 11] = [money, date, time, idiom, phone, decade, nth, range, fraction, long_digits, quantity];

/// How the number at the beginning of `text` is spoken; nothing if none is there.
pub(crate) fn read(text: &[char]) -> Option<Reading> {
    RULES.iter().find_map(|rule| rule(text))
}

/// Digits with their thousands separators and decimals.
struct Number {
    whole: String,
    decimals: Option<String>,
    len: usize,
    grouped: bool,
}

impl Number {
    /// The number at the beginning of `text`. ".5" is one, "5." is 5.
    fn parse(text: &[char]) -> Option<Number> {
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
    fn integer(&self) -> Option<u64> {
        if self.decimals.is_some() { None } else { integer(&self.whole) }
    }

    fn is_one(&self) -> bool {
        self.decimals.is_none() && self.whole == "1"
    }

    fn spoken(&self) -> String {
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
fn integer(text: &str) -> Option<u64> {
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
fn run_is(text: &[char], len: usize) -> bool {
    run(&text[..text.len().min(len + 1)]) == len
}

/// The number of one to `longest` digits that `text` starts with, and how many there are.
fn short(text: &[char], longest: usize) -> Option<(u64, usize)> {
    let len = run(&text[..text.len().min(longest + 1)]);
    if len == 0 || len > longest {
        return None;
    }
    text[..len].iter().collect::<String>().parse().ok().map(|n| (n, len))
}

/// Whether `text` starts with `word` and the word ends there.
fn starts_with_word(text: &[char], word: &str) -> bool {
    let len = word.chars().count();
    text.len() >= len
        && word.chars().eq(text[..len].iter().copied())
        && !text.get(len).is_some_and(|c| c.is_alphanumeric())
}

struct Currency {
    sign: char,
    one: &'static str,
    many: &'static str,
    /// One and several hundredths, if they are counted.
    hundredths: Option<(&'static str, &'static str)>,
}

const CURRENCIES: [Currency; 4] = [
    Currency { sign: '$', one: "dollar", many: "dollars", hundredths: Some(("cent", "cents")) },
    Currency { sign: '£', one: "pound", many: "pounds", hundredths: Some(("penny", "pence")) },
    Currency { sign: '€', one: "euro", many: "euros", hundredths: Some(("cent", "cents")) },
    Currency { sign: '¥', one: "yen", many: "yen", hundredths: None },
];
const SCALES: [&str; 5] = ["hundred", "thousand", "million", "billion", "trillion"];
/// Letters right after an amount.
const SHORT_SCALES: [(&str, &str); 7] = [
    ("k", "thousand"),
    ("K", "thousand"),
    ("m", "million"),
    ("M", "million"),
    ("bn", "billion"),
    ("B", "billion"),
    ("tn", "trillion"),
];

/// "$3.50", "£5 million", "20€".
fn money(text: &[char]) -> Option<Reading> {
    let sign = |c: &char| CURRENCIES.iter().find(|currency| currency.sign == *c);
    if let Some(currency) = text.first().and_then(sign) {
        let number = Number::parse(&text[1..]).filter(|_| text[1..].first().is_some_and(char::is_ascii_digit))?;
        let rest = &text[1 + number.len..];
        let word = SCALES.iter().find(|word| rest.first() == Some(&' ') && starts_with_word(&rest[1..], word));
        if let Some(word) = word {
            return Some((2 + number.len + word.len(), format!("{} {word} {}", number.spoken(), currency.many)));
        }
        if let Some((letter, word)) = SHORT_SCALES.iter().find(|(letter, _)| starts_with_word(rest, letter)) {
            return Some((1 + number.len + letter.len(), format!("{} {word} {}", number.spoken(), currency.many)));
        }
        return Some((1 + number.len, amount(&number, currency)));
    }
    let number = Number::parse(text)?;
    let currency = text.get(number.len).and_then(sign)?;
    let followed = text.get(number.len + 1).is_some_and(char::is_ascii_digit);
    if followed { None } else { Some((number.len + 1, amount(&number, currency))) }
}

fn amount(number: &Number, currency: &Currency) -> String {
    let Currency { one, many, hundredths, .. } = currency;
    let counted = |n: u64, one: &str, many: &str| format!("{} {}", cardinal(n), if n == 1 { one } else { many });
    if let (Some((cent, cents)), Some(decimals), Some(whole)) = (hundredths, &number.decimals, integer(&number.whole))
        && decimals.len() == 2
    {
        let small: u64 = decimals.parse().unwrap_or(0);
        return match (whole, small) {
            (_, 0) => counted(whole, one, many),
            (0, _) => counted(small, cent, cents),
            _ => format!("{} and {}", counted(whole, one, many), counted(small, cent, cents)),
        };
    }
    format!("{} {}", number.spoken(), if number.is_one() { one } else { many })
}

const MONTHS: [&str; 12] = [
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
];

/// "2024-01-05".
fn date(text: &[char]) -> Option<Reading> {
    let dash = |at: usize| text.get(at) == Some(&'-');
    if !(run_is(text, 4) && dash(4) && run_is(&text[5..], 2) && dash(7) && run_is(&text[8..], 2)) {
        return None;
    }
    let ((y, _), (month, _), (day, _)) = (short(text, 4)?, short(&text[5..], 2)?, short(&text[8..], 2)?);
    let month = MONTHS.get(usize::try_from(month).ok()?.checked_sub(1)?)?;
    (1..=31).contains(&day).then(|| (10, format!("{month} {}, {}", ordinal(day), year(y).unwrap_or(cardinal(y)))))
}

/// "3:45", "12:05:30", "9:00 a.m.", "5 pm".
fn time(text: &[char]) -> Option<Reading> {
    let (hour, mut len) = short(text, 2)?;
    if text.get(len) != Some(&':') {
        let (half, half_len) = half_of_day(&text[len..]).filter(|_| (1..=12).contains(&hour))?;
        return Some((len + half_len, format!("{} {half}", cardinal(hour))));
    }
    let (minute, _) =
        short(&text[len + 1..], 2).filter(|(minute, digits)| *digits == 2 && *minute < 60 && hour <= 24)?;
    len += 3;
    let mut said = cardinal(hour);
    match minute {
        0 => {}
        1..=9 => said.push_str(&format!(" oh {}", cardinal(minute))),
        _ => said.push_str(&format!(" {}", cardinal(minute))),
    }
    if text.get(len) == Some(&':') && run_is(&text[len + 1..], 2) {
        let (second, _) = short(&text[len + 1..], 2)?;
        return Some((
            len + 3,
            format!("{said} and {} second{}", cardinal(second), if second == 1 { "" } else { "s" }),
        ));
    }
    if let Some((half, half_len)) = half_of_day(&text[len..]) {
        return Some((len + half_len, format!("{said} {half}")));
    }
    if minute == 0 {
        said.push_str(if (1..=12).contains(&hour) { " o'clock" } else { " hundred" });
    }
    Some((len, said))
}

/// "am", " p.m." and the like.
fn half_of_day(rest: &[char]) -> Option<(&'static str, usize)> {
    let space = usize::from(rest.first() == Some(&' '));
    let at = |place: usize| rest.get(space + place).map_or(' ', char::to_ascii_lowercase);
    let said = match at(0) {
        'a' => "ay em",
        'p' => "pee em",
        _ => return None,
    };
    let mut len = match (at(1), at(2)) {
        ('m', _) => space + 2,
        ('.', 'm') => space + 3,
        _ => return None,
    };
    let dotted = at(1) == '.' && rest.get(len) == Some(&'.');
    if rest.get(len).is_some_and(|c| c.is_alphanumeric() || *c == '\'') {
        return None;
    }
    // The last stop may end the sentence as well.
    if dotted && !ends_sentence(&rest[len + 1..]) {
        len += 1;
    }
    Some((said, len))
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

/// "10-20", "1914-1918". Longer chains are nobody's range.
fn range(text: &[char]) -> Option<Reading> {
    let dash = |c: Option<&char>| matches!(c, Some('-' | '—'));
    let (from, len) = short(text, 4)?;
    let (to, to_len) = short(text.get(len + 1..)?, 4).filter(|_| dash(text.get(len)))?;
    let end = len + 1 + to_len;
    let goes_on = text.get(end).is_some_and(|c| c.is_alphabetic() || matches!(c, '-' | '—'))
        && unit(&text[end..], false).is_none();
    let decimal = text.get(end) == Some(&'.') && text.get(end + 1).is_some_and(char::is_ascii_digit);
    let zeros = [&text[..len], &text[len + 1..end]].iter().any(|part| part.len() > 1 && part[0] == '0');
    if goes_on || decimal || zeros {
        return None;
    }
    let years = len == 4 && (to_len == 4 || to_len == 2);
    let said = |n: u64| year(n).filter(|_| years).unwrap_or_else(|| cardinal(n));
    let (unit_len, name) = unit(&text[end..], false).unwrap_or((0, ""));
    Some((end + unit_len, format!("{} to {} {name}", said(from), said(to)).trim_end().to_owned()))
}

/// "1/2", "2 3/4". A second slash makes it something else.
fn fraction(text: &[char]) -> Option<Reading> {
    let (first, first_len) = short(text, 3)?;
    if text.get(first_len) == Some(&' ')
        && let Some((len, part)) = simple_fraction(&text[first_len + 1..])
    {
        let part = part.strip_prefix("one ").map(|part| format!("a {part}")).unwrap_or(part);
        return Some((first_len + 1 + len, format!("{} and {part}", cardinal(first))));
    }
    simple_fraction(text)
}

fn simple_fraction(text: &[char]) -> Option<Reading> {
    let (top, top_len) = short(text, 3)?;
    let (bottom, bottom_len) = short(text.get(top_len + 1..)?, 3).filter(|_| text[top_len] == '/')?;
    let end = top_len + 1 + bottom_len;
    if bottom < 2 || matches!(text.get(end), Some('/' | '%')) || text.get(end).is_some_and(|c| c.is_alphanumeric()) {
        return None;
    }
    let part = match (bottom, top) {
        (2, 1) => "half".to_owned(),
        (2, _) => "halves".to_owned(),
        (4, 1) => "quarter".to_owned(),
        (4, _) => "quarters".to_owned(),
        (_, 1) => ordinal(bottom),
        _ => format!("{}s", ordinal(bottom)),
    };
    Some((end, format!("{} {part}", cardinal(top))))
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
    let number = Number::parse(text)?;
    if let Some((unit_len, name)) = unit(&text[number.len..], number.is_one()) {
        return Some((number.len + unit_len, format!("{} {name}", number.spoken())));
    }
    let as_year = number.integer().filter(|_| number.whole.len() == 4 && !number.grouped).and_then(year);
    Some((number.len, as_year.unwrap_or_else(|| number.spoken())))
}
