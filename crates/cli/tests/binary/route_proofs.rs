//! Routes with peer access are proven in a child process: one that crashes, faults or hangs there is refused, and the run
//! takes another.

use serde_json::Value;

use crate::command::{Ran, SMALL, TandemCommand, contains};
use crate::machine::TempFolder;
use crate::speech::demo;

/// A command on two linked cards with a fault. `seconds`: the deadline of a proof in a child process.
fn pair(command: &str, fault: &str, seconds: &str) -> TandemCommand {
    let line = format!("{command} --sim 2x24GiB,nvlink{fault} --data-gpu 0 --model-gpu 1 {SMALL}");
    TandemCommand::new(&line).without_gpu().env("TANDEM_PROVE_IN_CHILD", seconds)
}

fn plan(fault: &str, seconds: &str) -> Value {
    let ran = pair("plan", fault, seconds).arg("--json").run();
    assert_eq!(ran.code, 0, "{fault}: {ran:?}");
    ran.json()
}

/// Why each route does not work; empty for one that does.
fn reasons(plan: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let tried = plan["transfer_tried"].as_array().unwrap();
    tried.iter().map(|tried| (text(&tried["route"]), text(&tried["refused"]))).collect()
}

#[test]
fn a_clean_pair_is_proven_in_the_child_and_planned_as_without_it() {
    let in_child = working_routes(&plan("", "60"));
    let here = pair("plan", "", "").without_env("TANDEM_PROVE_IN_CHILD").arg("--json").run();
    assert_eq!(in_child, working_routes(&here.json()));
    assert_eq!(in_child, ["peer", "peer-copy", "staged", "bounce"]);
}

fn working_routes(plan: &Value) -> Vec<String> {
    assert_eq!(plan["transfer"], "peer", "{plan}");
    reasons(plan).into_iter().filter(|(_, reason)| reason.is_empty()).map(|(route, _)| route).collect()
}

#[test]
fn a_proof_that_takes_its_process_down_refuses_the_route_alone() {
    // A hung driver call is ended after the deadline; nothing else waits for it.
    for (fault, seconds, reason) in [
        ("abort-on", "60", "the child process that tried it ended with signal 6"),
        ("freeze-on", "20", "the child process that tried it did not answer within 20 s and was killed"),
        ("trap-on", "60", "was lost: a kernel executed a trap"),
        ("stuck", "60", "GPU 0 did not finish within 10 s"),
        ("corrupt", "60", "peer: the copy from GPU 0 to GPU 1 changed"),
    ] {
        let plan = plan(&format!(",{fault}=peer"), seconds);
        let reasons = reasons(&plan);
        contains(&reasons[0].1, &[reason]);
        assert!(reasons[1..].iter().all(|(_, reason)| reason.is_empty()), "{fault}: {plan}");
        assert_eq!(plan["transfer"], "peer-copy", "{fault}");
        contains(plan["notes"][0].as_str().unwrap(), &["⚠️ peer-copy (peer does not work)", "peer refused: ", reason]);
    }
}

#[test]
fn without_the_child_such_a_route_ends_the_process() {
    let aborted = pair("plan", ",abort-on=peer", "").without_env("TANDEM_PROVE_IN_CHILD").run();
    assert_eq!(aborted.code, -1, "{aborted:?}");
    let lost = pair("plan", ",trap-on=peer", "").without_env("TANDEM_PROVE_IN_CHILD").run();
    assert_eq!(lost.code, 1, "{lost:?}");
    contains(&lost.err, &["was lost: a kernel executed a trap"]);
}

#[test]
fn a_run_trains_over_another_route_and_validate_passes() {
    let folder = TempFolder::new();
    let train = |fault: &str, name: &str| -> Ran {
        let command = pair("train --max-steps 2", fault, "60").arg("--train-data").arg(demo());
        command.arg("--checkpoint-dir").arg(folder.path(name)).run()
    };
    let ran = train(",trap-on=peer", "run");
    assert_eq!(ran.code, 0, "{ran:?}");
    contains(&ran.out, &["peer-copy (peer does not work)", "Training finished: 2 steps"]);
    let validated = pair("validate", ",abort-on=peer", "60").run();
    assert_eq!(validated.code, 0, "{validated:?}");
    contains(&validated.out, &["GB/s (peer-copy", "All validation checks passed!"]);
}

#[test]
fn a_route_that_was_asked_for_and_crashes_is_an_error() {
    for command in ["plan", "validate"] {
        let ran = pair(command, ",abort-on=peer", "60").args(["--transfer", "peer"]).run();
        assert_eq!(ran.code, 1, "{ran:?}");
        let refused =
            "peer transfer is not possible from GPU 0 to GPU 1: the child process that tried it ended with signal 6";
        contains(&ran.err, &["the transfer test between the roles failed", refused]);
    }
}

/// Child processes run this command; it is not for people.
#[test]
fn the_command_of_the_child_is_in_no_help_page() {
    for line in ["--help", "man", "completions bash"] {
        let ran = TandemCommand::new(line).run();
        assert!(ran.code == 0 && !ran.out.contains("check-pair"), "{line}: {ran:?}");
    }
    let uuid = |card: u32| format!("SIM-{card:08x}-0000-0000-0000-000000006000");
    let known = format!("check-pair --sim 2x24GiB --from {} --to {} --bytes 4096 --slots 2", uuid(0), uuid(1));
    let ran = TandemCommand::new(&format!("{known} bounce peer")).run();
    assert_eq!(ran.code, 0, "{ran:?}");
    let lines: Vec<Value> = ran.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((&lines[0]["started"], &lines[1]["check"]), (&"bounce".into(), &"bounce".into()));
    assert!(lines[1]["result"]["gb_per_s"].as_f64().unwrap() > 0.0, "{lines:?}");
    contains(lines[3]["error"].as_str().unwrap(), &["peer transfer is not possible from GPU 0 to GPU 1"]);
    let gone = TandemCommand::new(&known.replace("SIM-00000001", "SIM-00000007")).arg("bounce").run();
    assert_eq!(gone.code, 1, "{gone:?}");
    contains(&gone.out, &["no GPU has the UUID SIM-00000007"]);
    assert_eq!(TandemCommand::new(&known).arg("magic").run().code, 2);
}
