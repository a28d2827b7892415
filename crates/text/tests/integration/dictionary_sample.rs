//! The packed dictionary says what the original says: compared on a sample of the original's lines.

use tandem_text::phonemes::{Dictionary, Phone};

#[test]
fn sampled_entries_survive_packing() {
    let sample = include_str!("../../data/cmudict_sample.txt");
    let dictionary = Dictionary::english();
    let mut phones: Vec<Phone> = Vec::new();
    let mut count = 0;
    for line in sample.lines() {
        let (word, expected) = line.split_once(' ').expect("a word and its phones");
        phones.clear();
        assert!(dictionary.look_up(word, &mut phones), "{word} is missing");
        let found = phones.iter().map(|phone| phone.name()).collect::<Vec<_>>().join(" ");
        assert_eq!(found, expected, "{word}");
        count += 1;
    }
    assert!(count >= 4000, "{count} lines only");
}
