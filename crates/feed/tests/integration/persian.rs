//! A small Persian corpus: reading, check, normalisation, token ids, and back to text.

use tandem_audio::{Clip, wav};
use tandem_corpus::{Dataset, OpenOptions, ProblemKind};
use tandem_feed::{CheckOptions, check};
use tandem_text::{FrontEnd, Phonemizer, TextOptions};
use tempfile::TempDir;

/// Written and normalised texts: Arabic letters, digits of three kinds, vowel marks, the non-joiner.
const ROWS: [(&str, &str); 5] = [
    ("سلام دنیا.", "سلام دنیا."),
    ("كتاب عربي", "کتاب عربی"),
    ("می\u{200C}خواهم بروم؟", "می\u{200C}خواهم بروم؟"),
    ("سال ۱۴۰۳", "سال هزار و چهارصد و سه"),
    ("مُحَمَّد ٢ بار", "محمد دو بار"),
];

fn corpus(extra: &str) -> TempDir {
    let corpus = tempfile::tempdir().unwrap();
    let folder = corpus.path();
    std::fs::create_dir_all(folder.join("wavs")).unwrap();
    let mut list = "\u{feff}".to_owned();
    for (number, (written, _)) in ROWS.iter().enumerate() {
        list += &format!("fa_{number}|{written}||zahra|fa\r\n");
        let samples = (0..44_100).map(|i| ((i * 53) % 9000 - 4500) as i16).collect();
        let mut file = Vec::new();
        wav::write(&Clip { samples, rate_hz: 22_050 }, &mut file).unwrap();
        std::fs::write(folder.join(format!("wavs/fa_{number}.wav")), file).unwrap();
    }
    std::fs::write(folder.join("metadata.csv"), list + extra).unwrap();
    corpus
}

#[test]
fn a_persian_corpus_is_encoded_and_decoded() {
    let folder = corpus("");
    let dataset = Dataset::open(&folder, &OpenOptions::default()).unwrap();
    let front_end = FrontEnd::new("fa", Phonemizer::Characters, TextOptions::default()).unwrap();
    assert_eq!(dataset.samples().len(), ROWS.len());
    let mut num_tokens = 0;
    for ((_, sample), (written, normalised)) in dataset.samples().iter().zip(ROWS) {
        assert_eq!((sample.text, sample.lang, sample.speaker), (written, Some("fa"), Some("zahra")));
        assert_eq!(front_end.normalize(sample.text), normalised);
        let tokens = front_end.encode(sample.text).unwrap();
        assert_eq!(front_end.decode_text(&tokens.ids).unwrap(), normalised);
        num_tokens += tokens.ids.len();
    }
    let report = check(dataset, &CheckOptions::default(), |_| ()).unwrap().report;
    assert!(report.passed(), "{:?}", report.problems);
    assert_eq!((report.tokens.total() as usize, report.seconds.total()), (num_tokens, 2.0 * ROWS.len() as f64));
}

#[test]
fn a_character_that_is_not_persian_is_named() {
    let folder = corpus("fa_0x|سلام world||zahra|fa\r\n");
    std::fs::copy(folder.path().join("wavs/fa_0.wav"), folder.path().join("wavs/fa_0x.wav")).unwrap();
    let dataset = Dataset::open(&folder, &OpenOptions::default()).unwrap();
    let report = check(dataset, &CheckOptions::default(), |_| ()).unwrap().report;
    let [problem] = &report.problems[..] else { panic!("{:?}", report.problems) };
    assert_eq!((problem.kind, problem.line), (ProblemKind::UnknownSymbol, Some(6)));
    assert!(problem.detail.contains("'w' (U+0077)"), "{problem}");
}
