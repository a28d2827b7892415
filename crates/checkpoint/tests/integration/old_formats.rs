//! A checkpoint of an earlier version opens. `crates/cli/tests/binary/old_checkpoints.rs` has how it was made, and resumes
//! and speaks with it.

use std::path::Path;

use tandem_checkpoint::{Architecture, Checkpoint, ComputeDtype, ModelContract, Vocoder, latest_intact};
use tandem_model::Preset;
use tandem_text::{LanguageRules, Phonemizer, Script};

fn run() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/format-1"))
}

#[test]
fn a_checkpoint_of_format_1_opens_with_everything_it_did_not_write() {
    let checkpoint: Checkpoint = latest_intact(run()).unwrap().checkpoint.unwrap();
    assert_eq!((checkpoint.step, checkpoint.score.is_some()), (3, true));
    assert_eq!((&checkpoint.state["seed"], &checkpoint.state["feed"]["next"]["k"]), (&1234.into(), &3.into()));
    let ModelContract { architecture, text, features, mel_statistics, compute_dtype, vocoder, duration_scale } =
        checkpoint.model;
    let Architecture::Preset { name: Preset::Nano, dims } = architecture else { panic!("{architecture:?}") };
    assert_eq!((dims.text_width, dims.decoder_layers, dims.decoder_dropout), (8, 1, 0.05));
    let text = text.unwrap();
    let english = LanguageRules { tag: "en".into(), phonemizer: Phonemizer::Dictionary, script: Some(Script::LATIN) };
    assert_eq!((&text.languages[..], text.language_embedding), (&[english][..], false));
    assert_eq!((text.symbols.len(), text.blanks, text.keep_harakat), (83, true, false));
    assert_eq!((features.rate_hz, features.win_samples, features.n_mels), (22_050, 1024, 80));
    assert_eq!((mel_statistics.mean, mel_statistics.std), (-6.555_517_7, 3.026_899_6));
    assert_eq!((compute_dtype, vocoder), (ComputeDtype::F32, Vocoder::GriffinLim));
    assert_eq!(duration_scale, Some(3.882_306_242_862_754_6));

    let weights = &checkpoint.weights;
    let voices: Vec<&str> = weights.names().filter(|name| name.starts_with("reference.")).collect();
    assert_eq!(voices, ["reference.ada"]);
    assert_eq!(weights.spec("ema.prior.weight").map(|spec| spec.shape), weights.spec("prior.weight").map(|s| s.shape));
    assert!(checkpoint.optimizer.names().all(|name| name.contains("_moment.")));
}
