//! Amounts of money. Two decimals are hundredths with a name of their own: "$3.50" is three dollars and fifty cents. One
//! decimal, or three, are read as decimals: "$3.5" is three point five dollars, as in "$3.5 million".

use super::cardinal::cardinal;
use super::numbers::{Number, Reading, between, goes_on, integer, is_dash, starts_with_word};

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

/// "$3.50", "£5 million", "20€", and two of them with a dash between.
pub(super) fn money(text: &[char]) -> Option<Reading> {
    range(text).or_else(|| between(text, single, single)).or_else(|| single(text))
}

fn currency(sign: Option<&char>) -> Option<&'static Currency> {
    CURRENCIES.iter().find(|currency| Some(&currency.sign) == sign)
}

fn single(text: &[char]) -> Option<Reading> {
    if let Some(currency) = currency(text.first()) {
        let number = Number::parse(&text[1..])?;
        let len = 1 + number.len;
        return Some(match scale(&text[len..]) {
            Some((scale_len, word)) => (len + scale_len, format!("{} {word} {}", number.spoken(), currency.many)),
            None => (len, amount(&number, currency)),
        });
    }
    let number = Number::parse(text)?;
    let currency = currency(text.get(number.len))?;
    let followed = text.get(number.len + 1).is_some_and(char::is_ascii_digit);
    if followed { None } else { Some((number.len + 1, amount(&number, currency))) }
}

/// "$5-10", "$5-$10 million", "5-10€": the currency is said once, unless there are hundredths.
fn range(text: &[char]) -> Option<Reading> {
    let before = currency(text.first());
    let mut len = usize::from(before.is_some());
    let from = Number::parse(&text[len..])?;
    len += from.len;
    let dash = is_dash(text.get(len));
    let rest = text.get(len + 1..).filter(|_| dash)?;
    let again = usize::from(before.is_some_and(|currency| rest.first() == Some(&currency.sign)));
    let to = Number::parse(&rest[again..])?;
    len += 1 + again + to.len;
    let currency = before.or_else(|| currency(text.get(len)))?;
    let (more, word) = match before {
        Some(_) => scale(&text[len..]).unwrap_or((0, "")),
        None => (1, ""),
    };
    len += more;
    if goes_on(&text[len..]) {
        return None;
    }
    let counted = !word.is_empty() || (from.decimals.is_none() && to.decimals.is_none());
    Some((
        len,
        match (counted, word) {
            (true, "") => format!("{} to {} {}", from.spoken(), to.spoken(), currency.many),
            (true, word) => format!("{} to {} {word} {}", from.spoken(), to.spoken(), currency.many),
            (false, _) => format!("{} to {}", amount(&from, currency), amount(&to, currency)),
        },
    ))
}

/// " million" or "m" right after an amount: how many characters it takes, and its word.
fn scale(rest: &[char]) -> Option<(usize, &'static str)> {
    let word = SCALES.iter().find(|word| rest.first() == Some(&' ') && starts_with_word(&rest[1..], word));
    let letters = || SHORT_SCALES.iter().find(|(letters, _)| starts_with_word(rest, letters));
    word.map(|word| (1 + word.len(), *word)).or_else(|| letters().map(|(letters, word)| (letters.len(), *word)))
}

fn amount(number: &Number, currency: &Currency) -> String {
    let Currency { one, many, hundredths, .. } = currency;
    let counted = |n: u64, one: &str, many: &str| format!("{} {}", cardinal(n), if n == 1 { one } else { many });
    let whole = if number.whole.is_empty() { Some(0) } else { integer(&number.whole) };
    let small = number.decimals.as_ref().filter(|decimals| decimals.len() == 2).and_then(|small| small.parse().ok());
    match (whole, small, hundredths) {
        (Some(whole), Some(0), _) => counted(whole, one, many),
        (Some(0), Some(small), Some((cent, cents))) => counted(small, cent, cents),
        (Some(whole), Some(small), Some((cent, cents))) => {
            format!("{} and {}", counted(whole, one, many), counted(small, cent, cents))
        }
        _ => format!("{} {}", number.spoken(), if number.is_one() { one } else { many }),
    }
}
