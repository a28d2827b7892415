//! Numbers as Persian words.

const ONES: [&str; 20] = [
    "صفر",
    "یک",
    "دو",
    "سه",
    "چهار",
    "پنج",
    "شش",
    "هفت",
    "هشت",
    "نه",
    "ده",
    "یازده",
    "دوازده",
    "سیزده",
    "چهارده",
    "پانزده",
    "شانزده",
    "هفده",
    "هجده",
    "نوزده",
];
const TENS: [&str; 10] = ["", "", "بیست", "سی", "چهل", "پنجاه", "شصت", "هفتاد", "هشتاد", "نود"];
const HUNDREDS: [&str; 10] = ["", "صد", "دویست", "سیصد", "چهارصد", "پانصد", "ششصد", "هفتصد", "هشتصد", "نهصد"];
const SCALES: [(u64, &str); 5] = [
    (1_000_000_000_000_000, "کوادریلیون"),
    (1_000_000_000_000, "تریلیون"),
    (1_000_000_000, "میلیارد"),
    (1_000_000, "میلیون"),
    (1_000, "هزار"),
];

/// The largest number said as a number; longer ones are read digit by digit.
const LARGEST: u64 = 1_000_000_000_000_000;
/// Decimals up to this many digits are said as a number, more of them one by one.
const SAID_DECIMALS: usize = 3;

/// What a number takes, and how it is said.
type Reading = (usize, String);

/// How the number at the beginning of `text` is said; nothing if none is there. `free` is whether a sign before it can
/// belong to it. Looks at a bounded piece beyond the digits it takes.
pub(crate) fn read(text: &[char], free: bool) -> Option<Reading> {
    match text.first()? {
        '-' if free && is_digit(text.get(1)) => {
            let (len, said) = quantity(&text[1..])?;
            Some((len + 1, format!("منفی {said}")))
        }
        // Right-to-left writers put the sign on either side.
        '٪' | '%' if is_digit(text.get(1)) => {
            let (len, said) = plain(&text[1..])?;
            Some((len + 1, format!("{said} درصد")))
        }
        '$' if is_digit(text.get(1)) => {
            let (len, said) = plain(&text[1..])?;
            Some((len + 1, format!("{said} دلار")))
        }
        c if c.is_ascii_digit() => quantity(text),
        _ => None,
    }
}

/// Times, dates, ranges and ordinals before plain numbers.
fn quantity(text: &[char]) -> Option<Reading> {
    let rules = [date, time, range, nth, plain];
    rules.iter().find_map(|rule| rule(text))
}

/// "1403/05/12": three numbers, one after the other.
fn date(text: &[char]) -> Option<Reading> {
    let mut len = 0;
    let mut parts = Vec::new();
    for part in 0..3 {
        if part > 0 {
            text.get(len).filter(|c| matches!(c, '/' | '-'))?;
            len += 1;
        }
        let (n, digits) = short(&text[len..], 4)?;
        parts.push(cardinal(n));
        len += digits;
    }
    if matches!(text.get(len), Some('/' | '-')) { None } else { Some((len, parts.join(" "))) }
}

/// "12:30".
fn time(text: &[char]) -> Option<Reading> {
    let (hour, len) = short(text, 2).filter(|(hour, _)| *hour <= 24)?;
    text.get(len).filter(|c| **c == ':')?;
    let (minute, digits) = short(&text[len + 1..], 2).filter(|(minute, digits)| *digits == 2 && *minute < 60)?;
    let end = len + 1 + digits;
    if text.get(end) == Some(&':') {
        return None;
    }
    let hour = cardinal(hour);
    Some((end, if minute == 0 { hour } else { format!("{hour} و {} دقیقه", cardinal(minute)) }))
}

/// "10-20".
fn range(text: &[char]) -> Option<Reading> {
    let (from, len) = short(text, 4)?;
    text.get(len).filter(|c| matches!(c, '-' | '–' | '—'))?;
    let (to, digits) = short(&text[len + 1..], 4)?;
    let end = len + 1 + digits;
    let goes_on = matches!(text.get(end), Some('-' | '–' | '—' | '/' | '٫' | ':'));
    let zeros = (text[0] == '0' && len > 1) || (text[len + 1] == '0' && digits > 1);
    if goes_on || zeros { None } else { Some((end, format!("{} تا {}", cardinal(from), cardinal(to)))) }
}

/// "5م" and "30ام".
fn nth(text: &[char]) -> Option<Reading> {
    let (n, len) = short(text, 6)?;
    let joiner = usize::from(text.get(len) == Some(&'\u{200C}'));
    let rest = &text[len + joiner..];
    let suffix = match rest {
        ['ا', 'م', ..] => 2,
        ['م', ..] => 1,
        _ => return None,
    };
    let ends = !rest.get(suffix).is_some_and(|c| c.is_alphanumeric());
    ends.then(|| (len + joiner + suffix, ordinal(n)))
}

/// A number with its thousands, decimals and per cent.
fn plain(text: &[char]) -> Option<Reading> {
    let mut len = run(text);
    let mut whole: String = text[..len].iter().collect();
    if (1..=3).contains(&len) {
        while matches!(text.get(len), Some('٬' | ',' | '،')) && run(window(&text[len + 1..], 4)) == 3 {
            whole.extend(&text[len + 1..len + 4]);
            len += 4;
        }
    }
    if len == 0 {
        return None;
    }
    let mut said = number(&whole);
    // A slash is the decimal mark of handwriting and old keyboards.
    if matches!(text.get(len), Some('٫' | '.' | '/')) && is_digit(text.get(len + 1)) {
        let decimals = run(&text[len + 1..]);
        said.push_str(" ممیز ");
        said.push_str(&fraction(&text[len + 1..len + 1 + decimals]));
        len += 1 + decimals;
    }
    if matches!(text.get(len), Some('٪' | '%')) {
        return Some((len + 1, format!("{said} درصد")));
    }
    if text.get(len) == Some(&' ') && matches!(text.get(len + 1), Some('٪' | '%')) && !is_digit(text.get(len + 2)) {
        return Some((len + 2, format!("{said} درصد")));
    }
    Some((len, said))
}

/// Zeros in front make it a string of digits, and so does a length that has no name.
fn number(digits: &str) -> String {
    let leading_zero = digits.len() > 1 && digits.starts_with('0');
    match digits.parse().ok().filter(|n| *n <= LARGEST && !leading_zero) {
        Some(n) => cardinal(n),
        None => each(digits.chars()),
    }
}

fn fraction(digits: &[char]) -> String {
    let zeros = digits.iter().take_while(|c| **c == '0').count();
    if digits.len() - zeros > SAID_DECIMALS || zeros == digits.len() {
        return each(digits.iter().copied());
    }
    let rest: String = digits[zeros..].iter().collect();
    let zeros = std::iter::repeat_n(ONES[0].to_owned(), zeros);
    zeros.chain([number(&rest)]).collect::<Vec<_>>().join(" ")
}

fn each(digits: impl Iterator<Item = char>) -> String {
    digits.filter_map(|c| c.to_digit(10)).map(|digit| ONES[digit as usize]).collect::<Vec<_>>().join(" ")
}

/// 1403 → «هزار و چهارصد و سه».
pub(crate) fn cardinal(n: u64) -> String {
    if n == 0 {
        return ONES[0].to_owned();
    }
    let mut parts = Vec::new();
    let mut rest = n;
    for (scale, name) in SCALES {
        match rest / scale {
            0 => {}
            // One thousand is a thousand; one million is one million.
            1 if scale == 1_000 => parts.push(name.to_owned()),
            count => parts.push(format!("{} {name}", cardinal(count))),
        }
        rest %= scale;
    }
    if rest >= 100 {
        parts.push(HUNDREDS[(rest / 100) as usize].to_owned());
        rest %= 100;
    }
    if rest >= 20 {
        parts.push(TENS[(rest / 10) as usize].to_owned());
        rest %= 10;
    }
    if rest > 0 {
        parts.push(ONES[rest as usize].to_owned());
    }
    parts.join(" و ")
}

/// 3 → «سوم», 30 → «سی‌ام».
fn ordinal(n: u64) -> String {
    let words = cardinal(n);
    if let Some(stem) = words.strip_suffix("سه") {
        return format!("{stem}سوم");
    }
    let after_vowel = words.ends_with("سی");
    format!("{words}{}", if after_vowel { "\u{200C}ام" } else { "م" })
}

fn is_digit(c: Option<&char>) -> bool {
    c.is_some_and(char::is_ascii_digit)
}

fn run(text: &[char]) -> usize {
    text.iter().take_while(|c| c.is_ascii_digit()).count()
}

fn window(text: &[char], len: usize) -> &[char] {
    &text[..text.len().min(len)]
}

/// The number of one to `longest` digits that `text` starts with, and how many there are.
fn short(text: &[char], longest: usize) -> Option<(u64, usize)> {
    let len = run(window(text, longest + 1));
    if len == 0 || len > longest {
        return None;
    }
    text[..len].iter().collect::<String>().parse().ok().map(|n| (n, len))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cardinals() {
        for (n, expected) in [
            (0, "صفر"),
            (8, "هشت"),
            (18, "هجده"),
            (21, "بیست و یک"),
            (100, "صد"),
            (110, "صد و ده"),
            (555, "پانصد و پنجاه و پنج"),
            (1000, "هزار"),
            (1001, "هزار و یک"),
            (1403, "هزار و چهارصد و سه"),
            (2024, "دو هزار و بیست و چهار"),
            (100_000, "صد هزار"),
            (1_000_000, "یک میلیون"),
            (1_250_000, "یک میلیون و دویست و پنجاه هزار"),
            (3_000_000_000, "سه میلیارد"),
            (1_000_000_000_000, "یک تریلیون"),
            (LARGEST, "یک کوادریلیون"),
        ] {
            assert_eq!(cardinal(n), expected);
        }
    }

    #[test]
    fn ordinals() {
        for (n, expected) in
            [(1, "یکم"), (2, "دوم"), (3, "سوم"), (23, "بیست و سوم"), (30, "سی\u{200C}ام"), (100, "صدم")]
        {
            assert_eq!(ordinal(n), expected);
        }
    }
}
