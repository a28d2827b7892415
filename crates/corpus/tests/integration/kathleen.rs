//! A real voice, where it is at hand: everything in it is read, and nothing is found wrong.

use tandem_corpus::{Dataset, Format, OpenOptions};
use tandem_test_support::real_voice;

#[test]
fn a_real_voice_has_no_problem() {
    let Some(voice) = real_voice("reading the corpus of a real voice") else { return };
    let dataset = Dataset::open(&voice, &OpenOptions::default()).unwrap();
    assert_eq!((dataset.format(), dataset.samples().len(), dataset.problems()), (Format::LjSpeech, 1092, &[][..]));
    assert_eq!(dataset.samples().speakers().collect::<Vec<_>>(), ["kathleen"]);
    assert!(dataset.samples().iter().all(|(_, sample)| sample.audio.open().is_ok() && sample.lang == Some("en")));
    let split = dataset.split(1234);
    assert!((70..150).contains(&split.eval.len()) && split.train.len() + split.eval.len() == 1092);
}
