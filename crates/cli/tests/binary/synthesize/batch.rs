//! Many sentences in one call.

use std::fs;

use super::pipes::with_input;
use super::{run_folder, spoken};
use crate::command::{TandemCommand, contains};
use crate::machine::TempFolder;

fn batch(folder: &TempFolder, list: &str, line: &str) -> TandemCommand {
    let list = folder.file("list.csv", list);
    let command = TandemCommand::new(&format!("synthesize --mode cpu {line} --batch")).arg(list).arg("-o");
    command.arg(folder.path("out")).arg("--checkpoint").arg(run_folder())
}

fn names(folder: &TempFolder) -> Vec<String> {
    let entries = fs::read_dir(folder.path("out")).unwrap();
    let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn every_row_becomes_the_file_that_it_would_become_alone() {
    let folder = TempFolder::new();
    let list = "id|text|speaker\r\nfirst|Good morning.\r\n\r\nsecond|The quick brown fox.|ada\nبه|Good night.||\n";
    let ran = batch(&folder, list, "").run();
    assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{ran:?}");
    contains(&ran.out, &["Synthesising on the CPU", "3 files with ", "s of speech, synthesised in"]);
    assert_eq!(names(&folder), ["first.wav", "second.wav", "به.wav"]);
    let alone = TempFolder::new();
    for (name, text, line) in [
        ("first", "Good morning.", "--mode cpu"),
        ("second", "The quick brown fox.", "--mode cpu --speaker ada"),
        ("به", "Good night.", "--mode cpu"),
    ] {
        let wav = fs::read(folder.path(&format!("out/{name}.wav"))).unwrap();
        assert!(wav == spoken(line, text, &alone).0, "{name}");
    }
    // The list from standard input, over the files from before.
    let piped = TandemCommand::new("synthesize --mode cpu -q --batch - -o").arg(folder.path("out"));
    let (out, again) = with_input(piped.arg("--checkpoint").arg(run_folder()), list.as_bytes());
    assert_eq!((again.code, out.split(|byte| *byte == b'\n').count()), (0, 2), "{again:?}");
}

#[test]
fn a_bad_row_does_not_lose_the_others() {
    let folder = TempFolder::new();
    let list = "a|Good morning.\nb|\nc|中文\nd|Hello.|nobody\ne\nf|1|2|3|4\ng|Hello.|ada\nh|Hello 中.";
    let ran = batch(&folder, list, "").run();
    assert_eq!(ran.code, 1, "{ran:?}");
    assert_eq!(names(&folder), ["a.wav", "g.wav", "h.wav"]);
    contains(&ran.out, &["3 files with "]);
    contains(
        &ran.err,
        &[
            "skipped characters the model does not know, in 1 row: '中'",
            "5 of 8 rows were not spoken:",
            "line 2 (b): the text is empty",
            "line 3 (c): the text has no symbol that this model knows",
            "line 4 (d): the checkpoint has no voice of \"nobody\"; it has ada",
            "line 5 (e): expected id|text[|speaker[|lang]], found 1 columns",
            "line 6 (f): expected id|text[|speaker[|lang]], found 5 columns",
        ],
    );
    let ran = batch(&folder, list, "--json").run();
    assert_eq!(ran.code, 1, "{ran:?}");
    let document = ran.json();
    let files = document["files"].as_array().unwrap();
    assert_eq!(files.iter().map(|file| file["id"].as_str().unwrap()).collect::<Vec<_>>(), ["a", "g", "h"]);
    assert_eq!(files[1]["file"], folder.path("out/g.wav").to_str().unwrap());
    assert_eq!(files[2]["unknown_characters"], serde_json::json!(["中"]));
    let seconds: f64 = files.iter().map(|file| file["seconds"].as_f64().unwrap()).sum();
    assert!((seconds - document["seconds"].as_f64().unwrap()).abs() < 1e-9, "{document}");
    let failed = document["failed"].as_array().unwrap();
    assert_eq!(failed.iter().map(|row| row["line"].as_u64().unwrap()).collect::<Vec<_>>(), [2, 3, 4, 5, 6]);
    assert_eq!(failed[0]["reason"], "the text is empty");
}

#[test]
fn ids_that_are_not_file_names_are_refused_before_anything_is_synthesised() {
    let folder = TempFolder::new();
    let list = "good|Hello.\n../../etc/x|Hello.\n/tmp/y|Hello.\n.z|Hello.\n|Hello.\ngood|Again.";
    let ran = batch(&folder, list, "").run();
    assert_eq!(ran.code, 2, "{ran:?}");
    contains(
        &ran.err,
        &[
            "--batch: ",
            "5 cannot",
            "line 2: id \"../../etc/x\"",
            "line 3: ",
            "line 4: ",
            "line 5: ",
            "line 6: ",
            "line 1",
        ],
    );
    assert!(!folder.path("out").exists());
}

#[test]
fn a_batch_replaces_no_recordings_and_no_other_files() {
    let folder = TempFolder::new();
    folder.file("corpus/metadata.csv", "a|text\n");
    let recording = folder.file("corpus/wavs/a.wav", b"RIFF....");
    let notes = folder.file("notes/a.wav", b"my notes");
    let list = folder.file("list.csv", "b|Hello.\na|Hello.\n");
    let run = |out: &str, line: &str| {
        let command = TandemCommand::new(&format!("synthesize --mode cpu {line} --batch")).arg(&list).arg("-o");
        command.arg(folder.path(out)).arg("--checkpoint").arg(run_folder()).run()
    };
    for (out, part) in [("corpus/wavs", "belongs to a corpus"), ("notes", "is not an audio file")] {
        let ran = run(out, "");
        assert_eq!(ran.code, 2, "{ran:?}");
        contains(&ran.err, &["-o: the file", part, "--overwrite"]);
        assert!(!folder.path(&format!("{out}/b.wav")).exists(), "nothing is written");
    }
    assert_eq!(
        (fs::read(&recording).unwrap(), fs::read(&notes).unwrap()),
        (b"RIFF....".to_vec(), b"my notes".to_vec())
    );
    assert_eq!(run("notes", "--overwrite").code, 0);
    assert!(fs::read(&notes).unwrap().starts_with(b"RIFF"));
}

#[test]
fn wrong_lists_and_outputs_say_what_to_type() {
    let folder = TempFolder::new();
    let list = folder.file("list.csv", "a|Hello.\n");
    let empty = folder.file("empty.csv", "\n");
    let latin = folder.file("latin.csv", b"a|caf\xe9");
    let file = folder.file("file.txt", "x");
    let missing = folder.path("missing.csv");
    let run = |list: &std::path::Path, out: &std::path::Path| {
        TandemCommand::new("synthesize --checkpoint nowhere --batch").arg(list).arg("-o").arg(out).run()
    };
    let out = folder.path("out");
    for (ran, parts) in [
        (run(&list, "-".as_ref()), &["expects a folder", "-o speech"][..]),
        (run(&list, &folder.path("all.wav")), &["expects a folder", "all.wav"]),
        (run(&list, &file), &["expects a folder", "file.txt"]),
        (run(&list, &folder.path("no/such")), &["the folder does not exist"]),
        (run(&empty, &out), &["--batch: the list has no rows", "id|text"]),
        (run(&latin, &out), &["--batch: not UTF-8 text"]),
        (run(&missing, &out), &["--batch: cannot read it", "missing.csv"]),
        (run(&list, &out), &["--checkpoint", "found nothing"]),
    ] {
        assert_eq!(ran.code, 2, "{ran:?}");
        contains(&ran.err, parts);
    }
    let ran = TandemCommand::new("synthesize --text hi --batch").arg(&list).arg("-o").arg(&out).run();
    assert_eq!(ran.code, 2, "{ran:?}");
    contains(&ran.err, &["cannot be used with"]);
    assert!(!out.exists());
}
