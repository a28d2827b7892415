use super::*;
use crate::featurize::on_host;
use crate::fixture::{FeedFolder, sine};
use tandem_corpus::OpenOptions;
use tandem_text::Phonemizer;

/// A manifest of rows (seconds, text) without recordings.
fn manifest(folder: &FeedFolder, rows: &[(Option<f64>, String)]) -> Arc<Dataset> {
    let row = |(number, (seconds, text)): (usize, &(Option<f64>, String))| {
        let duration = seconds.map(|seconds| format!(",\"duration\":{seconds:?}")).unwrap_or_default();
        format!("{{\"audio_filepath\":\"{number}.wav\",\"text\":\"{text}\"{duration}}}\n")
    };
    folder.write("list.jsonl", rows.iter().enumerate().map(row).collect::<String>());
    Arc::new(Dataset::open(folder.path().join("list.jsonl"), &OpenOptions::default()).unwrap())
}

fn survey(dataset: &Arc<Dataset>, change: impl Fn(&mut TrainingSetOptions)) -> TrainingSet {
    // As characters, so that the symbols of a text are easy to count.
    let text = TextSettings { phonemizer: Some(Phonemizer::Characters), ..TextSettings::default() };
    let mut options = TrainingSetOptions { with_text: true, text, ..TrainingSetOptions::default() };
    change(&mut options);
    TrainingSet::survey(Arc::clone(dataset), &dataset.train_rows(), &options).unwrap()
}

#[test]
fn a_duration_gives_the_frames_that_its_samples_give() {
    let settings = FeatureSettings::default();
    for rate_hz in [8_000, 11_025, 16_000, 22_050, 24_000, 32_000, 44_100, 47_999, 48_000, 96_000, 192_000] {
        // Around every boundary between two numbers of frames, also far into a long recording.
        let at = |frames: u64, samples: i64| ((frames * 256 * u64::from(rate_hz)) as i64 / 22_050 + samples) as u64;
        let near = [2, 3, 100, 1001, 51_234, 1_000_001].map(|frames| (-3..=3).map(move |samples| at(frames, samples)));
        for num_samples in near.into_iter().flatten() {
            let duration_s = num_samples as f64 / f64::from(rate_hz);
            let expected = on_host::num_frames(num_samples as usize, rate_hz, &settings) as u32;
            assert_eq!(num_frames(duration_s, &settings), Some(expected), "{num_samples} at {rate_hz}");
        }
    }
    for (duration_s, expected) in [(384.0 / 22_050.0, None), (385.0 / 22_050.0, Some(1)), (0.0, None), (-1.0, None)] {
        assert_eq!(num_frames(duration_s, &settings), expected, "{duration_s}");
    }
    assert_eq!(num_frames(f64::NAN, &settings), None);
    assert_eq!(num_frames(1e300, &settings), Some(u32::MAX));
}

#[test]
fn rows_that_cannot_train_are_left_out_and_counted_by_reason() {
    let folder = FeedFolder::new("training-set");
    let text = |text: &str| text.to_owned();
    let mut rows = vec![
        (None, text("no length")),
        (Some(0.01), text("a")),
        (Some(0.1), text("more symbols than frames")),
        (Some(1.0), text("中")),
        (Some(20.0), text("long")),
        (Some(3.0), "word ".repeat(30)),
    ];
    rows.extend((0..30).map(|i| (Some(1.0 + f64::from(i) / 10.0), text("good"))));
    let dataset = manifest(&folder, &rows);

    let limited = survey(&dataset, |options| (options.max_frames, options.max_tokens) = (Some(500), Some(100)));
    let longest = LeftOut { longest_frames: 1728, longest_tokens: 149, ..LeftOut::default() };
    let expected = LeftOut { unmeasured: 1, unknown_symbol: 1, too_short: 2, too_long: 2, ..longest };
    assert_eq!((*limited.left_out(), limited.rows().len()), (expected, 30));
    assert_eq!((limited.max_frames(), limited.max_tokens(), limited.left_out().total()), (500, 100, 6));
    assert!(limited.counts_all() && limited.rows().iter().all(|(_, extent)| extent.tokens == 4));
    assert!((limited.audio_seconds() - (0..30).map(|i| 1.0 + f64::from(i) / 10.0).sum::<f64>()).abs() < 1e-9);

    let usual = survey(&dataset, |_| ());
    assert_eq!((usual.max_frames(), usual.max_tokens()), (1722, 149), "99.5 % of 32 rows are all of them");
    assert_eq!(usual.rows().len(), 32);

    let without_text = survey(&dataset, |options| options.with_text = false);
    assert!(without_text.tokenizer().is_none() && without_text.rows().iter().all(|(_, extent)| extent.tokens == 1));
    assert_eq!((without_text.rows().len(), without_text.left_out().bad_text()), (34, 0));
}

#[test]
fn the_longest_two_hundredth_is_left_out() {
    let folder = FeedFolder::new("training-set-limit");
    let rows: Vec<_> = (1..=1000).map(|i| (Some(f64::from(i) / 50.0), "a".to_owned())).collect();
    let training_set = survey(&manifest(&folder, &rows), |_| ());
    let frames = |seconds: f64| (seconds * 22_050.0 / 256.0) as u32;
    assert_eq!((training_set.max_frames(), training_set.left_out().too_long), (frames(19.9), 5));
    assert_eq!(training_set.left_out().longest_frames, frames(20.0).next_multiple_of(8));
}

#[test]
fn texts_of_a_large_corpus_are_sampled_and_all_lengths_bounded() {
    let folder = FeedFolder::new("training-set-large");
    // Texts of 10 to 15 symbols per second: at equal duration, the longest is a third above the shortest.
    let num_rows = EXACT_ROWS + 10_000;
    let symbols = |i: usize| (1 + i % 9) * (10 + i / 9 % 6);
    let rows: Vec<_> = (0..num_rows).map(|i| (Some(1.0 + (i % 9) as f64), "a".repeat(symbols(i)))).collect();
    let dataset = manifest(&folder, &rows);
    let training_set = survey(&dataset, |_| ());
    assert!(!training_set.counts_all());
    assert_eq!(training_set.rows().len() + training_set.left_out().total(), num_rows);
    let plan = training_set.bucket_plan(8, 16).unwrap();
    for (shape, bucket) in plan.buckets().iter().enumerate() {
        for (row, room) in bucket.rows().iter().enumerate() {
            let members = plan.parts().members(shape, row);
            let over = members.iter().filter(|(index, _)| symbols(index.at()) as u64 > room.tokens);
            assert_eq!(over.count(), 0);
            assert!(room.tokens <= u64::from(training_set.max_tokens()));
        }
        assert!(bucket.rows()[0].tokens < 30, "a short recording has no long text: {bucket:?}");
    }
}

#[test]
fn rates_are_those_the_data_device_resamples_from() {
    let folder = FeedFolder::new("training-set-rates");
    let rates_hz = [16_000, 22_050, 44_100, 96_000, 8_000, 16_000];
    folder.write("metadata.csv", (0..8).map(|i| format!("u{i}|hello\n")).collect::<String>());
    for (i, rate_hz) in rates_hz.into_iter().enumerate() {
        folder.wav(&format!("wavs/u{i}.wav"), &sine(rate_hz, 1.0));
    }
    folder.write("wavs/u6.wav", "no audio");
    folder.wav("wavs/u7.wav", &sine(22_050, 2.0));
    let dataset = Dataset::open(folder.path(), &OpenOptions::default()).unwrap();
    let (mut index, _) = tandem_corpus::LengthIndex::open(folder.path(), &dataset);
    let scanned = crate::scan_lengths(dataset, &mut index, 1, |_| std::ops::ControlFlow::Continue(())).unwrap();
    let training_set = survey(&Arc::new(scanned.dataset), |_| ());
    assert_eq!(training_set.rates_hz(), [8_000, 16_000, 44_100]);
    assert_eq!((training_set.rows().len(), training_set.left_out().undecodable_audio), (7, 1));
    let order = training_set.bucket_plan(2, 2).unwrap().order(7);
    assert_eq!((order.num_batches(), order.num_samples()), (3, 7));
}
