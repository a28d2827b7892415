//! Sentences of three to twelve words.

use super::dice::Dice;
use super::words::{
    A, ACTORS, ADVERBS, AN, AUXILIARIES, BASE_VERBS, CONJUNCTIONS, DETERMINERS, INTRANSITIVE, NAMES, NATURES, OPENERS,
    PLACES, PREPOSITIONS, PRONOUNS, QUALITIES, THINGS, TRANSITIVE, Word,
};

/// A sentence: words, and after which of them one pauses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct DemoSentence {
    pub(super) words: Vec<Word>,
    /// Places in `words` that a comma follows.
    pub(super) commas: Vec<usize>,
    pub(super) question: bool,
}

impl DemoSentence {
    /// As it is written: a capital, commas, a full stop or question mark.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        for (i, word) in self.words.iter().enumerate() {
            if i == 0 {
                let (first, rest) = word.spelling.split_at(1);
                text.push_str(&first.to_ascii_uppercase());
                text.push_str(rest);
            } else {
                text.push(' ');
                text.push_str(word.spelling);
            }
            if self.commas.contains(&i) {
                text.push(',');
            }
        }
        text.push(if self.question { '?' } else { '.' });
        text
    }

    fn comma(&mut self) {
        self.commas.push(self.words.len().saturating_sub(1));
    }

    fn say(&mut self, dice: &mut Dice, words: &[Word]) {
        self.words.push(*dice.pick(words));
    }

    /// Those who act.
    fn actor(&mut self, dice: &mut Dice) {
        if dice.percent(35) {
            self.say(dice, PRONOUNS);
        } else if dice.percent(25) {
            self.say(dice, NAMES);
        } else {
            self.noun_phrase(dice, NATURES, ACTORS);
        }
    }

    fn place(&mut self, dice: &mut Dice) {
        self.say(dice, PREPOSITIONS);
        self.noun_phrase(dice, QUALITIES, PLACES);
    }

    fn noun_phrase(&mut self, dice: &mut Dice, adjectives: &[Word], nouns: &[Word]) {
        let article = self.words.len();
        self.say(dice, DETERMINERS);
        if dice.percent(45) {
            self.say(dice, adjectives);
        }
        self.say(dice, nouns);
        if self.words[article] == A && begins_with_vowel(&self.words[article + 1]) {
            self.words[article] = AN;
        }
    }

    fn clause(&mut self, dice: &mut Dice) {
        self.actor(dice);
        if dice.percent(60) {
            self.say(dice, TRANSITIVE);
            self.noun_phrase(dice, QUALITIES, THINGS);
        } else {
            self.say(dice, INTRANSITIVE);
        }
        if dice.percent(45) {
            self.place(dice);
        }
        if dice.percent(25) {
            self.say(dice, ADVERBS);
        }
    }

    fn ask(&mut self, dice: &mut Dice) {
        self.question = true;
        self.say(dice, AUXILIARIES);
        self.actor(dice);
        self.say(dice, BASE_VERBS);
        self.noun_phrase(dice, QUALITIES, THINGS);
        if dice.percent(40) {
            self.place(dice);
        }
    }
}

/// A sentence that `dice` decide.
pub(super) fn sentence(dice: &mut Dice) -> DemoSentence {
    loop {
        let mut sentence = DemoSentence::default();
        if dice.percent(15) {
            sentence.ask(dice);
        } else {
            if dice.percent(12) {
                sentence.say(dice, OPENERS);
                sentence.comma();
            }
            sentence.clause(dice);
            if dice.percent(25) {
                sentence.comma();
                sentence.say(dice, CONJUNCTIONS);
                sentence.clause(dice);
            }
        }
        if (3..=12).contains(&sentence.words.len()) {
            return sentence;
        }
    }
}

fn begins_with_vowel(word: &Word) -> bool {
    word.phones.starts_with(['A', 'E', 'I', 'O', 'U'])
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn sentences_are_of_words_and_differ() {
        let mut texts = BTreeSet::new();
        let mut lengths = BTreeSet::new();
        for index in 0..500 {
            let sentence = sentence(&mut Dice::new(&[1, index]));
            let text = sentence.text();
            assert!(text.starts_with(|c: char| c.is_ascii_uppercase()) && text.ends_with(['.', '?']), "{text}");
            assert_eq!(text.split(' ').count(), sentence.words.len(), "{text}");
            assert!(!text.contains(" a a") && !text.contains(" a o") && !text.contains(" an b"), "{text}");
            lengths.insert(sentence.words.len());
            texts.insert(text);
        }
        assert!(texts.len() > 490, "{}", texts.len());
        assert_eq!(lengths, (3..=12).collect());
    }

    #[test]
    fn how_it_is_written() {
        let w = |spelling| Word { spelling, phones: "" };
        let sentence = DemoSentence { words: vec![w("then"), w("I"), w("slept")], commas: vec![0], question: false };
        assert_eq!(sentence.text(), "Then, I slept.");
        assert_eq!(DemoSentence { commas: vec![], question: true, ..sentence }.text(), "Then I slept?");
    }
}
