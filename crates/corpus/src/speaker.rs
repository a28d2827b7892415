//! The speaker taken from an id, by a pattern simpler than a regular expression.
//!
//! `{speaker}` stands for the speaker, `*` for any run of characters (also none), everything else for itself; the whole
//! name must match, the speaker is the shortest that lets it. A pattern without `/` is held against the last part of
//! the id (the file name), one with `/` against all of it.
//!
//! | pattern | id | speaker |
//! |---|---|---|
//! | `{speaker}_*` | `p248_065` | `p248` |
//! | `*-{speaker}-*` | `en-anna-0012` | `anna` |
//! | `{speaker}/*` | `p248/065` | `p248` |

use crate::error::CorpusError;

/// How to find the speaker in an id. Holding one means that the pattern makes sense.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpeakerPattern {
    parts: Vec<Part>,
    whole_id: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Literal(String),
    Any,
    Speaker,
}

impl SpeakerPattern {
    /// Reads a pattern. Fails when `{speaker}` is not in it exactly once, or when it looks like a regular expression.
    pub fn parse(pattern: &str) -> Result<SpeakerPattern, CorpusError> {
        let refuse = |reason| Err(CorpusError::SpeakerPattern { pattern: pattern.to_owned(), reason });
        if pattern.contains(['(', '[', '\\', '^', '$']) {
            return refuse("this is no regular expression: write {speaker} for the speaker and * for anything else");
        }
        let mut pieces = pattern.split("{speaker}");
        let (Some(before), Some(after), None) = (pieces.next(), pieces.next(), pieces.next()) else {
            return refuse("{speaker} must be in it exactly once");
        };
        if before.contains(['{', '}']) || after.contains(['{', '}']) {
            return refuse("the only name in braces is {speaker}");
        }
        let mut parts = Vec::new();
        push_parts(&mut parts, before);
        parts.push(Part::Speaker);
        push_parts(&mut parts, after);
        Ok(SpeakerPattern { parts, whole_id: pattern.contains('/') })
    }

    /// The speaker in `id`; none when the pattern does not match. Cost: the length of the id.
    pub fn find<'a>(&self, id: &'a str) -> Option<&'a str> {
        let name = if self.whole_id { id } else { id.rsplit('/').next().unwrap_or(id) };
        let at = self.parts.iter().position(|part| *part == Part::Speaker)?;
        let (before, after) = (&self.parts[..at], &self.parts[at + 1..]);
        // The first place where the prefix can end, and the first where the rest can begin, are the best ones: every
        // later one leaves less text for the rest to match.
        let start = first_end(before, name)?;
        let one = start + name[start..].chars().next()?.len_utf8();
        let end = match after {
            [] => name.len(),
            [Part::Literal(literal)] => name.len().checked_sub(literal.len()).filter(|end| *end >= one)?,
            [Part::Literal(literal), ..] => one + name[one..].find(literal.as_str())?,
            [..] => one,
        };
        let rest = name.get(end..)?;
        matches(after, rest).then(|| &name[start..end])
    }
}

/// The first place where a text that `parts` describe can end.
fn first_end(parts: &[Part], name: &str) -> Option<usize> {
    let (mut at, mut floating) = (0, false);
    for part in parts {
        let Part::Literal(literal) = part else {
            floating = true;
            continue;
        };
        let rest = &name[at..];
        at += if floating { rest.find(literal.as_str())? } else { rest.starts_with(literal.as_str()).then_some(0)? };
        at += literal.len();
        floating = false;
    }
    Some(at)
}

fn push_parts(parts: &mut Vec<Part>, text: &str) {
    for (i, literal) in text.split('*').enumerate() {
        if i > 0 && parts.last() != Some(&Part::Any) {
            parts.push(Part::Any);
        }
        if !literal.is_empty() {
            parts.push(Part::Literal(literal.to_owned()));
        }
    }
}

/// Whether `text` is what `parts` say. The first place a literal fits is as good as any later one, except the last.
fn matches(parts: &[Part], text: &str) -> bool {
    let mut rest = text;
    let mut floating = false;
    for (i, part) in parts.iter().enumerate() {
        let Part::Literal(literal) = part else {
            floating = true;
            continue;
        };
        let last = i + 1 == parts.len();
        rest = if !floating {
            let Some(rest) = rest.strip_prefix(literal.as_str()) else { return false };
            rest
        } else if last {
            let Some(_) = rest.strip_suffix(literal.as_str()) else { return false };
            ""
        } else {
            let Some((_, rest)) = rest.split_once(literal.as_str()) else { return false };
            rest
        };
        floating = false;
    }
    floating || rest.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speakers_in_ids() {
        let check = |pattern: &str, id: &str, speaker: Option<&str>| {
            assert_eq!(SpeakerPattern::parse(pattern).unwrap().find(id), speaker, "{pattern} {id}");
        };
        check("{speaker}_*", "p248_065", Some("p248"));
        check("{speaker}_*", "p248_065_mic2", Some("p248"));
        check("{speaker}_*", "p248", None);
        check("{speaker}_*", "_065", None);
        check("{speaker}_*", "wav48/p248/p248_065", Some("p248"));
        check("{speaker}/*", "p248/065", Some("p248"));
        check("*/{speaker}/*", "wav48/p248/p248_065", Some("p248"));
        check("*-{speaker}-*", "en-anna-0012", Some("anna"));
        check("vctk_{speaker}", "vctk_p1", Some("p1"));
        check("vctk_{speaker}", "arctic_p1", None);
        check("{speaker}", "anyone", Some("anyone"));
        check("{speaker}_*_a", "x_1_a_a", Some("x"));
        check("{speaker}_*", "زهرا_۱", Some("زهرا"));
        check("*{speaker}", "abc", Some("abc"));
        check("{speaker}*", "abc", Some("a"));
        check("{speaker}é", "é", None);
        check("{speaker}_x", "a_b_x", Some("a_b"));
        check("{speaker}_*", &format!("{}_1", "-".repeat(1 << 20)), Some(&"-".repeat(1 << 20)));
        check("*_*-{speaker}_*_9", &"_-".repeat(1 << 19), None);
    }

    #[test]
    fn patterns_that_make_no_sense_are_refused() {
        for pattern in ["", "*_", "{speaker}{speaker}", "{speaker}_{*}", r"^(p\d+)_", "{voice}_*", "[a-z]{speaker}"] {
            let error = SpeakerPattern::parse(pattern).unwrap_err().to_string();
            assert!(error.contains("{speaker}_*"), "{error}");
        }
    }
}
