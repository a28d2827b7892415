//! Wildcards of one segment of a path: `*`, `?`, `[a-z]`, `[!0-9]`.

/// The wildcards of one segment, parsed. They match within a segment: none matches a slash.
pub(crate) struct SegmentPattern {
    tokens: Vec<Token>,
}

enum Token {
    Char(char),
    /// `?`.
    One,
    /// `*`.
    Many,
    /// `[..]`: ranges, and whether they are what does not match.
    Class {
        ranges: Vec<(char, char)>,
        negated: bool,
    },
}

/// Whether `text` has a wildcard.
pub(crate) fn has_wildcard(text: &str) -> bool {
    text.split('/').any(|segment| SegmentPattern::parse(segment).literal().is_none())
}

impl SegmentPattern {
    /// Every text is a pattern: a `[` that nothing closes stands for itself.
    pub(crate) fn parse(segment: &str) -> SegmentPattern {
        let mut tokens = Vec::new();
        let mut rest = segment;
        while let Some(c) = rest.chars().next() {
            let after = &rest[c.len_utf8()..];
            let (token, after) = match c {
                '*' => (Token::Many, after.trim_start_matches('*')),
                '?' => (Token::One, after),
                '[' => class(after).unwrap_or((Token::Char('['), after)),
                c => (Token::Char(c), after),
            };
            tokens.push(token);
            rest = after;
        }
        SegmentPattern { tokens }
    }

    /// The text itself if there is no wildcard.
    pub(crate) fn literal(&self) -> Option<String> {
        let prefix = self.prefix();
        (prefix.chars().count() == self.tokens.len()).then_some(prefix)
    }

    /// What every match begins with.
    pub(crate) fn prefix(&self) -> String {
        let chars = self.tokens.iter().map_while(|token| match token {
            Token::Char(c) => Some(*c),
            _ => None,
        });
        chars.collect()
    }

    /// Whether `name` matches as a whole. A leading dot is only matched by a dot, as in a shell.
    ///
    /// Takes at most time in proportion to both lengths multiplied.
    pub(crate) fn matches(&self, name: &str) -> bool {
        if name.starts_with('.') && !matches!(self.tokens.first(), Some(Token::Char('.'))) {
            return false;
        }
        let name: Vec<char> = name.chars().collect();
        let (mut at, mut token) = (0, 0);
        // The last `*`: where it stands, and up to where it has matched.
        let mut star = None;
        while at < name.len() {
            match self.tokens.get(token) {
                Some(Token::Many) => {
                    star = Some((token, at));
                    token += 1;
                }
                Some(one) if one.matches(name[at]) => {
                    at += 1;
                    token += 1;
                }
                _ => {
                    let Some((many, until)) = star else { return false };
                    star = Some((many, until + 1));
                    (at, token) = (until + 1, many + 1);
                }
            }
        }
        self.tokens[token..].iter().all(|token| matches!(token, Token::Many))
    }
}

impl Token {
    fn matches(&self, c: char) -> bool {
        match self {
            Token::Char(expected) => *expected == c,
            Token::One => true,
            Token::Many => false,
            Token::Class { ranges, negated } => {
                ranges.iter().any(|(first, last)| (*first..=*last).contains(&c)) != *negated
            }
        }
    }
}

/// The class whose `[` stands before `text`, and the text after it.
fn class(text: &str) -> Option<(Token, &str)> {
    let (negated, text) = match text.strip_prefix(['!', '^']) {
        Some(text) => (true, text),
        None => (false, text),
    };
    // A `]` at the beginning is one of the characters.
    let first = text.chars().next()?;
    let end = text[first.len_utf8()..].find(']')? + first.len_utf8();
    let chars: Vec<char> = text[..end].chars().collect();
    let mut ranges = Vec::new();
    let mut rest = chars.as_slice();
    while let [c, after @ ..] = rest {
        rest = match after {
            ['-', last, after @ ..] => {
                ranges.push((*c, *last));
                after
            }
            after => {
                ranges.push((*c, *c));
                after
            }
        };
    }
    Some((Token::Class { ranges, negated }, &text[end + 1..]))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn wildcards_match_as_in_a_shell() {
        let check = |pattern: &str, name: &str, expected: bool| {
            assert_eq!(SegmentPattern::parse(pattern).matches(name), expected, "{pattern} {name}");
        };
        check("*.tar", "a.tar", true);
        check("*.tar", ".tar", false);
        check("*.tar", "a.tar.gz", false);
        check("**a*b*", "xaxxb", true);
        check("a*a", "a", false);
        check("?-[0-9][!a-f]", "é-7g", true);
        check("?-[0-9][^a-f]", "x-7c", false);
        check("[]x]", "]", true);
        check("[a-]", "-", true);
        check("[", "[", true);
        check("a[]", "a[]", true);
        check(".*", ".x", true);
        check("", "", true);
        check("", "a", false);
        assert_eq!(SegmentPattern::parse("train-*[0-9]").prefix(), "train-");
        assert!(has_wildcard("a/*/b") && has_wildcard("a?") && !has_wildcard("a[/]b") && !has_wildcard("a{1..2}"));
    }

    #[test]
    fn many_stars_take_no_exponential_time() {
        let pattern = "*a".repeat(500);
        assert!(!SegmentPattern::parse(&pattern).matches(&("a".repeat(2000) + "b")));
    }

    proptest! {
        #[test]
        fn a_name_matches_itself_and_nothing_panics(pattern in "[*?\\[\\]!^a.é-]{0,12}", name in "[a.é\\[\\]-]{0,12}") {
            let parsed = SegmentPattern::parse(&pattern);
            let _ = parsed.matches(&name);
            if let Some(literal) = parsed.literal() {
                prop_assert_eq!(&literal, &pattern);
                prop_assert!(parsed.matches(&literal));
            }
            prop_assert!(SegmentPattern::parse("*").matches(&name) != name.starts_with('.'));
        }
    }
}
