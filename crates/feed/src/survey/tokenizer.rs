//! The texts of a corpus as token ids: a front end for each language in it, one symbol table for all of them.
//!
//! In comes a sample, out go its tokens, in the caller's memory. Ids do not depend on the order of the rows: fixed
//! tables come first (English, then Persian), then the characters of languages that have none, by code point. A text
//! that is empty or has characters outside the table is an error of that sample, and of no other.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use tandem_corpus::{Dataset, Sample, SampleIndex};
use tandem_text::{FrontEnd, Language, SymbolTable, TextError, TextOptions, Tokens, Units, normalize};

use crate::FeedError;

/// Turns the texts of a corpus into token ids. Cheap to clone and to share: the table is one, and nothing changes.
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
    /// One for every language that the table's units can write.
    front_ends: Vec<FrontEnd>,
}

/// Every kind of language, with a tag that stands for it, in the order in which their symbols are numbered.
const LANGUAGES: [(Language, &str); 3] =
    [(Language::English, "en"), (Language::Persian, "fa"), (Language::Other, "und")];

impl Tokenizer {
    /// How the texts of a corpus are read when nobody says: as phonemes with blanks between them, where every row says that it
    /// is English or `default_lang` says so for those that do not; else as characters.
    pub fn usual_options(dataset: &Dataset, default_lang: Option<&str>) -> TextOptions {
        let is_english = |tag: &str| Language::from_tag(tag) == Language::English;
        let named = |(_, sample): (SampleIndex, Sample<'_>)| sample.lang.or(default_lang).is_some_and(is_english);
        let english = !dataset.samples().is_empty() && dataset.samples().iter().all(named);
        let units = if english { Units::Phonemes } else { Units::Characters };
        TextOptions { units, blanks: english, ..TextOptions::default() }
    }

    /// The front ends for the languages that occur in `dataset`. Rows that name none are of `default_lang`; without
    /// it, English.
    ///
    /// Cost: a look at every row's language; where a language has no fixed table, all of its words are normalised once.
    /// Rows that are left out of training count as well, so that leaving one out renumbers nothing. Fails with
    /// [`FeedError::Text`] when phonemes are asked for and a language has none.
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
                .unwrap_or_else(|| of_corpus(dataset, language, default, options));
            table = Some(match table {
                Some(table) => table.merged(&own)?,
                None => own,
            });
        }
        // Without a row there is nothing to say, in any table.
        let table = Arc::new(table.unwrap_or_else(|| SymbolTable::from_texts([])));
        let of = |(_, tag): (Language, &str)| FrontEnd::with_table(tag, options, Arc::clone(&table)).ok();
        let front_ends = LANGUAGES.into_iter().filter_map(of).collect();
        Ok(Tokenizer { inner: Arc::new(Inner { table, options, default, front_ends }) })
    }

    /// The tokens of a sample's text, in `tokens`, whose memory is reused. After a failure they are empty.
    ///
    /// Fails like [`FrontEnd::encode_into`]; also for a sample of another corpus, in a language without phonemes.
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

    /// How texts are read, to be saved with the run.
    pub fn options(&self) -> TextOptions {
        self.inner.options
    }

    /// The languages whose texts can be read.
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

/// The table of a language without a fixed one.
///
/// Nothing below U+0300 composes with anything else there: such texts, and those are the Latin ones, are cleaned
/// character by character, each once. Elsewhere, what stands between two spaces gives the characters that the whole
/// text gives, and words come again and again. A million rows take 0.6 s and 1 s, where whole texts took 6 s.
fn of_corpus(dataset: &Dataset, language: Language, default: Language, options: TextOptions) -> SymbolTable {
    let is_ours = |lang: Option<&str>| lang.map_or(default, Language::from_tag) == language;
    let mut found: BTreeSet<char> = BTreeSet::new();
    let mut words: HashSet<&str> = HashSet::new();
    let mut seen = [false; FIRST_COMPOSING as usize];
    let mut take = |text: &str| found.extend(normalize(text, language, options.harakat).chars());
    for (_, sample) in dataset.samples().iter().filter(|(_, sample)| is_ours(sample.lang)) {
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
        let folder = FeedFolder::new("texts");
        let row = |(number, (lang, text)): (usize, &(&str, &str))| match *lang {
            "" => format!("{{\"audio_filepath\":\"{number}.wav\",\"text\":\"{text}\"}}\n"),
            lang => format!("{{\"audio_filepath\":\"{number}.wav\",\"text\":\"{text}\",\"lang\":\"{lang}\"}}\n"),
        };
        folder.write("list.jsonl", rows.iter().enumerate().map(row).collect::<String>());
        Dataset::open(folder.path().join("list.jsonl"), &OpenOptions::default()).unwrap()
    }

    /// What every row reads as, once it has gone to ids and back.
    fn read_back(dataset: &Dataset, texts: &Tokenizer) -> Vec<String> {
        let mut tokens = Tokens::default();
        let rows = (0..dataset.samples().len() as u32).map(|row| dataset.get(SampleIndex(row)).unwrap());
        let read = |sample: Sample<'_>| match texts.encode_into(&sample, &mut tokens) {
            Ok(()) => texts.table().decode(&tokens.ids).unwrap().concat(),
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
        let texts = Tokenizer::for_corpus(&forwards, None, TextOptions::default()).unwrap();
        assert_eq!(read_back(&forwards, &texts), ["Grüße 4", "doctor who", "سال چهار", "four", "日本"]);

        let english = SymbolTable::fixed(Language::English, Units::Characters).unwrap();
        assert!(english.symbols().iter().all(|symbol| texts.table().id(symbol) == english.id(symbol)));
        let mut turned = rows;
        turned.reverse();
        let backwards = Tokenizer::for_corpus(&dataset(&turned), None, TextOptions::default()).unwrap();
        assert_eq!(backwards.table(), texts.table(), "ids do not follow the order of rows");
    }

    #[test]
    fn only_languages_that_occur_bring_symbols() {
        let check = |rows: &[(&str, &str)], lang: Option<&str>, num_symbols: usize| {
            let texts = Tokenizer::for_corpus(&dataset(rows), lang, TextOptions::default()).unwrap();
            assert_eq!(texts.table().len(), num_symbols, "{rows:?} {lang:?}");
        };
        check(&[("", "hello")], None, 42);
        check(&[("", "سلام")], Some("fa"), 64);
        check(&[("de", "ab")], Some("fa"), 5);
        check(&[("", "ab")], Some("de"), 5);
        check(&[], None, 3);
        // Composed within a word, and never over a space.
        check(&[("sv", "a\u{030A} o \u{0308}x\u{00A0}y")], None, 8);
    }

    #[test]
    fn what_cannot_be_said_is_named_by_its_row() {
        let corpus = dataset(&[("", "good"), ("", "中"), ("en", "\u{200E}\u{FEFF}"), ("sv", "å")]);
        let texts = Tokenizer::for_corpus(&corpus, None, TextOptions::default()).unwrap();
        let read = read_back(&corpus, &texts);
        assert_eq!((read[0].as_str(), read[3].as_str()), ("good", "å"));
        assert!(read[1].contains("'中'") && read[2].contains("empty"), "{read:?}");
    }

    #[test]
    fn phonemes_are_for_languages_that_have_them() {
        let options = TextOptions { units: Units::Phonemes, ..TextOptions::default() };
        let english = dataset(&[("", "hello")]);
        let texts = Tokenizer::for_corpus(&english, None, options).unwrap();
        assert_eq!(read_back(&english, &texts), ["HHAH0LOW1"]);
        let other = dataset(&[("de", "hallo")]);
        let mut tokens = Tokens::default();
        assert!(texts.encode_into(&other.get(SampleIndex(0)).unwrap(), &mut tokens).is_err());
        assert!(matches!(Tokenizer::for_corpus(&other, None, options), Err(FeedError::Text(_))));
    }
}
