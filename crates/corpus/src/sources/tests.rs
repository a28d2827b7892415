//! Names of corpora and what they stand for, read through [`Dataset::open`] and [`CorpusOpening`].

use std::fs;

use tandem_shards::TarWriter;

use super::*;
use crate::dataset::{Dataset, OpenOptions};
use crate::fixture::CorpusFolder;
use crate::opening::CorpusOpening;
use crate::sample::SampleIndex;

/// A tar archive of `members`.
fn tar(members: &[(&str, &str)]) -> Vec<u8> {
    let mut writer = TarWriter::new(Vec::new());
    members.iter().for_each(|(name, content)| writer.append(name, content.as_bytes()).unwrap());
    writer.finish().unwrap()
}

fn open(names: &[String]) -> Result<Dataset, CorpusError> {
    open_with(names, &OpenOptions::default())
}

fn open_with(names: &[String], options: &OpenOptions) -> Result<Dataset, CorpusError> {
    let mut opening = CorpusOpening::begin(names, options)?;
    for (number, shard) in opening.pending() {
        let scanned = shard.scan(None)?;
        opening.add(number, scanned);
    }
    opening.finish()
}

fn names(folder: &CorpusFolder, names: &[&str]) -> Vec<String> {
    names.iter().map(|name| folder.path().join(name).to_str().unwrap().to_owned()).collect()
}

fn ids(dataset: &Dataset) -> Vec<&str> {
    dataset.samples().ids().collect()
}

fn two_shards(folder: &CorpusFolder, second: &str) {
    folder.write("shard-000.tar", tar(&[("a.wav", "A"), ("a.txt", "one"), ("b.wav", "B"), ("b.txt", "two")]));
    let (wav, txt) = (format!("{second}.wav"), format!("{second}.txt"));
    folder.write("shard-001.tar", tar(&[(&wav, "C"), (&txt, "three")]));
}

#[test]
fn shards_are_one_corpus_however_they_are_named() {
    let folder = CorpusFolder::new("shard_names");
    two_shards(&folder, "c");
    let ways: [&[&str]; 5] = [
        &["shard-{000..001}.tar"],
        &["shard-*.tar"],
        &["shard-000.tar", "shard-001.tar"],
        &["shard-001.tar", "shard-000.tar"],
        &["."],
    ];
    for way in ways {
        let dataset = open(&names(&folder, way)).unwrap();
        let mut found = ids(&dataset);
        found.sort_unstable();
        assert_eq!(found, ["a", "b", "c"], "{way:?}");
        assert_eq!((dataset.format(), dataset.describe().as_str()), (Format::WebDataset, "WebDataset, 2 shards"));
        assert!(dataset.problems().is_empty() && !dataset.is_remote());
    }
    let one = open(&names(&folder, &["shard-001.tar"])).unwrap();
    assert_eq!(ids(&one), ["c"]);
}

#[test]
fn ids_that_begin_again_in_every_shard_get_its_name() {
    let folder = CorpusFolder::new("shard_ids");
    two_shards(&folder, "a");
    let dataset = open(&names(&folder, &["shard-*.tar"])).unwrap();
    assert_eq!(ids(&dataset), ["shard-000/a", "shard-000/b", "shard-001/a"]);
    let texts: Vec<&str> = dataset.samples().iter().map(|(_, sample)| sample.text).collect();
    assert_eq!(texts, ["one", "two", "three"]);
    assert_eq!(read(&dataset, 2), "C");
}

/// The bytes of a recording.
fn read(dataset: &Dataset, row: u32) -> String {
    let mut text = String::new();
    let mut reader = dataset.get(SampleIndex(row)).unwrap().audio.open().unwrap();
    std::io::Read::read_to_string(&mut reader, &mut text).unwrap();
    text
}

#[test]
fn an_index_is_used_until_the_shard_changes() {
    let folder = CorpusFolder::new("shard_index");
    two_shards(&folder, "c");
    let options = OpenOptions { index_folder: Some(folder.path().join("index")), ..OpenOptions::default() };
    let all = names(&folder, &["shard-*.tar"]);
    let first = open_with(&all, &options).unwrap();
    let opening = CorpusOpening::begin(&all, &options).unwrap();
    assert_eq!((opening.num_indexed(), opening.pending().len()), (2, 0));
    let second = opening.finish().unwrap();
    assert_eq!((ids(&second), second.fingerprint()), (ids(&first), first.fingerprint()));
    assert_eq!((0..3).map(|row| read(&second, row)).collect::<String>(), "ABC");

    folder.write("shard-001.tar", tar(&[("d.wav", "DD"), ("d.txt", "four")]));
    let opening = CorpusOpening::begin(&all, &options).unwrap();
    assert_eq!((opening.num_indexed(), opening.pending().len()), (1, 1));
    // What was opened before names the change instead of reading other bytes.
    let error = first.get(SampleIndex(2)).unwrap().audio.open().unwrap_err().to_string();
    assert!(error.contains("changed") && error.contains("shard-001.tar"), "{error}");

    // A damaged index is built again.
    for entry in fs::read_dir(folder.path().join("index")).unwrap() {
        let path = entry.unwrap().path();
        let mut bytes = fs::read(&path).unwrap();
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        fs::write(&path, bytes).unwrap();
    }
    let opening = CorpusOpening::begin(&all, &options).unwrap();
    assert_eq!((opening.num_indexed(), opening.pending().len()), (0, 2));
}

#[test]
fn an_index_that_cannot_be_stored_is_said_and_changes_nothing() {
    let folder = CorpusFolder::new("shard_index_lost");
    two_shards(&folder, "c");
    folder.write("file", "");
    let options = OpenOptions { index_folder: Some(folder.path().join("file/index")), ..OpenOptions::default() };
    let mut opening = CorpusOpening::begin(&names(&folder, &["."]), &options).unwrap();
    for (number, shard) in opening.pending() {
        let scanned = shard.scan(None).unwrap();
        opening.add(number, scanned);
    }
    assert!(matches!(opening.index_error(), Some(CorpusError::Write { .. })));
    assert_eq!(opening.finish().unwrap().samples().len(), 3);
}

#[test]
fn a_damaged_shard_keeps_its_rows_before_the_damage() {
    let folder = CorpusFolder::new("shard_damage");
    two_shards(&folder, "c");
    let mut whole = tar(&[("c.wav", "C"), ("c.txt", "three"), ("d.wav", "D"), ("d.txt", "four")]);
    whole.truncate(4 * 512 + 100);
    folder.write("shard-001.tar", whole);
    let dataset = open(&names(&folder, &["shard-*.tar"])).unwrap();
    assert_eq!(ids(&dataset), ["a", "b", "c"]);
    let [problem] = dataset.problems() else { panic!("{:?}", dataset.problems()) };
    assert_eq!(problem.kind, crate::ProblemKind::DamagedShard);
    assert!(problem.to_string().contains("shard-001.tar: damaged shard: "), "{problem}");
}

#[test]
fn nemo_reads_the_archives_that_its_manifest_numbers() {
    let folder = CorpusFolder::new("nemo_names");
    folder.write("audio_0.tar", tar(&[("a.wav", "A"), ("b.wav", "B")]));
    folder.write("audio_1.tar", tar(&[("c.wav", "C")]));
    let row = |name: &str, shard: u32| {
        format!("{{\"audio_filepath\":\"{name}.wav\",\"text\":\"{name}\",\"duration\":1.0,\"shard_id\":{shard}}}\n")
    };
    folder.write("tarred_audio_manifest.json", row("a", 0) + &row("b", 0) + &row("c", 1));
    for way in [&["."][..], &["tarred_audio_manifest.json"], &["tarred_audio_manifest.json", "audio_{0..1}.tar"]] {
        let dataset = open(&names(&folder, way)).unwrap();
        assert_eq!((ids(&dataset), dataset.format()), (vec!["a", "b", "c"], Format::NemoTarred), "{way:?}");
        assert_eq!((0..3).map(|row| read(&dataset, row)).collect::<String>(), "ABC");
        assert!(dataset.problems().is_empty(), "{:?}", dataset.problems());
    }
    fs::remove_file(folder.path().join("audio_1.tar")).unwrap();
    let dataset = open(&names(&folder, &["."])).unwrap();
    let [problem] = dataset.problems() else { panic!("{:?}", dataset.problems()) };
    assert!(problem.to_string().contains("1 rows with `shard_id` 1: there is no archive"), "{problem}");
}

#[test]
fn what_is_wrong_with_a_nemo_list_is_said_once_with_its_name_whatever_is_indexed() {
    let folder = CorpusFolder::new("nemo_problems");
    let row = |name: &str, shard: u32| {
        format!("{{\"audio_filepath\":\"{name}.wav\",\"text\":\"{name}\",\"duration\":1.0,\"shard_id\":{shard}}}\n")
    };
    folder.write("audio_0.tar", tar(&[("a.wav", "A")]));
    folder.write("audio_1.tar", tar(&[("b.wav", "B")]));
    folder.write("tarred_audio_manifest.json", row("a", 0) + &row("b", 1) + "{\n");
    let options = OpenOptions { index_folder: Some(folder.path().join("index")), ..OpenOptions::default() };
    let problems = || {
        let dataset = open_with(&names(&folder, &["."]), &options).unwrap();
        let shown =
            |problem: &crate::Problem| (problem.file.file_name().unwrap().to_owned(), problem.line, problem.kind);
        (dataset.samples().len(), dataset.problems().iter().map(shown).collect::<Vec<_>>())
    };
    let bad_line = ("tarred_audio_manifest.json".into(), Some(3), crate::ProblemKind::BadJson);
    assert_eq!(problems(), (2, vec![bad_line.clone()]));
    assert_eq!(problems(), (2, vec![bad_line.clone()]));
    // An archive that disappears is noticed although the others are indexed, and so is its return.
    let archive = fs::read(folder.path().join("audio_1.tar")).unwrap();
    fs::remove_file(folder.path().join("audio_1.tar")).unwrap();
    let missing = ("tarred_audio_manifest.json".into(), None, crate::ProblemKind::MissingAudio);
    let (count, mut found) = problems();
    found.sort();
    assert_eq!((count, found), (1, vec![missing, bad_line.clone()]));
    folder.write("audio_1.tar", archive);
    assert_eq!(problems(), (2, vec![bad_line]));
}

#[test]
fn every_nemo_manifest_has_its_archive() {
    let folder = CorpusFolder::new("nemo_pairs");
    folder.write("audio_0.tar", tar(&[("a.wav", "A")]));
    for number in 0..2 {
        folder.write(
            &format!("sharded_manifests/manifest_{number}.json"),
            "{\"audio_filepath\":\"a.wav\",\"text\":\"a\",\"duration\":1.0}\n",
        );
    }
    let error = open(&names(&folder, &["."])).unwrap_err().to_string();
    assert!(
        error.contains("an archive with the number of this manifest") && error.contains("manifest_1.json"),
        "{error}"
    );
}

#[test]
fn a_manifest_that_numbers_no_archives_is_a_corpus_beside_them() {
    let folder = CorpusFolder::new("tar_and_list");
    two_shards(&folder, "c");
    folder.write("list.jsonl", "{\"audio_filepath\":\"c.wav\",\"text\":\"another\",\"duration\":1.0}\n");
    let dataset = open(&names(&folder, &["shard-001.tar", "list.jsonl"])).unwrap();
    let texts: Vec<&str> = dataset.samples().iter().map(|(_, sample)| sample.text).collect();
    assert_eq!((ids(&dataset), texts), (vec!["shard-001/c", "list/c"], vec!["three", "another"]));
}

#[test]
fn shards_of_the_same_name_keep_all_their_rows() {
    let folder = CorpusFolder::new("same_names");
    for part in ["en", "de"] {
        let rows: Vec<(String, String)> = (0..4).map(|i| (format!("{i:03}.wav"), format!("{i:03}.txt"))).collect();
        let members: Vec<(&str, &str)> =
            rows.iter().flat_map(|(wav, txt)| [(wav.as_str(), "W"), (txt.as_str(), part)]).collect();
        folder.write(&format!("{part}/shard-000.tar"), tar(&members));
    }
    let dataset = open(&names(&folder, &["en/shard-000.tar", "de/shard-000.tar"])).unwrap();
    assert_eq!((dataset.samples().len(), dataset.problems().len()), (8, 0));
    assert_eq!((ids(&dataset)[0], ids(&dataset)[4]), ("en/shard-000/000", "de/shard-000/000"));
}

#[test]
fn a_few_ids_that_repeat_are_duplicates_and_rename_no_other_row() {
    let folder = CorpusFolder::new("few_repeats");
    for shard in 0..2 {
        let name = |i: usize| if i == 0 { "same".to_owned() } else { format!("{shard}-{i}") };
        let rows: Vec<(String, String)> =
            (0..30).map(|i| (format!("{}.wav", name(i)), format!("{}.txt", name(i)))).collect();
        let members: Vec<(&str, &str)> =
            rows.iter().flat_map(|(wav, txt)| [(wav.as_str(), "W"), (txt.as_str(), "text")]).collect();
        folder.write(&format!("shard-{shard}.tar"), tar(&members));
    }
    let dataset = open(&names(&folder, &["shard-*.tar"])).unwrap();
    assert_eq!((dataset.samples().len(), ids(&dataset)[1]), (59, "0-1"));
    let [problem] = dataset.problems() else { panic!("{:?}", dataset.problems()) };
    assert_eq!(problem.kind, crate::ProblemKind::DuplicateId);
}

#[test]
fn a_list_of_shards_names_them_from_its_folder_or_from_the_working_folder() {
    let folder = CorpusFolder::new("shard_list");
    two_shards(&folder, "c");
    folder.write("beside.list", "shard-000.tar\n\nshard-001.tar\n");
    let full: String = names(&folder, &["shard-000.tar", "shard-001.tar"]).join("\n");
    folder.write("full.list", full);
    for list in ["beside.list", "full.list"] {
        assert_eq!(ids(&open(&names(&folder, &[list])).unwrap()), ["a", "b", "c"], "{list}");
    }
    folder.write("texts.list", "a.txt\n");
    let error = open(&names(&folder, &["texts.list"])).unwrap_err().to_string();
    assert!(error.contains("expected a list of shards"), "{error}");
}

#[test]
fn a_folder_of_another_format_names_the_shards_that_it_does_not_read() {
    let folder = CorpusFolder::new("shards_beside");
    two_shards(&folder, "c");
    folder.write("metadata.csv", "x|text\n");
    folder.write("wavs/x.wav", "W");
    let dataset = open(&names(&folder, &["."])).unwrap();
    assert_eq!(
        (dataset.format(), dataset.not_read()),
        (Format::LjSpeech, &["2 .tar, .parquet or .arrow files; to read them, name them".to_owned()][..])
    );
}

#[test]
fn a_folder_whose_name_has_brackets_is_no_pattern() {
    let folder = CorpusFolder::new("brackets");
    folder.write("br[1]/s-0.tar", tar(&[("a.wav", "A"), ("a.txt", "one")]));
    folder.write("br[1]/corpus.yaml", "sources: [{path: 's-*.tar'}]\n");
    assert_eq!(ids(&open(&names(&folder, &["br[1]/corpus.yaml"])).unwrap()), ["s/a"]);
}

#[test]
fn a_manifest_may_name_recordings_by_urls_and_ids_have_no_secret() {
    let folder = CorpusFolder::new("url_rows");
    folder.write(
        "list.jsonl",
        "{\"audio_filepath\":\"https://user:password@host/a.wav?signature=secret\",\"text\":\"a\",\"duration\":1.0}\n\
         {\"audio_filepath\":\"https://user:password@host/a.wav?signature=other\",\"text\":\"a\",\"duration\":1.0}\n\
         {\"audio_filepath\":\"b.wav\",\"text\":\"b\",\"duration\":1.0}\n",
    );
    folder.write("b.wav", "B");
    let dataset = open(&names(&folder, &["list.jsonl"])).unwrap();
    assert!(dataset.is_remote() && dataset.samples().len() == 3);
    assert_eq!(read(&dataset, 2), "B");
    let shown = format!("{:?} {}", ids(&dataset), dataset.get(SampleIndex(0)).unwrap().audio.show());
    assert!(shown.contains("https://host/a") && !shown.contains("secret") && !shown.contains("password"), "{shown}");
}

#[test]
fn splits_of_another_purpose_are_not_trained_on() {
    let object = |name: &str| StampedObject {
        location: ObjectLocation::file(name),
        stamp: ObjectStamp { num_bytes: 0, modified_ns: 0, etag: None },
    };
    let check = |files: &[&str], read: &[&str], not_read: &[&str]| {
        let (found, others) = training_split(files.iter().map(|name| object(name)).collect());
        assert_eq!(found.iter().map(|file| file.location.name()).collect::<Vec<_>>(), read);
        assert_eq!(others, not_read);
    };
    check(&["train-0.parquet", "test-0.parquet"], &["train-0.parquet"], &["test-0.parquet"]);
    check(&["train_a.parquet", "dev.parquet", "x.parquet"], &["train_a.parquet", "x.parquet"], &["dev.parquet"]);
    check(&["test-0.parquet"], &["test-0.parquet"], &[]);
    check(&["voice-train-0.arrow", "voice-test-0.arrow"], &["voice-train-0.arrow"], &["voice-test-0.arrow"]);
    check(&["training-0.tar", "test-0.tar"], &["training-0.tar"], &["test-0.tar"]);
    check(&["data-0.arrow", "cache-12.arrow"], &["data-0.arrow"], &["cache-12.arrow"]);
}

#[test]
fn a_mixture_names_its_sources_and_repeats_by_weight() {
    let folder = CorpusFolder::new("mixture");
    two_shards(&folder, "c");
    folder.write("lj/metadata.csv", (0..50).map(|i| format!("u{i}|text\n")).collect::<String>());
    (0..50).for_each(|i| folder.write(&format!("lj/wavs/u{i}.wav"), format!("W{i}")));
    folder.write(
        "corpus.yaml",
        "sources:\n  - path: 'shard-*.tar'\n    lang: fa\n    weight: 1\n  - {path: lj, name: lj, weight: 2.5}\n",
    );
    let dataset = open(&names(&folder, &["corpus.yaml"])).unwrap();
    assert_eq!((dataset.format(), dataset.samples().len()), (Format::Mixture, 53));
    assert_eq!(ids(&dataset)[..4], ["shard/a", "shard/b", "shard/c", "lj/u0"]);
    assert_eq!((read(&dataset, 2), read(&dataset, 3)), ("C".to_owned(), "W0".to_owned()));
    assert_eq!(dataset.get(SampleIndex(0)).unwrap().lang, Some("fa"));
    assert!(dataset.has_repeats());
    assert_eq!((0..3).map(|row| dataset.repeats(SampleIndex(row))).sum::<u32>(), 3);
    let repeated: Vec<u32> = (3..53).map(|row| dataset.repeats(SampleIndex(row))).collect();
    assert!(repeated.iter().all(|times| [2, 3].contains(times)));
    assert!((15..=35).contains(&repeated.iter().filter(|times| **times == 3).count()), "{repeated:?}");

    let plain = open(&names(&folder, &["lj", "shard-000.tar"])).unwrap();
    assert_eq!((plain.format(), plain.samples().len(), plain.has_repeats()), (Format::Mixture, 52, false));
}

#[test]
fn what_is_no_corpus_is_refused_with_what_to_do() {
    let folder = CorpusFolder::new("no_source");
    two_shards(&folder, "c");
    folder.write("list.json", "{\"audio_filepath\":\"a.wav\",\"text\":\"x\",\"shard_id\":0}\n");
    folder.write("notes/list.json", "{\"audio_filepath\":\"a.wav\",\"text\":\"x\",\"shard_id\":0}\n");
    folder.write("inner.yaml", "sources: [{path: corpus.yaml}]\n");
    folder.write("corpus.yaml", "sources: [{path: shard-000.tar}, {path: inner.yaml}]\n");
    let check = |way: &[&str], part: &str| {
        let error = open(&names(&folder, way)).unwrap_err().to_string();
        assert!(error.contains(part), "{way:?}: {error}");
    };
    check(&["missing-{0..3}.tar"], "4 of 4 shards are missing; the first of them");
    check(&["missing-*.tar"], "expected at least one file or object, found none");
    folder.write("packed.tar.gz", "");
    check(&["packed.tar.gz"], "found a compressed one");
    check(&["missing"], "expected a corpus, found nothing");
    check(&["shard-999.tar"], "expected a corpus, found nothing");
    check(&["notes/list.json"], "no audio_0.tar, audio_1.tar");
    check(&["inner.yaml"], "another mixture");
    check(&["corpus.yaml", "shard-000.tar"], "another mixture");
    // However it is named: two mixtures that name each other would never end.
    folder.write("pattern.yaml", "sources: [{path: 'pattern.yam[l]'}]\n");
    check(&["pattern.yaml"], "another mixture");
    let error = open(&["s3:/bucket/a.tar".to_owned()]).unwrap_err().to_string();
    assert!(error.contains("s3://bucket/key"), "{error}");
    assert!(open(&[]).unwrap_err().to_string().contains("at least one name"));
    let error = open(&["s4://bucket/a.tar".to_owned()]).unwrap_err().to_string();
    assert!(error.contains("s3://"), "{error}");
}

#[test]
fn numbers_of_files() {
    let check = |name: &str, expected: Option<u32>| assert_eq!(number_in(name), expected, "{name}");
    check("audio_12.tar", Some(12));
    check("manifest_000003.json", Some(3));
    check("b2_audio__OP_7_CL_.tar", Some(7));
    check("audio.tar", None);
    check("99999999999.tar", None);
}
