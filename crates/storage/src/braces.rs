//! Brace ranges and lists: `shard-{000..127}.tar`, `{train,dev}.tar`.

use std::fmt::Write as _;

/// Braces inside braces, at most. Deeper ones stand for themselves.
const MAX_DEPTH: u32 = 16;

/// A pattern, parsed. How much it expands to is known before anything is expanded.
pub(crate) struct Braces {
    parts: Vec<Part>,
}

enum Part {
    Text(String),
    /// `{a,b}`.
    Any(Vec<Braces>),
    /// `{first..last..step}`, with leading zeros up to `width`.
    Numbers {
        first: u64,
        last: u64,
        step: u64,
        width: usize,
    },
    /// `{a..e}`.
    Letters {
        first: u8,
        last: u8,
    },
}

impl Braces {
    /// Every text is a pattern: braces that are neither a range nor a list of two and more stand for themselves, as in a
    /// shell.
    pub(crate) fn parse(text: &str) -> Braces {
        parse(text, 0)
    }

    /// How many texts it stands for, and how many bytes they have at most in all; the largest number if more.
    pub(crate) fn size(&self) -> (u64, u64) {
        let (count, longest) = self.count_and_longest();
        (count, count.saturating_mul(longest))
    }

    /// All texts, in the order of the braces. [`Braces::size`] first: this allocates them all.
    pub(crate) fn expand(&self) -> Vec<String> {
        let mut all = vec![String::new()];
        for part in &self.parts {
            if let Part::Text(text) = part {
                all.iter_mut().for_each(|start| start.push_str(text));
                continue;
            }
            let ends = part.texts();
            all = all.iter().flat_map(|start| ends.iter().map(move |end| format!("{start}{end}"))).collect();
        }
        all
    }

    fn count_and_longest(&self) -> (u64, u64) {
        self.parts.iter().fold((1, 0), |(count, longest): (u64, u64), part| {
            let (more, length) = part.count_and_longest();
            (count.saturating_mul(more), longest.saturating_add(length))
        })
    }
}

impl Part {
    fn count_and_longest(&self) -> (u64, u64) {
        match self {
            Part::Text(text) => (1, text.len() as u64),
            Part::Any(choices) => choices.iter().fold((0, 0), |(count, longest): (u64, u64), choice| {
                let (more, length) = choice.count_and_longest();
                (count.saturating_add(more), longest.max(length))
            }),
            // 20 digits are the longest number.
            Part::Numbers { first, last, step, width } => {
                ((first.abs_diff(*last) / step).saturating_add(1), (*width).max(20) as u64)
            }
            Part::Letters { first, last } => (u64::from(first.abs_diff(*last)) + 1, 1),
        }
    }

    fn texts(&self) -> Vec<String> {
        match self {
            Part::Text(text) => vec![text.clone()],
            Part::Any(choices) => choices.iter().flat_map(Braces::expand).collect(),
            Part::Numbers { first, last, step, width } => {
                let steps = 0..=first.abs_diff(*last) / step;
                let value = |n: u64| if first <= last { first + n * step } else { first - n * step };
                steps.map(|n| format!("{:0width$}", value(n))).collect()
            }
            Part::Letters { first, last } => {
                let mut letters: Vec<u8> = (*first.min(last)..=*first.max(last)).collect();
                if first > last {
                    letters.reverse();
                }
                letters.iter().map(|letter| char::from(*letter).to_string()).collect()
            }
        }
    }
}

fn parse(text: &str, depth: u32) -> Braces {
    let mut parts = Vec::new();
    let mut plain = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('{') {
        let (before, from) = rest.split_at(at);
        plain.push_str(before);
        match group(from, depth) {
            Some((part, length)) => {
                if !plain.is_empty() {
                    parts.push(Part::Text(std::mem::take(&mut plain)));
                }
                parts.push(part);
                rest = &from[length..];
            }
            None => {
                plain.push('{');
                rest = &from[1..];
            }
        }
    }
    let _ = plain.write_str(rest);
    if !plain.is_empty() {
        parts.push(Part::Text(plain));
    }
    Braces { parts }
}

/// The braces at the beginning of `text`, and their length.
fn group(text: &str, depth: u32) -> Option<(Part, usize)> {
    if depth >= MAX_DEPTH {
        return None;
    }
    let mut open = 0_u32;
    let mut commas = Vec::new();
    let end = text.bytes().enumerate().find_map(|(at, byte)| {
        match byte {
            b'{' => open += 1,
            b'}' if open == 1 => return Some(at),
            b'}' => open -= 1,
            b',' if open == 1 => commas.push(at),
            _ => {}
        }
        None
    })?;
    if commas.is_empty() {
        return Some((range(&text[1..end])?, end + 1));
    }
    commas.push(end);
    let mut start = 1;
    let choices = commas.iter().map(|comma| {
        let choice = parse(&text[start..*comma], depth + 1);
        start = comma + 1;
        choice
    });
    Some((Part::Any(choices.collect()), end + 1))
}

fn range(inside: &str) -> Option<Part> {
    let mut ends = inside.split("..");
    let (first, last, step) = (ends.next()?, ends.next()?, ends.next());
    if ends.next().is_some() {
        return None;
    }
    if let ([first], [last], None) = (first.as_bytes(), last.as_bytes(), step)
        && first.is_ascii_alphabetic()
        && last.is_ascii_alphabetic()
    {
        return Some(Part::Letters { first: *first, last: *last });
    }
    let number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten();
    let step = step.map_or(Some(1), number).filter(|step| *step > 0)?;
    let padded = |text: &str| text.len() > 1 && text.starts_with('0');
    let width = if padded(first) || padded(last) { first.len().max(last.len()) } else { 0 };
    Some(Part::Numbers { first: number(first)?, last: number(last)?, step, width })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ranges_and_lists_expand_as_in_a_shell() {
        let check = |text: &str, expected: &str| {
            let braces = Braces::parse(text);
            let expanded = braces.expand();
            assert_eq!(expanded.join(" "), expected, "{text}");
            assert_eq!(braces.size().0, expanded.len() as u64, "{text}");
        };
        check("a", "a");
        check("", "");
        check("s-{008..011}.tar", "s-008.tar s-009.tar s-010.tar s-011.tar");
        check("{8..11}", "8 9 10 11");
        check("{01..100..49}", "001 050 099");
        check("{3..1}", "3 2 1");
        check("{c..a}{1..2}", "c1 c2 b1 b2 a1 a2");
        check("x{a,b{1..2},}y", "xay xb1y xb2y xy");
        check("{a,{b,c}}d", "ad bd cd");
        check("{} {a} {a..} {1..2..0} {-1..2} {a,b", "{} {a} {a..} {1..2..0} {-1..2} {a,b");
        check("{x{1..2}", "{x1 {x2");
        check("}{,}", "} }");
        check("{1..99999999999999999999}", "{1..99999999999999999999}");
    }

    #[test]
    fn the_size_is_known_before_anything_is_expanded() {
        assert_eq!(Braces::parse("{0..99999999999}").size().0, 100_000_000_000);
        assert_eq!(Braces::parse("{0..18446744073709551615}").size().0, u64::MAX);
        assert_eq!(Braces::parse(&"{1..1000000}".repeat(20)).size(), (u64::MAX, u64::MAX));
        // A deep nest is parsed without a deep stack.
        assert!(Braces::parse(&("{a,".repeat(5000) + &"}".repeat(5000))).size().0 < 100);
    }

    proptest! {
        #[test]
        fn the_size_is_never_wrong(text in "([{},a0]|\\.\\.|[0-9]){0,16}") {
            let braces = Braces::parse(&text);
            let (count, bytes) = braces.size();
            if count <= 10_000 {
                let expanded = braces.expand();
                prop_assert_eq!(expanded.len() as u64, count);
                prop_assert!(expanded.iter().map(|text| text.len() as u64).sum::<u64>() <= bytes);
            }
        }
    }
}
