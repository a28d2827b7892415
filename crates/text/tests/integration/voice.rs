//! The transcripts of a real voice, when it is there: nearly every word is in the dictionary, and all of them encode.

use std::collections::BTreeSet;
use std::fs;

use tandem_test_support::real_voice;
use tandem_text::phonemes::Dictionary;
use tandem_text::{FrontEnd, Phonemizer, TextOptions};

#[test]
fn transcripts_encode_and_their_words_are_known() {
    let Some(voice) = real_voice("the transcripts of a real voice") else { return };
    let metadata = fs::read_to_string(voice.join("metadata.csv")).unwrap();
    let texts: Vec<&str> = metadata.lines().filter_map(|line| line.split('|').nth(1)).collect();
    assert!(texts.len() > 1000);
    let phonemes = FrontEnd::new("en", Phonemizer::Dictionary, TextOptions::default()).unwrap();
    let characters = FrontEnd::new("en", Phonemizer::Characters, TextOptions::default()).unwrap();
    let (mut words, mut missing) = (0, 0);
    let mut guessed = BTreeSet::new();
    for text in texts {
        let normalised = characters.normalize(text);
        let tokens = characters.encode(text).unwrap();
        assert_eq!(characters.decode_text(&tokens.ids).unwrap(), normalised);
        let tokens = phonemes.encode(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert!(phonemes.decode(&tokens.ids).unwrap().len() == tokens.ids.len());
        guessed.extend(tokens.guessed);
        for word in normalised.split([' ', '-', '—']).map(|word| word.trim_matches(|c: char| !c.is_alphanumeric())) {
            words += usize::from(!word.is_empty());
            missing += usize::from(!word.is_empty() && !Dictionary::english().contains(word));
        }
    }
    assert!(missing * 100 < words, "{missing} of {words} words are not in the dictionary");
    println!("{missing} of {words} words are not in the dictionary; guessed: {guessed:?}");
}
