//! Archives and manifests as NeMo's converter writes them, and others.

use std::path::Path;

use proptest::prelude::*;

use super::*;
use crate::problem::{Findings, Problem};
use crate::sharded::webdataset::fixture::{ScanOutcome, outcome_of, recording_of, tar_of};

fn list_of(manifest: &str) -> (NemoList, Vec<Problem>) {
    let mut problems = Vec::new();
    let mut findings = Findings { file: Path::new("manifest.json").into(), list: &mut problems };
    let list = NemoList::read(manifest.as_bytes(), &mut findings).unwrap();
    (list, problems)
}

fn scan_of(archive: &[u8], manifest: &str, shard: Option<u32>) -> ScanOutcome {
    let (list, problems) = list_of(manifest);
    assert_eq!(problems, []);
    outcome_of(archive, None, |bytes, found| scan(bytes, &list, shard, found))
}

#[test]
fn rows_come_in_the_order_of_the_manifest() {
    let archive = tar_of(&[("d_a.wav", "RIFF a"), ("d_b.wav", "RIFF b")]);
    let manifest = r#"{"audio_filepath":"d_b.wav","text":"bee","duration":2.5,"shard_id":4,"speaker":"p1","lang":"en"}
{"audio_filepath":"other.wav","text":"elsewhere","duration":1,"shard_id":5}

{"audio_filepath":"d_a.wav","text":"ay","duration":1,"shard_id":4,"source_audio_offset":3.5}
"#;
    let found = scan_of(&archive, manifest, Some(4));
    assert_eq!(found.brief(), [(1, "d_b", "bee", "d_b.wav"), (4, "d_a", "ay", "d_a.wav")]);
    assert!(found.problems.is_empty() && found.fault.is_none(), "{found:?}");
    assert_eq!([&found.rows[0], &found.rows[1]].map(|row| recording_of(&archive, row)), [b"RIFF b", b"RIFF a"]);
    let first = &found.rows[0];
    assert_eq!((first.speaker.as_deref(), first.lang.as_deref()), (Some("p1"), Some("en")));
    assert_eq!((first.offset_s, first.duration_s), (None, Some(2.5)));
    assert_eq!(found.rows[1].offset_s, None);
}

#[test]
fn entries_of_one_recording_share_its_member() {
    let archive = tar_of(&[("a.wav", "RIFF a")]);
    let manifest = r#"{"audio_filepath":"a.wav","text":"one","duration":2,"offset":0.0,"shard_id":0}
{"audio_filepath":"a-sub1.wav","text":"two","duration":3,"offset":2.25,"shard_id":0}
{"audio_filepath":"a-sub2.wav","text":"two again","duration":2,"offset":2.25,"shard_id":0}
"#;
    let found = scan_of(&archive, manifest, Some(0));
    let expected =
        [(1, "a@0", "one", "a.wav"), (2, "a-sub1@2.25", "two", "a.wav"), (3, "a-sub2@2.25", "two again", "a.wav")];
    assert_eq!(found.brief(), expected);
    let cuts: Vec<_> = found.rows.iter().map(|row| (row.offset_s, row.duration_s)).collect();
    assert_eq!(cuts, [(Some(0.0), Some(2.0)), (Some(2.25), Some(3.0)), (Some(2.25), Some(2.0))]);
    assert!(found.rows.iter().all(|row| recording_of(&archive, row) == b"RIFF a"));
    assert!(found.problems.is_empty(), "{found:?}");
}

#[test]
fn a_member_may_have_another_folder_or_ending() {
    let archive = tar_of(&[("a.flac", "flac"), ("x/b.wav", "RIFF")]);
    let manifest = r#"{"audio_filepath":"a.wav","text":"transcoded"}
{"audio_filepath":"/data/wavs/b.wav","text":"moved"}
"#;
    let found = scan_of(&archive, manifest, None);
    assert_eq!(found.brief(), [(1, "a", "transcoded", "a.flac"), (2, "/data/wavs/b", "moved", "x/b.wav")]);
    assert!(found.problems.is_empty(), "{found:?}");
}

#[test]
fn an_entry_without_a_member_is_a_problem() {
    let archive = tar_of(&[("a.wav", "x"), ("x/c.wav", "x"), ("y/c.wav", "x")]);
    let entry = |name: &str| format!("{{\"audio_filepath\":\"{name}\",\"text\":\"t\",\"shard_id\":7}}\n");
    let check = |name: &str, shard: Option<u32>, part: &str| {
        let found = scan_of(&archive, &(entry(name) + &entry("a.wav") + &entry("x/c.wav") + &entry("y/c.wav")), shard);
        found.assert_problem(Some(1), ProblemKind::MissingAudio, part);
        assert_eq!(found.rows.len(), 3);
    };
    check("b.wav", Some(7), "no `b.wav` in shard 7");
    check("b.wav", None, "no `b.wav` in the shard");
    check("/data/c.wav", Some(7), "`/data/c.wav` may be `x/c.wav` or `y/c.wav`");
}

#[test]
fn members_without_an_entry_are_counted_in_one_problem() {
    let archive = tar_of(&[("z.wav", "x"), ("a.wav", "x"), ("b.wav", "x"), ("a.json", "{}")]);
    let found = scan_of(&archive, r#"{"audio_filepath":"a.wav","text":"t"}"#, Some(3));
    assert_eq!(found.brief(), [(1, "a", "t", "a.wav")]);
    found.assert_problem(None, ProblemKind::UnusedFile, "names 3 members of shard 3 nowhere, first `z.wav`");
}

#[test]
fn a_cut_archive_keeps_the_rows_before_the_cut() {
    let archive = tar_of(&[("a.wav", "x"), ("b.wav", "x"), ("c.wav", "x")]);
    let entry = |name: &str| format!("{{\"audio_filepath\":\"{name}.wav\",\"text\":\"t\"}}\n");
    let manifest = ["c", "b", "a"].map(entry).concat();
    let found = scan_of(&archive[..2048 + 300], &manifest, Some(0));
    assert_eq!(found.brief(), [(2, "b", "t", "b.wav"), (3, "a", "t", "a.wav")]);
    found.assert_problem(None, ProblemKind::MissingAudio, "shard 0 ends too early: 1 entries have no recording");
    assert!(matches!(found.fault, Some(ShardFault::Damaged { .. })), "{:?}", found.fault);
}

#[test]
fn entries_are_grouped_by_shard() {
    let line = |shard: &str| format!("{{\"audio_filepath\":\"a.wav\",\"text\":\"t\"{shard}}}\n");
    let shards =
        [",\"shard_id\":2", "", ",\"shard_id\":0", ",\"shard_id\":2", ",\"shard_id\":null", ",\"shard_id\":2.0"];
    let (list, problems) = list_of(&shards.map(line).concat());
    assert_eq!(problems, []);
    let lines = |shard: Option<u32>| list.entries(shard).map(|(line, _)| line).collect::<Vec<u32>>();
    assert_eq!(lines(Some(2)), [1, 2, 4, 5, 6]);
    assert_eq!(lines(Some(0)), [2, 3, 5]);
    assert_eq!(lines(Some(1)), [2, 5]);
    assert_eq!(lines(None), [1, 2, 3, 4, 5, 6]);
    assert_eq!(list.shards().collect::<Vec<_>>(), [(None, 2), (Some(0), 1), (Some(2), 3)]);
}

#[test]
fn a_line_that_is_no_entry_is_a_finding() {
    let check = |line: &str, kind: ProblemKind, part: &str| {
        let (list, problems) = list_of(&format!("\n{line}\n"));
        assert_eq!(list.entries(None).count(), 0);
        assert_eq!(problems.len(), 1, "{line}");
        assert!(problems[0].kind == kind && problems[0].detail.contains(part), "{line}: {:?}", problems[0]);
        assert_eq!(problems[0].line, Some(2));
    };
    let with = |shard: &str| format!("{{\"audio_filepath\":\"a.wav\",\"text\":\"t\",\"shard_id\":{shard}}}");
    check("{", ProblemKind::BadJson, "");
    check(r#"{"text":"t","shard_id":0}"#, ProblemKind::MissingKey, "`audio_filepath`");
    check(&with("-1"), ProblemKind::BadNumber, "`shard_id` must be a whole number from 0, found -1");
    check(&with("0.5"), ProblemKind::BadNumber, "0.5");
    check(&with("4294967296"), ProblemKind::BadNumber, "4294967296");
    check(&with("\"0\""), ProblemKind::WrongType, "`shard_id`");
    check(&with("0,\"shard_id\":1"), ProblemKind::BadJson, "`shard_id`");
    let (_, problems) = list_of("\n \n");
    assert_eq!((problems.len(), problems[0].kind, problems[0].line), (1, ProblemKind::NoRows, None));
}

fn any_name() -> impl Strategy<Value = String> {
    "(d/|/d/)?[abé.]{1,2}(-sub[0-9])?(\\.wav|\\.flac|\\.x)?"
}

/// Path, text, speaker, offset, and a shard with 0 for none.
fn any_entry() -> impl Strategy<Value = (String, String, Option<String>, Option<f64>, u32)> {
    let offset = prop::option::of((0..90_u32).prop_map(|quarters| f64::from(quarters) / 4.0));
    ("[a-z/é]{1,8}\\.wav", "\\PC{0,20}[a-z]", prop::option::of("[a-z]{1,3}"), offset, 0..4_u32)
}

/// Members under names that the writer takes.
fn any_members() -> impl Strategy<Value = Vec<(String, Vec<u8>)>> {
    let name = any_name()
        .prop_filter("a name of a member", |name| name.split('/').all(|part| !matches!(part, "" | "." | "..")));
    prop::collection::vec((name, prop::collection::vec(any::<u8>(), 0..700)), 0..16)
}

proptest! {
    #[test]
    fn what_a_list_was_given_comes_out(
        entries in prop::collection::vec(any_entry(), 1..20),
    ) {
        let lines: Vec<String> = entries.iter().map(|(path, text, speaker, offset, shard)| {
            let shard = shard.checked_sub(1);
            let object = serde_json::json!({
                "audio_filepath": path, "text": text, "speaker": speaker, "offset": offset, "shard_id": shard,
            });
            object.to_string() + "\n"
        }).collect();
        let (list, problems) = list_of(&lines.concat());
        prop_assert!(problems.is_empty());
        let found: Vec<_> = list.entries(None).collect();
        prop_assert_eq!(found.len(), entries.len());
        for ((path, text, speaker, offset_s, _), (line, entry)) in entries.iter().zip(&found) {
            prop_assert_eq!((&*entry.key, &*entry.text), (path.as_str(), text.trim()), "{}", line);
            prop_assert_eq!((entry.speaker.as_deref(), entry.offset_s), (speaker.as_deref(), *offset_s));
        }
        for shard in 0..4 {
            let of_shard = entries.iter().filter(|entry| entry.4.checked_sub(1).is_none_or(|number| number == shard));
            prop_assert_eq!(list.entries(Some(shard)).count(), of_shard.count());
        }
    }

    #[test]
    fn every_entry_is_a_row_or_a_problem(
        members in any_members(), names in prop::collection::vec(any_name(), 1..20),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut archive = tar_of(&members);
        if let Some(cut) = cut {
            archive.truncate(cut.index(archive.len()));
        }
        let line = |name: &String| serde_json::json!({ "audio_filepath": name, "text": "t" }).to_string() + "\n";
        let (list, _) = list_of(&names.iter().map(line).collect::<String>());
        let found = outcome_of(&archive, None, |bytes, found| scan(bytes, &list, None, found));
        prop_assert!(found.fault.is_none() || cut.is_some(), "{:?}", found.fault);
        for row in &found.rows {
            let contents = recording_of(&archive, row);
            prop_assert!(members.iter().any(|(name, bytes)| *name == row.key && bytes == contents));
        }
        let is_missing = |(line, kind): &&(Option<u32>, _)| line.is_some() && *kind == ProblemKind::MissingAudio;
        let num_missing = found.kinds().iter().filter(is_missing).count();
        let num_entries = list.entries(None).count();
        match found.fault {
            None => prop_assert_eq!(found.rows.len() + num_missing, num_entries),
            Some(_) => prop_assert!(found.rows.len() + num_missing <= num_entries),
        }
    }

    #[test]
    fn any_bytes_are_a_list(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let mut problems = Vec::new();
        let mut findings = Findings { file: Path::new("manifest.json").into(), list: &mut problems };
        let list = NemoList::read(&bytes[..], &mut findings).unwrap();
        prop_assert!(list.entries(None).count() > 0 || !problems.is_empty());
    }
}
