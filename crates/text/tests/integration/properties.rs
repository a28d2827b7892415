//! What holds for any text at all: nothing panics, nothing is lost unreported, time stays in proportion.

use std::sync::Arc;

use proptest::prelude::*;
use tandem_text::{
    FrontEnd, Harakat, Language, Phonemizer, Pronouncer, SymbolTable, TextError, TextOptions, normalize,
};

fn options(blanks: bool) -> TextOptions {
    TextOptions { harakat: Harakat::Keep, blanks }
}

/// Pieces that rules look at, so that random text meets them.
fn piece() -> impl Strategy<Value = String> {
    #[rustfmt::skip]
    let fixed = proptest::sample::select(vec![
        "Mr. ", "etc.", "e.g.", "U.S.", "$3.50", "3:45", " pm", "1/2", "10-20", "555-1234", "1984", "'s",
        "Henry VIII", "BBC", "kg", "-", "--", "...", "'", "\"", "۱۴۰۳", "٪", "می\u{200C}خواهم", "\u{200C}", "ك",
        "\u{0654}", "ه", "٫", "\u{0301}", "\u{200F}", "😀", "é", "中", "٬", "م", "ام", ",", ".", "+", "(", ")",
        "#", "%", "½", "\u{FEFB}", "10:30-", "$5-", "5%-", "-1/2", "1.5-", "٪۱۰-", "€", "امین", "0912-", "\u{2044}",
    ]);
    prop_oneof![
        3 => fixed.prop_map(str::to_owned),
        2 => "[a-zA-Z']{1,8}",
        2 => "[0-9]{1,6}",
        1 => any::<String>(),
        1 => Just(" ".to_owned()),
    ]
}

fn text() -> impl Strategy<Value = String> {
    proptest::collection::vec(piece(), 0..24).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn decoding_what_was_encoded_gives_the_normalised_text(text in text(), blanks: bool) {
        for tag in ["en", "fa", "xx"] {
            // Every character that can occur is in the table: nothing is refused but emptiness.
            let options = options(blanks);
            let spoken = normalize(&text, Language::from_tag(tag), options.harakat);
            let table = Arc::new(SymbolTable::from_texts([spoken.as_str()]));
            let any = FrontEnd::with_table(tag, Pronouncer::Characters, None, options, table).unwrap();
            match any.encode(&text) {
                Ok(tokens) => prop_assert_eq!(any.decode_text(&tokens.ids).unwrap(), spoken),
                Err(TextError::Empty) => prop_assert_eq!(spoken, ""),
                Err(other) => prop_assert!(false, "{}", other),
            }
        }
    }

    #[test]
    fn what_is_refused_is_named_where_it_stands(text in text()) {
        let kinds =
            [("en", Phonemizer::Characters), ("en", Phonemizer::Dictionary), ("fa", Phonemizer::Characters)];
        for (tag, phonemizer) in kinds {
            let front_end = FrontEnd::new(tag, phonemizer, options(false)).unwrap();
            let spoken: Vec<char> = front_end.normalize(&text).chars().collect();
            match front_end.encode(&text) {
                Ok(tokens) => prop_assert!(!spoken.is_empty() && tokens.ids.iter().all(|id| *id > 1)),
                Err(TextError::Empty) => prop_assert!(spoken.is_empty()),
                Err(TextError::Outside { outside }) => {
                    prop_assert!(!outside.is_empty());
                    for found in outside {
                        prop_assert_eq!(spoken.get(found.position), Some(&found.character));
                        prop_assert!(front_end.table().id(&found.character.to_string()).is_none());
                    }
                }
                Err(other) => prop_assert!(false, "{}", other),
            }
        }
    }

    #[test]
    fn phonemes_are_recovered(words in "[a-z' ,.?-]{1,60}", blanks: bool) {
        let with = FrontEnd::new("en", Phonemizer::Dictionary, options(blanks)).unwrap();
        let without = FrontEnd::new("en", Phonemizer::Dictionary, options(false)).unwrap();
        match (with.encode(&words), without.encode(&words)) {
            (Ok(with_blanks), Ok(plain)) => {
                let symbols = with.decode(&with_blanks.ids).unwrap();
                let again: Vec<u32> = symbols.iter().map(|symbol| with.table().id(symbol).unwrap()).collect();
                prop_assert_eq!(again, plain.ids);
            }
            (Err(TextError::Empty), Err(TextError::Empty)) => {}
            other => prop_assert!(false, "{:?}", other),
        }
    }

    #[test]
    fn cleaning_is_done_once(text in text()) {
        let once = normalize(&text, Language::Other, Harakat::Keep);
        prop_assert_eq!(&normalize(&once, Language::Other, Harakat::Keep), &once);
    }

    #[test]
    fn tables_survive_their_file(texts in proptest::collection::vec(any::<String>(), 0..5)) {
        let table = SymbolTable::from_texts(texts.iter().map(String::as_str));
        prop_assert_eq!(SymbolTable::from_symbols(table.symbols().to_vec()).unwrap(), table);
    }
}

/// A megabyte of one character, or a part of it of one small pattern: with work that grows faster than the text does,
/// this does not end.
#[test]
fn a_megabyte_of_anything_is_read() {
    #[rustfmt::skip]
    let patterns = [
        "a", "Z", "9", "0", " ", ".", "-", "'", "\"", "(", "$", "+", "#", "\u{0301}", "\u{200C}", "\u{200F}",
        "\u{064E}", "ی", "۹", "😀", "中", "1,", "1-", "1/", "1:", "1.", "1 ", "a.", "a-", "a'", "'s", "A. ",
        "1,111", "12:34 ", "etc.", "+1-", "(1", "(123) ", "1٫", "-5", "$1", "1 1/2 ", "ه\u{0654}", "e\u{0301}",
        "ing", "X", "1st", "$1-", "1%-", "1:00-", "1-1/2", "1.5-", "٪1-", "1\u{2044}2",
    ];
    let front_ends: Vec<FrontEnd> = [
        FrontEnd::new("en", Phonemizer::Dictionary, options(true)),
        FrontEnd::new("fa", Phonemizer::Characters, options(false)),
    ]
    .into_iter()
    .map(Result::unwrap)
    .collect();
    for pattern in patterns {
        // A digit or a sign becomes a whole word, and so many words take their time.
        let small = pattern.chars().count() == 1 && !pattern.contains(['9', '0', '۹', '$', '+', '#']);
        let bytes = if small { 1 << 20 } else { 1 << 16 };
        let text = pattern.repeat(bytes / pattern.len());
        for front_end in &front_ends {
            match front_end.encode(&text) {
                Ok(tokens) => assert!(!tokens.ids.is_empty(), "{pattern:?}"),
                Err(TextError::Empty | TextError::Outside { .. }) => {}
                Err(other) => panic!("{pattern:?}: {other}"),
            }
        }
        let _ = normalize(&text, Language::Other, Harakat::Keep);
    }
}
