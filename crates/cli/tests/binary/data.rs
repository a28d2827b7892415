//! A plan for a corpus: its buckets, what is left out, where audio is cached, and the message for a path without a corpus.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::command::{Ran, TandemCommand, contains, texts};
use crate::machine::TempFolder;
use crate::speech::{copy_of_demo, demo, tone, wav_of};

fn plan(line: &str, corpus: &Path) -> Ran {
    TandemCommand::new("plan --sim 1x24GiB --train-data").arg(corpus).args(line.split_whitespace()).run()
}

fn plan_json(line: &str, corpus: &Path) -> Value {
    let ran = plan(&format!("{line} --json"), corpus);
    assert_eq!(ran.code, 0, "{ran:?}");
    ran.json()
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is not a number"))
}

/// A manifest with durations; its recordings do not exist.
fn manifest(folder: &TempFolder, seconds: impl Iterator<Item = f64>) -> std::path::PathBuf {
    let row =
        |(i, s): (usize, f64)| format!("{{\"audio_filepath\":\"{i}.wav\",\"text\":\"hello\",\"duration\":{s}}}\n");
    folder.file("list.jsonl", seconds.enumerate().map(row).collect::<String>())
}

/// The largest row of any bucket.
fn longest_row(document: &Value, of: &str) -> u64 {
    document["buckets"].as_array().unwrap().iter().map(|bucket| number(&bucket[of])).max().unwrap()
}

#[test]
fn buckets_come_from_the_corpus_and_padding_is_printed() {
    let utterances = fs::read_to_string(demo().join("metadata.csv")).unwrap().lines().count() as u64;
    let document = plan_json("--batch-size 4", demo());
    let corpus = &document["corpus"];
    let (trained, validated) = (number(&corpus["utterances"]), number(&corpus["validation"]));
    assert_eq!(trained + validated + number(&corpus["left_out"]["too_long"]), utterances);
    assert!(validated > 0 && corpus["hours"].as_f64().unwrap() > 0.0, "{corpus}");
    assert_eq!(number(&corpus["batches"]), trained / 4);
    let waste = corpus["padding_waste"].as_f64().unwrap();
    assert!(waste > 0.0 && waste < 0.5, "{corpus}");

    let buckets = document["buckets"].as_array().unwrap();
    assert!(!buckets.is_empty() && buckets.len() <= 2, "{buckets:?}");
    assert_eq!(longest_row(&document, "frames"), number(&document["max_mel_frames"]).next_multiple_of(8));
    assert_eq!(longest_row(&document, "tokens"), number(&document["max_text_length"]));
    for bucket in buckets {
        let (batch, frames, total) = (&bucket["batch"], number(&bucket["frames"]), number(&bucket["total_frames"]));
        assert!(*batch == 4 && total >= frames && total < 4 * frames, "{bucket}");
        let rows: Vec<u64> = bucket["row_frames"].as_array().unwrap().iter().map(number).collect();
        assert!(rows.len() == 4 && rows.iter().sum::<u64>() == total && rows.is_sorted(), "{bucket}");
    }

    let ran = plan("--batch-size 4", demo());
    let expected = [
        format!("Corpus:      {trained} utterances, "),
        format!("Padding:     {:.1} % of frames, ", waste * 100.0),
        format!("Buckets:     {} with rows of ", buckets.len()),
        format!(" to {} frames; ", longest_row(&document, "frames")),
        format!("/{} frames/tokens per batch", buckets[buckets.len() - 1]["total_tokens"]),
        "Cache:       memory, up to ".to_owned(),
    ];
    contains(&ran.out, &expected.each_ref().map(String::as_str));
}

#[test]
fn the_longest_are_left_out_and_their_cost_is_printed() {
    let folder = TempFolder::new();
    let list = manifest(&folder, (1..=1000).map(|i| f64::from(i) / 50.0));
    let document = plan_json("", &list);
    let longest = number(&document["max_mel_frames"]);
    assert!((1690..=1721).contains(&longest), "99.5 % of 20 s, in frames: {longest}");
    let left_out = &document["corpus"]["left_out"];
    assert!((1..=8).contains(&number(&left_out["too_long"])), "{left_out}");
    assert!(number(&left_out["longest_frames"]) > longest);
    contains(
        &plan("", &list).out,
        &["Skipped:    ", &format!("over {longest} frames"), "; without this limit, slots would need "],
    );

    let shorter = plan_json("--max-mel-frames 500", &list);
    assert_eq!(longest_row(&shorter, "frames"), 504);
    assert!(number(&shorter["corpus"]["left_out"]["too_long"]) > 600);
    assert!(number(&shorter["roles"]["data"]["planned_bytes"]) < number(&document["roles"]["data"]["planned_bytes"]));
}

#[test]
fn excluded_utterances_are_not_counted() {
    let metadata = fs::read_to_string(demo().join("metadata.csv")).unwrap();
    let ids: Vec<&str> = metadata.lines().map(|line| line.split('|').next().unwrap()).collect();
    let folder = TempFolder::new();
    let list = folder.file("excluded.txt", ids[..5].join("\n"));
    let everything = plan_json("--batch-size 2", demo());
    let document = plan_json(&format!("--batch-size 2 --exclude-ids {}", list.display()), demo());
    let total = |document: &Value| {
        let corpus = &document["corpus"];
        number(&corpus["utterances"]) + number(&corpus["validation"]) + number(&corpus["left_out"]["too_long"])
    };
    assert_eq!((total(&document) + 5, number(&document["corpus"]["excluded"])), (total(&everything), 5));
}

#[test]
fn validation_data_may_be_another_corpus() {
    let (copy, metadata) = copy_of_demo();
    let line = format!("--batch-size 2 --val-data {}", copy.path("").display());
    let corpus = plan_json(&line, demo())["corpus"].clone();
    assert_eq!(number(&corpus["validation"]), metadata.len() as u64);
    let trained = number(&corpus["utterances"]) + number(&corpus["left_out"]["too_long"]);
    assert_eq!(trained, metadata.len() as u64, "the training data is not split");
}

#[test]
fn recordings_at_other_rates_take_more_to_upload() {
    let folder = TempFolder::new();
    folder.file("metadata.csv", (0..20).map(|i| format!("u{i}|hello\n")).collect::<String>());
    for i in 0..20 {
        folder.file(&format!("wavs/u{i}.wav"), wav_of(&tone(if i % 2 == 0 { 44_100 } else { 16_000 }, 1.0)));
    }
    let document = plan_json("--batch-size 2", &folder.path(""));
    assert_eq!(document["rates_hz"], json!([16_000, 44_100]));
    let lines = document["roles"]["data"]["lines"].as_array().unwrap();
    assert!(lines.iter().any(|line| line["name"] == "resampled int16"), "{lines:?}");
}

#[test]
fn a_path_without_a_corpus_is_refused_with_what_to_type() {
    let folder = TempFolder::new();
    let empty = folder.file("empty/metadata.csv", "");
    let nothing = folder.path("nothing");
    let check = |ran: Ran, parts: &[&str]| {
        assert_eq!((ran.code, ran.out.as_str()), (2, ""), "{ran:?}");
        contains(&ran.err, parts);
    };
    check(plan("", &nothing), &["❌ --train-data: expected a corpus, found nothing", "tandem corpus demo"]);
    check(
        plan("", &folder.path("")),
        &["--train-data: expected a corpus, found a folder with empty/", "Did you mean "],
    );
    check(plan("", empty.parent().unwrap()), &["❌ No usable utterances: "]);
    let missing = format!("--exclude-ids {}", nothing.display());
    check(plan(&missing, demo()), &["❌ --exclude-ids: could not be read", "one id per line"]);
    check(plan(&format!("--val-data {}", nothing.display()), demo()), &["❌ --val-data: expected", "found nothing"]);
    check(TandemCommand::new("plan --sim 1x24GiB --val-data x").run(), &["--val-data requires --train-data"]);
    check(plan("--cache ram", demo()), &["--cache: expected one of auto, none, memory, disk, found `ram`"]);
    check(plan("--max-bad-fraction 5", demo()), &["expected a number from 0 to 1, found `5`"]);
}

#[test]
fn a_batch_larger_than_the_corpus_is_refused_with_one_that_fits() {
    let ran = plan("--batch-size 5000 --json", demo());
    assert_eq!(ran.code, 2, "{ran:?}");
    let refusal = ran.json();
    assert_eq!(refusal["reason"], "corpus");
    contains(refusal["error"].as_str().unwrap(), &["❌ --batch-size 5000 is more than the ", "usable utterances"]);
    let [typed] = texts(&refusal["suggestions"])[..] else { panic!("{refusal}") };
    assert_eq!(plan(typed, demo()).code, 0, "{typed}");
}

#[test]
fn the_cache_is_the_requested_one_and_auto_gives_its_reason() {
    let check = |line: &str, kind: &str, why: &str| {
        let cache = plan_json(line, demo())["cache"].clone();
        assert_eq!(cache["kind"], kind, "{cache}");
        contains(cache["why"].as_str().unwrap(), &[why]);
        assert_eq!(number(&cache["budget_bytes"]) > 0, kind != "none", "{cache}");
    };
    check("", "memory", "of decoded audio fits in a quarter of the ");
    for word in ["none", "memory", "disk"] {
        check(&format!("--cache {word}"), word, &format!("--cache {word}"));
    }
    let folder = TempFolder::new();
    // Eight months of speech do not fit into memory.
    let months = manifest(&folder, (0..100_000).map(|_| 200.0));
    assert_eq!(plan_json("--batch-size 1 --buffer-size 1 --model-size nano", &months)["cache"]["kind"], "none");
}

#[test]
fn suggestions_are_for_the_corpus_and_keep_it() {
    let line = "--share-gpu --enable-memory-isolation --model-gpu-memory 900 --batch-size 16 --model-size small";
    let refusal = plan(&format!("{line} --json"), demo()).json();
    assert_eq!(refusal["reason"], "limit-too-small", "{refusal}");
    let typed = texts(&refusal["suggestions"]);
    assert!(!typed.is_empty(), "{refusal}");
    for suggestion in typed {
        // Suggested flags replace the given ones.
        let replaced: Vec<&str> = suggestion.split_whitespace().filter(|word| word.starts_with("--")).collect();
        let mut words = line.split_whitespace().peekable();
        let mut unchanged = Vec::new();
        while let Some(word) = words.next() {
            let value = words.next_if(|next| !next.starts_with("--"));
            if !replaced.contains(&word) {
                unchanged.push(word);
                unchanged.extend(value);
            }
        }
        let ran = plan(&format!("{} {suggestion}", unchanged.join(" ")), demo());
        assert_eq!(ran.code, 0, "{suggestion}: {ran:?}");
    }
}

#[test]
fn a_printed_config_names_the_corpus_again() {
    let folder = TempFolder::new();
    let printed = plan("--batch-size 4 --print-config", demo());
    let file = folder.file("run.yaml", &printed.out);
    let again = TandemCommand::new("plan --sim 1x24GiB --json").config(&file).run().json();
    let first = plan_json("--batch-size 4", demo());
    for key in ["corpus", "buckets", "roles", "cache.kind", "max_mel_frames", "threads", "max_threads"] {
        let of = |document: &Value| key.split('.').fold(document.clone(), |value, key| value[key].clone());
        assert_eq!(of(&again), of(&first), "{key}");
    }
}

#[test]
fn a_corpus_is_validated_with_its_own_shapes() {
    let ran =
        TandemCommand::new("validate --sim 1x24GiB --model-size nano --batch-size 2 --buffer-size 4 --train-data")
            .arg(demo())
            .run();
    assert_eq!(ran.code, 0, "{ran:?}");
    contains(&ran.out, &["🎉 All validation checks passed!", "tandem train --sim 1x24GiB --train-data "]);
}

#[test]
fn lengths_are_saved_in_the_folder_of_the_run_once_it_exists() {
    let (copy, metadata) = copy_of_demo();
    let run = |folder: &TempFolder| {
        let ran = TandemCommand::new("plan --sim 1x24GiB --batch-size 2 -v --train-data")
            .arg(copy.path(""))
            .inside(folder)
            .run();
        assert_eq!(ran.code, 0, "{ran:?}");
        ran.out
    };
    let bare = TempFolder::new();
    contains(&run(&bare), &[&format!("measured {} recordings, lengths not saved", metadata.len())]);
    assert!(!bare.path("checkpoints").exists());

    let started = TempFolder::new();
    fs::create_dir(started.path("checkpoints")).unwrap();
    contains(&run(&started), &[&format!("measured {} recordings, lengths saved in ./checkpoints", metadata.len())]);
    contains(&run(&started), &["measured 0 recordings, lengths saved in ./checkpoints"]);
}
