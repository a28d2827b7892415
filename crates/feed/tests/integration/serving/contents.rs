//! The content of batches: every field of every row equals a computation without the feed.

use tandem_corpus::SampleIndex;
use tandem_device::Route;
use tandem_feed::{Features, Featurizer, MELS, REFERENCE_FRAMES};
use tandem_text::{SymbolTable, Tokens};

use super::support::{Bytes, Corpus, Serving, clip};

const CORPUS: u64 = 41;

/// The elements of `row` of a field.
fn row<'a, T: bytemuck::Pod>(batch: &'a Bytes, name: &str, row: usize) -> &'a [T] {
    let (_, shape, bytes) = batch.fields.iter().find(|(field, _, _)| field == name).unwrap();
    let width = shape[1..].iter().product::<u64>() as usize;
    let range = match name {
        "text" => batch.token_starts[row]..batch.token_starts[row + 1],
        "mel" | "pitch" | "energy" => batch.frame_starts[row]..batch.frame_starts[row + 1],
        _ => row..row + 1,
    };
    &bytemuck::cast_slice(bytes)[range.start * width..range.end * width]
}

/// Log-mel is compared within the bound of the features: the last digits depend on the order of sums.
fn assert_alike(found: &[f32], expected: &[f32], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (a, b) in found.iter().zip(expected) {
        assert!((a - b).abs() <= 1e-2 * b.abs().max(1.0), "{what}: {a} {b}");
    }
}

#[test]
fn every_field_belongs_to_its_sample() {
    let corpus = Corpus::new(CORPUS, 30);
    let (tokenizer, samples) = (corpus.training_set.tokenizer().unwrap(), corpus.training_set.dataset().samples());
    let silence = (corpus.training_set.features().floor as f32).ln();
    let mut featurizer = Featurizer::new(corpus.training_set.features()).unwrap();
    let (mut tokens, mut features) = (Tokens::default(), Features::default());
    for serving in [Serving::cpu(), Serving::pair(9, Route::Bounce)] {
        for batch in serving.batches(&corpus.training_set, 9).unwrap() {
            for (at, number) in batch.samples.iter().enumerate() {
                let index = SampleIndex(*number);
                let what = format!("{:?}, row {at}", batch.cursor);
                tokenizer.encode_into(&corpus.training_set.dataset().get(index).unwrap(), &mut tokens).unwrap();
                featurizer.clip_into(&clip(CORPUS, u64::from(*number)), true, &mut features).unwrap();
                let frames = features.mel.num_frames();

                let text: &[u32] = row(&batch, "text", at);
                let (ids, padding) = text.split_at(tokens.ids.len());
                assert_eq!(ids, tokens.ids, "{what}");
                assert!(padding.iter().all(|id| *id == SymbolTable::PAD), "{what}");
                let lengths = ["text_lengths", "mel_lengths", "speaker"].map(|name| row::<u32>(&batch, name, at)[0]);
                let speaker = samples.speaker_number(index).unwrap();
                assert_eq!(lengths, [tokens.ids.len() as u32, frames as u32, speaker], "{what}");

                let (mel, rest) = row(&batch, "mel", at).split_at(features.mel.values.len());
                assert_alike(mel, &features.mel.values, &what);
                assert!(rest.iter().all(|value| *value == silence), "{what}");
                assert_alike(&row(&batch, "energy", at)[..frames], &features.energy, &what);
                assert_alike(&row(&batch, "pitch", at)[..frames], &features.pitch, &what);
            }
        }
    }
}

#[test]
fn an_evaluation_serves_every_row_once_and_leaves_rows_empty() {
    let (corpus, evaluated) = (Corpus::new(CORPUS, 30), Corpus::new(77, 9));
    let silence = (corpus.training_set.features().floor as f32).ln();
    let evaluates = Some(evaluated.training_set.clone());
    let serving = Serving { evaluates, ..Serving::pair(3, Route::Peer) };
    let per_epoch = serving.serve(&corpus.training_set, |feed, _| Ok(feed.batches_per_epoch() as usize)).unwrap();
    let batches = serving.batches(&corpus.training_set, 2 * per_epoch).unwrap();
    let (first, second) = batches.split_at(per_epoch);
    let mut seen: Vec<u32> = first.iter().flat_map(|batch| batch.samples.clone()).collect();
    seen.sort_unstable();
    assert!(seen.len() >= 5 && seen.windows(2).all(|pair| pair[0] < pair[1]), "{seen:?}");
    let rows = |batches: &[Bytes]| batches.iter().map(|batch| batch.rows.clone()).collect::<Vec<_>>();
    assert_eq!(rows(first), rows(second));
    let mut empty = 0;
    for batch in first {
        for at in (0..batch.rows.len()).filter(|at| batch.rows[*at].is_none()) {
            let numbers = ["text_lengths", "mel_lengths", "speaker"].map(|name| row::<u32>(batch, name, at)[0]);
            assert_eq!(numbers, [0; 3]);
            assert!(row::<u32>(batch, "text", at).iter().all(|id| *id == SymbolTable::PAD));
            assert!(row::<f32>(batch, "mel", at).iter().all(|value| *value == silence));
            let reference: &[f32] = row(batch, "reference", at);
            assert_eq!(reference.len() as u64, REFERENCE_FRAMES * MELS);
            assert!(reference.iter().all(|value| *value == silence));
            empty += 1;
        }
    }
    assert!(empty > 0 && empty + seen.len() == 4 * per_epoch);
}

#[test]
fn a_reference_is_an_excerpt_of_a_row_by_the_same_speaker_and_then_silence() {
    let corpus = Corpus::new(CORPUS, 30);
    let silence = (corpus.training_set.features().floor as f32).ln();
    for batch in Serving::cpu().batches(&corpus.training_set, 9).unwrap() {
        let speaker = |at: usize| row::<u32>(&batch, "speaker", at)[0];
        for at in 0..batch.samples.len() {
            let reference: &[f32] = row(&batch, "reference", at);
            let same = (0..batch.samples.len()).filter(|other| speaker(*other) == speaker(at));
            // These recordings are shorter than a reference: it has all of one, from its start.
            let is_of = |other: usize| {
                let end = row::<u32>(&batch, "mel_lengths", other)[0] as usize * MELS as usize;
                let (excerpt, rest) = reference.split_at(end);
                *excerpt == row::<f32>(&batch, "mel", other)[..end] && rest.iter().all(|value| *value == silence)
            };
            assert!(same.into_iter().any(is_of), "{:?}, row {at}", batch.cursor);
        }
    }
}
