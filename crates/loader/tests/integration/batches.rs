//! What is in a batch.

use std::collections::BTreeSet;

use serde_json::json;
use tandem_audio::{Clip, FeaturePreset, LogMel, MelFrames, Resampler, decode};

use crate::support::{Copied, copied, corpus, next, open, take};

fn log_mel(id: &str, preset: FeaturePreset) -> (MelFrames, Clip) {
    let settings = preset.settings();
    let file = std::fs::File::open(corpus().join("wavs").join(format!("{id}.wav"))).unwrap();
    let (mut clip, mut resampled, mut mel) = (Clip::default(), Clip::default(), MelFrames::default());
    decode(file, &mut clip).unwrap();
    Resampler::new(settings.rate_hz).clip_into(&clip, &mut resampled).unwrap();
    LogMel::new(&settings).unwrap().mel_into(&resampled, &mut mel).unwrap();
    (mel, resampled)
}

/// Row `row` of a batch has the mel of its recording to the bit, and its waveform as far as that has frames.
fn check_row(batch: &Copied, row: usize, preset: FeaturePreset) {
    let (mel, clip) = log_mel(&batch.ids[row], preset);
    let (shape, _) = batch.tensor("mel");
    let (frames, bands) = (shape[1] as usize, shape[2] as usize);
    let values = batch.floats("mel");
    let own = &values[row * frames * bands..][..frames * bands];
    assert_eq!(batch.tensor("mel_lengths").1[row] as usize, mel.num_frames(), "{}", preset.name());
    assert!(own[..mel.values.len()] == mel.values, "{}: another mel", preset.name());
    let hop = preset.settings().hop_samples;
    let used = clip.samples.len().min(mel.num_frames() * hop);
    let waveform = batch.floats("waveform");
    let own = &waveform[row * frames * hop..][..frames * hop];
    assert_eq!(batch.tensor("waveform_lengths").1[row] as usize, used);
    assert!(own.iter().zip(&clip.samples[..used]).all(|(x, sample)| *x == f32::from(*sample) / 32768.0));
    assert!(own[used..].iter().all(|x| *x == 0.0));
}

#[test]
fn every_preset_gives_the_mel_of_each_recording_and_its_waveform() {
    for preset in FeaturePreset::ALL {
        let fields = ["mel", "mel_lengths", "waveform", "waveform_lengths", "pitch", "energy"];
        let mut loader = open(json!({ "features": preset.name(), "fields": fields })).unwrap();
        let batch = copied(&next(&mut loader).unwrap());
        (0..4).for_each(|row| check_row(&batch, row, preset));
        let frames = batch.tensor("mel").0[1];
        assert_eq!((batch.tensor("pitch").0, batch.tensor("energy").0), (&[4, frames][..], &[4, frames][..]));
        assert!(batch.floats("pitch").iter().any(|hz| *hz > 50.0) && batch.floats("energy").iter().any(|e| *e > 0.0));
    }
}

#[test]
fn an_epoch_has_every_utterance_once_and_the_next_has_another_order() {
    let mut loader = open(json!({ "fields": ["mel_lengths"] })).unwrap();
    let mut epochs = Vec::new();
    for epoch in 0..2 {
        assert_eq!(loader.epoch(), epoch);
        let mut ids = Vec::new();
        let mut batches = 0;
        while let Some(batch) = next(&mut loader) {
            assert_eq!((batch.epoch(), batch.index()), (epoch, batches));
            batches += 1;
            ids.extend(batch.ids());
        }
        assert_eq!(batches, loader.batches_per_epoch());
        assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), ids.len(), "nobody twice");
        epochs.push(ids);
    }
    assert_ne!(epochs[0], epochs[1]);
}

#[test]
fn rows_of_a_batch_are_of_similar_length_and_shapes_are_few() {
    let mut loader = open(json!({ "fields": ["mel", "mel_lengths"] })).unwrap();
    let mut shapes = BTreeSet::new();
    while let Some(batch) = next(&mut loader) {
        shapes.insert(batch.tensors()[0].shape.clone());
    }
    let planned: Vec<_> = loader.plan()["buckets"].as_array().unwrap().to_vec();
    assert_eq!(shapes.len(), planned.len());
    let one_shape = open(json!({ "fields": ["mel"], "buckets": 1 })).unwrap();
    let [padding, most] = [&loader, &one_shape].map(|loader| loader.plan()["padding"].as_f64().unwrap());
    assert!(padding < 0.6 * most, "{padding} against {most}");
}

#[test]
fn exact_shapes_are_as_long_as_the_longest_row_with_the_same_values() {
    let fields = json!(["text", "text_lengths", "mel", "mel_lengths", "waveform"]);
    let mut padded = open(json!({ "fields": fields })).unwrap();
    let mut exact = open(json!({ "fields": fields, "static_shapes": false })).unwrap();
    let mut is_cut = false;
    for (padded, exact) in take(&mut padded, 8).into_iter().zip(take(&mut exact, 8)) {
        let longest = *padded.tensor("mel_lengths").1.iter().max().unwrap() as i64;
        assert_eq!(exact.tensor("mel").0, [4, longest, 80]);
        assert_eq!(exact.tensor("waveform").0, [4, longest * 256]);
        assert_eq!(exact.tensor("text").0[1], i64::from(*padded.tensor("text_lengths").1.iter().max().unwrap()));
        let room = padded.tensor("mel").0[1];
        is_cut |= longest < room;
        let (all, cut) = (padded.floats("mel"), exact.floats("mel"));
        for row in 0..4 {
            let (from, length) = (row * room as usize * 80, longest as usize * 80);
            assert_eq!(all[from..from + length], cut[row * length..][..length]);
        }
    }
    assert!(is_cut);
}

#[test]
fn channels_first_is_the_transposed_mel() {
    let mut rows = open(json!({ "fields": ["mel"] })).unwrap();
    let mut columns = open(json!({ "fields": ["mel"], "channels_first": true })).unwrap();
    for (rows, columns) in take(&mut rows, 3).into_iter().zip(take(&mut columns, 3)) {
        let (&[batch, frames, bands], values) = rows.tensor("mel") else { panic!("three dimensions") };
        let (shape, transposed) = columns.tensor("mel");
        assert_eq!(shape, [batch, bands, frames]);
        for (at, value) in transposed.iter().enumerate() {
            let (at, frames, bands) = (at as i64, frames, bands);
            let (row, band, frame) = (at / (bands * frames), at / frames % bands, at % frames);
            assert_eq!(*value, values[((row * frames + frame) * bands + band) as usize]);
        }
    }
}

#[test]
fn batches_do_not_depend_on_threads_cache_devices_or_route() {
    let fields = json!(["text", "text_lengths", "mel", "mel_lengths", "energy", "pitch", "speaker", "language"]);
    let expected = take(&mut open(json!({ "fields": fields })).unwrap(), 12);
    for changes in [
        json!({ "workers": 1 }),
        json!({ "workers": 5, "prefetch": 2, "held": 2 }),
        json!({ "cache": "none" }),
        json!({ "sim": "1x4GiB", "device": "cuda:0" }),
        json!({ "sim": "2x4GiB", "device": "cuda:1", "data_device": "cuda:0" }),
        json!({ "sim": "2x4GiB,nvlink", "device": "cuda:0", "data_device": "cuda:1", "verify_transfers": 2 }),
    ] {
        let mut changes = changes;
        changes["fields"] = fields.clone();
        assert!(take(&mut open(changes.clone()).unwrap(), 12) == expected, "{changes}");
    }
}

#[test]
fn a_batch_outlives_its_loader() {
    let mut loader = open(json!({ "fields": ["mel"] })).unwrap();
    let batch = next(&mut loader).unwrap();
    let before = copied(&batch);
    loader.close().unwrap();
    drop(loader);
    assert!(copied(&batch) == before);
}

#[test]
fn the_log_of_a_loader_is_a_run_log() {
    let folder = tempfile::tempdir().unwrap();
    let log_dir = folder.path().join("run");
    let mut loader = open(json!({ "fields": ["mel"], "log_dir": log_dir })).unwrap();
    take(&mut loader, 20);
    let profile = loader.profile().unwrap();
    assert!(profile["steps_per_s"].as_f64().unwrap() > 0.0 && profile["verdicts"].is_array(), "{profile}");
    loader.close().unwrap();
    let log = std::fs::read_to_string(log_dir.join("feed.jsonl")).unwrap();
    assert_eq!(log.lines().filter(|line| line.contains("\"event\":\"step\"")).count(), 19);
    assert!(log.lines().last().unwrap().contains("run_ended"));
    assert!(std::fs::read_dir(log_dir.join("tensorboard")).unwrap().count() > 0);
    // A second run in the same folder has a log of its own.
    open(json!({ "fields": ["mel"], "log_dir": log_dir })).unwrap().close().unwrap();
    assert_eq!(std::fs::read_to_string(log_dir.join("feed.jsonl")).unwrap(), log);
    assert!(log_dir.join("feed-2.jsonl").exists());
}
