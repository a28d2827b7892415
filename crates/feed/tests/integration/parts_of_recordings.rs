//! Parts of recordings are the same samples from every format that has them.

use tandem_audio::Clip;
use tandem_corpus::{Dataset, OpenOptions};
use tandem_feed::load_into;
use tandem_test_support::corpora::lhotse_fixtures;

#[test]
fn a_manifest_with_offsets_cuts_and_shar_give_the_same_samples() {
    let samples = |name: &str| -> Vec<(u32, Vec<i16>)> {
        let dataset = Dataset::open(lhotse_fixtures().join(name), &OpenOptions::default()).unwrap();
        assert!(dataset.problems().is_empty(), "{:?}", dataset.problems());
        let load = |(_, sample): (_, tandem_corpus::Sample<'_>)| {
            let mut clip = Clip::default();
            load_into(&sample.audio, &mut clip).unwrap();
            (clip.rate_hz, clip.samples)
        };
        dataset.samples().iter().map(load).collect()
    };
    let parts = samples("parts.jsonl");
    assert_eq!(parts.len(), 8);
    assert!(parts.iter().all(|(_, samples)| samples.len() > 1000));
    for name in ["part_cuts.jsonl.gz", "part_shar"] {
        assert!(samples(name) == parts, "{name}");
    }
}
