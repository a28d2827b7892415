//! Dates and times of day.

use super::abbreviations::ends_sentence;
use super::cardinal::{cardinal, ordinal, year};
use super::numbers::{Reading, between, goes_on, run_is, short};

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
pub(super) fn date(text: &[char]) -> Option<Reading> {
    let dash = |at: usize| text.get(at) == Some(&'-');
    if !(run_is(text, 4) && dash(4) && run_is(&text[5..], 2) && dash(7) && run_is(&text[8..], 2)) {
        return None;
    }
    let ((y, _), (month, _), (day, _)) = (short(text, 4)?, short(&text[5..], 2)?, short(&text[8..], 2)?);
    let month = MONTHS.get(usize::try_from(month).ok()?.checked_sub(1)?)?;
    (1..=31).contains(&day).then(|| (10, format!("{month} {}, {}", ordinal(day), year(y).unwrap_or(cardinal(y)))))
}

/// "3:45", "12:05:30", "9:00 a.m.", "5 pm", and two of them with a dash between: "9-10:30", "9:00-5:00 pm", "3:16-18".
pub(super) fn time(text: &[char]) -> Option<Reading> {
    let end = |text: &[char]| clock(text).or_else(|| bare(text));
    between(text, clock, end).or_else(|| between(text, bare, clock)).or_else(|| clock(text))
}

/// The hour or the minute of a time whose rest stands on the other side of the dash.
fn bare(text: &[char]) -> Option<Reading> {
    short(text, 2).filter(|(n, _)| (1..60).contains(n)).map(|(n, len)| (len, cardinal(n)))
}

fn clock(text: &[char]) -> Option<Reading> {
    let (hour, mut len) = short(text, 2)?;
    if text.get(len) != Some(&':') {
        let (half, half_len) = half_of_day(&text[len..]).filter(|_| (1..=12).contains(&hour))?;
        return Some((len + half_len, format!("{} {half}", cardinal(hour))));
    }
    let minute = sixtieth(&text[len..]).filter(|minute| hour < 24 || (hour, *minute) == (24, 0))?;
    len += 3;
    let second = sixtieth(&text[len..]);
    if second.is_some() {
        len += 3;
    } else if goes_on(&text[len..]) && text[len] == ':' {
        return None;
    }
    let half = half_of_day(&text[len..]);
    let mut said = cardinal(hour);
    match minute {
        0 if half.is_some() => {}
        0 if (1..=12).contains(&hour) => said.push_str(" o'clock"),
        0 => said.push_str(" hundred"),
        1..=9 => said.push_str(&format!(" oh {}", cardinal(minute))),
        _ => said.push_str(&format!(" {}", cardinal(minute))),
    }
    match second {
        None | Some(0) => {}
        Some(1) => said.push_str(" and one second"),
        Some(second) => said.push_str(&format!(" and {} seconds", cardinal(second))),
    }
    Some(match half {
        Some((half, half_len)) => (len + half_len, format!("{said} {half}")),
        None => (len, said),
    })
}

/// The minutes or seconds of ":05".
fn sixtieth(text: &[char]) -> Option<u64> {
    let rest = text.strip_prefix(&[':'])?;
    short(rest, 2).filter(|(n, digits)| *digits == 2 && *n < 60).map(|(n, _)| n)
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
