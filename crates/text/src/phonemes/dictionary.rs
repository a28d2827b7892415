//! The pronouncing dictionary: 126 000 English words and how they are said.
//!
//! The words are the CMU Pronouncing Dictionary's, first pronunciations only, packed by `examples/pack_dictionary.rs`
//! into `data/cmudict.bin` (its licence lies beside it). The file is part of the program and is searched as it is:
//! opening it reads a header of a few hundred bytes, a look-up searches the blocks' first words and then walks one
//! block, about a microsecond.
//!
//! Layout, integers little-endian: magic, `u32` words, `u32` blocks, `u8` codes; for every code its length and its
//! phones; for every block the `u32` offset of its first entry, counted from the end of this list; entries. An entry is
//! a byte with the letters shared with the entry before (high half) and the number of codes (low half, 15: one more byte
//! says how many), the remaining letters, the last with its top bit set, and the codes. A code stands for one to many
//! phones: the commonest sequences have one of their own, which is what makes the file small.

use std::sync::LazyLock;

use super::phone::Phone;

/// The first bytes of the file.
pub const MAGIC: [u8; 4] = *b"TDD1";
/// Entries from one indexed word to the next.
pub const BLOCK_WORDS: usize = 32;
/// No entry shares more letters with the one before than fit in half a byte.
pub const MAX_SHARED: usize = 15;
/// This many codes, or more, take a byte of their own for the count.
pub const LONG_CODES: usize = 15;

/// A packed dictionary, opened. Holding one means that its header is sound.
pub struct Dictionary {
    num_words: usize,
    /// What each code stands for.
    codes: Vec<&'static [u8]>,
    offsets: &'static [u8],
    entries: &'static [u8],
}

/// The one that comes with the program.
static ENGLISH: LazyLock<Option<Dictionary>> =
    LazyLock::new(|| Dictionary::open(include_bytes!("../../data/cmudict.bin")));

impl Dictionary {
    /// The dictionary that comes with the program, opened on first use.
    pub fn english() -> &'static Dictionary {
        let Some(dictionary) = ENGLISH.as_ref() else {
            // Our own file, fixed when the program was built and read by every test.
            unreachable!("the built-in dictionary has a broken header")
        };
        dictionary
    }

    /// Opens a packed dictionary; nothing when it is not one.
    pub fn open(bytes: &'static [u8]) -> Option<Dictionary> {
        let rest = bytes.strip_prefix(&MAGIC)?;
        let (num_words, rest) = split_u32(rest)?;
        let (num_blocks, rest) = split_u32(rest)?;
        let (num_codes, mut rest) = rest.split_first()?;
        let mut codes = Vec::with_capacity(usize::from(*num_codes));
        for _ in 0..*num_codes {
            let (len, after) = rest.split_first()?;
            let (phones, after) = after.split_at_checked(usize::from(*len))?;
            if phones.iter().any(|index| Phone::from_index(*index).is_none()) {
                return None;
            }
            codes.push(phones);
            rest = after;
        }
        let (offsets, entries) = rest.split_at_checked(num_blocks.checked_mul(4)?)?;
        Some(Dictionary { num_words, codes, offsets, entries })
    }

    /// How many words it has.
    pub fn len(&self) -> usize {
        self.num_words
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.num_words == 0
    }

    /// Appends how `word` (in lower case) is said to `out`. Says whether the word is there; `out` is untouched if not.
    pub fn look_up(&self, word: &str, out: &mut Vec<Phone>) -> bool {
        let Some(codes) = self.find(word.as_bytes()) else { return false };
        out.extend(self.phones(codes));
        true
    }

    /// Whether `word` (in lower case) is there.
    pub fn contains(&self, word: &str) -> bool {
        self.find(word.as_bytes()).is_some()
    }

    /// Every word with its phones, in order. Meant for tools; a look-up is [`Dictionary::look_up`].
    pub fn iter(&self) -> impl Iterator<Item = (String, Vec<Phone>)> {
        let mut walk = Walk { rest: self.entries, word: Vec::new() };
        std::iter::from_fn(move || {
            let codes = walk.next()?;
            Some((String::from_utf8_lossy(&walk.word).into_owned(), self.phones(codes).collect()))
        })
    }

    fn phones(&self, codes: &'static [u8]) -> impl Iterator<Item = Phone> {
        codes
            .iter()
            .filter_map(|code| self.codes.get(usize::from(*code)))
            .flat_map(|phones| phones.iter())
            .filter_map(|index| Phone::from_index(*index))
    }

    fn find(&self, word: &[u8]) -> Option<&'static [u8]> {
        let mut walk = Walk { rest: self.block_of(word)?, word: Vec::new() };
        for _ in 0..BLOCK_WORDS {
            let codes = walk.next()?;
            match walk.word.as_slice().cmp(word) {
                std::cmp::Ordering::Less => {}
                std::cmp::Ordering::Equal => return Some(codes),
                std::cmp::Ordering::Greater => return None,
            }
        }
        None
    }

    /// The entries from the last block on whose first word is not after `word`.
    fn block_of(&self, word: &[u8]) -> Option<&'static [u8]> {
        let (mut low, mut high) = (0, self.offsets.len() / 4);
        while low < high {
            let middle = low.midpoint(high);
            let first = Walk { rest: self.block(middle)?, word: Vec::new() };
            if first.starts_after(word) { high = middle } else { low = middle + 1 }
        }
        self.block(low.checked_sub(1)?)
    }

    fn block(&self, block: usize) -> Option<&'static [u8]> {
        let (offset, _) = split_u32(self.offsets.get(block * 4..)?)?;
        self.entries.get(offset..)
    }
}

/// A position in the entries, and the word it has come to.
struct Walk {
    rest: &'static [u8],
    word: Vec<u8>,
}

impl Walk {
    /// Reads one entry: its word becomes `self.word`, its codes are handed out.
    fn next(&mut self) -> Option<&'static [u8]> {
        let (head, rest) = self.rest.split_first()?;
        let (letters, rest) = split_letters(rest)?;
        self.word.truncate(usize::from(head >> 4));
        self.word.extend(letters.iter().map(|letter| letter & 0x7f));
        let (len, rest) = match usize::from(head & 0x0f) {
            LONG_CODES => rest.split_first().map(|(len, rest)| (usize::from(*len), rest))?,
            len => (len, rest),
        };
        let (codes, rest) = rest.split_at_checked(len)?;
        self.rest = rest;
        Some(codes)
    }

    /// Whether the first word from here on, which must be the first of a block, comes after `word`.
    fn starts_after(&self, word: &[u8]) -> bool {
        let letters = self.rest.split_first().and_then(|(_, rest)| split_letters(rest)).map_or(&[][..], |(l, _)| l);
        letters.iter().map(|letter| letter & 0x7f).gt(word.iter().copied())
    }
}

/// The letters up to and with the one whose top bit is set.
fn split_letters(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let last = bytes.iter().position(|byte| byte & 0x80 != 0)?;
    bytes.split_at_checked(last + 1)
}

fn split_u32(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let (number, rest) = bytes.split_first_chunk::<4>()?;
    Some((u32::from_le_bytes(*number) as usize, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(word: &str, expected: Option<&str>) {
        let mut phones = Vec::new();
        let found = Dictionary::english().look_up(word, &mut phones);
        let said = phones.iter().map(|phone| phone.name()).collect::<Vec<_>>().join(" ");
        assert_eq!(found.then_some(said.as_str()), expected, "{word}");
    }

    #[test]
    fn words_are_found() {
        check("hello", Some("HH AH0 L OW1"));
        check("world", Some("W ER1 L D"));
        check("'em", Some("AH0 M"));
        check("'bout", Some("B AW1 T"));
        check("zywicki", Some("Z IH0 W IH1 K IY0"));
        check("o'clock", Some("AH0 K L AA1 K"));
        check(
            "antidisestablishmentarianism",
            Some("AE2 N T AY0 D IH2 S AH0 S T AE2 B L IH0 SH M AH0 N T EH1 R IY0 AH0 N IH2 Z AH0 M"),
        );
        // The first of two pronunciations.
        check("read", Some("R EH1 D"));
    }

    #[test]
    fn other_words_are_not() {
        for word in ["", "!", "zzzzz", "~", "hellp", "helloo", "hell o", "é", "Hello", &"a".repeat(1 << 20)] {
            check(word, None);
        }
    }

    #[test]
    fn every_entry_is_found_again() {
        let dictionary = Dictionary::english();
        let mut before = String::new();
        let mut phones = Vec::new();
        let mut count = 0;
        for (word, said) in dictionary.iter() {
            assert!(before < word, "{before} {word}");
            phones.clear();
            assert!(dictionary.look_up(&word, &mut phones), "{word}");
            assert_eq!(phones, said, "{word}");
            before = word;
            count += 1;
        }
        assert_eq!(count, dictionary.len());
        assert!(count > 125_000);
    }

    #[test]
    fn a_broken_header_is_refused() {
        let whole: &'static [u8] = include_bytes!("../../data/cmudict.bin");
        assert!(Dictionary::open(whole).is_some());
        assert!(Dictionary::open(&whole[1..]).is_none());
        for len in [0, 3, 4, 11, 13, 40, 5000] {
            assert!(Dictionary::open(&whole[..len]).is_none(), "{len}");
        }
    }

    #[test]
    fn damaged_entries_are_misses_and_not_panics() {
        let whole: &'static [u8] = include_bytes!("../../data/cmudict.bin");
        let cut = Dictionary::open(&whole[..whole.len() - 3]).unwrap();
        assert!(cut.contains("abbey") && !cut.contains("zywicki"));
        let half = Dictionary::open(&whole[..whole.len() / 2]).unwrap();
        assert!(!half.contains("zebra"));
    }
}
