//! Splits a long text into chunks: at sentences; a sentence that is too long at commas, then at spaces, then anywhere.
//!
//! Neighbours that fit into one chunk stay together, so that there are few chunks. Time is linear in the text.

/// What a chunk ends with, coarsest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Break {
    /// An empty line.
    Paragraph,
    /// The end of a sentence.
    Sentence,
    /// A comma or similar.
    Clause,
    /// A space.
    Word,
    /// Inside a word.
    Letter,
}

/// A chunk of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TextChunk {
    pub(crate) text: String,
    /// The break after it.
    pub(crate) ends_with: Break,
}

/// All breaks, coarsest first.
const BREAKS: [Break; 5] = [Break::Paragraph, Break::Sentence, Break::Clause, Break::Word, Break::Letter];

const SENTENCE_ENDS: &str = ".!?…。！？؟۔।";
/// Punctuation that needs no space after it.
const SPACELESS: &str = "。！？、，；：";
const CLAUSE_ENDS: &str = ",;:—،؛、，；：";
/// Closing marks, which belong to the text before them.
const CLOSING: &str = "\"')]}»”’」』";

/// The paragraphs of a text.
pub(crate) fn paragraphs(text: &str) -> Vec<&str> {
    cut(text, Break::Paragraph)
}

/// Splits `text` into non-empty chunks of at most `max_tokens` tokens each, as far as possible. `count` counts the tokens
/// of a part of the text.
pub(crate) fn split(text: &str, max_tokens: usize, count: &dyn Fn(&str) -> usize) -> Vec<TextChunk> {
    let mut splitter = Splitter { max_tokens, count, chunks: Vec::new() };
    splitter.split_at(0, text, Break::Paragraph);
    splitter.chunks
}

struct Splitter<'a> {
    max_tokens: usize,
    count: &'a dyn Fn(&str) -> usize,
    chunks: Vec<TextChunk>,
}

impl Splitter<'_> {
    /// Cuts at the breaks of one level. Neighbours that fit together become one chunk; a part that is too long alone is cut
    /// at the next level. The last chunk ends as `text` does.
    fn split_at(&mut self, level: usize, text: &str, ends_with: Break) {
        let here = BREAKS[level];
        let parts = cut(text, here);
        let (mut joined, mut sum) = (String::new(), 0);
        for (index, part) in parts.iter().enumerate() {
            let tokens = (self.count)(part);
            let ends = if index + 1 == parts.len() { ends_with } else { here };
            if tokens > self.max_tokens && level + 1 < BREAKS.len() {
                self.finish(&mut joined, here);
                sum = 0;
                self.split_at(level + 1, part, ends);
                continue;
            }
            // Paragraphs are never joined; words are joined by a space.
            let space = usize::from(here != Break::Letter);
            if !joined.is_empty() && (here == Break::Paragraph || sum + space + tokens > self.max_tokens) {
                self.finish(&mut joined, here);
                sum = 0;
            }
            if !joined.is_empty() && space > 0 {
                joined.push(' ');
                sum += space;
            }
            joined.push_str(part);
            sum += tokens;
            if index + 1 == parts.len() {
                self.finish(&mut joined, ends);
            }
        }
    }

    /// Ends the chunk in `joined`, if there is one.
    fn finish(&mut self, joined: &mut String, ends_with: Break) {
        if !joined.is_empty() {
            self.chunks.push(TextChunk { text: std::mem::take(joined), ends_with });
        }
    }
}

/// The parts between breaks of one kind, trimmed and without empty ones.
fn cut(text: &str, at: Break) -> Vec<&str> {
    let parts: Vec<&str> = match at {
        Break::Paragraph => between_empty_lines(text),
        Break::Sentence => after(text, SENTENCE_ENDS),
        Break::Clause => after(text, CLAUSE_ENDS),
        Break::Word => text.split_whitespace().collect(),
        Break::Letter => text.char_indices().map(|(at, c)| &text[at..at + c.len_utf8()]).collect(),
    };
    parts.into_iter().map(str::trim).filter(|part| !part.is_empty()).collect()
}

fn between_empty_lines(text: &str) -> Vec<&str> {
    let (mut parts, mut start, mut at) = (Vec::new(), 0, 0);
    for line in text.split_inclusive('\n') {
        if line.trim().is_empty() {
            parts.push(&text[start..at]);
            start = at;
        }
        at += line.len();
    }
    parts.push(&text[start..]);
    parts
}

/// Cuts after each of `ends` and its closing marks, if a space follows or none is needed.
fn after<'t>(text: &'t str, ends: &str) -> Vec<&'t str> {
    let (mut parts, mut start) = (Vec::new(), 0);
    let mut characters = text.char_indices().peekable();
    while let Some((_, c)) = characters.next() {
        if !ends.contains(c) {
            continue;
        }
        let mut last = c;
        while let Some((_, closing)) = characters.next_if(|(_, c)| ends.contains(*c) || CLOSING.contains(*c)) {
            last = closing;
        }
        let rest = characters.peek().map_or(text.len(), |(at, _)| *at);
        let ends_here = text[rest..].chars().next().is_none_or(char::is_whitespace);
        if ends_here || SPACELESS.contains(c) || SPACELESS.contains(last) {
            parts.push(&text[start..rest]);
            start = rest;
        }
    }
    parts.push(&text[start..]);
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(text: &str) -> usize {
        text.chars().count()
    }

    #[track_caller]
    fn check(text: &str, max_tokens: usize, expected: &[(&str, Break)]) {
        let chunks = split(text, max_tokens, &count);
        let found: Vec<(&str, Break)> = chunks.iter().map(|chunk| (chunk.text.as_str(), chunk.ends_with)).collect();
        assert_eq!(found, expected, "{text}");
    }

    #[test]
    fn the_coarsest_break_that_fits_is_used() {
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
            let chunks = split(&text, 150, &count);
            assert!(chunks.iter().all(|chunk| (1..=150).contains(&count(&chunk.text))));
            let letters = |text: &str| text.chars().filter(|c| !c.is_whitespace()).collect::<String>();
            assert_eq!(chunks.iter().map(|chunk| letters(&chunk.text)).collect::<String>(), letters(&text));
            assert!(chunks.len() <= text.len() / 70, "{} chunks", chunks.len());
        }
    }
}
