//! A real voice, where it is at hand: everything in it is read, and nothing is found wrong.

use std::io::Write;
use std::path::Path;

use tandem_corpus::{Dataset, Format, OpenOptions};

#[test]
fn a_real_voice_has_no_problem() {
    let voice = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/kathleen_en");
    if !voice.is_dir() {
        // Past the harness, which would swallow it.
        writeln!(std::io::stderr(), "SKIPPED: no voice at ../shared/data/kathleen_en, its reading was not tested")
            .unwrap();
        return;
    }
    let dataset = Dataset::open(&voice, &OpenOptions::default()).unwrap();
    assert_eq!((dataset.format(), dataset.samples().len(), dataset.problems()), (Format::LjSpeech, 1092, &[][..]));
    assert_eq!(dataset.samples().speakers().collect::<Vec<_>>(), ["kathleen"]);
    assert!(dataset.samples().iter().all(|(_, sample)| sample.audio.open().is_ok() && sample.lang == Some("en")));
    let split = dataset.split(1234);
    assert!((70..150).contains(&split.eval.len()) && split.train.len() + split.eval.len() == 1092);
}
