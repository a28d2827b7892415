//! Token ids of the texts of a corpus: a front end for each of its languages, one symbol table for all of them.
//!
//! A row is read in its own language; `--lang` is for rows that name none. Ids do not depend on the order of the rows: fixed
//! tables come first (English, then Persian, then the phonetic alphabet), then the characters of languages without a fixed
//! table, by code point, then the phonemes of the lexicon. A text that is empty or has unknown characters is an error of that
//! sample only.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;

use tandem_corpus::{Dataset, Sample};
use tandem_espeak::Espeak;
use tandem_files::read_bounded;
use tandem_text::{
    FrontEnd, Harakat, Language, LanguageRules, Lexicon, Phonemizer, Pronouncer, SymbolTable, TextError, TextOptions,
    Tokens, dominant_script, normalize, normalized_tag, primary_subtag,
};

use crate::FeedError;
use crate::survey::custom_text::CustomText;

/// The language of rows that name none, unless another is given.
pub const DEFAULT_LANG: &str = "en";
/// Texts of a language that are looked at to find its script.
const SCRIPT_SAMPLE: usize = 100;

/// How texts become tokens, as the user chose it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TextSettings {
    /// The language of rows that name none; none is [`DEFAULT_LANG`].
    pub lang: Option<String>,
    /// What turns words into symbols; none: [`Phonemizer::default_for`] each language.
    pub phonemizer: Option<Phonemizer>,
    /// What becomes of Persian vowel marks.
    pub harakat: Harakat,
    /// Pronunciations that are asked first, in every language.
    pub lexicon: Option<Arc<Lexicon>>,
    /// What the program does to texts itself.
    pub custom: CustomText,
}

/// The largest lexicon: a million words of a few phonemes take about 30 MB, a usual one 3 MB.
const MAX_LEXICON_BYTES: u64 = 8 << 20;

/// Reads a lexicon. The error says what is wrong with the file.
pub fn read_lexicon(path: &Path) -> Result<Lexicon, String> {
    let bytes = read_bounded(path, MAX_LEXICON_BYTES).map_err(|error| error.to_string())?;
    let text = String::from_utf8(bytes).map_err(|error| format!("not UTF-8 text ({error})"))?;
    Lexicon::parse(&text).map_err(|error| error.to_string())
}

/// Turns the texts of a corpus into token ids. Immutable, and cheap to clone and share.
#[derive(Clone, Debug)]
pub struct Tokenizer {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    table: Arc<SymbolTable>,
    options: TextOptions,
    lexicon: Option<Arc<Lexicon>>,
    /// That of most rows first. A position is the language's id.
    languages: Vec<LanguageRules>,
    /// One for each language.
    front_ends: Vec<FrontEnd>,
    /// The id of every tag, as the corpus spells it.
    ids: HashMap<String, u32>,
    /// The id of the language of rows that name none.
    default: u32,
    espeak_version: Option<String>,
    custom: CustomText,
}

impl Tokenizer {
    /// The front ends for the languages of `dataset`.
    ///
    /// With phonemes in any language, or a lexicon, a blank stands between tokens. Cost: one pass over the rows' languages;
    /// the words of a language without a fixed table are normalised once. Rows excluded from training count as well, so that
    /// excluding one renumbers no symbol. Fails with [`FeedError::Text`] if phonemes are asked for and a language has none,
    /// and with [`FeedError::Espeak`] if that library is needed and not there.
    pub fn for_corpus(dataset: &Dataset, settings: &TextSettings) -> Result<Tokenizer, FeedError> {
        let default = normalized_tag(settings.lang.as_deref().unwrap_or(DEFAULT_LANG));
        let (languages, ids) = languages(dataset, &default, settings.phonemizer);
        let default_id = languages.iter().position(|rules| rules.tag == default).unwrap_or(0) as u32;
        let custom = settings.custom.clone();
        if custom.encoder.is_some() {
            let (table, options) = (Arc::new(SymbolTable::from_texts([])), TextOptions::default());
            let (lexicon, espeak_version, front_ends) = (None, None, Vec::new());
            let default = default_id;
            let inner = Inner { table, options, lexicon, languages, front_ends, ids, default, espeak_version, custom };
            return Ok(Tokenizer { inner: Arc::new(inner) });
        }
        let has_phonemes = languages.iter().any(|rules| rules.phonemizer != Phonemizer::Characters);
        let options = TextOptions { harakat: settings.harakat, blanks: has_phonemes || settings.lexicon.is_some() };
        let language_id = |sample: &Sample<'_>| match sample.lang {
            Some(lang) => ids.get(lang).copied().unwrap_or(default_id),
            None => default_id,
        };
        let table = shared_table(dataset, &languages, settings.lexicon.as_deref(), language_id, &custom);
        let table = Arc::new(table);
        let needs_espeak = languages.iter().any(|rules| rules.phonemizer == Phonemizer::Espeak);
        let espeak = needs_espeak.then(Espeak::load).transpose()?;
        let mut front_ends = Vec::with_capacity(languages.len());
        for rules in &languages {
            let pronouncer = match (rules.phonemizer, &espeak) {
                (Phonemizer::Characters, _) => Pronouncer::Characters,
                (Phonemizer::Dictionary, _) => Pronouncer::Dictionary,
                (Phonemizer::Espeak, Some(espeak)) => Pronouncer::Source(Arc::new(espeak.voice(&rules.tag)?)),
                (Phonemizer::Espeak, None) => unreachable!("it was loaded for this language"),
            };
            let lexicon = settings.lexicon.clone();
            front_ends.push(FrontEnd::with_table(&rules.tag, pronouncer, lexicon, options, Arc::clone(&table))?);
        }
        let (lexicon, espeak_version) = (settings.lexicon.clone(), espeak.map(|espeak| espeak.version().to_owned()));
        let default = default_id;
        let inner = Inner { table, options, lexicon, languages, front_ends, ids, default, espeak_version, custom };
        Ok(Tokenizer { inner: Arc::new(inner) })
    }

    /// Writes the tokens of a sample's text into `tokens`, whose memory is reused. After a failure they are empty.
    ///
    /// Fails like [`FrontEnd::encode_into`].
    pub fn encode_into(&self, sample: &Sample<'_>, tokens: &mut Tokens) -> Result<(), TextError> {
        let mapped = mapped(&self.inner.custom, sample).inspect_err(|_| *tokens = Tokens::default())?;
        let text = mapped.as_deref().unwrap_or(sample.text);
        if let Some(encoder) = &self.inner.custom.encoder {
            tokens.ids.clear();
            let ids = encoder.encode(text, sample.lang).map_err(|message| TextError::Custom { message })?;
            // The field is i32: the bits are what counts.
            tokens.ids.extend(ids.into_iter().map(|id| id as u32));
            return if tokens.ids.is_empty() { Err(TextError::Empty) } else { Ok(()) };
        }
        match self.inner.front_ends.get(self.language_of(sample) as usize) {
            Some(front_end) => front_end.encode_into(text, tokens),
            // A corpus without rows has no languages.
            None => {
                *tokens = Tokens::default();
                Err(TextError::Empty)
            }
        }
    }

    /// The id of a sample's language. A sample of another corpus may have a language that this one does not have: then that
    /// with the same primary subtag, such as `en` for `en-GB`, else that of rows without a language.
    pub fn language_of(&self, sample: &Sample<'_>) -> u32 {
        sample.lang.and_then(|lang| self.known_language(lang)).unwrap_or(self.inner.default)
    }

    /// Whether the corpus has the language of a sample of another corpus, or that sample names none.
    pub fn knows_language_of(&self, sample: &Sample<'_>) -> bool {
        sample.lang.is_none_or(|lang| self.known_language(lang).is_some())
    }

    fn known_language(&self, lang: &str) -> Option<u32> {
        let Inner { ids, languages, .. } = &*self.inner;
        let similar = || {
            let tag = normalized_tag(lang);
            let same = |rules: &LanguageRules| primary_subtag(&rules.tag) == primary_subtag(&tag);
            languages.iter().position(same).map(|id| id as u32)
        };
        ids.get(lang).copied().or_else(similar)
    }

    /// The id that fills a row after its text.
    pub fn pad(&self) -> u32 {
        self.inner.custom.pad.map_or(SymbolTable::PAD, |pad| pad as u32)
    }

    /// The options of all front ends, to be saved with the run.
    pub fn options(&self) -> TextOptions {
        self.inner.options
    }

    /// The languages of the corpus, that of most rows first. The position of a language is its id.
    pub fn languages(&self) -> &[LanguageRules] {
        &self.inner.languages
    }

    /// The lexicon, to be saved with the run.
    pub fn lexicon(&self) -> Option<&Lexicon> {
        self.inner.lexicon.as_deref()
    }

    /// The version of espeak-ng that makes phonemes, if it makes any.
    pub fn espeak_version(&self) -> Option<&str> {
        self.inner.espeak_version.as_deref()
    }

    /// The symbols of all languages, to be saved with the run.
    pub fn table(&self) -> &Arc<SymbolTable> {
        &self.inner.table
    }
}

/// The text of a sample after the program's own change; none without one.
fn mapped(custom: &CustomText, sample: &Sample<'_>) -> Result<Option<String>, TextError> {
    let mapped = custom.map.as_ref().map(|map| map.map(sample.text, sample.lang));
    mapped.transpose().map_err(|message| TextError::Custom { message })
}

/// The languages of a corpus, that of most rows first, and the id of every tag in the corpus.
fn languages(
    dataset: &Dataset,
    default: &str,
    phonemizer: Option<Phonemizer>,
) -> (Vec<LanguageRules>, HashMap<String, u32>) {
    /// Rows of one language, and some of their texts.
    #[derive(Default)]
    struct Rows {
        count: usize,
        texts: String,
    }
    let mut by_spelling: HashMap<Option<&str>, Rows> = HashMap::new();
    for (_, sample) in dataset.samples().iter() {
        let rows = by_spelling.entry(sample.lang).or_default();
        rows.count += 1;
        if rows.count <= SCRIPT_SAMPLE {
            rows.texts += sample.text;
        }
    }
    let tag_of = |spelling: Option<&str>| spelling.map_or_else(|| default.to_owned(), normalized_tag);
    let mut by_tag: HashMap<String, Rows> = HashMap::new();
    for (spelling, rows) in &by_spelling {
        let all = by_tag.entry(tag_of(*spelling)).or_default();
        all.count += rows.count;
        all.texts += &rows.texts;
    }
    let mut found: Vec<(String, Rows)> = by_tag.into_iter().collect();
    found.sort_by(|(tag, rows), (other, others)| others.count.cmp(&rows.count).then_with(|| tag.cmp(other)));
    let rules = |(tag, rows): (String, Rows)| {
        let phonemizer = phonemizer.unwrap_or_else(|| Phonemizer::default_for(&tag));
        LanguageRules { script: dominant_script(&rows.texts), tag, phonemizer }
    };
    let languages: Vec<LanguageRules> = found.into_iter().map(rules).collect();
    let id = |spelling: &str| languages.iter().position(|rules| rules.tag == normalized_tag(spelling));
    let spellings = by_spelling.keys().flatten();
    let ids = spellings.filter_map(|spelling| Some(((*spelling).to_owned(), id(spelling)? as u32))).collect();
    (languages, ids)
}

/// The symbols of all languages and of the lexicon.
fn shared_table(
    dataset: &Dataset,
    languages: &[LanguageRules],
    lexicon: Option<&Lexicon>,
    language_id: impl Fn(&Sample<'_>) -> u32,
    custom: &CustomText,
) -> SymbolTable {
    let kind = |rules: &LanguageRules| (Language::from_tag(&rules.tag), rules.phonemizer);
    let mut table: Option<SymbolTable> = None;
    let mut add = |own: SymbolTable| {
        table = Some(match table.take() {
            Some(table) => table.merged(&own),
            None => own,
        });
    };
    for language in [Language::English, Language::Persian, Language::Other] {
        for phonemizer in Phonemizer::ALL {
            if languages.iter().all(|rules| kind(rules) != (language, phonemizer)) {
                continue;
            }
            match SymbolTable::fixed(language, phonemizer) {
                Some(fixed) => add(fixed),
                None if phonemizer == Phonemizer::Characters => {
                    let is_one_of_them = |sample: &Sample<'_>| {
                        let rules = languages.get(language_id(sample) as usize);
                        rules.is_some_and(|rules| kind(rules) == (language, phonemizer))
                    };
                    add(match custom.map {
                        Some(_) => mapped_table(dataset, custom, is_one_of_them),
                        None => corpus_table(dataset, is_one_of_them),
                    });
                }
                // Its front end is refused.
                None => {}
            }
        }
    }
    // A corpus without rows has an empty table.
    let table = table.unwrap_or_else(|| SymbolTable::from_texts([]));
    match lexicon {
        Some(lexicon) => table.with_symbols(lexicon.symbols().into_iter().map(str::to_owned)),
        None => table,
    }
}

/// [`corpus_table`] of texts that the program changes. One that it refuses adds no symbol.
fn mapped_table(dataset: &Dataset, custom: &CustomText, is_one_of_them: impl Fn(&Sample<'_>) -> bool) -> SymbolTable {
    let mut found: BTreeSet<char> = BTreeSet::new();
    for (_, sample) in dataset.samples().iter().filter(|(_, sample)| is_one_of_them(sample)) {
        let text = mapped(custom, &sample).ok().flatten().unwrap_or_default();
        found.extend(normalize(&text, Language::Other, Harakat::default()).chars());
    }
    SymbolTable::from_texts([found.into_iter().collect::<String>().as_str()])
}

/// The first combining mark.
const FIRST_COMPOSING: char = '\u{0300}';

/// The symbol table of languages without a fixed one: the characters of their normalised texts.
///
/// Characters below U+0300 never compose with each other. Texts of only those, such as Latin ones, are normalised character
/// by character, each once. In other texts, words between spaces give the same characters as the whole text, and words
/// repeat. A million rows take 0.6 s and 1 s; normalising whole texts took 6 s.
fn corpus_table(dataset: &Dataset, is_one_of_them: impl Fn(&Sample<'_>) -> bool) -> SymbolTable {
    let mut found: BTreeSet<char> = BTreeSet::new();
    let mut words: HashSet<&str> = HashSet::new();
    let mut seen = [false; FIRST_COMPOSING as usize];
    let mut take = |text: &str| found.extend(normalize(text, Language::Other, Harakat::default()).chars());
    for (_, sample) in dataset.samples().iter().filter(|(_, sample)| is_one_of_them(sample)) {
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

    fn tokenizer(dataset: &Dataset, lang: Option<&str>) -> Tokenizer {
        let settings = TextSettings { lang: lang.map(str::to_owned), ..TextSettings::default() };
        Tokenizer::for_corpus(dataset, &settings).unwrap()
    }

    fn tags(tokenizer: &Tokenizer) -> Vec<(&str, Phonemizer, Option<&str>)> {
        let rules = tokenizer.languages().iter();
        rules.map(|rules| (rules.tag.as_str(), rules.phonemizer, rules.script.map(|script| script.name()))).collect()
    }

    #[test]
    fn each_row_goes_through_its_own_front_end_into_one_table() {
        let rows =
            [("de", "Grüße 4"), ("", "Dr. Who"), ("fa", "سال ۴"), ("en", "4"), ("ja", "日本"), ("EN", "a vlick")];
        let forwards = dataset(&rows);
        let spoken = tokenizer(&forwards, None);
        let expected = ["Grüße 4", "DAA1KTER0 HHUW1", "سال چهار", "FAO1R", "日本", "AH0 VLIH1K"];
        assert_eq!(read_back(&forwards, &spoken), expected);
        assert!(spoken.options().blanks, "there are phonemes");
        let english = SymbolTable::fixed(Language::English, Phonemizer::Dictionary).unwrap();
        assert!(english.symbols().iter().all(|symbol| spoken.table().id(symbol) == english.id(symbol)));
        let mut reversed = rows;
        reversed.reverse();
        let backwards = tokenizer(&dataset(&reversed), None);
        assert_eq!(backwards.table(), spoken.table(), "ids do not depend on the order of rows");
        assert_eq!(backwards.languages(), spoken.languages());
    }

    #[test]
    fn the_language_of_most_rows_comes_first_and_rows_beat_the_flag() {
        let characters = Phonemizer::Characters;
        let both = dataset(&[("fa", "سلام"), ("en", "four"), ("fa_IR", "۲۵"), ("FA", "سال"), ("", "hello")]);
        let spoken = tokenizer(&both, None);
        let english = ("en", Phonemizer::Dictionary, Some("Latn"));
        let persian = [("fa", characters, Some("Arab")), ("fa-ir", characters, Some("Arab"))];
        // As many rows: by tag.
        assert_eq!(tags(&spoken), [english, persian[0], persian[1]]);
        let ids: Vec<u32> = both.samples().iter().map(|(_, sample)| spoken.language_of(&sample)).collect();
        assert_eq!(ids, [1, 0, 2, 1, 0]);
        // The flag is for rows that name no language, and adds none.
        let marked = dataset(&[("en", "four"), ("en", "five")]);
        assert_eq!(tags(&tokenizer(&marked, Some("fa"))), [english]);
        // Another corpus: a similar tag, then the language of rows without one.
        let others = dataset(&[("en-GB", "a"), ("de", "a"), ("", "a"), ("fa-AF", "a")]);
        let ids: Vec<u32> = others.samples().iter().map(|(_, sample)| spoken.language_of(&sample)).collect();
        assert_eq!(ids, [0, 0, 0, 1]);
        let known: Vec<bool> = others.samples().iter().map(|(_, sample)| spoken.knows_language_of(&sample)).collect();
        assert_eq!(known, [true, false, true, true]);
    }

    #[test]
    fn only_languages_that_occur_add_symbols() {
        let check = |rows: &[(&str, &str)], lang: Option<&str>, num_symbols: usize| {
            assert_eq!(tokenizer(&dataset(rows), lang).table().len(), num_symbols, "{rows:?} {lang:?}");
        };
        check(&[("", "hello")], None, 83);
        check(&[("", "سلام")], Some("fa"), 64);
        check(&[("de", "ab")], Some("fa"), 5);
        check(&[("", "ab")], Some("de"), 5);
        check(&[], None, 3);
        // Characters compose within a word, never across a space.
        check(&[("sv", "a\u{030A} o \u{0308}x\u{00A0}y")], None, 8);
    }

    #[test]
    fn a_text_that_cannot_be_encoded_is_an_error_of_its_row() {
        let corpus = dataset(&[("fa", "سلام"), ("fa", "中"), ("fa", "\u{200E}\u{FEFF}"), ("sv", "å")]);
        let read = read_back(&corpus, &tokenizer(&corpus, None));
        assert_eq!((read[0].as_str(), read[3].as_str()), ("سلام", "å"));
        assert!(read[1].contains("'中'") && read[2].contains("empty"), "{read:?}");
    }

    #[test]
    fn flags_choose_phonemizer_harakat_and_lexicon() {
        let english = dataset(&[("", "The vlick")]);
        let read = |settings: TextSettings| {
            let tokenizer = Tokenizer::for_corpus(&english, &settings).unwrap();
            (read_back(&english, &tokenizer).concat(), tokenizer.options().blanks)
        };
        let phonemizer = Some(Phonemizer::Characters);
        let characters = TextSettings { phonemizer, ..TextSettings::default() };
        assert_eq!(read(characters.clone()), ("the vlick".to_owned(), false));
        let lexicon = Some(Arc::new(Lexicon::parse("vlick\tv l ɪ k\n").unwrap()));
        assert_eq!(read(TextSettings { lexicon, ..characters }), ("the vlɪk".to_owned(), true));

        let persian = dataset(&[("fa", "گُل")]);
        let dropped = tokenizer(&persian, None);
        let keep = TextSettings { harakat: Harakat::Keep, ..TextSettings::default() };
        let with_marks = Tokenizer::for_corpus(&persian, &keep).unwrap();
        assert_eq!(
            (read_back(&persian, &dropped).concat(), read_back(&persian, &with_marks).concat()),
            ("گل".into(), "گُل".into())
        );
        let dictionary = TextSettings { phonemizer: Some(Phonemizer::Dictionary), ..TextSettings::default() };
        assert!(matches!(Tokenizer::for_corpus(&persian, &dictionary), Err(FeedError::Text(_))));
    }
}
