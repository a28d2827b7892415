//! Numbers as English words.

const ONES: [&str; 20] = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
];
const TENS: [&str; 10] = ["", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"];
const SCALES: [(u64, &str); 5] = [
    (1_000_000_000_000_000, "quadrillion"),
    (1_000_000_000_000, "trillion"),
    (1_000_000_000, "billion"),
    (1_000_000, "million"),
    (1_000, "thousand"),
];

/// The largest number said as a number; longer ones are read digit by digit.
pub(crate) const LARGEST: u64 = 1_000_000_000_000_000;

/// Last words whose ordinal is not made by adding "th".
const ORDINALS: [(&str, &str); 7] = [
    ("one", "first"),
    ("two", "second"),
    ("three", "third"),
    ("five", "fifth"),
    ("eight", "eighth"),
    ("nine", "ninth"),
    ("twelve", "twelfth"),
];

/// 21 → "twenty-one".
pub(crate) fn cardinal(n: u64) -> String {
    for (scale, name) in SCALES {
        if n >= scale {
            let head = format!("{} {name}", cardinal(n / scale));
            return joined(head, " ", n % scale);
        }
    }
    if n >= 100 {
        return joined(format!("{} hundred", ONES[(n / 100) as usize]), " ", n % 100);
    }
    match ONES.get(n as usize) {
        Some(word) => (*word).to_owned(),
        None => joined(TENS[(n / 10) as usize].to_owned(), "-", n % 10),
    }
}

fn joined(head: String, with: &str, rest: u64) -> String {
    if rest == 0 { head } else { format!("{head}{with}{}", cardinal(rest)) }
}

/// 21 → "twenty-first".
pub(crate) fn ordinal(n: u64) -> String {
    let words = cardinal(n);
    let start = words.rfind([' ', '-']).map_or(0, |at| at + 1);
    let (head, last) = words.split_at(start);
    let last = match ORDINALS.iter().find(|(word, _)| *word == last) {
        Some((_, ordinal)) => (*ordinal).to_owned(),
        None => match last.strip_suffix('y') {
            Some(stem) => format!("{stem}ieth"),
            None => format!("{last}th"),
        },
    };
    format!("{head}{last}")
}

/// 1984 → "nineteen eighty-four". Nothing for numbers that nobody takes for a year.
pub(crate) fn year(n: u64) -> Option<String> {
    let (century, rest) = (n / 100, n % 100);
    match n {
        2000..=2009 => Some(cardinal(n)),
        1010..=1099 | 1100..=1999 | 2010..=2099 => Some(match rest {
            0 => format!("{} hundred", cardinal(century)),
            1..=9 => format!("{} oh {}", cardinal(century), cardinal(rest)),
            _ => format!("{} {}", cardinal(century), cardinal(rest)),
        }),
        _ => None,
    }
}

/// "007" → "zero zero seven".
pub(crate) fn digits(text: impl IntoIterator<Item = char>) -> String {
    let mut out = String::new();
    for digit in text.into_iter().filter_map(|c| c.to_digit(10)) {
        if !out.is_empty() {
            out.push(' ');
        }
        out.push_str(ONES[digit as usize]);
    }
    out
}

/// "twenty" → "twenties", "six" → "sixes".
pub(crate) fn plural(words: &str) -> String {
    if let Some(stem) = words.strip_suffix('y') {
        return format!("{stem}ies");
    }
    if words.ends_with(['x', 's']) || words.ends_with("ch") { format!("{words}es") } else { format!("{words}s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cardinals() {
        for (n, expected) in [
            (0, "zero"),
            (7, "seven"),
            (13, "thirteen"),
            (20, "twenty"),
            (99, "ninety-nine"),
            (100, "one hundred"),
            (342, "three hundred forty-two"),
            (1_000, "one thousand"),
            (1_001, "one thousand one"),
            (70_000, "seventy thousand"),
            (1_234_567, "one million two hundred thirty-four thousand five hundred sixty-seven"),
            (5_000_000_000, "five billion"),
            (
                999_999_999_999_999,
                "nine hundred ninety-nine trillion nine hundred ninety-nine billion nine hundred ninety-nine million nine hundred ninety-nine thousand nine hundred ninety-nine",
            ),
            (LARGEST, "one quadrillion"),
        ] {
            assert_eq!(cardinal(n), expected);
        }
    }

    #[test]
    fn ordinals() {
        for (n, expected) in [
            (1, "first"),
            (2, "second"),
            (3, "third"),
            (5, "fifth"),
            (8, "eighth"),
            (12, "twelfth"),
            (20, "twentieth"),
            (21, "twenty-first"),
            (100, "one hundredth"),
            (1_000, "one thousandth"),
        ] {
            assert_eq!(ordinal(n), expected);
        }
    }

    #[test]
    fn years() {
        for (n, expected) in [
            (1066, Some("ten sixty-six")),
            (1900, Some("nineteen hundred")),
            (1905, Some("nineteen oh five")),
            (1984, Some("nineteen eighty-four")),
            (2000, Some("two thousand")),
            (2005, Some("two thousand five")),
            (2024, Some("twenty twenty-four")),
            (1000, None),
            (2100, None),
            (999, None),
        ] {
            assert_eq!(year(n).as_deref(), expected);
        }
    }

    #[test]
    fn digit_strings_and_plurals() {
        assert_eq!(digits("007".chars()), "zero zero seven");
        for (one, many) in [("twenty", "twenties"), ("six", "sixes"), ("ten", "tens"), ("inch", "inches")] {
            assert_eq!(plural(one), many);
        }
    }
}
