//! Everything that is packed is read back, whatever its recordings are called.

use std::fs;
use std::path::Path;

use tandem_audio::{Clip, wav};
use tandem_corpus::{Dataset, OpenOptions};
use tandem_feed::{PackFormat, PackOptions, load_into, open_corpus, pack};

/// An utterance: id, text, speaker, language, sample rate, samples.
type Read = (String, String, Option<String>, Option<String>, u32, Vec<i16>);

fn read(dataset: &Dataset) -> Vec<Read> {
    let mut clip = Clip::default();
    let mut read = |(_, sample): (_, tandem_corpus::Sample<'_>)| {
        load_into(&sample.audio, &mut clip).unwrap();
        let owned = |name: Option<&str>| name.map(str::to_owned);
        let (id, text) = (sample.id.to_owned(), sample.text.to_owned());
        (id, text, owned(sample.speaker), owned(sample.lang), clip.rate_hz, clip.samples.clone())
    };
    dataset.samples().iter().map(&mut read).collect()
}

fn wav_of(number: i16) -> Vec<u8> {
    let samples = (0..4000).map(|i: i16| i.wrapping_mul(number)).collect();
    let mut bytes = Vec::new();
    wav::write(&Clip { samples, rate_hz: 16_000 }, &mut bytes).unwrap();
    bytes
}

/// A manifest of recordings whose names say little or the wrong thing of their content, and a part of one.
fn odd_names(folder: &Path) -> Dataset {
    let sound = |name: &str| {
        let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../audio/tests/data");
        fs::read(data.join(name)).unwrap()
    };
    let recordings = [
        ("a.001", wav_of(1)),
        ("a_001", wav_of(2)),
        ("b.wave", wav_of(3)),
        ("x.opus", sound("voice.ogg")),
        ("c.wav?sig=SECRET", wav_of(5)),
        ("track.bin", sound("voice.flac")),
        ("music.wav", sound("voice.mp3")),
        ("__meta__/__d__.wav", wav_of(8)),
        (".hidden/..e.WAV", wav_of(9)),
        ("two words/f:g*.wav", wav_of(10)),
        ("سلام.wav", wav_of(11)),
    ];
    let mut rows = String::new();
    for (number, (name, bytes)) in recordings.iter().enumerate() {
        fs::create_dir_all(folder.join(name).parent().unwrap()).unwrap();
        fs::write(folder.join(name), bytes).unwrap();
        rows +=
            &format!("{{\"audio_filepath\":\"{name}\",\"text\":\"text {number}\",\"speaker\":\"voice {number}\"}}\n");
    }
    rows += "{\"audio_filepath\":\"a.001\",\"text\":\"a part\",\"offset\":0.05,\"duration\":0.1,\"lang\":\"fa\"}\n";
    fs::write(folder.join("list.jsonl"), rows).unwrap();
    Dataset::open(folder.join("list.jsonl"), &OpenOptions::default()).unwrap()
}

#[test]
fn recordings_with_odd_names_are_read_back_from_shards() {
    let folder = tempfile::tempdir().unwrap();
    let dataset = odd_names(folder.path());
    let expected = read(&dataset);
    assert_eq!((expected.len(), dataset.problems().len()), (12, 0), "{:?}", dataset.problems());
    for (format, ending) in [(PackFormat::Tar, "tar"), (PackFormat::Parquet, "parquet")] {
        let shards = folder.path().join(ending);
        // Several shards: names are used once in all of them.
        let options = PackOptions { format, shard_bytes: 60_000 };
        let report = pack(&dataset, &shards, &options, |_| ()).unwrap();
        assert_eq!((report.num_utterances, report.problems.len()), (12, 0), "{report:?}");
        assert!(report.shards.len() > 1, "{report:?}");
        let name = shards.to_str().unwrap().to_owned();
        let opened = open_corpus(&[name], &OpenOptions::default(), 2, |_| ()).unwrap().dataset;
        assert!(opened.problems().is_empty(), "{ending}: {:?}", opened.problems());
        let found = read(&opened);
        for (found, expected) in found.iter().zip(&expected) {
            assert_eq!((&found.0, &found.1, &found.2, &found.3), (&expected.0, &expected.1, &expected.2, &expected.3));
            assert!(found.4 == expected.4 && found.5 == expected.5, "{ending}: {} has other samples", found.0);
        }
        assert_eq!(found.len(), expected.len(), "{ending}");
    }
}
