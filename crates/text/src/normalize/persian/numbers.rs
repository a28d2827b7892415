//! Numbers as Persian words.

use crate::normalize::unicode;

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

/// Signs of currencies. They stand on either side of the number; their names follow it.
const CURRENCIES: [(char, &str); 4] = [('$', "دلار"), ('€', "یورو"), ('£', "پوند"), ('¥', "ین")];

/// What a number takes, and how it is said.
type Reading = (usize, String);

/// How the number at the beginning of `text` is said; nothing if none is there. `free` is whether a sign before it can
/// belong to it. Looks at a bounded piece beyond the digits it takes.
pub(crate) fn read(text: &[char], free: bool) -> Option<Reading> {
    let first = *text.first()?;
    match first {
        '-' if free => {
            let (len, said) = read(&text[1..], false)?;
            Some((len + 1, format!("منفی {said}")))
        }
        c if c.is_ascii_digit() => quantity(text),
        _ => match fraction_sign(first) {
            Some(said) => Some((1, said)),
            None => after_sign(text),
        },
    }
}

/// Whether a hyphen after `c` joins two amounts and is no minus sign.
pub(crate) fn ends_amount(c: char) -> bool {
    matches!(c, '%' | '٪') || CURRENCIES.iter().any(|(sign, _)| *sign == c)
}

/// "٪۲۰" and "$۵ میلیون": right-to-left writers put the sign on either side.
fn after_sign(text: &[char]) -> Option<Reading> {
    let sign = *text.first()?;
    let name = match sign {
        '٪' | '%' => "درصد",
        _ => CURRENCIES.iter().find(|(other, _)| *other == sign)?.1,
    };
    let (mut len, mut said) = range(&text[1..], Some(sign)).or_else(|| plain(&text[1..]))?;
    len += 1;
    if said.ends_with(name) {
        return Some((len, said));
    }
    let scale = SCALES.iter().find(|(_, word)| text.get(len) == Some(&' ') && starts_with_word(&text[len + 1..], word));
    if let Some((_, word)) = scale {
        len += 1 + word.chars().count();
        said = format!("{said} {word}");
    }
    Some((len, format!("{said} {name}")))
}

/// Dates, ranges, times and ordinals before plain numbers.
fn quantity(text: &[char]) -> Option<Reading> {
    let rules = [date, groups, dotted, |text: &[char]| range(text, None), time, nth, fraction, plain];
    rules.iter().find_map(|rule| rule(text))
}

/// "1403/05/12": three numbers, one after the other. With hyphens or dots they must look like a date: telephone numbers and
/// versions have them too.
fn date(text: &[char]) -> Option<Reading> {
    let mut len = 0;
    let mut parts = Vec::new();
    let mut separator = None;
    for part in 0..3 {
        if part > 0 {
            let found = text.get(len).filter(|c| matches!(c, '/' | '-' | '.'))?;
            if *separator.get_or_insert(found) != found {
                return None;
            }
            len += 1;
        }
        let (n, digits) = short(&text[len..], 4)?;
        parts.push((n, digits));
        len += digits;
    }
    let (first, month, last) = (parts[0], parts[1], parts[2]);
    let day = if first.1 == 4 { last } else { first };
    let shaped = (first.1 == 4) != (last.1 == 4)
        && (month.1 <= 2 && (1..=12).contains(&month.0))
        && (day.1 <= 2 && (1..=31).contains(&day.0));
    let goes_on = matches!(text.get(len), Some('/' | '-' | '.')) && is_digit(text.get(len + 1));
    if goes_on || (separator != Some(&'/') && !shaped) {
        return None;
    }
    Some((len, parts.into_iter().map(|(n, _)| cardinal(n)).collect::<Vec<_>>().join(" ")))
}

/// "0912-345-6789", "021-88776655": telephone and card numbers, digit by digit with pauses.
fn groups(text: &[char]) -> Option<Reading> {
    let (len, parts) = joined_by(text, '-');
    let leading_zero = parts[0].len() > 1 && text[0] == '0';
    let said = || parts.iter().map(|part| each(part.iter().copied())).collect::<Vec<_>>().join("، ");
    (parts.len() > 2 || (leading_zero && parts.len() == 2)).then(|| (len, said()))
}

/// "1.2.3", "192.168.0.1": every part by itself.
fn dotted(text: &[char]) -> Option<Reading> {
    let (len, parts) = joined_by(text, '.');
    let said = || parts.iter().map(|part| number(&part.iter().collect::<String>())).collect::<Vec<_>>().join(" نقطه ");
    (parts.len() > 2).then(|| (len, said()))
}

/// The runs of digits at the beginning of `text` with this mark between them, and how many characters they take.
fn joined_by(text: &[char], mark: char) -> (usize, Vec<&[char]>) {
    let mut len = run(text);
    let mut parts = vec![&text[..len]];
    while text.get(len) == Some(&mark) && is_digit(text.get(len + 1)) {
        let digits = run(&text[len + 1..]);
        parts.push(&text[len + 1..len + 1 + digits]);
        len += 1 + digits;
    }
    (len, parts)
}

/// "12:30", "12:30:15".
fn time(text: &[char]) -> Option<Reading> {
    let (hour, mut len) = short(text, 2)?;
    let minute = sixtieth(&text[len..]).filter(|minute| hour < 24 || (hour, *minute) == (24, 0))?;
    len += 3;
    let second = sixtieth(&text[len..]).inspect(|_| len += 3).unwrap_or(0);
    if text.get(len) == Some(&':') {
        return None;
    }
    let counted = [(minute, "دقیقه"), (second, "ثانیه")].into_iter().filter(|(n, _)| *n > 0);
    let parts = counted.map(|(n, name)| format!(" و {} {name}", cardinal(n)));
    Some((len, cardinal(hour) + &parts.collect::<String>()))
}

/// The minutes or seconds of ":05".
fn sixtieth(text: &[char]) -> Option<u64> {
    let rest = text.strip_prefix(&[':'])?;
    short(rest, 2).filter(|(n, digits)| *digits == 2 && *n < 60).map(|(n, _)| n)
}

/// "10-20", "1.5-2.5", "10%-20%", "8:00-10:30". The sign that stood before the first may stand before the second as well.
fn range(text: &[char], sign: Option<char>) -> Option<Reading> {
    let end = |text: &[char]| {
        let zeros = text.first() == Some(&'0') && is_digit(text.get(1));
        time(text).or_else(|| plain(text).filter(|_| !zeros))
    };
    let (len, from) = end(text)?;
    text.get(len).filter(|c| matches!(c, '-' | '–' | '—'))?;
    let again = usize::from(sign.is_some() && text.get(len + 1) == sign.as_ref());
    let start = len + 1 + again;
    let (to_len, to) = end(text.get(start..)?)?;
    let end = start + to_len;
    let goes_on = matches!(text.get(end), Some('-' | '–' | '—' | '/' | '٫' | '.' | ':')) && is_digit(text.get(end + 1));
    if goes_on { None } else { Some((end, format!("{from} تا {to}"))) }
}

/// "5م", "30ام", "30 اُم", "5مین" and "30امین".
fn nth(text: &[char]) -> Option<Reading> {
    let (n, len) = short(text, 6)?;
    let gap = usize::from(matches!(text.get(len), Some('\u{200C}' | ' ')));
    let rest = &text[len + gap..];
    let alef = match rest {
        ['ا', '\u{064F}', ..] => 2,
        ['ا', ..] => 1,
        // After a space, the letter alone may be anything.
        _ if text.get(len) == Some(&' ') => return None,
        _ => 0,
    };
    let (suffix, more) = match rest.get(alef..)? {
        ['م', 'ی', 'ن', ..] => (3, "ین"),
        ['م', ..] => (1, ""),
        _ => return None,
    };
    let end = alef + suffix;
    let ends = !rest.get(end).is_some_and(|c| c.is_alphanumeric());
    ends.then(|| (len + gap + end, ordinal(n) + more))
}

/// "2½", and "1⁄3" with the slash that is no decimal mark.
fn fraction(text: &[char]) -> Option<Reading> {
    let (whole, len) = short(text, 3)?;
    if let Some(said) = text.get(len).and_then(|c| fraction_sign(*c)) {
        return Some((len + 1, format!("{} و {said}", cardinal(whole))));
    }
    text.get(len).filter(|c| **c == '\u{2044}')?;
    let (bottom, digits) = short(&text[len + 1..], 3).filter(|(bottom, _)| *bottom >= 2)?;
    Some((len + 1 + digits, format!("{} {}", cardinal(whole), ordinal(bottom))))
}

/// ½ is «نیم», ¾ «سه چهارم».
fn fraction_sign(c: char) -> Option<String> {
    let (top, bottom) = unicode::fraction(c)?;
    Some(if bottom == 2 { "نیم".to_owned() } else { format!("{} {}", cardinal(top), ordinal(bottom)) })
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
        said.push_str(&decimals_said(&text[len + 1..len + 1 + decimals]));
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

fn decimals_said(digits: &[char]) -> String {
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

fn starts_with_word(text: &[char], word: &str) -> bool {
    let len = word.chars().count();
    word.chars().eq(window(text, len).iter().copied()) && !text.get(len).is_some_and(|c| c.is_alphanumeric())
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
