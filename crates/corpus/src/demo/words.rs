//! The words, by what they may do in a sentence, with the phones they are made of.

/// A word and its sound. A digit after a vowel is its stress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Word {
    pub(super) spelling: &'static str,
    pub(super) phones: &'static str,
}

const fn w(spelling: &'static str, phones: &'static str) -> Word {
    Word { spelling, phones }
}

/// The article that becomes [`AN`] before a vowel.
pub(super) const A: Word = w("a", "AH0");
pub(super) const AN: Word = w("an", "AE0 N");

pub(super) const DETERMINERS: &[Word] = &[
    w("the", "DH AH0"),
    w("the", "DH AH0"),
    A,
    A,
    w("this", "DH IH0 S"),
    w("that", "DH AE0 T"),
    w("my", "M AY0"),
    w("your", "Y AO0 R"),
    w("his", "HH IH0 Z"),
    w("her", "HH ER0"),
    w("our", "AW0 ER0"),
    w("their", "DH EH0 R"),
    w("every", "EH1 V R IY0"),
    w("another", "AH0 N AH1 DH ER0"),
    w("one", "W AH1 N"),
];

pub(super) const PRONOUNS: &[Word] = &[
    w("I", "AY1"),
    w("you", "Y UW0"),
    w("he", "HH IY0"),
    w("she", "SH IY0"),
    w("we", "W IY0"),
    w("they", "DH EY0"),
    w("nobody", "N OW1 B AA0 D IY0"),
    w("someone", "S AH1 M W AH0 N"),
    w("everyone", "EH1 V R IY0 W AH0 N"),
];

pub(super) const NAMES: &[Word] = &[
    w("Anna", "AE1 N AH0"),
    w("Peter", "P IY1 T ER0"),
    w("Maria", "M ER0 IY1 AH0"),
    w("Tom", "T AA1 M"),
    w("Sarah", "S EH1 R AH0"),
    w("Jack", "JH AE1 K"),
    w("Lucy", "L UW1 S IY0"),
    w("George", "JH AO1 R JH"),
];

/// For people and animals.
pub(super) const NATURES: &[Word] = &[
    w("small", "S M AO1 L"),
    w("big", "B IH1 G"),
    w("young", "Y AH1 NG"),
    w("old", "OW1 L D"),
    w("new", "N UW1"),
    w("good", "G UH1 D"),
    w("quiet", "K W AY1 AH0 T"),
    w("happy", "HH AE1 P IY0"),
    w("little", "L IH1 T AH0 L"),
    w("tall", "T AO1 L"),
    w("kind", "K AY1 N D"),
    w("busy", "B IH1 Z IY0"),
    w("tired", "T AY1 ER0 D"),
];

/// For things and places.
pub(super) const QUALITIES: &[Word] = &[
    w("small", "S M AO1 L"),
    w("big", "B IH1 G"),
    w("old", "OW1 L D"),
    w("new", "N UW1"),
    w("good", "G UH1 D"),
    w("bad", "B AE1 D"),
    w("long", "L AO1 NG"),
    w("short", "SH AO1 R T"),
    w("high", "HH AY1"),
    w("dark", "D AA1 R K"),
    w("bright", "B R AY1 T"),
    w("warm", "W AO1 R M"),
    w("cold", "K OW1 L D"),
    w("quiet", "K W AY1 AH0 T"),
    w("empty", "EH1 M P T IY0"),
    w("heavy", "HH EH1 V IY0"),
    w("yellow", "Y EH1 L OW0"),
    w("green", "G R IY1 N"),
    w("blue", "B L UW1"),
    w("red", "R EH1 D"),
    w("white", "W AY1 T"),
    w("black", "B L AE1 K"),
    w("strange", "S T R EY1 N JH"),
    w("little", "L IH1 T AH0 L"),
    w("open", "OW1 P AH0 N"),
    w("usual", "Y UW1 ZH AH0 L"),
];

/// Those who act.
pub(super) const ACTORS: &[Word] = &[
    w("man", "M AE1 N"),
    w("woman", "W UH1 M AH0 N"),
    w("child", "CH AY1 L D"),
    w("boy", "B OY1"),
    w("girl", "G ER1 L"),
    w("friend", "F R EH1 N D"),
    w("teacher", "T IY1 CH ER0"),
    w("doctor", "D AA1 K T ER0"),
    w("farmer", "F AA1 R M ER0"),
    w("sailor", "S EY1 L ER0"),
    w("judge", "JH AH1 JH"),
    w("dog", "D AO1 G"),
    w("cat", "K AE1 T"),
    w("horse", "HH AO1 R S"),
    w("bird", "B ER1 D"),
];

/// What is acted on.
pub(super) const THINGS: &[Word] = &[
    w("door", "D AO1 R"),
    w("window", "W IH1 N D OW0"),
    w("table", "T EY1 B AH0 L"),
    w("chair", "CH EH1 R"),
    w("book", "B UH1 K"),
    w("letter", "L EH1 T ER0"),
    w("picture", "P IH1 K CH ER0"),
    w("boat", "B OW1 T"),
    w("train", "T R EY1 N"),
    w("stone", "S T OW1 N"),
    w("tree", "T R IY1"),
    w("apple", "AE1 P AH0 L"),
    w("egg", "EH1 G"),
    w("cheese", "CH IY1 Z"),
    w("bread", "B R EH1 D"),
    w("fish", "F IH1 SH"),
    w("light", "L AY1 T"),
    w("shadow", "SH AE1 D OW0"),
    w("fire", "F AY1 ER0"),
    w("voice", "V OY1 S"),
    w("song", "S AO1 NG"),
    w("story", "S T AO1 R IY0"),
    w("thing", "TH IH1 NG"),
    w("mirror", "M IH1 R ER0"),
    w("measure", "M EH1 ZH ER0"),
];

/// Where it happens.
pub(super) const PLACES: &[Word] = &[
    w("house", "HH AW1 S"),
    w("room", "R UW1 M"),
    w("garden", "G AA1 R D AH0 N"),
    w("river", "R IH1 V ER0"),
    w("road", "R OW1 D"),
    w("bridge", "B R IH1 JH"),
    w("mountain", "M AW1 N T AH0 N"),
    w("forest", "F AO1 R AH0 S T"),
    w("village", "V IH1 L AH0 JH"),
    w("city", "S IH1 T IY0"),
    w("island", "AY1 L AH0 N D"),
    w("ocean", "OW1 SH AH0 N"),
    w("kitchen", "K IH1 CH AH0 N"),
];

pub(super) const TRANSITIVE: &[Word] = &[
    w("saw", "S AO1"),
    w("found", "F AW1 N D"),
    w("took", "T UH1 K"),
    w("made", "M EY1 D"),
    w("gave", "G EY1 V"),
    w("held", "HH EH1 L D"),
    w("kept", "K EH1 P T"),
    w("left", "L EH1 F T"),
    w("lost", "L AO1 S T"),
    w("loved", "L AH1 V D"),
    w("moved", "M UW1 V D"),
    w("opened", "OW1 P AH0 N D"),
    w("closed", "K L OW1 Z D"),
    w("painted", "P EY1 N T AH0 D"),
    w("watched", "W AA1 CH T"),
    w("heard", "HH ER1 D"),
    w("bought", "B AO1 T"),
    w("sold", "S OW1 L D"),
    w("carried", "K EH1 R IY0 D"),
    w("followed", "F AA1 L OW0 D"),
    w("remembered", "R IH0 M EH1 M B ER0 D"),
    w("forgot", "F ER0 G AA1 T"),
    w("washed", "W AA1 SH T"),
    w("chose", "CH OW1 Z"),
    w("drew", "D R UW1"),
    w("pushed", "P UH1 SH T"),
];

pub(super) const INTRANSITIVE: &[Word] = &[
    w("slept", "S L EH1 P T"),
    w("walked", "W AO1 K T"),
    w("ran", "R AE1 N"),
    w("smiled", "S M AY1 L D"),
    w("waited", "W EY1 T AH0 D"),
    w("sang", "S AE1 NG"),
    w("stood", "S T UH1 D"),
    w("sat", "S AE1 T"),
    w("fell", "F EH1 L"),
    w("worked", "W ER1 K T"),
    w("played", "P L EY1 D"),
    w("listened", "L IH1 S AH0 N D"),
    w("returned", "R IH0 T ER1 N D"),
    w("arrived", "ER0 AY1 V D"),
    w("disappeared", "D IH0 S AH0 P IH1 R D"),
    w("laughed", "L AE1 F T"),
];

/// Verbs as they stand after an auxiliary.
pub(super) const BASE_VERBS: &[Word] = &[
    w("see", "S IY1"),
    w("find", "F AY1 N D"),
    w("take", "T EY1 K"),
    w("make", "M EY1 K"),
    w("hear", "HH IH1 R"),
    w("open", "OW1 P AH0 N"),
    w("close", "K L OW1 Z"),
    w("carry", "K EH1 R IY0"),
    w("know", "N OW1"),
    w("need", "N IY1 D"),
    w("want", "W AA1 N T"),
    w("remember", "R IH0 M EH1 M B ER0"),
    w("choose", "CH UW1 Z"),
    w("enjoy", "EH0 N JH OY1"),
];

pub(super) const AUXILIARIES: &[Word] = &[
    w("did", "D IH0 D"),
    w("can", "K AE0 N"),
    w("could", "K UH0 D"),
    w("will", "W IH0 L"),
    w("would", "W UH0 D"),
    w("should", "SH UH0 D"),
];

pub(super) const ADVERBS: &[Word] = &[
    w("slowly", "S L OW1 L IY0"),
    w("quickly", "K W IH1 K L IY0"),
    w("again", "AH0 G EH1 N"),
    w("today", "T AH0 D EY1"),
    w("yesterday", "Y EH1 S T ER0 D EY0"),
    w("together", "T AH0 G EH1 DH ER0"),
    w("often", "AO1 F AH0 N"),
    w("there", "DH EH1 R"),
    w("here", "HH IH1 R"),
    w("early", "ER1 L IY0"),
    w("outside", "AW0 T S AY1 D"),
    w("twice", "T W AY1 S"),
];

/// Adverbs that may open a sentence.
pub(super) const OPENERS: &[Word] = &[
    w("yesterday", "Y EH1 S T ER0 D EY0"),
    w("today", "T AH0 D EY1"),
    w("then", "DH EH1 N"),
    w("sometimes", "S AH1 M T AY0 M Z"),
    w("suddenly", "S AH1 D AH0 N L IY0"),
    w("later", "L EY1 T ER0"),
];

pub(super) const PREPOSITIONS: &[Word] = &[
    w("in", "IH0 N"),
    w("near", "N IH1 R"),
    w("behind", "B IH0 HH AY1 N D"),
    w("beside", "B IH0 S AY1 D"),
    w("above", "AH0 B AH1 V"),
    w("beyond", "B IH0 AA1 N D"),
    w("from", "F R AH0 M"),
    w("by", "B AY0"),
    w("at", "AE0 T"),
    w("before", "B IH0 F AO1 R"),
    w("outside", "AW0 T S AY1 D"),
];

pub(super) const CONJUNCTIONS: &[Word] =
    &[w("and", "AH0 N D"), w("but", "B AH0 T"), w("because", "B IH0 K AO1 Z"), w("while", "W AY0 L")];

/// Every word there is.
#[cfg(test)]
pub(super) fn all() -> impl Iterator<Item = &'static Word> {
    let names = [DETERMINERS, PRONOUNS, NAMES, NATURES, QUALITIES, ACTORS, THINGS, PLACES];
    let rest = [TRANSITIVE, INTRANSITIVE, BASE_VERBS, AUXILIARIES, ADVERBS, OPENERS, PREPOSITIONS, CONJUNCTIONS];
    names.into_iter().chain(rest).flatten().chain([&AN])
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::super::phones::{Manner, phone};
    use super::*;

    #[test]
    fn every_word_can_be_said_and_in_one_way() {
        let mut known: BTreeMap<&str, &str> = BTreeMap::new();
        let mut used = BTreeSet::new();
        for word in all() {
            let before = known.insert(word.spelling, word.phones);
            assert!(before.is_none_or(|before| before == word.phones), "{word:?} and {before:?}");
            for symbol in word.phones.split(' ') {
                let name = symbol.trim_end_matches(['0', '1']);
                let phone = phone(name).unwrap_or_else(|| panic!("{symbol} in {word:?}"));
                assert_eq!(phone.manner == Manner::Vowel, name.len() < symbol.len(), "stress of {symbol} in {word:?}");
                used.insert(name);
            }
        }
        assert!(known.len() >= 150, "{} words", known.len());
        assert_eq!(used.len(), 39, "every phone of English is said somewhere: {used:?}");
    }
}
