use super::*;

const BOTH: [Phonemizer; 2] = [Phonemizer::Characters, Phonemizer::Dictionary];

fn check(tag: &str, phonemizer: Phonemizer, text: &str, expected: &str) {
    for blanks in [false, true] {
        let options = TextOptions { blanks, ..TextOptions::default() };
        let front_end = FrontEnd::new(tag, phonemizer, options).unwrap();
        let tokens = front_end.encode(text).unwrap();
        assert_eq!(front_end.decode_text(&tokens.ids).unwrap(), expected, "{tag} {text}");
        let plain = front_end.decode(&tokens.ids).unwrap().len();
        assert_eq!(tokens.ids.len(), if blanks { 2 * plain + 1 } else { plain });
    }
}

#[test]
fn text_goes_there_and_back() {
    check("en", Phonemizer::Characters, "Dr. Who owes $5!", "doctor who owes five dollars!");
    check("en-us", Phonemizer::Dictionary, "Hello, world.", "HH AH0 L OW1 , | W ER1 L D .");
    check("fa-IR", Phonemizer::Characters, "سال ۱۴۰۳", "سال هزار و چهارصد و سه");
}

#[test]
fn blanks_stand_around_every_token() {
    let options = TextOptions { blanks: true, ..TextOptions::default() };
    let front_end = FrontEnd::new("en", Phonemizer::Characters, options).unwrap();
    let ids = front_end.encode("ab").unwrap().ids;
    let table = front_end.table();
    assert_eq!(ids, [1, table.id("a").unwrap(), 1, table.id("b").unwrap(), 1]);
}

#[test]
fn characters_outside_the_table_are_all_named() {
    for phonemizer in BOTH {
        let front_end = FrontEnd::new("en", phonemizer, TextOptions::default()).unwrap();
        let mut tokens = Tokens { ids: vec![7], guessed: vec![] };
        let Err(TextError::Outside { outside }) = front_end.encode_into("It is 5 中 and 😀.", &mut tokens) else {
            panic!("not refused")
        };
        let expected = [(11, '中'), (17, '😀')].map(|(position, character)| Outside { position, character });
        assert_eq!(outside, expected);
        assert_eq!(tokens, Tokens::default());
    }
}

#[test]
fn a_language_without_phonemes_or_table_is_refused() {
    let new = |tag, phonemizer| FrontEnd::new(tag, phonemizer, TextOptions::default());
    assert!(matches!(new("fa", Phonemizer::Dictionary), Err(TextError::NoPhonemes { .. })));
    assert!(matches!(new("de", Phonemizer::Characters), Err(TextError::NeedsCorpus { .. })));
    assert!(matches!(new("de", Phonemizer::Espeak), Err(TextError::NoPhonemes { .. })));
    let front_end = new("en", Phonemizer::Characters).unwrap();
    assert!(matches!(front_end.encode(" \n\u{200E}"), Err(TextError::Empty)));
    let lacking = ["<pad>", "<blank>", " ", "K"].map(String::from).to_vec();
    let lacking = Arc::new(SymbolTable::from_symbols(lacking).unwrap());
    let front_end = FrontEnd::with_table("en", Pronouncer::Dictionary, None, TextOptions::default(), lacking).unwrap();
    assert!(matches!(front_end.encode("cat"), Err(TextError::LacksPhone { .. })));
}

#[test]
fn guessed_words_come_with_the_tokens() {
    let front_end = FrontEnd::new("en", Phonemizer::Dictionary, TextOptions::default()).unwrap();
    assert_eq!(front_end.encode("the vlick").unwrap().guessed, ["vlick"]);
}

/// The front end of `tag` with the words of `lexicon`, and a table of both.
fn with_lexicon(tag: &str, phonemizer: Phonemizer, lexicon: &str) -> FrontEnd {
    let plain = FrontEnd::new(tag, phonemizer, TextOptions::default()).unwrap();
    let lexicon = Arc::new(Lexicon::parse(lexicon).unwrap());
    let table = Arc::new(plain.table().with_symbols(lexicon.symbols().into_iter().map(str::to_owned)));
    FrontEnd { lexicon: Some(lexicon), table, ..plain }
}

#[test]
fn a_lexicon_is_asked_first() {
    let english = with_lexicon("en", Phonemizer::Dictionary, "tandem\tT AE1 N D UW2\nvlick\tV L ɪ K\n");
    let tokens = english.encode("The vlick, on a tandem's tandem!").unwrap();
    let shown = english.decode_text(&tokens.ids).unwrap();
    assert_eq!(shown, "DH AH0 | V L ɪ K , | AA1 N | AH0 | T AE1 N D AH0 M Z | T AE1 N D UW2 !");
    assert!(tokens.guessed.is_empty());

    // Ezafe and short vowels: the lexicon says what the letters do not.
    let persian = with_lexicon("fa", Phonemizer::Characters, "کتاب\tk e t ɑ b\nمی\u{200C}رود\tm i r a v a d\n");
    let tokens = persian.encode("كتاب من می\u{200C}رود.").unwrap();
    assert_eq!(persian.decode_text(&tokens.ids).unwrap(), "k e t ɑ b | م ن | m i r a v a d .");
    assert_eq!(tokens.guessed, ["من"]);
    // It sees vowel marks, which are no symbols.
    let words = "کتاب\tk e t ɑ b\nکتابِ\tk e t ɑ b e\n";
    let persian_with_ezafe = with_lexicon("fa", Phonemizer::Characters, words);
    let shown = |text: &str| persian_with_ezafe.decode_text(&persian_with_ezafe.encode(text).unwrap().ids).unwrap();
    assert_eq!(shown("کتابِ مَن"), "k e t ɑ b e | م ن");
    assert_eq!(shown("کِتاب مَن"), "k e t ɑ b | م ن");

    // A position counts characters of the whole text.
    let Err(TextError::Outside { outside }) = persian.encode("کتاب ☃ کتاب").map(drop) else {
        panic!("not refused")
    };
    assert_eq!((outside[0].position, outside[0].character), (5, '☃'));
}

/// Answers with the clause in capitals, which shows what it is asked.
#[derive(Debug)]
struct Capitals;

impl PhonemeSource for Capitals {
    fn phonemes(&self, clause: &str) -> Result<String, TextError> {
        Ok(format!("{} ", clause.trim().to_uppercase()))
    }
}

#[test]
fn another_program_reads_what_is_between_pauses() {
    let table = Arc::new(SymbolTable::from_texts(["ABCDEFGHIJKLMNOPQRSTUVWXYZÄÖÜ.,?"]));
    let read = |text: &str, lexicon: Option<Arc<Lexicon>>| {
        let source = Pronouncer::Source(Arc::new(Capitals));
        let table = Arc::new(table.with_symbols(["ʃ".to_owned(), "ts".to_owned()]));
        let front_end = FrontEnd::with_table("de", source, lexicon, TextOptions::default(), table).unwrap();
        front_end.decode(&front_end.encode(text).unwrap().ids).unwrap().concat()
    };
    assert_eq!(read("Guten Tag, Frau Bär. Wie geht es?", None), "GUTEN TAG, FRAU BÄR. WIE GEHT ES?");
    assert_eq!(read("... nun", None), "... NUN");
    let marked = Arc::new(SymbolTable::from_texts(["کتاب من\u{0650}"]));
    let source = Pronouncer::Source(Arc::new(Capitals));
    let persian = FrontEnd::with_table("fa", source, None, TextOptions::default(), marked).unwrap();
    let ids = persian.encode("کتاب\u{0650} من").unwrap().ids;
    assert_eq!(persian.decode(&ids).unwrap().concat(), "کتاب\u{0650} من", "the program sees vowel marks");
    let lexicon = Arc::new(Lexicon::parse("schatz\tʃ a ts\nschatz\tother\n".replace(" a ", " A ").as_str()).unwrap());
    assert_eq!(read("Ein Schatz im Haus", Some(lexicon)), "EIN ʃAts IM HAUS");
}
