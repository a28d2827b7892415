//! A long text in pieces that can be said at one breath: at sentences, where one is too long at commas, then at spaces,
//! and in the end anywhere.
//!
//! Whatever fits together stays together, so that there are few pieces. Time is linear in the text.

/// Where a piece ends, by what stands there; a coarser place comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Break {
    /// An empty line.
    Paragraph,
    /// The end of a sentence.
    Sentence,
    /// A comma and its kin.
    Clause,
    /// A space.
    Word,
    /// Inside a word.
    Letter,
}

/// A part of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TextPart {
    pub(crate) text: String,
    /// What comes behind it.
    pub(crate) ends_with: Break,
}

const BY_FINENESS: [Break; 5] = [Break::Paragraph, Break::Sentence, Break::Clause, Break::Word, Break::Letter];

const SENTENCE_ENDS: &str = ".!?…。！？؟۔।";
/// End a sentence without a space behind them.
const SPACELESS: &str = "。！？、，；：";
const CLAUSE_ENDS: &str = ",;:—،؛、，；：";
/// Belong to what they close.
const CLOSING: &str = "\"')]}»”’」』";

/// The paragraphs of a text.
pub(crate) fn paragraphs(text: &str) -> Vec<&str> {
    cut(text, Break::Paragraph)
}

/// `text` in parts of which each counts for `most` at most, as far as that can be; none of them is empty. `count` says
/// what a piece of it counts for.
pub(crate) fn split(text: &str, most: usize, count: &dyn Fn(&str) -> usize) -> Vec<TextPart> {
    let mut parts = Vec::new();
    split_at(0, text, Break::Paragraph, most, count, &mut parts);
    parts
}

/// Cuts at the breaks of one level. Neighbours that fit together are one part; what does not fit alone is cut finer. The
/// last part ends as `text` does.
fn split_at(
    level: usize,
    text: &str,
    ends_with: Break,
    most: usize,
    count: &dyn Fn(&str) -> usize,
    parts: &mut Vec<TextPart>,
) {
    let here = BY_FINENESS[level];
    let pieces = cut(text, here);
    let (mut together, mut sum) = (String::new(), 0);
    let finish = |together: &mut String, parts: &mut Vec<TextPart>, ends_with| {
        if !together.is_empty() {
            parts.push(TextPart { text: std::mem::take(together), ends_with });
        }
    };
    for (place, piece) in pieces.iter().enumerate() {
        let weight = count(piece);
        let ends = if place + 1 == pieces.len() { ends_with } else { here };
        if weight > most && level + 1 < BY_FINENESS.len() {
            finish(&mut together, parts, here);
            sum = 0;
            split_at(level + 1, piece, ends, most, count, parts);
            continue;
        }
        // Paragraphs are never said at one breath; between words there is a space.
        let joint = usize::from(here != Break::Letter);
        if !together.is_empty() && (here == Break::Paragraph || sum + joint + weight > most) {
            finish(&mut together, parts, here);
            sum = 0;
        }
        if !together.is_empty() && joint > 0 {
            together.push(' ');
            sum += joint;
        }
        together.push_str(piece);
        sum += weight;
        if place + 1 == pieces.len() {
            finish(&mut together, parts, ends);
        }
    }
}

/// The pieces between the breaks of one kind, without the space around them and without empty ones.
fn cut(text: &str, at: Break) -> Vec<&str> {
    let pieces: Vec<&str> = match at {
        Break::Paragraph => between_empty_lines(text),
        Break::Sentence => behind(text, SENTENCE_ENDS),
        Break::Clause => behind(text, CLAUSE_ENDS),
        Break::Word => text.split_whitespace().collect(),
        Break::Letter => text.char_indices().map(|(place, c)| &text[place..place + c.len_utf8()]).collect(),
    };
    pieces.into_iter().map(str::trim).filter(|piece| !piece.is_empty()).collect()
}

fn between_empty_lines(text: &str) -> Vec<&str> {
    let (mut pieces, mut from, mut place) = (Vec::new(), 0, 0);
    for line in text.split_inclusive('\n') {
        if line.trim().is_empty() {
            pieces.push(&text[from..place]);
            from = place;
        }
        place += line.len();
    }
    pieces.push(&text[from..]);
    pieces
}

/// Cuts behind each of `ends`, what closes with it included, where a space follows or none is needed.
fn behind<'t>(text: &'t str, ends: &str) -> Vec<&'t str> {
    let (mut pieces, mut from) = (Vec::new(), 0);
    let mut characters = text.char_indices().peekable();
    while let Some((_, c)) = characters.next() {
        if !ends.contains(c) {
            continue;
        }
        let mut last = c;
        while let Some((_, closing)) = characters.next_if(|(_, c)| ends.contains(*c) || CLOSING.contains(*c)) {
            last = closing;
        }
        let rest = characters.peek().map_or(text.len(), |(place, _)| *place);
        let is_apart = text[rest..].chars().next().is_none_or(char::is_whitespace);
        if is_apart || SPACELESS.contains(c) || SPACELESS.contains(last) {
            pieces.push(&text[from..rest]);
            from = rest;
        }
    }
    pieces.push(&text[from..]);
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(text: &str) -> usize {
        text.chars().count()
    }

    #[track_caller]
    fn check(text: &str, most: usize, expected: &[(&str, Break)]) {
        let parts = split(text, most, &count);
        let found: Vec<(&str, Break)> = parts.iter().map(|part| (part.text.as_str(), part.ends_with)).collect();
        assert_eq!(found, expected, "{text}");
    }

    #[test]
    fn the_coarsest_break_that_is_near_enough_is_taken() {
        use Break::{Clause, Letter, Paragraph, Sentence, Word};
        check("", 10, &[]);
        check(" \n\n ", 10, &[]);
        check("One. Two. Three.", 100, &[("One. Two. Three.", Paragraph)]);
        check("One. Two. Three.", 9, &[("One. Two.", Sentence), ("Three.", Paragraph)]);
        check("He said \"no!\" Then: no.", 14, &[("He said \"no!\"", Sentence), ("Then: no.", Paragraph)]);
        check("about 3.14 and a.b. yes", 19, &[("about 3.14 and a.b.", Sentence), ("yes", Paragraph)]);
        check("a, bb, cc, dd", 6, &[("a, bb,", Clause), ("cc, dd", Paragraph)]);
        check("aaa bbb ccc, d", 7, &[("aaa bbb", Word), ("ccc,", Clause), ("d", Paragraph)]);
        check("abcdefg hi", 3, &[("abc", Letter), ("def", Letter), ("g", Word), ("hi", Paragraph)]);
        check("a\nb\n\nc.\n \nd", 100, &[("a\nb", Paragraph), ("c.", Paragraph), ("d", Paragraph)]);
        check("你好。世界！再见", 4, &[("你好。", Sentence), ("世界！", Sentence), ("再见", Paragraph)]);
        check("چطوری؟ خوبم، مرسی", 7, &[("چطوری؟", Sentence), ("خوبم،", Clause), ("مرسی", Paragraph)]);
        check("Wait... what?! Yes", 8, &[("Wait...", Sentence), ("what?!", Sentence), ("Yes", Paragraph)]);
    }

    #[test]
    fn nothing_is_lost_and_nothing_is_too_long() {
        let sentence = "The quick brown fox, it is said, jumps over the lazy dog. ";
        for text in [sentence.repeat(1725), "x".repeat(100_000), "word ".repeat(20_000), ". ".repeat(50_000)] {
            let parts = split(&text, 150, &count);
            assert!(parts.iter().all(|part| (1..=150).contains(&count(&part.text))));
            let letters = |text: &str| text.chars().filter(|c| !c.is_whitespace()).collect::<String>();
            assert_eq!(parts.iter().map(|part| letters(&part.text)).collect::<String>(), letters(&text));
            assert!(parts.len() <= text.len() / 70, "{} parts", parts.len());
        }
    }
}
