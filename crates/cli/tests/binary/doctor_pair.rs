//! `tandem doctor --pair`: one JSON file about two cards, complete whatever the cards do.

use std::fs;

use serde_json::Value;

use crate::command::{Ran, TandemCommand, contains, in_order};
use crate::machine::TempFolder;

fn doctor(line: &str, folder: &TempFolder) -> TandemCommand {
    TandemCommand::new(&format!("doctor --pair {line}")).without_gpu().inside(folder)
}

/// The report of simulated cards.
fn report(spec: &str) -> Value {
    let ran = doctor(&format!("0,1 --sim {spec} --json"), &TempFolder::new()).run();
    assert_eq!(ran.code, 0, "{spec}: {ran:?}");
    ran.json()
}

/// The names of the routes of a direction that work, and of those that do not, with the reason.
fn routes(report: &Value, direction: &str) -> (Vec<String>, Vec<(String, String)>) {
    let rows = report["routes"][direction].as_array().unwrap();
    let name = |row: &Value| row["route"].as_str().unwrap().to_owned();
    let works = rows.iter().filter(|row| row["gb_per_s"].as_f64().is_some_and(|speed| speed > 0.0)).map(name);
    let failed = rows.iter().filter_map(|row| Some((name(row), row["error"].as_str()?.to_owned())));
    (works.collect(), failed.collect())
}

#[test]
fn a_clean_pair_has_every_figure_in_one_file() {
    let folder = TempFolder::new();
    let ran = doctor("0,sim-00000001 --sim 2x24GiB,nvlink", &folder).run();
    assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{ran:?}");
    assert!(ran.out.lines().all(|line| line.starts_with("[simulated] ")), "{ran:?}");
    let table = ["Cards: ", "GPU 0 → GPU 1", "GPU 1 → GPU 0", "peer ", " GB/s", "bounce ", "Peer access:", "yes"];
    in_order(&ran.out, &table);
    in_order(&ran.out, &["Memory:", "522 MB alone", "Events:", "µs", "Clocks:", "ppm", "Fault:"]);
    in_order(&ran.out, &["the wait of GPU 1 ended with an error", "For a bug report: tandem-pair.json"]);
    let text = fs::read_to_string(folder.path("tandem-pair.json")).unwrap();
    let report: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&report["schema"], &report["version"]), (&"tandem-pair-report".into(), &1.into()));
    assert_eq!((&report["simulated"], &report["driver"]), (&true.into(), &"simulated".into()));
    assert_eq!((&report["cards"][1]["gpu"], &report["cards"][0]["name"]), (&1.into(), &"Simulated 24576 MB".into()));
    for direction in ["a_to_b", "b_to_a"] {
        let (works, failed) = routes(&report, direction);
        assert_eq!(works, ["peer", "peer-copy", "staged", "bounce"], "{failed:?}");
        assert_eq!(report["routes"][direction][0]["slots"], 3);
        assert_eq!(report["peer_access"][direction]["can_access"], true);
        assert!(report["event_round_trip"][direction]["p99_us"].as_f64().unwrap() > 0.0);
    }
    // Simulated cards charge 64 MiB for peer access.
    for (state, mib) in [("both_open", 522), ("peer_access", 522 + 64)] {
        assert_eq!(report["driver_memory"][state]["a_bytes"], mib << 20, "{state}");
    }
    assert_eq!(
        (&report["driver_memory"]["a_open"]["b_bytes"], &report["driver_memory"]["b_open"]["b_bytes"]),
        (&0.into(), &(522 << 20).into())
    );
    assert!(report["clocks"]["b_ahead_of_a_ppm"].is_number() && report["clocks"]["seconds"].as_f64().unwrap() > 0.0);
    assert_eq!(report["trap_on_a"]["b_wait"], "ended with an error");
    // Again, over its own report; the text of a terminal without UTF-8 is ASCII.
    let again = doctor("1,0 --sim 2x24GiB,nvlink -q", &folder).env("LANG", "C").run();
    assert_eq!((again.code, again.out.lines().count()), (0, 1), "{again:?}");
    assert!(again.both().is_ascii(), "{again:?}");
    let swapped = fs::read_to_string(folder.path("tandem-pair.json")).unwrap();
    assert_eq!(serde_json::from_str::<Value>(&swapped).unwrap()["cards"][0]["gpu"], 1);
}

#[test]
fn a_measurement_that_fails_is_a_field_with_its_reason() {
    let check = |fault: &str, broken: &[&str], reason: &str| {
        let report = report(&format!("2x24GiB,nvlink,{fault}"));
        for direction in ["a_to_b", "b_to_a"] {
            let (works, failed) = routes(&report, direction);
            let names: Vec<&str> = failed.iter().map(|(route, _)| route.as_str()).collect();
            assert_eq!((names.as_slice(), works.len()), (broken, 4 - broken.len()), "{fault}: {failed:?}");
            failed.iter().for_each(|(_, found)| contains(found, &[reason]));
        }
        assert!(report["clocks"]["seconds"].is_number(), "{fault}: {report:#}");
        report
    };
    check("corrupt=peer", &["peer"], "peer: the copy from GPU");
    check("corrupt-peer", &["peer", "peer-copy"], "the copy from GPU");
    check("stuck=staged", &["staged"], "did not finish within 10 s");
    check("trap-on=peer-copy", &["peer-copy"], "was lost: a kernel executed a trap");
    check("abort-on=staged", &["staged"], "the child process that tried it ended with signal 6");
    let refused = check("refuse-peer-access", &["peer", "peer-copy"], "enabling peer access failed");
    contains(refused["driver_memory"]["peer_access"]["error"].as_str().unwrap(), &["enabling peer access failed"]);
    let unlinked = report("2x24GiB");
    assert_eq!(routes(&unlinked, "b_to_a").0, ["staged", "bounce"]);
    assert_eq!(unlinked["peer_access"]["a_to_b"]["can_access"], false);
}

#[test]
fn a_lost_card_and_a_hung_driver_leave_a_complete_report() {
    let lost = report("2x24GiB,nvlink,lose-card=8");
    for field in ["driver_memory", "event_round_trip", "clocks"] {
        contains(lost[field]["error"].as_str().unwrap(), &["was lost: it stopped responding"]);
    }
    let (works, failed) = routes(&lost, "a_to_b");
    assert_eq!((works.len(), failed.len()), (0, 4), "{failed:?}");
    let folder = TempFolder::new();
    let hung = doctor("0,1 --sim 2x24GiB,nvlink,freeze-on=peer", &folder).env("TANDEM_PROVE_IN_CHILD", "5").run();
    assert_eq!(hung.code, 0, "{hung:?}");
    let reason = "peer, GPU 0 → GPU 1: the child process that tried it did not answer within 5 s and was killed";
    contains(&hung.out, &[reason, "failed", "Fault: "]);
}

#[test]
fn cards_that_are_not_there_and_settings_are_refused() {
    let folder = TempFolder::new();
    let refused = |line: &str, parts: &[&str]| {
        let ran: Ran = doctor(line, &folder).run();
        assert_eq!((ran.code, ran.out.as_str()), (2, ""), "{ran:?}");
        contains(&ran.err, parts);
    };
    refused("0,1", &["❌ --pair requires two GPUs, found 0"]);
    refused("0,1 --sim 1x24GiB", &["❌ --pair requires two GPUs, found 1", "GPU 0: Simulated 24576 MB"]);
    refused("0,2 --sim 2x24GiB", &["❌ --pair: 2 is none of these GPUs", "GPU 1: Simulated"]);
    refused("0,SIM-0000 --sim 2x24GiB", &["❌ --pair: SIM-0000 begins several UUIDs", "GPU 1: Simulated"]);
    refused("0,SIM-00000000 --sim 2x24GiB", &["❌ --pair: 0 and SIM-00000000 are the same GPU"]);
    refused("0,1 --sim 2x24GiB,hidden=1", &["❌ --pair: GPU 1 (SIM-", "is hidden by --sim hidden"]);
    for pair in ["0", "0,0", "0,1,2", "a,b", "-1,0", ""] {
        let ran = doctor("", &folder).arg(pair).args(["--sim", "2x24GiB"]).run();
        assert_eq!(ran.code, 2, "{pair}: {ran:?}");
        contains(&ran.err, &["expected two different GPUs, by number or UUID, e.g. --pair 0,1"]);
    }
    refused("0,1 --sim 2x24GiB --batch-size 4", &["❌ --pair takes no settings of a run; remove: --batch-size 4"]);
    folder.file("thesis.json", "{\"schema\": \"thesis\"}");
    refused("0,1 --sim 2x24GiB -o thesis.json", &["❌ --output: ", "not a report of tandem doctor", "thesis.json"]);
    assert!(!folder.path("tandem-pair.json").exists());
}

#[test]
fn programs_get_the_report_on_standard_output() {
    let folder = TempFolder::new();
    let ran = doctor("0,1 --sim 2x24GiB --json -o pair.json", &folder).run();
    assert_eq!(ran.code, 0, "{ran:?}");
    let file: Value = serde_json::from_str(&fs::read_to_string(folder.path("pair.json")).unwrap()).unwrap();
    assert_eq!(ran.json(), file);
    assert!(!folder.path("tandem-pair.json").exists());
    contains(&ran.err, &["2. Routes from GPU 0 to GPU 1", "For a bug report: pair.json"]);
}

#[test]
fn the_file_has_no_host_name_and_no_home_folder() {
    let folder = TempFolder::new();
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let home = folder.path("home/zerlina");
    fs::create_dir_all(&home).unwrap();
    let command =
        TandemCommand::new("doctor --pair 0,1 --sim 2x24GiB --json").env("HOME", &home).env("USER", "zerlina");
    let text = command.run().out;
    // A host name of a few letters may be part of a word.
    assert!(host.trim().len() < 6 || !text.contains(host.trim()), "{text}");
    assert!(!text.contains("zerlina") && !text.contains("/home/"), "{text}");
}
