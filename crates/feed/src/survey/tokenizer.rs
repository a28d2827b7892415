//! Token ids of the texts of a corpus: a front end for each of its languages, one symbol table for all of them.
//!
//! Ids do not depend on the order of the rows: fixed tables come first (English, then Persian), then the characters of
//! languages without a fixed table, by code point. A text that is empty or has unknown characters is an error of that sample
//! only.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use tandem_corpus::{Dataset, Sample, SampleIndex};
use tandem_text::{FrontEnd, Language, SymbolTable, TextError, TextOptions, Tokens, Units, normalize};

use crate::FeedError;

/// Turns the texts of a corpus into token ids. Immutable, and cheap to clone and share.
#[derive(Clone, Debug)]
pub struct Tokenizer {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    table: Arc<SymbolTable>,
    options: TextOptions,
    /// The language of rows that name none.
    default: Language,
    /// One for every language that the table's units support.
    front_ends: Vec<FrontEnd>,
}

/// Every kind of language with a representative tag, in the order in which symbols are numbered.
const LANGUAGES: [(Language, &str); 3] =
    [(Language::English, "en"), (Language::Persian, "fa"), (Language::Other, "und")];

impl Tokenizer {
    /// The default text options of a corpus: phonemes with blanks between them if every row is English, by its own language
    /// or by `default_lang`; characters otherwise.
    pub fn default_options(dataset: &Dataset, default_lang: Option<&str>) -> TextOptions {
        let is_english = |tag: &str| Language::from_tag(tag) == Language::English;
        let named = |(_, sample): (SampleIndex, Sample<'_>)| sample.lang.or(default_lang).is_some_and(is_english);
        let english = !dataset.samples().is_empty() && dataset.samples().iter().all(named);
        let units = if english { Units::Phonemes } else { Units::Characters };
        TextOptions { units, blanks: english, ..TextOptions::default() }
    }

    /// The front ends for the languages of `dataset`. Rows without a language have `default_lang`, or English.
    ///
    /// Cost: one pass over the rows' languages; the words of a language without a fixed table are normalised once. Rows
    /// excluded from training count as well, so that excluding one renumbers no symbol. Fails with [`FeedError::Text`] if
    /// phonemes are asked for and a language has none.
    pub fn for_corpus(
        dataset: &Dataset,
        default_lang: Option<&str>,
        options: TextOptions,
    ) -> Result<Tokenizer, FeedError> {
        let default = default_lang.map_or(Language::English, Language::from_tag);
        let mut table: Option<SymbolTable> = None;
        for (language, tag) in LANGUAGES.into_iter().filter(|(language, _)| occurs(dataset, *language, default)) {
            if options.units == Units::Phonemes && language != Language::English {
                let tag = default_lang.filter(|_| language == default).unwrap_or(tag).to_owned();
                return Err(TextError::NoPhonemes { tag }.into());
            }
            let own = SymbolTable::fixed(language, options.units)
                .unwrap_or_else(|| corpus_table(dataset, language, default, options));
            table = Some(match table {
                Some(table) => table.merged(&own)?,
                None => own,
            });
        }
        // A corpus without rows has an empty table.
        let table = Arc::new(table.unwrap_or_else(|| SymbolTable::from_texts([])));
        let front_end = |(_, tag): (Language, &str)| FrontEnd::with_table(tag, options, Arc::clone(&table)).ok();
        let front_ends = LANGUAGES.into_iter().filter_map(front_end).collect();
        Ok(Tokenizer { inner: Arc::new(Inner { table, options, default, front_ends }) })
    }

    /// Writes the tokens of a sample's text into `tokens`, whose memory is reused. After a failure they are empty.
    ///
    /// Fails like [`FrontEnd::encode_into`], and for a sample of another corpus whose language has no phonemes.
    pub fn encode_into(&self, sample: &Sample<'_>, tokens: &mut Tokens) -> Result<(), TextError> {
        let language = sample.lang.map_or(self.inner.default, Language::from_tag);
        match self.inner.front_ends.iter().find(|front_end| front_end.language() == language) {
            Some(front_end) => front_end.encode_into(sample.text, tokens),
            None => {
                tokens.ids.clear();
                tokens.guessed.clear();
                Err(TextError::NoPhonemes { tag: sample.lang.unwrap_or_default().to_owned() })
            }
        }
    }

    /// The text options, to be saved with the run.
    pub fn options(&self) -> TextOptions {
        self.inner.options
    }

    /// The supported languages.
    pub fn languages(&self) -> impl Iterator<Item = Language> {
        self.inner.front_ends.iter().map(FrontEnd::language)
    }

    /// The symbols of all languages, to be saved with the run.
    pub fn table(&self) -> &Arc<SymbolTable> {
        &self.inner.table
    }
}

fn occurs(dataset: &Dataset, language: Language, default: Language) -> bool {
    let named = dataset.samples().langs().any(|tag| Language::from_tag(tag) == language);
    named || (language == default && dataset.samples().iter().any(|(_, sample)| sample.lang.is_none()))
}

/// The first combining mark.
const FIRST_COMPOSING: char = '\u{0300}';

/// The symbol table of a language without a fixed one: the characters of its normalised texts.
///
/// Characters below U+0300 never compose with each other. Texts of only those, such as Latin ones, are normalised character
/// by character, each once. In other texts, words between spaces give the same characters as the whole text, and words
/// repeat. A million rows take 0.6 s and 1 s; normalising whole texts took 6 s.
fn corpus_table(dataset: &Dataset, language: Language, default: Language, options: TextOptions) -> SymbolTable {
    let is_language = |lang: Option<&str>| lang.map_or(default, Language::from_tag) == language;
    let mut found: BTreeSet<char> = BTreeSet::new();
    let mut words: HashSet<&str> = HashSet::new();
    let mut seen = [false; FIRST_COMPOSING as usize];
    let mut take = |text: &str| found.extend(normalize(text, language, options.harakat).chars());
    for (_, sample) in dataset.samples().iter().filter(|(_, sample)| is_language(sample.lang)) {
        if sample.text.chars().all(|c| c < FIRST_COMPOSING) {
            for c in sample.text.chars().filter(|c| !std::mem::replace(&mut seen[*c as usize], true)) {
                take(c.encode_utf8(&mut [0; 4]));
            }
        } else {
            sample.text.split(' ').filter(|word| words.insert(word)).for_each(&mut take);
        }
    }
    let found: String = found.into_iter().collect();
    SymbolTable::from_texts([found.as_str()])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::FeedFolder;
    use tandem_corpus::{OpenOptions, SampleIndex};

    fn dataset(rows: &[(&str, &str)]) -> Dataset {
        let folder = FeedFolder::new("tokenizer");
        let row = |(number, (lang, text)): (usize, &(&str, &str))| match *lang {
            "" => format!("{{\"audio_filepath\":\"{number}.wav\",\"text\":\"{text}\"}}\n"),
            lang => format!("{{\"audio_filepath\":\"{number}.wav\",\"text\":\"{text}\",\"lang\":\"{lang}\"}}\n"),
        };
        folder.write("list.jsonl", rows.iter().enumerate().map(row).collect::<String>());
        Dataset::open(folder.path().join("list.jsonl"), &OpenOptions::default()).unwrap()
    }

    /// Every row's text, encoded to ids and decoded again.
    fn read_back(dataset: &Dataset, tokenizer: &Tokenizer) -> Vec<String> {
        let mut tokens = Tokens::default();
        let rows = (0..dataset.samples().len() as u32).map(|row| dataset.get(SampleIndex(row)).unwrap());
        let read = |sample: Sample<'_>| match tokenizer.encode_into(&sample, &mut tokens) {
            Ok(()) => tokenizer.table().decode(&tokens.ids).unwrap().concat(),
            Err(error) => {
                assert_eq!(tokens, Tokens::default());
                error.to_string()
            }
        };
        rows.map(read).collect()
    }

    #[test]
    fn each_row_goes_through_its_own_front_end_into_one_table() {
        let rows = [("de", "Grüße 4"), ("", "Dr. Who"), ("fa", "سال ۴"), ("en", "4"), ("ja", "日本")];
        let forwards = dataset(&rows);
        let tokenizer = Tokenizer::for_corpus(&forwards, None, TextOptions::default()).unwrap();
        assert_eq!(read_back(&forwards, &tokenizer), ["Grüße 4", "doctor who", "سال چهار", "four", "日本"]);

        let english = SymbolTable::fixed(Language::English, Units::Characters).unwrap();
        assert!(english.symbols().iter().all(|symbol| tokenizer.table().id(symbol) == english.id(symbol)));
        let mut reversed = rows;
        reversed.reverse();
        let backwards = Tokenizer::for_corpus(&dataset(&reversed), None, TextOptions::default()).unwrap();
        assert_eq!(backwards.table(), tokenizer.table(), "ids do not depend on the order of rows");
    }

    #[test]
    fn only_languages_that_occur_add_symbols() {
        let check = |rows: &[(&str, &str)], lang: Option<&str>, num_symbols: usize| {
            let tokenizer = Tokenizer::for_corpus(&dataset(rows), lang, TextOptions::default()).unwrap();
            assert_eq!(tokenizer.table().len(), num_symbols, "{rows:?} {lang:?}");
        };
        check(&[("", "hello")], None, 42);
        check(&[("", "سلام")], Some("fa"), 64);
        check(&[("de", "ab")], Some("fa"), 5);
        check(&[("", "ab")], Some("de"), 5);
        check(&[], None, 3);
        // Characters compose within a word, never across a space.
        check(&[("sv", "a\u{030A} o \u{0308}x\u{00A0}y")], None, 8);
    }

    #[test]
    fn a_text_that_cannot_be_encoded_is_an_error_of_its_row() {
        let corpus = dataset(&[("", "good"), ("", "中"), ("en", "\u{200E}\u{FEFF}"), ("sv", "å")]);
        let tokenizer = Tokenizer::for_corpus(&corpus, None, TextOptions::default()).unwrap();
        let read = read_back(&corpus, &tokenizer);
        assert_eq!((read[0].as_str(), read[3].as_str()), ("good", "å"));
        assert!(read[1].contains("'中'") && read[2].contains("empty"), "{read:?}");
    }

    #[test]
    fn phonemes_are_for_languages_that_have_them() {
        let options = TextOptions { units: Units::Phonemes, ..TextOptions::default() };
        let english = dataset(&[("", "hello")]);
        let tokenizer = Tokenizer::for_corpus(&english, None, options).unwrap();
        assert_eq!(read_back(&english, &tokenizer), ["HHAH0LOW1"]);
        let other = dataset(&[("de", "hallo")]);
        let mut tokens = Tokens::default();
        assert!(tokenizer.encode_into(&other.get(SampleIndex(0)).unwrap(), &mut tokens).is_err());
        assert!(matches!(Tokenizer::for_corpus(&other, None, options), Err(FeedError::Text(_))));
    }
}
