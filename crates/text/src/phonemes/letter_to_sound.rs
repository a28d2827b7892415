//! How a word that is in no dictionary is probably said.
//!
//! A few decision trees per letter. From the last letter of the word to the first, each tree of the letter asks about
//! its neighbours, about the end of the word and about the sounds already chosen to the right, and votes for a chunk: no
//! phone, one, or two. Most votes win. The trees are learned from the pronouncing dictionary by
//! `examples/train_letter_to_sound` and stored in `data/letter_to_sound.bin`; that file is walked as it is.
//!
//! On a tenth of the dictionary held out, 10.9 % of the phones are wrong (8.4 % when stress does not count). One tree
//! per letter, however large, stays at 12.0 %.
//!
//! Layout, integers little-endian: magic, `u16` chunks; for every chunk its length and its phones; `u8` trees per
//! letter; for `a` to `z` the `u32` offset of each tree, counted from the end of this list; trees. A node is a leaf when
//! its first byte has the top bit set: the other fifteen bits of two bytes are the chunk. Else it is a question:
//! feature, value, and three bytes with the length of the yes-branch, which follows; the no-branch comes after that.

use std::sync::LazyLock;

use super::features::{FEATURES, LetterFeatures, yes};
use super::phone::{Phone, Stress};

/// The first bytes of the file.
pub const MAGIC: [u8; 4] = *b"TDL1";
/// Marks a leaf.
pub const LEAF: u8 = 0x80;

/// Trained trees, opened. Holding one means that its header is sound.
pub struct LetterToSound<'a> {
    chunks: Vec<&'a [u8]>,
    /// So many for `a`, so many for `b`, and so on.
    trees: Vec<&'a [u8]>,
    trees_per_letter: usize,
}

/// The one that comes with the program.
static ENGLISH: LazyLock<Option<LetterToSound<'static>>> =
    LazyLock::new(|| LetterToSound::open(include_bytes!("../../data/letter_to_sound.bin")));

impl LetterToSound<'static> {
    /// The trees that come with the program, opened on first use.
    pub fn english() -> &'static LetterToSound<'static> {
        let Some(trees) = ENGLISH.as_ref() else {
            // Our own file, fixed when the program was built and read by every test.
            unreachable!("the built-in letter-to-sound trees have a broken header")
        };
        trees
    }
}

impl<'a> LetterToSound<'a> {
    /// Opens trained trees; nothing when the bytes are not some.
    pub fn open(bytes: &'a [u8]) -> Option<LetterToSound<'a>> {
        let rest = bytes.strip_prefix(&MAGIC)?;
        let (num_chunks, mut rest) = rest.split_first_chunk::<2>()?;
        let mut chunks = Vec::new();
        for _ in 0..u16::from_le_bytes(*num_chunks) {
            let (len, after) = rest.split_first()?;
            let (phones, after) = after.split_at_checked(usize::from(*len))?;
            if phones.iter().any(|index| Phone::from_index(*index).is_none()) {
                return None;
            }
            chunks.push(phones);
            rest = after;
        }
        let (per_letter, rest) = rest.split_first().filter(|(count, _)| **count > 0)?;
        let trees_per_letter = usize::from(*per_letter);
        let (offsets, nodes) = rest.split_at_checked(26 * 4 * trees_per_letter)?;
        let tree = |offset: &[u8; 4]| nodes.get(u32::from_le_bytes(*offset) as usize..);
        let trees = offsets.as_chunks::<4>().0.iter().map(tree).collect::<Option<Vec<_>>>()?;
        Some(LetterToSound { chunks, trees, trees_per_letter })
    }

    /// Appends how `word` is probably said to `out`. Anything but `a` to `z` is silent. Time is linear in the length.
    pub fn guess(&self, word: &str, out: &mut Vec<Phone>) {
        let letters: Vec<u8> = word.bytes().filter(u8::is_ascii_lowercase).collect();
        let start = out.len();
        let mut features = LetterFeatures::new(&letters);
        let mut votes = Vec::with_capacity(self.trees_per_letter);
        for at in (0..letters.len()).rev() {
            votes.clear();
            let asked = features.at(at);
            let first = usize::from(letters[at] - b'a') * self.trees_per_letter;
            votes.extend(self.trees[first..][..self.trees_per_letter].iter().map(|tree| vote(tree, &asked)));
            let phones = self.winner(&votes).iter().filter_map(|index| Phone::from_index(*index));
            for phone in phones.rev() {
                features.said(phone);
                out.push(phone);
            }
        }
        out[start..].reverse();
        stress_once(&mut out[start..]);
    }

    /// The chunk with most votes; on a draw the one whose first vote was earlier.
    fn winner(&self, votes: &[usize]) -> &'a [u8] {
        let count = |chunk: &usize| votes.iter().filter(|vote| *vote == chunk).count();
        let best = votes.iter().rev().max_by_key(|chunk| count(chunk));
        best.and_then(|chunk| self.chunks.get(*chunk)).copied().unwrap_or(&[])
    }
}

/// The chunk a tree answers with. A damaged tree answers with one that does not exist: silence, not a panic.
fn vote(mut tree: &[u8], asked: &[u8; FEATURES]) -> usize {
    loop {
        let Some((&first, rest)) = tree.split_first() else { return usize::MAX };
        if first & LEAF != 0 {
            let low = rest.first().copied().unwrap_or(0);
            return usize::from(u16::from_be_bytes([first & !LEAF, low]));
        }
        let Some(([value, a, b, c], branches)) = rest.split_first_chunk::<4>() else { return usize::MAX };
        let skip = if yes(asked, first, *value) { 0 } else { u32::from_le_bytes([*a, *b, *c, 0]) as usize };
        tree = branches.get(skip..).unwrap_or(&[]);
    }
}

/// Gives a word without a primary stress one: its first secondary stress becomes it, else its first vowel.
fn stress_once(phones: &mut [Phone]) {
    let with = |stress| move |phone: &Phone| phone.stress() == Some(stress);
    if phones.iter().any(with(Stress::Primary)) {
        return;
    }
    let place = phones.iter().position(with(Stress::Secondary)).or(phones.iter().position(|phone| phone.is_vowel()));
    if let Some(place) = place {
        phones[place] = phones[place].with_stress(Stress::Primary);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(word: &str, expected: &str) {
        let mut phones = Vec::new();
        LetterToSound::english().guess(word, &mut phones);
        let said = phones.iter().map(|phone| phone.name()).collect::<Vec<_>>().join(" ");
        assert_eq!(said, expected, "{word}");
    }

    #[test]
    fn regular_words_come_out_right() {
        check("vlick", "V L IH1 K");
        check("flane", "F L EY1 N");
        check("sheep", "SH IY1 P");
        check("thrix", "TH R IH1 K S");
    }

    #[test]
    fn what_is_not_a_letter_is_silent() {
        check("", "");
        check("'-é1", "");
        check("c'at", "K AE1 T");
    }

    #[test]
    fn a_word_has_a_primary_stress_if_it_has_a_vowel() {
        for word in ["tandemize", "zorblaxian", "kathleenish", "unwhittemored"] {
            let mut phones = Vec::new();
            LetterToSound::english().guess(word, &mut phones);
            let primary = phones.iter().filter(|phone| phone.stress() == Some(Stress::Primary)).count();
            assert_eq!(primary, 1, "{word}: {phones:?}");
        }
    }

    #[test]
    fn damaged_trees_are_refused_or_silent() {
        let whole: &'static [u8] = include_bytes!("../../data/letter_to_sound.bin");
        for len in [0, 3, 5, 40, 200] {
            assert!(LetterToSound::open(&whole[..len]).is_none(), "{len}");
        }
        // Long enough for every tree to start, too short for the last ones to end.
        if let Some(cut) = LetterToSound::open(&whole[..whole.len() - 2]) {
            cut.guess("zzzz abcdefghijklmnopqrstuvwxyz", &mut Vec::new());
        }
    }
}
